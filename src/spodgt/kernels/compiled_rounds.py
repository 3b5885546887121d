"""The rounds of a method in compiled loops, for steps that are linear in the rows of the state.

A method declares this by `Traits.compiled`. Its step is traced once (`program.trace`); loops then run
the program. Of a linear model, many rounds are one call. Of other models, gradients come from the
problem, one round at a time. The plain equivalent is the method's own `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.compose.schedules import fixed
from spodgt.engine import fits_loops
from spodgt.kernels.coefficients import STEP_SIZE, CoefficientTables
from spodgt.kernels.links import columns_per_block
from spodgt.kernels.program import Program, trace
from spodgt.kernels.steps import Activity, Batch, State, rebuild
from spodgt.kernels.tracing import NotLinear
from spodgt.thread_pool import run_tasks
from spodgt.types import Array, Bools, CompiledGradient, Floats, Ints, LinearData, Minibatches

if TYPE_CHECKING:
    from spodgt.kernels.run_program import Coefficients, Draws, Operations, RunLinks, RunMemory
    from spodgt.problems.gradients.linear_model import Scratch

_COPIED = 2**27  # numbers of a state at most that is copied into the memory of its runs


@dataclass(eq=False)
class CompiledRounds:
    """The rounds of one method in a batch of runs; it writes into the state it is given.

    Args:
        batch: the runs.
        algorithm: their method.
        data: a linear problem as loops read it; None: gradients come from the problem.
        batch_sizes: (clients,) samples of a mini-batch, of a linear problem.
    """

    batch: Batch
    algorithm: Algorithm
    data: LinearData | None = None
    batch_sizes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    tables: CoefficientTables | None = None  # once a state has been traced
    memory: Tensor | None = None  # all registers; the state lies in the first ones
    run_memories: dict[int, tuple[RunMemory, Scratch]] = field(default_factory=dict)
    is_linear: bool = True  # False once tracing has failed

    @classmethod
    def create(cls, algorithm: Algorithm, batch: Batch) -> CompiledRounds | None:
        """The compiled rounds of a method that declares them; None where they do not apply."""
        if algorithm.traits.compiled is None or not fits_loops(batch.p):
            return None
        problem = batch.problem
        if not isinstance(problem, CompiledGradient):
            return cls(batch, algorithm)
        data = problem.linear_data(batch.p.dtype)
        if data is None or len(batch.p) * problem.parameters > _COPIED:
            return cls(batch, algorithm)
        return cls(batch, algorithm, data, problem.batches(np.arange(len(batch.p))))

    @property
    def message_sizes(self) -> tuple[int, int]:
        """How many numbers a link carries in a round that pulls or gossips, and one that pushes."""
        assert self.tables is not None
        pulled = 0
        pushed = 0
        for weights, is_wide in self.tables.program.mixed:
            size = self.batch.problem.parameters if is_wide else 1
            if weights == 1:
                pushed += size
            else:
                pulled += size
        return pulled, pushed

    def advance(self, state: State, activity: Activity) -> State | None:
        """The state after these rounds; None, and nothing done, where the method's own step is needed."""
        if not fits_loops(*state) or not self._trace(state):
            return None
        assert self.tables is not None
        program = self.tables.program
        names = self.algorithm.traits.state
        fields = self._load(state)
        narrow = {name: tensor for name, tensor in zip(names, state, strict=True) if name in program.narrow}
        factors, masks, narrow = self.tables.evaluate(activity, narrow)
        rounds = _Rounds(
            activity, factors, masks, self.tables.weights(activity), self.tables.active(activity)
        )
        if self.data is not None:
            self._advance_runs(rounds, self.data)
        else:
            self._advance_rounds(rounds)
        after: Mapping[str, Tensor] = fields | narrow
        return rebuild(state, [after[name] for name in names])

    # --- rounds ----------------------------------------------------------------------------------
    def _advance_runs(self, rounds: _Rounds, data: LinearData) -> None:
        """All rounds of a linear model: one task for each run."""
        from spodgt.kernels.run_program import advance_run
        from spodgt.problems.gradients.linear_model import padded_stride

        assert self.memory is not None
        fields = self.memory.numpy()
        stride = padded_stride(data, fields.dtype)

        def advance(run: int) -> None:
            low, high = self._span(run)
            starts = (
                np.arange(len(self._program.fields)) * len(self.batch.p) + low
            ) * self.batch.problem.parameters
            shape = high - low, data.classes * stride
            memory, scratch = self._run_memory(run, shape, data)
            inputs = (
                self._coefficients(run, rounds),
                self._links(run, rounds),
                self._draws(run, rounds, stride),
            )
            advance_run(fields, starts, memory, self._operations, *inputs, data, stride, scratch)

        run_tasks(advance, range(len(self.batch.sizes)), fields.size * len(rounds.activity.cost))

    def _advance_rounds(self, rounds: _Rounds) -> None:
        """Round after round, with the gradients of the problem."""
        from spodgt.kernels.run_program import after_gradient, before_gradient

        batch = self.batch
        registers = self._registers()
        width = registers.shape[2]
        runs = range(len(batch.sizes))
        memories = [self._batch_memory(run) for run in runs]
        coefficients = [self._coefficients(run, rounds) for run in runs]
        links = [self._links(run, rounds) for run in runs]
        for r, k in enumerate(rounds.activity.rounds):
            computes = rounds.activity.computes[r + 1]
            for run in runs:
                before_gradient(memories[run], r, width, self._operations, coefficients[run], links[run])
            gradients = self._gradients(registers[self._operations.gradient_at], computes, k)
            positions = np.cumsum(computes) - 1
            for run in runs:
                low, high = self._span(run)
                given = gradients, positions[low:high]
                after_gradient(memories[run], r, width, self._operations, coefficients[run], *given)

    def _gradients(self, models: Tensor, computes: Bools, k: int) -> Array:
        """The gradients of the clients that compute in round k, flat."""
        rows = np.flatnonzero(computes)
        if not len(rows):
            return np.empty(0, models.numpy().dtype)
        draws = Minibatches(rows, self.batch.keys[rows], self.batch.places[rows], k)
        chosen = models if len(rows) == len(models) else models[torch.from_numpy(rows)]
        return self.batch.problem.grad(chosen, draws).contiguous().numpy().reshape(-1)

    # --- one run ---------------------------------------------------------------------------------
    def _span(self, run: int) -> tuple[int, int]:
        """The first client of a run, and the end."""
        return int(self.batch.starts[run]), int(self.batch.starts[run + 1])

    def _coefficients(self, run: int, rounds: _Rounds) -> Coefficients:
        from spodgt.kernels.run_program import Coefficients

        low, high = self._span(run)
        masks = _own(rounds.masks[:, :, low:high])
        return Coefficients(_own(rounds.factors[:, :, low:high]), masks, np.asarray(masks.any(2)))

    def _links(self, run: int, rounds: _Rounds) -> RunLinks:
        from spodgt.kernels.run_program import RunLinks

        low, high = self._span(run)
        pointers = self.batch.links.pointers[low : high + 1]
        first, last = pointers[0], pointers[-1]
        senders = self.batch.links.senders[first:last] - low
        weights = _own(rounds.weights[:, :, first:last])
        return RunLinks(pointers - first, senders, weights, _own(rounds.active[:, :, first:last]))

    def _draws(self, run: int, rounds: _Rounds, stride: int) -> Draws:
        from spodgt.kernels.run_program import Draws
        from spodgt.problems.gradients.linear_model import chunk_length

        low, high = self._span(run)
        sizes = self.batch_sizes[low:high]
        chunks = np.array([chunk_length(stride, size) for size in sizes.tolist()], np.int64)
        keys, places = self.batch.keys[low:high], self.batch.places[low:high]
        return Draws(np.arange(low, high), keys, places, sizes, chunks, rounds.activity.first)

    def _run_memory(self, run: int, shape: tuple[int, int], data: LinearData) -> tuple[RunMemory, Scratch]:
        """Memory of a run of a linear model, with padded rows; kept for the next call."""
        from spodgt.kernels.run_program import Registers, RunMemory, memory_size
        from spodgt.problems.gradients.linear_model import Scratch, aligned_zeros

        if run not in self.run_memories:
            low, high = self._span(run)
            dtype = self._dtype
            numbers = aligned_zeros(memory_size(self._operations, shape, 1), dtype)
            registers = Registers.create(self._operations, shape, 0, 0)
            memory = RunMemory.create(numbers, registers, high - low, self._link_count(run))
            scratch = Scratch.create(data, int(self.batch_sizes[low:high].max()), dtype)
            self.run_memories[run] = memory, scratch
        return self.run_memories[run]

    def _batch_memory(self, run: int) -> RunMemory:
        """Memory of a run in that of the batch."""
        from spodgt.kernels.run_program import Registers, RunMemory

        assert self.memory is not None
        low, high = self._span(run)
        shape = len(self.batch.p), self.batch.problem.parameters
        registers = Registers.create(self._operations, shape, low, run)
        return RunMemory.create(self.memory.numpy(), registers, high - low, self._link_count(run))

    def _link_count(self, run: int) -> int:
        low, high = self._span(run)
        return int(self.batch.links.pointers[high] - self.batch.links.pointers[low])

    # --- the program and its memory --------------------------------------------------------------
    @property
    def _program(self) -> Program:
        assert self.tables is not None
        return self.tables.program

    def _trace(self, state: State) -> bool:
        """Write the step down as a program, from the first state; False where it is not linear."""
        if self.tables is None and self.is_linear:
            try:
                program = trace(fixed(self.algorithm, STEP_SIZE), state)
                self.tables = CoefficientTables(self.batch, self.algorithm, program)
            except NotLinear:
                self.is_linear = False
        return self.is_linear

    @cached_property
    def _operations(self) -> Operations:
        from spodgt.kernels.run_program import KINDS, Operations

        program = self._program
        mixes = np.zeros(KINDS, bool)
        mixes[[weights for weights, is_wide in program.mixed if is_wide]] = True
        sizes = program.at, program.kept, program.working, program.rows
        columns = columns_per_block(max(self.batch.sizes))
        return Operations(program.before, program.after, program.terms, mixes, *sizes, columns)

    @property
    def _dtype(self) -> np.dtype[np.generic]:
        return self.batch.p.numpy().dtype

    def _load(self, state: State) -> dict[str, Tensor]:
        """The fields of the state that are whole rows, in memory of this object."""
        from spodgt.kernels.run_program import memory_size

        program = self._program
        clients, width = state[0].shape
        if self.memory is None:
            size = len(program.fields) * clients * width
            if self.data is None:
                size = memory_size(self._operations, (clients, width), len(self.batch.sizes))
            self.memory = state[0].new_empty(size)
        fields = {}
        given = dict(zip(self.algorithm.traits.state, state, strict=True))
        for name, register in zip(program.fields, self._registers(), strict=False):
            if register.data_ptr() != given[name].data_ptr():
                register.copy_(given[name])
            fields[name] = register
        return fields

    def _registers(self) -> Tensor:
        """(registers, clients, parameters) those that hold whole rows, the fields of the state first."""
        assert self.memory is not None
        count = self._program.kept if self.data is None else len(self._program.fields)
        shape = count, len(self.batch.p), self.batch.problem.parameters
        return self.memory[: count * shape[1] * shape[2]].view(shape)


@dataclass(frozen=True, eq=False)
class _Rounds:
    """Some rounds of the whole batch."""

    activity: Activity
    factors: Array  # (rounds or 1, coefficients, clients)
    masks: Bools  # (rounds, masks, clients)
    weights: Floats  # (kinds, rounds or 1, links)
    active: Bools  # (1 or 2, rounds, links)


def _own(array: Array) -> Array:
    """The same in contiguous memory that may be written to: numba compiles anew for other arrays."""
    return np.require(array, requirements=["C", "W"])
