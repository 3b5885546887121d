"""Gradient tracking with constant step sizes, computed by the loops of `kernels.event_batches`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, HasStepSize
from spodgt.engine import fits_loops
from spodgt.kernels.steps import State
from spodgt.problems.protocols import CompiledGradient, LinearData
from spodgt.runtimes.batch import MixingMatrix
from spodgt.runtimes.events.activations import ActivationBatch
from spodgt.runtimes.events.batch_arrays import BatchArrays, to_arrays
from spodgt.runtimes.events.batch_messages import RunContext
from spodgt.types import Floats, Minibatches


@dataclass(frozen=True, eq=False)
class TrackingRule:
    """The parameters of a gradient-tracking method with state x, y, g."""

    step_sizes: Floats  # (clients,)
    gradient_weights: Floats  # (clients,) factors of gradients
    drops_idle: bool  # the gradient of an idle client counts as zero

    @staticmethod
    def of(algorithm: Algorithm, p: Floats, like: Tensor) -> TrackingRule | None:
        """The rule of a method; None if compiled loops do not apply.

        Args:
            algorithm: the method.
            p: (clients,) probability that a client computes.
            like: a tensor with the type and the device of the models.
        """
        traits = algorithm.traits
        if traits.compiled != "gradient-tracking" or traits.rule is None or not fits_loops(like):
            return None
        step_size = algorithm.step_size if isinstance(algorithm, HasStepSize) else None
        if traits.uses_stale_models or not isinstance(step_size, int | float | Tensor):
            return None  # `step_size` may be a schedule
        p = torch.from_numpy(p).to(like.dtype).double().numpy()
        step_sizes = np.broadcast_to(np.asarray(step_size, np.float64).reshape(-1), p.shape).copy()
        weights = np.ones(len(p))
        if traits.rule == "importance":  # clients with p = 0 never compute
            np.divide(1, p, out=weights, where=p > 0)
        return TrackingRule(step_sizes, weights, drops_idle=traits.rule != "memory")


@dataclass(eq=False)
class CompiledTracking:
    """Computes batches of activations of gradient tracking, which pushes y, then pulls x."""

    context: RunContext
    rule: TrackingRule
    receivers: Sequence[int]  # of the links

    def compute(self, state: State, batches: Sequence[ActivationBatch]) -> None:
        """Compute consecutive batches, in place."""
        if not batches:
            return
        from spodgt.kernels.event_batches import exchange_batch

        context = self.context
        arrays = to_arrays(
            batches,
            context.pool.update_refcounts,
            self.receivers,
            context.weights[MixingMatrix.PULL],
            context.weights[MixingMatrix.PUSH],
            context.keys,
        )
        inputs = self._loop_inputs(state, arrays)
        weights = self.rule.gradient_weights[arrays.gradients.client]
        if self.linear_data is not None:
            self._advance_linear(inputs, self.linear_data, weights)
        else:
            for number in range(len(batches)):
                exchange_batch(*inputs, number)
                first, end = arrays.offsets.gradients[number : number + 2].tolist()
                order = first + np.argsort(arrays.gradients.client[first:end])
                if len(order):
                    clients = arrays.gradients.client[order]
                    keys = arrays.gradients.key[order]
                    minibatches = Minibatches(clients, keys, clients, 0)
                    self._replace_gradients(state, minibatches, weights[order])
        self._count(arrays, state[0])

    def _loop_inputs(self, state: State, arrays: BatchArrays) -> tuple[object, ...]:
        """The arguments of `exchange_batch`, except the number of the batch."""
        x, y, g = state
        pool = self.context.pool
        pool.push_calls = [0]
        models = pool.buffer(1, x, pool.model_slots.capacity)
        trackers = pool.buffer(0, y, pool.tracker_slots.capacity)
        if len(arrays.deliveries.row) and pool.inbox is None:
            pool.inbox = torch.zeros_like(y)
        inbox = y[:0] if pool.inbox is None else pool.inbox
        return (
            (x.numpy(), y.numpy(), g.numpy()),
            (models.numpy(), trackers.numpy()),
            arrays,
            inbox.numpy(),
            (self.rule.step_sizes, self.rule.drops_idle),
        )

    def _advance_linear(
        self, inputs: tuple[object, ...], linear: LinearMinibatches, weights: Floats
    ) -> None:
        """All batches in one loop, with the gradients of a linear model."""
        from spodgt.kernels.event_batches import advance_batches
        from spodgt.problems.gradients.linear_model import Scratch, chunk_length, padded_stride

        dtype = torch.empty(0, dtype=self.context.dtype).numpy().dtype
        stride = padded_stride(linear.data, dtype)
        scratch = Scratch.create(linear.data, linear.size, dtype)
        chunk = chunk_length(stride, linear.size)
        advance_batches(*inputs, linear.data, stride, (linear.size, chunk), weights, scratch)

    def _replace_gradients(
        self, state: State, minibatches: Minibatches, gradient_weights: Floats
    ) -> None:
        """In place: y ← y + w g⁺ - g and g ← w g⁺ for the clients of the mini-batches."""
        x, y, g = state
        index = torch.from_numpy(minibatches.rows)
        weights = torch.from_numpy(gradient_weights).to(x.dtype)[:, None]
        new = self.context.gradient(x[index], minibatches) * weights
        y[index] += new - g[index]
        g[index] = new

    def _count(self, arrays: BatchArrays, x: Tensor) -> None:
        counts = self.context.counts
        clients = arrays.gradients.client
        messages = np.bincount(arrays.links, minlength=len(counts.messages))
        counts.gradients[:] += np.bincount(clients, minlength=len(counts.gradients))
        counts.messages[:] += messages
        counts.bytes[:] += messages * (2 * x.shape[1] * x.element_size())

    @cached_property
    def linear_data(self) -> LinearMinibatches | None:
        """The data of a linear model, if all clients have mini-batches of the same size."""
        problem = self.context.problem
        if not isinstance(problem, CompiledGradient):
            return None
        data = problem.linear_data(self.context.dtype)
        sizes = np.unique(problem.batches(np.arange(self.context.clients)))
        if data is None or len(sizes) > 1:
            return None
        return LinearMinibatches(data, int(sizes[0]))


@dataclass(frozen=True, eq=False)
class LinearMinibatches:
    """The data of a linear model."""

    data: LinearData
    size: int  # samples of a mini-batch
