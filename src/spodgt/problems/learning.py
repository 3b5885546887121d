"""Any `torch.nn.Module`, any loss, one dataset per client.

A problem is made of a `Trainable` (module, loss, engine) and `ClientData` (samples, who holds which); this
file turns them into gradients, losses and accuracies.

Running statistics (BatchNorm's) are columns behind the parameters in the models a problem is given, and
only there: the round keeps them apart from x, so no method can put them into a tracker or a step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from spodgt import rng
from spodgt.compiled import share, usable
from spodgt.problems.client_data import ClientData
from spodgt.problems.data import Dataset, Partition
from spodgt.problems.gradients import Layout
from spodgt.problems.gradients.linear import LinearEngine, grade, linear_gradients
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.losses import LOSSES, Loss, mass
from spodgt.problems.samples import CHUNK, Holdings, Samples, Source
from spodgt.problems.trainable import Trainable
from spodgt.types import (
    Better,
    CompiledGradient,
    Evaluation,
    Floats,
    HasIdentity,
    HasLayout,
    HasModel,
    HasSamples,
    Ints,
    LinearData,
    Minibatches,
    Problem,
)

_PICTURES = 128  # samples in a block of a deep network: what lies between layers should stay in the cache


class Learning(Problem, HasIdentity, HasLayout, HasModel, HasSamples, CompiledGradient):
    """A model trained by clients that each hold their own data."""

    trained: Trainable
    data: ClientData

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clients: Sequence[Source],
        test: Source | None = None,
        batch_size: int | Sequence[int] | None = 16,
        keep_weights: bool = False,
        same_start: bool = True,
        augment: bool = False,
        buffers: Literal["pull"] | None = None,
    ) -> None:
        """Read the data, try the model on a few samples, and choose how its gradients are computed.

        Args:
            model: any module that maps inputs (batch, …) to outputs (batch, …); it is copied, not changed.
            loss: maps (outputs, targets) to one number, such as `torch.nn.CrossEntropyLoss()`.
            clients: one data set per client: a map-style `torch.utils.data.Dataset` of (input, target)
                pairs, or a pair of tensors (inputs (samples, …), targets (samples, …)). uint8 inputs are
                scaled to [0, 1].
            test: data of the same form that models are evaluated on; None (default): no evaluation.
            batch_size: samples in a mini-batch, one number (default 16) or one per client; a client that
                holds fewer gives all it has. None takes full gradients.
            keep_weights: True starts from the module as it is. By default models start from the module's
                own initialisation, drawn per seed.
            same_start: True (default): all clients start from the same model; False: each draws its own.
            augment: True trains on random crops and mirror images; inputs must be (channels, height, width).
            buffers: "pull" allows a model that keeps running statistics, such as BatchNorm's: each client
                has its own, they are exchanged with its model, and they are never part of a gradient.
                None (default) refuses such a model.
        """
        self.data = ClientData.read(clients, test, batch_size, augment)
        self.trained = Trainable.of(model, loss, self.data, keep_weights, same_start, buffers)

    @classmethod
    def partitioned(
        cls,
        model: nn.Module,
        loss: Loss,
        data: Dataset,
        *,
        clients: int,
        partition: Partition,
        batch_size: int | Sequence[int] | None = 16,
        keep_weights: bool = False,
        same_start: bool = True,
        augment: bool = False,
        buffers: Literal["pull"] | None = None,
    ) -> Learning:
        """One data set divided among clients, anew for every seed.

        Args:
            model: as for `Learning`.
            loss: as for `Learning`.
            data: a data set with a train and a test split, as `spodgt.problems.data.load` gives it.
            clients: how many clients share the train split.
            partition: who gets which samples: `IID()`, `LabelsPerClient(1)`, `Dirichlet(0.5)`, `Explicit(…)`.
            batch_size: as for `Learning`.
            keep_weights: as for `Learning`.
            same_start: as for `Learning`.
            augment: as for `Learning`.
            buffers: as for `Learning`.
        """
        parts = Holdings.of(partition.split(data.train.targets, clients, 0))
        problem = cls.__new__(cls)
        problem.data = ClientData(data.train, parts, data.test, batch_size, augment, partition)
        problem.trained = Trainable.of(model, loss, problem.data, keep_weights, same_start, buffers)
        return problem

    def with_batch_size(self, batch_size: int | Sequence[int] | None) -> Learning:
        """The same problem with other mini-batches; `batch_size` as for `Learning`."""
        return self._with(replace(self.data, batch_size=batch_size))

    def with_holdings(self, holdings: Holdings) -> Learning:
        """The same problem with other clients: each holds the samples given here, for every seed."""
        return self._with(replace(self.data, holdings=holdings, partition=None))

    def _with(self, data: ClientData, trained: Trainable | None = None) -> Learning:
        other = copy.copy(self)
        other.data, other.trained = data, trained or self.trained
        return other

    @property
    def samples(self) -> Samples:
        return self.data.samples

    @property
    def holdings(self) -> Holdings:
        return self.data.holdings

    # --- Problem --------------------------------------------------------------------------------
    @property
    def layout(self) -> Layout:
        """The parameters in a flat model."""
        return self.trained.layout

    @property
    def clients(self) -> int:
        return len(self.holdings)

    @property
    def parameters(self) -> int:
        return self.layout.size

    @property
    def work(self) -> float:
        return float(len(self.holdings.numbers)) * self.trained.cost

    @property
    def identity(self) -> tuple[dict[str, str], list[Tensor | Ints]]:
        data, (model, loss) = self.data, (self.trained.model, self.trained.loss)
        name = loss if isinstance(loss, nn.Module) else getattr(loss, "__name__", "")
        settings = {"batch_size": data.batch_size, "loss": name, "augment": data.augment, "model": model}
        parts = [part for part in (data.samples, data.test) if part is not None]
        arrays = [array for part in parts for array in (part.inputs, part.targets)]
        words = {key: str(value) for key, value in settings.items()}
        return words, [*arrays, self.holdings.numbers, self.holdings.offsets]

    def draw(self, seed: int) -> Learning:
        return self if self.data.partition is None else self._with(self.data.draw(seed))

    def start(self, seed: int) -> Tensor:
        return self.trained.start(seed, self.clients)

    @property
    def metrics(self) -> Mapping[str, Better]:
        classes = self.data.test is not None and not self.samples.targets.is_floating_point()
        return {"accuracy": "up"} if classes else {}

    @property
    def private(self) -> int:
        return 0

    def statistics(self, seed: int) -> Tensor:
        return self.trained.statistics(seed, self.clients)

    def join(self, others: Sequence[Learning]) -> Learning:
        return self._with(self.data.join([other.data for other in others]))

    def to(self, device: torch.device, dtype: torch.dtype) -> Learning:
        return self._with(self.data.to(device), self.trained.to(device, dtype))

    def batches(self, rows: Ints) -> Ints:
        return self.data.batches(rows)

    def sizes(self) -> Ints:
        """(clients,) how many samples each client holds."""
        return self.holdings.sizes

    def labels(self) -> Ints | None:
        """(clients, classes) how many samples of each class a client holds; None without classes."""
        return self.data.labels()

    def state_dict(self, x: Tensor) -> dict[str, Tensor]:
        """All that the module's own `state_dict` has.

        Args:
            x: (columns,) one model, as `start` or a run gives it, with its statistics behind the parameters.
        """
        return self.trained.filled(x).state_dict()

    def module(self, x: Tensor) -> nn.Module:
        """A copy of the given module with this model in it, in evaluation mode on the CPU.

        Args:
            x: (columns,) one model, with its statistics behind the parameters.
        """
        return self.trained.filled(x)

    def grad(self, x: Tensor, batches: Minibatches) -> Tensor:
        self.trained.check_columns(x)
        g = x.new_empty(len(x), self.parameters)  # its pages are taken only where something is written
        if self.grad_into(x, g, None, np.arange(len(x)), batches, np.ones(len(x))):
            return g
        for size, same in self.data.groups(batches.rows):
            _, keys, places, k = some = batches.part(same)
            inputs, targets = self.data.minibatch(some, size, x.device)
            noise = [int(word >> np.uint64(1)) for word in rng.words(keys, k, places, 2**32)]
            models = x[same]
            part = self.trained.engine.grads(models, Samples.scaled(inputs, x.dtype), targets, noise)
            if isinstance(same, slice):  # everyone: `models` is a view of x
                return part
            g[same] = part
            if self.trained.running.names:
                x[same] = models
        return g

    def grad_into(
        self, x: Tensor, g: Tensor, y: Tensor | None, models: Ints, batches: Minibatches, weight: Floats
    ) -> bool:
        data = self.linear_data(x.dtype)
        if data is None or not usable(x, g):
            return False
        state = x.numpy(), g.numpy(), (g if y is None else y).numpy()
        for size, same in self.data.groups(batches.rows):
            some = models[same]
            given = state, y is not None, some, batches.part(same), data, size, weight[same]
            share(len(some), len(some) * x.shape[1] * size, partial(linear_gradients, *given))
        return True

    def linear_data(self, dtype: torch.dtype) -> LinearData | None:
        engine, whole = self.trained.engine, self.samples.inputs
        if self.data.augment or not isinstance(engine, LinearEngine):
            return None
        if whole.device.type != "cpu" or not whole.is_contiguous() or whole.dtype not in (torch.uint8, dtype):
            return None
        held = self.holdings.numbers, self.holdings.offsets
        scale = 1 / 255 if whole.dtype == torch.uint8 else 1.0
        inputs, targets = whole.flatten(1).numpy(), self.samples.targets.numpy()
        return LinearData(*held, inputs, targets, scale, engine.classes, engine.bias, LOSSES[engine.loss])

    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        self.trained.check_columns(x)
        losses, grads = torch.zeros(len(rows), dtype=x.dtype), x.new_zeros(len(rows), self.parameters)
        for n, row in enumerate(rows):
            own = torch.from_numpy(self.holdings[row]).to(x.device)
            whole = mass(self.trained.loss, self.samples.targets[own]) or 1.0
            for piece in torch.split(own, self._block(1)):
                inputs, targets = self.samples.take(piece, x.dtype)
                if weight := mass(self.trained.loss, targets) / whole:
                    one = x[n : n + 1], inputs[None], targets[None]
                    loss, slope = self.trained.engine.with_losses(*one, None)
                    losses[n] += weight * float(loss[0])
                    grads[n] += weight * slope[0]
        return losses, grads

    def evaluate(self, x: Tensor, rows: Ints | None = None) -> Evaluation:
        self.trained.check_columns(x)
        test, engine, loss_of = self.data.test, self.trained.engine, self.trained.loss
        loss, right = torch.zeros(2, len(x), dtype=torch.float64)
        if test is None:
            return Evaluation(loss + torch.nan, {})
        block = self._block(len(x))
        pieces = [slice(start, start + block) for start in range(0, len(test), block)]
        if isinstance(engine, LinearEngine) and usable(x):
            for piece in pieces:
                grade(engine, x, test.floats(piece, x.dtype), test.targets[piece], loss, right)
            return Evaluation(loss / len(test), {"accuracy": right / len(test)})
        whole = mass(loss_of, test.targets) or 1.0
        with torch.no_grad():
            for piece in pieces:
                inputs, targets = test.take(piece, x.dtype)
                outputs = engine.outputs(x, inputs)
                if counts := mass(loss_of, targets) / whole:
                    loss += counts * torch.stack([loss_of(o, targets) for o in outputs]).double().cpu()
                if outputs.ndim == 3 and not targets.is_floating_point():
                    hits = (outputs.argmax(-1) == targets).double().mean(-1).cpu()
                    right += len(targets) / len(test) * hits
                else:
                    right += torch.nan
        return Evaluation(loss, {"accuracy": right} if self.metrics else {})

    def _block(self, models: int) -> int:
        """Samples that go through so many models at once."""
        if isinstance(self.trained.engine, LoopEngine):
            return _PICTURES
        return max(1, CHUNK // max(1, self.samples.inputs[0].numel(), models * 64))
