"""A TCP proxy that resets connections, as a router that restarts does; above it nothing is lost but time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Mapping
from types import TracebackType


class Proxies:
    """Forwards each listening address to a target, and resets connections with probability `cut` a chunk."""

    def __init__(self, targets: Mapping[str, str], *, cut: float = 0.0, seed: int = 0) -> None:
        self.targets, self.cut, self.draw = dict(targets), cut, random.Random(seed)
        self.resets = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.servers: list[asyncio.Server] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Proxies:
        self.thread.start()
        for listen, target in self.targets.items():
            asyncio.run_coroutine_threadsafe(self._serve(listen, target), self.loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    async def _close(self) -> None:
        for server in self.servers:
            server.close()
        pumps = asyncio.all_tasks() - {asyncio.current_task()}
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for writer in [*self.open]:
            writer.close()

    async def _serve(self, listen: str, target: str) -> None:
        host, _, port = listen.rpartition(":")

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there, _, number = target.rpartition(":")
                far_reader, far_writer = await asyncio.open_connection(there, int(number))
            except OSError:
                writer.close()
                return
            self.open |= {writer, far_writer}
            ends = (reader, far_writer), (far_reader, writer)
            with contextlib.suppress(asyncio.CancelledError):  # the end of all
                await asyncio.gather(*(self._pump(a, b, (writer, far_writer)) for a, b in ends))
            self.open -= {writer, far_writer}

        self.servers.append(await asyncio.start_server(connected, host, int(port)))

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        both: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        try:
            while data := await source.read(65536):
                if self.draw.random() < self.cut:
                    self.resets += 1
                    for writer in both:
                        reset(writer)
                    return
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            for writer in both:
                writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    plain = writer.get_extra_info("socket")
    if plain is not None and plain.fileno() >= 0:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport = writer.transport
    assert isinstance(transport, asyncio.WriteTransport)
    transport.abort()
