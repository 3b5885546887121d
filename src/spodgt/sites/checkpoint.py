"""State of the optimizer, scheduler and gradient scaler, as safetensors and JSON beside the
exchange's state.

An older copy costs speed, not exactness, so it is written every few blocks. A copy that is
incomplete or belongs to another optimizer is not used. Tensors are written one by one, so no second
copy of them is made.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

FILE = "training.safetensors"
_TENSOR = "tensor:"
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


def save(folder: Path, objects: Mapping[str, HasState], notify: Notify) -> None:
    """Write the states of all objects in one file, replaced at once; `notify` is called if that
    fails.

    Args:
        folder: Of the site.
        objects: By name; each has `state_dict()`.
        notify: Called with a kind of event and a sentence.
    """
    tensors: dict[str, Tensor] = {}
    texts: dict[str, str] = {}
    for name, each in objects.items():
        values = _encode(each.state_dict(), f"{name}.", tensors)
        texts[name] = json.dumps({"type": type(each).__name__, "state": values})
    path = folder / FILE
    partial = path.with_name(f"{FILE}.part")
    try:
        with partial.open("wb") as file:
            _write(file, tensors, texts)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        notify(
            "training state", f"{path} cannot be written: {error.strerror}; the older copy stays"
        )


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


def load(folder: Path, objects: Mapping[str, HasState], notify: Notify) -> None:
    """Restore what `save` has written; objects that do not fit begin anew, with an event."""
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
            table = json.loads(texts[name])
            if table["type"] != type(each).__name__:
                raise ValueError(f"it is of {table['type']}")
            each.load_state_dict(_decode(table["state"], tensors))
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            notify("training state", f"{name} does not fit: {error}; it begins anew")


def _encode(value: object, path: str, tensors: dict[str, Tensor]) -> object:
    """JSON values; tensors are moved to `tensors` under the path at which they were found."""
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
