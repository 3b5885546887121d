"""Recipes of `[problem]`: classification, text, quadratics and a function of the user."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, ClassVar, Protocol, runtime_checkable

from pydantic import BeforeValidator

from spodgt.errors import InvalidInput
from spodgt.problems import Quadratic, classification
from spodgt.problems.data import BySpeaker, LabelsPerClient, Partition
from spodgt.problems.data.catalog import names_of
from spodgt.problems.data.client_weights import EQUAL, WEIGHTINGS
from spodgt.problems.models import MODELS
from spodgt.problems.python_problem import PythonProblem
from spodgt.problems.text import speeches
from spodgt.types import Problem
from spodgt.validation import Field, FieldHint, Number, Whole, choices, one_of, recipe


@runtime_checkable
class ProblemRecipe(Protocol):
    """Creates a problem for a number of clients."""

    name: ClassVar[str]

    def make(self, clients: int) -> Problem: ...


PROBLEMS: dict[str, type[ProblemRecipe]] = {}  # kinds of [problem], by name


def _check_partition(value: object) -> object:
    if isinstance(value, str):  # pydantic would accept it: a text has a method `split`
        raise InvalidInput(f"partition must be a partition, got {value!r}; use LabelsPerClient(1).")
    return value


def _check_weighting(value: object) -> object:
    """A name of client weights; None for equal weights, so that a table does not list them."""
    if value is not None and value not in WEIGHTINGS:
        raise ValueError(f"client_weights={value!r} is not known; {choices(value, WEIGHTINGS)}")
    return None if value == EQUAL else value


def _count(key: str, least: int, example: int) -> FieldHint:
    return FieldHint(f"a whole number of at least {least}", example, use=f"{key} = {example}")


_MODEL_OPTIONS = ("hidden", "width", "norm")  # of some models of images
_POSITIVE = Field(ge=1)
_ClientWeights = Annotated[str | None, BeforeValidator(_check_weighting)]
_ValidationFraction = Annotated[
    Number | None,
    Field(gt=0, lt=1),
    FieldHint("a fraction above 0 and below 1", 0.2, use="validation = 0.2"),
]


@recipe(InvalidInput, PROBLEMS)
class Classification:
    """A shipped model on a shipped data set, partitioned among the clients for every seed.

    Args:
        data: The data set.
        model: The model, with its loss.
        batch_size: Samples in a gradient; 0 for all samples of a client.
        client_weights: Weights of the clients' losses in the objective: "equal" (if None), or
            "samples" for weights proportional to the number of samples.
        partition: How the samples are divided among the clients.
        augment: Train on random crops and mirror images.
        test_samples: Evaluate on the first test samples only; all if None.
        validation: Fraction of each client's samples that is held out of training; None: none.
        hidden: Units in the hidden layer of an mlp.
        width: Channels of a cnn or resnet18.
        norm: Normalisation of a resnet18: group or batch.
    """

    name: ClassVar[str] = "classification"
    data: Annotated[str, one_of(names_of("images"))] = "fashion-mnist-small"
    model: Annotated[str, one_of(MODELS)] = "svm"
    batch_size: Annotated[Whole, Field(ge=0), _count("batch_size", 0, 16)] = 16
    partition: Annotated[
        Partition,
        BeforeValidator(_check_partition),
        FieldHint("a partition", use="LabelsPerClient(1)"),
    ] = LabelsPerClient(1)
    client_weights: _ClientWeights = None
    augment: bool = False
    test_samples: Annotated[Whole | None, _POSITIVE, _count("test_samples", 1, 1000)] = None
    validation: _ValidationFraction = None
    hidden: Annotated[Whole | None, _POSITIVE, _count("hidden", 1, 16)] = None
    width: Annotated[Whole | None, _POSITIVE, _count("width", 1, 16)] = None
    norm: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.partition, BySpeaker):
            raise InvalidInput(
                'partition "by-speaker" is for texts, and images have no speakers; use iid.'
            )
        options = MODELS[self.model].options
        for key, value in self._model_options().items():
            if key not in options:
                keys = [slot.name for slot in fields(self) if slot.name not in _MODEL_OPTIONS]
                raise InvalidInput(
                    f"{key}={value!r} is not a key of problem with model {self.model}; "
                    f"{choices(key, [*keys, *options])}"
                )

    def _model_options(self) -> dict[str, int | str]:
        """The options of the model that are set."""
        values = {name: getattr(self, name) for name in _MODEL_OPTIONS}
        return {name: value for name, value in values.items() if value is not None}

    def make(self, clients: int) -> Problem:
        """Load the data and create the model."""
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
            **self._model_options(),
        )


@recipe(InvalidInput, PROBLEMS)
class Speeches:
    """A character-level transformer on texts by speaker.

    Args:
        data: The data set.
        context: Maximal length of the context, in characters.
        batch_size: Windows of text in a gradient; 0 for all windows of a client.
        partition: How the windows are divided among the clients, by their speakers.
        client_weights: As for images.
        test_samples: Evaluate on so many windows only, spread over all speakers; all if None.
        validation: Fraction of each client's windows that is held out of training; None: none.
        width: Size of the embedding of a character.
        depth: Blocks of the model.
        heads: Attention heads; the width must be divisible by their number.
    """

    name: ClassVar[str] = "text"
    data: Annotated[str, one_of(names_of("texts"))] = "sotu-small"
    context: Annotated[Whole, _POSITIVE] = 32
    batch_size: Annotated[Whole, Field(ge=0)] = 16
    partition: Annotated[
        Partition, BeforeValidator(_check_partition), FieldHint("a partition", use="BySpeaker()")
    ] = BySpeaker()
    client_weights: _ClientWeights = None
    test_samples: Annotated[Whole | None, _POSITIVE] = None
    validation: _ValidationFraction = None
    width: Annotated[Whole, _POSITIVE] = 32
    depth: Annotated[Whole, _POSITIVE] = 2
    heads: Annotated[Whole, _POSITIVE] = 2

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise InvalidInput(
                f"heads must divide width={self.width}, got {self.heads}; use heads = 2."
            )

    def make(self, clients: int) -> Problem:
        """Load the texts and create the model."""
        return speeches(
            self.data,
            clients=clients,
            context=self.context,
            partition=self.partition,
            batch_size=self.batch_size or None,
            client_weights=self.client_weights or EQUAL,
            test_samples=self.test_samples,
            validation=self.validation,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
        )


@recipe(InvalidInput, PROBLEMS)
class RandomQuadratic:
    """Random quadratics with a known optimum, the same for every seed of the experiment.

    Args:
        parameters: Dimension of the models.
        seed: Of the random quadratics; seeds of the experiment do not change them.
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
