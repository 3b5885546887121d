"""Tensor operations recorded once and replayed without Python.

A recording holds the operations below autograd, forward and backward, in the order they ran. Replaying it
builds no graph of derivatives and holds no interpreter lock, so that several threads replay side by side.
It repeats what was done, not what was meant: recordings are compared with the plain code on other numbers
before they are used (`trainable.choose`), and refused where Python looked at a number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_MOST = 2**24  # bytes that replays keep on every thread
aten = torch.ops.aten
_ALIASES = {aten.detach.default, aten.alias.default}  # the same numbers
_COPIES = {aten.clone.default, aten._to_copy.default}  # the same numbers elsewhere
_REFUSED = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output}  # chance, and Python's look
_DTYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5,
    torch.float32: 6, torch.float64: 7, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip
_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2}


class Unrecordable(Exception):
    """An operation whose replay would not do the same again."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps every operation with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[torch._ops.OpOverload, tuple[object, ...], dict[str, object], object]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here, and loading the compiler would take a second

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        refused = not _REFUSED.isdisjoint(func.tags) and not _certain(func, args, kwargs or {})
        if refused or (torch.Tag.dynamic_output_shape in func.tags and _masked(args)):
            raise Unrecordable(str(func))
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


def _certain(func: torch._ops.OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Nothing is left to chance: attention that could drop numbers drops none."""
    named = {each.name: each.default_value for each in func._schema.arguments}
    named |= dict(zip(named, args, strict=False)) | kwargs
    return named.get("dropout_p") == 0


def _masked(args: Sequence[object]) -> bool:
    """The shape of the result depends on numbers: all but a lookup by indices, which is of their shape."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    kinds = {each.dtype for each in indices if isinstance(each, Tensor)}
    return not kinds or not kinds <= {torch.int32, torch.int64}


class Replay:
    """replay(*given, i) does what was recorded, for client i; every thread in memory of its own."""

    def __init__(self, function: Callable[..., None], layout: _Layout) -> None:
        self.function, self.layout, self.own = function, layout, threading.local()

    def __call__(self, *given: object) -> None:
        memory = getattr(self.own, "memory", None)
        if memory is None:
            memory = self.layout.tensors()
            memory = self.own.memory = torch._C.ScriptList(memory) if memory else []  # converted once
        self.function(*given, memory)


def record(work: Callable[..., None], given: Sequence[Tensor], row: Sequence[bool]) -> Replay:
    """A function replay(*given, i) that does what `work` did.

    Args:
        work: called once with `given`, or row 0 of what `row` marks; it writes its results into them.
        given: tensors of the shapes that replays will have.
        row: which of them hold one row per client; a replay for client i takes row i.
    """
    seen = [tensor[0] if one else tensor for tensor, one in zip(given, row, strict=True)]
    with _Recorder() as recorder:
        work(*seen)
    rows = [tensor for tensor, one in zip(seen, row, strict=True) if one]
    calls = _needed(recorder.calls, rows)
    layout = _Layout.of(calls, rows, [t for t, one in zip(seen, row, strict=True) if not one])
    graph = _Graph(layout)
    wholes = [graph.graph.addInput() for _ in given]
    client, memory = graph.graph.addInput(), graph.graph.addInput()
    client.setType(torch._C.IntType.get())
    memory.setType(torch._C.ListType(torch._C.TensorType.get()))
    graph.unpack(memory)
    own = {}
    for tensor, whole, one in zip(seen, wholes, row, strict=True):
        value = graph.add("aten::select", [whole, graph.constant(0), client]) if one else whole
        if one and (copied := graph.view(tensor)) is not None:
            own[id(tensor)] = value, copied
            if _memory(tensor) not in layout.written:
                graph.add("aten::copy_", [copied, value, graph.constant(False)])
        else:
            graph.values[id(tensor)] = value
    for call in calls:
        graph.call(*call)
    for tensor in rows:
        if id(tensor) in own and _memory(tensor) in layout.written:
            value, copied = own[id(tensor)]
            graph.add("aten::copy_", [value, copied, graph.constant(False)])
    graph.graph.registerOutput(graph.constant(None))
    torch._C._jit_pass_constant_propagation(graph.graph)
    torch._C._jit_pass_cse(graph.graph)
    torch._C._jit_pass_dce(graph.graph)
    return Replay(torch._C._create_function_from_graph("replay", graph.graph), layout)


Call = tuple[torch._ops.OpOverload, tuple[object, ...], dict[str, object], object]


def _needed(calls: Sequence[Call], rows: Sequence[Tensor]) -> list[Call]:
    """The calls that what is written to the rows depends on."""
    made, live, found = {id(call[3]): call for call in calls}, set(map(_memory, rows)), []
    every = [each for call in calls for each in _spread(call, made)]
    for call in every[::-1]:
        _, args, kwargs, result = call
        if any(_memory(each) in live for each in (*_tensors(result), *_written(call))):
            found.append(call)
            live |= {_memory(each) for each in _tensors(*args, *kwargs.values())}
    return found[::-1]


def _spread(call: Call, made: Mapping[int, Call]) -> list[Call]:
    """Slopes of log-softmax with one slope s in a row: s there, less s softmax; other calls as they are.

    As it was recorded, it takes a matrix of zeros, a copy of it and one pass more.
    """
    kind, args, _, result = call
    before = made.get(id(args[0]), call) if kind is aten._log_softmax_backward_data.default else call
    if before is call or before[0] is not aten.scatter_add.default or result.dtype != args[1].dtype:  # type: ignore[attr-defined]
        return [call]
    zeros, dim, index, slope = before[1]
    assert isinstance(zeros, Tensor)
    assert isinstance(index, Tensor)
    assert isinstance(dim, int)
    rows = index.numel() if index.shape[dim] == 1 and dim == args[2] else 0
    if zeros.numel() != rows * zeros.shape[dim] or made.get(id(zeros), call)[0] is not aten.new_zeros.default:
        return [call]
    less = -slope  # type: ignore[operator]
    return [
        (aten.exp.default, (args[1],), {}, result),
        (aten.neg.default, (slope,), {}, less),
        (aten.mul_.Tensor, (result, less), {}, result),
        (aten.scatter_add_.default, (result, dim, index, slope), {}, result),
    ]


Form = tuple[int, tuple[int, ...], tuple[int, ...], int]  # memory, shape, strides, where it begins


def _tensors(*values: object) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(*value)


def _reach(tensor: Tensor) -> int:
    """Numbers from its first to its last in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _form(tensor: Tensor) -> Form:
    return _memory(tensor), tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _written(call: Call) -> list[Tensor]:
    """The arguments that an operation writes to."""
    kind, args, kwargs, _ = call
    named = dict(zip((each.name for each in kind._schema.arguments), args, strict=False)) | kwargs
    outs = [each.name for each in kind._schema.arguments if each.alias_info and each.alias_info.is_write]
    return list(_tensors(*(named.get(name) for name in outs)))


# Operations that write to memory of the right shape as it is: others make it anew, or by way of a copy.
_INTO = {
    "mm", "bmm", "addmm", "baddbmm", "add", "sub", "mul", "div", "neg", "exp", "sqrt", "rsqrt", "reciprocal",
    "pow", "sum", "cat", "index_select", "gather", "gelu", "gelu_backward", "silu", "silu_backward", "elu",
    "elu_backward", "sigmoid", "sigmoid_backward", "tanh", "tanh_backward", "threshold_backward", "softplus",
    "softplus_backward", "leaky_relu", "leaky_relu_backward", "maximum", "minimum", "clamp_min", "_softmax",
    "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data",
}  # fmt: skip


@cache
def _into(kind: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
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


@dataclass
class _Layout:
    """Which memory of a recording replays keep, and where it lies: what is not needed together, in one place.

    Attributes:
        places: by memory, the byte where it begins, and the number that it begins with.
        size: bytes in all.
        forms: every tensor in this memory, as replays are given them, and its type.
        written: memory of rows that the recording writes to.
    """

    places: dict[int, tuple[int, int]]
    size: int
    forms: dict[Form, torch.dtype]
    written: set[int]

    @classmethod
    def of(cls, calls: Sequence[Call], rows: Sequence[Tensor], shared: Sequence[Tensor]) -> _Layout:
        first = {_memory(row): -1 for row in rows}
        last = dict.fromkeys(first, len(calls))
        types = {_memory(row): row.dtype for row in rows}
        starts = {_memory(row): int(row.storage_offset()) for row in rows}
        bytes_ = {_memory(row): _reach(row) * row.element_size() for row in rows}
        forms: dict[Form, torch.dtype] = {_form(row): row.dtype for row in rows}
        written: set[int] = set()
        loose = {0, *map(_memory, shared)}  # what is empty has no memory
        for n, call in enumerate(calls):
            kind, args, kwargs, result = call
            given = list(_tensors(*args, *kwargs.values()))
            written |= set(map(_memory, _written(call)))
            known = set(map(_memory, given))
            for tensor in (*given, *_tensors(result)):
                key = _memory(tensor)
                if key not in first and key not in loose:
                    made = _into(kind) is not None or kind in _COPIES
                    if key in known or not made or tensor.storage_offset():
                        loose.add(key)  # from elsewhere, or made anew in every replay
                    else:
                        first[key], types[key], starts[key] = n, tensor.dtype, 0
                        bytes_[key] = tensor.untyped_storage().nbytes()
                if key in first:
                    last[key], forms[_form(tensor)] = max(last.get(key, n), n), tensor.dtype
        if len(rows) > len({_memory(row) for row in rows}):
            return cls({}, 0, {}, set())
        alike = {key for key in first if all(t == types[key] for f, t in forms.items() if f[0] == key)}
        keys = sorted(alike, key=lambda key: -bytes_[key])
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
            return cls({}, 0, {}, set())
        forms = {form: kind for form, kind in forms.items() if form[0] in alike}
        places = {key: (place, starts[key]) for key, place in zip(keys, at.tolist(), strict=True)}
        return cls(places, size, forms, written)

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


def _memory(tensor: Tensor) -> int:
    """Where its numbers are; the recording holds all tensors, so no two have the same by chance."""
    return tensor.untyped_storage().data_ptr()


@contextmanager
def as_recorded() -> Iterator[None]:
    """Replays of this thread run the very operations recorded; TorchScript would take some apart."""
    before = torch._C._get_graph_executor_optimize()
    torch._C._set_graph_executor_optimize(False)
    try:
        yield
    finally:
        torch._C._set_graph_executor_optimize(before)


class _Graph:
    """A graph of TorchScript's, built call by call; `values` knows the tensors of the recording by id.

    What lies in memory that replays keep is given to them, all views of it too: making views and memory takes
    a quarter of the time of a small transformer's gradient.
    """

    def __init__(self, layout: _Layout) -> None:
        self.graph, self.layout = torch._C.Graph(), layout
        self.values: dict[int, torch._C.Value] = {}
        self.kept: dict[Form, torch._C.Value] = {}

    def unpack(self, memory: torch._C.Value) -> None:
        """Name the tensors that a replay is given."""
        node = self.graph.insertNode(self.graph.create("prim::ListUnpack", [memory], len(self.layout.forms)))
        for value, form in zip(node.outputs(), self.layout.forms, strict=True):
            value.setType(torch._C.TensorType.get())
            self.kept[form] = value

    def view(self, tensor: Tensor) -> torch._C.Value | None:
        """A tensor in memory that replays keep."""
        return self.kept.get(_form(tensor)) if _memory(tensor) in self.layout.places else None

    def constant(self, value: object) -> torch._C.Value:
        return self.graph.insertConstant(value)  # type: ignore[attr-defined,no-any-return]

    def add(
        self, name: str, inputs: list[torch._C.Value], kind: torch._C.JitType | None = None
    ) -> torch._C.Value:
        """The single result of a new node."""
        node = self.graph.insertNode(self.graph.create(name, inputs, 1))
        if kind is not None:
            node.output().setType(kind)
        return node.output()

    def call(
        self, kind: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        """One recorded operation."""
        results, schema = list(_tensors(result)), kind._schema
        kept = bool(results) and all(_memory(each) in self.layout.places for each in results)
        writes = bool(_written((kind, args, kwargs, result)))
        if kept and not writes and any(_memory(results[0]) == _memory(t) for t in _tensors(*args)):
            return  # a view
        if kind in _ALIASES:
            self.values[id(result)] = self._value(args[0], torch._C.TensorType.get())
            return
        named = dict(zip((each.name for each in schema.arguments), args, strict=False)) | kwargs
        into = _into(kind) if kept and not writes else None
        if kept and kind in _COPIES:
            schema, named = aten.copy_.default._schema, {"self": result, "src": args[0]}
        elif into is not None:
            schema, waiting = into._schema, iter(results)
            named |= {each.name: next(waiting) for each in schema.arguments if each.is_out}
        inputs = [
            self._value(named.get(each.name, each.default_value), each.type) for each in schema.arguments
        ]
        node = self.graph.insertNode(self.graph.create(schema.name, inputs, len(schema.returns)))
        for output, returned in zip(node.outputs(), schema.returns, strict=True):
            output.setType(returned.type)
        if kept:
            return
        outputs = list(node.outputs())
        if isinstance(result, list):  # one value that is a list of tensors
            parts = self.graph.insertNode(self.graph.create("prim::ListUnpack", outputs, len(result)))
            outputs = list(parts.outputs())
            for part in outputs:
                part.setType(torch._C.TensorType.get())
        every = result if isinstance(result, tuple | list) else [result]
        self.values |= {id(tensor): value for tensor, value in zip(every, outputs, strict=False)}

    def _value(self, argument: object, kind: torch._C.JitType) -> torch._C.Value:
        """An argument where a node can take it."""
        form = kind.kind()
        if form == "OptionalType":
            return self.constant(None) if argument is None else self._value(argument, kind.getElementType())
        if isinstance(argument, Tensor):
            if (kept := self.view(argument)) is not None:
                return kept
            if id(argument) not in self.values:  # not from here: a number of the module's, or of its code
                self.values[id(argument)] = self.constant(argument.detach())
            return self.values[id(argument)]
        if form == "ListType":
            assert isinstance(argument, list | tuple)
            members = [self._value(each, kind.getElementType()) for each in argument]
            return self.add("prim::ListConstruct", members, kind)
        if isinstance(argument, torch.layout):
            if argument is not torch.strided:
                raise Unrecordable(str(argument))
            return self.constant(0)
        if isinstance(argument, torch.dtype | torch.memory_format):
            return self.constant((_DTYPES if isinstance(argument, torch.dtype) else _FORMATS)[argument])  # type: ignore[index]
        return self.constant(float(argument) if form == "FloatType" else argument)  # type: ignore[arg-type]
