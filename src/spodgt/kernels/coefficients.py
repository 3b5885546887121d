"""Coefficients and conditions of a program, one number per client, evaluated for some rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, HasStepSize, LocalSteps, Schedule
from spodgt.algorithms.compose.schedules import rate_at
from spodgt.algorithms.compose.wrapper import Wrapper
from spodgt.kernels.program import WEIGHTS, Program
from spodgt.kernels.steps import Activity, Batch
from spodgt.kernels.tracing import Column, Given
from spodgt.types import Array, Bools, Floats

STEP_SIZE = Column("input", ("step_size",))
_CHANGING = ("step_weight", "computes", "reset_tracker")  # inputs that differ between rounds


def _parts(column: Column) -> list[Column]:
    """The column and all columns that it is made of."""
    parts = [column]
    for argument in column.args:
        if isinstance(argument, Column):
            parts += _parts(argument)
    return parts


def _changes(column: Column) -> bool:
    """Whether one of these columns differs between rounds by itself."""
    return column.op in ("every", "field", "mix") or (
        column.op == "input" and column.args[0] in _CHANGING
    )


@dataclass(eq=False)
class CoefficientTables:
    """Evaluates the columns of `program` for the clients of a batch."""

    batch: Batch
    algorithm: Algorithm
    program: Program
    constant: Array | None = None  # coefficients that are the same in all rounds

    def __post_init__(self) -> None:
        program = self.program
        parts = []
        for column in (*program.coefficients, *program.narrow.values()):
            parts += _parts(column)
        self.rate = self.algorithm.step_size if isinstance(self.algorithm, HasStepSize) else None
        has_schedule = STEP_SIZE in parts and isinstance(self.rate, Schedule)
        self.is_constant = not has_schedule and not any(map(_changes, parts))
        self.kind: np.dtype[np.floating] = torch.empty(0, dtype=self.batch.p.dtype).numpy().dtype

    def evaluate(
        self, activity: Activity, state: Mapping[str, Tensor]
    ) -> tuple[Array, Bools, dict[str, Tensor]]:
        """The numbers and conditions of these rounds.

        Returns:
            (rounds or 1, coefficients, clients) coefficients; (rounds, masks, clients) conditions; the
            narrow fields after these rounds.
        """
        inputs = self._inputs(activity)
        masks = self._masks(activity, inputs)
        after: dict[str, Tensor] = {}
        if self.constant is not None:
            factors = self.constant
        elif self.program.narrow:
            factors, after = self._one_by_one(activity, inputs, state)
        else:
            factors = self._factors(activity, inputs)
            self.constant = factors if self.is_constant else None
        return factors, masks, after

    def _masks(self, activity: Activity, inputs: dict[str, Array]) -> Bools:
        """(rounds, masks, clients): the first one tells which clients compute."""
        computes = activity.computes[1:]
        masks = [computes]
        for column in self.program.masks[1:]:
            masks.append(np.broadcast_to(self._value(column, inputs) != 0, computes.shape))
        return np.stack(masks, 1)

    def _factors(self, activity: Activity, inputs: dict[str, Array]) -> Array:
        """(rounds or 1, coefficients, clients)."""
        shape = 1 if self.is_constant else len(activity.cost), len(self.batch.p)
        values = [np.broadcast_to(self._value(c, inputs), shape) for c in self.program.coefficients]
        return np.stack(values, 1).astype(self.kind)

    def _one_by_one(
        self, activity: Activity, inputs: dict[str, Array], state: Mapping[str, Tensor]
    ) -> tuple[Array, dict[str, Tensor]]:
        now = {name: tensor.numpy()[:, 0].astype(np.float64) for name, tensor in state.items()}
        factors = np.empty(
            (len(activity.cost), len(self.program.coefficients), len(self.batch.p)), self.kind
        )
        weights, active = self.weights(activity), self.active(activity)
        for r in range(len(activity.cost)):
            here = {name: value[min(r, len(value) - 1)] for name, value in inputs.items()}
            here |= {"field " + name: value for name, value in now.items()}
            here |= {
                f"mix {n}": w[min(r, len(w) - 1)] * active[-1 if n == 1 else 0, r]
                for n, w in enumerate(weights)
            }
            for n, column in enumerate(self.program.coefficients):
                factors[r, n] = self._value(column, here)
            now = {
                n: self._value(c, here).astype(self.kind).astype(np.float64)
                for n, c in self.program.narrow.items()
            }
        return factors, {
            n: torch.from_numpy(value.astype(self.kind)[:, None]) for n, value in now.items()
        }

    def _inputs(self, activity: Activity) -> dict[str, Array]:
        """(rounds or 1, clients) by name."""
        roles, clients = activity.roles, len(self.batch.p)
        ones = np.ones((1, clients))
        found = {
            "p": self.batch.p.double().numpy().T,
            "computes": activity.computes[1:],
            "step_weight": ones if roles is None else roles.step_weight,
            "reset_tracker": 0 * ones if roles is None else roles.reset_tracker,
            "k": np.asarray(activity.rounds)[:, None],
        }
        if self.constant is None and self.rate is not None:
            found["step_size"] = self._rates(activity)
        return found

    def _rates(self, activity: Activity) -> Floats:
        if isinstance(self.rate, Schedule):
            K = (
                self.algorithm.local_steps
                if isinstance(self.algorithm, LocalSteps | Wrapper)
                else None
            )
            each = [rate_at(self.rate, k, K) for k in activity.rounds]
        else:
            assert self.rate is not None
            each = [self.rate]
        rows = [
            torch.as_tensor(rate, dtype=self.batch.p.dtype).double().reshape(1, -1).numpy()
            for rate in each
        ]
        return np.concatenate([np.broadcast_to(row, (1, len(self.batch.p))) for row in rows])

    def _value(self, column: Column, here: Mapping[str, Array]) -> Array:
        op, args = column.op, column.args
        if op == "const":
            return np.asarray(self.kind.type(args[0]), np.float64)
        if op == "given":
            return np.asarray(args[0].tensor.to(self.batch.p.dtype).double().numpy().T[0])
        if op == "input":
            return here[args[0]]
        if op == "every":
            K = args[0].tensor.numpy().T[0] if isinstance(args[0], Given) else args[0]
            return np.asarray(here["k"] % K == 0)
        if op == "field":
            return here["field " + args[0]]
        if op == "mix":
            return self._mixed(self._value(args[1], here), args[0], here[f"mix {args[0]}"])
        values = [self._value(each, here) for each in args]
        if op == "where":
            return np.where(values[0], values[1], values[2])
        with np.errstate(all="ignore"):  # 1/p of a client that never computes is never used
            return _CALCULATE[op](*values)

    def _mixed(self, values: Floats, which: int, moved: Floats) -> Floats:
        links, clients = self.batch.links, len(self.batch.p)
        keeper = links.senders if which == 1 else links.receivers
        kept = 1 - np.bincount(keeper, moved, minlength=clients)
        values = np.broadcast_to(values, (clients,))
        return kept * values + np.bincount(
            links.receivers, moved * values[links.senders], minlength=clients
        )

    def weights(self, activity: Activity) -> Floats:
        """(kinds, rounds or 1, links): a, b and, where links are two-way, w."""
        if activity.roles is not None:
            return self._rounded(np.stack([activity.roles.a, activity.roles.b]))
        return self._fixed_weights

    @cached_property
    def _fixed_weights(self) -> Floats:
        given = [self.batch.weights[name][None] for name in WEIGHTS if name in self.batch.weights]
        return self._rounded(np.stack(given))

    def _rounded(self, weights: Floats) -> Floats:
        """In the precision of the models: what a client keeps is the rest of what it really sends."""
        return weights.astype(self.kind).astype(np.float64)

    def active(self, activity: Activity) -> Bools:
        """(1, rounds, links), or (2, rounds, links) where pulls and pushes have links of their own."""
        pull, push = activity.links
        if push is not None:
            return np.stack([pull, push])
        return pull[None]


_CALCULATE = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
