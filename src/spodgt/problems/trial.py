"""A module tried out before the first round: what cannot be trained is refused in one sentence."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from spodgt.errors import InvalidData, InvalidInput
from spodgt.problems.carried_state import refuse_carried_state
from spodgt.problems.client_data import ClientData
from spodgt.problems.gradients import Layout
from spodgt.problems.objective import (
    Accuracy,
    Objective,
    accuracy_of,
    compares_classes,
    compares_elements,
    ignored_target,
)
from spodgt.problems.samples import Loose, Samples, first_line
from spodgt.problems.trees import Tree, call, clone, concat, leaves, random_state, seeded

CONVOLUTIONS = nn.modules.conv._ConvNd
_PROBE = 4  # samples used to try a module out
_CLIENTS = 256  # clients whose first samples are tried where each may be of another form
_RUNNING = nn.modules.batchnorm._NormBase
Forward = Callable[[nn.Module, Tree], Tree]
_HERE = torch.device("cpu"), torch.float32


def copied(model: object) -> nn.Module:
    """A copy in single precision to work with, of a module that can be trained."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise InvalidInput(
                f"model must have parameters of known shape, but {name!r} has none yet; call the model "
                "once on a batch, as lazy layers ask for."
            )
        if parameter.is_complex():
            raise InvalidInput(f"model must have real parameters, but {name!r} is complex; split it in two.")
        if parameter._backward_hooks:  # copies do not keep them
            raise InvalidInput(
                f"model must not have hooks on parameters, but {name!r} has; put it in the loss."
            )
    try:
        module = copy.deepcopy(model).cpu().eval().float()
    except Exception as error:
        raise InvalidInput(
            f"model must be something that copy.deepcopy copies, but: {first_line(error)}; use "
            "torch.nn.utils.parametrizations instead of the older weight_norm and spectral_norm."
        ) from error
    if not any(p.numel() for p in module.parameters() if p.requires_grad):
        raise InvalidInput("model must have parameters to train, got none.")
    return module


def in_own_precision(model: nn.Module, single: nn.Module) -> nn.Module:
    """A copy of `model` for the engines, which convert it to the precision of a run.

    `single`, its copy in single precision, will do unless there are numbers that it has rounded: frozen
    parameters and constant buffers of double precision keep all their digits for runs in float64.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.dtype != torch.float64 for tensor in tensors):
        return single
    return copy.deepcopy(model).cpu().eval()


@dataclass(frozen=True, eq=False)
class Trial:
    """A module after its first batch."""

    module: nn.Module
    objective: Objective  # with what was found out about the loss
    inputs: Tree
    targets: Tree
    accuracy: Accuracy | None
    width: int  # numbers in the outputs of one sample

    @staticmethod
    def of(module: nn.Module, objective: Objective, data: ClientData) -> Trial:
        """Call the module in evaluation mode and compare outputs with targets."""
        inputs, targets = data.some(data.holdings[0][:_PROBE], *_HERE)
        with trying("model and loss"), _broadcasting() as said, torch.no_grad():
            outputs = None if objective.whole else call(module, clone(inputs))
            if outputs is None:
                value = objective(module, clone(inputs), clone(targets))
            else:
                _compare(objective, outputs, targets)
                value = objective.of(outputs, clone(targets))
        if not isinstance(value, Tensor):
            raise InvalidInput(f"loss must return a tensor, got {type(value).__name__}; return one number.")
        if value.shape:
            raise InvalidInput(
                f"loss must return one number, got shape {tuple(value.shape)}; use reduction='mean'."
            )
        if said:
            raise InvalidInput(f"loss compares outputs and targets of unequal shape: {said[0]}")
        if outputs is None:
            trial = Trial(module, objective, inputs, targets, None, 1)
            trial._refuse_sums()
            return trial
        accuracy = accuracy_of(objective.loss, outputs, targets)
        numbers = sum(leaf.numel() for leaf in leaves(outputs) if isinstance(leaf, Tensor))
        width = max(1, numbers // len(data.holdings[0][:_PROBE]))
        trial = Trial(module, objective, inputs, targets, accuracy, width)
        trial._refuse_sums()
        return trial._counted(outputs, data)._finite(data)

    def forward(self, module: nn.Module, inputs: Tree) -> Tree:
        """A pass through a module, which a loss of the form loss(model, batch) does itself."""
        if self.objective.whole:
            return self.objective(module, inputs, clone(self.targets))
        return call(module, inputs)

    def train(self, data: ClientData) -> None:
        """Take a gradient in training mode: on few samples, on the smallest batch, and on every odd form."""
        probe = copy.deepcopy(self.module).train()
        sizes = data.batches(np.arange(len(data.holdings)))
        least = int(sizes.argmin())
        tried = [(0, data.holdings[0][:_PROBE])]
        if isinstance(data.samples, Loose):
            tried += [(i, data.holdings[i][:_PROBE]) for i in range(1, min(len(data.holdings), _CLIENTS))]
        if sizes[least] < _PROBE:
            tried.append((least, data.holdings[least][: sizes[least]]))
        for client, numbers in tried:
            samples = "1 sample" if len(numbers) == 1 else f"{len(numbers)} samples"
            fix = "; give every client and batch_size 2 or more" if len(numbers) == 1 else ""
            with trying("model in training mode", f"{samples} of {data.who(client)}", fix), seeded(0):
                inputs, targets = data.some(numbers, *_HERE)
                loss = self.objective(probe, inputs, targets)
                self._differentiate(probe, loss)

    def _differentiate(self, probe: nn.Module, loss: Tensor) -> None:
        """Take the gradient of a loss; refuse one that misses the model, or trains something else."""
        trained = [parameter for parameter in probe.parameters() if parameter.requires_grad]
        ours = {id(parameter) for parameter in trained}
        used = _parameters_used_by(loss)
        others = [parameter for parameter in used if id(parameter) not in ours]
        if others and len(others) < len(used):
            self._refuse_others(others)
        if loss.requires_grad and not others:
            loss.backward()  # type: ignore[no-untyped-call]
        if all(parameter.grad is None for parameter in trained):
            raise InvalidInput(
                "loss must depend on the parameters of the model, but has no gradient; compute it "
                "from the outputs, without detach() or item()."
            )
        probe.zero_grad(set_to_none=True)

    def _refuse_others(self, others: list[nn.Parameter]) -> None:
        """Refuse trainable parameters that are none of the model's: nothing would train them."""
        loss = self.objective.loss
        names = [f"a parameter of shape {tuple(other.shape)}" for other in others]
        if isinstance(loss, nn.Module):
            for name, parameter in loss.named_parameters():
                if parameter is others[0]:
                    names[0] = repr(name)
        raise InvalidInput(
            f"loss must depend on no trainable parameters but the model's, but it uses {names[0]}, which "
            "would never be trained; make it part of the model and use loss(model, batch), or freeze it by "
            "requires_grad_(False)."
        )

    def refuse_carried_state(self) -> None:
        """Refuse a model or a loss that changes something else than parameters and float buffers."""
        probe = copy.deepcopy(self.module).train()

        def training_pass() -> None:
            self.objective(probe, clone(self.inputs), clone(self.targets))

        refuse_carried_state(probe, self.objective.loss, training_pass)

    def _counted(self, outputs: Tree, data: ClientData) -> Trial:
        """Check that targets are classes of the outputs, where they should be, and note what is ignored."""
        loss, targets = self.objective.loss, self.targets
        if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or targets.is_floating_point():
            return self
        if not compares_classes(loss) and self.accuracy != "classes":
            return self
        ignored = ignored_target(loss)
        classes = outputs.shape[1] if outputs.ndim > 1 else outputs.shape[0]
        stray = data.strays(classes, ignored)
        if stray is not None:
            who, number, value = stray
            if not compares_classes(loss) and self._takes(data, who, number):
                return replace(self, accuracy=None)  # whole numbers that are no classes
            raise InvalidData(
                f"{who} has target {value}, but the model has {classes} outputs, so "
                f"targets are 0 to {classes - 1}; relabel the data or give the model more outputs."
            )
        if ignored is not None and (not isinstance(data.samples, Samples) or data.has_target(ignored)):
            return replace(self, objective=replace(self.objective, ignored=ignored))
        return self

    def _takes(self, data: ClientData, who: str, number: int) -> bool:
        """Whether a loss of one's own accepts the target of this sample."""
        part = data.test if who.startswith("test") else data.samples
        assert isinstance(part, Samples)
        try:
            inputs, targets = part.take(torch.tensor([number]), torch.float32)
            return bool(self.objective.of(call(self.module, inputs), targets).isfinite())
        except Exception:
            return False

    def _refuse_sums(self) -> None:
        """Refuse a loss that adds up samples instead of averaging them.

        Such a loss has twice the value for the same samples twice. Its gradient, and so the step size that
        works, would depend on the number of samples in a batch.
        """
        loss = self.objective.loss
        if getattr(loss, "reduction", None) == "sum":
            raise InvalidInput(
                f"loss must be the mean over the samples of a batch, got {type(loss).__name__} with "
                "reduction='sum'; use reduction='mean'."
            )
        if isinstance(loss, nn.Module) and type(loss).__module__.startswith("torch."):
            return
        try:
            with torch.no_grad(), seeded(0):
                once = float(self._loss_of_copies(1))
                twice = float(self._loss_of_copies(2))
        except Exception:
            return  # a loss that depends on the number of samples is no sum
        if once != 0 and abs(twice - 2 * once) < 1e-4 * abs(once):
            raise InvalidInput(
                f"loss must be the mean over the samples of a batch, but is their sum: {once:.4g} for a few "
                f"samples, {twice:.4g} for the same samples twice; divide it by the number of samples."
            )

    def _loss_of_copies(self, copies: int) -> Tensor:
        """The loss of the few samples, repeated."""
        inputs = concat([clone(self.inputs) for _ in range(copies)])
        targets = concat([clone(self.targets) for _ in range(copies)])
        return self.objective(self.module, inputs, targets)

    def _finite(self, data: ClientData) -> Trial:
        """Targets that are NaN need a loss that leaves them out."""
        parts = [("train", data.samples), ("test", data.test)]
        for who, part in parts:
            if not isinstance(part, Samples) or not part.targets.is_floating_point():
                continue
            wrong = torch.nonzero(~part.targets.isfinite().flatten(1).all(1))
            if len(wrong) and not self._takes(data, who, int(wrong[0])):
                raise InvalidData(
                    f"{who} has targets that are NaN or infinite, first in sample {int(wrong[0])}; "
                    "clean the data."
                )
        return self


def _parameters_used_by(loss: Tensor) -> list[nn.Parameter]:
    """The trainable parameters that a loss was computed from, in no particular order."""
    found = []
    visited = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        variable = getattr(node, "variable", None)  # of a node that accumulates the gradient of a leaf
        if isinstance(variable, nn.Parameter):
            found.append(variable)
        waiting += [following for following, _ in node.next_functions]
    return found


def _compare(objective: Objective, outputs: Tree, targets: Tree) -> None:
    """Refuse targets that torch would compare in another way than was meant."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return
    loss = objective.loss
    name = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", "loss")
    seen, given = ("(batch" + "".join(f", {n}" for n in t.shape[1:]) + ")" for t in (outputs, targets))
    if compares_elements(loss):
        if outputs.shape != targets.shape:
            fix = "targets[:, None]" if outputs.ndim == targets.ndim + 1 else "targets of the outputs' shape"
            raise InvalidInput(
                f"{name} compares outputs {seen} with targets {given} of another shape; use {fix}."
            )
        if not targets.is_floating_point():
            raise InvalidInput(f"{name} needs targets of floats, got whole numbers; use targets.float().")
    elif compares_classes(loss) and targets.is_floating_point() and targets.shape != outputs.shape:
        raise InvalidInput(f"{name} needs whole numbers as targets, got {targets.dtype}; use targets.long().")


@contextmanager
def _broadcasting() -> Iterator[list[str]]:
    """Collects torch's warnings about outputs and targets of unequal shape."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [first_line(w.message) for w in caught if "target size" in str(w.message)]  # type: ignore[arg-type]


def side_effects(module: nn.Module, inputs: Tree, forward: Forward = call) -> tuple[Layout, bool]:
    """What a training pass changes besides gradients: running statistics, and the random state.

    Other state that a pass changes is refused by `refuse_carried_state`.
    """
    probe = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.no_grad(), seeded(0):
        state = random_state()
        with trying("model in training mode"):
            forward(probe, clone(inputs))
        random = state != random_state()
    norms = {name: part for name, part in probe.named_modules() if isinstance(part, _RUNNING)}
    for name, part in norms.items():
        if part.track_running_stats and part.momentum is None:
            raise InvalidInput(
                f"{name} must have a momentum to average over rounds, got None; use momentum=0.1."
            )
    found = {}
    for name, buffer in probe.named_buffers():
        tracked = name.rpartition(".")[0] in norms  # even where a few samples left it as it was
        if buffer.is_floating_point() and (tracked or not torch.equal(before[name], buffer)):
            found[name] = buffer.shape
    return Layout(tuple(found), tuple(found.values())), random


def multiplications(module: nn.Module, inputs: Tree, forward: Forward = call) -> int:
    """What one sample costs in a forward pass: every weight, once for each position a convolution visits."""
    total, hooks = sum(part.numel() for part in module.parameters()), []

    def visit(part: nn.Module, _: object, output: Tensor) -> None:
        nonlocal total
        assert isinstance(part, CONVOLUTIONS)
        total += part.weight.numel() * (math.prod(output.shape[2:]) - 1)

    for part in module.modules():
        if isinstance(part, CONVOLUTIONS):
            hooks.append(part.register_forward_hook(visit))
    with torch.no_grad(), seeded(0):
        forward(module, clone(inputs))
    for hook in hooks:
        hook.remove()
    return total


@contextmanager
def trying(what: str, where: str = "a few samples of client 0", fix: str = "") -> Iterator[None]:
    """Turn a failing user module or loss into one sentence."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"{what} failed on {where}: {first_line(error)}{fix}") from error
