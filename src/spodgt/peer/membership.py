"""The manifest that a running client follows, and newer ones: from its folder or from a neighbour."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from pathlib import Path

from spodgt.errors import InvalidInput
from spodgt.peer.identity import Identity
from spodgt.peer.manifest import Manifest, SignedManifest
from spodgt.peer.transport import fetch_manifest

_PAUSE = 0.5  # seconds between two requests for a manifest


class Membership:
    """The manifest in force, and a newer one once it is known."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.folder, self.identity = folder, identity
        self.current = SignedManifest.read(folder, identity.authority)
        self.update: SignedManifest | None = None
        self._request: concurrent.futures.Future[None] | None = None

    @property
    def manifest(self) -> Manifest:
        return self.current.manifest

    def adopt(self) -> Manifest:
        """Put the newer manifest in force and keep it in the folder."""
        assert self.update is not None
        self.current, self.update = self.update, None
        self.current.write(self.folder)
        return self.manifest

    def check_folder(self) -> None:
        """Somebody may have put a newer manifest into the folder."""
        with contextlib.suppress(InvalidInput, OSError):  # half written, or not ours: checked again later
            if (self.folder / "manifest.toml").read_bytes() != self.current.text:
                self._consider(SignedManifest.read(self.folder, self.identity.authority))

    def ask(self, neighbour: str, loop: asyncio.AbstractEventLoop) -> None:
        """Fetch a neighbour's manifest in `loop`; one request at a time."""
        if self._request is None or self._request.done():
            self._request = asyncio.run_coroutine_threadsafe(self._fetch(neighbour), loop)

    async def _fetch(self, neighbour: str) -> None:
        with contextlib.suppress(Exception):  # the neighbour's next frame asks again
            address = self.manifest.client(neighbour).address
            text, signature = await fetch_manifest(self.identity, address, neighbour)
            self._consider(SignedManifest.verify(text, signature, self.identity.authority))
        await asyncio.sleep(_PAUSE)

    def _consider(self, newer: SignedManifest) -> None:
        ours, theirs = self.manifest, newer.manifest
        if theirs.run == ours.run and theirs.version > ours.version and theirs.layout == ours.layout:
            theirs.client(self.identity.name)  # raises if we have left
            self.update = newer
