"""Coefficients and masks of a program, one number per client, evaluated for some rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, HasStepSize, LocalSteps, Rate, Schedule
from spodgt.algorithms.compose.schedules import rate_at
from spodgt.algorithms.compose.wrapper import Wrapper
from spodgt.kernels.program import MATRICES, Program
from spodgt.kernels.steps import Activity, Batch
from spodgt.kernels.tracing import PUSH, ClientValues, Column
from spodgt.types import Array, Bools, Floats

STEP_SIZE = Column("input", ("step_size",))
_ARITHMETIC = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Values that columns are evaluated with, of some rounds or of one."""

    members: Mapping[str, Array]  # of the round: (rounds or 1, clients), or (clients,)
    fields: Mapping[str, Floats] = field(default_factory=dict)  # (clients,) narrow fields
    weights: Sequence[Floats] = ()  # (links,) of each matrix, zero for inactive links


@dataclass(eq=False)
class CoefficientTables:
    """Evaluates the columns of `program` for the clients of a batch."""

    batch: Batch
    algorithm: Algorithm
    program: Program

    @cached_property
    def dtype(self) -> np.dtype[np.floating]:
        """Of the models."""
        return torch.empty(0, dtype=self.batch.p.dtype).numpy().dtype

    def evaluate(
        self, activity: Activity, narrow: Mapping[str, Tensor]
    ) -> tuple[Array, Bools, dict[str, Tensor]]:
        """Evaluate the coefficients and masks of some rounds.

        Args:
            activity: The rounds.
            narrow: State fields with one number per client, before these rounds.

        Returns:
            (rounds, coefficients, clients) coefficients; (rounds, masks, clients) masks; the narrow
            fields after these rounds.
        """
        inputs = _Inputs(self._members(activity))
        masks = self._masks(activity, inputs)
        if self.program.narrow:
            factors, after = self._round_by_round(activity, inputs, narrow)
            return factors, masks, after
        return self._factors(activity, inputs), masks, {}

    def _masks(self, activity: Activity, inputs: _Inputs) -> Bools:
        """(rounds, masks, clients): the first one is the active clients."""
        computes = activity.computes[1:]
        masks = [computes]
        for column in self.program.masks[1:]:
            masks.append(np.broadcast_to(self._value(column, inputs) != 0, computes.shape))
        return np.stack(masks, 1)

    def _factors(self, activity: Activity, inputs: _Inputs) -> Array:
        """(rounds, coefficients, clients)."""
        shape = (len(activity.cost), len(self.batch.p))
        values = [np.broadcast_to(self._value(c, inputs), shape) for c in self.program.coefficients]
        return np.stack(values, 1).astype(self.dtype)

    def _round_by_round(
        self, activity: Activity, inputs: _Inputs, narrow: Mapping[str, Tensor]
    ) -> tuple[Array, dict[str, Tensor]]:
        """Coefficients that depend on narrow fields, and these fields after the rounds."""
        rounds = len(activity.cost)
        fields = {name: tensor.numpy()[:, 0].astype(np.float64) for name, tensor in narrow.items()}
        factors = np.empty((rounds, len(self.program.coefficients), len(self.batch.p)), self.dtype)
        weights = self.weights(activity)
        active = active_masks(activity)
        for r in range(rounds):
            members = {name: _of_round(values, r) for name, values in inputs.members.items()}
            here = _Inputs(members, fields, _active_weights(weights, active, r))
            for number, column in enumerate(self.program.coefficients):
                factors[r, number] = self._value(column, here)
            fields = {
                name: self._round(self._value(column, here))
                for name, column in self.program.narrow.items()
            }
        after = {}
        for name, values in fields.items():
            after[name] = torch.from_numpy(values.astype(self.dtype)[:, None])
        return factors, after

    def _members(self, activity: Activity) -> dict[str, Array]:
        """(rounds or 1, clients) by name."""
        roles = activity.roles
        ones = np.ones((1, len(self.batch.p)))
        members = {
            "p": self.batch.p.double().numpy().T,
            "computes": activity.computes[1:],
            "step_weight": ones if roles is None else roles.step_weight,
            "reset_tracker": 0 * ones if roles is None else roles.reset_tracker,
            "k": np.asarray(activity.rounds)[:, None],
        }
        rate = self.algorithm.step_size if isinstance(self.algorithm, HasStepSize) else None
        if rate is not None:
            members["step_size"] = self._step_sizes(activity, rate)
        return members

    def _step_sizes(self, activity: Activity, rate: Rate) -> Floats:
        """(rounds or 1, clients)."""
        rates = [rate]
        if isinstance(rate, Schedule):
            K = None
            if isinstance(self.algorithm, LocalSteps | Wrapper):
                K = self.algorithm.local_steps
            rates = [rate_at(rate, k, K) for k in activity.rounds]
        rows = []
        for step_sizes in rates:
            row = torch.as_tensor(step_sizes, dtype=self.batch.p.dtype).double().reshape(1, -1)
            rows.append(np.broadcast_to(row.numpy(), (1, len(self.batch.p))))
        return np.concatenate(rows)

    def _value(self, column: Column, inputs: _Inputs) -> Array:
        """The numbers of a column."""
        op = column.op
        first = column.args[0]
        if op == "const":
            return np.asarray(self.dtype.type(first), np.float64)
        if op == "given":
            return np.asarray(first.tensor.to(self.batch.p.dtype).double().numpy().T[0])
        if op == "input":
            return inputs.members[first]
        if op == "every":
            K = first.tensor.numpy().T[0] if isinstance(first, ClientValues) else first
            return np.asarray(inputs.members["k"] % K == 0)
        if op == "field":
            return inputs.fields[first]
        if op == "mix":
            return self._mix(self._value(column.args[1], inputs), first, inputs.weights[first])
        values = [self._value(argument, inputs) for argument in column.args]
        if op == "where":
            return np.where(*values)
        with np.errstate(all="ignore"):  # 1/p of a client that never computes is not used
            return _ARITHMETIC[op](*values)

    def _mix(self, values: Floats, matrix: int, weights: Floats) -> Floats:
        """The mixing matrix of the active links times one number per client."""
        links = self.batch.links
        clients = len(self.batch.p)
        values = np.broadcast_to(values, (clients,))
        keeper = links.senders if matrix == PUSH else links.receivers
        diagonal = 1 - np.bincount(keeper, weights, minlength=clients)
        received = np.bincount(links.receivers, weights * values[links.senders], minlength=clients)
        return diagonal * values + received

    # --- mixing weights ------------------------------------------------------------------------------
    def weights(self, activity: Activity) -> Floats:
        """(matrices, rounds or 1, links): a, b and, if links are two-way, w."""
        if activity.roles is not None:
            return self._round(np.stack([activity.roles.a, activity.roles.b]))
        return self._fixed_weights

    @cached_property
    def _fixed_weights(self) -> Floats:
        given = [self.batch.weights[name][None] for name in MATRICES if name in self.batch.weights]
        return self._round(np.stack(given))

    def _round(self, values: Floats) -> Floats:
        """Round to the precision of the models, in which weights and narrow fields are stored."""
        return values.astype(self.dtype).astype(np.float64)


def active_masks(activity: Activity) -> Bools:
    """(1, rounds, links), or (2, rounds, links) if pulls and pushes have different links."""
    pull, push = activity.links
    if push is not None:
        return np.stack([pull, push])
    return pull[None]


def _of_round(values: Array, r: int) -> Array:
    """Row r, or the only row of values that are the same in all rounds."""
    return values[min(r, len(values) - 1)]  # type: ignore[no-any-return]


def _active_weights(weights: Floats, active: Bools, r: int) -> list[Floats]:
    """(links,) weights of each matrix in round r, zero for inactive links."""
    result = []
    for matrix, values in enumerate(weights):
        is_active = active[-1 if matrix == PUSH else 0, r]
        result.append(_of_round(values, r) * is_active)
    return result
