"""Options of a run between peers, of one peer, and of a change to a running run.

The text of `Annotated` is the help of the option of `spodgt peer` with the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from spodgt.errors import InvalidInput

Table = Mapping[str, object]  # of the manifest
Ends = tuple[str, str]  # sender, receiver

_DEVICE = "Limits of a device: 'p0={kind = \"budget\", share = 0.25}'; repeatable."
_ROUNDS_PER_SECOND = "Upper limit of a client's local rounds per second; 0: no limit."
_MAX_ALONE = "Pause a client after this many local rounds without a new message; 0: never."
_ROUNDS = "Local rounds after which every client ends; 0: it runs until it is stopped."


@dataclass(frozen=True)
class Deployment:
    """What a run between peers has in addition to an experiment."""

    addresses: Annotated[
        list[str] | None,
        "host:port of each client, or none; comma-separated. Default: free local ports.",
    ] = None
    names: Annotated[
        list[str] | None,
        "Names of the clients, comma-separated. Default: names in the data, or p0, p1, …",
    ] = None
    compute: Annotated[Mapping[str, Table], _DEVICE] = field(default_factory=dict)
    limits_from_config: Annotated[
        bool,
        "Limit clients and links to the participation probabilities of the config.",
    ] = False
    divided_into: Annotated[
        int | None, "Number of parts of the data; more than clients if some join later."
    ] = None
    rounds_per_second: Annotated[float, _ROUNDS_PER_SECOND] = 0.0
    max_alone: Annotated[int, _MAX_ALONE] = 200
    rounds: Annotated[int, _ROUNDS] = 0

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class Options:
    """How one peer runs. These options are local: other peers may have different ones."""

    durability: Annotated[str, "power (fsync) or process (survives kill -9 only)."] = "power"
    rounds: Annotated[int | None, "Stop after this many local rounds."] = None
    gradients: Annotated[int | None, "Stop after this many gradients."] = None
    seconds: Annotated[float | None, "Stop after this many seconds."] = None
    linger: Annotated[bool, "Remain reachable after the last round."] = False
    report_every: float = 1.0  # seconds
    evaluate_every: Annotated[float, "Seconds between evaluations."] = 5.0
    commit_every: Annotated[int, "Number of local rounds per commit to disk."] = 1
    drop_after: Annotated[
        float | None, "Continue without a neighbour that is silent for this many seconds."
    ] = None
    compiled: Annotated[
        bool, "Compiled loops: linear models ten times as fast, for 100 MB of memory."
    ] = False
    listen: Annotated[str | None, "host:port to listen on. Default: as in the manifest."] = None


@dataclass(frozen=True)
class Change:
    """A change of the manifest by `spodgt peer set`; None and empty tables change nothing."""

    step_size: Annotated[float | Table | None, "A number, or a schedule as in a config."] = None
    rounds_per_second: Annotated[float | None, _ROUNDS_PER_SECOND] = None
    max_alone: Annotated[int | None, _MAX_ALONE] = None
    addresses: Annotated[Mapping[str, str], "NAME=host:port, or NAME=none; repeatable."] = field(
        default_factory=dict
    )  # by client; "": it does not listen
    compute: Annotated[Mapping[str, Table], _DEVICE] = field(default_factory=dict)
    links: Annotated[
        Mapping[Ends, Table],
        "Add or change a link: SENDER:RECEIVER, or 'p0:p3={p_hat = 0.5, dial = \"receiver\"}'; "
        "repeatable.",
    ] = field(default_factory=dict)
    unlinked: Annotated[frozenset[Ends], "Remove a link: SENDER:RECEIVER; repeatable."] = (
        frozenset()
    )
    root: Annotated[str | None, "The root client, for a method with a root."] = None
    rounds: Annotated[int | None, _ROUNDS] = None


def check_limits(options: Deployment | Change) -> None:
    """Refuse negative limits of rounds."""
    for key in ("rounds_per_second", "max_alone", "rounds"):
        value = vars(options)[key]
        if value is not None and not value >= 0:  # also for NaN
            raise InvalidInput(f"{key} must be at least 0, got {value}; use {key}=0.")


def check_address(address: str, what: str) -> None:
    """Refuse what is not host:port; `what` names the option or the client."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(
            f"{what} must be host:port with a port below 65536, got {address!r}; "
            "use for example 10.0.0.1:7000."
        )
