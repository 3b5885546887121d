"""Rounds in compiled loops, for linear models and steps that are linear in the state.

A method declares this by `Traits.compiled`. Its step is traced once (`program.trace`); loops then run
the program, many rounds in one call. The plain equivalent is the method's own `step`, which is used
otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.compose.schedules import with_fixed_rate
from spodgt.engine import fits_loops
from spodgt.kernels.coefficients import STEP_SIZE, CoefficientTables, active_masks
from spodgt.kernels.links import columns_per_block
from spodgt.kernels.program import MATRICES, Program, trace
from spodgt.kernels.steps import Activity, Batch, State, rebuild
from spodgt.kernels.tracing import PUSH, NotLinear
from spodgt.problems.protocols import CompiledGradient, LinearData
from spodgt.thread_pool import run_tasks
from spodgt.types import Array, Bools, Floats, Ints

if TYPE_CHECKING:
    from spodgt.kernels.run_program import Operations

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
    runs: Sequence[CompiledRun] = ()  # as well
    fields: Tensor | None = None  # (fields, clients, parameters) of the state
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
        if not fits_loops(*state):
            return None
        if self.tables is None and self.is_linear:
            self._trace(state)
        if self.tables is None:
            return None
        names = self.algorithm.traits.state
        fields = self._load(state, self.tables.program)
        given = dict(zip(names, state, strict=True))
        narrow = {name: given[name] for name in self.tables.program.narrow}
        factors, masks, narrow = self.tables.evaluate(activity, narrow)
        weights = self.tables.weights(activity)
        active = active_masks(activity)
        rounds = _Rounds(activity.first, factors, masks, weights, active)
        self._advance_runs(rounds)
        after = {**fields, **narrow}
        return rebuild(state, [after[name] for name in names])

    def _trace(self, state: State) -> None:
        """Trace the step with the first state, and prepare the runs."""
        try:
            program = trace(with_fixed_rate(self.algorithm, STEP_SIZE), state)
        except NotLinear:
            self.is_linear = False
            return
        operations = _operations(program, max(self.batch.sizes))
        self.tables = CoefficientTables(self.batch, self.algorithm, program)
        self.runs = [
            CompiledRun(run, self.batch, self.data, self.batch_sizes, operations)
            for run in range(len(self.batch.sizes))
        ]

    def _load(self, state: State, program: Program) -> dict[str, Tensor]:
        """Copy the fields of the state that are whole rows into memory of this object."""
        names = program.fields
        if self.fields is None:
            self.fields = state[0].new_empty(len(names), *state[0].shape)
        given = dict(zip(self.algorithm.traits.state, state, strict=True))
        fields = dict(zip(names, self.fields, strict=True))
        for name, memory in fields.items():
            if memory.data_ptr() != given[name].data_ptr():
                memory.copy_(given[name])
        return fields

    def _advance_runs(self, rounds: _Rounds) -> None:
        """Advance all runs, one task for each."""
        assert self.fields is not None
        count, clients, parameters = self.fields.shape
        fields = self.fields.numpy().reshape(-1)
        first_rows = np.arange(count) * clients

        def advance(run: int) -> None:
            self.runs[run].advance(fields, first_rows, parameters, rounds)

        run_tasks(advance, range(len(self.runs)), fields.size * len(rounds.masks))


class CompiledRun:
    """One run of a batch: its clients, links and memory, prepared once for many rounds.

    Args:
        run: Its number in the batch.
        batch: All runs.
        data: The linear model.
        batch_sizes: (clients of the batch,) samples of a mini-batch.
        operations: The program of a round.
    """

    def __init__(
        self, run: int, batch: Batch, data: LinearData, batch_sizes: Ints, operations: Operations
    ) -> None:
        from spodgt.kernels.run_program import Draws, RunMemory
        from spodgt.problems.gradients.linear_model import Scratch, chunk_length, padded_stride

        dtype = batch.p.numpy().dtype
        self.data = data
        self.operations = operations
        self.stride = padded_stride(data, dtype)
        self.first = int(batch.starts[run])  # client of the batch
        self.end = int(batch.starts[run + 1])
        clients = slice(self.first, self.end)
        pointers = batch.links.pointers[self.first : self.end + 1]
        self.links = slice(pointers[0], pointers[-1])
        self.pointers = pointers - pointers[0]
        self.senders = batch.links.senders[self.links] - self.first
        sizes = batch_sizes[clients]
        self.draws = Draws(
            rows=np.arange(self.first, self.end),
            keys=batch.keys[clients],
            client_index=batch.client_index[clients],
            batch_sizes=sizes,
            chunks=np.array([chunk_length(self.stride, n) for n in sizes.tolist()], np.int64),
            first_round=0,
        )
        shape = self.end - self.first, data.classes * self.stride
        self.memory = RunMemory.create(operations, shape, len(self.senders), dtype)
        self.scratch = Scratch.create(data, int(sizes.max()), dtype)

    def advance(self, fields: Array, first_rows: Ints, parameters: int, rounds: _Rounds) -> None:
        """Advance the fields of this run by some rounds, in place.

        Args:
            fields: All fields of all clients of the batch, flat.
            first_rows: (fields,) the row with which each field begins.
            parameters: Numbers of a row.
            rounds: Of the batch.
        """
        from spodgt.kernels.run_program import Coefficients, RunLinks, advance_run

        clients = slice(self.first, self.end)
        masks = _contiguous(rounds.masks[:, :, clients])
        factors = _contiguous(rounds.factors[:, :, clients])
        weights = _contiguous(rounds.weights[:, :, self.links])
        active = _contiguous(rounds.active[:, :, self.links])
        advance_run(
            fields,
            (first_rows + self.first) * parameters,
            self.memory,
            self.operations,
            Coefficients(factors, masks, np.asarray(masks.any(2))),
            RunLinks(self.pointers, self.senders, weights, active),
            self.draws._replace(first_round=rounds.first),
            self.data,
            self.stride,
            self.scratch,
        )


@dataclass(frozen=True, eq=False)
class _Rounds:
    """Inputs of some rounds, for the whole batch."""

    first: int  # number of the first round
    factors: Array  # (rounds, coefficients, clients)
    masks: Bools  # (rounds, masks, clients)
    weights: Floats  # (matrices, rounds or 1, links)
    active: Bools  # (1 or 2, rounds, links)


def _operations(program: Program, clients: int) -> Operations:
    """A program as loops read it, for runs with up to so many clients."""
    from spodgt.kernels.run_program import Operations

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
        columns_per_block(clients),
    )


def _contiguous(array: Array) -> Array:
    """The same in contiguous writable memory: numba would compile again for other arrays."""
    return np.require(array, requirements=["C", "W"])
