"""The row of a site: which tensors of a model travel, in which order, and what each column means.

A row is a flat float32 vector with three parts:

    tracked    every parameter with `requires_grad`, in the order of `model.named_parameters()`
    residual   float64 parameters only: parameter - float32(parameter), so that 48 bits travel
    buffers    running statistics in floating point, as those of BatchNorm

Only the tracked part has a tracker and a contribution. The other columns are mixed like a model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.tensors import NewRow, new_row

_SUPPORTED = (torch.float32, torch.float64)
_STATISTICS = ("running_mean", "running_var")
_SAMPLES = 16  # values of a frozen tensor that enter the fingerprint of the frozen part


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of one tensor of a row."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # "float32" or "float64"

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for length in self.shape:
            size *= length
        return size

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class RowLayout:
    """What a row means; equal layouts have equal hashes."""

    parameters: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...] = ()
    frozen: str = ""  # fingerprint of the parameters without gradient, "" if there are none

    @property
    def tracked(self) -> int:
        """Number of columns with a tracker."""
        return sum(spec.size for spec in self.parameters)

    @property
    def columns(self) -> int:
        """Number of columns of a row."""
        residual = sum(spec.size for spec in self.parameters if spec.dtype == "float64")
        return self.tracked + residual + sum(spec.size for spec in self.buffers)

    @property
    def hash(self) -> str:
        """SHA-256 of the layout as hexadecimal digits, as in the manifest."""
        return hashlib.sha256(json.dumps(self.to_table()).encode()).hexdigest()

    def to_table(self) -> dict[str, object]:
        """JSON values; the inverse of `from_table`."""
        return {
            "parameters": [[spec.name, list(spec.shape), spec.dtype] for spec in self.parameters],
            "buffers": [[spec.name, list(spec.shape), spec.dtype] for spec in self.buffers],
            "frozen": self.frozen,
        }

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> RowLayout:
        """The layout in a manifest; `InvalidInput` if the table has another form."""
        try:
            parameters = _specs_of(table["parameters"])
            buffers = _specs_of(table["buffers"])
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(
                "the layout of the manifest has another form; make it with spodgt peer init "
                "--script."
            ) from None
        return cls(parameters, buffers, str(table.get("frozen", "")))

    def difference(self, other: RowLayout) -> str:
        """The first difference from `other` in words; "" if there is none."""
        pairs = [("parameters", self.parameters, other.parameters)]
        pairs.append(("buffers", self.buffers, other.buffers))
        for what, own, theirs in pairs:
            for mine, yours in zip(own, theirs, strict=False):
                if mine != yours:
                    return f"{mine} is where {yours} was expected"
            if len(own) != len(theirs):
                return f"it has {len(own)} {what}, {len(theirs)} were expected"
        if self.frozen != other.frozen:
            return (
                "its parameters without gradient have other values, shapes or dtypes (for random "
                "ones call torch.manual_seed before the model is made)"
            )
        return ""


def _specs_of(rows: object) -> tuple[TensorSpec, ...]:
    if not isinstance(rows, list | tuple):
        raise TypeError
    return tuple(
        TensorSpec(str(name), tuple(map(int, shape)), str(dtype)) for name, shape, dtype in rows
    )


@dataclass(eq=False)
class ModelRow:
    """The tensors of one model that travel, and the row that they are copied to and from."""

    layout: RowLayout
    names: Sequence[str]
    parameters: Sequence[nn.Parameter]
    owners: Sequence[tuple[nn.Module, str]]  # of the buffers: module and name in it
    _sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._sizes = [parameter.numel() for parameter in self.parameters]

    @property
    def buffers(self) -> list[Tensor]:
        """The present buffers; `module.to` and others replace them by new tensors."""
        return [getattr(module, name) for module, name in self.owners]

    def views(self, row: Tensor) -> list[Tensor]:
        """The tracked columns of a row in the shapes of the parameters, without a copy."""
        parts = torch.split(row[: self.layout.tracked], self._sizes)
        pairs = zip(parts, self.parameters, strict=True)
        return [part.view(parameter.shape) for part, parameter in pairs]

    @torch.no_grad()
    def read(self, new_row: NewRow = new_row) -> Tensor:
        """(columns,) float32 on the CPU: a copy of the present model."""
        row = new_row(self.layout.columns, torch.float32)
        for part, source in self._parts(row):
            part.copy_(source)
        return row

    def _parts(self, row: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Column ranges of `row`, each with the tensor that it holds."""
        start = 0
        for parameter in self.parameters:
            yield row[start : start + parameter.numel()], parameter.detach().reshape(-1)
            start += parameter.numel()
        for parameter in self.parameters:
            if parameter.dtype == torch.float64:
                value = parameter.detach().reshape(-1)
                yield row[start : start + value.numel()], value - value.float()
                start += value.numel()
        for buffer in self.buffers:
            yield row[start : start + buffer.numel()], buffer.detach().reshape(-1)
            start += buffer.numel()

    @torch.no_grad()
    def write(self, row: Tensor) -> None:
        """Replace the model by a row."""
        for target, value in self._values(row):
            target.copy_(value)

    @torch.no_grad()
    def mix(self, row: Tensor, weight: float, half: Tensor | None = None) -> None:
        """x += weight * (row - x), for parameters and buffers.

        Args:
            row: (columns,) another model.
            weight: a of the link.
            half: (columns,) the row is known up to this much, and x moves to the nearest value that
                it may have; None: exactly.
        """
        if half is None:
            for target, value in self._values(row):
                target.lerp_(value.to(target.device), weight)
            return
        pairs = zip(self._values(row), self._values(half), strict=True)
        for (target, value), (_, width) in pairs:
            difference = value.to(target.device) - target
            distance = difference.abs().sub_(width.to(target.device)).clamp_(min=0)
            target.addcmul_(difference.sign_(), distance, value=weight)

    def _values(self, row: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Every tensor of the model with its value in `row`, in the tensor's shape and dtype."""
        start = 0
        residual = self.layout.tracked
        for parameter in self.parameters:
            size = parameter.numel()
            value = row[start : start + size]
            if parameter.dtype == torch.float64:
                value = value.double() + row[residual : residual + size]
                residual += size
            yield parameter.detach(), value.view(parameter.shape)
            start += size
        start = residual
        for buffer in self.buffers:
            value = row[start : start + buffer.numel()].to(buffer.dtype)
            yield buffer.detach(), value.view(buffer.shape)
            start += buffer.numel()


def model_row(model: nn.Module) -> ModelRow:
    """The row of a model: parameters with `requires_grad` at this time, and running statistics.

    Raises:
        InvalidInput: a trained parameter is of a dtype or kind that cannot be exchanged, or none is
        trained.
    """
    trained = {name: each for name, each in _named_parameters(model) if each.requires_grad}
    if not trained:
        raise InvalidInput(
            "model has no parameter with requires_grad=True; unfreeze what is to be trained."
        )
    for name, parameter in trained.items():
        _check_parameter(name, parameter)
    owners = _statistics(model)
    specs = [_spec(name, parameter) for name, parameter in trained.items()]
    layout = RowLayout(
        tuple(specs),
        tuple(_spec(name, getattr(module, each)) for name, (module, each) in owners.items()),
        _fingerprint(model),
    )
    return ModelRow(layout, list(trained), list(trained.values()), list(owners.values()))


def check_unchanged(row: ModelRow, model: nn.Module) -> None:
    """Refuse a model whose trained parameters are no longer those of its row.

    Raises:
        InvalidInput: a parameter was replaced, frozen, unfrozen or cast after `spodgt.join`.
    """
    trained = {id(each): name for name, each in _named_parameters(model) if each.requires_grad}
    pairs = zip(row.layout.parameters, row.parameters, strict=True)
    for spec, parameter in pairs:
        if id(parameter) not in trained:
            raise InvalidInput(
                f"parameter {spec.name} was frozen or replaced after spodgt.join; freeze it, or "
                "load with assign=True, before joining."
            )
        if _dtype(parameter) != spec.dtype:
            raise InvalidInput(
                f"parameter {spec.name} is {_dtype(parameter)} now, it was {spec.dtype} at "
                "spodgt.join; use torch.autocast for mixed precision."
            )
    joined = {id(parameter) for parameter in row.parameters}
    for key, name in trained.items():
        if key not in joined:
            raise InvalidInput(
                f"parameter {name} was unfrozen or added after spodgt.join; do it before joining, "
                "in a new run, or freeze it with requires_grad_(False)."
            )


def _spec(name: str, parameter: Tensor) -> TensorSpec:
    return TensorSpec(name, tuple(parameter.shape), _dtype(parameter))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _clean(name: str) -> str:
    """A name without the prefixes of wrappers, so that wrapped and plain models have one layout."""
    parts = [part for part in name.split(".") if part != "_orig_mod"]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def _clean_all(names: Sequence[str]) -> list[str]:
    """Names without prefixes of wrappers; as they are if two would be equal."""
    cleaned = [_clean(name) for name in names]
    return cleaned if len(set(cleaned)) == len(names) else list(names)


def _named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    named = dict(model.named_parameters())
    yield from zip(_clean_all(list(named)), named.values(), strict=True)


def _statistics(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Running statistics of normalization layers; their counters of batches remain local."""
    named = {}
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name in _STATISTICS and buffer.dtype in _SUPPORTED:
                named[f"{prefix}.{name}" if prefix else name] = (module, name)
    return dict(zip(_clean_all(list(named)), named.values(), strict=True))


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if type(parameter.data) is not Tensor:
        raise InvalidInput(
            f"parameter {name} is a {type(parameter.data).__name__}, which is sharded or "
            "quantized; use DistributedDataParallel instead of FSDP or ZeRO, and train plain "
            "tensors or adapters."
        )
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise InvalidInput(f"parameter {name} is not initialized; run the model once before join.")
    if parameter.is_complex():
        raise InvalidInput(
            f"parameter {name} is {_dtype(parameter)}; train torch.view_as_real of it, in float32."
        )
    if parameter.dtype not in _SUPPORTED:
        raise InvalidInput(
            f"parameter {name} is {_dtype(parameter)}; keep trained parameters in float32 and use "
            "torch.autocast for mixed precision."
        )


def _fingerprint(model: nn.Module) -> str:
    """A hash of the parameters without gradient: names, shapes, and some values of each."""
    digest = hashlib.sha256()
    found = False
    for name, parameter in _named_parameters(model):
        if parameter.requires_grad:
            continue
        found = True
        digest.update(f"{name}:{tuple(parameter.shape)}:{_dtype(parameter)};".encode())
        flat = parameter.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLES)
        sample = flat[::step][:_SAMPLES]
        if sample.is_complex():
            sample = torch.view_as_real(sample)
        sample = sample.to(torch.float64)
        digest.update(sample.cpu().numpy().tobytes())
    return digest.hexdigest() if found else ""
