"""Replay of recorded availability, from arrays or from a log in a table or file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypedDict

import numpy as np
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
from spodgt.types import Array, Availability, Bools, Floats, Ints
from spodgt.validation import Field, FieldHint, Number, one_of, recipe

if TYPE_CHECKING:
    import pandas as pd

_ALWAYS = "always"
_BOTH_UP = "both-up"
_RECORDED = "recorded"
Mask = str | Sequence[Sequence[int]] | Array


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
    computes: Annotated[Mask, SkipValidation, Field(examples=[_ALWAYS])]
    links: Annotated[Mask, SkipValidation, Field(examples=[_BOTH_UP])]
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
        computes, links = self._masks(network)
        self._check_lengths(len(computes), len(links))
        p = computes.mean(0)
        p_hat = links.mean(0) if len(links) else np.ones(network.links)
        if self.p is not None:
            p = client_probabilities(self.p, network)
        elif not p.all():
            raise self._never_active(p, "client", network.label)
        if self.p_hat is not None:
            p_hat = link_probabilities(self.p_hat, network)
        elif not p_hat.all():
            raise self._never_active(p_hat, "link", network.link_label)
        return AvailabilityTrace(p, p_hat, computes, links, seed, self.repeat)

    def column(self, client: int, name: str = "") -> Bools:
        """(rounds + 1,) mask of the rounds in which one client computes.

        Args:
            client: Number of the client, if the trace has no such name.
            name: Name of the client.
        """
        computes = _as_mask(self.computes, "computes")
        labels = range(computes.shape[1]) if self.names is None else self.names
        column_of = {str(label): column for column, label in enumerate(labels)}
        column = column_of.get(name, column_of.get(str(client)))
        if column is None or not computes[:, column].any():
            raise InvalidInput(
                f"{self._description} never lets client {name or client} compute; add its rows."
            )
        return computes[:, column]

    @property
    def _description(self) -> str:
        return "the trace" if self.source == "arrays" else f"trace {self.source}"

    def _check_lengths(self, client_rounds: int, link_rounds: int) -> None:
        if self.repeat:
            expected = link_rounds
            rule = "as many rounds as links (from the second pass on round 0 has links)"
        else:
            expected = link_rounds + 1
            rule = "one round more than links (round 0 has no links)"
        if client_rounds != expected:
            raise InvalidInput(f"computes must have {rule}, got {client_rounds} and {link_rounds}.")

    def _masks(self, network: Network) -> tuple[Bools, Bools]:
        """Active clients and links, by the network's clients and links."""
        all_compute = isinstance(self.computes, str) and self.computes == _ALWAYS
        if all_compute and isinstance(self.links, str):
            raise InvalidInput(
                f"{self._description} must record clients or links, got neither; "
                "use spodgt.Always()."
            )
        if all_compute:
            links = self._link_mask(network)
            rounds = len(links) if self.repeat else len(links) + 1
            return np.ones((rounds, network.clients), bool), links
        computes = self._client_mask(network)
        if not isinstance(self.links, str) or self.links not in (_ALWAYS, _BOTH_UP):
            return computes, self._link_mask(network)
        in_link_rounds = computes if self.repeat else computes[1:]
        if self.links == _ALWAYS:
            return computes, np.ones((len(in_link_rounds), network.links), bool)
        both_up = in_link_rounds[:, network.receivers] & in_link_rounds[:, network.senders]
        return computes, both_up

    def _client_mask(self, network: Network) -> Bools:
        computes = _as_mask(self.computes, "computes")
        clients = network.clients
        if computes.ndim != 2 or (self.names is None and computes.shape[1] != clients):
            raise InvalidInput(
                f"computes must be (rounds + 1, {clients}) for this network, got {computes.shape}."
            )
        if self.names is None:
            return computes
        mask = np.zeros((len(computes), clients), bool)
        mask[:, self._client_of_column(network)] = computes
        return mask

    def _link_mask(self, network: Network) -> Bools:
        """(rounds, links) mask, from any of the accepted forms of `links`."""
        links = _as_mask(self.links, "links")
        m = network.clients
        if self.ends is not None:
            receiver, sender = self._client_of_column(network)[self._check_ends(links)].T
        elif links.ndim == 3 and links.shape[1:] == (m, m):
            receiver, sender = np.nonzero(~np.eye(m, dtype=bool))
            links = links[:, receiver, sender]
        elif links.ndim == 2 and links.shape[1] == network.links:
            return links
        else:
            raise InvalidInput(
                f"links must be (rounds, {m}, {m}) or (rounds, {network.links}) here, "
                f"got {links.shape}."
            )
        codes = network.receivers * m + network.senders
        column_codes = receiver * m + sender
        link = np.searchsorted(codes, column_codes)
        is_link = np.append(codes, -1)[link] == column_codes
        is_unknown = links.any(0) & ~is_link
        if is_unknown.any():
            column = int(is_unknown.argmax())
            label = f"{network.label(sender[column])} → {network.label(receiver[column])}"
            where = "links" if self.source == "arrays" else self._description
            raise InvalidInput(
                f"{where} has link {label}, which the network lacks; add it to the network."
            )
        mask = np.zeros((len(links), network.links), bool)
        mask[:, link[is_link]] = links[:, is_link]
        return mask

    def _check_ends(self, links: Bools) -> Ints:
        """(links, 2) receiver and sender of each column of `links`."""
        ends = np.asarray(self.ends)
        columns = len(self.names or ())
        is_valid = ends.dtype.kind in "iu" and ends.shape == (*links.shape[1:], 2)
        if not is_valid or ((ends < 0) | (ends >= columns)).any():
            raise InvalidInput(
                "ends must be (links, 2) receivers and senders, each the place of one of the "
                f"{columns} names, got {short_repr(self.ends)}."
            )
        return ends.astype(np.int64)

    def _client_of_column(self, network: Network) -> Ints:
        """The client of each column: by name if the network has such a name, else by number."""
        labels = self.names or ()
        client_of = {name: client for client, name in enumerate(network.names or ())}
        if not any(label in client_of for label in labels):
            client_of = {str(client): client for client in range(network.clients)}
        clients = []
        for label in labels:
            client = label if isinstance(label, int) else client_of.get(label, -1)
            if not 0 <= client < network.clients:
                raise self._unknown_client(label, network)
            clients.append(client)
        if len(set(clients)) < len(clients):
            raise InvalidInput(
                f"names must differ from each other, got {short_repr(labels)}; rename one."
            )
        return np.array(clients, np.int64)

    def _unknown_client(self, label: str | int, network: Network) -> InvalidInput:
        fix = "use these names"
        if network.names is None:
            fix = "number them so, or give clients, a list of their names in that order"
        return InvalidInput(
            f"{self._description} has client {label!r}, which the network lacks: its clients are "
            f"{network.label(0)} to {network.label(network.clients - 1)}; {fix}."
        )

    def _never_active(
        self, observed: Floats, kind: str, label: Callable[[int], str]
    ) -> InvalidInput:
        """The error for a client or link that is never active, as p = 0 is an error."""
        verb = "computes" if kind == "client" else "works"
        if observed.any():
            which = f"{kind} {label(int(np.argmin(observed)))}"
            fix = "leave it out of the network or record it for longer"
        elif kind == "client":
            which = "a client"
            fix = f"add rows, or use computes='{_ALWAYS}'"
        else:
            which = "a link"
            fix = f"add rows, or use links='{_BOTH_UP}' or '{_ALWAYS}'"
        return InvalidInput(
            f"{self._description} must let every {kind} take part, but {which} never {verb}; {fix}."
        )


def _as_mask(value: Mask, name: str) -> Bools:
    """An array of booleans, from booleans or from 0 and 1."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.array("")
    if array.dtype.kind == "b":
        return array
    got = short_repr(value)
    if array.dtype.kind in "iuf":
        is_valid = (array == 0) | (array == 1)
        if is_valid.all():
            return np.asarray(array, bool)
        got = f"{array[~is_valid][0]:.3g}"
    raise InvalidInput(f"{name} must be an array of 0 and 1, or of false and true, got {got}.")


def _list_to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


@recipe(InvalidInput, PARTICIPATIONS)
class TraceFile:
    """Recorded availability in a file, which is read on first use.

    Args:
        path: A CSV or Parquet file with a log; `Trace.from_table` describes its columns. If it does
            not exist, it is searched below the data directory, such as
            "sociopatterns/hospital.csv".
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
    computes: Annotated[str, one_of((_RECORDED, _ALWAYS))] = _RECORDED
    links: Annotated[str, one_of((_RECORDED, _BOTH_UP, _ALWAYS))] = _RECORDED
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
