"""Problems: `Learning` and `Quadratic`, and shipped ones such as `fashion_mnist_svm`.

learning.py             Learning: a torch module trained on one data set per client
data/                   data sets, partitions, the samples of clients
models/                 shipped models; a module as rows of parameters; checks before round 0
losses.py               shipped losses; the loss in its two forms
minibatch_gradients.py full_gradients.py
                        gradients of clients, computed by the engines of gradients/
evaluation.py metrics.py
                        loss and metrics on test and validation data
protocols.py            optional capabilities of a problem
random_state.py user_code_errors.py
                        running code of the user: global random generators, errors
quadratic.py text.py python_problem.py
                        other problems: quadratics, texts, functions of the user
"""

from __future__ import annotations

from dataclasses import replace

from spodgt._util.deprecation import renamed_attribute
from spodgt.errors import InvalidInput
from spodgt.problems.data import IID, LabelsPerClient, Partition, Split, load
from spodgt.problems.data.client_data import check_test_samples
from spodgt.problems.data.client_weights import EQUAL, ClientWeights
from spodgt.problems.learning import Learning
from spodgt.problems.models import MODELS
from spodgt.problems.python_problem import PythonProblem, python
from spodgt.problems.quadratic import Quadratic
from spodgt.problems.text import Text, speeches
from spodgt.validation import check_count, choices

__all__ = [
    "Learning",
    "PythonProblem",
    "Quadratic",
    "Text",
    "classification",
    "fashion_mnist_svm",
    "python",
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
    """A shipped model on a shipped data set, divided among the clients for every seed.

    Args:
        data: "fashion-mnist-small" (default, inside the package), "fashion-mnist" or "cifar-10".
        model: "svm" (default), "svm-ovr", "logistic", "mlp", "cnn" or "resnet18", with its loss.
        clients: how many clients; 10 by default.
        partition: divides the samples among the clients; `IID()` by default.
        batch_size: samples in a mini-batch, 16 by default; None takes full gradients.
        client_weights: "equal" (default), "samples" or one number per client, as for `Learning`.
        augment: True trains on random crops and horizontal flips; False by default.
        test_samples: evaluate on the first so many test samples; all by default.
        validation: a fraction of the samples of each client, as for `Learning`; None by default.
        options: of the model: `hidden` of mlp, `width` of cnn, `width` and `norm` of resnet18, as
            in `classification("cifar-10", "resnet18", width=16, norm="batch")`.
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
    check_count("clients", clients, "clients=10")
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
        buffers="pull",  # has no effect without running statistics
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


_RENAMED = {"refuse_statistics": "spodgt.problems.running_statistics.refuse_statistics"}


def __getattr__(name: str) -> object:
    return renamed_attribute(__name__, name, _RENAMED)


def __dir__() -> list[str]:
    return __all__
