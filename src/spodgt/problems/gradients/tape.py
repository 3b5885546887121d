"""Tensor operations recorded once and replayed without Python.

A recording holds the operations below autograd, forward and backward, in the order they ran. Replaying it
builds no graph of derivatives and holds no interpreter lock, so that several threads replay side by side.
It repeats what was done, not what was meant: recordings are compared with the plain code on other numbers
before they are used (`trainable.choose`), and refused where Python looked at a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Replay = Callable[..., None]

_ALIASES = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}  # the same numbers
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
    graph = _Graph()
    wholes = [graph.graph.addInput() for _ in given]
    client = graph.graph.addInput()
    client.setType(torch._C.IntType.get())
    for tensor, whole, one in zip(seen, wholes, row, strict=True):
        own = graph.add("aten::select", [whole, graph.constant(0), client]) if one else whole
        graph.values[id(tensor)] = own
    made = {id(call[3]): call for call in recorder.calls}
    for call in recorder.calls:
        if not graph.spread(call, made):
            graph.call(*call)
    graph.graph.registerOutput(graph.constant(None))
    torch._C._jit_pass_constant_propagation(graph.graph)
    torch._C._jit_pass_cse(graph.graph)
    torch._C._jit_pass_dce(graph.graph)
    return torch._C._create_function_from_graph("replay", graph.graph)


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
    """A graph of TorchScript's, built call by call; `values` knows the tensors of the recording by id."""

    def __init__(self) -> None:
        self.graph = torch._C.Graph()
        self.values: dict[int, torch._C.Value] = {}

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
        if kind in _ALIASES:
            self.values[id(result)] = self._value(args[0], torch._C.TensorType.get())
            return
        schema = kind._schema
        named = dict(zip((each.name for each in schema.arguments), args, strict=False)) | kwargs
        inputs = [
            self._value(named.get(each.name, each.default_value), each.type) for each in schema.arguments
        ]
        node = self.graph.insertNode(self.graph.create(schema.name, inputs, len(schema.returns)))
        for output, returned in zip(node.outputs(), schema.returns, strict=True):
            output.setType(returned.type)
        outputs = list(node.outputs())
        if isinstance(result, list):  # one value that is a list of tensors
            parts = self.graph.insertNode(self.graph.create("prim::ListUnpack", outputs, len(result)))
            outputs = list(parts.outputs())
            for part in outputs:
                part.setType(torch._C.TensorType.get())
        results = result if isinstance(result, tuple | list) else [result]
        self.values |= {id(tensor): value for tensor, value in zip(results, outputs, strict=False)}

    def spread(self, call, made) -> bool:  # type: ignore[no-untyped-def]
        """Slopes of log-softmax with one slope s in a row: s there, less s softmax; False for other calls.

        As it was recorded, it takes a matrix of zeros, a copy of it and one pass more.
        """
        (kind, args, _, result), aten, tensor = call, torch.ops.aten, torch._C.TensorType.get()
        before = made.get(id(args[0]), call) if kind is aten._log_softmax_backward_data.default else call
        if before is call or before[0] is not aten.scatter_add.default or result.dtype != args[1].dtype:
            return False
        zeros, dim, index, slope = before[1]
        rows = index.numel() if index.shape[dim] == 1 and dim == args[2] else 0
        if (
            zeros.numel() != rows * zeros.shape[dim]
            or made.get(id(zeros), call)[0] is not aten.new_zeros.default
        ):
            return False
        scores, index, slope = (self._value(each, tensor) for each in (args[1], index, slope))
        found = self.add("aten::mul_", [self.add("aten::exp", [scores]), self.add("aten::neg", [slope])])
        self.values[id(result)] = self.add("aten::scatter_add_", [found, self.constant(dim), index, slope])
        return True

    def _value(self, argument: object, kind: torch._C.JitType) -> torch._C.Value:
        """An argument where a node can take it."""
        form = kind.kind()
        if form == "OptionalType":
            return self.constant(None) if argument is None else self._value(argument, kind.getElementType())
        if isinstance(argument, Tensor):
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
