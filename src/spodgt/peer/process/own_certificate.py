"""The certificate of a running client, which may be renewed in its folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

from spodgt.errors import InvalidInput
from spodgt.peer.host.events import Notify
from spodgt.peer.host.interfaces import Host
from spodgt.peer.membership import certificates
from spodgt.peer.membership.certificates import Identity

WARN_DAYS = 7.0  # before a certificate ends
_WARN_SECONDS = 3600.0  # between two warnings


class OwnCertificate:
    """The identity in use; a new one is taken from the folder once it is complete.

    An operator renews it: a client has no key to sign certificates, so it can only warn.
    """

    def __init__(self, folder: Path, identity: Identity, notify: Notify, host: Host) -> None:
        self.folder = folder
        self.identity = identity
        self.notify = notify
        self.host = host
        self._seen = self._stamp()
        self._warned = 0.0  # monotonic time of the last warning
        self._refusal = ""  # why a new certificate is not used, as it was logged

    @property
    def days_left(self) -> float:
        """Until the certificate ends."""
        return certificates.days_left(self.identity, self.host.clock.wall())

    def check(self) -> Identity | None:
        """Take a renewed certificate, and warn of one that ends; returns the renewed one."""
        renewed = self._renewed()
        self._warn()
        return renewed

    def _stamp(self) -> tuple[int, ...]:
        """Modification times and sizes of key and certificate."""
        stamp: list[int] = []
        with contextlib.suppress(OSError):
            for name in ("key.pem", "cert.pem"):
                status = self.host.files.status(self.folder / name)
                stamp += [status.modified, status.size]
        return tuple(stamp)

    def _renewed(self) -> Identity | None:
        """Take the certificate in the folder if its files have changed and are complete."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        try:
            self.identity = Identity.read(
                self.folder, self.identity.name, self.host.files, self.host.clock.wall()
            )
        except InvalidInput as error:  # one of two files is there, or half of one: read again later
            refusal = f"the old one stays in use: {error}"
            if refusal != self._refusal:  # read again in every report, logged once
                self._refusal = refusal
                self.notify("certificate", refusal)
            return None
        self._seen = stamp
        self._warned = 0.0
        self._refusal = ""
        self.notify("certificate", f"a new one, valid for {self.days_left:.1f} days")
        return self.identity

    def _warn(self) -> None:
        """Log that the certificate ends soon, once an hour."""
        left = self.days_left
        now = self.host.clock.monotonic()
        if left < WARN_DAYS and (not self._warned or now - self._warned > _WARN_SECONDS):
            self._warned = now
            end = f"ends in {left:.1f} days"
            if left <= 0:
                end = "has ended: no link can connect again"
            fix = f"renew it with: spodgt peer renew {self.identity.name}"
            self.notify("certificate", f"{end}; {fix}")
