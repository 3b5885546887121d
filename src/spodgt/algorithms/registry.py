"""All methods by name, and how one is built from a name, taken apart and stacked for a batch of runs."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, ByClient, HasStepSize, Schedule
from spodgt.algorithms.compose.active_degree_weights import Working
from spodgt.algorithms.compose.adam import Adam
from spodgt.algorithms.compose.clipping import ClipGradient, ClipTracker
from spodgt.algorithms.compose.compression import Compress
from spodgt.algorithms.compose.local_steps import Local
from spodgt.algorithms.compose.momentum import Momentum
from spodgt.algorithms.compose.running_mean import RunningMean
from spodgt.algorithms.compose.schedules import Scheduled, check_names, schedule
from spodgt.algorithms.compose.weight_decay import L2, WeightDecay
from spodgt.algorithms.compose.wrapper import Layer, Wrapper
from spodgt.errors import InvalidConfig
from spodgt.network import Network

# One line per method: its file. Its name is the same with hyphens; tables list methods in this order.
METHODS = (
    "spod_gt",
    "spod_gt_memory",
    "spod_gt_importance",
    "relay",
    "relay_sum",
    "ab_push_pull",
    "g_push_pull",
    "sporadic_k_gt",
    "k_gt",
    "push_pull",
    "ab",
    "gossip_push_pull",
    "asy_sonata",
    "r_fast",
    "frost",
    "push_diging",
    "sgp",
    "osgp",
    "subgradient_push",
    "dsgd",
    "dspodfl",
    "dgd",
    "dfedavg",
    "extra",
    "d2",
    "diging",
    "next",
    "gt_dsgd",
    "gsgt",
    "ad_psgd",
    "gossip",
    "fedavg",
    "mifa",
    "sgd",
)
# From the innermost to the outermost, a schedule after the first. Directions pass through them in this order,
# gradients in the opposite one: clipped, decayed, then filtered by momentum.
LAYERS: dict[str, type[Layer]] = {
    cls.key: cls
    for cls in (
        Local,
        Compress,
        Working,
        ClipTracker,
        Adam,
        WeightDecay,
        Momentum,
        L2,
        ClipGradient,
        RunningMean,
    )
}
GROUP = "spodgt.algorithms"  # entry points of other packages: the CLI name and the class
A = TypeVar("A", bound=type[Algorithm])


def _imported(file: str) -> type[Algorithm]:
    name = file.replace("_", "-")
    for value in vars(import_module(f"spodgt.algorithms.{file}")).values():
        if (
            isinstance(value, type)
            and issubclass(value, Algorithm)
            and vars(value).get("name") == name
        ):
            return value
    raise InvalidConfig(
        f"algorithms/{file}.py must define an Algorithm with the name {name!r}, got none."
    )


ALGORITHMS: dict[str, type[Algorithm]] = {cls.name: cls for cls in map(_imported, METHODS)}


# --- the register ------------------------------------------------------------------------------------
def register(cls: A) -> A:
    """Register a method of your own: this process then accepts its name in configurations and tables.

    Args:
        cls: the method's class, a frozen dataclass derived from `Algorithm`.
    """
    if ALGORITHMS.setdefault(cls.name, cls) is not cls:
        other = ALGORITHMS[cls.name].__name__
        raise InvalidConfig(
            f"name {cls.name!r} of {cls.__name__} is taken by {other}; choose another."
        )
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
        raise InvalidConfig(
            f"method {point.name!r} of {point.value} cannot be loaded: {error}."
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise InvalidConfig(
            f"method {point.name!r} of {point.value} must be an Algorithm, got {cls!r}."
        )
    ALGORITHMS[point.name] = cls


def _class(name: object) -> type[Algorithm]:
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

    Args:
        name: the name, or an instance, which is taken as it is with `fields` changed.
        fields: the method's hyperparameters. `step_size` may be a number, one per client (a list in the
            order of the network's clients, or a dict by name), a schedule or its configuration
            `{"schedule": "inverse-sqrt", "start": 0.1}`. Every method also takes the layers of `LAYERS`:
            momentum, adam, clip_gradient, clip_tracker, weight_decay, l2, local_steps, weights,
            running_mean, compress.
    """
    if isinstance(name, Algorithm):
        if not fields and not (
            isinstance(name, HasStepSize) and isinstance(name.step_size, Schedule)
        ):
            return name
        base, layers = unwrapped(name)
        cls, fields = type(base), {**_fields(base), **layers, **fields}
    else:
        cls = _class(name)
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    layers = {key: fields.pop(key) for key in LAYERS if key in fields and key not in known}
    check_names(fields, cls.name, [*known, *(key for key in LAYERS if key not in known)])
    step = schedule(fields.pop("step_size", None))
    if step is not None and not isinstance(step, Schedule):
        fields["step_size"] = step
    built = Local.of(cls(**fields), layers.pop(Local.key, None))
    if isinstance(step, Schedule):
        built = Scheduled(built, step)
    for key, layer in LAYERS.items():
        built = layer.of(built, layers.get(key))
    return built


def unwrapped(algorithm: Algorithm) -> tuple[Algorithm, dict[str, object]]:
    """The method itself, a schedule put back into its `step_size`, and the values of its layers."""
    layers: dict[str, object] = {}
    base, step = algorithm, None
    while isinstance(base, Wrapper):
        if isinstance(base, Layer):
            layers[base.key] = base.value
        step = base.schedule if isinstance(base, Scheduled) else step
        base = base.base
    return (base if step is None else dataclasses.replace(base, step_size=step)), layers  # type: ignore[type-var]


def installed(algorithm: Algorithm) -> bool:
    """Whether other processes know the method: it comes with this package or with another that has it."""
    base, _ = unwrapped(algorithm)
    own = type(base).__module__.split(".")[0] == "spodgt"
    return own or any(True for _ in entry_points(group=GROUP, name=base.name))


def describe(algorithm: Algorithm) -> dict[str, Any]:
    """The method as plain values for a configuration: `method(**describe(algorithm))` is the same again."""
    base, layers = unwrapped(algorithm)
    values = {
        "name": base.name,
        **_fields(base),
        **{key: layers[key] for key in LAYERS if key in layers},
    }
    return {key: _plain(value) for key, value in values.items() if value is not None}


def _fields(value: Algorithm | Schedule) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        fields = {
            key: _plain(each)
            for key, each in _fields(value).items()
            if (key, each) != ("warmup", 0)
        }
        return {"schedule": value.name, **fields}
    if isinstance(value, ByClient):
        return value.to_dict()
    return value.flatten().tolist() if isinstance(value, Tensor) else value


def with_step_sizes_of(algorithm: Algorithm, network: Network) -> Algorithm:
    """The same method with step sizes that were given by client in the order of the network's clients."""
    step = algorithm.step_size if isinstance(algorithm, HasStepSize) else None
    start: object = step.start if isinstance(step, Schedule) else step
    if not isinstance(start, ByClient):
        return algorithm
    rates = start.resolve(network, f"step_size of {algorithm.name}")
    if isinstance(step, Schedule):
        return method(algorithm, step_size=dataclasses.replace(step, start=rates))
    return method(algorithm, step_size=rates)


# --- batches -----------------------------------------------------------------------------------------
Part = TypeVar("Part", Algorithm, Schedule)


def stack(
    parts: Sequence[Part],
    clients: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Part:
    """One method for a batch of runs: numbers that differ between runs become one row per client.

    `parts` are the methods of the runs, `clients` how many clients each has.
    """

    def column(values: list[Any]) -> Any:
        if isinstance(values[0], Algorithm):
            return stack(values, clients, dtype=dtype, device=device)
        if isinstance(
            values[0], Schedule
        ):  # in double precision: the method casts what a schedule gives
            return stack(values, clients, device=device)
        tensors = any(isinstance(value, Tensor) for value in values)
        if not tensors and len(set(values)) == 1:
            return values[0]
        kind = (
            dtype if tensors or any(isinstance(value, float) for value in values) else torch.int64
        )
        rows = [
            torch.as_tensor(value, dtype=kind, device=device).reshape(-1, 1) for value in values
        ]
        return torch.cat([row.expand(m, 1) for row, m in zip(rows, clients, strict=True)])

    changes = {name: column([getattr(part, name) for part in parts]) for name in _fields(parts[0])}
    return dataclasses.replace(parts[0], **changes)  # type: ignore[type-var]
