"""Recorded availability: arrays, or a log of rounds, intervals or events in a table or a file.

A log names its clients, or numbers them as the network does, and says when each computes and when each link
works. Its time is cut into rounds of equal length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypedDict

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BeforeValidator
from typing_extensions import Unpack

from spodgt._util.files import find_data_file
from spodgt._util.text import short_repr
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.network.names import sort_by_name
from spodgt.participation.availability import AvailabilityTrace
from spodgt.participation.recipes import PARTICIPATIONS, on_links, probabilities
from spodgt.types import Availability, Bools, Floats, Ints
from spodgt.validation import Field, FieldHint, Number, one_of, recipe

if TYPE_CHECKING:
    import pandas as pd

_MOST = 2**31  # entries of a table of rounds by clients and links
_ALWAYS, _BOTH, _RECORDED = "always", "both-up", "recorded"
_FORMS = {"round": ("round", "up"), "start": ("start", "end"), "time": ("time", "up")}


class LogOptions(TypedDict, total=False):
    """How a log is read: the fields of `TraceFile` but its path."""

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
    """Replay recorded availability.

    Args:
        computes: (rounds + 1, clients), who computes; round 0 included. Or "always".
        links: Which links work: (rounds, clients, clients) as [receiver, sender], or (rounds, links) in the
            network's order; with `repeat` one round more, round 0 too. Or "always", or "both-up": a link
            works in the rounds in which both its ends compute.
        p: Probabilities that the delay clock charges, as in `Bernoulli`; observed frequencies if None, which
            must be above 0.
        p_hat: Likewise, of links.
        repeat: Begin again at the end: round k replays row k modulo the number of rows.
        names: Whose the columns of `computes` are: names of clients, or their numbers; None: all, in order.
        ends: (links, 2) receiver and sender of the columns of `links`, as columns of `computes`.
        source: Where it was read from.
    """

    name: ClassVar[str] = "trace"
    computes: Annotated[object, Field(examples=[_ALWAYS])]
    links: Annotated[object, Field(examples=[_BOTH])]
    p: object = None
    p_hat: object = None
    repeat: bool = False
    names: tuple[str | int, ...] | None = field(default=None, kw_only=True)
    ends: object = field(default=None, kw_only=True)
    source: str = field(default="arrays", kw_only=True)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:  # arrays have no one answer
        return self is other

    @classmethod
    def read(cls, path: str | Path, **options: Unpack[LogOptions]) -> Trace:
        """Read a log in CSV or Parquet; see `from_table`.

        Args:
            path: The file.
            options: As for `from_table`.
        """
        return TraceFile(str(path) if isinstance(path, Path) else path, **options).trace  # type: ignore[arg-type]

    @classmethod
    def from_table(
        cls, table: pd.DataFrame | Mapping[str, ArrayLike], **options: Unpack[LogOptions]
    ) -> Trace:
        """Turn a log into rounds.

        Each row is about the client in column `client`, which computes, or about the link `sender` →
        `receiver`, which works; receiver = sender is another way to say that this client computes. When it
        is up, say the columns

        - round, up: 1 or 0 in that round;
        - start, end: up from start to end; without an end until the end of the log;
        - time, up: 1 or 0 from that time until the next row about it, or the end of the log.

        What no row speaks of is down. Times are numbers in any unit, or dates and times, which count seconds:
        text, or datetime columns of any unit; without a time zone they are UTC.

        Args:
            table: The log, a pandas table or its columns by name.
            options: The fields of `TraceFile` but its path.
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
        computes, links = self._tables(network)
        if len(computes) != len(links) + (not self.repeat):
            more = "as many rounds as links" if self.repeat else "one round more than links"
            why = (
                "from the second pass on round 0 has links"
                if self.repeat
                else "round 0 has no links"
            )
            raise InvalidInput(
                f"computes must have {more} ({why}), got {len(computes)} and {len(links)}."
            )
        p, p_hat = computes.mean(0), links.mean(0) if len(links) else np.ones(network.links)
        if self.p is not None:
            p = probabilities(self.p, network.clients, "p", "client", network.label)
        elif not p.all():
            self._never(p, "client", network.label, "computes")
        if self.p_hat is not None:
            given = on_links(self.p_hat, network)
            p_hat = probabilities(given, network.links, "p_hat", "link", network.link_label)
        elif not p_hat.all():
            self._never(p_hat, "link", network.link_label, "links")
        return AvailabilityTrace(p, p_hat, computes, links, seed, self.repeat)

    def column(self, client: int, name: str = "") -> Bools:
        """(rounds + 1,): in which rounds one client computes.

        Args:
            client: Its number, where the trace does not know the name.
            name: Its name.
        """
        computes = _flags(self.computes, "computes")
        labels = range(computes.shape[1]) if self.names is None else self.names
        found = {str(label): n for n, label in enumerate(labels)}
        at = found.get(name, found.get(str(client)))
        if at is None or not computes[:, at].any():
            who = name or str(client)
            raise InvalidInput(f"{self._where} never lets client {who} compute; add its rows.")
        return computes[:, at]

    @property
    def _where(self) -> str:
        return "the trace" if self.source == "arrays" else f"trace {self.source}"

    def _tables(self, network: Network) -> tuple[Bools, Bools]:
        """Who computes and which links work, by the network's clients and links."""
        free = (
            isinstance(self.computes, str) and self.computes == _ALWAYS,
            isinstance(self.links, str),
        )
        if all(free):
            raise InvalidInput(
                f"{self._where} must record clients or links, got neither; use spodgt.Always()."
            )
        links = None if free[1] and self.links in (_ALWAYS, _BOTH) else self._links(network)
        if free[0]:
            assert links is not None
            computes = np.ones((len(links) + (not self.repeat), network.clients), bool)
        else:
            computes = self._clients(network)
        if links is None:
            both = computes if self.repeat else computes[1:]
            links = both[:, network.receivers] & both[:, network.senders]
            links |= self.links == _ALWAYS
        return computes, links

    def _clients(self, network: Network) -> Bools:
        computes = _flags(self.computes, "computes")
        m = network.clients
        if computes.ndim != 2 or (self.names is None and computes.shape[1] != m):
            raise InvalidInput(
                f"computes must be (rounds + 1, {m}) for this network, got {computes.shape}."
            )
        if self.names is None:
            return computes
        table = np.zeros((len(computes), m), bool)
        table[:, self._places(network)] = computes
        return table

    def _links(self, network: Network) -> Bools:
        links, m = _flags(self.links, "links"), network.clients
        if self.ends is not None:
            i, j = self._places(network)[self._ends(links)].T
        elif links.ndim == 3 and links.shape[1:] == (m, m):
            i, j = (each.ravel() for each in np.indices((m, m)))
            links = links.reshape(len(links), m * m)[:, i != j]
            i, j = i[i != j], j[i != j]
        elif links.ndim != 2 or links.shape[1] != network.links:
            raise InvalidInput(
                f"links must be (rounds, {m}, {m}) or (rounds, {network.links}) here, got {links.shape}."
            )
        else:
            return links
        codes = network.receivers * m + network.senders
        at = np.searchsorted(codes, i * m + j)
        known = (at < len(codes)) & (np.append(codes, -1)[at] == i * m + j)
        stray = links.any(0) & ~known
        if stray.any():
            link = int(stray.argmax())
            ends = f"{network.label(j[link])} → {network.label(i[link])}"
            where = "links" if self.source == "arrays" else self._where
            raise InvalidInput(
                f"{where} has link {ends}, which the network lacks; add it to the network."
            )
        table = np.zeros((len(links), network.links), bool)
        table[:, at[known]] = links[:, known]
        return table

    def _ends(self, links: Bools) -> Ints:
        """(links, 2): receiver and sender of every column of `links`."""
        ends, names = np.asarray(self.ends), self.names or ()
        numbers = ends.dtype.kind in "iu" and ends.shape == (*links.shape[1:], 2)
        if not numbers or ((ends < 0) | (ends >= len(names))).any():
            raise InvalidInput(
                f"ends must be (links, 2) receivers and senders, each the place of one of the {len(names)} "
                f"names, got {short_repr(self.ends)}."
            )
        return ends.astype(np.int64)

    def _places(self, network: Network) -> Ints:
        """The number of the client in every column: by name where the network knows one, else by number."""
        labels, known = self.names or (), {name: n for n, name in enumerate(network.names or ())}
        if not any(label in known for label in labels):
            known = {str(n): n for n in range(network.clients)}
        places = [label if isinstance(label, int) else known.get(label, -1) for label in labels]
        for label, place in zip(labels, places, strict=True):
            if not 0 <= place < network.clients:
                first, last = network.label(0), network.label(network.clients - 1)
                fix = "number them so, or give clients, a list of their names in that order"
                fix = fix if network.names is None else "use these names"
                raise InvalidInput(
                    f"{self._where} has client {label!r}, which the network lacks: "
                    f"its clients are {first} to {last}; {fix}."
                )
        if len(set(places)) < len(places):
            raise InvalidInput(
                f"names must differ from each other, got {short_repr(labels)}; rename one."
            )
        return np.array(places, np.int64)

    def _never(self, observed: Floats, each: str, label: Callable[[int], str], key: str) -> None:
        """Refuse who has never taken part, as p = 0 is refused."""
        does, choices = (
            ("computes", _ALWAYS) if each == "client" else ("works", f"{_BOTH}' or '{_ALWAYS}")
        )
        if observed.any():
            who = f"{each} {label(int(np.argmin(observed)))}"
            fix = "leave it out of the network or record it for longer"
        else:
            who, fix = f"a {each}", f"add rows, or use {key}='{choices}'"
        raise InvalidInput(
            f"{self._where} must let every {each} take part, but {who} never {does}; {fix}."
        )


def _flags(value: object, name: str) -> Bools:
    """An array of 0 and 1; text and NaN are neither."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.array("")
    if array.dtype.kind == "b":
        return array
    good = (array == 0) | (array == 1) if array.dtype.kind in "iuf" else np.zeros(1, bool)
    if not np.all(good):
        got = short_repr(value) if array.dtype.kind not in "iuf" else f"{array[~good][0]:.3g}"
        raise InvalidInput(f"{name} must be an array of 0 and 1, or of false and true, got {got}.")
    return np.asarray(array, bool)


# --- logs ----------------------------------------------------------------------------------------------
def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


@recipe(InvalidInput, PARTICIPATIONS)
class TraceFile:
    """Recorded availability in a file; it is read when it is first needed.

    Args:
        path: A CSV or Parquet file with a log; `Trace.from_table` says what its columns mean. One that is not
            here is looked for below the data directory, such as "sociopatterns/hospital.csv".
        round_length: How long a round is, in the unit of the log's times (seconds if they are dates); only
            and always where the log has times. An incomplete last round is left out.
        start: When round 0 begins: a number, or a date as in the log; at the first time of the log if None.
        end: When the log ends; at its last time if None.
        cover: What has been up for at least this fraction of a round is up in it.
        clients: The log's names of the clients, in the order of the network's; None: the log has the
            network's names or numbers.
        computes: "recorded", or "always" for a log that has links only.
        links: "recorded"; for a log that has clients only "both-up" (links work while both ends are up) or
            "always".
        repeat: Begin again at the end.
    """

    name: ClassVar[str] = "trace"
    path: Annotated[str, FieldHint("text in quotes", "file.csv")]
    round_length: Annotated[Number | None, Field(gt=0, allow_inf_nan=False, examples=[60.0])] = None
    start: float | str | None = None
    end: float | str | None = None
    cover: Annotated[Number, Field(gt=0, le=1), FieldHint("in (0, 1]", 0.5)] = 0.5
    clients: Annotated[
        tuple[str, ...] | None, BeforeValidator(_tuple), FieldHint("a list of names", ["a", "b"])
    ] = None
    computes: Annotated[str, one_of((_RECORDED, _ALWAYS))] = _RECORDED
    links: Annotated[str, one_of((_RECORDED, _BOTH, _ALWAYS))] = _RECORDED
    repeat: bool = False

    @cached_property
    def trace(self) -> Trace:
        """What the file holds."""
        import pandas as pd

        try:
            where = find_data_file(self.path)
            if where.suffix == ".parquet":
                table = pd.read_parquet(where)
            else:  # as text: a client may be called NA or 007
                table = pd.read_csv(where, dtype=str, keep_default_na=False, na_values=[""])
        except FileNotFoundError:
            raise InvalidInput(
                f"trace {self.path} does not exist; give a CSV or Parquet file."
            ) from None
        except (ValueError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise InvalidInput(
                f"trace {self.path} cannot be read: {reason}; give a CSV or Parquet file."
            ) from None
        return self.convert(table)

    def draw(self, network: Network, seed: int) -> Availability:
        return self.trace.draw(network, seed)

    def convert(self, table: pd.DataFrame) -> Trace:
        """The rounds of a log."""
        columns, receivers, senders = self._columns(table), *self._who(table)
        labels = [str(label) for label in sort_by_name({*receivers, *senders})]
        index = {label: n for n, label in enumerate(labels)}
        code = np.array(
            [index[i] * len(labels) + index[j] for i, j in zip(receivers, senders, strict=True)]
        )
        found, which = np.unique(code, return_inverse=True)
        up = self._rounds(columns, which, len(found) + len(labels))
        i, j = np.divmod(found, len(labels))
        own = i == j
        for kind, word, rows in (("clients", self.computes, own), ("links", self.links, ~own)):
            if word != _RECORDED and rows.any():
                key = "computes" if kind == "clients" else "links"
                raise InvalidInput(
                    f"trace {self.path} has rows of {kind}, which {key}={word!r} would ignore; drop it."
                )
        computes = np.zeros((len(up), len(labels)), bool)
        computes[:, i[own]] = up[:, own]
        return Trace(
            computes if self.computes == _RECORDED else self.computes,
            up[0 if self.repeat else 1 :, ~own] if self.links == _RECORDED else self.links,
            repeat=self.repeat,
            names=self._numbered(labels),
            ends=np.stack([i[~own], j[~own]], 1),
            source=self.path,
        )

    def _numbered(self, labels: Sequence[str]) -> tuple[str | int, ...]:
        """Names of the log as the network's numbers, where `clients` says which."""
        if self.clients is None:
            return tuple(labels)
        for label in labels:
            if label not in self.clients:
                raise InvalidInput(
                    f"trace {self.path} has client {label!r}, which clients lacks; add it to clients."
                )
        return tuple(self.clients.index(label) for label in labels)

    def _columns(self, table: pd.DataFrame) -> dict[str, pd.Series]:
        """The two columns that say when, by the names of one of the three forms."""
        forms = [form for key, form in _FORMS.items() if key in table.columns]
        if len(forms) > 1:
            raise InvalidInput(
                f"trace {self.path} must have one of round, start and time, got several; drop one."
            )
        when = forms[0] if forms else _FORMS["round"]
        who = ("client",) if "client" in table.columns else ("receiver", "sender")
        needed = [when[0], *who, when[1]]
        for name in needed:
            if name not in table.columns:
                raise InvalidInput(
                    f"trace {self.path} must have columns {', '.join(needed)}, but lacks {name}."
                )
        if not len(table):
            raise InvalidInput(f"trace {self.path} must have rows, got none; record something.")
        timed, keys = when[0] != "round", ("round_length", "start", "end")
        given = [key for key in keys if getattr(self, key) is not None]
        if timed and self.round_length is None:
            raise InvalidInput(
                f"trace {self.path} has times, so round_length must say how long a round is, got none; "
                "use round_length = 60.0."
            )
        if given and not timed:
            raise InvalidInput(
                f"{given[0]} is for a log with times, and trace {self.path} has rounds; drop it."
            )
        return {name: table[name] for name in when}

    def _who(self, table: pd.DataFrame) -> tuple[list[str], list[str]]:
        """Receiver and sender of every row; of a client's row both are the client."""
        none = [None] * len(table)
        client, receiver, sender = (
            [_text(value) for value in table[name]] if name in table.columns else none
            for name in ("client", "receiver", "sender")
        )
        into = [
            one if one is not None else other for one, other in zip(client, receiver, strict=True)
        ]
        out = [one if one is not None else other for one, other in zip(client, sender, strict=True)]
        for n, ends in enumerate(zip(into, out, strict=True)):
            if None in ends:
                raise InvalidInput(
                    f"trace {self.path} must name a client or both ends of a link, but row {n} does not."
                )
        return [str(each) for each in into], [str(each) for each in out]

    def _rounds(self, columns: dict[str, pd.Series], which: Ints, width: int) -> Bools:
        """(rounds, which) what is up in which round; `which` is whom each row is about."""
        if "round" in columns:
            rounds = self._numbers(columns["round"], "round")
            whole = np.isfinite(rounds) & (rounds >= 0) & (rounds == np.floor(rounds))
            self._require(whole, columns["round"], "round must be whole numbers of at least 0")
            table = np.zeros((self._length(rounds.max() + 1, width), which.max() + 1), bool)
            table[rounds.astype(np.int64), which] = self._up(columns["up"])
            return table
        first, last = self._spans(columns, which)
        begin, end = self._limits(first, last)
        assert self.round_length is not None
        count = self._length(np.floor((end - begin) / self.round_length + 1e-9), width)
        spans = (np.stack([first, np.where(np.isnan(last), end, last)]) - begin) / self.round_length
        table = np.zeros((count, which.max() + 1), bool)
        for one in range(table.shape[1]):
            begins, ends = spans[:, which == one]
            table[:, one] = _covered(begins, ends, count) >= self.cover - 1e-9
        return table

    def _spans(self, columns: dict[str, pd.Series], which: Ints) -> tuple[Floats, Floats]:
        """Begin and end of each time up of a row; NaN: the end of the log. Down is a span of no length."""
        if "start" in columns:
            first, last = (self._numbers(columns[name], name) for name in ("start", "end"))
            self._require(np.isfinite(first), columns["start"], "start must be times")
            self._require(
                np.isnan(last) | (last >= first), columns["end"], "end must not be before start"
            )
            return first, last
        time, up = self._numbers(columns["time"], "time"), self._up(columns["up"])
        self._require(np.isfinite(time), columns["time"], "time must be times")
        order = np.lexsort((time, which))
        following = np.full(len(time), np.nan)
        same = which[order][1:] == which[order][:-1]
        following[order[:-1]] = np.where(same, time[order][1:], np.nan)
        return time, np.where(up, following, time)

    def _limits(self, first: Floats, last: Floats) -> tuple[float, float]:
        """When round 0 begins and when the log ends."""
        import pandas as pd

        known = np.r_[first, last[~np.isnan(last)]]
        given = {"start": known.min(), "end": known.max()}
        for name in given:
            if (value := getattr(self, name)) is not None:
                given[name] = self._numbers(pd.Series([value]), name)[0]
        return given["start"], given["end"]

    def _length(self, rounds: float, width: int) -> int:
        if rounds < 1:
            raise InvalidInput(
                f"trace {self.path} is shorter than one round of {self.round_length}; use a shorter one."
            )
        if not rounds * width <= _MOST:
            raise InvalidInput(
                f"trace {self.path} has {rounds:.3g} rounds of {width} clients and links, more than "
                f"{_MOST:,} entries in all; use longer rounds or a part of it."
            )
        return int(rounds)

    def _numbers(self, column: pd.Series, name: str) -> Floats:
        """A column of numbers, or of dates or durations in seconds; NaN where nothing is written."""
        import pandas as pd

        if pd.api.types.is_datetime64_any_dtype(column.dtype):
            self._require(np.full(len(column), name != "round"), column, "round must be numbers")
            return _seconds(column)
        if pd.api.types.is_timedelta64_dtype(column.dtype):
            self._require(np.full(len(column), name != "round"), column, "round must be numbers")
            return np.asarray(column.dt.total_seconds(), np.float64)
        try:
            numbers = pd.to_numeric(column)
            if numbers.dtype.kind in "biuf":
                return np.asarray(numbers, np.float64)
        except (TypeError, ValueError):
            pass
        try:
            return _seconds(pd.to_datetime(column, utc=True, format="ISO8601"))
        except (TypeError, ValueError):
            bad = pd.to_numeric(column, errors="coerce").isna() & column.notna()
        self._require(
            ~bad.to_numpy(),
            column,
            f"{name} must be numbers" + ("" if name == "round" else ", or dates"),
        )
        raise AssertionError("a column of numbers would have been read as such")

    def _up(self, column: pd.Series) -> Bools:
        words = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
        found = [words.get(str(value).strip().lower()) for value in column]
        self._require(np.array([each is not None for each in found]), column, "up must be 1 or 0")
        return np.array(found, bool)

    def _require(self, good: Bools, column: pd.Series, must: str) -> None:
        if not good.all():
            row = int(np.argmin(good))
            raise InvalidInput(
                f"{must}, but row {row} of trace {self.path} has {column.iloc[row]!r}; correct it."
            )


def _seconds(dates: pd.Series) -> Floats:
    """Seconds since 1970 of datetimes in any unit; without a time zone they count as UTC, NaT is NaN."""
    import pandas as pd

    elapsed = pd.to_datetime(dates, utc=True) - pd.Timestamp(0, tz="UTC")
    return np.asarray(elapsed / pd.Timedelta(seconds=1), np.float64)


def _text(value: object) -> str | None:
    """The name of a client in a cell; whole numbers may have become floats beside empty cells."""
    import pandas as pd

    if pd.isna(value):  # type: ignore[call-overload]
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or None


def _covered(first: Floats, last: Floats, count: int) -> Floats:
    """(count,) how much of [k, k + 1) the union of intervals covers, for every k."""
    order = np.argsort(first)
    first, last = first[order], np.maximum.accumulate(last[order])
    first[1:] = np.maximum(first[1:], last[:-1])  # what was covered before counts once
    first, last = (np.clip(each, 0, count) for each in (first, np.maximum(first, last)))
    # The length of the union below t is a piecewise linear function; rounds are its differences.
    ends = np.stack([first, last], 1).ravel()
    length = np.stack([np.zeros_like(first), last - first], 1).ravel().cumsum()
    return np.diff(np.interp(np.arange(count + 1), ends, length, left=0.0))
