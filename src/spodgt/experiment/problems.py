"""Problems as recipes: what `[problem]` of a config says, built for a number of clients."""

from __future__ import annotations

from typing import Annotated, ClassVar, Protocol, runtime_checkable

from pydantic import BeforeValidator

from spodgt.errors import InvalidInput
from spodgt.problems import Quadratic, classification
from spodgt.problems.data import BySpeaker, LabelsPerClient, Partition
from spodgt.problems.data.client_weights import EQUAL, WEIGHTINGS
from spodgt.problems.data.datasets import IMAGES as DATA
from spodgt.problems.models import MODELS
from spodgt.problems.python_problem import PythonProblem
from spodgt.types import Problem
from spodgt.validation import Field, FieldHint, Number, Whole, choices, one_of, recipe


@runtime_checkable
class ProblemRecipe(Protocol):
    """Something that makes a problem for a number of clients."""

    name: ClassVar[str]

    def make(self, clients: int) -> Problem: ...


PROBLEMS: dict[str, type[ProblemRecipe]] = {}  # all kinds a config knows, by name
_AT_LEAST_1 = Field(ge=1)
Validation = Annotated[
    Number | None,
    Field(gt=0, lt=1),
    FieldHint("a fraction above 0 and below 1", 0.2, use="validation = 0.2"),
]


def _count(key: str, least: int, example: int) -> FieldHint:
    return FieldHint(f"a whole number of at least {least}", example, use=f"{key} = {example}")


def check_partition(value: object) -> object:
    """A partition itself, not its name."""
    if isinstance(value, str):  # a text has a `split`, too, but of another kind
        raise InvalidInput(f"partition must be a partition, got {value!r}; use LabelsPerClient(1).")
    return value


def check_weighting(value: object) -> object:
    """A word for the weights of clients; None for equal ones, which a table leaves out."""
    if value is not None and value not in WEIGHTINGS:
        raise ValueError(f"client_weights={value!r} is not known; {choices(value, WEIGHTINGS)}")
    return None if value == EQUAL else value


@recipe(InvalidInput, PROBLEMS)
class Classification:
    """A shipped model on a shipped data set, divided among the clients anew for every seed.

    Args:
        data: The data set.
        model: The model, with the loss it is trained with.
        batch_size: Samples in a gradient; 0 for all a client holds.
        client_weights: How much the loss of each client counts in the objective: "equal" (if None), or
            "samples" for as much as it holds.
        partition: How the samples are divided among the clients.
        augment: Train on random crops and mirror images.
        test_samples: Evaluate on only so many test samples, the first; all if None.
        validation: Hold this fraction of each client's samples out of training, to choose by; None: none.
        hidden: Units in the hidden layer of an mlp.
        width: Channels of a cnn or resnet18.
        norm: Normalisation of a resnet18: group or batch.
    """

    name: ClassVar[str] = "classification"
    data: Annotated[str, one_of(DATA)] = "fashion-mnist-small"
    model: Annotated[str, one_of(MODELS)] = "svm"
    batch_size: Annotated[Whole, Field(ge=0), _count("batch_size", 0, 16)] = 16
    partition: Annotated[
        Partition,
        BeforeValidator(check_partition),
        FieldHint("a partition", use="LabelsPerClient(1)"),
    ] = LabelsPerClient(1)
    client_weights: Annotated[str | None, BeforeValidator(check_weighting)] = None
    augment: bool = False
    test_samples: Annotated[Whole | None, _AT_LEAST_1, _count("test_samples", 1, 1000)] = None
    validation: Validation = None
    hidden: Annotated[Whole | None, _AT_LEAST_1, _count("hidden", 1, 16)] = None
    width: Annotated[Whole | None, _AT_LEAST_1, _count("width", 1, 16)] = None
    norm: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.partition, BySpeaker):
            raise InvalidInput(
                'partition "by-speaker" is for texts, and images have no speakers; use iid.'
            )
        known = MODELS[self.model].options
        for key, value in self._options().items():
            if key not in known:
                keys = ["data", "model", "batch_size", "partition", "client_weights", "augment"]
                keys += ["test_samples", "validation"]
                raise InvalidInput(
                    f"{key}={value!r} is not a key of problem with model {self.model}; "
                    f"{choices(key, [*keys, *known])}"
                )

    def _options(self) -> dict[str, int | str]:
        """The model's own options, those that are set."""
        given = {"hidden": self.hidden, "width": self.width, "norm": self.norm}
        return {key: value for key, value in given.items() if value is not None}

    def make(self, clients: int) -> Problem:
        """Load the data and build the model."""
        return classification(
            self.data,
            self.model,
            clients=clients,
            partition=self.partition,
            batch_size=self.batch_size or None,
            client_weights=self.client_weights or EQUAL,
            augment=self.augment,
            test_samples=self.test_samples,
            validation=self.validation,
            **self._options(),
        )


@recipe(InvalidInput, PROBLEMS)
class RandomQuadratic:
    """Random quadratics with a known optimum, the same for every seed of the experiment.

    Args:
        parameters: Dimension of the models.
        seed: Which draw.
        condition: Largest over smallest curvature.
        spread: Standard deviation of the clients' optima.
        noise: Standard deviation of the noise on every coordinate of a gradient.
    """

    name: ClassVar[str] = "quadratic"
    parameters: Annotated[Whole, Field(ge=1)] = 10
    seed: Annotated[Whole, Field(ge=0)] = 0
    condition: Annotated[Number, Field(ge=1, allow_inf_nan=False)] = 10.0
    spread: Annotated[Number, Field(ge=0, allow_inf_nan=False)] = 1.0
    noise: Annotated[Number, Field(ge=0, allow_inf_nan=False)] = 0.0

    def make(self, clients: int) -> Problem:
        """Draw the quadratics."""
        return Quadratic.random(
            clients,
            self.parameters,
            seed=self.seed,
            condition=self.condition,
            spread=self.spread,
            noise=self.noise,
        )


PROBLEMS[PythonProblem.name] = PythonProblem
