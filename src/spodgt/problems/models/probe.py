"""Runs a module on a few samples before the first round, and refuses what cannot be trained."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from spodgt._util.text import first_line
from spodgt.errors import InvalidData, InvalidInput
from spodgt.problems.data.client_data import ClientData, client_label
from spodgt.problems.data.labels import first_invalid_label, has_target
from spodgt.problems.data.pytree import Tree, clone, tensor_leaves
from spodgt.problems.data.samples import AnySamples, LazySamples, Samples
from spodgt.problems.gradients import Layout
from spodgt.problems.losses import Objective, call_module, compares_classes, ignore_index_of
from spodgt.problems.metrics import Accuracy, accuracy_of
from spodgt.problems.models.carried_state import TRACKING_NORMS, refuse_carried_state
from spodgt.problems.models.loss_checks import check_gradient, evaluate_once, refuse_sum
from spodgt.problems.models.torch_internals import has_gradient_hooks
from spodgt.problems.random_state import random_state, seeded
from spodgt.problems.user_code_errors import user_code_errors
from spodgt.types import Ints

CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_PROBE_SAMPLES = 4
_PROBE_CLIENTS = 256  # clients with samples that are read one by one, each maybe of another form
_CPU = torch.device("cpu")
Forward = Callable[[nn.Module, Tree], Tree]


def copy_in_float32(model: object) -> nn.Module:
    """Copy a module to the CPU in single precision and evaluation mode.

    Raises:
        InvalidInput: if it is not a module, cannot be copied, or has no trainable parameters.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    for name, parameter in model.named_parameters():
        _check_parameter(name, parameter)
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


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if nn.parameter.is_lazy(parameter):
        raise InvalidInput(
            f"model must have parameters of known shape, but {name!r} has none yet; call the "
            "model once on a batch to initialise its lazy layers."
        )
    if parameter.is_complex():
        raise InvalidInput(
            f"model must have real parameters, but {name!r} is complex; split it in two."
        )
    if has_gradient_hooks(parameter):  # copies would lose them
        raise InvalidInput(
            f"model must not have hooks on parameters, but {name!r} has; put it in the loss."
        )


def copy_in_own_precision(model: nn.Module, single: nn.Module) -> nn.Module:
    """A copy of `model` for the engines, which convert it to the precision of a run.

    Args:
        model: the module as given.
        single: its copy in single precision. It is returned unless `model` has numbers in double
            precision: frozen parameters and constant buffers keep their digits for runs in
            float64.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.dtype != torch.float64 for tensor in tensors):
        return single
    return copy.deepcopy(model).cpu().eval()


@dataclass(frozen=True, eq=False)
class ModelProbe:
    """A module after a forward pass on its first batch.

    Args:
        module: in single precision and evaluation mode.
        objective: the loss, with the target that it ignores.
        inputs: of a few samples of client 0.
        targets: of the same samples.
        accuracy: how accuracy is computed; None if it is undefined.
        output_size: numbers in the outputs of one sample.
    """

    module: nn.Module
    objective: Objective
    inputs: Tree
    targets: Tree
    accuracy: Accuracy | None
    output_size: int

    @staticmethod
    def of(module: nn.Module, objective: Objective, data: ClientData) -> ModelProbe:
        """Evaluate a module and its loss on a few samples of client 0.

        Raises:
            InvalidInput: if module, loss and samples do not fit together.
            InvalidData: if targets are not classes of the outputs, or not finite.
        """
        indices = data.client_indices[0][:_PROBE_SAMPLES]
        inputs, targets = data.samples.batch(indices, _CPU, torch.float32)
        outputs = evaluate_once(module, objective, inputs, targets)
        refuse_sum(module, objective, inputs, targets)
        if outputs is None:
            return ModelProbe(module, objective, inputs, targets, None, 1)
        accuracy = accuracy_of(objective.loss, outputs, targets)
        numbers = sum(tensor.numel() for tensor in tensor_leaves(outputs))
        output_size = max(1, numbers // len(indices))
        probe = ModelProbe(module, objective, inputs, targets, accuracy, output_size)
        return probe.check_targets(outputs, data)

    def forward(self, module: nn.Module, inputs: Tree) -> Tree:
        """A forward pass of a module, or of a loss(model, batch) with it."""
        if self.objective.calls_model:
            return self.objective(module, inputs, clone(self.targets))
        return call_module(module, inputs)

    # --- targets ---------------------------------------------------------------------------------
    def check_targets(self, outputs: Tree, data: ClientData) -> ModelProbe:
        """Check that targets are classes of the outputs, or finite; see `_check_labels`."""
        probe = self._check_labels(outputs, data)
        self._check_finite_targets(data.samples, "train")
        if data.test is not None:
            self._check_finite_targets(data.test.samples, "test")
        return probe

    def _check_labels(self, outputs: Tree, data: ClientData) -> ModelProbe:
        """Check that integer targets are classes of the outputs.

        Returns:
            This probe with the target that the loss ignores, or without accuracy if integer
            targets are not classes.
        """
        if not isinstance(outputs, Tensor) or not self._targets_are_classes():
            return self
        loss = self.objective.loss
        ignore_index = ignore_index_of(loss)
        classes = outputs.shape[1] if outputs.ndim > 1 else outputs.shape[0]
        invalid = first_invalid_label(data, classes, ignore_index)
        if invalid is not None:
            if not compares_classes(loss) and self._has_finite_loss(
                invalid.samples, invalid.sample
            ):
                return replace(self, accuracy=None)
            raise InvalidData(
                f"{invalid.owner} has target {invalid.value}, but the model has {classes} "
                f"outputs, so targets are 0 to {classes - 1}; relabel the data or give the model "
                "more outputs."
            )
        if ignore_index is None:
            return self
        if isinstance(data.samples, Samples) and not has_target(data, ignore_index):
            return self
        return replace(self, objective=replace(self.objective, ignore_index=ignore_index))

    def _targets_are_classes(self) -> bool:
        """Whether targets are integers that the loss or the accuracy reads as classes."""
        if not isinstance(self.targets, Tensor) or self.targets.is_floating_point():
            return False
        return compares_classes(self.objective.loss) or self.accuracy == "classes"

    def _check_finite_targets(self, samples: AnySamples, label: str) -> None:
        """Refuse NaN or infinite targets, unless the loss of such a sample is finite."""
        if not isinstance(samples, Samples) or not samples.targets.is_floating_point():
            return
        is_finite = samples.targets.isfinite().flatten(1).all(1)
        positions = torch.nonzero(~is_finite)
        if len(positions) and not self._has_finite_loss(samples, int(positions[0])):
            raise InvalidData(
                f"{label} has targets that are NaN or infinite, first in sample "
                f"{int(positions[0])}; clean the data."
            )

    def _has_finite_loss(self, samples: Samples, index: int) -> bool:
        """Whether the loss of one sample can be computed and is finite."""
        try:
            inputs, targets = samples.take(torch.tensor([index]), torch.float32)
            return bool(
                self.objective.loss_of(call_module(self.module, inputs), targets).isfinite()
            )
        except Exception:
            return False

    # --- training mode ---------------------------------------------------------------------------
    def check_training(self, data: ClientData) -> None:
        """Compute gradients in training mode.

        The batches are a few samples of client 0, the smallest mini-batch of all clients, and, if
        samples are read one by one, a few samples of every client.

        Raises:
            InvalidInput: if a training pass fails or has no gradient.
        """
        module = copy.deepcopy(self.module).train()
        for client, indices in _training_batches(data):
            count = f"{len(indices)} samples"
            fix = ""
            if len(indices) == 1:
                count = "1 sample"
                fix = "; give every client and batch_size 2 or more"
            where = f"{count} of {client_label(data.names, client)}"
            with user_code_errors("model in training mode", where, fix), seeded(0):
                inputs, targets = data.samples.batch(indices, _CPU, torch.float32)
                value = self.objective(module, inputs, targets)
                check_gradient(module, self.objective.loss, value)

    def refuse_carried_state(self) -> None:
        """Refuse a model or a loss that changes anything but parameters and float buffers."""
        module = copy.deepcopy(self.module).train()

        def training_pass() -> None:
            self.objective(module, clone(self.inputs), clone(self.targets))

        refuse_carried_state(module, self.objective.loss, training_pass)


def _training_batches(data: ClientData) -> list[tuple[int, Ints]]:
    """Clients and indices of their samples for `check_training`."""
    clients = len(data.client_indices)
    probed = 1
    if isinstance(data.samples, LazySamples):
        probed = min(clients, _PROBE_CLIENTS)
    batches = []
    for client in range(probed):
        batches.append((client, data.client_indices[client][:_PROBE_SAMPLES]))
    sizes = data.batch_sizes(np.arange(clients))
    smallest = int(sizes.argmin())
    if sizes[smallest] < _PROBE_SAMPLES:
        batches.append((smallest, data.client_indices[smallest][: sizes[smallest]]))
    return batches


class SideEffects(NamedTuple):
    """What a training pass changes besides gradients."""

    statistics: Layout  # float buffers, such as the running statistics of BatchNorm
    draws_random_numbers: bool


def find_side_effects(
    module: nn.Module, inputs: Tree, forward: Forward = call_module
) -> SideEffects:
    """Find the buffers and random generators that a training pass changes.

    Other state that a pass changes is refused by `refuse_carried_state`.
    """
    probe = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.no_grad(), seeded(0):
        state = random_state()
        with user_code_errors("model in training mode"):
            forward(probe, clone(inputs))
        draws_random_numbers = state != random_state()
    norm_names = _check_norms(probe)
    shapes = {}
    for name, buffer in probe.named_buffers():
        is_tracked = name.rpartition(".")[0] in norm_names  # even if these samples changed nothing
        is_changed = is_tracked or not torch.equal(before[name], buffer)
        if buffer.is_floating_point() and is_changed:
            shapes[name] = buffer.shape
    return SideEffects(Layout(tuple(shapes), tuple(shapes.values())), draws_random_numbers)


def _check_norms(module: nn.Module) -> set[str]:
    """The names of layers with running statistics; refuses those without a momentum."""
    names = set()
    for name, part in module.named_modules():
        if not isinstance(part, TRACKING_NORMS):
            continue
        names.add(name)
        if part.track_running_stats and part.momentum is None:
            raise InvalidInput(
                f"{name} must have a momentum to average over rounds, got None; use momentum=0.1."
            )
    return names


def count_multiplications(module: nn.Module, inputs: Tree, forward: Forward = call_module) -> int:
    """Multiplications of one sample in a forward pass.

    Every weight counts once, and once per output position in a convolution.
    """
    total = sum(parameter.numel() for parameter in module.parameters())

    def count_positions(part: nn.Module, _: object, output: Tensor) -> None:
        nonlocal total
        assert isinstance(part, CONVOLUTIONS)
        total += part.weight.numel() * (math.prod(output.shape[2:]) - 1)

    handles = []
    for part in module.modules():
        if isinstance(part, CONVOLUTIONS):
            handles.append(part.register_forward_hook(count_positions))
    with torch.no_grad(), seeded(0):
        forward(module, clone(inputs))
    for handle in handles:
        handle.remove()
    return total
