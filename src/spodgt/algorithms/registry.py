"""All methods by name: building them from a name, taking them apart, stacking them for a batch."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, ByClient, HasStepSize, Schedule
from spodgt.algorithms.compose.active_degree_weights import ActiveDegreeLayer
from spodgt.algorithms.compose.adam import Adam
from spodgt.algorithms.compose.clipping import ClipGradient, ClipTracker
from spodgt.algorithms.compose.compression import Compression
from spodgt.algorithms.compose.local_steps import LocalStepsLayer
from spodgt.algorithms.compose.momentum import Momentum
from spodgt.algorithms.compose.optimizer import OptimizerLayer
from spodgt.algorithms.compose.running_mean import RunningMean
from spodgt.algorithms.compose.schedules import (
    FunctionSchedule,
    Scheduled,
    check_names,
    function_schedule,
    schedule,
)
from spodgt.algorithms.compose.weight_decay import L2, WeightDecay
from spodgt.algorithms.compose.wrapper import Layer, Wrapper
from spodgt.code_references import UserObject, import_object, is_reference
from spodgt.errors import InvalidConfig
from spodgt.network import Network
from spodgt.validation import choices

# One line per method: its file. The name is the same with hyphens; tables have this order.
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
    "local_gt",
    "tracked_diloco",
    "local_sgd",
    "local_sgp",
    "push_pull",
    "ab",
    "gossip_push_pull",
    "asy_sonata",
    "frost",
    "push_diging",
    "sgp",
    "osgp",
    "subgradient_push",
    "dsgd",
    "dspodfl",
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
    "scaffold",
    "mifa",
    "sgd",
)
# Other names of methods, from papers with the same update.
ALIASES = {
    "dgd": "dsgd",  # [nedic2009distributed], with full gradients
    "r-fast": "asy-sonata",  # [zhu2023rfast], with stochastic gradients
}
# From the innermost to the outermost layer; a schedule follows the first. Directions pass through
# them in this order, gradients in the opposite one: clipped, decayed, then filtered by momentum.
LAYERS: dict[str, type[Layer]] = {
    cls.key: cls
    for cls in (
        LocalStepsLayer,
        Compression,
        ActiveDegreeLayer,
        ClipTracker,
        Adam,
        OptimizerLayer,
        WeightDecay,
        Momentum,
        L2,
        ClipGradient,
        RunningMean,
    )
}
GROUP = "spodgt.algorithms"  # entry points of other packages: name and class of a method
A = TypeVar("A", bound=type[Algorithm])


def _import_method(file: str) -> type[Algorithm]:
    """The class of a method file: the `Algorithm` with the name of the file."""
    name = file.replace("_", "-")
    for value in vars(import_module(f"spodgt.algorithms.{file}")).values():
        is_method = isinstance(value, type) and issubclass(value, Algorithm)
        if is_method and vars(value).get("name") == name:
            return value  # type: ignore[no-any-return]
    raise InvalidConfig(
        f"algorithms/{file}.py must define an Algorithm with the name {name!r}, got none."
    )


ALGORITHMS: dict[str, type[Algorithm]] = {cls.name: cls for cls in map(_import_method, METHODS)}


# --- registration ---------------------------------------------------------------------------------
def register(cls: A) -> A:
    """Add a method, so that the command line, configs and tables find it by name.

    Args:
        cls: The class of the method, a frozen dataclass derived from `Algorithm`.

    Returns:
        The class, so that `register` can be used as a decorator.

    Raises:
        InvalidConfig: Another method has this name.
    """
    name = cls.name
    if name in ALIASES or ALGORITHMS.setdefault(name, cls) is not cls:
        other = ALGORITHMS[ALIASES.get(name, name)].__name__
        raise InvalidConfig(f"name {name!r} of {cls.__name__} is taken by {other}; choose another.")
    return cls


def algorithms() -> dict[str, type[Algorithm]]:
    """All methods by name, including those of installed packages; warns if one cannot be loaded."""
    for entry_point in entry_points(group=GROUP):
        try:
            _load(entry_point)
        except InvalidConfig as error:
            warnings.warn(str(error), stacklevel=2)
    return ALGORITHMS


def _load(entry_point: EntryPoint) -> None:
    """Add the method of an installed package."""
    name = entry_point.name
    if name in ALGORITHMS or name in ALIASES:
        return
    try:
        cls = entry_point.load()
    except Exception as error:  # a broken package must not break this one
        raise InvalidConfig(
            f"method {name!r} of {entry_point.value} cannot be loaded: {error}."
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise InvalidConfig(
            f"method {name!r} of {entry_point.value} must be an Algorithm, got {cls!r}."
        )
    ALGORITHMS[name] = cls


_REFERENCES: dict[type[Algorithm], str] = {}  # "file.py:Class" of methods of the user
_FILES: dict[str, UserObject] = {}  # by reference


def _import_reference(reference: str) -> type[Algorithm]:
    """The class of a method that the user names as "file.py:Class"."""
    key = f"method {reference!r}"
    found = import_object(reference, key)
    cls = found.value
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        classes = []
        for name, value in vars(found.module).items():
            if isinstance(value, type) and issubclass(value, Algorithm):
                classes.append(name)
        hint = choices(reference.rpartition(":")[2], classes)
        if not classes:
            hint = "the file has none, see docs/howto/add-method.md."
        raise InvalidConfig(f"{key} must name a class derived from spodgt.Algorithm; {hint}")
    _REFERENCES[cls] = reference
    _FILES[reference] = found
    return cls


def user_code(algorithm: Algorithm) -> dict[str, UserObject]:
    """Objects of the user in files that `describe` names, by their references."""
    values = describe(algorithm).values()
    return {value: _FILES[value] for value in values if isinstance(value, str) and value in _FILES}


def find_class(name: object) -> type[Algorithm]:
    """The class of a method by its name, its alias or its reference "file.py:Class".

    Raises:
        InvalidConfig: there is none.
    """
    if isinstance(name, str) and is_reference(name):
        return _import_reference(name)
    if isinstance(name, str):
        name = ALIASES.get(name, name)
        if name not in ALGORITHMS:  # searching installed packages is slow
            for entry_point in entry_points(group=GROUP, name=name):
                _load(entry_point)
        if name in ALGORITHMS:
            return ALGORITHMS[name]
    similar = difflib.get_close_matches(str(name), [*ALGORITHMS, *ALIASES], 1)
    hint = f"did you mean {similar[0]!r}?" if similar else f"choose from {', '.join(ALGORITHMS)}."
    if isinstance(name, str) and name.endswith(".py"):
        hint = f"name the class in the file: {name}:CLASS."
    raise InvalidConfig(f"method {name!r} is not known; {hint}")


# --- building -------------------------------------------------------------------------------------
def method(name: str | Algorithm, **fields: Any) -> Algorithm:
    """Build a method by its name: `method("k-gt", step_size=0.05, local_steps=3)`.

    Args:
        name: The name, "file.py:Class" for a method in a file of yours, or an instance, of which
            `fields` are changed.
        fields: Hyperparameters of the method. `step_size` may be a number, one per client (a list
            in the order of the network's clients, or a dict by name), a schedule or its config
            `{"schedule": "inverse-sqrt", "start": 0.1}`, or a function of the round, from 1. Every
            method also takes the keywords of `LAYERS`: local_steps, compress, weights,
            clip_tracker, adam, optimizer, weight_decay, momentum, l2, clip_gradient, running_mean.

    Returns:
        The method, wrapped in its layers.

    Raises:
        InvalidConfig: The name or a field is not known.
        InvalidInput: The value of a field is out of range.
    """
    if isinstance(name, Algorithm):
        if not fields and not _has_unwrapped_schedule(name):
            return name
        base, layers = unwrap(name)
        cls = type(base)
        fields = {**_field_values(base), **layers, **fields}
    else:
        cls = find_class(name)
    field_names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    layer_keys = [key for key in LAYERS if key not in field_names]
    check_names(fields, cls.name, [*field_names, *layer_keys])

    layer_values = {key: fields.pop(key) for key in layer_keys if key in fields}
    step_size = read_step_size(fields.pop("step_size", None))
    if isinstance(step_size, Schedule):
        return _wrap(cls(**fields), layer_values, step_size)
    if step_size is not None:
        fields["step_size"] = step_size
    return _wrap(cls(**fields), layer_values, None)


def _wrap(
    base: Algorithm, layer_values: Mapping[str, object], step_size: Schedule | None
) -> Algorithm:
    """Wrap a method in its layers; the schedule is the next wrapper around local steps."""
    built = base
    for key, layer in LAYERS.items():
        built = layer.wrap(built, layer_values.get(key))
        if layer is LocalStepsLayer and step_size is not None:
            built = Scheduled(built, step_size)
    return built


def read_step_size(value: object) -> object:
    """A step size from its config; "file.py:function" names a function of the round."""
    if not isinstance(value, str) or not is_reference(value):
        return schedule(value)
    found = import_object(value, f"step_size={value!r}")
    if not callable(found.value):
        names = [name for name, member in vars(found.module).items() if callable(member)]
        raise InvalidConfig(
            f"step_size={value!r} must name a function of the round; "
            f"{choices(value.rpartition(':')[2], names)}"
        )
    _FILES[value] = found
    return function_schedule(found.value, value)


def plain_step_size(value: object) -> object:
    """A step size as a value for a config."""
    return _to_plain(schedule(value) if callable(value) else value)


def _has_unwrapped_schedule(algorithm: Algorithm) -> bool:
    """Whether the step size is a schedule that no wrapper evaluates yet."""
    return isinstance(algorithm, HasStepSize) and isinstance(algorithm.step_size, Schedule)


def unwrap(algorithm: Algorithm) -> tuple[Algorithm, dict[str, object]]:
    """The method without wrappers, a schedule as its `step_size`, and the values of its layers."""
    layers: dict[str, object] = {}
    schedule_or_none: Schedule | None = None
    base = algorithm
    while isinstance(base, Wrapper):
        if isinstance(base, Layer):
            layers[base.key] = base.value
        if isinstance(base, Scheduled):
            schedule_or_none = base.schedule
        base = base.base
    if schedule_or_none is not None:
        base = dataclasses.replace(base, step_size=schedule_or_none)  # type: ignore[type-var]
    return base, layers


def is_installed(algorithm: Algorithm) -> bool:
    """Whether other processes can import the method: it is part of this or another package."""
    base, _ = unwrap(algorithm)
    step_size = base.step_size if isinstance(base, HasStepSize) else None
    if isinstance(step_size, FunctionSchedule) and not step_size.reference:
        return False
    if type(base) in _REFERENCES:
        return True
    if type(base).__module__.split(".")[0] == "spodgt":
        return True
    return len(entry_points(group=GROUP, name=base.name)) > 0


def describe(algorithm: Algorithm) -> dict[str, Any]:
    """The method as plain values for a config: `method(**describe(algorithm))` is equal to it."""
    base, layers = unwrap(algorithm)
    values: dict[str, object] = {"name": _REFERENCES.get(type(base), base.name)}
    values.update(_field_values(base))
    values.update({key: layers[key] for key in LAYERS if key in layers})
    return {key: _to_plain(value) for key, value in values.items() if value is not None}


def _field_values(owner: Algorithm | Schedule) -> dict[str, object]:
    fields = dataclasses.fields(owner)  # type: ignore[arg-type]
    return {field.name: getattr(owner, field.name) for field in fields}


def _to_plain(value: object) -> object:
    if isinstance(value, FunctionSchedule):
        return value.describe()
    if isinstance(value, Schedule):
        values = _field_values(value)
        if values["warmup"] == 0:
            del values["warmup"]
        plain = {key: _to_plain(field_value) for key, field_value in values.items()}
        return {"schedule": value.name, **plain}
    if isinstance(value, ByClient):
        return value.to_dict()
    if isinstance(value, Tensor):
        return value.flatten().tolist()
    return value


def with_step_sizes_of(algorithm: Algorithm, network: Network) -> Algorithm:
    """The same method with step sizes by client name in the order of the network's clients."""
    step_size = algorithm.step_size if isinstance(algorithm, HasStepSize) else None
    start: object = step_size.start if isinstance(step_size, Schedule) else step_size
    if not isinstance(start, ByClient):
        return algorithm
    rates = start.resolve(network, f"step_size of {algorithm.name}")
    if isinstance(step_size, Schedule):
        return method(algorithm, step_size=dataclasses.replace(step_size, start=rates))
    return method(algorithm, step_size=rates)


# --- batches --------------------------------------------------------------------------------------
Part = TypeVar("Part", Algorithm, Schedule)


def stack(
    parts: Sequence[Part],
    clients: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Part:
    """One method for a batch of runs; values that differ between runs become columns.

    Args:
        parts: The methods of the runs, which differ in numbers only.
        clients: Number of clients of each run.
        dtype: Of the columns; those of schedules are float64.
        device: Of the columns.

    Returns:
        A method; fields that differ between runs are (clients of all runs, 1).
    """
    columns: dict[str, object] = {}
    for name, first in _field_values(parts[0]).items():
        values: list[Any] = [getattr(part, name) for part in parts]
        if isinstance(first, Algorithm):
            columns[name] = stack(values, clients, dtype=dtype, device=device)
        elif isinstance(first, Schedule):
            columns[name] = stack(values, clients, device=device)
        else:
            columns[name] = _stack_values(values, clients, dtype, device)
    return dataclasses.replace(parts[0], **columns)  # type: ignore[type-var, arg-type]


def _stack_values(
    values: list[Any], clients: Sequence[int], dtype: torch.dtype, device: torch.device | str
) -> object:
    """The common value of all runs, or one row per client."""
    has_tensors = any(isinstance(value, Tensor) for value in values)
    if not has_tensors and len(set(values)) == 1:
        return values[0]
    if not has_tensors and not any(isinstance(value, float) for value in values):
        dtype = torch.int64
    columns = []
    for value, count in zip(values, clients, strict=True):
        column = torch.as_tensor(value, dtype=dtype, device=device).reshape(-1, 1)
        columns.append(column.expand(count, 1))
    return torch.cat(columns)
