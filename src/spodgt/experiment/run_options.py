"""Options of a run: `[run]` of a config, and keyword arguments of `compare`, `sweep` and `tune`.

A new option is a field of `RunOptions`, with its check and its description, and a line of
`ExperimentOptions`, with the type that Python callers pass.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import field
from numbers import Integral
from typing import Annotated, SupportsIndex, TypedDict

import torch
from numpy.typing import ArrayLike
from pydantic import BeforeValidator
from torch import Tensor

from spodgt._util.text import first_line
from spodgt.algorithms import LAYERS, describe, plain_step_size
from spodgt.algorithms.base import Algorithm
from spodgt.engine import ENGINES
from spodgt.errors import InvalidConfig, InvalidInput, caller_level
from spodgt.experiment.early_stopping import EarlyStopping, read_early_stopping
from spodgt.experiment.toml import Table
from spodgt.runtimes.events.durations import Time
from spodgt.validation import Field, Number, Whole, choices, from_table, one_of, recipe, to_table

PAPER_METHODS = (
    "spod-gt",
    "spod-gt-memory",
    "ab-push-pull",
    "g-push-pull",
    "k-gt",
    "sporadic-k-gt",
)
DEFAULT_DELAY = 5000.0
MAX_ROUNDS = 2**53  # a float holds larger numbers inexactly
_MAX_SEEDS = 1_000_000
_DTYPES = ("float32", "float64")
_FIELDS_OF_METHODS = ("step_size", *LAYERS)  # given to `method`, not to `compare`
LIMITS = ("rounds", "epochs", "delay", "seconds")  # keys that end runs


class ExperimentOptions(TypedDict, total=False):
    """Keyword arguments that describe an experiment, of `compare`, `train`, `sweep` and `tune`.

    Those of `[run]` are described in `RunOptions`; all are optional but one of `rounds`, `epochs`,
    `delay` and `seconds`.

    Args:
        x0: initial models, (parameters,) or (clients, parameters); those of the problem if None.
        weights: the rule for weights of drawn networks, "degree" (default) or "random".
        time: how long gradients and messages take, `spodgt.Time(compute=0.02, latency=0.1)`:
            clients continue with what has arrived, and results have virtual seconds. None: rounds
            without seconds.
    """

    rounds: int | None
    epochs: float | None
    delay: float | None
    seconds: float | None
    seeds: int | Iterable[int]
    evaluations: int | None
    every: int | None
    stop_when: EarlyStopping | Mapping[str, object] | None
    keep: str | None
    dtype: torch.dtype
    device: str | torch.device
    gradient_norm: bool | None
    evaluate_on: str | None
    engine: str
    x0: Tensor | ArrayLike | None
    weights: str | None
    time: Time | None


def reject_unknown_options(
    options: Mapping[str, object], known: Iterable[str], function: str
) -> None:
    """Raise for keyword arguments that are not options of a function."""
    known = list(known)
    for name, value in options.items():
        if name in _FIELDS_OF_METHODS and name not in known:
            raise InvalidInput(
                f"{name}={value!r:.60} is not an option of {function}; set it for each method: "
                f'spodgt.method("spod-gt", {name}={value!r:.60}).'
            )
        if name not in known:
            raise InvalidInput(
                f"{name}={value!r:.60} is not an option of {function}; {choices(name, known)}"
            )


# --- checks of fields ----------------------------------------------------------------------------
def _check_methods(value: object) -> object:
    if value == []:
        raise InvalidConfig('methods must hold at least one, got []; use methods = ["spod-gt"].')
    return list(value) if isinstance(value, tuple) else value


def _check_seeds_field(value: object) -> object:
    if isinstance(value, range | list) and len(value):
        return list(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidConfig(f"seeds must be how many, or a list of which, got {value!r}; use 5.")
    return value


def _check_layers(value: object) -> object:
    if not isinstance(value, dict | None):
        raise InvalidConfig(
            f"layers must be a table, got {value!r}; use layers = {{ momentum = 0.9 }}."
        )
    for key, setting in (value or {}).items():
        if key not in LAYERS:
            raise InvalidConfig(f"{key}={setting!r} is not a layer; {choices(key, LAYERS)}")
    return value


@recipe(InvalidInput)
class RunOptions:
    """Methods, seeds, limits and evaluations: `[run]` of a config.

    Args:
        methods: Names, tables with a name and fields, or methods themselves. "file.py:Class" names
            a method in a file of yours.
        step_size: Of methods that set none of their own: a number, one per client, a schedule, or
            "file.py:function", a function of the round; None: the default of each method.
        layers: Of methods that set none of their own: momentum, adam, clip_tracker, … with their
            values.
        seeds: The number of seeds (3: seeds 0, 1, 2), or a list of seeds ([3]: seed 3 alone). All
            seeds of a method run together.
        delay: Stop before this delay, in units of one gradient of a client that always computes.
        rounds: Stop after this number of rounds. One of `delay`, `rounds`, `epochs` and `seconds`
            is required.
        epochs: Stop after so many passes over the training data. An epoch is the number of rounds
            in which clients that always compute use as many samples as all clients hold, so idle
            clients use fewer.
        seconds: Stop after so many seconds of virtual time.
        evaluations: The approximate number of evaluations of a run; None: 50 where an evaluation
            takes less than about a tenth of a second, else 25.
        every: Evaluate after every so many rounds instead.
        stop_when: Early stopping of every method and seed on its own: a `spodgt.EarlyStopping`, in
            a config a table such as { metric = "loss", patience = 10 }. None: runs end at the
            limits.
        keep: "best" keeps the models of the best evaluation beside the last ones, by the metric of
            `stop_when`, else by the accuracy or the loss. None: the last models only.
        dtype: float32 or float64; in Python torch.float32 or torch.float64.
        device: A device of torch for models and data, such as cpu or cuda.
        gradient_norm: Evaluate the global training loss and gradient always or never; None: where
            it is affordable.
        evaluate_on: "validation" evaluates on the validation data of the problem, or on samples
            that it holds out of training, as `tune` does; None: on the test data.
        engine: "auto" uses compiled loops where they apply; "plain" runs `step` and the model as
            they are written, in PyTorch. The environment variable SPODGT_ENGINE=plain does the same
            for all runs.
        workers: Processes that compute independent runs (methods × seeds). Networks are trained
            with one torch thread each, and results do not depend on the number of workers. None:
            one per core if there are several runs of a network on a CPU that take more than a few
            seconds; else all runs in this process, with all threads of torch. The output of workers
            is in `workers` of `out`.
    """

    methods: Annotated[
        list[object], BeforeValidator(_check_methods), Field(examples=[["spod-gt"]])
    ] = field(default_factory=lambda: list(PAPER_METHODS))
    step_size: object = None
    layers: Annotated[dict[str, object] | None, BeforeValidator(_check_layers)] = None
    seeds: Annotated[int | list[object], BeforeValidator(_check_seeds_field)] = 5
    delay: Annotated[Number | None, Field(gt=0, allow_inf_nan=False, examples=[5000])] = None
    rounds: Annotated[Whole | None, Field(gt=0, examples=[100])] = None
    epochs: Annotated[Number | None, Field(gt=0, allow_inf_nan=False, examples=[10])] = None
    seconds: Annotated[Number | None, Field(gt=0, allow_inf_nan=False, examples=[60.0])] = None
    evaluations: Annotated[Whole | None, Field(gt=0, examples=[100])] = None
    every: Annotated[Whole | None, Field(gt=0, examples=[100])] = None
    stop_when: Annotated[EarlyStopping | None, BeforeValidator(read_early_stopping)] = None
    keep: Annotated[
        str | None,
        one_of((None, "best"), "use 'best', or leave it out."),
        Field(examples=["best"]),
    ] = None
    dtype: Annotated[str, one_of(_DTYPES, "choose float32 or float64.")] = "float32"
    device: str = "cpu"
    gradient_norm: Annotated[bool | None, Field(examples=[True])] = None
    evaluate_on: Annotated[
        str | None,
        one_of((None, "validation"), "use 'validation', or leave it out for the test data."),
        Field(examples=["validation"]),
    ] = None
    engine: Annotated[str, one_of(ENGINES, "choose auto or plain.")] = "auto"
    workers: Annotated[Whole | None, Field(gt=0, examples=[2])] = None

    def __post_init__(self) -> None:
        if isinstance(self.seeds, list):
            check_seeds(self.seeds)
        else:
            _check_number_of_seeds(self.seeds)
        _check_rounds(rounds=self.rounds, every=self.every, evaluations=self.evaluations)
        if all(getattr(self, key) is None for key in LIMITS):
            raise InvalidInput("rounds or delay is required, got neither; use delay=5000.")

    @property
    def seed_list(self) -> list[int]:
        """All seeds."""
        if isinstance(self.seeds, int):
            return list(range(self.seeds))
        return check_seeds(self.seeds)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of all numbers of a model."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def torch_device(self) -> torch.device:
        """The device.

        Raises:
            InvalidInput: if a tensor cannot be created there.
        """
        try:
            device = torch.device(self.device)
            if device.type == "mps":
                raise TypeError("it has no float64, in which sums are kept")
            torch.zeros(1, dtype=self.torch_dtype, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            reason = first_line(error).split(". ")[0].rstrip(".")
            raise InvalidInput(
                f"device={self.device!r} cannot be used: {reason}; use cpu."
            ) from None
        return device

    @classmethod
    def parse(cls, table: Mapping[str, object]) -> RunOptions:
        """Read `[run]`; without a limit, runs stop before the default delay."""
        if not any(key in table for key in LIMITS):
            table = {**table, "delay": DEFAULT_DELAY}
        return from_table(cls, table, "run")

    def to_dict(self) -> Table:
        """The options as a table; methods are names or tables."""
        table = to_table(self)
        methods: list[object] = []
        for entry in self.methods:
            methods.append(describe(entry) if isinstance(entry, Algorithm) else entry)
        table["methods"] = methods
        if self.step_size is not None:
            table["step_size"] = plain_step_size(self.step_size)
        if self.engine == "auto":  # configs of older versions do not have this key
            del table["engine"]
        return table


def _check_rounds(**options: int | None) -> None:
    """Raise for a number of rounds that a float does not hold exactly."""
    for key, value in options.items():
        if value is not None and value >= MAX_ROUNDS:
            raise InvalidInput(f"{key} must be below 2**53, got {value!r:.40}; use {key}=100.")


# --- seeds ---------------------------------------------------------------------------------------
def _check_number_of_seeds(count: int) -> None:
    if count > _MAX_SEEDS:
        raise InvalidInput(f"seeds must be at most {_MAX_SEEDS:,}, got {count!r:.40}; use seeds=5.")


def read_seeds(seeds: object) -> list[int]:
    """The seeds of a Python caller: an integer is the number of seeds, others are lists.

    An integer was the number of one seed in older versions; it warns until the next release.
    """
    if not isinstance(seeds, int | Integral):
        return check_seeds(seeds)
    count = int(seeds)
    if isinstance(seeds, bool) or count < 1:
        raise InvalidInput(
            f"seeds must be how many (at least 1) or a list of which, got {seeds!r}; "
            "use seeds=5, or seeds=[0] for seed number 0."
        )
    _check_number_of_seeds(count)
    meanings = {1: "one seed, 0", 2: "two seeds 0, 1", 3: "three seeds 0, 1, 2"}
    meaning = meanings.get(count, f"{count} seeds 0, 1, …, {count - 1}")
    warnings.warn(
        f"seeds={count} now means {meaning}; "
        f"it used to mean seed number {count}; write seeds=[{count}] for that one, "
        f"seeds=range({count}) for no warning.",
        FutureWarning,
        stacklevel=caller_level(),
    )
    return list(range(count))


def check_seeds(seeds: object) -> list[int]:
    """Check a list of seeds: different whole numbers of at least 0."""
    given = seeds
    numbers: list[int] = []
    try:
        if not isinstance(seeds, str):
            given = list(seeds)  # type: ignore[call-overload]
        numbers = [_seed_number(seed) for seed in given]  # type: ignore[attr-defined]
    except TypeError:
        pass  # not a list, or not of whole numbers
    if not numbers or min(numbers) < 0 or max(numbers) >= 2**63:
        raise InvalidInput(
            f"seeds must be whole numbers of at least 0, got {given!r}; use seeds=range(5)."
        )
    if len(set(numbers)) < len(numbers):
        raise InvalidInput(
            f"seeds must differ from each other, got {numbers!r}; use seeds=range(5)."
        )
    return numbers


def _seed_number(seed: SupportsIndex) -> int:
    """A seed as an integer; raises `TypeError` for anything else, also for a bool."""
    if isinstance(seed, bool):
        raise TypeError("a bool is not a seed")
    return operator.index(seed)
