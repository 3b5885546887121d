"""Any `torch.nn.Module`, any loss, one dataset per client.

A problem is made of a `Trainable` (module, loss, engine) and `ClientData` (samples, who holds which); this
file turns them into gradients, losses and metrics.

What clients keep besides (running statistics such as BatchNorm's, personal parameters) are columns behind the
parameters in the models a problem is given, and only there: the round keeps them apart from x, so no method
can put them into a tracker or a step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from spodgt import rng
from spodgt.engine import current_engine, fits_loops, loops_enabled
from spodgt.errors import InvalidData, InvalidInput
from spodgt.problems.byte_inputs import resolve_byte_inputs
from spodgt.problems.client_data import EQUAL, SAMPLES, BatchSize, ClientData, ClientWeights
from spodgt.problems.data import Dataset, Partition
from spodgt.problems.evaluation import block_of, evaluate
from spodgt.problems.fingerprint import fingerprint, tensors_of
from spodgt.problems.gradients import Layout, Many
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.holdout import FRACTION, Holdout, check_fraction
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
    HasClientNames,
    HasClientWeights,
    HasIdentity,
    HasLayout,
    HasModel,
    HasSamples,
    HasValidation,
    Ints,
    LinearData,
    Minibatches,
    Problem,
)

_TRIED = 4096  # test samples on which metrics are tried before the first round


class Learning(
    Problem,
    HasClientNames,
    HasClientWeights,
    HasIdentity,
    HasLayout,
    HasModel,
    HasSamples,
    HasValidation,
    CompiledGradient,
):
    """A model trained by clients that each hold their own data.

    All methods minimise the weighted mean of the clients' losses, Σ w_i F_i / Σ w_i, where F_i is the mean
    loss of client i's samples and w_i its weight, see `client_weights`.

    The average model of a run is the average of all that clients have: of the parameters they exchange, of
    their running statistics and of their personal parameters.

    Args:
        model: any module; it is copied, not changed. An input that is a tuple or list is passed as
            model(*input), a dict as model(**input). Parameters that do not require gradients are frozen:
            they never change and are never sent.
        loss: loss(outputs, targets), such as `torch.nn.CrossEntropyLoss()`; or loss(model, batch), known
            by the name of its first parameter, `model`, which is given batches as they are collated. It
            returns the mean over the samples of a batch; a sum is refused. It has no trainable parameters
            of its own: those belong to the model.
        clients: one data set per client, in a list, or in a dict by name, which is joined by name to a
            network with names (keys 0, 1, … are the numbers of clients). A data set is a pair of tensors
            or numpy arrays (inputs (samples, …), targets (samples, …)), a list of samples, or a map-style
            `torch.utils.data.Dataset`. A sample is a pair (input, target), both of which may be dicts,
            tuples and lists of tensors; for loss(model, batch) it is anything. uint8 inputs are scaled to
            floats in [0, 1], unless the model reads them as whole numbers (tokens) or the loss is
            loss(model, batch): then they stay as they are. A torch data set other than a TensorDataset is
            read when samples are needed, so that random transforms are drawn anew, as a function of
            (seed, round, client).
        test: data of the same form that models are evaluated on; a list (or dict by name) of one data set
            per client evaluates each client's model on its own data, and the average model on all of
            them. None (default): no evaluation.
        validation: what methods and step sizes are chosen by, so that test data are only reported: data of
            the same form as `test`, or a fraction such as 0.2 of each client's samples, held out of training
            by a draw of the seed. Results have `validation_loss`, `validation_accuracy`, … beside the test
            metrics; `tune` and the best cells of a sweep use these. None (default): `tune` holds samples
            out of its own short runs.
        batch_size: samples in a mini-batch, one number (default 16) or one per client, in the order of
            `clients` or in a dict by name; a client that holds fewer gives all it has. None takes full
            gradients.
        client_weights: the weights w of the clients in the objective: "equal" (default) counts each client
            the same, whatever it holds; "samples" counts each sample the same, as if all data were on one
            machine; or numbers above 0, in the order of `clients` or in a dict by name.
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
        batch_size: BatchSize = 16,
        *,
        client_weights: ClientWeights = EQUAL,
        init: Init = "given",
        same_start: bool = True,
        validation: Source | Clients | float | None = None,
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
            clients,
            test,
            reader,
            batch_size=batch_size,
            augment=augment,
            test_samples=test_samples,
            validation=validation,
            client_weights=client_weights,
        )
        objective = Objective(loss, whole)
        data = resolve_byte_inputs(model, objective, data)
        options = Options(init, same_start, buffers, shared, personal, personal_step_size)
        self._made(model, objective, data, options, read_metrics(metrics, whole=whole))

    @classmethod
    def partitioned(
        cls,
        model: nn.Module,
        loss: Loss,
        data: Dataset,
        *,
        clients: int,
        partition: Partition,
        batch_size: BatchSize = 16,
        client_weights: ClientWeights = EQUAL,
        init: Init = "given",
        same_start: bool = True,
        validation: float | None = None,
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
            data: a data set with a train and a test split, as `spodgt.problems.data.load` gives it; uint8
                inputs are images and scaled to [0, 1].
            clients: how many clients share the train split.
            partition: who gets which samples: `IID()`, `LabelsPerClient(1)`, `Dirichlet(0.5)`, `Explicit(…)`.
            batch_size: as for `Learning`.
            client_weights: as for `Learning`; "samples" counts what each client got from the partition.
            init: as for `Learning`.
            same_start: as for `Learning`.
            validation: a fraction, as for `Learning`.
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
                f"partition must be a recipe such as LabelsPerClient(1), got {partition!r}; "
                "use spodgt.problems.data.IID()."
            )
        parts = Holdings.of(partition.split(data.train.targets, clients, 0))
        holdout = None if validation is None else Holdout(check_fraction(validation))
        held = ClientData(
            data.train,
            parts,
            data.test,
            batch_size,
            augment,
            partition,
            client_weights=client_weights,
            holdout=holdout,
        )
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
        if data.validation is not None:
            self._try_validation()

    def _try_validation(self) -> None:
        """Refuse validation data on which the initial model has no loss."""
        data = self.data.on_validation()
        few = replace(data, test_samples=min(data.test_samples or _TRIED, _TRIED))
        models = torch.cat([self.start(0)[:1], self.statistics(0)[:1]], 1).float()
        loss = self._evaluate_on(few, models, None).loss
        if not torch.isfinite(loss).all():
            raise InvalidData(
                f"validation has a loss of {float(loss[0])} at the initial model; clean the data."
            )

    def __repr__(self) -> str:
        model = f"{type(self.trained.model).__name__} of {self.parameters:,} parameters"
        return f"<Learning: {self.clients:,} clients, {model}, {len(self.data.samples):,} samples>"

    def with_batch_size(self, batch_size: BatchSize) -> Learning:
        """The same problem with other mini-batches; `batch_size` as for `Learning`."""
        return self._with(replace(self.data, batch_size=batch_size))

    def with_autocast(self) -> Learning:
        """The same problem, its gradients with forward passes in bfloat16 where `torch.autocast` says so."""
        return self._with(self.data, self.trained.autocasted())

    def with_holdings(self, holdings: Holdings) -> Learning:
        """The same problem with other clients: each holds the samples given here, for every seed."""
        fixed = self.data.fixed_scales
        if self.data.client_weights == SAMPLES and len(holdings) == self.clients:
            scales = self.data.loss_scales  # of all that a client holds, not of the part given here
            fixed = np.ones(self.clients) if scales is None else scales
        return self._with(replace(self.data, holdings=holdings, partition=None, fixed_scales=fixed))

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
    def client_names(self) -> tuple[str, ...] | None:
        return self.data.names or None

    def reordered(self, order: Ints) -> Learning:
        """The same problem with its clients in another order.

        Args:
            order: (clients,): client order[i] becomes client i.
        """
        return self._with(self.data.reordered(order))

    @property
    def weighting(self) -> str:
        given = self.data.client_weights
        return given if isinstance(given, str) else "given"

    @property
    def loss_scales(self) -> Floats | None:
        return self.data.loss_scales

    @property
    def parameters(self) -> int:
        return self.layout.size

    @property
    def work(self) -> float:
        if self.trained.no_full_gradient is not None:
            return float("inf")
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
        if data.holdout is not None:
            settings["validation"] = data.holdout.fraction
        if data.client_weights != EQUAL:
            settings["client_weights"] = data.client_weights
        words = {key: str(value) for key, value in settings.items()}
        arrays: list[Tensor | Ints] = [self.holdings.numbers, self.holdings.offsets]
        return words, [*data.arrays(), *arrays, *self.trained.constants(), *tensors_of(loss)]

    def draw(self, seed: int) -> Learning:
        drawn = self.data.draw(seed)
        return self if drawn is self.data else self._with(drawn)

    def on_validation_data(self) -> Learning:
        """The same problem evaluated on its validation data; the test data are not part of it.

        Without validation data, a fifth of each client's samples is held out of training instead.
        """
        return self._with(self.data.on_validation())

    @property
    def validation_source(self) -> str:
        """The data that `on_validation_data` evaluates on, in words."""
        if self.data.validation is not None:
            return "the validation data of the problem"
        if self.data.holdout is not None:
            part = f"{self.data.holdout.fraction:.0%}"
            return f"{part} of each client's samples, held out of training in all runs"
        return (
            f"{FRACTION:.0%} of each client's training samples, held out during the search only: "
            "later runs train on all of them"
        )

    def start(self, seed: int) -> Tensor:
        return self.trained.start(seed, self.clients)

    @property
    def metrics(self) -> Mapping[str, Better]:
        measured = self._measured()
        found = {} if self.data.test is None else dict(measured)
        if self.data.has_validation:
            found["validation_loss"] = "down"
            for name, better in measured.items():
                found[f"validation_{name}"] = better
        return found

    def _measured(self) -> Mapping[str, Better]:
        """What is measured beside the loss, on any data."""
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
        g = self._client_gradients(x, batches)
        scales = self._scales(batches.rows, g)
        return g if scales is None else g * scales[:, None]

    def _scales(self, rows: Ints, like: Tensor) -> Tensor | None:
        """(rows,) the factors of these clients' losses in the objective; None where all are one."""
        scales = self.data.loss_scales
        return None if scales is None else torch.from_numpy(scales[rows]).to(like)

    def _client_gradients(self, x: Tensor, batches: Minibatches) -> Tensor:
        """Gradients of the clients' own losses, without the weights of clients."""
        self.trained.check_columns(x)
        g = x.new_empty(len(x), self.parameters)  # its pages are taken only where something is written
        data = self.linear_data(x.dtype)
        if data is not None and fits_loops(x):
            self._fill_linear_gradients(x, g, data, batches)
            return g
        for size, same in self.data.groups(batches.rows):
            models = x[same]
            with trying("model and loss", f"mini-batches of round {batches.k}"):
                part = self._grads(models, batches.part(same), size)
            if isinstance(self.data.samples, Loose):
                self._refuse_nonfinite(models, part, batches.part(same), size)
            if isinstance(same, slice):  # everyone: `models` is a view of x
                return part
            g[same] = part
            if self.trained.columns.behind.names:
                x[same] = models
        return g

    def _grads(self, x: Tensor, batches: Minibatches, size: int) -> Tensor:
        """Gradients of clients that draw `size` samples each."""
        data, engine = self.data, self._running.engine
        _, keys, places, k = batches
        noise = [int(word >> np.uint64(1)) for word in rng.words(keys, k, places, 2**32)]
        return engine.grads(x, *data.minibatch(batches, size, x.device, x.dtype), noise)

    def _refuse_nonfinite(self, x: Tensor, gradients: Tensor, batches: Minibatches, size: int) -> None:
        """Name a sample that is NaN or infinite, where the gradient of a finite model is."""
        is_broken = x[:, : self.parameters].isfinite().all(1) & ~gradients.isfinite().all(1)
        for row in torch.nonzero(is_broken).flatten().tolist():
            self.data.refuse_nonfinite(batches.part(np.array([row])), size)

    def _fill_linear_gradients(self, x: Tensor, g: Tensor, data: LinearData, batches: Minibatches) -> None:
        """g ← the gradients at x of a linear model, in compiled loops."""
        from spodgt.problems.gradients.linear_model import (
            Scratch,
            chunk_length,
            linear_gradients,
            padded_stride,
        )

        models = x.numpy()
        stride = padded_stride(data, models.dtype)
        for size, same in self.data.groups(batches.rows):
            rows = np.arange(len(x))[same]
            scratch = Scratch.create(data, size, models.dtype)
            mini_batch = size, chunk_length(stride, size)
            linear_gradients(models, g.numpy(), data, stride, batches.part(same), rows, *mini_batch, scratch)

    def linear_data(self, dtype: torch.dtype) -> LinearData | None:
        """The problem as compiled loops read it; None where its gradients are computed otherwise."""
        engine = self.trained.engine
        if self.data.augment or not isinstance(engine, LinearEngine) or not loops_enabled():
            return None
        if self.data.loss_scales is not None:
            return None
        if type(self).grad is not Learning.grad:  # a subclass with gradients of its own
            return None
        whole = self.samples.inputs
        if whole.device.type != "cpu" or not whole.is_contiguous() or whole.dtype not in (torch.uint8, dtype):
            return None
        held = self.holdings.numbers, self.holdings.offsets
        scale = 1 / 255 if whole.dtype == torch.uint8 and self.samples.scales_bytes else 1.0
        inputs, targets = whole.flatten(1).numpy(), self.samples.targets.numpy()
        return LinearData(*held, inputs, targets, scale, engine.classes, engine.bias, LOSSES[engine.loss])

    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        self.trained.check_columns(x)
        with trying("gradient in evaluation mode", "training data", "; use gradient_norm=False"):
            return self._full(x, rows)

    def _full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
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
                    loss, slope = self._running.engine.with_losses(x[n : n + 1], *one, None)
                    losses[n] += weight * float(loss[0])
                    grads[n] += weight * slope[0]
            if isinstance(self.data.samples, Loose) and total:
                losses[n] /= total
                grads[n] /= total
            if isinstance(self.data.samples, Loose) and x[n].isfinite().all() and not losses[n].isfinite():
                self.data.samples.refuse_nonfinite(own, 0)
        scales = self._scales(np.asarray(rows), grads)
        if scales is None:
            return losses, grads
        return losses * scales.to(losses), grads * scales[:, None]

    def _mass(self, own: Ints) -> float:
        """What the samples of a client count together, where their targets are known."""
        if isinstance(self.data.samples, Loose):
            return 1.0
        targets = self.data.samples.targets
        return self.trained.objective.mass(targets[torch.from_numpy(own).to(targets.device)], len(own))

    def evaluate(self, x: Tensor, rows: Ints | None = None) -> Evaluation:
        self.trained.check_columns(x)
        tested = self._evaluate_on(self.data, x, rows)
        if self.data.test is None:
            tested.metrics.clear()
        if not self.data.has_validation:
            return tested
        validated = self._evaluate_on(self._validation_data, x, rows)
        metrics = {**tested.metrics, "validation_loss": validated.loss}
        for name, values in validated.metrics.items():
            metrics[f"validation_{name}"] = values
        return Evaluation(tested.loss, metrics)

    @property
    def _validation_data(self) -> ClientData:
        """The data with the validation data as test data; none before a seed is drawn that holds them out."""
        return replace(self.data, test=self.data.validation, tests=self.data.validations)

    def _evaluate_on(self, data: ClientData, x: Tensor, rows: Ints | None) -> Evaluation:
        """Loss and metrics on the test data in `data`; NaN where there are none."""
        found = Evaluation(
            torch.full((len(x),), torch.nan, dtype=torch.float64),
            {name: torch.full((len(x),), torch.nan, dtype=torch.float64) for name in self._measured()},
        )
        if data.test is None:
            return found
        whose = np.full(len(x), -1) if rows is None or data.tests is None else np.asarray(rows)
        for client in np.unique(whose):
            own = torch.from_numpy(np.flatnonzero(whose == client))
            models = x if len(own) == len(x) else x[own.to(x.device)]
            if all(torch.equal(model, models[0]) for model in models[1:]):
                models = models[:1]  # as at the start: one stands for all
            with trying("model and loss", "test data"):
                part = evaluate(self._running, data, self.measures, models, int(client), self._numbers)
            test = data.test
            if isinstance(test, Loose) and (models.isfinite().all(1).cpu() & ~part.loss.isfinite()).any():
                test.refuse_nonfinite(data.test_numbers(int(client)), 0)
            found.loss[own] = part.loss
            for name in part.metrics:
                found.metrics[name][own] = part.metrics[name]
        return found

    @property
    def _running(self) -> Trainable:
        """The model with the engine that runs: the plain one runs the module as written."""
        if current_engine() == "plain":
            return replace(self.trained, engine=self.trained.plain)
        return self.trained

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
    if isinstance(loss, nn.Module) and type(loss).__hash__ is None:  # as torch needs it to list its parts
        raise InvalidInput(
            f"loss must be a module that can be hashed, but {type(loss).__name__} defines __eq__ without "
            "__hash__; remove __eq__, or use @dataclass(eq=False)."
        )
    return takes_model(loss)
