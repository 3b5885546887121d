"""Rounds in compiled loops, for linear models and steps that are linear in the state.

A method declares this by `Traits.compiled`. Its step is traced once (`program.trace`); loops then run
the program, many rounds in one call. The plain equivalent is the method's own `step`, which is used
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.compose.schedules import with_fixed_rate
from spodgt.engine import fits_loops
from spodgt.kernels.coefficients import STEP_SIZE, CoefficientTables
from spodgt.kernels.links import BatchLinks, columns_per_block
from spodgt.kernels.program import MATRICES, Program, trace
from spodgt.kernels.steps import Activity, Batch, State, rebuild
from spodgt.kernels.tracing import PUSH, NotLinear
from spodgt.problems.protocols import CompiledGradient, LinearData
from spodgt.thread_pool import run_tasks
from spodgt.types import Array, Bools, Floats, Ints

if TYPE_CHECKING:
    from spodgt.kernels.run_program import Coefficients, Draws, Operations, RunLinks, RunMemory
    from spodgt.problems.gradients.linear_model import Scratch

_MAX_STATE = 2**27  # numbers of a state that is copied into the memory of its runs, at most


@dataclass(eq=False)
class CompiledRounds:
    """The rounds of one method in a batch of runs of a linear model; states are changed in place.

    Args:
        batch: The runs.
        algorithm: Their method.
        data: The linear model.
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
        """The compiled rounds of a batch; None if the method or the problem has none."""
        if algorithm.traits.compiled is None or not fits_loops(batch.p):
            return None
        problem = batch.problem
        if not isinstance(problem, CompiledGradient):
            return None
        data = problem.linear_data(batch.p.dtype)
        if data is None or len(batch.p) * problem.parameters > _MAX_STATE:
            return None
        return cls(batch, algorithm, data, problem.batches(np.arange(len(batch.p))))

    @property
    def message_sizes(self) -> tuple[int, int]:
        """Numbers that a link carries in a round by pull or gossip, and by push."""
        assert self.tables is not None
        pulled = 0
        pushed = 0
        for matrix, is_wide in self.tables.program.mixed:
            size = self.batch.problem.parameters if is_wide else 1
            if matrix == PUSH:
                pushed += size
            else:
                pulled += size
        return pulled, pushed

    def advance(self, state: State, activity: Activity) -> State | None:
        """The state after these rounds; None if the method's own step is needed."""
        if not fits_loops(*state) or not self._trace(state):
            return None
        assert self.tables is not None
        program = self.tables.program
        names = self.algorithm.traits.state
        fields = self._load(state)
        given = dict(zip(names, state, strict=True))
        narrow = {name: given[name] for name in program.narrow}
        factors, masks, narrow = self.tables.evaluate(activity, narrow)
        weights = self.tables.weights(activity)
        self._advance_runs(_Rounds(activity, factors, masks, weights, self.tables.active(activity)))
        after = {**fields, **narrow}
        return rebuild(state, [after[name] for name in names])

    def _advance_runs(self, rounds: _Rounds) -> None:
        """Advance all runs, one task for each."""
        from spodgt.kernels.run_program import advance_run
        from spodgt.problems.gradients.linear_model import padded_stride

        assert self.fields is not None
        fields = self.fields.numpy().reshape(-1)
        parameters = self.batch.problem.parameters
        stride = padded_stride(self.data, fields.dtype)

        def advance(run: int) -> None:
            low, high = self._span(run)
            starts = (np.arange(len(self._program.fields)) * len(self.batch.p) + low) * parameters
            memory, scratch = self._run_memory(run, stride)
            coefficients = rounds.coefficients(low, high)
            links = rounds.links(self.batch.links, low, high)
            draws = self._draws(run, rounds, stride)
            advance_run(
                fields,
                starts,
                memory,
                self._operations,
                coefficients,
                links,
                draws,
                self.data,
                stride,
                scratch,
            )

        run_tasks(advance, range(len(self.batch.sizes)), fields.size * len(rounds.activity.cost))

    # --- one run ---------------------------------------------------------------------------------
    def _span(self, run: int) -> tuple[int, int]:
        """The first client of a run, and the first of the next."""
        return int(self.batch.starts[run]), int(self.batch.starts[run + 1])

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
        """Memory of a run, with padded rows; reused by the next call."""
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
        """Trace the step with the first state; returns whether it is linear."""
        if self.tables is None and self.is_linear:
            try:
                program = trace(with_fixed_rate(self.algorithm, STEP_SIZE), state)
                self.tables = CoefficientTables(self.batch, self.algorithm, program)
            except NotLinear:
                self.is_linear = False
        return self.is_linear

    @cached_property
    def _operations(self) -> Operations:
        from spodgt.kernels.run_program import Operations

        program = self._program
        uses_matrix = np.zeros(len(MATRICES), bool)
        for matrix, is_wide in program.mixed:
            uses_matrix[matrix] |= is_wide
        return Operations(
            program.before,
            program.after,
            program.terms,
            uses_matrix,
            program.gradient_at,
            program.lasting,
            program.blocks,
            program.rows,
            columns_per_block(max(self.batch.sizes)),
        )

    def _load(self, state: State) -> dict[str, Tensor]:
        """Copy the fields of the state that are whole rows into memory of this object."""
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
    """Inputs of some rounds, for the whole batch."""

    activity: Activity
    factors: Array  # (rounds or 1, coefficients, clients)
    masks: Bools  # (rounds, masks, clients)
    weights: Floats  # (matrices, rounds or 1, links)
    active: Bools  # (1 or 2, rounds, links)

    def coefficients(self, low: int, high: int) -> Coefficients:
        """Coefficients and masks of the clients of a run, from `low` to `high`."""
        from spodgt.kernels.run_program import Coefficients

        factors = _contiguous(self.factors[:, :, low:high])
        masks = _contiguous(self.masks[:, :, low:high])
        return Coefficients(factors, masks, np.asarray(masks.any(2)))

    def links(self, links: BatchLinks, low: int, high: int) -> RunLinks:
        """The links of the clients of a run, from `low` to `high`."""
        from spodgt.kernels.run_program import RunLinks

        pointers = links.pointers[low : high + 1]
        first = pointers[0]
        last = pointers[-1]
        return RunLinks(
            pointers - first,
            links.senders[first:last] - low,
            _contiguous(self.weights[:, :, first:last]),
            _contiguous(self.active[:, :, first:last]),
        )


def _contiguous(array: Array) -> Array:
    """The same in contiguous writable memory: numba would compile again for other arrays."""
    return np.require(array, requirements=["C", "W"])
