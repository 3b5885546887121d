"""The rounds of a method in compiled loops: linear models, and steps that are linear in the state.

A method declares this by `Traits.compiled`. Its step is traced once (`program.trace`); loops then run
the program, many rounds in one call. The plain equivalent is the method's own `step`, which runs
everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.compose.schedules import with_fixed_rate
from spodgt.engine import fits_loops
from spodgt.kernels.coefficients import STEP_SIZE, CoefficientTables
from spodgt.kernels.links import columns_per_block
from spodgt.kernels.program import Program, trace
from spodgt.kernels.steps import Activity, Batch, State, rebuild
from spodgt.kernels.tracing import NotLinear
from spodgt.problems.protocols import CompiledGradient, LinearData
from spodgt.thread_pool import run_tasks
from spodgt.types import Array, Bools, Floats, Ints

if TYPE_CHECKING:
    from spodgt.kernels.run_program import Coefficients, Draws, Operations, RunLinks, RunMemory
    from spodgt.problems.gradients.linear_model import Scratch

_COPIED = 2**27  # numbers of a state at most that is copied into the memory of its runs


@dataclass(eq=False)
class CompiledRounds:
    """The rounds of one method in a batch of runs of a linear model; it writes into the state it is given.

    Args:
        batch: the runs.
        algorithm: their method.
        data: the problem as loops read it.
        batch_sizes: (clients,) samples of a mini-batch.
    """

    batch: Batch
    algorithm: Algorithm
    data: LinearData
    batch_sizes: Ints
    tables: CoefficientTables | None = None  # once a state has been traced
    fields: Tensor | None = None  # (fields, clients, parameters) of the state
    run_memories: dict[int, tuple[RunMemory, Scratch]] = field(default_factory=dict)
    is_linear: bool = True  # False once tracing has failed

    @classmethod
    def create(cls, algorithm: Algorithm, batch: Batch) -> CompiledRounds | None:
        """The compiled rounds of a method that declares them; None where they do not apply."""
        if algorithm.traits.compiled is None or not fits_loops(batch.p):
            return None
        problem = batch.problem
        if not isinstance(problem, CompiledGradient):
            return None
        data = problem.linear_data(batch.p.dtype)
        if data is None or len(batch.p) * problem.parameters > _COPIED:
            return None
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
        narrow = {
            name: tensor
            for name, tensor in zip(names, state, strict=True)
            if name in program.narrow
        }
        factors, masks, narrow = self.tables.evaluate(activity, narrow)
        weights = self.tables.weights(activity)
        self._advance_runs(_Rounds(activity, factors, masks, weights, self.tables.active(activity)))
        after: Mapping[str, Tensor] = fields | narrow
        return rebuild(state, [after[name] for name in names])

    def _advance_runs(self, rounds: _Rounds) -> None:
        """All rounds, one task for each run."""
        from spodgt.kernels.run_program import advance_run
        from spodgt.problems.gradients.linear_model import padded_stride

        assert self.fields is not None
        fields = self.fields.numpy().reshape(-1)
        parameters = self.batch.problem.parameters
        stride = padded_stride(self.data, fields.dtype)

        def advance(run: int) -> None:
            low = self._span(run)[0]
            starts = (np.arange(len(self._program.fields)) * len(self.batch.p) + low) * parameters
            memory, scratch = self._run_memory(run, stride)
            coefficients = self._coefficients(run, rounds)
            links = self._links(run, rounds)
            draws = self._draws(run, rounds, stride)
            inputs = coefficients, links, draws, self.data, stride, scratch
            advance_run(fields, starts, memory, self._operations, *inputs)

        run_tasks(advance, range(len(self.batch.sizes)), fields.size * len(rounds.activity.cost))

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
        keys = self.batch.keys[low:high]
        client_index = self.batch.client_index[low:high]
        return Draws(np.arange(low, high), keys, client_index, sizes, chunks, rounds.activity.first)

    def _run_memory(self, run: int, stride: int) -> tuple[RunMemory, Scratch]:
        """Memory of a run, with padded rows; kept for the next call."""
        from spodgt.kernels.run_program import RunMemory
        from spodgt.problems.gradients.linear_model import Scratch

        if run not in self.run_memories:
            low, high = self._span(run)
            pointers = self.batch.links.pointers
            dtype = self.batch.p.numpy().dtype
            shape = high - low, self.data.classes * stride
            memory = RunMemory.create(
                self._operations, shape, int(pointers[high] - pointers[low]), dtype
            )
            scratch = Scratch.create(self.data, int(self.batch_sizes[low:high].max()), dtype)
            self.run_memories[run] = memory, scratch
        return self.run_memories[run]

    # --- the program -------------------------------------------------------------------------------
    @property
    def _program(self) -> Program:
        assert self.tables is not None
        return self.tables.program

    def _trace(self, state: State) -> bool:
        """Write the step down as a program, from the first state; False where it is not linear."""
        if self.tables is None and self.is_linear:
            try:
                program = trace(with_fixed_rate(self.algorithm, STEP_SIZE), state)
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

    def _load(self, state: State) -> dict[str, Tensor]:
        """The fields of the state that are whole rows, in memory of this object."""
        names = self._program.fields
        if self.fields is None:
            self.fields = state[0].new_empty(len(names), *state[0].shape)
        given = dict(zip(self.algorithm.traits.state, state, strict=True))
        fields = dict(zip(names, self.fields, strict=True))
        for name, memory in fields.items():
            if memory.data_ptr() != given[name].data_ptr():
                memory.copy_(given[name])
        return fields


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
