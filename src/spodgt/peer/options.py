"""What is chosen when a run between peers is made, and when one peer is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spodgt.errors import InvalidInput

Table = Mapping[str, object]  # of the manifest


@dataclass(frozen=True)
class Deployment:
    """What a run between peers has beyond an experiment."""

    names: list[str] | None = (
        None  # of the clients; None: those of the network or the data, or p0, p1, …
    )
    addresses: list[str] | None = None  # host:port of each, or "none"; None: free ports on loopback
    compute: Mapping[str, Table] = field(default_factory=dict)  # what some devices can do, by name
    limits_from_config: bool = (
        False  # limit clients and links to the probabilities of [participation]
    )
    divided_into: int | None = None  # parts of the problem, more than clients if some join later
    rounds_per_second: float = 0.0  # upper limit of a client's local rounds; 0: none
    max_alone: int = 200  # rounds without news after which a client waits; 0: never

    def __post_init__(self) -> None:
        for key in ("rounds_per_second", "max_alone"):
            if vars(self)[key] < 0:
                raise InvalidInput(f"{key} must be at least 0, got {vars(self)[key]}; use {key}=0.")


@dataclass(frozen=True)
class Options:
    """How one peer runs; none of it is agreed with others."""

    durability: str = "power"
    rounds: int | None = None  # stop after so many local rounds,
    gradients: int | None = None  # gradients,
    seconds: float | None = None  # or seconds; None: never
    linger: bool = False  # stay reachable after the last round
    report_every: float = 1.0  # seconds
    evaluate_every: float = 5.0  # seconds
    commit_every: int = 1  # local rounds that share one commit
    drop_after: float | None = (
        None  # seconds of silence after which an epoch begins without a neighbour
    )
    compiled: bool = (
        False  # loops of numba: a linear model's gradient in a tenth of the time, for 100 MB
    )
    listen: str | None = None  # host:port, if other than the manifest's


def check_address(address: str, what: str) -> None:
    """Refuse what is not host:port; `what` names the option or the client."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(f"{what} must be host:port with a port below 65536, got {address!r}.")
