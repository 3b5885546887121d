"""Certificate and manifest of a running peer, and their renewal."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from pathlib import Path
from typing import NamedTuple

from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.errors import InvalidInput, SpodgtError
from spodgt.peer.host.clock import SYSTEM_CLOCK, Clock
from spodgt.peer.host.events import Notify
from spodgt.peer.host.interfaces import Host
from spodgt.peer.membership import certificates
from spodgt.peer.membership.certificates import Identity
from spodgt.peer.membership.manifest import Manifest, SignedManifest
from spodgt.peer.membership.manifest_changes import why_incompatible
from spodgt.peer.process.local_problem import Capacity, read_capacity
from spodgt.peer.process.own_certificate import OwnCertificate
from spodgt.peer.protocol.client_state import Member
from spodgt.peer.protocol.epoch_topology import EpochTopology
from spodgt.peer.transport.connection import ANSWER, GROWTH, fetch

_PAUSE = 0.5  # seconds between two requests for a manifest


class Terms(NamedTuple):
    """A manifest, and what one client makes of it."""

    signed: SignedManifest
    algorithm: Algorithm[TrackingState]
    capacity: Capacity
    member: Member
    topology: EpochTopology

    @classmethod
    def of(
        cls,
        signed: SignedManifest,
        name: str,
        old: Terms | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Terms:
        """The terms of client `name`; a device that did not change keeps the record of its computing time."""
        manifest = signed.manifest
        own = manifest.client(name)
        if old is not None and old.manifest.client(name).compute == own.compute:
            capacity = old.capacity
        else:
            capacity = read_capacity(own.compute, manifest.seed, own.place, own.name, clock)
        member = Member(own.place, len(manifest.linked), capacity.p)
        return cls(signed, manifest.method.build(), capacity, member, manifest.topology(name))

    @property
    def manifest(self) -> Manifest:
        return self.signed.manifest


class Membership:
    """The terms in force, and newer ones from the folder or from a neighbour."""

    def __init__(self, folder: Path, own: Identity, notify: Notify, host: Host) -> None:
        self.folder = folder
        self.certificate = OwnCertificate(folder, own, notify, host)
        self.notify = notify
        self.host = host
        signed = SignedManifest.read(folder, own.authority, host.files)
        self.terms = Terms.of(signed, own.name, clock=host.clock)
        self.lock = threading.Lock()  # of `update`, and of the manifest in the folder
        self.update: Terms | None = None  # found in the folder or by a request, not yet in force
        self.removal_notice = ""  # why this client is no longer a member
        self._refusal = ""  # why the manifest in the folder is not used, as it was logged
        self._requests: dict[str, concurrent.futures.Future[None]] = {}  # by neighbour

    @property
    def identity(self) -> Identity:
        return self.certificate.identity

    @property
    def manifest(self) -> Manifest:
        return self.terms.manifest

    def may_read(self, name: str) -> bool:
        """Whether a client may read the manifest and the status: members and observers may."""
        return name in (*self.manifest.names, certificates.OBSERVER)

    def manifest_for(self, name: str) -> bytes | None:
        """The manifest's file; None for a client that may not read it."""
        return self.terms.signed.file if self.may_read(name) else None

    def adopt(self) -> Terms | None:
        """Put newer terms in force and keep them in the folder, if there are any."""
        with self.lock:
            return self._adopt()

    def _adopt(self) -> Terms | None:
        if self.update is not None:
            with contextlib.suppress(InvalidInput, OSError):
                self._read_manifest()  # a newer one in the folder must not be overwritten
        update = self.update
        self.update = None
        if update is None or update.manifest.version <= self.manifest.version:
            return None  # another one of this version may have been considered at the same time
        try:
            update.signed.write(self.folder, self.host.files)
        except OSError as error:  # it comes again with the neighbours' next frames
            self.notify("failed", f"manifest.toml cannot be written: {error.strerror}")
            return None
        self.terms = update
        return update

    # --- from the folder --------------------------------------------------------------------------
    def check_folder(self) -> Identity | None:
        """Consider a newer manifest in the folder; returns a renewed certificate, if one is there."""
        try:
            with self.lock:
                self._read_manifest()
        except (InvalidInput, OSError) as error:  # read again later: a copy may not be complete yet
            version = f"version {self.manifest.version} stays in use"
            refusal = f"{version}; manifest.toml in the folder is not usable: {error}"
            if refusal != self._refusal:
                self._refusal = refusal
                self.notify("manifest", refusal)
        return self.certificate.check()

    def _read_manifest(self) -> None:
        """Consider the manifest in the folder; raises InvalidInput if it is not a later version."""
        file = self.host.files.read(self.folder / "manifest.toml")
        if file == self.terms.signed.file:
            self._refusal = ""
            return
        newer = SignedManifest.verify(file, self.identity.authority)
        if newer.manifest.version < self.manifest.version:
            raise InvalidInput(f"it is version {newer.manifest.version}; put the newest one there.")
        if newer.manifest.version == self.manifest.version:
            raise InvalidInput(
                "another one of the same version is in use; publish the next version."
            )
        self._consider(newer)

    # --- from neighbours --------------------------------------------------------------------------
    def request_manifest(self, neighbour: str, loop: asyncio.AbstractEventLoop) -> None:
        """Fetch a neighbour's manifest in `loop`; one request to each neighbour at a time."""
        request = self._requests.get(neighbour)
        if request is None or request.done():
            self._requests[neighbour] = asyncio.run_coroutine_threadsafe(
                self._fetch(neighbour), loop
            )

    async def _fetch(self, neighbour: str) -> None:
        try:
            address = self.manifest.client(neighbour).address
            if address:  # without an address it gets the manifest from a neighbour that listens
                limit = max(ANSWER, GROWTH * len(self.terms.signed.file))
                file = await fetch(
                    "Manifest", self.identity, address, neighbour, limit, self.host.wire
                )
                newer = SignedManifest.verify(file, self.identity.authority)
                with self.lock:
                    self._consider(newer)
        except Exception as error:  # the neighbour's next frame asks again
            self.notify("failed", f"its manifest cannot be fetched: {error}"[:300], neighbour)
        await asyncio.sleep(_PAUSE)

    def _consider(self, newer: SignedManifest) -> None:
        """Prepare to adopt a manifest, if it is a later version for this run that can be followed."""
        ours = self.manifest
        theirs = newer.manifest
        if theirs.run != ours.run:
            return
        if theirs.version == ours.version and newer.file != self.terms.signed.file:
            text = (
                f"another one of version {ours.version} is in force; two were made from one version; "
                "make the next with spodgt peer set"
            )
            self.notify("refused", text, "manifest")
        known_version = ours.version
        if self.update is not None:
            known_version = max(known_version, self.update.manifest.version)
        if theirs.version <= known_version:
            return
        name = self.identity.name
        version = f"version {theirs.version} of the manifest"
        if name not in theirs.names:
            self.removal_notice = (
                f"{name} was removed from the run in {version}; its state is kept in {self.folder}."
            )
            return
        reason = why_incompatible(ours, theirs)
        if reason is not None:
            self.notify("refused", reason, version)
            return
        try:
            self.update = Terms.of(newer, name, self.terms, self.host.clock)
        except SpodgtError as error:
            self.notify("refused", str(error), version)
