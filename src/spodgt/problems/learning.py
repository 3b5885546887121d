"""Any `torch.nn.Module`, any loss, one dataset per client.

A problem is made of a `Trainable` (module, loss, engine) and `ClientData` (samples, who holds which); this
file turns them into gradients, losses and metrics.

What clients keep besides (running statistics such as BatchNorm's, personal parameters) are columns behind the
parameters in the models a problem is given, and only there: the round keeps them apart from x, so no method
can put them into a tracker or a step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from spodgt import rng
from spodgt.compiled import usable
from spodgt.errors import InvalidInput
from spodgt.problems.client_data import ClientData
from spodgt.problems.data import Dataset, Partition
from spodgt.problems.evaluation import block_of, evaluate
from spodgt.problems.fingerprint import fingerprint, tensors_of
from spodgt.problems.gradients import Layout, Many
from spodgt.problems.gradients.linear import LinearEngine, add_gradients
from spodgt.problems.gradients.taped import TapeEngine
from spodgt.problems.losses import LOSSES, Loss
from spodgt.problems.objective import Function, Metric, Objective, read_metrics, takes_model
from spodgt.problems.samples import Collate, Holdings, Loose, Samples
from spodgt.problems.sources import Clients, Reader, Source
from spodgt.problems.starts import Init
from spodgt.problems.trainable import Options, Patterns, Trainable
from spodgt.problems.trees import Tree
from spodgt.problems.trial import trying
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
    SingleGradients,
    Singly,
)

_TRIED = 4096  # test samples on which metrics are tried before the first round


class Learning(Problem, HasIdentity, HasLayout, HasModel, HasSamples, CompiledGradient, SingleGradients):
    """A model trained by clients that each hold their own data.

    The average model of a run is the average of all that clients have: of the parameters they exchange, of
    their running statistics and of their personal parameters.

    Args:
        model: any module; it is copied, not changed. An input that is a tuple or list is passed as
            model(*input), a dict as model(**input). Parameters that do not require gradients are frozen:
            they never change and are never sent.
        loss: loss(outputs, targets), such as `torch.nn.CrossEntropyLoss()`; or loss(model, batch), known
            by the name of its first parameter, `model`, which is given batches as they are collated. It
            returns the mean over the samples of a batch.
        clients: one data set per client, in a list, or in a dict by name. A data set is a pair of tensors
            or numpy arrays (inputs (samples, …), targets (samples, …)), a list of samples, or a map-style
            `torch.utils.data.Dataset`. A sample is a pair (input, target), both of which may be dicts,
            tuples and lists of tensors; for loss(model, batch) it is anything. uint8 inputs are scaled to
            [0, 1]. A torch data set other than a TensorDataset is read when samples are needed, so that
            random transforms are drawn anew, as a function of (seed, round, client).
        test: data of the same form that models are evaluated on; a list (or dict by name) of one data set
            per client evaluates each client's model on its own data, and the average model on all of
            them. None (default): no evaluation.
        batch_size: samples in a mini-batch, one number (default 16) or one per client; a client that
            holds fewer gives all it has. None takes full gradients.
        init: "given" (default) starts from the module as it is, for every seed; "fresh" draws the
            initialisation of its layers (`reset_parameters`) anew for every seed; a function
            init(module, seed) changes the module itself. Frozen parameters stay as they are.
        same_start: True (default): all clients start from the same model; False: each draws its own,
            unless init is "given".
        metrics: what to measure on test data beside the loss, by name: functions f(outputs, targets) of
            all test samples, or f(model, batch), averaged over batches by their size; or pairs of such a
            function and "up" (default) or "down", which says what is better. Accuracy is measured for
            classes (outputs (samples, classes), targets (samples,)) and for `BCEWithLogitsLoss`.
        collate: turns a list of samples into a batch, for samples of unequal shape; by default that of
            torch.
        test_samples: samples in one evaluation at most, evenly spread over the test data (of each client,
            and of all); None (default): all.
        cache: True reads torch data sets once and keeps their samples in memory.
        shared: patterns such as "head.*", one or several, of the names of parameters and running
            statistics that are exchanged; what they do not match is personal. None (default): everything.
        personal: patterns of the names that are not exchanged, instead of `shared`: each client keeps
            these parameters and statistics, and trains the parameters by SGD with each gradient it takes.
        personal_step_size: step size of personal parameters; 0.01 by default, as that of most methods. A
            client's own data move them, so it may be larger than what the exchange of models allows.
        augment: True trains on random crops and mirror images; inputs must be (channels, height, width).
        buffers: "pull" allows a model that keeps running statistics, such as BatchNorm's: each client
            has its own, they are exchanged with its model, and they are never part of a gradient.
            None (default) refuses such a model, unless its statistics are personal.
    """

    trained: Trainable
    data: ClientData
    measures: tuple[Metric, ...]  # the user's

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clients: Clients,
        test: Source | Clients | None = None,
        batch_size: int | Sequence[int] | None = 16,
        *,
        init: Init = "given",
        same_start: bool = True,
        metrics: Mapping[str, Function | tuple[Function, Better]] | None = None,
        collate: Collate | None = None,
        test_samples: int | None = None,
        cache: bool = False,
        shared: Patterns = None,
        personal: Patterns = None,
        personal_step_size: float = 0.01,
        augment: bool = False,
        buffers: Literal["pull"] | None = None,
    ) -> None:
        """Read the data, try the model on a few samples, and choose how its gradients are computed."""
        whole = _check_loss(loss)
        reader = Reader(collate, bool(cache), whole)
        data = ClientData.read(
            clients, test, reader, batch_size=batch_size, augment=augment, test_samples=test_samples
        )
        options = Options(init, same_start, buffers, shared, personal, personal_step_size)
        self._made(model, Objective(loss, whole), data, options, read_metrics(metrics, whole=whole))

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
        init: Init = "given",
        same_start: bool = True,
        metrics: Mapping[str, Function | tuple[Function, Better]] | None = None,
        shared: Patterns = None,
        personal: Patterns = None,
        personal_step_size: float = 0.01,
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
            init: as for `Learning`.
            same_start: as for `Learning`.
            metrics: as for `Learning`.
            shared: as for `Learning`.
            personal: as for `Learning`.
            personal_step_size: as for `Learning`.
            augment: as for `Learning`.
            buffers: as for `Learning`.
        """
        whole = _check_loss(loss)
        if not isinstance(partition, Partition) or hasattr(partition, "encode"):  # text can be split, too
            raise InvalidInput(
                f"partition must be a recipe such as spodgt.partitions.IID(), got {partition!r}; use IID()."
            )
        parts = Holdings.of(partition.split(data.train.targets, clients, 0))
        held = ClientData(data.train, parts, data.test, batch_size, augment, partition)
        options = Options(init, same_start, buffers, shared, personal, personal_step_size)
        problem = cls.__new__(cls)
        problem._made(model, Objective(loss, whole), held, options, read_metrics(metrics, whole=whole))
        return problem

    def _made(
        self,
        model: nn.Module,
        objective: Objective,
        data: ClientData,
        options: Options,
        measures: tuple[Metric, ...],
    ) -> None:
        self.data, self.measures = data, measures
        self.trained = Trainable.of(model, objective, data, options)
        if any(metric.name == "accuracy" for metric in measures):
            self.trained = replace(self.trained, accuracy=None)
        if measures and data.test is not None:  # one that fails should do so before the first round
            few = replace(data, test_samples=min(data.test_samples or _TRIED, _TRIED))
            models = torch.cat([self.start(0)[:1], self.statistics(0)[:1]], 1).float()
            self._with(few).evaluate(models, np.zeros(1, np.int64))

    def __repr__(self) -> str:
        model = f"{type(self.trained.model).__name__} of {self.parameters:,} parameters"
        return f"<Learning: {self.clients:,} clients, {model}, {len(self.data.samples):,} samples>"

    def with_batch_size(self, batch_size: int | Sequence[int] | None) -> Learning:
        """The same problem with other mini-batches; `batch_size` as for `Learning`."""
        return self._with(replace(self.data, batch_size=batch_size))

    def with_autocast(self) -> Learning:
        """The same problem, its gradients with forward passes in bfloat16 where `torch.autocast` says so."""
        return self._with(self.data, self.trained.autocasted())

    def with_holdings(self, holdings: Holdings) -> Learning:
        """The same problem with other clients: each holds the samples given here, for every seed."""
        return self._with(replace(self.data, holdings=holdings, partition=None))

    def _with(self, data: ClientData, trained: Trainable | None = None) -> Learning:
        other = copy.copy(self)
        other.data, other.trained = data, trained or self.trained
        return other

    @property
    def samples(self) -> Samples:
        """All samples as two tensors; refused where they are read one by one."""
        return self.data.stacked

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
        settings |= {"code of loss": fingerprint(loss), "code of model": fingerprint(model)}
        options = self.trained.options
        if self.trained.columns.private:
            settings["personal_step_size"] = options.personal_step_size
        if self.trained.objective.autocast:
            settings["autocast"] = "bf16"
        if data.test_samples is not None:
            settings["test_samples"] = data.test_samples
        words = {key: str(value) for key, value in settings.items()}
        arrays: list[Tensor | Ints] = [self.holdings.numbers, self.holdings.offsets]
        return words, [*data.arrays(), *arrays, *self.trained.constants(), *tensors_of(loss)]

    def draw(self, seed: int) -> Learning:
        return self if self.data.partition is None else self._with(self.data.draw(seed))

    def start(self, seed: int) -> Tensor:
        return self.trained.start(seed, self.clients)

    @property
    def metrics(self) -> Mapping[str, Better]:
        if self.data.test is None:
            return {}
        counted: dict[str, Better] = {} if self.trained.accuracy is None else {"accuracy": "up"}
        return counted | {metric.name: metric.better for metric in self.measures}

    @property
    def private(self) -> int:
        return self.trained.columns.private

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
            models = x[same]
            with trying("model and loss", f"mini-batches of round {batches.k}"):
                part = self._grads(models, batches.part(same), size)
            if isinstance(same, slice):  # everyone: `models` is a view of x
                return part
            g[same] = part
            if self.trained.columns.behind.names:
                x[same] = models
        return g

    def _grads(self, x: Tensor, batches: Minibatches, size: int) -> Tensor:
        """Gradients of clients that draw `size` samples each."""
        data, engine = self.data, self.trained.engine
        plain = isinstance(data.samples, Samples) and not data.augment
        if isinstance(engine, TapeEngine) and plain and engine.replays(x, size):
            return engine.drawn(x, self.samples, torch.from_numpy(data.drawn(batches, size)[1]))
        _, keys, places, k = batches
        noise = [int(word >> np.uint64(1)) for word in rng.words(keys, k, places, 2**32)]
        return engine.grads(x, *data.minibatch(batches, size, x.device, x.dtype), noise)

    def singly(self, x: Tensor, g: Tensor, y: Tensor, weight: Floats) -> Singly | None:
        data, engine = self.data, self.trained.engine
        plain = isinstance(data.samples, Samples) and not data.augment
        if not isinstance(engine, TapeEngine) or not plain or self.trained.columns.behind.names:
            return None
        if type(self).grad is not Learning.grad:  # of a subclass that knows better
            return None
        sizes = np.unique(data.batches(np.arange(self.clients))).tolist()
        if not engine.replays(x, max(sizes)):
            return None
        by = torch.from_numpy(weight).to(x.dtype) if (weight != 1).any() else None
        with trying("model and loss"):
            found = {size: engine.singly((x, g, y), self.samples, size, by) for size in sizes}
        ways = {size: way for size, way in found.items() if way is not None}

        def numbers(models: Ints, batches: Minibatches, size: int) -> Tensor:
            drawn = np.zeros((len(x), size), np.int64)
            drawn[models] = data.drawn(batches, size)[1]
            return torch.from_numpy(drawn)

        def some(models: Ints, batches: Minibatches) -> Callable[[int], None]:
            one, rows = dict[int, Callable[[int], object]](), models.tolist()
            for size, same in [(sizes[0], slice(None))] if len(sizes) == 1 else data.groups(batches.rows):
                make = ways[size](numbers(models[same], batches.part(same), size))
                one |= dict.fromkeys(models[same].tolist(), make)

            def single(n: int) -> None:
                with trying("model and loss", f"mini-batches of round {batches.k}"):
                    one[rows[n]](rows[n])

            return single

        return some if len(ways) == len(sizes) else None

    def grad_into(
        self, x: Tensor, g: Tensor, y: Tensor | None, models: Ints, batches: Minibatches, weight: Floats
    ) -> bool:
        data = self.linear_data(x.dtype)
        if data is None or not usable(x, g):
            return False
        state = x.numpy(), g.numpy(), (g if y is None else y).numpy()
        for size, same in self.data.groups(batches.rows):
            some = models[same]
            add_gradients(state, y is not None, some, batches.part(same), data, size, weight[same])
        return True

    def linear_data(self, dtype: torch.dtype) -> LinearData | None:
        engine = self.trained.engine
        if self.data.augment or not isinstance(engine, LinearEngine):
            return None
        whole = self.samples.inputs
        if whole.device.type != "cpu" or not whole.is_contiguous() or whole.dtype not in (torch.uint8, dtype):
            return None
        held = self.holdings.numbers, self.holdings.offsets
        scale = 1 / 255 if whole.dtype == torch.uint8 else 1.0
        inputs, targets = whole.flatten(1).numpy(), self.samples.targets.numpy()
        return LinearData(*held, inputs, targets, scale, engine.classes, engine.bias, LOSSES[engine.loss])

    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        self.trained.check_columns(x)
        objective, block = self.trained.objective, block_of(self.trained, self._numbers, 1)
        losses, grads = torch.zeros(len(rows), dtype=x.dtype), x.new_zeros(len(rows), self.parameters)
        for n, row in enumerate(rows):
            total, own = 0.0, self.holdings[row]
            whole = self._mass(own) or 1.0
            for start in range(0, len(own), block):
                piece = own[start : start + block]
                inputs, targets = self.data.some(piece, x.device, x.dtype)
                weight = objective.mass(targets, len(piece)) / whole
                total += weight
                if weight:
                    one = _alone(inputs), _alone(targets)
                    loss, slope = self.trained.engine.with_losses(x[n : n + 1], *one, None)
                    losses[n] += weight * float(loss[0])
                    grads[n] += weight * slope[0]
            if isinstance(self.data.samples, Loose) and not objective.sums and total:
                losses[n] /= total
                grads[n] /= total
        return losses, grads

    def _mass(self, own: Ints) -> float:
        """What the samples of a client count together, where their targets are known."""
        if isinstance(self.data.samples, Loose):
            return 1.0
        targets = self.data.samples.targets
        return self.trained.objective.mass(targets[torch.from_numpy(own).to(targets.device)], len(own))

    def evaluate(self, x: Tensor, rows: Ints | None = None) -> Evaluation:
        self.trained.check_columns(x)
        found = Evaluation(
            torch.full((len(x),), torch.nan, dtype=torch.float64),
            {name: torch.full((len(x),), torch.nan, dtype=torch.float64) for name in self.metrics},
        )
        if self.data.test is None:
            return found
        whose = np.full(len(x), -1) if rows is None or self.data.tests is None else np.asarray(rows)
        for client in np.unique(whose):
            own = torch.from_numpy(np.flatnonzero(whose == client))
            models = x if len(own) == len(x) else x[own.to(x.device)]
            if all(torch.equal(model, models[0]) for model in models[1:]):
                models = models[:1]  # as at the start: one stands for all
            with trying("model and loss", "test data"):
                part = evaluate(self.trained, self.data, self.measures, models, int(client), self._numbers)
            found.loss[own] = part.loss
            for name in part.metrics:
                found.metrics[name][own] = part.metrics[name]
        return found

    @property
    def _numbers(self) -> int:
        """How many numbers an input has, where that is known."""
        samples = self.data.samples
        return samples.inputs[0].numel() if isinstance(samples, Samples) else 1


def _alone(part: Tree) -> Many:
    """The batch of a single client, as engines take those of many."""
    return part[None] if isinstance(part, Tensor) else [part]


def _check_loss(loss: object) -> bool:
    """Whether the loss is loss(model, batch)."""
    if not callable(loss):
        raise InvalidInput(
            f"loss must be callable, got {type(loss).__name__}; use torch.nn.CrossEntropyLoss()."
        )
    return takes_model(loss)
