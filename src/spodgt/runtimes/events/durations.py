"""How long things take: `[time]` of a config.

    [time]
    compute = 0.02                                      seconds of a gradient: one number, or one per client
    latency = { kind = "exponential", mean = 0.05 }     seconds of a message: drawn for every message
    bandwidth = 1e6                                     bytes per second of a link; left out: no limit

A quantity is a number, a list (one number per client or link), or a table whose `kind` is one of
`QUANTITIES`. Draws are pure functions of (seed, round of the client, client or link), so they do not depend
on the batch, the method or a restart. Times are whole nanoseconds: events at the same time are exactly so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol

import numpy as np

from spodgt import rng
from spodgt._util.text import short_repr
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.participation.recipes import numbers_by_link
from spodgt.types import Floats, Ints
from spodgt.validation import Field, FieldHint, Number, choices, from_table, recipe

if TYPE_CHECKING:
    import pandas as pd

NANO = 10**9  # of a second
_MOST = 1e9  # seconds: thirty years
_UNITS = {"bandwidth": "bytes_per_second"}  # columns of traces; the others are seconds
_upto = partial(Field, le=1e18, allow_inf_nan=False)
Positive = Annotated[Number, _upto(gt=0, examples=[1.0]), FieldHint("a number above 0")]
NotNegative = Annotated[Number, _upto(ge=0, examples=[0.0]), FieldHint("a number of at least 0")]


class Drawn(Protocol):
    """The values of one quantity in one run."""

    def __call__(self, rounds: range) -> Floats:
        """(rounds, clients or links) the values in some local rounds of the client, or the sender."""
        ...


class Quantity(Protocol):
    """A recipe for values that are drawn for every client or link, in every round or once."""

    name: ClassVar[str]

    @property
    def typical(self) -> float: ...  # about the mean
    def draw(self, key: np.uint64, who: Who) -> Drawn: ...


@dataclass(frozen=True)
class Who:
    """Whose values are drawn: the clients of a network, or its links."""

    name: str  # of the quantity
    network: Network
    links: bool

    @property
    def count(self) -> int:
        return self.network.links if self.links else self.network.clients

    @property
    def one(self) -> str:
        return "link" if self.links else "client"


QUANTITIES: dict[str, type[Quantity]] = {}


def _drawn(
    key: np.uint64, who: Who, once: bool, value: Callable[[Floats, Floats], Floats]
) -> Drawn:
    """Values made from two uniform numbers each."""
    everyone = np.arange(who.count)[None, :]

    def at(rounds: range) -> Floats:
        k = np.zeros((1, 1), np.int64) if once else np.asarray(rounds)[:, None]
        u, v = (rng.uniform(key, k, everyone, part) for part in (0, 1))
        return np.broadcast_to(value(u, v), (len(rounds), who.count))

    return at


@recipe(InvalidInput, QUANTITIES)
class Constant:
    """The same for all, always.

    Args:
        value: The number.
    """

    name: ClassVar[str] = "constant"
    value: NotNegative

    @property
    def typical(self) -> float:
        return self.value

    def draw(self, key: np.uint64, who: Who) -> Drawn:
        return lambda rounds: np.full((len(rounds), who.count), self.value)


@recipe(InvalidInput, QUANTITIES)
class Uniform:
    """Anything between two numbers.

    Args:
        low: The smallest.
        high: The largest.
        once: Draw it once for every client or link, not for every gradient or message.
    """

    name: ClassVar[str] = "uniform"
    low: NotNegative
    high: Positive
    once: bool = False

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InvalidInput(f"low must be at most high={self.high}, got {self.low}; swap them.")

    @property
    def typical(self) -> float:
        return (self.low + self.high) / 2

    def draw(self, key: np.uint64, who: Who) -> Drawn:
        return _drawn(key, who, self.once, lambda u, v: self.low + (self.high - self.low) * u)


@recipe(InvalidInput, QUANTITIES)
class Exponential:
    """Mostly short, sometimes long.

    Args:
        mean: The mean of what comes on top of `least`.
        least: The shortest.
        once: Draw it once for every client or link, not for every gradient or message.
    """

    name: ClassVar[str] = "exponential"
    mean: Positive
    least: NotNegative = 0.0
    once: bool = False

    @property
    def typical(self) -> float:
        return self.least + self.mean

    def draw(self, key: np.uint64, who: Who) -> Drawn:
        return _drawn(key, who, self.once, lambda u, v: self.least - self.mean * np.log1p(-u))


@recipe(InvalidInput, QUANTITIES)
class Lognormal:
    """Around a median, with stragglers: the logarithm is normal.

    Args:
        median: Half of the draws are below it.
        sigma: Standard deviation of the natural logarithm; 0.5 puts one draw in twenty above 2.3 medians.
        once: Draw it once for every client or link, not for every gradient or message.
    """

    name: ClassVar[str] = "lognormal"
    median: Positive
    sigma: NotNegative = 0.5
    once: bool = False

    @property
    def typical(self) -> float:
        return self.median * math.exp(min(self.sigma**2 / 2, 100.0))

    def draw(self, key: np.uint64, who: Who) -> Drawn:
        def value(u: Floats, v: Floats) -> Floats:
            normal = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)  # Box and Muller
            return np.asarray(self.median * np.exp(self.sigma * normal), np.float64)

        return _drawn(key, who, self.once, value)


@dataclass(frozen=True, eq=False)
class Given:
    """One number for each client or link."""

    name: ClassVar[str] = "given"
    values: Floats

    @property
    def typical(self) -> float:
        """Harmonic: at this pace all of them together do as much."""
        return float(len(self.values.ravel()) / (1 / np.maximum(self.values, 1 / NANO)).sum())

    def draw(self, key: np.uint64, who: Who) -> Drawn:
        values = (
            np.asarray(numbers_by_link(self.values, who.network), np.float64)
            if who.links
            else self.values
        )
        if values.shape != (who.count,):
            raise InvalidInput(
                f"time.{who.name} must be one number or {who.count}, one per {who.one}, got {values.size}; "
                f"use one number."
            )
        return lambda rounds: np.broadcast_to(values, (len(rounds), who.count))


@recipe(InvalidInput, QUANTITIES)
class Replayed:
    """Measured values, in a loop.

    Args:
        path: A CSV file with a column `seconds` (of bandwidth: `bytes_per_second`) and, where rows are of
            single clients or links, `client`, or `sender` and `receiver`: the network's names or numbers.
            Rows of one client are replayed in order; without these columns all replay the same rows.
    """

    name: ClassVar[str] = "trace"
    path: Annotated[str, Field(examples=["seconds.csv"])]

    @cached_property
    def table(self) -> pd.DataFrame:
        import pandas as pd

        try:
            table = pd.read_csv(self.path)
        except (OSError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise InvalidInput(
                f"trace {self.path} cannot be read: {reason}; give a CSV file."
            ) from None
        found = [name for name in ("seconds", *_UNITS.values()) if name in table.columns]
        if len(found) != 1 or not len(table):
            raise InvalidInput(f"trace {self.path} must have rows and a column seconds; add it.")
        values = pd.to_numeric(table[found[0]], errors="coerce").to_numpy(np.float64)
        if not (np.isfinite(values) & (values >= 0)).all():
            row = int(np.argmin(np.isfinite(values) & (values >= 0)))
            raise InvalidInput(
                f"{found[0]} must be numbers of at least 0, but row {row} of trace {self.path} has "
                f"{table[found[0]].iloc[row]!r}; correct it."
            )
        return table.assign(value=values)

    @property
    def typical(self) -> float:
        return float(self.table["value"].mean())

    def draw(self, key: np.uint64, who: Who) -> Drawn:
        table, net = self.table, who.network
        if who.name in ("compute", "bandwidth") and not (table["value"] > 0).all():
            raise InvalidInput(
                f"trace {self.path} must have numbers above 0 for time.{who.name}; drop rows."
            )
        columns = ["sender", "receiver"] if who.links else ["client"]
        if not all(name in table.columns for name in columns):
            rows = [table["value"].to_numpy()] * who.count
        else:
            ends = (
                zip(net.senders, net.receivers, strict=True) if who.links else zip(range(who.count))
            )
            parts = table.groupby(columns)["value"]
            groups = {tuple(map(str, names)): part.to_numpy() for names, part in parts}
            rows = []
            for each in ends:
                names = tuple(net.label(int(one)) for one in each)
                found = groups.get(tuple(map(str, each)), groups.get(tuple(map(str, names))))
                if found is None:
                    raise InvalidInput(
                        f"trace {self.path} has no row of {who.one} {' → '.join(map(str, names))}; add one."
                    )
                rows.append(found)
        return lambda rounds: np.array(
            [[row[k % len(row)] for row in rows] for k in rounds], np.float64
        )


def quantity(value: object, name: str, *, zero: bool) -> Quantity:
    """The quantity that a number, a list or a table stands for; `zero` says whether it may be 0."""
    if isinstance(value, Mapping):
        fields = dict(value)
        kind = fields.pop("kind", None)
        if not isinstance(kind, str) or kind not in QUANTITIES:
            raise InvalidInput(
                f"time.{name}.kind={kind!r} is not known; {choices(kind, QUANTITIES)}"
            )
        made = from_table(QUANTITIES[kind], fields, f"time.{name}")
        if not zero and isinstance(made, Constant) and not made.value:
            raise InvalidInput(
                f"time.{name}.value must be above 0, got {made.value}; use value = 1.0."
            )
        return made
    low = "of at least 0" if zero else "above 0"
    try:
        numbers = np.array(value, np.float64)
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    fine = np.isfinite(numbers) & (numbers <= 1e18) & ((numbers >= 0) if zero else (numbers > 0))
    if isinstance(value, bool | str) or not numbers.size or not fine.all():
        raise InvalidInput(
            f"time.{name} must be numbers {low} or a table with a kind, got {short_repr(value)}; "
            f"use {name} = 1.0."
        )
    return Constant(float(numbers)) if numbers.ndim == 0 else Given(numbers)


@recipe(InvalidInput)
class Time:
    """How long gradients and messages take: numbers, lists or tables of `QUANTITIES`.

    Args:
        compute: Seconds of a client's local round: the time of one gradient.
        latency: Seconds from sending a message to its arrival, beside the time of its bytes.
        bandwidth: Bytes per second of a link; None is no limit. A message that waits for a busy link is
            replaced by a newer one, whose totals contain it.
        tick: Seconds of one round of the record: models are evaluated at its multiples; None is the typical
            time of a gradient.
    """

    compute: object = 1.0
    latency: object = 0.0
    bandwidth: object = None
    tick: Annotated[Number | None, Field(gt=0, le=_MOST, allow_inf_nan=False, examples=[1.0])] = (
        None
    )

    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        _ = self.quantities

    @cached_property
    def quantities(self) -> dict[str, Quantity]:
        """Those that are given, by name."""
        zero = {"compute": False, "latency": True, "bandwidth": False}
        return {
            name: quantity(getattr(self, name), name, zero=may)
            for name, may in zero.items()
            if getattr(self, name) is not None
        }

    @cached_property
    def step(self) -> int:
        """Nanoseconds of a tick."""
        seconds = self.quantities["compute"].typical if self.tick is None else self.tick
        return max(1, round(min(seconds, _MOST) * NANO))

    @property
    def seconds(self) -> float:
        """Of a tick."""
        return self.step / NANO

    def draw(self, network: Network, seed: int) -> Clock:
        """The times of one run.

        Args:
            network: Whose clients and links.
            seed: Of the draws.
        """

        def drawn(name: str, links: bool) -> Drawn | None:
            known = self.quantities.get(name)
            return (
                known.draw(rng.key(seed, f"time:{name}"), Who(name, network, links))
                if known
                else None
            )

        compute, latency = drawn("compute", False), drawn("latency", True)
        assert compute is not None, "it has a default"
        assert latency is not None, "it has a default"
        return Clock(compute, latency, drawn("bandwidth", True), self.step)


@dataclass(frozen=True, eq=False)
class Clock:
    """The times of one run, in nanoseconds, in some local rounds."""

    compute: Drawn
    latency: Drawn
    bandwidth: Drawn | None
    tick: int

    def durations(self, rounds: range) -> Ints:
        """(rounds, clients) of a local round, at least one."""
        return np.maximum(1, _nano(self.compute(rounds)))

    def latencies(self, rounds: range) -> Ints:
        """(rounds, links) of the messages that are sent when these rounds begin."""
        return _nano(self.latency(rounds))

    def transfers(self, rounds: range, size: int) -> Ints | None:
        """(rounds, links) in which `size` bytes pass; None where there is no limit."""
        if self.bandwidth is None:
            return None
        return _nano(size / np.maximum(self.bandwidth(rounds), 1e-9))


def _nano(seconds: Floats) -> Ints:
    return np.asarray(np.rint(np.minimum(seconds, _MOST) * NANO), np.int64)
