"""The certificate of a running client, which may be renewed in its folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

from spodgt.errors import InvalidInput
from spodgt.peer.host.events import Notify
from spodgt.peer.host.interfaces import Host
from spodgt.peer.membership import certificates
from spodgt.peer.membership.certificates import Identity


class OwnCertificate:
    """The identity in use; a new one is taken from the folder once it is complete.

    An operator renews it: a client has no key to sign certificates. A warning of the status asks for it.
    """

    def __init__(self, folder: Path, identity: Identity, notify: Notify, host: Host) -> None:
        self.folder = folder
        self.identity = identity
        self.notify = notify
        self.host = host
        self._seen = self._stamp()
        self._refusal = ""  # why a new certificate is not used, as it was logged

    @property
    def days_left(self) -> float:
        """Until the certificate ends."""
        return certificates.days_left(self.identity, self.host.clock.wall())

    def check(self) -> Identity | None:
        """Take a renewed certificate if the files in the folder have changed and are complete; returns it."""
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
        self._refusal = ""
        self.notify("certificate", f"a new one, valid for {self.days_left:.1f} days")
        return self.identity

    def _stamp(self) -> tuple[int, ...]:
        """Modification times and sizes of key and certificate."""
        stamp: list[int] = []
        with contextlib.suppress(OSError):
            for name in ("key.pem", "cert.pem"):
                status = self.host.files.status(self.folder / name)
                stamp += [status.modified, status.size]
        return tuple(stamp)
