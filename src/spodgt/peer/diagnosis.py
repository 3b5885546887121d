"""Why a link is down, in words: gRPC says "unavailable", people need the cause."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from spodgt.peer.identity import Identity


async def cause(error: Exception, identity: Identity, address: str, name: str) -> str:
    """One sentence for people."""
    if isinstance(error, grpc.aio.AioRpcError) and error.code() not in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ):
        return f"{name} refuses: {error.details()}"
    return await asyncio.get_running_loop().run_in_executor(None, probe, identity, address, name)


def probe(identity: Identity, address: str, name: str) -> str:
    """Knock once by hand: the standard library tells what went wrong."""
    host, _, port = address.rpartition(":")
    try:
        with files(identity) as paths, socket.create_connection((host.strip("[]"), int(port)), 2) as plain:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=paths["authority"])
            context.load_cert_chain(paths["certificate"], paths["key"])
            context.set_alpn_protocols(["h2"])
            with context.wrap_socket(plain, server_hostname=name) as secure:
                secure.settimeout(0.3)
                with contextlib.suppress(TimeoutError):
                    secure.recv(1)  # TLS 1.3: a refusal of our certificate comes after the handshake
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {name} at {address} is not accepted: {error.verify_message}"
    except ssl.SSLError as error:
        return f"{name} at {address} does not accept our certificate or speaks no TLS: {_alert(error)}"
    except ConnectionRefusedError:
        return f"nobody listens at {address}"
    except TimeoutError:
        return f"{address} does not answer"
    except (OSError, ValueError) as error:
        return f"{address} cannot be reached: {error}"
    return f"{name} at {address} answers, but the stream broke"


def _alert(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


@contextlib.contextmanager
def files(identity: Identity) -> Iterator[dict[str, Any]]:
    """The identity as files, for a library that reads nothing else; only we can read them."""
    with tempfile.TemporaryDirectory(prefix="spodgt-") as folder:
        os.chmod(folder, 0o700)
        paths = {}
        for part in ("key", "certificate", "authority"):
            paths[part] = str(Path(folder) / part)
            Path(paths[part]).write_bytes(getattr(identity, part))
        yield paths
