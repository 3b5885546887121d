"""`Learning`: any `torch.nn.Module` and any loss, with one data set per client.

A problem holds `ClientData` (samples of each client), a `TrainableModel` (module, loss, engine) and
an `Evaluator` (metrics).

Running statistics, such as those of BatchNorm, and personal parameters are columns behind the
parameters in the models that a problem is given. The round keeps them apart from x, so that no
method can put them into a tracker or a step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from spodgt._util.deprecation import RenamedAttribute
from spodgt._util.text import html_table
from spodgt.errors import InvalidInput
from spodgt.problems.data import Dataset, Partition
from spodgt.problems.data.client_data import BatchSize, ClientData
from spodgt.problems.data.client_sources import read_client_data
from spodgt.problems.data.client_weights import EQUAL, SAMPLES, ClientWeights
from spodgt.problems.data.evaluation_data import EvaluationData
from spodgt.problems.data.holdout import DEFAULT_FRACTION, Holdout, check_fraction
from spodgt.problems.data.labels import class_counts
from spodgt.problems.data.readers import Clients, Reader, Source
from spodgt.problems.data.samples import ClientIndices, Collate, Samples
from spodgt.problems.evaluation import Evaluator
from spodgt.problems.full_gradients import FullGradients
from spodgt.problems.gradients import Layout
from spodgt.problems.losses import Loss, Objective, check_loss
from spodgt.problems.metrics import MetricFunction, read_metrics
from spodgt.problems.minibatch_gradients import minibatch_gradients, read_linear_data
from spodgt.problems.models.byte_inputs import resolve_byte_inputs
from spodgt.problems.models.fingerprint import fingerprint, loss_tensors
from spodgt.problems.models.initialization import Init
from spodgt.problems.models.parameters import ModelOptions, Patterns
from spodgt.problems.models.trainable_model import TrainableModel
from spodgt.problems.protocols import (
    CompiledGradient,
    GradientFunction,
    HasClientNames,
    HasClientWeights,
    HasEvaluationWork,
    HasIdentity,
    HasLayout,
    HasModel,
    HasSamples,
    HasValidation,
    HasWork,
    LinearData,
    PreparesGradients,
)
from spodgt.types import Better, Evaluation, Floats, Ints, Minibatches, Problem

Metrics = Mapping[str, MetricFunction | tuple[MetricFunction, Better]]


class Learning(
    Problem,
    HasClientNames,
    HasClientWeights,
    HasEvaluationWork,
    HasIdentity,
    HasLayout,
    HasModel,
    HasSamples,
    HasValidation,
    HasWork,
    CompiledGradient,
    PreparesGradients,
):
    """A model trained by clients that each hold their own data.

    All methods minimise the weighted mean of the clients' losses, Σ w_i F_i / Σ w_i. F_i is the
    mean loss of the samples of client i and w_i its weight, see `client_weights`.

    The average model of a run is the average over clients of the exchanged parameters, the running
    statistics and the personal parameters.

    Args:
        model: any module; it is copied, not changed. An input that is a tuple or list is passed as
            model(*input), a dict as model(**input). Parameters that do not require gradients are
            frozen: they never change and are never sent.
        loss: loss(outputs, targets), such as `torch.nn.CrossEntropyLoss()`; or loss(model, batch),
            recognised by the name `model` of its first parameter, which is called with batches as
            they are collated. It returns the mean over the samples of a batch; a sum is refused.
            It has no trainable parameters of its own: those belong to the model.
        clients: one data set per client, in a list, or in a dict by name, which is joined by name
            to a network with names (keys 0, 1, … are numbers of clients). A data set is a pair of
            tensors or numpy arrays (inputs (samples, …), targets (samples, …)), a list of samples,
            or a map-style `torch.utils.data.Dataset`. A sample is a pair (input, target), both of
            which may be dicts, tuples and lists of tensors; for loss(model, batch) it may be
            anything. uint8 inputs are scaled to floats in [0, 1], unless the model reads integers
            (tokens) or the loss is loss(model, batch). A torch data set other than a TensorDataset
            is read when samples are needed, so that its random transforms are drawn in every round,
            as a function of (seed, round, client).
        test: data of the same form on which models are evaluated; a list (or dict by name) of one
            data set per client evaluates the model of each client on its own data, and the average
            model on all of them. None (default): no evaluation.
        batch_size: samples in a mini-batch, one number (default 16) or one per client, in the order
            of `clients` or in a dict by name; a client with fewer samples uses all of them. None:
            full gradients.
        client_weights: the weights w of the clients in the objective. "equal" (default): all
            clients have the same weight; "samples": all samples have the same weight, as if the
            data were on one machine; or numbers above 0, in the order of `clients` or in a dict by
            name.
        init: "given" (default): start from the module as it is, for every seed; "fresh": draw the
            initialisation of its layers (`reset_parameters`) for every seed; a function
            init(module, seed) that changes the module. Frozen parameters do not change.
        same_start: True (default): all clients start from the same model; False: each client draws
            its own, unless init is "given".
        validation: data for choosing methods and step sizes, so that test data are only reported:
            data of the same form as `test`, or a fraction such as 0.2 of the samples of each
            client, held out of training as a function of the seed. Results have
            `validation_loss`, `validation_accuracy`, … next to the test metrics; `tune` and the
            best cells of a sweep use these. None (default): `tune` holds samples out of its own
            short runs.
        metrics: further metrics on test data, by name: functions f(outputs, targets) of all test
            samples, or f(model, batch), averaged over batches by their sizes; or pairs of such a
            function and "up" (default, larger is better) or "down". Accuracy is computed for
            classes (outputs (samples, classes), targets (samples,)) and for `BCEWithLogitsLoss`.
        collate: turns a list of samples into a batch, for samples of unequal shape; that of torch
            by default.
        test_samples: samples in one evaluation at most, evenly spread over the test data (of each
            client, and of all); None (default): all.
        cache: True reads torch data sets once and keeps their samples in memory.
        shared: patterns such as "head.*", one or several, of the names of parameters and running
            statistics that are exchanged; others are personal. None (default): all.
        personal: patterns of the names that are not exchanged, instead of `shared`: each client
            keeps these parameters and statistics, and trains the parameters by SGD with each
            gradient that it computes.
        personal_step_size: step size of personal parameters; 0.01 by default, as that of most
            methods. They are trained on the data of one client only, so it may be larger than the
            step size of a method.
        augment: True trains on random crops and horizontal flips; inputs must be
            (channels, height, width).
        buffers: "pull" allows a model with running statistics, such as BatchNorm: each client has
            its own, they are exchanged with its model, and they are never part of a gradient. None
            (default) refuses such a model, unless its statistics are personal.

    Raises:
        InvalidInput: if model, loss and options do not fit together.
        InvalidData: if the data have an unknown form or invalid values.
    """

    data: ClientData
    model: TrainableModel
    evaluator: Evaluator

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
        metrics: Metrics | None = None,
        collate: Collate | None = None,
        test_samples: int | None = None,
        cache: bool = False,
        shared: Patterns = None,
        personal: Patterns = None,
        personal_step_size: float = 0.01,
        augment: bool = False,
        buffers: Literal["pull"] | None = None,
    ) -> None:
        """Read the data, probe the model on a few samples, and select its gradient engine."""
        objective = check_loss(loss)
        data = read_client_data(
            clients,
            test,
            Reader(collate, bool(cache), objective.calls_model),
            batch_size=batch_size,
            augment=augment,
            test_samples=test_samples,
            validation=validation,
            client_weights=client_weights,
        )
        data = resolve_byte_inputs(model, objective, data)
        options = ModelOptions(init, same_start, buffers, shared, personal, personal_step_size)
        self._build(model, objective, data, options, metrics)

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
        metrics: Metrics | None = None,
        shared: Patterns = None,
        personal: Patterns = None,
        personal_step_size: float = 0.01,
        augment: bool = False,
        buffers: Literal["pull"] | None = None,
    ) -> Learning:
        """One data set that is divided among clients for every seed.

        Args:
            model: as for `Learning`.
            loss: as for `Learning`.
            data: a data set with a train and a test split, such as `spodgt.problems.data.load`
                returns; uint8 inputs are images and scaled to [0, 1].
            clients: number of clients.
            partition: divides the train split: `IID()`, `LabelsPerClient(1)`, `Dirichlet(0.5)`,
                `Explicit(…)`.
            batch_size: as for `Learning`.
            client_weights: as for `Learning`; "samples" are those of the partition.
            init: as for `Learning`.
            same_start: as for `Learning`.
            validation: a fraction, as for `Learning`.
            metrics: as for `Learning`.
            shared: as for `Learning`.
            personal: as for `Learning`.
            personal_step_size: as for `Learning`.
            augment: as for `Learning`.
            buffers: as for `Learning`.

        Raises:
            InvalidInput: if model, loss and options do not fit together.
            InvalidData: if the data cannot be divided among so many clients.
        """
        objective = check_loss(loss)
        given: object = partition
        # a str has a method `split`, as the protocol requires
        if isinstance(given, str) or not isinstance(given, Partition):
            raise InvalidInput(
                f"partition must be a recipe such as LabelsPerClient(1), got {partition!r}; "
                "use spodgt.problems.data.IID()."
            )
        parts = partition.split(data.train.targets, clients, 0)
        holdout = None
        if validation is not None:
            holdout = Holdout(check_fraction(validation))
        client_data = ClientData(
            data.train,
            ClientIndices.from_parts(parts),
            EvaluationData(data.test),
            batch_size,
            augment,
            partition,
            client_weights=client_weights,
            holdout=holdout,
        )
        options = ModelOptions(init, same_start, buffers, shared, personal, personal_step_size)
        problem = cls.__new__(cls)
        problem._build(model, objective, client_data, options, metrics)
        return problem

    def _build(
        self,
        model: nn.Module,
        objective: Objective,
        data: ClientData,
        options: ModelOptions,
        metrics: Metrics | None,
    ) -> None:
        """Set the fields; the last step of both constructors."""
        user_metrics = read_metrics(metrics, loss_calls_model=objective.calls_model)
        self.data = data
        self.model = TrainableModel.of(model, objective, data, options)
        self.evaluator = Evaluator.of(self.model, user_metrics)
        if user_metrics or data.validation is not None:
            initial = torch.cat([self.start(0)[:1], self.statistics(0)[:1]], 1).float()
            self.evaluator.check(self.model, data, initial)

    def __repr__(self) -> str:
        model = f"{type(self.model.module).__name__} of {self.parameters:,} parameters"
        samples = len(self.data.samples)
        return f"<Learning: {self.clients:,} clients, {model}, {samples:,} samples>"

    def _repr_html_(self) -> str:
        """The samples of each client in a notebook."""
        names = self.client_names or range(self.clients)
        batch_sizes = self.batches(np.arange(self.clients))
        rows = list(zip(names, self.sizes(), batch_sizes, strict=True))
        return html_table(repr(self), ("client", "samples", "mini-batch"), rows)

    # --- other versions of the problem -----------------------------------------------------------
    def with_batch_size(self, batch_size: BatchSize) -> Learning:
        """The same problem with mini-batches of another size; `batch_size` as for `Learning`."""
        return self._with(replace(self.data, batch_size=batch_size))

    def with_client_indices(self, client_indices: ClientIndices) -> Learning:
        """The same problem with other clients, whose samples are `client_indices` for every seed."""
        scales = self.data.fixed_scales
        has_same_clients = len(client_indices) == self.clients
        if self.data.client_weights == SAMPLES and has_same_clients:
            # weights by all samples of a client, not by the part that is given here
            scales = self.data.loss_scales
            if scales is None:
                scales = np.ones(self.clients)
        data = replace(
            self.data, client_indices=client_indices, partition=None, fixed_scales=scales
        )
        return self._with(data)

    def reordered(self, order: Ints) -> Learning:
        """The same problem with its clients in another order.

        Args:
            order: (clients,): client order[i] becomes client i.
        """
        return self._with(self.data.reordered(order))

    def draw(self, seed: int) -> Learning:
        drawn = self.data.draw(seed)
        if drawn is self.data:
            return self
        return self._with(drawn)

    def join(self, others: Sequence[Learning]) -> Learning:
        return self._with(self.data.join([other.data for other in others]))

    def to(self, device: torch.device, dtype: torch.dtype) -> Learning:
        return self._with(self.data.to(device), self.model.to(device, dtype))

    def on_validation_data(self) -> Learning:
        """The same problem evaluated on its validation data; the test data are not part of it.

        Without validation data, a fifth of the samples of each client is held out of training.
        """
        return self._with(self.data.on_validation())

    @property
    def validation_source(self) -> str:
        """The data that `on_validation_data` evaluates on, in words."""
        if self.data.validation is not None:
            return "the validation data of the problem"
        if self.data.holdout is not None:
            fraction = f"{self.data.holdout.fraction:.0%}"
            return f"{fraction} of each client's samples, held out of training in all runs"
        return (
            f"{DEFAULT_FRACTION:.0%} of each client's training samples, held out during the search "
            "only: later runs train on all of them"
        )

    def _with(self, data: ClientData, model: TrainableModel | None = None) -> Learning:
        other = copy.copy(self)
        other.data = data
        if model is not None:
            other.model = model
        return other

    # --- clients and their data ------------------------------------------------------------------
    @property
    def clients(self) -> int:
        return len(self.data.client_indices)

    @property
    def client_names(self) -> tuple[str, ...] | None:
        return self.data.names or None

    @property
    def client_indices(self) -> ClientIndices:
        """The training samples of each client."""
        return self.data.client_indices

    @property
    def samples(self) -> Samples:
        """All samples as two tensors; raises `InvalidInput` if they are read one by one."""
        return self.data.stacked

    def sizes(self) -> Ints:
        """(clients,) samples of each client."""
        return self.client_indices.sizes

    def labels(self) -> Ints | None:
        """(clients, classes) samples of each class; None if targets are not classes."""
        return class_counts(self.data)

    def batches(self, rows: Ints) -> Ints:
        return self.data.batch_sizes(rows)

    @property
    def weighting(self) -> str:
        weights = self.data.client_weights
        return weights if isinstance(weights, str) else "given"

    @property
    def loss_scales(self) -> Floats | None:
        return self.data.loss_scales

    # --- the model -------------------------------------------------------------------------------
    @property
    def layout(self) -> Layout:
        """The parameters in a flat model."""
        return self.model.layout

    @property
    def parameters(self) -> int:
        return self.layout.size

    @property
    def private(self) -> int:
        return self.model.columns.private

    def start(self, seed: int) -> Tensor:
        return self.model.initial_parameters(seed, self.clients)

    def statistics(self, seed: int) -> Tensor:
        return self.model.initial_extra_columns(seed, self.clients)

    def state_dict(self, x: Tensor) -> dict[str, Tensor]:
        """The `state_dict` of the module with the parameters of a model.

        Args:
            x: (columns,) one model, as `start` or a run gives it, with its statistics behind the
                parameters.
        """
        return self.model.to_module(x).state_dict()

    def module(self, x: Tensor) -> nn.Module:
        """A copy of the given module with the parameters of a model, in evaluation mode on the CPU.

        Args:
            x: (columns,) one model, with its statistics behind the parameters.
        """
        return self.model.to_module(x)

    @property
    def identity(self) -> tuple[dict[str, str], list[Tensor | Ints]]:
        data = self.data
        module = self.model.module
        loss = self.model.loss
        settings: dict[str, object] = {
            "batch_size": data.batch_size,
            "loss": loss if isinstance(loss, nn.Module) else getattr(loss, "__name__", ""),
            "augment": data.augment,
            "model": module,
            "code of loss": fingerprint(loss),
            "code of model": fingerprint(module),
        }
        if self.private:
            settings["personal_step_size"] = self.model.options.personal_step_size
        if data.test_samples is not None:
            settings["test_samples"] = data.test_samples
        if data.holdout is not None:
            settings["validation"] = data.holdout.fraction
        if data.client_weights != EQUAL:
            settings["client_weights"] = data.client_weights
        texts = {key: str(value) for key, value in settings.items()}
        arrays: list[Tensor | Ints] = [
            *data.fingerprint_tensors(),
            data.client_indices.indices,
            data.client_indices.offsets,
            *self.model.constants(),
            *loss_tensors(loss),
        ]
        return texts, arrays

    # --- gradients and evaluation ----------------------------------------------------------------
    @property
    def work(self) -> float:
        if self.model.no_full_gradient is not None:
            return float("inf")
        return float(len(self.client_indices.indices)) * self.model.multiplications

    @property
    def evaluation_work(self) -> float:
        samples = 0
        for data in (self.data.test, self.data.validation):
            if data is not None:
                samples += min(len(data), self.data.test_samples or len(data))
        return float(self.clients + 1) * samples * self.model.multiplications

    def grad(self, x: Tensor, batches: Minibatches) -> Tensor:
        return self._minibatch_gradients(x.dtype)(x, batches)

    def gradient_function(self, dtype: torch.dtype) -> GradientFunction:
        """`grad` for many rounds with models of `dtype`: looks up once what these share."""
        if self._has_own_gradients:
            return self.grad
        return self._minibatch_gradients(dtype)

    def _minibatch_gradients(self, dtype: torch.dtype) -> GradientFunction:
        return minibatch_gradients(self.model, self.data, self.linear_data(dtype))

    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        return FullGradients(self.model, self.data)(x, rows)

    def linear_data(self, dtype: torch.dtype) -> LinearData | None:
        """The data of a linear model as `dtype`, for compiled loops; None if these cannot be used."""
        if self._has_own_gradients:
            return None
        return read_linear_data(self.model, self.data, dtype)

    @property
    def _has_own_gradients(self) -> bool:
        """Whether a subclass computes other gradients."""
        return type(self).grad is not Learning.grad

    @property
    def metrics(self) -> Mapping[str, Better]:
        return self.evaluator.all_directions(self.data)

    def evaluate(self, x: Tensor, rows: Ints | None = None) -> Evaluation:
        self.model.check_columns(x)
        return self.evaluator.evaluate(self.model, self.data, x, rows)

    # Deprecated names, removed in the next release.
    holdings = RenamedAttribute("client_indices")
    with_holdings = RenamedAttribute("with_client_indices")
