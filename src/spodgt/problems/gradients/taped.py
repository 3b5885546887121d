"""One client after the other on every thread, by a recording of the module's operations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spodgt.compiled import usable
from spodgt.problems.gradients import Engine, Many, Noise
from spodgt.problems.gradients.loop import LoopEngine, each_row
from spodgt.problems.gradients.rewrite import rewritten
from spodgt.problems.gradients.tape import Replay, Unrecordable, as_recorded, record
from spodgt.problems.objective import Objective
from spodgt.problems.samples import Samples
from spodgt.problems.trees import Tree, call, clone

_LARGEST = 64  # samples in a batch above which calls take no time worth saving
Key = tuple[object, ...]
Work = Callable[..., None]
Given = Sequence[Tensor]
Single = Callable[[int], object]  # does something for row i


@dataclass(frozen=True, eq=False)
class TapeEngine(Engine):
    """Each client's gradient is one replay, without Python and without the interpreter lock.

    In a small network the numbers take less time than the calls: a recording of them, made once for every
    shape of batch, leaves the calls out. What it computes are the very operations of `plain`.
    """

    plain: LoopEngine
    tapes: dict[Key, Replay | None] = field(default_factory=dict, repr=False)
    shapes: dict[Key, torch.Size | None] = field(default_factory=dict, repr=False)  # of outputs

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"tapes": {}, "shapes": {}}  # a copy makes its own

    @staticmethod
    def replays(x: Tensor, size: int) -> bool:
        """Whether gradients of models x on `size` samples each may be replayed."""
        return x.device.type == "cpu" and size <= _LARGEST

    def drawn(self, x: Tensor, samples: Samples, numbers: Tensor) -> Tensor:
        """Gradients on the samples with these numbers (clients, batch), which each thread looks up itself."""
        g, shared = x.new_empty(len(x), self.plain.layout.size), (samples.inputs, samples.targets)
        tape = self._tape(_drawn, (x, numbers), shared, (x.new_empty(()), x.new_empty(g.shape[1])))
        if tape is None:
            return self.plain.grads(x, *samples.take(numbers, x.dtype), [0] * len(x))
        rows = g.unbind()
        each_row(x, lambda row: rows[row].copy_(_run(tape, (x, numbers, *shared), row)[1]))
        return g

    def singly(
        self, state: tuple[Tensor, Tensor, Tensor], samples: Samples, size: int, weight: Tensor | None
    ) -> Callable[[Tensor], Single] | None:
        """How the gradients of rows of x, g, y are made one by one, on any thread, for `size` samples each.

        bind(numbers)(i) makes that of row i, on the samples with the numbers of this row:
        g[i] ← weight · gradient, y[i] += its change. None where replays cannot do it.
        """
        (x, g, y), shared = state, (samples.inputs, samples.targets)
        few = (g, y) if weight is None else (g, y, weight)
        numbers = torch.zeros(len(x), size, dtype=torch.int64)
        results = x.new_empty(()), x.new_empty(self.plain.layout.size)
        tape = self._tape(_tracked, (x, numbers, *few), shared, results)
        return None if tape is None else lambda numbers: partial(_run, tape, (x, numbers, *few, *shared))

    def with_losses(self, x: Tensor, inputs: Many, targets: Many, noise: Noise) -> tuple[Tensor, Tensor]:
        if noise is not None and isinstance(inputs, Tensor) and isinstance(targets, Tensor):
            losses, g = x.new_empty(len(x)), x.new_empty(len(x), self.plain.layout.size)
            if self.replays(x, inputs.shape[1]) and self._all(
                _gradient, (x, inputs, targets), (), (losses, g)
            ):
                return losses, g
        return self.plain.with_losses(x, inputs, targets, noise)

    def outputs(self, x: Tensor, inputs: Tree) -> Many:
        if isinstance(inputs, Tensor) and x.device.type == "cpu":
            key = x.dtype, inputs.dtype, inputs.shape
            if key not in self.shapes:
                (first,) = self.plain.outputs(x[:1], inputs)
                fits = isinstance(first, Tensor) and first.dtype == x.dtype
                self.shapes[key] = first.shape if fits else None  # type: ignore[attr-defined]
            if (shape := self.shapes[key]) is not None:
                found = x.new_empty(len(x), *shape)
                if self._all(_outputs, (x,), (inputs,), (found,)):
                    return found
        return self.plain.outputs(x, inputs)

    def _all(self, work: Work, rows: Given, shared: Given, results: Given) -> bool:
        """Do `work` for every row of `rows`, the models first, and keep its results in those of `results`.

        False where it cannot be recorded.
        """
        tape = self._tape(work, rows, shared, [each[0] for each in results])
        if tape is None:
            return False

        def keep(row: int) -> None:
            found = _run(tape, (*rows, *shared), row, slopes=work is not _outputs)
            for to, piece in zip(results, found, strict=True):
                to[row].copy_(piece)

        each_row(rows[0], keep)
        return True

    def _tape(self, work: Work, rows: Given, shared: Given, results: Given) -> Replay | None:
        """The recording of `work` for tensors like these, the models first; None where it cannot be made."""
        kinds = [(each.dtype, each.shape[1:], each.stride()) for each in rows]
        key = work, *kinds, *((each.dtype, each.shape, each.stride()) for each in shared)
        if key not in self.tapes:
            self.tapes[key] = self._recorded(work, rows, shared, results)
        return self.tapes[key]

    def _recorded(self, work: Work, rows: Given, shared: Given, results: Given) -> Replay | None:
        module = copy.deepcopy(self.plain.module).to(rows[0].dtype).train(work is not _outputs)
        if self.plain.channels_last:
            loops = usable(rows[0][0]) and not self.plain.objective.autocast
            module = rewritten(module, loops=loops)
        task, buffers = _Task(module, self.plain.objective), list(module.buffers())
        versions = [buffer._version for buffer in buffers]
        try:
            tape = record(lambda *given: work(self.plain, task, *given), rows, shared, results)
        except (Unrecordable, RuntimeError):
            return None
        return tape if versions == [buffer._version for buffer in buffers] else None


class _Task(nn.Module):
    """The loss of a module as a module, so that its parameters can be replaced whatever the loss calls."""

    def __init__(self, module: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.module, self.objective = module, objective

    def forward(self, inputs: Tree, *targets: Tree) -> Tree:
        """The loss, or without targets the outputs."""
        return self.objective(self.module, inputs, *targets) if targets else call(self.module, inputs)


def _run(tape: Replay, given: Given, row: int, *, slopes: bool = True) -> list[Tensor]:
    # Derivatives are operations like others here, but some kernels ask whether any will be needed.
    with torch.set_grad_enabled(slopes), torch._C._AutoDispatchBelowAutograd(), as_recorded():
        return tape(*given, row)


def _gradient(
    plain: LoopEngine, task: _Task, row: Tensor, inputs: Tensor, targets: Tensor, loss: Tensor, g: Tensor
) -> None:
    """loss, g ← the loss of the model `row` and its gradient."""
    named = _named(plain, row)
    leaves = [value.requires_grad_() for value in named.values()]
    with torch.enable_grad():
        value = functional_call(task, named, (plain.image(inputs), targets))
        one = torch.ones(value.shape, dtype=value.dtype)  # a constant: replays do not compute with it again
        slopes = torch.autograd.grad(value, leaves, one, allow_unused=True)
    loss.copy_(value.detach())
    for piece, slope in zip(plain.layout.unflatten(g).values(), slopes, strict=True):
        piece.zero_() if slope is None else piece.copy_(slope)


def _drawn(plain: LoopEngine, task: _Task, row: Tensor, numbers: Tensor, *rest: Tensor) -> None:
    """The same on those of all samples that have these numbers."""
    inputs, targets, loss, g = rest
    few = Samples(inputs.index_select(0, numbers), targets.index_select(0, numbers))
    _gradient(plain, task, row, *few.take(slice(None), row.dtype), loss, g)


def _tracked(plain: LoopEngine, task: _Task, row: Tensor, numbers: Tensor, *rest: Tensor) -> None:
    """The same, y += weight · gradient - g, g ← weight · gradient."""
    g, y, *weight, inputs, targets, loss, new = rest
    _drawn(plain, task, row, numbers, inputs, targets, loss, new)
    if weight:
        new.mul_(weight[0])
    g.sub_(new)
    y.sub_(g)
    g.copy_(new)


def _outputs(plain: LoopEngine, task: _Task, row: Tensor, inputs: Tensor, outputs: Tensor) -> None:
    """outputs ← what the model `row` makes of `inputs`, which a forward pass may write into."""
    with torch.no_grad():
        outputs.copy_(functional_call(task, _named(plain, row), (clone(plain.image(inputs)),)))


def _named(plain: LoopEngine, row: Tensor) -> dict[str, Tensor]:
    """The parameters of the model `row` as a task calls them."""
    pieces = plain.layout.unflatten(row).items()
    return {f"module.{name}": plain.weight(piece.detach()) for name, piece in pieces}
