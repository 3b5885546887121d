"""Which engine fits a module: what training changes in it, whether fast engines agree, what it costs."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.problems.gradients import Engine
from spodgt.problems.gradients.layout import Layout, flatten
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.gradients.vmap import VmapEngine
from spodgt.problems.losses import Loss, stacked_loss

_CONVOLUTIONS = (nn.modules.conv._ConvNd,)
_RUNNING = (nn.modules.batchnorm._NormBase,)


def choose(
    module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, statistics: Layout, *, random: bool
) -> Engine:
    """The fastest engine that computes the same as the plain loop on a few samples."""
    plain = LoopEngine(module, Layout.of(module), loss, statistics, random)
    parts = [
        part for part in module.modules() if not isinstance(part, nn.Sequential | nn.Flatten | nn.Identity)
    ]
    frozen = not all(part.requires_grad for part in module.parameters())
    if frozen or random or statistics.names or any(isinstance(part, _CONVOLUTIONS) for part in parts):
        return plain
    stacked = stacked_loss(loss)
    fast: list[Engine] = [VmapEngine(module, plain.layout, loss)]
    if len(parts) == 1 and isinstance(parts[0], nn.Linear) and stacked and targets.ndim == 1:
        layer = parts[0]
        fast.insert(0, LinearEngine(layer.in_features, layer.out_features, layer.bias is not None, stacked))
    x = flatten(module.parameters())  # a class of its own may do something else in its forward pass
    return next((engine for engine in fast if _agree(engine, plain, x, inputs, targets)), plain)


def _agree(fast: Engine, plain: Engine, x: Tensor, inputs: Tensor, targets: Tensor) -> bool:
    models, batches = torch.stack([x, x]), torch.stack([inputs, inputs])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # vmap warns where it falls back to a slow loop of its own
            ours = fast.grads(models, batches, torch.stack([targets, targets]), [0, 0])
    except (RuntimeError, UserWarning, ValueError, IndexError):
        return False
    theirs = plain.grads(models, batches, torch.stack([targets, targets]), [0, 0])
    return torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def side_effects(module: nn.Module, inputs: Tensor) -> tuple[Layout, bool]:
    """What a training pass changes besides gradients: running statistics, and the random state.

    Whole-number buffers, such as BatchNorm's count of batches, only steer a running average and are left
    to themselves.
    """
    probe = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng():
        state = torch.get_rng_state()
        check_call(lambda: probe(inputs), "model in training mode")
        random = not torch.equal(state, torch.get_rng_state())
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


def multiplications(module: nn.Module, inputs: Tensor) -> int:
    """What one sample costs in a forward pass: every weight, once for each position a convolution visits."""
    total = sum(part.numel() for part in module.parameters())

    def visit(part: nn.Module, _: object, output: Tensor) -> None:
        nonlocal total
        weight = part.weight
        assert isinstance(weight, Tensor)
        total += weight.numel() * (math.prod(output.shape[2:]) - 1)

    hooks = [
        part.register_forward_hook(visit) for part in module.modules() if isinstance(part, _CONVOLUTIONS)
    ]
    with torch.no_grad():
        module(inputs)
    for hook in hooks:
        hook.remove()
    return total


def check_call(call: Callable[[], Tensor], what: str) -> Tensor:
    """Turn a failing user module or loss into one sentence."""
    try:
        return call()
    except InvalidInput:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidInput(f"{what} failed on a few samples of client 0: {first}") from error
