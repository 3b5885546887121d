"""State of the optimizer, scheduler and gradient scaler, as safetensors and JSON beside the exchange's state.

An older copy costs speed, not exactness, so it is written every few blocks. A copy that is incomplete or
belongs to another optimizer is not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FILE = "training.safetensors"
_TENSOR = "tensor:"


StateDict: TypeAlias = dict[str, Any]  # as torch defines it


class HasState(Protocol):
    """An optimizer, scheduler or gradient scaler."""

    def state_dict(self) -> StateDict: ...

    def load_state_dict(self, state_dict: StateDict, /) -> object: ...


def save(folder: Path, objects: Mapping[str, HasState]) -> None:
    """Write the states of all objects in one file, replaced at once.

    Args:
        folder: Of the site.
        objects: By name; each has `state_dict()`.
    """
    tensors: dict[str, Tensor] = {}
    texts: dict[str, str] = {}
    for name, each in objects.items():
        values = _encode(each.state_dict(), f"{name}.", tensors)
        texts[name] = json.dumps(values)
    path = folder / FILE
    partial = path.with_name(f"{FILE}.part")
    save_file(tensors, partial, texts)
    os.replace(partial, path)


def load(folder: Path, objects: Mapping[str, HasState], notify: Callable[[str, str], None]) -> None:
    """Restore what `save` has written; objects that do not fit begin anew, and `notify` is called."""
    path = folder / FILE
    if not path.exists():
        return
    try:
        with safe_open(path, framework="pt") as file:
            texts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        notify("training state", f"{path} cannot be read: {error}; the optimizer begins anew")
        return
    for name, each in objects.items():
        if name not in texts:
            continue
        try:
            each.load_state_dict(_decode(json.loads(texts[name]), tensors))
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            notify("training state", f"{name} does not fit: {error}; it begins anew")


def _encode(value: object, path: str, tensors: dict[str, Tensor]) -> object:
    """JSON values; tensors are moved to `tensors` under the path at which they were found."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
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
