"""State of optimizer, scheduler and gradient scaler, beside that of the exchange.

One file in the format of safetensors, with JSON for what is no tensor. An older copy costs speed, not
exactness, so it is written every few blocks. A copy that is incomplete or belongs to another
optimizer is not used. Tensors are written one by one, so no second copy of them is made.

Settings such as lr belong to the script: if it has others than at its last start, they are used.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

FILE = "training.safetensors"
KIND = "training state"  # of events
_TENSOR = "tensor:"
_CHECKSUM = "checksum"  # key of the texts' checksum
_POSITION = ("last_epoch", "_step_count", "_last_lr")  # in the state of a scheduler
_DTYPES = {  # names in the header of a safetensors file
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

Notify: TypeAlias = Callable[[str, str], None]  # kind of event, sentence
StateDict: TypeAlias = dict[str, Any]  # as torch defines it


class HasState(Protocol):
    """An optimizer, scheduler or gradient scaler."""

    def state_dict(self) -> StateDict: ...

    def load_state_dict(self, state_dict: StateDict, /) -> object: ...


class Saved(NamedTuple):
    """Content of the file."""

    texts: dict[str, str]  # JSON by name of the object
    tensors: dict[str, Tensor]


class Checkpoint:
    """Saves and restores the objects of a script.

    Args:
        folder: Of the site.
        objects: As the script has made them, by name.
        notify: Called with a kind of event and a sentence if something cannot be used.
    """

    def __init__(self, folder: Path, objects: Mapping[str, HasState], notify: Notify) -> None:
        self.path = folder / FILE
        self.objects = objects
        self.notify = notify
        self.settings = {name: _settings(each) for name, each in objects.items()}
        self._has_failed = False  # to write the newest copy; notified once

    def save(self) -> None:
        """Replace the file at once; the older one remains if that fails."""
        tensors: dict[str, Tensor] = {}
        texts: dict[str, str] = {}
        for name, each in self.objects.items():
            table = {
                "type": type(each).__name__,
                "state": _encode(each.state_dict(), f"{name}.", tensors),
                "settings": self.settings[name],
                "shapes": _parameter_shapes(each),
            }
            texts[name] = json.dumps(table)
        partial = self.path.with_name(f"{FILE}.part")
        try:
            with partial.open("wb") as file:
                _write(file, tensors, {**texts, _CHECKSUM: _checksum(texts)})
            os.replace(partial, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            reason = f"{self.path} cannot be written: {error.strerror}; the older copy stays"
            if not self._has_failed:
                self.notify(KIND, reason)
            self._has_failed = True
        else:
            self._has_failed = False

    def read(self) -> Saved | None:
        """The content of the file; None if there is none that can be read."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                texts = dict(file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if texts.pop(_CHECKSUM, "") != _checksum(texts):
                raise ValueError("its checksum differs")
        except (SafetensorError, OSError, ValueError) as error:
            reason = f"{self.path} cannot be read: {error}; the optimizer begins anew"
            self.notify(KIND, reason)
            return None
        return Saved(texts, tensors)

    def restore(self, saved: Saved) -> None:
        """Continue from saved states; objects that do not fit begin anew."""
        tables = {name: json.loads(text) for name, text in saved.texts.items()}
        change = self._changed_setting(tables)
        if change:
            self.notify(KIND, f"{change}; moments and position in the schedule continue")
        for name, each in self.objects.items():
            if name not in tables:
                continue
            try:
                if tables[name]["type"] != type(each).__name__:
                    raise ValueError(f"it is of {tables[name]['type']}")
                if tables[name]["shapes"] != _parameter_shapes(each):
                    raise ValueError("it holds other parameters, or in another order")
                state = _decode(tables[name]["state"], saved.tensors)
                _restore(each, state, keeps_settings=bool(change))
            except (ValueError, KeyError, TypeError, RuntimeError) as error:
                self.notify(KIND, f"{name} does not fit: {error}; it begins anew")

    def _changed_setting(self, tables: Mapping[str, StateDict]) -> str:
        """The first setting that the script has changed since its last start; "" if there is none."""
        for name, settings in self.settings.items():
            before = tables.get(name, {}).get("settings", settings)
            for path in [*settings, *before]:
                old = before.get(path)
                new = settings.get(path)
                if old != new:
                    return f"the script changed {path} of its {name} from {old} to {new}"
        return ""


def _restore(each: HasState, state: StateDict, *, keeps_settings: bool) -> None:
    """Load a state; with `keeps_settings` rates and schedule are those that the script has given."""
    if isinstance(each, Optimizer):
        present = each.state_dict()["param_groups"]
        if keeps_settings:
            state["param_groups"] = present
        elif len(present) == len(state["param_groups"]):
            pairs = zip(present, state["param_groups"], strict=True)
            state["param_groups"] = [{**own, **saved} for own, saved in pairs]
    elif keeps_settings and isinstance(each, LRScheduler):
        advance_schedule(each, state["last_epoch"])
        return
    each.load_state_dict(state)


def advance_schedule(scheduler: LRScheduler, last_epoch: int) -> None:
    """Step a schedule to a position; one that is there already remains."""
    if isinstance(scheduler, ReduceLROnPlateau):
        return  # its steps need the losses; it begins anew
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps of a schedule before those of its optimizer
        while scheduler.last_epoch < last_epoch:
            scheduler.step()


def _parameter_shapes(each: HasState) -> list[list[list[int]]]:
    """Shapes of the parameters of each group; torch restores moments by their position."""
    if not isinstance(each, Optimizer):
        return []
    groups = each.param_groups
    return [[list(parameter.shape) for parameter in group["params"]] for group in groups]


def _checksum(texts: Mapping[str, str]) -> str:
    """Of all texts; the tensors are large, and damage of them costs speed only."""
    return f"{zlib.crc32(json.dumps(sorted(texts.items())).encode()):08x}"


def _settings(each: HasState) -> dict[str, str]:
    """What the script has chosen, by path, without what changes in training.

    That is the position of a schedule, the lr that it sets, and the scale of a scaler.
    """
    found: dict[str, str] = {}
    if isinstance(each, Optimizer):
        for number, group in enumerate(each.param_groups):
            chosen = {key: value for key, value in group.items() if key != "params"}
            if "initial_lr" in chosen:  # a schedule sets lr from it
                chosen["lr"] = chosen.pop("initial_lr")
            prefix = f"{number}." if len(each.param_groups) > 1 else ""
            _collect_settings(chosen, prefix, found)
    elif isinstance(each, LRScheduler):
        _collect_settings(each.state_dict(), "", found)
        found = {path: text for path, text in found.items() if not _is_position(path)}
    return found


def _is_position(path: str) -> bool:
    """Whether a value of a scheduler's state changes with its steps."""
    return any(part in _POSITION for part in path.split("."))


def _collect_settings(value: object, path: str, found: dict[str, str]) -> None:
    if isinstance(value, Tensor | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key, each in value.items():
            _collect_settings(each, f"{path}{key}.", found)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            _collect_settings(each, f"{path}{number}.", found)
    elif value is None or isinstance(value, bool | int | float | str):
        found[path.removesuffix(".")] = repr(value)


def _write(file: BinaryIO, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """A safetensors file: length of the header, header as JSON, numbers of all tensors."""
    header: dict[str, object] = {"__metadata__": dict(texts)}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)))
    file.write(text)
    for tensor in tensors.values():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        file.write(flat.view(torch.uint8).numpy().data)


def _encode(value: object, path: str, tensors: dict[str, Tensor]) -> object:
    """JSON values; tensors are moved to `tensors` under the path at which they were found."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Tensor):
        if value.dtype not in _DTYPES:
            return {"omitted": str(value.dtype)}
        tensors[path] = value
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        pairs = [
            [_key(key), _encode(each, f"{path}{key}.", tensors)] for key, each in value.items()
        ]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        items = [_encode(each, f"{path}{number}.", tensors) for number, each in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    return {"omitted": type(value).__name__}  # functions of schedulers: the script makes them again


def _key(key: object) -> list[object]:
    return [type(key).__name__, key if isinstance(key, int) else str(key)]


def _decode(value: StateDict, tensors: Mapping[str, Tensor]) -> Any:
    (kind, content), *_ = value.items()
    if kind == _TENSOR:
        return tensors[content]
    if kind == "dict":
        decoded = {}
        for (_, key), each in content:
            if "omitted" not in each:
                decoded[key] = _decode(each, tensors)
        return decoded
    if kind in ("list", "tuple"):
        items = [_decode(each, tensors) for each in content]
        return items if kind == "list" else tuple(items)
    if kind == "omitted":
        return None
    return content
