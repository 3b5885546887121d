"""Selects the gradient engine for a module and a kind of device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spodgt import rng
from spodgt.problems.data.pytree import Tree
from spodgt.problems.gradients import Engine, flatten
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.gradients.vmap import VmapEngine
from spodgt.problems.losses import stacked_loss
from spodgt.problems.models.torch_internals import has_hooks
from spodgt.problems.random_state import seeded

_CONTAINERS = (nn.Sequential, nn.Flatten, nn.Identity)  # modules that compute nothing themselves
_RANDOM_MODEL_SCALES = (0.3, 3.0)


def select_engine(plain: LoopEngine, inputs: Tree, targets: Tree, device: str = "cpu") -> Engine:
    """Select the engine for a module and a kind of device.

    A single linear layer has a closed form. On a CPU, other modules run as they are, one client at
    a time. On an accelerator, `torch.func.vmap` computes all clients at once. The closed form and
    vmap are used only if they agree with the module itself on a few samples.

    Args:
        plain: the engine that runs the module as it is.
        inputs: (samples, …) of a few samples.
        targets: (samples, …).
        device: type of the device, such as "cuda".
    """
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return plain
    if not _supports_batched_engines(plain):
        return plain
    for engine in _batched_engines(plain, targets, device):
        if _agrees(engine, plain, inputs, targets):
            return engine
    return plain


def _supports_batched_engines(plain: LoopEngine) -> bool:
    """Whether gradients depend on parameters, inputs and targets only."""
    objective = plain.objective
    if objective.calls_model or objective.ignore_index is not None:
        return False
    if plain.draws_random_numbers or plain.extra.names:
        return False
    return not any(_is_customised(part) for part in plain.module.modules())


def _is_customised(module: nn.Module) -> bool:
    """Whether a module has hooks, parametrizations or a forward method of its instance."""
    if has_hooks(module) or "forward" in vars(module):
        return True
    return nn.utils.parametrize.is_parametrized(module)


def _batched_engines(plain: LoopEngine, targets: Tensor, device: str) -> Sequence[Engine]:
    """Engines that may compute the gradients of all clients at once, the fastest first."""
    engines: list[Engine] = []
    layer = _single_linear_layer(plain)
    loss = stacked_loss(plain.objective.loss)
    if layer is not None and loss is not None and targets.ndim == 1:
        has_bias = layer.bias is not None
        engines.append(LinearEngine(layer.in_features, layer.out_features, has_bias, loss))
    if device != "cpu":
        engines.append(VmapEngine(plain.module, plain.layout, plain.objective))
    return engines


def _single_linear_layer(plain: LoopEngine) -> nn.Linear | None:
    """The layer of a module that is one linear layer with all parameters exchanged."""
    layers = [part for part in plain.module.modules() if type(part) not in _CONTAINERS]
    parameters = sum(parameter.numel() for parameter in plain.module.parameters())
    if len(layers) != 1 or plain.layout.size != parameters:
        return None
    layer = layers[0]
    if type(layer) is not nn.Linear:  # a subclass may compute something else
        return None
    return layer


def _agrees(engine: Engine, plain: LoopEngine, inputs: Tensor, targets: Tensor) -> bool:
    """Whether an engine has the gradients and outputs of the plain engine.

    They are compared at the given parameters and at random ones.
    """
    models = _test_models(plain)
    batches = _rolled(inputs, len(models))
    answers = _rolled(targets, len(models))
    seeds = [0] * len(models)
    with warnings.catch_warnings(), seeded(0):
        warnings.simplefilter("ignore")
        # vmap warns if it falls back to a slow loop
        warnings.filterwarnings("error", message=".*performance drop.*")
        try:
            _, gradients = engine.losses_and_gradients(
                models, batches.clone(), answers.clone(), seeds
            )
            outputs = engine.outputs(models, inputs)
            _, plain_gradients = plain.losses_and_gradients(
                models, batches.clone(), answers.clone(), seeds
            )
            plain_outputs = torch.stack(plain.outputs(models, inputs))  # type: ignore[arg-type]
        except Exception:
            return False
        finally:
            plain.copies.clear()
    if not isinstance(outputs, Tensor):
        return False
    return _is_close(gradients, plain_gradients) and _is_close(outputs, plain_outputs)


def _test_models(plain: LoopEngine) -> Tensor:
    """(models, parameters) the given parameters, then random ones."""
    named = dict(plain.module.named_parameters())
    given = flatten(named[name] for name in plain.layout.names).float()
    generator = rng.torch_generator(0, "agree")
    models = [given]
    for scale in _RANDOM_MODEL_SCALES:
        models.append(scale * torch.randn(len(given), generator=generator))
    return torch.stack(models)


def _rolled(tensor: Tensor, copies: int) -> Tensor:
    """(copies, samples, …) the samples, in another order in every copy."""
    return torch.stack([tensor.roll(shift, 0) for shift in range(copies)])


def _is_close(values: Tensor, reference: Tensor) -> bool:
    """Whether values are equal within rounding, relative to the largest number of each model."""
    if values.shape != reference.shape:
        return False
    values = values.detach()  # a forward pass may enable gradients
    reference = reference.detach()
    largest = reference.abs().flatten(1).amax(1).clamp_min(1e-2).nan_to_num(posinf=1.0)
    for row, reference_row, scale in zip(values, reference, largest, strict=True):
        tolerance = 1e-3 * float(scale)
        if not torch.allclose(row, reference_row, rtol=1e-3, atol=tolerance, equal_nan=True):
            return False
    return True
