"""One run in virtual time: computes the batches that `Plan` lays out, by the method's own `step`.

A mixing call of a step is where messages are: what the rows of a batch give to it is what they send, and what
they get back is their own part of it with what the messages that they take hold. Copies that are not taken in
their own batch are kept in a pool, one for each mixing call of a step, until the last of their messages is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.algorithms import stack
from spodgt.algorithms.base import Algorithm, HasOverlap, HasStepSize
from spodgt.algorithms.compose.codecs import Codec, IntervalQuantizer
from spodgt.algorithms.registry import unwrapped
from spodgt.engine import fits_loops
from spodgt.errors import Incompatible
from spodgt.kernels.links import add_rows, move_into_intervals
from spodgt.kernels.steps import State, rebuild
from spodgt.problems.protocols import CompiledGradient, HasClientWeights, LinearData
from spodgt.runtimes.events.batch_arrays import columns, laid_out, shifted
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.events.schedule import Batch, Message, Plan, Sent, Tick
from spodgt.runtimes.simulator import cut
from spodgt.runtimes.world import Exchanged, Run, Tally
from spodgt.types import Bools, Floats, Ints, Minibatches, Round


class Tracking(NamedTuple):
    """A method whose turns compiled loops compute: gradient tracking with state x, y, g."""

    step_sizes: Floats  # (clients,)
    weights: Floats  # (clients,) what a gradient is multiplied by
    drops: bool  # the gradient of an idle client counts as zero


class Reads(NamedTuple):
    """What rows of a batch take, in the order of their links."""

    rows: Ints
    links: Ints
    here: Bools  # whether the copy was sent in this batch; else it is in a pool
    where: Ints  # the sender's row, or the slot
    rounds: Ints  # of the sender

    @staticmethod
    def of(taken: Iterable[tuple[int, Message]], number: int) -> Reads:
        """What batch `number` takes: rows and messages."""
        table = []
        for row, message in taken:
            sent = message.sent
            here = sent.batch == number
            table.append((row, message.link, here, sent.row if here else sent.slot, message.k))
        rows, links, own, where, rounds = columns(table, 5)
        return Reads(rows, links, own != 0, where, rounds)


class Slots:
    """Places for copies; the lowest free one is taken first."""

    def __init__(self, capacity: int = 0) -> None:
        self.capacity, self.free = capacity, list[int]()

    def clear(self, but: set[int]) -> None:
        """Free all but some, in an order that is the same after a restart."""
        self.free = sorted(set(range(self.capacity)) - but, reverse=True)

    def take(self) -> int:
        if not self.free:
            more = max(8, self.capacity // 8)
            self.free = list(range(self.capacity + more - 1, self.capacity - 1, -1))
            self.capacity += more
        return self.free.pop()


@dataclass(eq=False)
class Engine:
    """One run: its plan, and what is under way.

    Args:
        run: the run.
        time: how long things take.
        dtype, device: of the models.
        counts: the tally, of this run alone.
        statistics: (clients, columns) parameters that never leave their client.
    """

    run: Run
    time: Time
    dtype: torch.dtype
    device: torch.device
    counts: Tally
    statistics: Tensor
    pools: dict[int, Tensor] = field(default_factory=dict)  # copies, by mixing call
    pushes: list[int] = field(default_factory=list)  # the mixing calls that push
    under_way: dict[Message, None] = field(default_factory=dict)  # sent and kept, not taken
    ticks: list[Tick] = field(default_factory=list)  # planned
    first: int = 1  # the number of the first of them
    done: int = 0  # the last that was computed
    slots: Slots = field(default_factory=Slots)  # of copies
    mass: Slots = field(default_factory=Slots)  # of copies of trackers, where they are kept apart
    inbox: Tensor | None = (
        None  # (clients, columns) mass of their next turns, where it is kept apart
    )
    compiled: bool = True  # use compiled loops where they apply
    exchanged: Exchanged | None = (
        None  # the clients' models after their last exchange; None with period 1
    )

    def __post_init__(self) -> None:
        run, traits = self.run, self.run.algorithm.traits
        size = run.algorithm.message(run.problem.parameters, self.dtype.itemsize)
        clock = self.time.draw(run.network, run.seed)
        pairs = traits.activation == "edge-initiator" and run.network.links > 0
        waits = traits.waits and not pairs
        base, _ = unwrapped(run.algorithm)
        ahead, old = (
            base.overlap if isinstance(base, HasOverlap) else None,
            traits.uses_stale_models,
        )
        self.plan = Plan(run, clock, size, waits=waits, remembers=old, pairs=pairs, overlap=ahead)
        self.origin = self._origin()
        net = run.network
        self.weights: dict[str, Floats] = {"a": net.a, "b": net.b}
        if net.w is not None:
            self.weights["w"] = net.w
        self.algorithm = stack([run.algorithm], [net.clients], dtype=self.dtype, device=self.device)
        self.problem = run.problem.to(self.device, self.dtype)
        self.keys = np.full(net.clients, rng.key(run.seed, "batch"))

    @property
    def clients(self) -> int:
        return self.run.network.clients

    # --- ticks -----------------------------------------------------------------------------------
    def costs(self, k: int) -> list[float]:
        """By the paper's clock, of tick k and of those planned after it."""
        if k >= self.first + len(self.ticks):
            self._window()
        return [tick.cost for tick in self.ticks[k - self.first :]]

    def _window(self) -> None:
        """Plan the next ticks; all before have been computed."""
        self.first = self.plan.tick + 1
        self.origin = self._origin()
        # in this order after a restart, too, so that copies lie where they lay
        for slots, used in zip((self.slots, self.mass), self.plan.slots(), strict=True):
            slots.clear(used)
        self.ticks = self.plan.window()

    def init(self) -> State:
        """The state after round 0, which all clients begin together."""
        everyone = list(range(self.clients))
        computes: list[bool] = self.run.availability.computes(range(1))[0].tolist()
        batch = Batch(0, everyone, [0] * self.clients, computes)
        start = self.run.start.to(self.device, self.dtype)
        state: State = self.algorithm.init(start, cast(Round, Turns(self, batch)))
        if self.run.algorithm.period > 1:
            self.exchanged = Exchanged(state[0].clone(), self.statistics.clone())
        return state

    def advance(self, state: State, rounds: range) -> None:
        """Compute some ticks, in place."""
        waiting: list[Batch] = []
        for k in rounds:
            if k >= self.first + len(self.ticks):  # a new window begins where the last one ends
                self.compute(state, waiting)
                waiting = []
            self.costs(k)
            waiting += self.ticks[k - self.first].batches
            self.done = k
        self.compute(state, waiting)

    def compute(self, state: State, batches: Sequence[Batch]) -> None:
        """Compute batches, in place."""
        first = 0
        for number, clients in self._last_exchanges(batches).items():
            self._compute(state, batches[first : number + 1])
            self._keep_exchanged(state, clients)
            first = number + 1
        self._compute(state, batches[first:])

    def _compute(self, state: State, batches: Sequence[Batch]) -> None:
        if self.tracking is not None:
            self._track(state, batches, self.tracking)
            return
        for batch in batches:
            self._step(state, batch)

    def _last_exchanges(self, batches: Sequence[Batch]) -> dict[int, list[int]]:
        """Number of a batch, in ascending order → the clients whose last exchange among `batches` it has."""
        if self.exchanged is None:
            return {}
        last: dict[int, int] = {}
        for number, batch in enumerate(batches):
            for client, k in zip(batch.clients, batch.rounds, strict=True):
                if k % self.run.algorithm.period == 0:
                    last[client] = number
        found: dict[int, list[int]] = {}
        for client, number in last.items():
            found.setdefault(number, []).append(client)
        return dict(sorted(found.items()))

    def _keep_exchanged(self, state: State, clients: Sequence[int]) -> None:
        """Copy the models of some clients, which have just exchanged them."""
        assert self.exchanged is not None
        index = torch.tensor(clients, device=self.device)
        self.exchanged.x[index] = state[0][index]
        self.exchanged.statistics[index] = self.statistics[index]

    def _step(self, state: State, batch: Batch) -> None:
        rows = [*batch.clients, *batch.partners]
        index = torch.tensor(rows, device=self.device)
        everyone = rows == list(range(self.clients))
        part = state if everyone else rebuild(state, [tensor[index] for tensor in state])
        method = self.algorithm if everyone else self._of(index)
        after: State = method.step(part, cast(Round, Turns(self, batch)))
        held = {tensor.untyped_storage().data_ptr() for tensor in part}  # a step may hand fields on
        fields = [t.clone() if t.untyped_storage().data_ptr() in held else t for t in after]
        for whole, new in zip(state, fields, strict=True):
            whole[index] = new

    def _track(self, state: State, batches: Sequence[Batch], method: Tracking) -> None:
        """Compute batches of gradient tracking, which pushes y, then pulls x, in compiled loops."""
        if not batches:
            return
        from spodgt.kernels.event_turns import advance_turns, exchange_turns

        x, y, g = state
        weights = self.weights["a"], self.weights["b"]
        lot = laid_out(batches, self.settle, self.plan.receivers, weights, self.keys)
        self.pushes = [0]
        pools = (
            self.pool(1, x, self.slots.capacity).numpy(),
            self.pool(0, y, self.mass.capacity).numpy(),
        )
        if len(lot.ahead.rows) and self.inbox is None:
            self.inbox = torch.zeros_like(y)
        inbox = (y[:0] if self.inbox is None else self.inbox).numpy()
        rows = lot.draws.clients
        weight = method.weights[rows]
        arrays = (
            (x.numpy(), y.numpy(), g.numpy()),
            pools,
            lot,
            inbox,
            (method.step_sizes, method.drops),
        )
        if self.linear is not None:
            from spodgt.problems.gradients.linear_model import Scratch, chunk_length, padded_stride

            data, size = self.linear
            stride = padded_stride(data, x.numpy().dtype)
            scratch = Scratch.create(data, size, x.numpy().dtype)
            advance_turns(
                *arrays, data, stride, (size, chunk_length(stride, size)), weight, scratch
            )
        else:
            for batch in range(len(batches)):
                exchange_turns(*arrays, batch)
                low, high = lot.starts.draws[batch : batch + 2].tolist()
                order = low + np.argsort(
                    rows[low:high]
                )  # a problem is asked in the order of its clients
                if len(order):
                    drawn = Minibatches(rows[order], lot.draws.keys[order], rows[order], 0)
                    self._replace_gradients(state, drawn, weight[order])
        counts = self.counts
        counts.gradients[:] += np.bincount(rows, minlength=len(counts.gradients))
        sent = np.bincount(lot.links, minlength=len(counts.messages))
        counts.messages[:] += sent
        counts.bytes[:] += sent * (2 * x.shape[1] * x.element_size())

    def _replace_gradients(self, state: State, draws: Minibatches, weights: Floats) -> None:
        """In place: y ← y + w g⁺ - g and g ← w g⁺ for the clients of `draws`."""
        x, y, g = state
        index = torch.from_numpy(draws.rows)
        new = self.problem.grad(x[index], draws) * torch.from_numpy(weights).to(x.dtype)[:, None]
        y[index] += new - g[index]
        g[index] = new

    @cached_property
    def linear(self) -> tuple[LinearData, int] | None:
        """A linear problem and its mini-batch, where all clients draw the same number of samples."""
        if not isinstance(self.problem, CompiledGradient):
            return None
        data = self.problem.linear_data(self.dtype)
        sizes = np.unique(self.problem.batches(np.arange(self.clients)))
        return None if data is None or len(sizes) > 1 else (data, int(sizes[0]))

    @cached_property
    def tracking(self) -> Tracking | None:
        """The method for compiled loops, where it is gradient tracking with constant step sizes."""
        traits = self.algorithm.traits
        fits = self.compiled and fits_loops(torch.empty(0, dtype=self.dtype, device=self.device))
        if not fits or self.statistics.shape[1] or self.plan.remembers:
            return None
        if traits.compiled != "gradient-tracking" or traits.rule is None:
            return None
        step_size = self.algorithm.step_size if isinstance(self.algorithm, HasStepSize) else None
        if not isinstance(step_size, int | float | Tensor):
            return None  # a schedule
        p = torch.from_numpy(self.run.availability.p).to(self.dtype).double().numpy()
        step_sizes = np.broadcast_to(np.asarray(step_size, np.float64).reshape(-1), p.shape).copy()
        weights = np.ones(len(p))
        if (
            traits.rule == "importance"
        ):  # p = 0: a client that never computes has no gradient to weigh
            np.divide(1, p, out=weights, where=p > 0)
        return Tracking(step_sizes, weights, traits.rule != "memory")

    def _of(self, index: Tensor) -> Algorithm:
        """The method with the values of some clients."""
        return cut(self.algorithm, index, self.clients) if self._differ else self.algorithm

    @cached_property
    def _differ(self) -> bool:
        """Whether the method has values of single clients, such as step sizes."""
        nobody = torch.zeros(0, dtype=torch.int64)
        return repr(cut(self.algorithm, nobody, self.clients)) != repr(self.algorithm)

    # --- what is under way -----------------------------------------------------------------------
    def settle(self, batch: Batch) -> None:
        """Count down the copies that a batch takes, and give those that it sends and nobody takes a slot."""
        for _, message, _ in batch.got:
            sent = message.sent
            self.under_way.pop(message, None)
            self._release(sent)
            if self.apart and sent.batch != batch.number and not message.direct:
                sent.mass_refs -= 1
                if not sent.mass_refs:
                    self.mass.free.append(sent.mass_slot)
                    sent.mass_slot = -1
        for sent in batch.forgotten:
            self._release(sent)
        for sent in batch.sent:
            if sent.refs:
                sent.slot = self.slots.take()
        taken = {message for _, message, _ in batch.got}
        for message in batch.out if not batch.partners else ():
            if message not in taken:
                self.under_way[message] = None
                if self.apart and not message.direct:
                    message.sent.mass_refs += 1
                    if message.sent.mass_slot < 0:
                        message.sent.mass_slot = self.mass.take()

    def _release(self, sent: Sent) -> None:
        sent.refs -= 1
        if not sent.refs and sent.slot >= 0:
            self.slots.free.append(sent.slot)
            sent.slot = -1

    @property
    def apart(self) -> bool:
        """Whether trackers are kept apart from models: compiled loops do, which takes less memory."""
        return self.tracking is not None

    def pool(self, call: int, like: Tensor, capacity: int) -> Tensor:
        """The copies of one mixing call of a step, with room for so many slots."""
        known = self.pools.get(call)
        if known is None or len(known) < capacity:
            # room for more than is needed: memory that is not written to is not taken
            new = like.new_empty(max(2 * capacity, 2 * self.clients), like.shape[1])
            if known is not None:
                new[: len(known)] = known
            self.pools[call] = known = new
        return known

    def flight(self) -> Tensor | None:
        """(columns,) the mass on its way, of the first that is pushed; None where nothing is."""
        if not self.pushes or self.pushes[0] not in self.pools:
            return None
        pool, kept = (
            self.pools[self.pushes[0]],
            [m for m in self.under_way if not (self.apart and m.direct)],
        )
        total = pool.new_zeros(1, pool.shape[1], dtype=torch.float64)
        for message in kept:
            slot = message.sent.mass_slot if self.apart else message.sent.slot
            total.add_(pool[slot], alpha=float(self.weights["b"][message.link]))
        return total[0] if self.inbox is None else total[0] + self.inbox.double().sum(0)

    # --- keeping ---------------------------------------------------------------------------------
    def _origin(self) -> dict[str, Tensor]:
        return {
            **self.plan.pack(),
            "capacity": torch.tensor([self.slots.capacity, self.mass.capacity]),
        }

    def pack(self) -> dict[str, Tensor]:
        """All that is needed to go on from here, beside the state."""
        most = max(self.slots.capacity, self.mass.capacity)
        pools = {f"pool/{call}": pool[:most] for call, pool in self.pools.items()}
        if self.inbox is not None:
            pools["inbox"] = self.inbox
        plan = {f"plan/{name}": tensor for name, tensor in self.origin.items()}
        numbers = torch.tensor([self.done, *self.pushes])
        return {**pools, **plan, "numbers": numbers}

    def unpack(self, found: Mapping[str, Tensor]) -> None:
        """Go on from what `pack` gave."""
        plan = {
            name.removeprefix("plan/"): t for name, t in found.items() if name.startswith("plan/")
        }
        self.plan.unpack(plan)
        self.under_way = {message: None for flight in self.plan.flights for message in flight}
        self.done, *self.pushes = found["numbers"].tolist()
        self.slots, self.mass = map(Slots, plan["capacity"].tolist())
        self._window()
        for tick in self.ticks[: self.done + 1 - self.first]:
            for batch in tick.batches:
                self.settle(batch)
        self.inbox = found["inbox"].to(self.device, copy=True) if "inbox" in found else None
        self.pools = {
            int(name.removeprefix("pool/")): tensor.to(self.device, copy=True)
            for name, tensor in found.items()
            if name.startswith("pool/")
        }


@dataclass(frozen=True)
class Some:
    """Some columns as they are; of the others nothing is said."""

    columns: slice

    def size(self, columns: int, item: int) -> int:
        return item * len(range(*self.columns.indices(columns)))

    def pack(self, rows: Tensor) -> Tensor:
        return rows

    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        half = torch.full_like(data, torch.inf)
        half[:, self.columns] = 0.0
        return data, half


class Turns:
    """The turns of a batch as an algorithm sees them (`types.Round`): its rows, in the order of the batch."""

    def __init__(self, engine: Engine, batch: Batch) -> None:
        self.engine, self.batch = engine, batch
        self.rows = np.array([*batch.clients, *batch.partners], np.int64)
        self.active = np.array([*batch.computes, *([False] * len(batch.partners))], bool)
        self.clients, self.calls = engine.clients, 0
        known, number = batch.known, batch.number
        if not engine.plan.remembers:
            known = [(row, message) for row, message, newest in batch.got if newest]
        self.models = Reads.of(known, number)
        self.mass = Reads.of([(row, message) for row, message, _ in batch.got], number)
        engine.settle(batch)
        self.store = columns([(s.row, s.slot) for s in batch.sent if s.slot >= 0], 2)
        self.links = np.array([message.link for message in batch.out], np.int64)
        self.senders = np.array([message.sent.row for message in batch.out], np.int64)
        engine.counts.messages[self.links] += 1  # a link once in a batch, as its sender
        self.draws = self._draws()

    def _draws(self) -> Minibatches:
        """The mini-batches of rows in different rounds."""
        here = np.flatnonzero(self.active)
        here = here[np.argsort(self.rows[here])]  # a problem is asked in the order of its clients
        self.here, rows = here, self.rows[here]
        keys = shifted(self.engine.keys, rows, np.array(self.batch.rounds)[here])
        return Minibatches(rows, keys, rows, 0)

    @cached_property
    def k(self) -> int | Tensor:
        rounds, idle = self.batch.rounds, [0] * len(self.batch.partners)
        same = len(set(rounds)) == 1
        return (
            rounds[0]
            if same
            else torch.tensor([*rounds, *idle], device=self.engine.device)[:, None]
        )

    @cached_property
    def computes(self) -> Tensor:
        return torch.from_numpy(self.active).to(self.engine.device)[:, None]

    @property
    def p(self) -> Tensor:
        p = torch.from_numpy(self.engine.run.availability.p[self.rows])
        return p.to(self.engine.device, self.engine.dtype)[:, None]

    @property
    def client_index(self) -> Tensor:
        return torch.from_numpy(self.rows).to(self.engine.device)

    @property
    def step_weight(self) -> Tensor:
        return torch.ones(len(self.rows), 1, dtype=self.engine.dtype, device=self.engine.device)

    @property
    def client_weight(self) -> Tensor:
        problem = self.engine.problem
        scales = problem.loss_scales if isinstance(problem, HasClientWeights) else None
        here = np.ones(len(self.rows)) if scales is None else scales[self.rows]
        return torch.from_numpy(here).to(self.engine.device, self.engine.dtype)[:, None]

    @property
    def reset_tracker(self) -> Tensor:
        return torch.zeros(len(self.rows), 1, dtype=torch.bool, device=self.engine.device)

    def grad(self, x: Tensor) -> Tensor:
        engine, g = self.engine, torch.zeros_like(x)
        engine.counts.gradients[self.draws.rows] += 1
        if not len(self.here):
            return g
        index = torch.from_numpy(self.here).to(x.device)
        models, statistics = x[index], engine.statistics
        if statistics.shape[1]:
            own = torch.from_numpy(self.draws.rows).to(x.device)
            models = torch.cat([models, statistics[own]], 1)
        g[index] = engine.problem.grad(models, self.draws)
        if statistics.shape[1]:
            statistics[own] = models[:, x.shape[1] :]
        return g

    # --- mixing ----------------------------------------------------------------------------------
    def own_part(self, which: str, keepers: Ints, links: Ints) -> Floats:
        """(rows,) what is left of one where the weights of `links` have left the rows `keepers`."""
        sent = np.bincount(keepers, self.engine.weights[which][links], minlength=len(self.rows))
        return np.asarray(1.0 - sent, np.float64)

    def pull(self, x: Tensor, codec: Callable[[int], IntervalQuantizer] | None = None) -> Tensor:
        if codec is not None:
            return self._lean(x, codec)
        return self._mix(x, "a", self.models)

    def push(self, y: Tensor, codec: Codec | IntervalQuantizer | None = None) -> Tensor:
        if self.calls not in self.engine.pushes:
            self.engine.pushes.append(self.calls)
        return self._mix(y, "b", self.mass, codec)

    def mix_columns(self, x: Tensor, how: str, columns: Callable[[int], slice]) -> Tensor:
        if how == "pull":
            return self._lean(x, lambda k: Some(columns(k)))
        said = torch.zeros_like(x)
        for row, k in enumerate(self.batch.rounds):
            said[row, columns(k)] = x[row, columns(k)]
        return x + (self.push(said, Some(columns(0))) - said)

    @property
    def push_self_weight(self) -> Tensor:
        kept = self.own_part("b", self.senders, self.links)
        return torch.from_numpy(kept).to(self.engine.device, self.engine.dtype)[:, None]

    def gossip(self, x: Tensor) -> Tensor:
        if self.batch.partners:
            self.engine.counts.bytes[self.links] += x.shape[1] * x.element_size()
            first, second = x.chunk(2)
            return ((first + second) / 2).repeat(2, 1)
        return self._mix(x, "w", self.models)

    def gossip_difference(self, x: Tensor) -> Tensor:
        if self.batch.partners:
            return self.gossip(x) - x
        return self._mix(x, "w", self.models, difference=True)

    def average(self, x: Tensor) -> Tensor:
        if not self.engine.plan.waits:
            raise Incompatible("clients that wait for nobody have no average; use spod-gt-memory.")
        return x.mean(0, keepdim=True).expand_as(x)

    def _lean(self, x: Tensor, codec: Callable[[int], IntervalQuantizer]) -> Tensor:
        """x moved towards the intervals that messages say, each in the way of its sender's round."""
        engine, reads = self.engine, self.models
        pool = engine.pool(self.calls, x, engine.slots.capacity)
        here, where = (torch.from_numpy(each).to(x.device) for each in (reads.here, reads.where))
        said = x.new_empty(len(where), x.shape[1])
        said[here], said[~here] = x[where[here]], pool[where[~here]]
        middle, half = torch.empty_like(said), torch.empty_like(said)
        for k in np.unique(reads.rounds).tolist():
            which, now = torch.from_numpy(reads.rounds == k).to(x.device), codec(k)
            middle[which], half[which] = now.unpack(now.pack(said[which]), x.shape[1], x.dtype)
        self._keep(x, pool, codec(0))
        own, weights = np.arange(len(where)), engine.weights["a"][reads.links]
        return move_into_intervals(x.contiguous(), middle, half, reads.rows, own, weights)

    def _keep(
        self, x: Tensor, pool: Tensor, codec: Codec | IntervalQuantizer | None = None
    ) -> None:
        """Keep what others take later, and count what is sent."""
        row, slot = (torch.from_numpy(each).to(x.device) for each in self.store)
        pool[slot] = x[row]
        width, item = x.shape[1], x.element_size()
        self.engine.counts.bytes[self.links] += codec.size(width, item) if codec else width * item
        self.calls += 1

    def _mix(
        self,
        x: Tensor,
        which: str,
        reads: Reads,
        codec: Codec | IntervalQuantizer | None = None,
        *,
        difference: bool = False,
    ) -> Tensor:
        """The rows' own part of x, and what they take; with `difference`, minus x.

        What others take later is kept.
        """
        engine, weights = self.engine, self.engine.weights[which]
        if difference:
            own = x
            out = torch.zeros_like(x)
        else:
            own = None
            keepers, links = (
                (self.senders, self.links) if which == "b" else (reads.rows, reads.links)
            )
            out = x * torch.from_numpy(self.own_part(which, keepers, links)).to(x)[:, None]
        values, pool = weights[reads.links], engine.pool(self.calls, x, engine.slots.capacity)
        for which_rows, source in ((reads.here, x.contiguous()), (~reads.here, pool)):
            rows = reads.rows[which_rows], reads.where[which_rows]
            add_rows(out, source, *rows, values[which_rows], own)
        self._keep(x, pool, codec)
        return out
