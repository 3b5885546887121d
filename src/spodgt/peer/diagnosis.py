"""Why a link is down: gRPC reports only "unavailable", so the cause is found by a second attempt."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import grpc

from spodgt.peer.identity import Identity

_TEXT = 300  # characters of a reason
NO_CONNECTION = "closes new connections before TLS begins"
_UNAVAILABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


async def cause(error: BaseException | None, identity: Identity, address: str, name: str) -> str:
    """One sentence that says why the link to `name` is down."""
    if isinstance(error, grpc.aio.AioRpcError) and error.code() not in _UNAVAILABLE:
        if error.code() is grpc.StatusCode.OK:
            return f"{name} ended the stream"
        return f"{name} refuses: {error.details()}"[:_TEXT]
    found = await asyncio.to_thread(probe, identity, address, name)
    if error is None or isinstance(error, grpc.aio.AioRpcError):
        return found
    if isinstance(error, asyncio.TimeoutError):
        return f"{found}: no answer in time"[:_TEXT]
    return f"{found}: {type(error).__name__}: {error}"[:_TEXT]


def probe(identity: Identity, address: str, name: str) -> str:
    """Connect once with the standard library, whose errors name the cause."""
    host, _, port = address.rpartition(":")
    try:
        context = _context(identity)
    except (OSError, ssl.SSLError):  # somebody is writing them, or has written something else
        return f"the stream to {name} broke, and key.pem and cert.pem in {identity.folder} are no pair now"
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), 2) as plain,
            context.wrap_socket(plain, server_hostname=name) as secure,
            contextlib.suppress(TimeoutError),
        ):
            secure.settimeout(0.3)
            secure.recv(1)  # TLS 1.3: a refusal of our certificate comes after the handshake
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {name} at {address} is not accepted: {error.verify_message}"
    except (ssl.SSLEOFError, ConnectionResetError):
        return f"{name} at {address} {NO_CONNECTION}: all are in use, it ends, or it speaks no TLS"
    except ssl.SSLError as error:
        alert = (error.reason or str(error)).lower().replace("_", " ")
        return f"{name} at {address} does not accept our certificate or speaks no TLS: {alert}"
    except ConnectionRefusedError:
        return f"nobody listens at {address}"
    except TimeoutError:
        return f"{address} does not answer"
    except (OSError, ValueError) as error:
        return f"{address} cannot be reached: {error}"
    return f"{name} at {address} answers, but the stream broke"


def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.create_default_context(
        ssl.Purpose.SERVER_AUTH, cadata=identity.authority.decode()
    )
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as gRPC: on by default from Python 3.13 on
    context.set_alpn_protocols(["h2"])
    if identity.folder is not None:
        context.load_cert_chain(identity.folder / "cert.pem", identity.folder / "key.pem")
    return context
