"""Evaluation: loss and metrics of many models on test and validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from spodgt.errors import InvalidData
from spodgt.problems.data.client_data import ClientData
from spodgt.problems.data.evaluation_data import ALL_CLIENTS, EvaluationBatch, EvaluationData
from spodgt.problems.data.pytree import Tree, clone, concat, tree_map
from spodgt.problems.data.samples import MAX_BLOCK_NUMBERS
from spodgt.problems.gradients import Engine, PerClient
from spodgt.problems.losses import join_batch
from spodgt.problems.metrics import UserMetric, count_correct
from spodgt.problems.models.trainable_model import TrainableModel
from spodgt.problems.user_code_errors import user_code_errors
from spodgt.types import Better, Evaluation, Ints

_MAX_UNREAD_BLOCK = 128  # samples that are read one by one
_MIN_NUMBERS_PER_OUTPUT = 64
_TRIAL_SAMPLES = 4096  # test samples on which metrics are computed before the first round


def block_size(model: TrainableModel, engine: Engine, models: int) -> int:
    """Samples that are evaluated at once.

    Args:
        model: the model.
        engine: computes the outputs.
        models: number of models that are evaluated at once.
    """
    numbers_per_output = models * max(_MIN_NUMBERS_PER_OUTPUT, model.output_size)
    block = MAX_BLOCK_NUMBERS // max(model.input_size, numbers_per_output)
    engine_limit = engine.max_block
    if model.plain.channels_last:
        engine_limit = model.plain.max_block
    if model.probe_batch is None:
        engine_limit = _MAX_UNREAD_BLOCK
    if engine_limit is not None:
        block = min(block, engine_limit)
    return max(1, block)


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates models on the test and validation data of a problem.

    Args:
        user_metrics: the metrics of the user.
        has_accuracy: whether accuracy is computed; False if a metric of the user has that name.
    """

    user_metrics: tuple[UserMetric, ...] = ()
    has_accuracy: bool = False

    @staticmethod
    def of(model: TrainableModel, user_metrics: tuple[UserMetric, ...]) -> Evaluator:
        """The evaluator of a model: accuracy if it is defined, and the metrics of the user."""
        is_replaced = any(metric.name == "accuracy" for metric in user_metrics)
        return Evaluator(user_metrics, model.accuracy is not None and not is_replaced)

    @property
    def directions(self) -> Mapping[str, Better]:
        """The metrics on one data set, and whether larger values are better ("up")."""
        directions: dict[str, Better] = {}
        if self.has_accuracy:
            directions["accuracy"] = "up"
        for metric in self.user_metrics:
            directions[metric.name] = metric.better
        return directions

    def all_directions(self, data: ClientData) -> Mapping[str, Better]:
        """The metrics on test and validation data, and whether larger values are better."""
        directions: dict[str, Better] = {}
        if data.test is not None:
            directions.update(self.directions)
        if data.has_validation:
            directions["validation_loss"] = "down"
            for name, better in self.directions.items():
                directions[f"validation_{name}"] = better
        return directions

    def evaluate(
        self, model: TrainableModel, data: ClientData, x: Tensor, clients: Ints | None
    ) -> Evaluation:
        """Evaluate models on test data and, if there are any, on validation data.

        Args:
            model: the module and the loss.
            data: of the clients.
            x: (n, columns) models.
            clients: (n,) client of each model, or `ALL_CLIENTS`; None: all clients.

        Returns:
            Test loss and metrics, each (n,); validation metrics have the prefix "validation_".
        """
        test = self.evaluate_on(model, data.test, data.test_samples, x, clients)
        metrics = {}
        if data.test is not None:
            metrics.update(test.metrics)
        if data.has_validation:
            validation = self.evaluate_on(model, data.validation, data.test_samples, x, clients)
            metrics["validation_loss"] = validation.loss
            for name, values in validation.metrics.items():
                metrics[f"validation_{name}"] = values
        return Evaluation(test.loss, metrics)

    def evaluate_on(
        self,
        model: TrainableModel,
        data: EvaluationData | None,
        max_samples: int | None,
        x: Tensor,
        clients: Ints | None,
    ) -> Evaluation:
        """Loss and metrics on one data set; NaN if `data` is None. Arguments as for `evaluate`.

        Raises:
            InvalidData: if a sample has a NaN or an infinity.
            InvalidInput: if the model, the loss or a metric fails.
        """
        result = self._nan_result(len(x))
        if data is None:
            return result
        client_of_model = np.full(len(x), ALL_CLIENTS)
        if clients is not None and data.ranges is not None:
            client_of_model = np.asarray(clients)
        for client in np.unique(client_of_model).tolist():
            rows = torch.from_numpy(np.flatnonzero(client_of_model == client))
            models = x
            if len(rows) < len(x):
                models = x[rows.to(x.device)]
            if _are_equal(models):
                models = models[:1]  # as before the first round: evaluate once
            with user_code_errors("model and loss", "test data"):
                part = self._evaluate_models(model, data, max_samples, models, client)
            is_broken = models.isfinite().all(1).cpu() & ~part.loss.isfinite()
            if is_broken.any():
                data.samples.refuse_nonfinite(data.indices(client), 0)
            result.loss[rows] = part.loss
            for name, values in part.metrics.items():
                result.metrics[name][rows] = values
        return result

    def _nan_result(self, models: int) -> Evaluation:
        metrics = {}
        for name in self.directions:
            metrics[name] = torch.full((models,), torch.nan, dtype=torch.float64)
        return Evaluation(torch.full((models,), torch.nan, dtype=torch.float64), metrics)

    def _evaluate_models(
        self,
        model: TrainableModel,
        data: EvaluationData,
        max_samples: int | None,
        x: Tensor,
        client: int,
    ) -> Evaluation:
        """Evaluate models on the data of one client."""
        needs_outputs = any(not metric.calls_model for metric in self.user_metrics)
        if needs_outputs:  # the outputs of all models must fit into memory
            max_models = max(1, MAX_BLOCK_NUMBERS // (model.output_size * len(data)))
            if len(x) > max_models:
                parts = []
                for models in torch.split(x, max_models):
                    parts.append(self._evaluate_models(model, data, max_samples, models, client))
                return _concatenate(parts)
        block = block_size(model, model.active_engine, len(x))
        sums = _RunningSums(model, self, len(x))
        with torch.no_grad():
            for batch in data.batches(client, max_samples, block, x.device, x.dtype):
                sums.add(x, batch)
        return sums.result()

    def check(self, model: TrainableModel, data: ClientData, x: Tensor) -> None:
        """Evaluate initial models on a few samples, to find errors before the first round.

        Args:
            model: the module and the loss.
            data: of the clients.
            x: (1, columns) an initial model.

        Raises:
            InvalidInput: if a metric fails.
            InvalidData: if the loss on validation data is NaN or infinite.
        """
        limit = min(data.test_samples or _TRIAL_SAMPLES, _TRIAL_SAMPLES)
        if self.user_metrics and data.test is not None:
            few = replace(data, test_samples=limit)
            self.evaluate(model, few, x, np.zeros(1, np.int64))
        if data.validation is not None:
            loss = self.evaluate_on(model, data.validation, limit, x, None).loss
            if not torch.isfinite(loss).all():
                raise InvalidData(
                    f"validation has a loss of {float(loss[0])} at the initial model; "
                    "clean the data."
                )


def _are_equal(models: Tensor) -> bool:
    return all(torch.equal(model, models[0]) for model in models[1:])


def _concatenate(parts: Sequence[Evaluation]) -> Evaluation:
    metrics = {}
    for name in parts[0].metrics:
        metrics[name] = torch.cat([part.metrics[name] for part in parts])
    return Evaluation(torch.cat([part.loss for part in parts]), metrics)


class _RunningSums:
    """Sums over the batches of an evaluation; tensors have one entry per model."""

    def __init__(self, model: TrainableModel, evaluator: Evaluator, models: int) -> None:
        metrics = evaluator.user_metrics
        self.model = model
        self.evaluator = evaluator
        self.batch_metrics = [metric for metric in metrics if metric.calls_model]
        self.output_metrics = [metric for metric in metrics if not metric.calls_model]
        self.loss = torch.zeros(models, dtype=torch.float64)
        self.total_weight = 0.0
        self.batch_values = torch.zeros(len(self.batch_metrics), models, dtype=torch.float64)
        self.samples = 0
        self.correct = torch.zeros(models, dtype=torch.float64)
        self.predictions = 0
        self.outputs: list[list[Tree]] = [[] for _ in range(models)]
        self.targets: list[Tree] = []

    def add(self, x: Tensor, batch: EvaluationBatch) -> None:
        """Add one batch of samples, evaluated by models x (models, columns)."""
        weight = self.model.objective.total_weight(batch.targets, batch.size)
        self.total_weight += weight
        self.samples += batch.size
        if self.batch_metrics:
            self._add_batch_metrics(x, batch)
        if self.model.objective.calls_model:
            self._add_model_losses(x, batch, weight)
            return
        outputs = self.model.active_engine.outputs(x, batch.inputs)
        if weight:
            self._add_losses(outputs, batch, weight)
        if self.evaluator.has_accuracy:
            self._add_accuracy(outputs, batch)
        if self.output_metrics:
            self._store_outputs(outputs, batch)

    def _add_batch_metrics(self, x: Tensor, batch: EvaluationBatch) -> None:
        collated = join_batch(batch.inputs, batch.targets)

        def evaluate_metrics(module: nn.Module) -> list[float]:
            return [metric.of_batch(module, collated) for metric in self.batch_metrics]

        values = self.model.plain.apply(x, evaluate_metrics)
        self.batch_values += batch.size * torch.tensor(values, dtype=torch.float64).T

    def _add_model_losses(self, x: Tensor, batch: EvaluationBatch, weight: float) -> None:
        """Add the values of a loss(model, batch)."""

        def evaluate_loss(module: nn.Module) -> float:
            return float(self.model.objective(module, clone(batch.inputs), clone(batch.targets)))

        losses = self.model.plain.apply(x, evaluate_loss)
        self.loss += weight * torch.tensor(losses, dtype=torch.float64)

    def _add_losses(self, outputs: PerClient, batch: EvaluationBatch, weight: float) -> None:
        """Add the values of a loss(outputs, targets)."""
        losses = []
        for outputs_of_model in outputs:
            loss = self.model.objective.loss_of(clone(outputs_of_model), clone(batch.targets))
            losses.append(loss)
        self.loss += weight * torch.stack(losses).cpu().double()

    def _add_accuracy(self, outputs: PerClient, batch: EvaluationBatch) -> None:
        accuracy = self.model.accuracy
        assert accuracy is not None
        assert isinstance(batch.targets, Tensor)
        if not isinstance(outputs, Tensor):
            outputs = torch.stack(outputs)  # type: ignore[arg-type]
        ignore_index = self.model.objective.ignore_index
        correct, predictions = count_correct(accuracy, outputs, batch.targets, ignore_index)
        self.correct += correct.cpu().double()
        self.predictions += predictions

    def _store_outputs(self, outputs: PerClient, batch: EvaluationBatch) -> None:
        for stored, outputs_of_model in zip(self.outputs, outputs, strict=True):
            stored.append(_to_cpu(outputs_of_model))
        self.targets.append(_to_cpu(batch.targets))

    def result(self) -> Evaluation:
        """Mean loss and metrics of all batches."""
        values: dict[str, Tensor] = {}
        if self.evaluator.has_accuracy:
            values["accuracy"] = self.correct / self.predictions
        for metric, total in zip(self.batch_metrics, self.batch_values, strict=True):
            values[metric.name] = total / self.samples
        if self.output_metrics:
            targets = concat(self.targets)
            for metric in self.output_metrics:
                of_models = [
                    metric.of_outputs(concat(outputs), targets) for outputs in self.outputs
                ]
                values[metric.name] = torch.tensor(of_models, dtype=torch.float64)
        return Evaluation(self.loss / (self.total_weight or 1.0), values)


def _to_cpu(tree: Tree) -> Tree:
    def leaf_to_cpu(leaf: object) -> object:
        return leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf

    return tree_map(leaf_to_cpu, tree)
