"""Logs of rounds, intervals or events in a table, turned into one mask per round.

A log has rows about clients and links, by name or number. Its time is divided into rounds of equal
length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spodgt.errors import InvalidInput
from spodgt.network.names import sort_by_name
from spodgt.types import Bools, Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

_MAX_ENTRIES = 2**31  # rounds times clients and links
_FORMS = {"round": ("round", "up"), "start": ("start", "end"), "time": ("time", "up")}
_TRUTH = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
_TOLERANCE = 1e-9  # rounds


class RecordedRounds(NamedTuple):
    """A log by round."""

    labels: list[str]  # of the clients, sorted by name
    recorded_clients: Ints  # clients that have rows of their own
    computes: Bools  # (rounds, clients)
    ends: Ints  # (links, 2) receiver and sender
    links: Bools  # (rounds, links)


class Intervals(NamedTuple):
    """Times up: row n is up from start[n] to end[n]; NaN: to the end of the log."""

    start: Floats
    end: Floats


@dataclass(frozen=True)
class LogReader:
    """Reads a log; the arguments are those of `TraceFile`."""

    source: str
    round_length: float | None
    start: float | str | None
    end: float | str | None
    cover: float

    @property
    def _reader(self) -> ColumnReader:
        return ColumnReader(self.source)

    def read(self, table: pd.DataFrame) -> RecordedRounds:
        """Convert a log to rounds.

        Raises:
            InvalidInput: Columns are missing, or an entry is invalid.
        """
        columns = self._time_columns(table)
        receivers, senders = self._ends_of_rows(table)
        labels = [str(label) for label in sort_by_name({*receivers, *senders})]
        client_of = {label: client for client, label in enumerate(labels)}
        receiver = np.array([client_of[label] for label in receivers], np.int64)
        sender = np.array([client_of[label] for label in senders], np.int64)
        # Rows about the same client or link have the same target; a client is its own link.
        codes, target = np.unique(receiver * len(labels) + sender, return_inverse=True)
        up = self._up_by_round(columns, target, len(codes) + len(labels))
        receiver, sender = np.divmod(codes, len(labels))
        is_client = receiver == sender
        computes = np.zeros((len(up), len(labels)), bool)
        computes[:, receiver[is_client]] = up[:, is_client]
        ends = np.stack([receiver[~is_client], sender[~is_client]], 1)
        return RecordedRounds(labels, receiver[is_client], computes, ends, up[:, ~is_client])

    def _time_columns(self, table: pd.DataFrame) -> dict[str, pd.Series]:
        """The two columns with times, by the names of one of the three forms."""
        forms = [form for key, form in _FORMS.items() if key in table.columns]
        if len(forms) > 1:
            raise InvalidInput(
                f"trace {self.source} must have one of round, start and time, got several; "
                "drop one."
            )
        form = forms[0] if forms else _FORMS["round"]
        ends = ("client",) if "client" in table.columns else ("receiver", "sender")
        required = [form[0], *ends, form[1]]
        for name in required:
            if name not in table.columns:
                raise InvalidInput(
                    f"trace {self.source} must have columns {', '.join(required)}, "
                    f"but lacks {name}."
                )
        if not len(table):
            raise InvalidInput(f"trace {self.source} must have rows, got none; record something.")
        self._check_options(has_times=form[0] != "round")
        return {name: table[name] for name in form}

    def _check_options(self, *, has_times: bool) -> None:
        if has_times and self.round_length is None:
            raise InvalidInput(
                f"trace {self.source} has times, so round_length is required, got none; "
                "use round_length = 60.0."
            )
        for key in ("round_length", "start", "end"):
            if not has_times and getattr(self, key) is not None:
                raise InvalidInput(
                    f"{key} is for a log with times, and trace {self.source} has rounds; drop it."
                )

    def _ends_of_rows(self, table: pd.DataFrame) -> tuple[list[str], list[str]]:
        """Receiver and sender of each row; both are the client in a row about a client."""
        clients = _names(table, "client")
        receivers = _names(table, "receiver")
        senders = _names(table, "sender")
        row_receivers = []
        row_senders = []
        rows = zip(clients, receivers, senders, strict=True)
        for row, (client, receiver, sender) in enumerate(rows):
            if client is not None:
                receiver = client
                sender = client
            if receiver is None or sender is None:
                raise InvalidInput(
                    f"trace {self.source} must name a client or both ends of a link, "
                    f"but row {row} does not."
                )
            row_receivers.append(receiver)
            row_senders.append(sender)
        return row_receivers, row_senders

    def _up_by_round(self, columns: dict[str, pd.Series], target: Ints, width: int) -> Bools:
        """(rounds, targets) mask.

        Args:
            columns: The two columns with times.
            target: (rows,) the client or link of each row.
            width: Clients and links, to limit the size of the mask.
        """
        if "round" in columns:
            return self._up_by_number(columns, target, width)
        intervals = self._intervals(columns, target)
        begin, end = self._limits(intervals)
        assert self.round_length is not None
        rounds = np.floor((end - begin) / self.round_length + _TOLERANCE)
        mask = np.zeros((self._check_rounds(rounds, width), target.max() + 1), bool)
        start = (intervals.start - begin) / self.round_length
        stop = (np.where(np.isnan(intervals.end), end, intervals.end) - begin) / self.round_length
        for column in range(mask.shape[1]):
            rows = target == column
            covered = covered_fractions(start[rows], stop[rows], len(mask))
            mask[:, column] = covered >= self.cover - _TOLERANCE
        return mask

    def _up_by_number(self, columns: dict[str, pd.Series], target: Ints, width: int) -> Bools:
        rounds = self._reader.numbers(columns["round"], "round")
        is_valid = np.isfinite(rounds) & (rounds >= 0) & (rounds == np.floor(rounds))
        self._reader.require(
            is_valid, columns["round"], "round must be whole numbers of at least 0"
        )
        mask = np.zeros((self._check_rounds(rounds.max() + 1, width), target.max() + 1), bool)
        mask[rounds.astype(np.int64), target] = self._reader.truth_values(columns["up"])
        return mask

    def _intervals(self, columns: dict[str, pd.Series], target: Ints) -> Intervals:
        """The times up; a row that is down gives an interval of length zero."""
        if "start" in columns:
            start = self._reader.numbers(columns["start"], "start")
            end = self._reader.numbers(columns["end"], "end")
            self._reader.require(np.isfinite(start), columns["start"], "start must be times")
            is_ordered = np.isnan(end) | (end >= start)
            self._reader.require(is_ordered, columns["end"], "end must not be before start")
            return Intervals(start, end)
        time = self._reader.numbers(columns["time"], "time")
        is_up = self._reader.truth_values(columns["up"])
        self._reader.require(np.isfinite(time), columns["time"], "time must be times")
        order = np.lexsort((time, target))
        is_same_target = target[order][1:] == target[order][:-1]
        next_time = np.full(len(time), np.nan)
        next_time[order[:-1]] = np.where(is_same_target, time[order][1:], np.nan)
        return Intervals(time, np.where(is_up, next_time, time))

    def _limits(self, intervals: Intervals) -> tuple[float, float]:
        """The beginning of round 0 and the end of the log."""
        times = np.r_[intervals.start, intervals.end[~np.isnan(intervals.end)]]
        begin = times.min() if self.start is None else self._time(self.start, "start")
        end = times.max() if self.end is None else self._time(self.end, "end")
        return begin, end

    def _time(self, value: float | str, name: str) -> float:
        import pandas as pd

        return float(self._reader.numbers(pd.Series([value]), name)[0])

    def _check_rounds(self, rounds: float, width: int) -> int:
        if rounds < 1:
            raise InvalidInput(
                f"trace {self.source} is shorter than one round of {self.round_length}; "
                "use a shorter one."
            )
        if not rounds * width <= _MAX_ENTRIES:
            raise InvalidInput(
                f"trace {self.source} has {rounds:.3g} rounds of {width} clients and links, more "
                f"than {_MAX_ENTRIES:,} entries in all; use longer rounds or a part of it."
            )
        return int(rounds)


@dataclass(frozen=True)
class ColumnReader:
    """Converts columns of a log; `source` is its name in errors."""

    source: str

    def numbers(self, column: pd.Series, name: str) -> Floats:
        """A column of numbers, or of dates or durations in seconds; NaN for empty cells."""
        import pandas as pd

        is_date = pd.api.types.is_datetime64_any_dtype(column.dtype)
        is_duration = pd.api.types.is_timedelta64_dtype(column.dtype)
        if name == "round" and (is_date or is_duration):
            raise self._invalid(0, column, "round must be numbers")
        if is_date:
            return _seconds(column)
        if is_duration:
            return np.asarray(column.dt.total_seconds(), np.float64)
        try:
            numbers = pd.to_numeric(column)
            if numbers.dtype.kind in "biuf":
                return np.asarray(numbers, np.float64)
        except (TypeError, ValueError):
            pass  # text that may be dates
        try:
            return _seconds(pd.to_datetime(column, utc=True, format="ISO8601"))
        except (TypeError, ValueError):
            is_number = pd.to_numeric(column, errors="coerce").notna() | column.isna()
            first_invalid = int(np.argmin(is_number.to_numpy()))
            allowed = "numbers" if name == "round" else "numbers, or dates"
            raise self._invalid(first_invalid, column, f"{name} must be {allowed}") from None

    def truth_values(self, column: pd.Series) -> Bools:
        words = [str(value).strip().lower() for value in column]
        is_known = np.array([word in _TRUTH for word in words])
        self.require(is_known, column, "up must be 1 or 0")
        return np.array([_TRUTH[word] for word in words], bool)

    def require(self, is_valid: Bools, column: pd.Series, requirement: str) -> None:
        """Raise `InvalidInput` for the first row of a column that is not valid."""
        if not is_valid.all():
            raise self._invalid(int(np.argmin(is_valid)), column, requirement)

    def _invalid(self, row: int, column: pd.Series, requirement: str) -> InvalidInput:
        return InvalidInput(
            f"{requirement}, but row {row} of trace {self.source} has {column.iloc[row]!r}; "
            "correct it."
        )


def _seconds(dates: pd.Series) -> Floats:
    """Seconds since 1970 of datetimes; without a time zone they are UTC, and NaT is NaN."""
    import pandas as pd

    elapsed = pd.to_datetime(dates, utc=True) - pd.Timestamp(0, tz="UTC")
    return np.asarray(elapsed / pd.Timedelta(seconds=1), np.float64)


def _names(table: pd.DataFrame, column: str) -> list[str | None]:
    """Names of clients in a column; None for empty cells."""
    if column not in table.columns:
        return [None] * len(table)
    return [_name(value) for value in table[column]]


def _name(value: object) -> str | None:
    """The name in a cell; whole numbers may have become floats beside empty cells."""
    import pandas as pd

    if pd.isna(value):  # type: ignore[call-overload]
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or None


def covered_fractions(start: Floats, end: Floats, rounds: int) -> Floats:
    """(rounds,) the fraction of [k, k + 1) that a union of intervals covers, for each k.

    Args:
        start: (intervals,) in rounds.
        end: (intervals,) in rounds.
        rounds: Number of rounds.
    """
    order = np.argsort(start)
    end = np.maximum.accumulate(end[order])
    start = start[order]
    start[1:] = np.maximum(start[1:], end[:-1])  # overlaps count once
    end = np.clip(np.maximum(start, end), 0, rounds)
    start = np.clip(start, 0, rounds)
    # The covered length below t is piecewise linear in t; rounds are its differences.
    times = np.stack([start, end], 1).ravel()
    length = np.stack([np.zeros_like(start), end - start], 1).ravel().cumsum()
    return np.diff(np.interp(np.arange(rounds + 1), times, length, left=0.0))
