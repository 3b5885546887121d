"""Test loss and metrics of many models on the test data of one client, or of all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spodgt.problems.client_data import ClientData
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.objective import Metric, batch_of, right_answers
from spodgt.problems.samples import CHUNK
from spodgt.problems.trainable import Trainable
from spodgt.problems.trees import Tree, clone, concat, tree_map
from spodgt.types import Evaluation

_PICTURES = 128  # samples in a block of a deep network: what lies between layers should stay in the cache
_OTHERS = 1024  # where there is little between layers


def block_of(trained: Trainable, inputs: int, models: int) -> int:
    """Samples of so many input numbers that go through so many models at once."""
    most = CHUNK // max(inputs, models * max(64, trained.width))  # what they make of it must fit, too
    if trained.plain.channels_last or trained.few is None:
        most = min(most, _PICTURES)
    elif isinstance(trained.engine, LoopEngine):
        most = min(most, _OTHERS)
    return max(1, most)


def evaluate(
    trained: Trainable, data: ClientData, metrics: Sequence[Metric], x: Tensor, client: int, inputs: int
) -> Evaluation:
    """Evaluate models x (n, columns); `inputs` is how many numbers an input has, at least."""
    assert data.test is not None
    overall = any(not metric.whole for metric in metrics)
    most = max(1, CHUNK // (trained.width * len(data.test))) if overall else max(1, len(x))
    if len(x) > most:  # the outputs of all models would take too much memory
        parts = [evaluate(trained, data, metrics, some, client, inputs) for some in torch.split(x, most)]
        names = parts[0].metrics
        return Evaluation(
            torch.cat([part.loss for part in parts]),
            {name: torch.cat([part.metrics[name] for part in parts]) for name in names},
        )
    block = block_of(trained, inputs, len(x))
    pieces = data.pieces(client, block, x.device, x.dtype)
    sums = _Sums(trained, metrics, len(x))
    with torch.no_grad():
        for size, batch, targets in pieces:
            sums.add(x, size, batch, targets)
    return sums.evaluation()


class _Sums:
    """What is added up over the blocks of a test, one entry per model."""

    def __init__(self, trained: Trainable, metrics: Sequence[Metric], models: int) -> None:
        self.trained, self.metrics = trained, metrics
        self.whole = [metric for metric in metrics if metric.whole]
        self.overall = [metric for metric in metrics if not metric.whole]
        self.loss, self.right = torch.zeros(2, models, dtype=torch.float64)
        self.values = torch.zeros(len(self.whole), models, dtype=torch.float64)
        self.mass, self.count, self.asked = 0.0, 0, 0
        self.outputs: list[list[Tree]] = [[] for _ in range(models)]
        self.targets: list[Tree] = []

    def add(self, x: Tensor, size: int, inputs: Tree, targets: Tree) -> None:
        objective, plain = self.trained.objective, self.trained.plain
        weight = objective.mass(targets, size)
        self.mass, self.count = self.mass + weight, self.count + size
        if self.whole:
            batch = batch_of(inputs, targets)
            found = plain.apply(x, lambda module: [metric(module, batch) for metric in self.whole])
            self.values += size * torch.tensor(found, dtype=torch.float64).T
        if objective.whole:
            losses = plain.apply(x, lambda module: float(objective(module, clone(inputs), clone(targets))))
            self.loss += weight * torch.tensor(losses, dtype=torch.float64)
            return
        many = self.trained.engine.outputs(x, inputs)
        if weight:
            values = [objective.of(clone(outputs), clone(targets)) for outputs in many]
            self.loss += weight * torch.stack(values).cpu().double()
        if self.trained.accuracy is not None:
            scores = many if isinstance(many, Tensor) else torch.stack(many)  # type: ignore[arg-type]
            assert isinstance(targets, Tensor)
            right, asked = right_answers(self.trained.accuracy, scores, targets, objective.ignored)
            self.right += right.cpu().double()
            self.asked += asked
        if self.overall:
            for kept, outputs in zip(self.outputs, many, strict=True):
                kept.append(_here(outputs))
        if self.overall:
            self.targets.append(_here(targets))

    def evaluation(self) -> Evaluation:
        found: dict[str, Tensor] = {}
        if self.trained.accuracy is not None:
            found["accuracy"] = self.right / self.asked
        targets = concat(self.targets) if self.overall else None
        for metric in self.metrics:
            if metric.whole:
                found[metric.name] = self.values[self.whole.index(metric)] / self.count
            else:
                values = [metric(concat(outputs), targets) for outputs in self.outputs]
                found[metric.name] = torch.tensor(values, dtype=torch.float64)
        return Evaluation(self.loss / (self.mass or 1.0), found)


def _here(tree: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, tree)
