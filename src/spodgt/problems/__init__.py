"""Problems: models and data turned into gradients. `Quadratic` and `Learning`, and shipped ones by name."""

from __future__ import annotations

from dataclasses import replace

from spodgt.errors import InvalidInput
from spodgt.problems.client_data import EQUAL, ClientWeights, check_test_samples
from spodgt.problems.data import IID, LabelsPerClient, Partition, Split, load
from spodgt.problems.learning import Learning
from spodgt.problems.models import MODELS
from spodgt.problems.python import PythonProblem, python
from spodgt.problems.quadratic import Quadratic
from spodgt.problems.text import Text, speeches
from spodgt.types import Problem
from spodgt.validation import choices

__all__ = [
    "Learning",
    "PythonProblem",
    "Quadratic",
    "Text",
    "classification",
    "fashion_mnist_svm",
    "python",
    "refuse_statistics",
    "speeches",
]


def classification(
    data: str = "fashion-mnist-small",
    model: str = "svm",
    *,
    clients: int = 10,
    partition: Partition | None = None,
    batch_size: int | None = 16,
    client_weights: ClientWeights = EQUAL,
    augment: bool = False,
    test_samples: int | None = None,
    validation: float | None = None,
    **options: int | str,
) -> Learning:
    """A shipped model on a shipped data set, divided among the clients anew for every seed.

    Args:
        data: "fashion-mnist-small" (default, inside the package), "fashion-mnist" or "cifar-10".
        model: "svm" (default), "svm-ovr", "logistic", "mlp", "cnn" or "resnet18"; each has its loss.
        clients: how many clients; 10 by default.
        partition: who gets which samples; `IID()` by default.
        batch_size: samples in a mini-batch, 16 by default; None takes full gradients.
        client_weights: "equal" (default), "samples" or one number per client, as for `Learning`.
        augment: True trains on random crops and mirror images; False by default.
        test_samples: evaluate on so many test samples, the first ones; all by default. For slow models.
        validation: a fraction of each client's samples to choose by, as for `Learning`; None by default.
        options: of the model: `hidden` of mlp, `width` of cnn, `width` and `norm` of resnet18, as in
            `classification("cifar-10", "resnet18", width=16, norm="batch")`.
    """
    if model not in MODELS:
        raise InvalidInput(f"model={model!r} is not known; {choices(model, MODELS)}")
    recipe = MODELS[model]
    for name, value in options.items():
        if name not in recipe.options:
            raise InvalidInput(
                f"{name}={value!r} is not an option of {model}; {choices(name, recipe.options)}"
            )
    check_test_samples(test_samples)
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 1:
        raise InvalidInput(f"clients must be a whole number of at least 1, got {clients!r}; use clients=10.")
    dataset = load(data)
    if test_samples is not None:
        test = Split(dataset.test.inputs[:test_samples], dataset.test.targets[:test_samples])
        dataset = replace(dataset, test=test)
    shape = tuple(dataset.train.inputs.shape[1:])
    return Learning.partitioned(
        recipe.build(shape, len(dataset.classes), **options),
        recipe.loss,
        dataset,
        clients=clients,
        partition=IID() if partition is None else partition,
        batch_size=batch_size,
        client_weights=client_weights,
        init="fresh",
        validation=validation,
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
    """The paper's first task: a linear SVM on Fashion-MNIST.

    Args:
        clients: how many clients; 10 by default.
        labels_per_client: how many of the ten classes each client holds, 1 to 10; 10 by default.
        batch_size: samples in a mini-batch, 16 by default; None takes full gradients.
        data: "fashion-mnist-small" (default: a tenth, inside the package) or "fashion-mnist".
    """
    partition = LabelsPerClient(labels_per_client)
    return classification(data, "svm", clients=clients, partition=partition, batch_size=batch_size)


def refuse_statistics(problem: Problem, runtime: str) -> None:
    """Refuse a `problem` whose models keep running statistics, on a `runtime` that cannot carry them."""
    if columns := problem.statistics(0).shape[1] - problem.private:
        raise InvalidInput(
            f"model must not keep running statistics on {runtime}, got {columns} of them; "
            "use torch.nn.GroupNorm instead of BatchNorm, or train in the simulator."
        )
