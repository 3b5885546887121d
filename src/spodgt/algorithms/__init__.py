"""The methods, one file each. Adding one is a file and a line in the list below; from outside, `register`."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import torch

from spodgt.algorithms.ab import AB
from spodgt.algorithms.ab_push_pull import ABPushPull
from spodgt.algorithms.base import Algorithm, Schedule
from spodgt.algorithms.compose.momentum import Momentum
from spodgt.algorithms.compose.schedules import (
    Constant,
    Cosine,
    Inverse,
    InverseSqrt,
    Mixed,
    Scheduled,
    schedule,
)
from spodgt.algorithms.d2 import D2
from spodgt.algorithms.dfedavg import DFedAvg
from spodgt.algorithms.dgd import DGD
from spodgt.algorithms.diging import DIGing
from spodgt.algorithms.dsgd import DSGD
from spodgt.algorithms.dspodfl import DSpodFL
from spodgt.algorithms.extra import Extra
from spodgt.algorithms.fedavg import FedAvg
from spodgt.algorithms.frost import Frost
from spodgt.algorithms.g_push_pull import GPushPull
from spodgt.algorithms.gossip import Gossip
from spodgt.algorithms.gossip_push_pull import GossipPushPull
from spodgt.algorithms.gsgt import GSGT
from spodgt.algorithms.gt_dsgd import GTDSGD
from spodgt.algorithms.k_gt import KGT
from spodgt.algorithms.next import Next
from spodgt.algorithms.push_diging import PushDIGing
from spodgt.algorithms.push_pull import PushPull
from spodgt.algorithms.sgd import SGD
from spodgt.algorithms.sgp import SGP
from spodgt.algorithms.spod_gt import SpodGT
from spodgt.algorithms.spod_gt_importance import SpodGTImportance
from spodgt.algorithms.spod_gt_memory import SpodGTMemory
from spodgt.algorithms.sporadic_k_gt import SporadicKGT
from spodgt.algorithms.subgradient_push import SubgradientPush
from spodgt.algorithms.table import markdown, table
from spodgt.errors import InvalidConfig

__all__ = [
    "AB",
    "ALGORITHMS",
    "D2",
    "DGD",
    "DSGD",
    "GSGT",
    "GTDSGD",
    "KGT",
    "SGD",
    "SGP",
    "ABPushPull",
    "Constant",
    "Cosine",
    "DFedAvg",
    "DIGing",
    "DSpodFL",
    "Extra",
    "FedAvg",
    "Frost",
    "GPushPull",
    "Gossip",
    "GossipPushPull",
    "Inverse",
    "InverseSqrt",
    "Momentum",
    "Next",
    "PushDIGing",
    "PushPull",
    "Scheduled",
    "SpodGT",
    "SpodGTImportance",
    "SpodGTMemory",
    "SporadicKGT",
    "SubgradientPush",
    "algorithms",
    "describe",
    "markdown",
    "method",
    "register",
    "stack",
    "table",
    "unwrapped",
]
GROUP = "spodgt.algorithms"  # entry points of other packages: the CLI name and the class
A = TypeVar("A", bound=type[Algorithm])

_METHODS: tuple[type[Algorithm], ...] = (
    SpodGT,
    SpodGTMemory,
    SpodGTImportance,
    ABPushPull,
    GPushPull,
    SporadicKGT,
    KGT,
    AB,
    PushPull,
    GossipPushPull,
    Frost,
    PushDIGing,
    SubgradientPush,
    SGP,
    DSGD,
    DSpodFL,
    DGD,
    DFedAvg,
    Extra,
    D2,
    Next,
    DIGing,
    GTDSGD,
    GSGT,
    Gossip,
    FedAvg,
    SGD,
)
ALGORITHMS: dict[str, type[Algorithm]] = {cls.name: cls for cls in _METHODS}


# --- the register ------------------------------------------------------------------------------------
def register(cls: A) -> A:
    """Add a method from outside the package: the CLI, configs and tables then know its name."""
    known = ALGORITHMS.get(cls.name)
    if known is not None and known is not cls:
        raise InvalidConfig(
            f"name {cls.name!r} of {cls.__name__} is taken by {known.__name__}; choose another."
        )
    ALGORITHMS[cls.name] = cls
    return cls


def algorithms() -> dict[str, type[Algorithm]]:
    """All methods by name, those of installed packages included; one that cannot be loaded is warned of."""
    for point in entry_points(group=GROUP):
        try:
            _load(point)
        except InvalidConfig as error:
            warnings.warn(str(error), stacklevel=2)
    return ALGORITHMS


def _load(point: EntryPoint) -> None:
    if point.name in ALGORITHMS:
        return
    try:
        cls = point.load()
    except Exception as error:  # somebody else's package: ours must still work
        raise InvalidConfig(f"method {point.name!r} of {point.value} cannot be loaded: {error}.") from error
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise InvalidConfig(f"method {point.name!r} of {point.value} must be an Algorithm, got {cls!r}.")
    ALGORITHMS[point.name] = cls


def _class(name: Any) -> type[Algorithm]:
    if isinstance(name, str) and name not in ALGORITHMS:
        for point in entry_points(group=GROUP, name=name):
            _load(point)
    if not isinstance(name, str) or name not in ALGORITHMS:
        near = difflib.get_close_matches(str(name), ALGORITHMS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(ALGORITHMS)}."
        raise InvalidConfig(f"method {name!r} is not known; {hint}")
    return ALGORITHMS[name]


# --- building ----------------------------------------------------------------------------------------
def method(name: str | Algorithm, **fields: Any) -> Algorithm:
    """Build a method by its CLI name: `method("k-gt", step_size=0.05, local_steps=3)`.

    `step_size` may be a number, one per client, a schedule or its configuration
    `{"schedule": "inverse-sqrt", "start": 0.1}`; every method takes `momentum`. An instance is taken
    as it is, with `fields` changed.
    """
    if isinstance(name, Algorithm):
        if not fields and not isinstance(getattr(name, "step_size", None), Schedule):
            return name
        base, beta = unwrapped(name)
        cls, fields = type(base), {**_fields(base), "momentum": beta, **fields}
    else:
        cls = _class(name)
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    beta = 0.0 if "momentum" in known else fields.pop("momentum", 0.0)
    for key, value in fields.items():
        if key not in known:
            names = ", ".join([*known, "momentum"])
            raise InvalidConfig(f"{key}={value!r} is not a field of {cls.name}; its fields are {names}.")
    step = schedule(fields.pop("step_size", None))
    if step is not None and not isinstance(step, Schedule):
        fields["step_size"] = step
    built = cls(**fields)
    if isinstance(step, Schedule):
        built = Scheduled(built, step)
    return built if isinstance(beta, int | float) and beta == 0 else Momentum(built, beta)


def unwrapped(algorithm: Algorithm) -> tuple[Algorithm, Any]:
    """The method itself, a schedule put back into its `step_size`, and its momentum."""
    beta: Any = algorithm.beta if isinstance(algorithm, Momentum) else 0.0
    base: Any = algorithm.base if isinstance(algorithm, Momentum) else algorithm
    if isinstance(base, Scheduled):
        base = dataclasses.replace(base.base, step_size=base.schedule)  # type: ignore[type-var]
    return base, beta


def describe(algorithm: Algorithm) -> dict[str, Any]:
    """The method as plain values for a configuration: `method(**describe(algorithm))` is the same again."""
    base, beta = unwrapped(algorithm)
    values = {"name": base.name, **_fields(base), "momentum": beta}
    return {
        key: _plain(value)
        for key, value in values.items()
        if value is not None and (key, value) != ("momentum", 0)
    }


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return {"schedule": value.name, **{key: _plain(each) for key, each in _fields(value).items()}}
    return value.flatten().tolist() if isinstance(value, torch.Tensor) else value


# --- batches -----------------------------------------------------------------------------------------
def stack(
    methods: list[Algorithm],
    clients: list[int],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Algorithm:
    """One method for a batch of runs: fields that differ between runs become one value per client.

    The runs' methods must be of one kind, but may differ in their numbers, schedules and momentum.
    """
    if any(isinstance(each, Momentum) for each in methods):
        filtered = [each if isinstance(each, Momentum) else Momentum(each, 0.0) for each in methods]
        inner = stack([each.base for each in filtered], clients, dtype=dtype, device=device)
        return Momentum(inner, _column([each.beta for each in filtered], clients, dtype, device))
    if any(isinstance(each, Scheduled) for each in methods):
        methods = [each if isinstance(each, Scheduled) else _constant(each) for each in methods]
    merged: Algorithm = _merge(methods, clients, dtype, device)
    return merged


def _constant(algorithm: Any) -> Scheduled:
    return Scheduled(algorithm, Constant(algorithm.step_size))


def _merge(parts: list[Any], clients: list[int], dtype: torch.dtype, device: torch.device | str) -> Any:
    first, changes = parts[0], {}
    for field in dataclasses.fields(first):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], Algorithm):
            changes[field.name] = _merge(values, clients, dtype, device)
        elif isinstance(values[0], Schedule):
            same = len({type(value) for value in values}) == 1
            # Schedules stay in double precision: a method casts what they give.
            changes[field.name] = (
                _merge(values, clients, torch.float64, device)
                if same
                else Mixed(tuple(values), tuple(clients))
            )
        else:
            changes[field.name] = _column(values, clients, dtype, device)
    return dataclasses.replace(first, **changes)


def _column(values: list[Any], clients: list[int], dtype: torch.dtype, device: torch.device | str) -> Any:
    """The value itself where all runs agree on a number, else one row for every client."""
    tensors = [isinstance(value, torch.Tensor) for value in values]
    if not any(tensors) and len(set(values)) == 1:
        return values[0]
    real = any(tensors) or any(isinstance(value, float) for value in values)
    columns = [
        torch.as_tensor(value, dtype=dtype if real else torch.int64, device=device) for value in values
    ]
    return torch.cat([c.reshape(-1, 1).expand(m, 1) for c, m in zip(columns, clients, strict=True)])
