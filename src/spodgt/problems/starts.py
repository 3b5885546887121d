"""Where training starts: from the module as it was given, or drawn anew for every seed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import nn

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems.samples import first_line
from spodgt.problems.trees import seeded

Init = Literal["given", "fresh"] | Callable[[nn.Module, int], object]


def initial(model: nn.Module, init: Init, seed: int, client: int) -> nn.Module:
    """A copy of the module as a client starts with it, a function of (seed, client)."""
    module = copy.deepcopy(model)
    if init == "given":
        return module
    word = rng.torch_generator(seed, "start", client).initial_seed()
    with seeded(word):
        if init == "fresh":
            _redraw(module)
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
    """Refuse what is no start, and say which parameters cannot be drawn anew."""
    if init not in ("given", "fresh") and not callable(init):
        raise InvalidInput(
            f'init must be "given", "fresh" or a function of (module, seed), got {init!r}; use "given".'
        )
    if init != "fresh":
        return
    module = copy.deepcopy(model)
    with seeded(0), torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
        _redraw(module)
    kept = [name for name, p in module.named_parameters() if p.requires_grad and p.isnan().any()]
    if kept:
        warnings.warn(
            f"init='fresh' cannot redraw {', '.join(kept[:5])}{', …' if kept[5:] else ''}, which start as "
            "given for every seed: their modules have no reset_parameters; give a function of "
            "(module, seed) as init.",
            stacklevel=2,
        )


def _redraw(module: nn.Module) -> None:
    """Children first, so that what a composite module does with their parameters is the last word."""
    for part in _inner_first(module, set()):
        reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if callable(reset):
            reset()


def _inner_first(module: nn.Module, seen: set[nn.Module]) -> Iterator[nn.Module]:
    if module not in seen:
        seen.add(module)
        for child in module.children():
            yield from _inner_first(child, seen)
        yield module


def _restore_frozen(module: nn.Module, model: nn.Module) -> None:
    """What is not trained stays as it was given, and so do the statistics of a layer that is all frozen."""
    for ours, theirs in zip(module.modules(), model.modules(), strict=True):
        own = list(zip(ours.parameters(False), theirs.parameters(False), strict=True))
        kept = [pair for pair in own if not pair[1].requires_grad]
        with torch.no_grad():
            for new, given in kept:
                new.copy_(given)
            if own and len(kept) == len(own):
                for buffer, before in zip(ours.buffers(False), theirs.buffers(False), strict=True):
                    buffer.copy_(before)
