"""Problems: models and data turned into gradients. `Quadratic` and `Learning`, and shipped ones by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spodgt.problems.data import IID, LabelsPerClient, Partition, Split, load
from spodgt.problems.learning import Learning
from spodgt.problems.models import MODELS
from spodgt.problems.quadratic import Quadratic

__all__ = ["Learning", "Quadratic", "classification", "fashion_mnist_svm"]


def classification(
    data: str = "fashion-mnist-small",
    model: str = "svm",
    *,
    clients: int = 10,
    partition: Partition | None = None,
    batch_size: int | None = 16,
    augment: bool = False,
    test_samples: int | None = None,
    **options: Any,
) -> Learning:
    """A shipped model on a shipped data set, divided among the clients anew for every seed.

    `options` are the model's: `classification("cifar-10", "resnet18", width=16, augment=True)`. With
    `test_samples` only so many of the test set, its first, judge a model: for models that are slow to try.
    """
    dataset = load(data)
    if test_samples is not None:
        test = Split(dataset.test.inputs[:test_samples], dataset.test.targets[:test_samples])
        dataset = replace(dataset, test=test)
    recipe = MODELS[model]
    shape = tuple(dataset.train.inputs.shape[1:])
    return Learning.partitioned(
        recipe.build(shape, len(dataset.classes), **options),
        recipe.loss,
        dataset,
        clients=clients,
        partition=partition or IID(),
        batch_size=batch_size,
        augment=augment,
        buffers="pull",  # only asked of models with running statistics, such as a ResNet with norm="batch"
    )


def fashion_mnist_svm(
    clients: int = 10,
    labels_per_client: int = 10,
    *,
    batch_size: int | None = 16,
    data: str = "fashion-mnist-small",
) -> Learning:
    """The paper's first task: a linear SVM on Fashion-MNIST; `data="fashion-mnist"` for the full set."""
    partition = LabelsPerClient(labels_per_client)
    return classification(data, "svm", clients=clients, partition=partition, batch_size=batch_size)
