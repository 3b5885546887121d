"""Initial parameters: the module as given, or drawn for every seed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import nn

from spodgt import rng
from spodgt._util.text import first_line
from spodgt.errors import InvalidInput
from spodgt.problems.models.torch_internals import reset_method
from spodgt.problems.random_state import seeded

Init = Literal["given", "fresh"] | Callable[[nn.Module, int], object]


def initial_module(model: nn.Module, init: Init, seed: int, client: int) -> nn.Module:
    """A copy of the module with the initial parameters of a client, a function of (seed, client).

    Raises:
        InvalidInput: if the `init` function of the user fails.
    """
    module = copy.deepcopy(model)
    if init == "given":
        return module
    word = rng.torch_generator(seed, "start", client).initial_seed()
    with seeded(word):
        if init == "fresh":
            _reset_parameters(module)
        else:
            try:
                init(module, word)
            except Exception as error:
                raise InvalidInput(
                    f"init failed: {first_line(error)}; "
                    "it is called with (module, seed) and changes the module."
                ) from error
    _restore_frozen(module, model)
    return module


def check_init(model: nn.Module, init: object) -> None:
    """Check the `init` option, and warn about parameters that "fresh" cannot draw.

    Raises:
        InvalidInput: if it is neither "given" nor "fresh" nor a function.
    """
    if init not in ("given", "fresh") and not callable(init):
        raise InvalidInput(
            f'init must be "given", "fresh" or a function of (module, seed), got {init!r}; '
            'use "given".'
        )
    if init != "fresh":
        return
    module = copy.deepcopy(model)
    with seeded(0), torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
        _reset_parameters(module)
    unchanged = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.isnan().any():
            unchanged.append(name)
    if unchanged:
        more = ", …" if len(unchanged) > 5 else ""
        warnings.warn(
            f"init='fresh' cannot redraw {', '.join(unchanged[:5])}{more}, which start as given "
            "for every seed: their modules have no reset_parameters; give a function of "
            "(module, seed) as init.",
            stacklevel=2,
        )


def _reset_parameters(module: nn.Module) -> None:
    """Draw all parameters anew; children first, so that a composite module may overwrite theirs."""
    for part in _children_first(module, set()):
        reset = reset_method(part)
        if reset is not None:
            reset()


def _children_first(module: nn.Module, visited: set[nn.Module]) -> Iterator[nn.Module]:
    if module in visited:
        return
    visited.add(module)
    for child in module.children():
        yield from _children_first(child, visited)
    yield module


def _restore_frozen(module: nn.Module, model: nn.Module) -> None:
    """Copy frozen parameters from `model`, and the buffers of layers that are frozen entirely."""
    for part, given in zip(module.modules(), model.modules(), strict=True):
        parameters = list(part.parameters(recurse=False))
        given_parameters = list(given.parameters(recurse=False))
        frozen = 0
        with torch.no_grad():
            for parameter, source in zip(parameters, given_parameters, strict=True):
                if not source.requires_grad:
                    parameter.copy_(source)
                    frozen += 1
            if parameters and frozen == len(parameters):
                buffers = zip(part.buffers(False), given.buffers(False), strict=True)
                for buffer, given_buffer in buffers:
                    buffer.copy_(given_buffer)
