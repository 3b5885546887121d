"""Replay of recorded availability, from arrays or from a log in a table or file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypedDict

from numpy.typing import ArrayLike
from pydantic import BeforeValidator, SkipValidation
from typing_extensions import Unpack

from spodgt._util.files import find_data_file
from spodgt._util.text import first_line, short_repr
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.participation.availability import AvailabilityTrace
from spodgt.participation.recipes import (
    PARTICIPATIONS,
    Numbers,
    client_probabilities,
    link_probabilities,
)
from spodgt.participation.trace_logs import LogReader
from spodgt.participation.trace_masks import ALWAYS, BOTH_UP, Mask, TraceMasks, as_mask
from spodgt.types import Availability, Bools, Ints
from spodgt.validation import Field, FieldHint, Number, one_of, recipe

if TYPE_CHECKING:
    import pandas as pd

_RECORDED = "recorded"


class LogOptions(TypedDict, total=False):
    """Options of a log: the fields of `TraceFile` except its path."""

    round_length: float | None
    start: float | str | None
    end: float | str | None
    cover: float
    clients: Sequence[str] | None
    computes: str
    links: str
    repeat: bool


@recipe(InvalidInput)
class Trace:
    """Replays recorded availability.

    Args:
        computes: (rounds + 1, clients) mask of computing clients, round 0 included. Or "always".
        links: Mask of working links: (rounds, clients, clients) as [receiver, sender], or (rounds,
            links) in the network's order; with `repeat` one round more, for round 0. Or "always",
            or "both-up": a link works in the rounds in which both its ends compute.
        p: Probabilities that the delay clock charges, as in `Bernoulli`; the observed frequencies,
            which must be above 0, if None.
        p_hat: Likewise, of links.
        repeat: Start again at the end: round k replays row k modulo the number of rows.
        names: Client of each column of `computes`, by name or number; None: all, in order.
        ends: (links, 2) receiver and sender of each column of `links`, as columns of `computes`.
        source: Path of the file, for errors.
    """

    name: ClassVar[str] = "trace"
    computes: Annotated[Mask, SkipValidation, Field(examples=[ALWAYS])]
    links: Annotated[Mask, SkipValidation, Field(examples=[BOTH_UP])]
    p: Annotated[Numbers | None, SkipValidation] = None
    p_hat: Annotated[Numbers | None, SkipValidation] = None
    repeat: bool = False
    names: tuple[str | int, ...] | None = field(default=None, kw_only=True)
    ends: Annotated[Ints | None, SkipValidation] = field(default=None, kw_only=True)
    source: str = field(default="arrays", kw_only=True)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:  # `==` of arrays is an array
        return self is other

    @classmethod
    def read(cls, path: str | Path, **options: Unpack[LogOptions]) -> Trace:
        """Read a log in CSV or Parquet; see `from_table`.

        Args:
            path: The file.
            options: As for `from_table`.
        """
        name = str(path) if isinstance(path, Path) else path
        return TraceFile(name, **options).trace  # type: ignore[arg-type]

    @classmethod
    def from_table(
        cls, table: pd.DataFrame | Mapping[str, ArrayLike], **options: Unpack[LogOptions]
    ) -> Trace:
        """Convert a log to rounds.

        Each row is about the client in column `client`, which computes, or about the link `sender`
        → `receiver`, which works; a row with receiver = sender is about that client. Two columns
        hold the times:

        - round, up: 1 or 0 in that round;
        - start, end: up from start to end; without an end until the end of the log;
        - time, up: 1 or 0 from that time until the next row about it, or the end of the log.

        Without a row, a client or link is down. Times are numbers in any unit, or dates and times,
        which count seconds: text, or datetime columns of any unit; without a time zone they are
        UTC.

        Args:
            table: The log, a pandas table or its columns by name.
            options: The fields of `TraceFile` except its path.
        """
        import pandas as pd

        try:
            frame = pd.DataFrame(table)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"table must be a pandas table, got {short_repr(table)} ({error})."
            ) from None
        return TraceFile("table", **options).convert(frame)  # type: ignore[arg-type]

    def draw(self, network: Network, seed: int) -> Availability:
        masks = TraceMasks.of(self, network)
        if self.p is None:
            p = masks.client_frequencies()
        else:
            p = client_probabilities(self.p, network)
        if self.p_hat is None:
            p_hat = masks.link_frequencies()
        else:
            p_hat = link_probabilities(self.p_hat, network)
        return AvailabilityTrace(p, p_hat, masks.computes, masks.links, seed, self.repeat)

    def column(self, client: int, name: str = "") -> Bools:
        """(rounds + 1,) mask of the rounds in which one client computes.

        Args:
            client: Number of the client, if the trace has no such name.
            name: Name of the client.
        """
        computes = as_mask(self.computes, "computes")
        labels = range(computes.shape[1]) if self.names is None else self.names
        column_of = {str(label): column for column, label in enumerate(labels)}
        column = column_of.get(name, column_of.get(str(client)))
        if column is None or not computes[:, column].any():
            raise InvalidInput(
                f"{self.description} never lets client {name or client} compute; add its rows."
            )
        return computes[:, column]

    @property
    def description(self) -> str:
        """The trace, in errors."""
        return "the trace" if self.source == "arrays" else f"trace {self.source}"


def _list_to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


@recipe(InvalidInput, PARTICIPATIONS)
class TraceFile:
    """Recorded availability in a file, which is read on first use.

    Args:
        path: A CSV or Parquet file with a log; `Trace.from_table` describes its columns. If it does
            not exist, it is searched below the data directory, such as
            "networks/hospital.csv".
        round_length: Length of a round, in the unit of the log's times (seconds if they are dates);
            required if the log has times, else an error. An incomplete last round is left out.
        start: When round 0 begins: a number, or a date as in the log; the first time if None.
        end: When the log ends; the last time if None.
        cover: A client or link is up in a round if it was up for at least this fraction of it.
        clients: Names of the clients in the log, in the order of the network's; None: the log has
            the names or numbers of the network.
        computes: "recorded", or "always" for a log of links only.
        links: "recorded"; for a log of clients only "both-up" (links work while both ends are up)
            or "always".
        repeat: Start again at the end.
    """

    name: ClassVar[str] = "trace"
    path: Annotated[str, FieldHint("text in quotes", "file.csv")]
    round_length: Annotated[Number | None, Field(gt=0, allow_inf_nan=False, examples=[60.0])] = None
    start: float | str | None = None
    end: float | str | None = None
    cover: Annotated[Number, Field(gt=0, le=1), FieldHint("in (0, 1]", 0.5)] = 0.5
    clients: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_list_to_tuple),
        FieldHint("a list of names", ["a", "b"]),
    ] = None
    computes: Annotated[str, one_of((_RECORDED, ALWAYS))] = _RECORDED
    links: Annotated[str, one_of((_RECORDED, BOTH_UP, ALWAYS))] = _RECORDED
    repeat: bool = False

    @cached_property
    def trace(self) -> Trace:
        """The content of the file."""
        import pandas as pd

        path = find_data_file(self.path)
        try:
            if path.suffix == ".parquet":
                table = pd.read_parquet(path)
            else:  # as text: the name of a client may be NA or 007
                table = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
        except FileNotFoundError:
            raise InvalidInput(
                f"trace {self.path} does not exist; give a CSV or Parquet file."
            ) from None
        except (ValueError, OSError) as error:
            reason = first_line(error).rstrip(".")
            raise InvalidInput(
                f"trace {self.path} cannot be read: {reason}; give a CSV or Parquet file."
            ) from None
        return self.convert(table)

    def draw(self, network: Network, seed: int) -> Availability:
        return self.trace.draw(network, seed)

    def convert(self, table: pd.DataFrame) -> Trace:
        """Convert a log to a trace.

        Args:
            table: The log.
        """
        reader = LogReader(self.path, self.round_length, self.start, self.end, self.cover)
        recorded = reader.read(table)
        if self.computes != _RECORDED and len(recorded.recorded_clients):
            raise self._would_ignore("clients", "computes", self.computes)
        if self.links != _RECORDED and len(recorded.ends):
            raise self._would_ignore("links", "links", self.links)
        first_link_round = 0 if self.repeat else 1
        return Trace(
            recorded.computes if self.computes == _RECORDED else self.computes,
            recorded.links[first_link_round:] if self.links == _RECORDED else self.links,
            repeat=self.repeat,
            names=self._clients_of(recorded.labels),
            ends=recorded.ends,
            source=self.path,
        )

    def _would_ignore(self, rows: str, key: str, value: str) -> InvalidInput:
        return InvalidInput(
            f"trace {self.path} has rows of {rows}, which {key}={value!r} would ignore; drop it."
        )

    def _clients_of(self, labels: Sequence[str]) -> tuple[str | int, ...]:
        """Names of the log, as numbers of the network's clients if `clients` is given."""
        if self.clients is None:
            return tuple(labels)
        for label in labels:
            if label not in self.clients:
                raise InvalidInput(
                    f"trace {self.path} has client {label!r}, which clients lacks; "
                    "add it to clients."
                )
        return tuple(self.clients.index(label) for label in labels)
