"""One client after the other on every thread, by a recording of the module's operations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
        losses, g = x.new_empty(len(x)), x.new_empty(len(x), self.plain.layout.size)
        if not self._replay(_drawn, (x, numbers, losses, g), (samples.inputs, samples.targets)):
            return self.plain.grads(x, *samples.take(numbers, x.dtype), [0] * len(x))
        return g

    def with_losses(self, x: Tensor, inputs: Many, targets: Many, noise: Noise) -> tuple[Tensor, Tensor]:
        if noise is not None and isinstance(inputs, Tensor) and isinstance(targets, Tensor):
            losses, g = x.new_empty(len(x)), x.new_empty(len(x), self.plain.layout.size)
            if self.replays(x, inputs.shape[1]) and self._replay(_gradient, (x, inputs, targets, losses, g)):
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
                if self._replay(_outputs, (x, found), (inputs,)):
                    return found
        return self.plain.outputs(x, inputs)

    def _replay(self, work: Work, rows: Sequence[Tensor], shared: Sequence[Tensor] = ()) -> bool:
        """Do `work` for every row of `rows`, the models first, with what is shared behind it.

        False where it cannot be recorded.
        """
        given, own = (*rows, *shared), [True] * len(rows) + [False] * len(shared)
        kinds = ((each.dtype, each.shape[one:], each.stride()) for each, one in zip(given, own, strict=True))
        key = work, *kinds
        if key not in self.tapes:
            self.tapes[key] = self._recorded(work, given, own)
        tape = self.tapes[key]
        if tape is not None:
            each_row(rows[0], lambda row: _run(tape, given, row, slopes=work is not _outputs))
        return tape is not None

    def _recorded(self, work: Work, given: Sequence[Tensor], own: Sequence[bool]) -> Replay | None:
        module = copy.deepcopy(self.plain.module).to(given[0].dtype).train(work is not _outputs)
        if self.plain.channels_last:
            loops = usable(given[0][0]) and not self.plain.objective.autocast
            module = rewritten(module, loops=loops)
        task, buffers = _Task(module, self.plain.objective), list(module.buffers())
        versions = [buffer._version for buffer in buffers]
        try:
            tape = record(lambda *row: work(self.plain, task, *row), given, own)
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


def _run(tape: Replay, rows: Sequence[Tensor], row: int, *, slopes: bool) -> None:
    # Derivatives are operations like others here, but some kernels ask whether any will be needed.
    with torch.set_grad_enabled(slopes), torch._C._AutoDispatchBelowAutograd(), as_recorded():
        tape(*rows, row)


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
    loss, g, inputs, targets = rest
    few = Samples(inputs.index_select(0, numbers), targets.index_select(0, numbers))
    _gradient(plain, task, row, *few.take(slice(None), row.dtype), loss, g)


def _outputs(plain: LoopEngine, task: _Task, row: Tensor, outputs: Tensor, inputs: Tensor) -> None:
    """outputs ← what the model `row` makes of `inputs`, which a forward pass may write into."""
    with torch.no_grad():
        outputs.copy_(functional_call(task, _named(plain, row), (clone(plain.image(inputs)),)))


def _named(plain: LoopEngine, row: Tensor) -> dict[str, Tensor]:
    """The parameters of the model `row` as a task calls them."""
    pieces = plain.layout.unflatten(row).items()
    return {f"module.{name}": plain.weight(piece.detach()) for name, piece in pieces}
