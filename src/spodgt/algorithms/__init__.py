"""The methods, one file each. Adding one is a file and a line in the list below."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

import torch

from spodgt.algorithms.ab_push_pull import ABPushPull
from spodgt.algorithms.g_push_pull import GPushPull
from spodgt.algorithms.k_gt import KGT
from spodgt.algorithms.spod_gt import SpodGT
from spodgt.algorithms.spod_gt_importance import SpodGTImportance
from spodgt.algorithms.spod_gt_memory import SpodGTMemory
from spodgt.algorithms.sporadic_k_gt import SporadicKGT
from spodgt.errors import InvalidConfig
from spodgt.types import Algorithm

_METHODS: tuple[type[Algorithm], ...] = (
    SpodGT,
    SpodGTMemory,
    SpodGTImportance,
    ABPushPull,
    GPushPull,
    SporadicKGT,
    KGT,
)
ALGORITHMS: dict[str, type[Algorithm]] = {cls.name: cls for cls in _METHODS}


def register(cls: type[Algorithm]) -> type[Algorithm]:
    """Add a method from outside the package: the CLI, configs and tables then know its name."""
    ALGORITHMS[cls.name] = cls
    return cls


def method(name: str | Algorithm, **fields: Any) -> Algorithm:
    """Build a method by its CLI name: `method("k-gt", step_size=0.05, local_steps=3)`."""
    if isinstance(name, Algorithm):
        return dataclasses.replace(name, **fields) if fields else name  # type: ignore[type-var]
    if not isinstance(name, str) or name not in ALGORITHMS:
        near = difflib.get_close_matches(str(name), ALGORITHMS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(ALGORITHMS)}."
        raise InvalidConfig(f"method {name!r} is not known; {hint}")
    cls = ALGORITHMS[name]
    known = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in fields:
        if key not in known:
            raise InvalidConfig(f"{key}={fields[key]!r} is not a field of {name}; its fields are {', '.join(known)}.")
    return cls(**fields)


def stack(methods: list[Algorithm], clients: list[int]) -> Algorithm:
    """One method for a batch of runs: fields that differ between runs become one value per client."""
    first, changes = methods[0], {}
    for field in dataclasses.fields(first):  # type: ignore[arg-type]
        values = [getattr(each, field.name) for each in methods]
        if isinstance(values[0], Algorithm):
            changes[field.name] = stack(values, clients)
        elif any(isinstance(value, torch.Tensor) for value in values) or len(set(values)) > 1:
            columns = [
                torch.as_tensor(value).reshape(-1, 1).expand(count, 1)
                for value, count in zip(values, clients, strict=True)
            ]
            changes[field.name] = torch.cat(columns)
    return dataclasses.replace(first, **changes) if changes else first  # type: ignore[type-var]
