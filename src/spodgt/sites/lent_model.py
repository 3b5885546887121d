"""A copy of a site's model that code of others makes, loads and trains, as a Flower ClientApp does."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from spodgt.errors import InvalidInput
from spodgt.sites.correction import Correction
from spodgt.sites.hooks import OptimizerHooks, unwrap_optimizer
from spodgt.sites.layout import ModelRow
from spodgt.sites.local_training import LocalTraining
from spodgt.sites.options import BlockOptions

_REGISTRATION = threading.Lock()
_loan = threading.local()  # `model`: the LentModel of this thread, if there is one


@functools.cache
def _register_finder() -> None:
    """Call the hook below before every step of every torch optimizer, from now on.

    It is never removed: torch iterates over the hooks without a lock, so they must not change while
    another thread makes a step.
    """
    register_optimizer_step_pre_hook(_find_in_this_thread)


def _find_in_this_thread(optimizer: Optimizer, args: object, kwargs: object) -> None:
    model: LentModel | None = getattr(_loan, "model", None)
    if model is not None:
        model.find(optimizer)


class LentModel:
    """Corrects the steps of the first torch optimizer that steps a copy of the model.

    A global hook of torch finds the optimizer at its first step; its parameters are matched with
    those of the site by shape and value. Until `take_back` the block continues with the copy:
    received models are mixed into it, and its gradients are recorded.

    Args:
        correction: Of the site's own model.
        training: Of the site.
        options: Of the site.
    """

    def __init__(
        self, correction: Correction, training: LocalTraining, options: BlockOptions
    ) -> None:
        self.own = correction
        self.training = training
        self.options = options
        self.lent: Correction | None = None
        self._hooks: OptimizerHooks | None = None
        with _REGISTRATION:
            _register_finder()
        _loan.model = self

    def find(self, optimizer: Optimizer) -> None:
        """Follow the optimizer if it holds a copy of the model; runs before its own hooks."""
        if self._hooks is not None:
            return
        held = [each for group in optimizer.param_groups for each in group["params"]]
        parameters = match_parameters(self.own.row, held)
        unwrap_optimizer(optimizer)  # raises for kinds that cannot be corrected
        row = replace(self.own.row, parameters=parameters)
        correction = Correction(row, self.options.weight, self.options.max_norm)
        correction.copy_from(self.own)
        self.training.use(correction)
        self.lent = correction
        self._hooks = OptimizerHooks(
            optimizer, correction, self.training.after_step, self.training.warn
        )

    def take_back(self) -> int:
        """End the loan: the site's own model has the values of the copy.

        Returns:
            The number of corrected steps.
        """
        _loan.model = None
        if self._hooks is None or self.lent is None:
            return 0
        self._hooks.remove()
        pairs = zip(self.own.row.parameters, self.lent.row.parameters, strict=True)
        for own, copy in pairs:
            own.detach().copy_(copy.detach())
        self.own.copy_from(self.lent)
        self.training.use(self.own)
        return self._hooks.steps


def match_parameters(row: ModelRow, held: Iterable[nn.Parameter]) -> Sequence[nn.Parameter]:
    """The parameters of an optimizer in the order of a row.

    Raises:
        InvalidInput: a parameter of the row has no equal among them, or one is left over.
    """
    free = [parameter for parameter in held if parameter.requires_grad]
    matched = []
    for name, own in zip(row.names, row.parameters, strict=True):
        for number, parameter in enumerate(free):
            if parameter.shape == own.shape and torch.equal(parameter.detach().cpu(), own.cpu()):
                matched.append(free.pop(number))
                break
        else:
            raise InvalidInput(
                f"the optimizer of the ClientApp holds no copy of parameter {name} with the values "
                "that were sent; load all arrays of the message before the first step."
            )
    if free:
        raise InvalidInput(
            f"the optimizer of the ClientApp holds a parameter of shape {tuple(free[0].shape)} "
            "that is not in model; give run_client_app the same model."
        )
    return matched
