"""Durations of gradients and messages in virtual time: `[time]` of a config.

    [time]
    compute = 0.02                                    seconds of a gradient, or one per client
    latency = { kind = "exponential", mean = 0.05 }   seconds of a message
    bandwidth = 1e6                                   bytes per second of a link; default: no limit

A quantity is a number, a list (one number per client or link), or a table with a `kind` of
`QUANTITIES`. Draws are pure functions of (seed, round of the client, client or link), so they do
not depend on the batch, the method or a restart. Times are integers, in nanoseconds, so that
simultaneous events have equal times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol

import numpy as np
from pydantic import SkipValidation

from spodgt import rng
from spodgt._util.text import first_line, short_repr
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.participation.recipes import numbers_by_link
from spodgt.types import Floats, Ints
from spodgt.validation import Field, FieldHint, Number, choices, from_table, recipe

if TYPE_CHECKING:
    import pandas as pd

NANO = 10**9  # nanoseconds of a second
_MAX_SECONDS = 1e9  # thirty years
_TRACE_COLUMNS = ("seconds", "bytes_per_second")
_upto = partial(Field, le=1e18, allow_inf_nan=False)
Positive = Annotated[Number, _upto(gt=0, examples=[1.0]), FieldHint("a number above 0")]
NotNegative = Annotated[Number, _upto(ge=0, examples=[0.0]), FieldHint("a number of at least 0")]


@dataclass(frozen=True)
class Target:
    """The clients, or the links, of a network that have a quantity."""

    quantity: str  # name
    network: Network
    is_link: bool

    @property
    def count(self) -> int:
        return self.network.links if self.is_link else self.network.clients

    @property
    def kind(self) -> str:
        return "link" if self.is_link else "client"

    def ends(self) -> list[tuple[int, ...]]:
        """(client,) of every client, or (sender, receiver) of every link."""
        if not self.is_link:
            return [(client,) for client in range(self.count)]
        senders = self.network.senders.tolist()
        return list(zip(senders, self.network.receivers.tolist(), strict=True))


class Sampler(Protocol):
    """The values of one quantity in one run."""

    def __call__(self, rounds: range) -> Floats: ...  # (rounds, clients or links)


@dataclass(frozen=True, eq=False)
class FixedSampler:
    """The same values in all rounds."""

    values: Floats  # (clients or links,)

    def __call__(self, rounds: range) -> Floats:
        return np.broadcast_to(self.values, (len(rounds), len(self.values)))


@dataclass(frozen=True, eq=False)
class RandomSampler:
    """Independent draws, made from two uniform numbers each."""

    key: np.uint64
    count: int  # clients or links
    once: bool  # one draw for all rounds
    transform: Callable[[Floats, Floats], Floats]

    def __call__(self, rounds: range) -> Floats:
        k = np.zeros((1, 1), np.int64) if self.once else np.asarray(rounds)[:, None]
        index = np.arange(self.count)[None, :]
        first = rng.uniform(self.key, k, index, 0)
        second = rng.uniform(self.key, k, index, 1)
        return np.broadcast_to(self.transform(first, second), (len(rounds), self.count))


@dataclass(frozen=True, eq=False)
class TraceSampler:
    """Recorded values, one after the other, again from the first after the last."""

    traces: Sequence[Floats]  # of each client or link

    def __call__(self, rounds: range) -> Floats:
        columns = [trace[np.asarray(rounds) % len(trace)] for trace in self.traces]
        return np.stack(columns, 1)


class Quantity(Protocol):
    """A recipe for values that are drawn for every client or link, in every round or once."""

    name: ClassVar[str]

    @property
    def typical(self) -> float: ...  # about the mean
    def draw(self, key: np.uint64, target: Target) -> Sampler: ...


QUANTITIES: dict[str, type[Quantity]] = {}


@recipe(InvalidInput, QUANTITIES)
class ConstantDuration:
    """One number for all clients or links, in all rounds.

    Args:
        value: The number.
    """

    name: ClassVar[str] = "constant"
    value: NotNegative

    @property
    def typical(self) -> float:
        return self.value

    def draw(self, key: np.uint64, target: Target) -> Sampler:
        return FixedSampler(np.full(target.count, self.value))


@recipe(InvalidInput, QUANTITIES)
class Uniform:
    """Uniform between two numbers.

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

    def draw(self, key: np.uint64, target: Target) -> Sampler:
        return RandomSampler(key, target.count, self.once, self._from_uniform)

    def _from_uniform(self, u: Floats, v: Floats) -> Floats:
        return self.low + (self.high - self.low) * u


@recipe(InvalidInput, QUANTITIES)
class ExponentialDuration:
    """Exponential above a minimum.

    Args:
        mean: The mean of the excess over `least`.
        least: The minimum.
        once: Draw it once for every client or link, not for every gradient or message.
    """

    name: ClassVar[str] = "exponential"
    mean: Positive
    least: NotNegative = 0.0
    once: bool = False

    @property
    def typical(self) -> float:
        return self.least + self.mean

    def draw(self, key: np.uint64, target: Target) -> Sampler:
        return RandomSampler(key, target.count, self.once, self._from_uniform)

    def _from_uniform(self, u: Floats, v: Floats) -> Floats:
        return self.least - self.mean * np.log1p(-u)


@recipe(InvalidInput, QUANTITIES)
class Lognormal:
    """Lognormal: around a median, with stragglers.

    Args:
        median: Half of the draws are below it.
        sigma: Standard deviation of the natural logarithm; with 0.5, one draw in twenty is above
            2.3 medians.
        once: Draw it once for every client or link, not for every gradient or message.
    """

    name: ClassVar[str] = "lognormal"
    median: Positive
    sigma: NotNegative = 0.5
    once: bool = False

    @property
    def typical(self) -> float:
        return self.median * math.exp(min(self.sigma**2 / 2, 100.0))

    def draw(self, key: np.uint64, target: Target) -> Sampler:
        return RandomSampler(key, target.count, self.once, self._from_uniform)

    def _from_uniform(self, u: Floats, v: Floats) -> Floats:
        normal = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)  # Box and Muller
        return np.asarray(self.median * np.exp(self.sigma * normal), np.float64)


@dataclass(frozen=True, eq=False)
class PerTarget:
    """One number for each client or link."""

    name: ClassVar[str] = "given"
    values: Floats

    @property
    def typical(self) -> float:
        """The harmonic mean: the same total rate."""
        return float(len(self.values.ravel()) / (1 / np.maximum(self.values, 1 / NANO)).sum())

    def draw(self, key: np.uint64, target: Target) -> Sampler:
        values = self.values
        if target.is_link:
            values = np.asarray(numbers_by_link(values, target.network), np.float64)
        if values.shape != (target.count,):
            raise InvalidInput(
                f"time.{target.quantity} must be one number or {target.count}, one per "
                f"{target.kind}, got {values.size}; use one number."
            )
        return FixedSampler(values)


@recipe(InvalidInput, QUANTITIES)
class RecordedTrace:
    """Recorded values, repeated.

    Args:
        path: A CSV file with a column `seconds` (for bandwidth: `bytes_per_second`). Rows of single
            clients have a column `client`, rows of links `sender` and `receiver`, with names or
            numbers of the network, and are used in order. Without these columns, all clients or
            links use the same rows.
    """

    name: ClassVar[str] = "trace"
    path: Annotated[str, Field(examples=["seconds.csv"])]

    @cached_property
    def table(self) -> pd.DataFrame:
        """The file, with its values in a column `value`."""
        import pandas as pd

        try:
            table = pd.read_csv(self.path)
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"trace {self.path} cannot be read: {first_line(error)}; give a CSV file."
            ) from None
        columns = [name for name in _TRACE_COLUMNS if name in table.columns]
        if len(columns) != 1 or not len(table):
            raise InvalidInput(f"trace {self.path} must have rows and a column seconds; add it.")
        values = pd.to_numeric(table[columns[0]], errors="coerce").to_numpy(np.float64)
        is_valid = np.isfinite(values) & (values >= 0)
        if not is_valid.all():
            row = int(np.argmin(is_valid))
            raise InvalidInput(
                f"{columns[0]} must be numbers of at least 0, but row {row} of trace {self.path} "
                f"has {table[columns[0]].iloc[row]!r}; correct it."
            )
        return table.assign(value=values)

    @property
    def typical(self) -> float:
        return float(self.table["value"].mean())

    def draw(self, key: np.uint64, target: Target) -> Sampler:
        if target.quantity in ("compute", "bandwidth") and not (self.table["value"] > 0).all():
            raise InvalidInput(
                f"trace {self.path} must have numbers above 0 for time.{target.quantity}; drop "
                "rows."
            )
        columns = ["sender", "receiver"] if target.is_link else ["client"]
        if not set(columns) <= set(self.table.columns):
            return TraceSampler([self.table["value"].to_numpy()] * target.count)
        groups = {}
        for names, rows in self.table.groupby(columns)["value"]:
            groups[tuple(map(str, names))] = rows.to_numpy()
        traces = []
        for numbers in target.ends():
            labels = [str(target.network.label(number)) for number in numbers]
            trace = groups.get(tuple(map(str, numbers)), groups.get(tuple(labels)))
            if trace is None:
                raise InvalidInput(
                    f"trace {self.path} has no row of {target.kind} {' → '.join(labels)}; add one."
                )
            traces.append(trace)
        return TraceSampler(traces)


def parse_quantity(value: object, name: str, *, may_be_zero: bool) -> Quantity:
    """Parse a number, a list of numbers or a table.

    Args:
        value: of the config.
        name: of the quantity.
        may_be_zero: whether 0 is valid.

    Raises:
        InvalidInput: the value is not valid.
    """
    if isinstance(value, Mapping):
        return _parse_table(value, name, may_be_zero)
    try:
        numbers = np.array(value, np.float64)
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    is_valid = np.isfinite(numbers) & (numbers <= 1e18) & (numbers >= 0)
    if not may_be_zero:
        is_valid = is_valid & (numbers > 0)
    if isinstance(value, bool | str) or not numbers.size or not is_valid.all():
        minimum = "of at least 0" if may_be_zero else "above 0"
        raise InvalidInput(
            f"time.{name} must be numbers {minimum} or a table with a kind, "
            f"got {short_repr(value)}; use {name} = 1.0."
        )
    return ConstantDuration(float(numbers)) if numbers.ndim == 0 else PerTarget(numbers)


def _parse_table(table: Mapping[str, object], name: str, may_be_zero: bool) -> Quantity:
    fields = dict(table)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in QUANTITIES:
        raise InvalidInput(f"time.{name}.kind={kind!r} is not known; {choices(kind, QUANTITIES)}")
    quantity = from_table(QUANTITIES[kind], fields, f"time.{name}")
    if isinstance(quantity, ConstantDuration) and not quantity.value and not may_be_zero:
        raise InvalidInput(
            f"time.{name}.value must be above 0, got {quantity.value}; use value = 1.0."
        )
    return quantity


QuantityLike = float | Sequence[float] | Floats | Mapping[str, object]


@recipe(InvalidInput)
class Time:
    """Durations of gradients and messages: numbers, lists or tables of `QUANTITIES`.

    Args:
        compute: Seconds of a client's local round, that is, of one gradient.
        latency: Seconds from sending a message to its arrival, without the time of its bytes.
        bandwidth: Bytes per second of a link; None: no limit. A message that waits for a busy link
            is replaced by a newer one, which contains its running sums.
        tick: Seconds of one round of the record: models are evaluated at its multiples. None: the
            typical time of a gradient.
    """

    compute: Annotated[QuantityLike, SkipValidation] = 1.0
    latency: Annotated[QuantityLike, SkipValidation] = 0.0
    bandwidth: Annotated[QuantityLike | None, SkipValidation] = None
    tick: Annotated[
        Number | None, Field(gt=0, le=_MAX_SECONDS, allow_inf_nan=False, examples=[1.0])
    ] = None

    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        _ = self.quantities  # raises for invalid values

    @cached_property
    def quantities(self) -> dict[str, Quantity]:
        """By name: compute, latency and, if it is limited, bandwidth."""
        quantities = {
            "compute": parse_quantity(self.compute, "compute", may_be_zero=False),
            "latency": parse_quantity(self.latency, "latency", may_be_zero=True),
        }
        if self.bandwidth is not None:
            bandwidth = parse_quantity(self.bandwidth, "bandwidth", may_be_zero=False)
            quantities["bandwidth"] = bandwidth
        return quantities

    @cached_property
    def step(self) -> int:
        """Nanoseconds of a tick."""
        seconds = self.quantities["compute"].typical if self.tick is None else self.tick
        return max(1, round(min(seconds, _MAX_SECONDS) * NANO))

    @property
    def seconds(self) -> float:
        """Seconds of a tick."""
        return self.step / NANO

    def draw(self, network: Network, seed: int) -> DurationClock:
        """The durations of one run.

        Args:
            network: The network.
            seed: Seed of the draws.
        """
        samplers = {}
        for name, quantity in self.quantities.items():
            target = Target(name, network, is_link=name != "compute")
            samplers[name] = quantity.draw(rng.key(seed, f"time:{name}"), target)
        bandwidth = samplers.get("bandwidth")
        return DurationClock(samplers["compute"], samplers["latency"], bandwidth, self.step)


@dataclass(frozen=True, eq=False)
class DurationClock:
    """The durations of one run, in nanoseconds."""

    compute: Sampler
    latency: Sampler
    bandwidth: Sampler | None
    tick: int

    def durations(self, rounds: range) -> Ints:
        """(rounds, clients) of local rounds, at least 1."""
        return np.maximum(1, _to_nanoseconds(self.compute(rounds)))

    def latencies(self, rounds: range) -> Ints:
        """(rounds, links) of the messages that are sent when these rounds start."""
        return _to_nanoseconds(self.latency(rounds))

    def transfers(self, rounds: range, size: int) -> Ints | None:
        """(rounds, links) the time of `size` bytes on each link; None: no limit."""
        if self.bandwidth is None:
            return None
        return _to_nanoseconds(size / np.maximum(self.bandwidth(rounds), 1e-9))


def _to_nanoseconds(seconds: Floats) -> Ints:
    return np.asarray(np.rint(np.minimum(seconds, _MAX_SECONDS) * NANO), np.int64)
