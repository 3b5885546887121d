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

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spodgt.problems.gradients.memory import (
    COPIES,
    Call,
    Form,
    MemoryPlan,
    form_of,
    into,
    is_view,
    memory_of,
    tensors_in,
    written_by,
)

aten = torch.ops.aten
_ALIASES = {aten.detach.default, aten.alias.default}  # the same numbers
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
    """replay(*rows, *shared, i) does what was recorded, for client i; every thread in memory of its own.

    It returns the results, which the next call of the same thread overwrites.
    """

    def __init__(self, function: Callable[..., None], plan: MemoryPlan, results: Sequence[Tensor]) -> None:
        self.function, self.plan, self.own = function, plan, threading.local()
        forms = {form: n for n, form in enumerate(plan.forms)}
        self.results = [(tensor, forms.get(form_of(tensor))) for tensor in results]

    def __call__(self, *given: object) -> list[Tensor]:
        own = self.own
        if not hasattr(own, "memory"):
            own.tensors = self.plan.tensors()
            own.memory = torch._C.ScriptList(own.tensors) if own.tensors else []  # converted once
        found = [torch.empty_like(t) if n is None else own.tensors[n] for t, n in self.results]
        self.function(*given, *found, own.memory)
        return found


def record(
    work: Callable[..., None], rows: Sequence[Tensor], shared: Sequence[Tensor], results: Sequence[Tensor]
) -> Replay:
    """A function replay(*rows, *shared, i) that does what `work` did, and returns the results.

    Args:
        work: called once with copies of row 0 of `rows`, with `shared` and `results`, which it writes to.
        rows: tensors of the shapes that replays will have, with one row per client. `work` may write to
            them, too.
        shared: what all clients read.
        results: tensors of the shapes of the results.
    """
    firsts = [torch.empty_strided(t[0].shape, t[0].stride(), dtype=t.dtype).copy_(t[0]) for t in rows]
    with _Recorder() as recorder:
        work(*firsts, *shared, *results)
    calls = _needed(recorder.calls, [*firsts, *results])
    plan = MemoryPlan.of(calls, firsts, shared, results)
    graph = _Graph(plan)
    wholes = [graph.graph.addInput() for _ in rows]
    graph.values |= {id(tensor): graph.graph.addInput() for tensor in shared}
    client = graph.graph.addInput()
    client.setType(torch._C.IntType.get())
    graph.values |= {id(tensor): graph.graph.addInput() for tensor in results}
    memory = graph.graph.addInput()
    memory.setType(torch._C.ListType(torch._C.TensorType.get()))
    graph.unpack(memory)
    for tensor, whole in zip(firsts, wholes, strict=True):
        value = graph.values[id(tensor)] = graph.add("aten::select", [whole, graph.constant(0), client])
        if (copied := graph.view(tensor)) is not None:
            graph.add("aten::copy_", [copied, value, graph.constant(False)])
    for n, call in enumerate(calls):
        if n not in plan.idle:
            graph.call(*call)
    graph.graph.registerOutput(graph.constant(None))
    torch._C._jit_pass_constant_propagation(graph.graph)
    torch._C._jit_pass_cse(graph.graph)
    torch._C._jit_pass_dce(graph.graph)
    return Replay(torch._C._create_function_from_graph("replay", graph.graph), plan, results)


def _needed(calls: Sequence[Call], ends: Sequence[Tensor]) -> list[Call]:
    """The calls that what is written to `ends` depends on."""
    made, live, found = {id(call[3]): call for call in calls}, set(map(memory_of, ends)), []
    every = [each for call in calls for each in _spread(call, made)]
    for call in every[::-1]:
        _, args, kwargs, result = call
        if any(memory_of(each) in live for each in (*tensors_in(result), *written_by(call))):
            found.append(call)
            live |= {memory_of(each) for each in tensors_in(*args, *kwargs.values())}
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

    def __init__(self, plan: MemoryPlan) -> None:
        self.graph, self.plan = torch._C.Graph(), plan
        self.values: dict[int, torch._C.Value] = {}
        self.kept: dict[Form, torch._C.Value] = {}

    def unpack(self, memory: torch._C.Value) -> None:
        """Name the tensors that a replay is given."""
        node = self.graph.insertNode(self.graph.create("prim::ListUnpack", [memory], len(self.plan.forms)))
        for value, form in zip(node.outputs(), self.plan.forms, strict=True):
            value.setType(torch._C.TensorType.get())
            self.kept[form] = value

    def view(self, tensor: Tensor) -> torch._C.Value | None:
        """A tensor in memory that replays keep."""
        return self.kept.get(form_of(tensor)) if memory_of(tensor) in self.plan.places else None

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
        results, schema = list(tensors_in(result)), kind._schema
        kept = bool(results) and all(memory_of(each) in self.plan.places for each in results)
        writes = bool(written_by((kind, args, kwargs, result)))
        if kept and is_view((kind, args, kwargs, result)):
            return
        if kind in _ALIASES:
            self.values[id(result)] = self._value(args[0], torch._C.TensorType.get())
            return
        named = dict(zip((each.name for each in schema.arguments), args, strict=False)) | kwargs
        other = into(kind) if kept and not writes else None
        if kept and kind in COPIES:
            schema, named = aten.copy_.default._schema, {"self": result, "src": args[0]}
        elif other is not None:
            schema, waiting = other._schema, iter(results)
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
