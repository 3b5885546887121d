"""Where replays keep their numbers: all memory of a recording is laid out once, for every thread.

Making views and memory anew takes a quarter of the time of a small transformer's gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

aten = torch.ops.aten
_MOST = 2**24  # bytes that replays keep on every thread
COPIES = {aten.clone.default, aten._to_copy.default}  # the same numbers elsewhere
Call = tuple[torch._ops.OpOverload, tuple[object, ...], dict[str, object], object]
Given = Sequence[Tensor]
Form = tuple[int, tuple[int, ...], tuple[int, ...], int]  # memory, shape, strides, where it begins


def tensors_in(*values: object) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(*value)


def _reach(tensor: Tensor) -> int:
    """Numbers from its first to its last in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def form_of(tensor: Tensor) -> Form:
    return memory_of(tensor), tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def written_by(call: Call) -> list[Tensor]:
    """The arguments that an operation writes to."""
    kind, args, kwargs, _ = call
    named = dict(zip((each.name for each in kind._schema.arguments), args, strict=False)) | kwargs
    outs = [each.name for each in kind._schema.arguments if each.alias_info and each.alias_info.is_write]
    return list(tensors_in(*(named.get(name) for name in outs)))


def is_view(call: Call) -> bool:
    """The same numbers in another form."""
    _, args, kwargs, result = call
    memory = {memory_of(each) for each in tensors_in(*args, *kwargs.values())}
    return not written_by(call) and any(memory_of(each) in memory for each in tensors_in(result))


# Operations that write to memory of the right shape as it is: others make it anew, or by way of a copy.
_INTO = {
    "mm", "bmm", "addmm", "baddbmm", "add", "sub", "mul", "div", "neg", "exp", "sqrt", "rsqrt", "reciprocal",
    "pow", "sum", "mean", "cat", "index", "index_select", "gather", "gelu", "gelu_backward", "silu",
    "silu_backward", "elu", "elu_backward", "sigmoid", "sigmoid_backward", "tanh", "tanh_backward",
    "threshold_backward", "softplus", "softplus_backward", "leaky_relu", "leaky_relu_backward", "maximum",
    "minimum", "clamp_min", "_softmax", "_softmax_backward_data", "_log_softmax",
    "_log_softmax_backward_data",
}  # fmt: skip


@cache
def into(kind: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The same operation into memory that is given to it, where it can."""
    packet, wanted = kind.overloadpacket, [(a.name, str(a.type)) for a in kind._schema.arguments]
    for name in packet.overloads() if packet.__name__ in _INTO else ():
        other = getattr(packet, name)
        outs = [a for a in other._schema.arguments if a.alias_info and a.alias_info.is_write]
        rest = [(a.name, str(a.type)) for a in other._schema.arguments if a not in outs]
        full = f"{other._schema.name}.{name}"
        if (
            outs
            and rest == wanted
            and len(outs) == len(kind._schema.returns)
            and all(a.is_out for a in outs)
            and torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU")
        ):
            return other  # type: ignore[no-any-return]
    return None


def _placed(kind: torch._ops.OpOverload) -> bool:
    """What this operation makes can be made in memory that is there already."""
    return into(kind) is not None or kind in COPIES


@dataclass
class MemoryPlan:
    """Which memory of a recording replays keep, and where it lies: what is not needed together, in one place.

    Attributes:
        places: by memory, the byte where it begins, and the number that it begins with.
        size: bytes in all.
        forms: every tensor in this memory, as replays are given them, and its type.
        idle: calls that copy something to where it is already.
    """

    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    size: int = 0
    forms: dict[Form, torch.dtype] = field(default_factory=dict)
    idle: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, calls: Sequence[Call], rows: Given, shared: Given, results: Given) -> MemoryPlan:
        written = {memory_of(each) for call in calls for each in written_by(call)}
        ends = *(row for row in rows if memory_of(row) not in written), *results
        first = {memory_of(row): -1 for row in ends}
        last = dict.fromkeys(first, len(calls))
        types = {memory_of(row): row.dtype for row in ends}
        starts = {memory_of(row): int(row.storage_offset()) for row in ends}
        bytes_ = {memory_of(row): _reach(row) * row.element_size() for row in ends}
        forms: dict[Form, torch.dtype] = {form_of(row): row.dtype for row in ends}
        # What is empty has no memory. Rows that are written to are used where they are.
        loose = {0, *map(memory_of, shared), *(memory_of(row) for row in rows if memory_of(row) in written)}
        for n, call in enumerate(calls):
            kind, args, kwargs, result = call
            given = list(tensors_in(*args, *kwargs.values()))
            known = set(map(memory_of, given))
            for tensor in (*given, *tensors_in(result)):
                key = memory_of(tensor)
                if key not in first and key not in loose:
                    if key in known or not _placed(kind) or tensor.storage_offset():
                        loose.add(key)  # from elsewhere, or made anew in every replay
                    else:
                        first[key], types[key], starts[key] = n, tensor.dtype, 0
                        bytes_[key] = tensor.untyped_storage().nbytes()
                if key in first:
                    last[key], forms[form_of(tensor)] = max(last.get(key, n), n), tensor.dtype
        if len(rows) + len(results) > len({memory_of(row) for row in (*rows, *results)}):
            return cls()
        alike = {key for key in first if all(t == types[key] for f, t in forms.items() if f[0] == key)}
        homes = _homes(calls, alike - set(map(memory_of, ends)), alike & set(map(memory_of, results)))
        keys = sorted(alike - set(homes), key=lambda key: -bytes_[key])
        begin, end = (np.array([table[key] for key in keys], np.int64) for table in (first, last))
        sizes = np.array([-(-bytes_[key] // 64) * 64 for key in keys], np.int64)
        at = np.zeros(len(keys), np.int64)
        for n in range(len(keys)):  # the largest first, each as low as the others that live with it let it
            near = np.flatnonzero((begin[:n] <= end[n]) & (end[:n] >= begin[n]))
            for other in near[np.argsort(at[near])]:
                if at[other] - at[n] >= sizes[n]:
                    break
                at[n] = max(at[n], at[other] + sizes[other])
        size = int((at + sizes).max()) if keys else 0
        if size > _MOST:
            return cls()
        forms = {form: kind for form, kind in forms.items() if form[0] in alike}
        places = {key: (place, starts[key]) for key, place in zip(keys, at.tolist(), strict=True)}
        for key, (_, whole, begins) in homes.items():
            place, start = places[whole]
            places[key] = place + (begins - start) * types[key].itemsize, 0
        return cls(places, size, forms, {n for n, *_ in homes.values()})

    def tensors(self) -> list[Tensor]:
        """In fresh memory."""
        memory = torch.empty(self.size + 64, dtype=torch.uint8)
        memory = memory[-memory.data_ptr() % 64 :][: self.size]
        found = []
        for (key, shape, strides, offset), kind in self.forms.items():
            place, start = self.places[key]
            numbers = memory[place:]
            numbers = numbers[: len(numbers) // kind.itemsize * kind.itemsize].view(kind)
            found.append(numbers.as_strided(shape, strides, numbers.storage_offset() + offset - start))
        return found


def _homes(calls: Sequence[Call], made: set[int], results: set[int]) -> dict[int, tuple[int, int, int]]:
    """What is made to be copied to a result may be made right there.

    By memory of what is made: the call that copies it, the memory of the result and the number where the copy
    begins. Nothing may touch this part of the result before; behind the copy, nothing may write to the one
    and still need the other.
    """
    touched: dict[int, list[tuple[int, int, int, bool]]] = {}  # by memory: call, first and last, if it writes
    for n, call in enumerate(calls):
        outs = {memory_of(each) for each in written_by(call)}
        for tensor in () if is_view(call) else tensors_in(*call[1], *call[2].values()):
            key, begins = memory_of(tensor), int(tensor.storage_offset())
            touched.setdefault(key, []).append((n, begins, begins + _reach(tensor), key in outs))
    found: dict[int, tuple[int, int, int]] = {}
    for n, (kind, args, _, _) in enumerate(calls):
        if kind is not aten.copy_.default:
            continue
        to, piece = args[:2]
        assert isinstance(to, Tensor)
        assert isinstance(piece, Tensor)
        key, whole, begins = memory_of(piece), memory_of(to), int(to.storage_offset())
        here = [(m, w) for m, a, b, w in touched.get(whole, ()) if a < begins + to.numel() and begins < b]
        there = [(m, w) for m, _, _, w in touched.get(key, ()) if m > n]
        if (
            key in made
            and key not in found
            and whole in results
            and min(m for m, _ in here) == n
            and not any(w for _, w in there)
            and not (there and any(w for m, w in here if m > n))
            and (to.shape, to.stride(), to.dtype) == (piece.shape, piece.stride(), piece.dtype)
            and to.is_contiguous()
            and piece.untyped_storage().nbytes() == to.numel() * to.element_size()
        ):
            found[key] = n, whole, begins
    return found


def memory_of(tensor: Tensor) -> int:
    """Where its numbers are; the recording holds all tensors, so no two have the same by chance."""
    return tensor.untyped_storage().data_ptr()
