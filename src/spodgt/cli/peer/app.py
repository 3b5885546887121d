"""The `spodgt peer` command group, and what its commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from spodgt.cli.app import Application, app
from spodgt.errors import InvalidInput

peer_app = Application(
    help="Run clients as real peers: asynchronous, authenticated and crash-safe.",
    no_args_is_help=True,
)
app.add_typer(peer_app, name="peer")

RunOption = Annotated[Path, typer.Option("--run", help="The run's folder.")]
DaysOption = Annotated[float, typer.Option(help="Number of days the certificate is valid.")]
DEFAULT_RUN = Path("peers")
DEFAULT_CONFIG: dict[str, object] = {  # without --config
    "run.methods": ["spod-gt-memory"],
    "network.kind": "exponential",
    "participation.kind": "always",
}
DEFAULT_DAYS = 30.0

_EXTRA_MODULES = ("grpc", "google", "cryptography", "prometheus_client")


@contextmanager
def peer_extra() -> Iterator[None]:
    """Imports inside this context report how to install the extra `peer` if it is missing."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] not in _EXTRA_MODULES:
            raise
        fix = "install it with: pip install 'spodgt[peer]'"
        raise InvalidInput(f"spodgt peer needs {error.name}; {fix}.") from None


def split_commas(text: str | None) -> list[str] | None:
    """The parts of a comma-separated list; None if the option was not given."""
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_devices(texts: list[str] | None) -> dict[str, dict[str, object]]:
    """Device tables by client, of --compute NAME={…}."""
    from spodgt.experiment import value_of

    devices = {}
    for text in texts or []:
        name, _, table = text.partition("=")
        device = value_of(table)
        if not isinstance(device, dict):
            raise InvalidInput(
                f'--compute {text!r} must be NAME={{kind = "budget", share = 0.25}}.'
            )
        devices[name.strip()] = device
    return devices


def parse_links(texts: list[str] | None) -> dict[tuple[str, str], dict[str, object]]:
    """Link tables by (sender, receiver), of SENDER:RECEIVER or SENDER:RECEIVER={…}."""
    from spodgt.experiment import value_of

    links = {}
    for text in texts or []:
        ends, _, table = text.partition("=")
        sender, _, receiver = (part.strip() for part in ends.partition(":"))
        value = value_of(table) if table else {}
        if not sender or not receiver or not isinstance(value, dict):
            raise InvalidInput(
                f"link {text!r} must be SENDER:RECEIVER, or SENDER:RECEIVER={{p_hat = 0.5}}."
            )
        links[sender, receiver] = value
    return links
