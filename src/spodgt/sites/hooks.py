"""Hooks on the user's optimizer: correct the gradient before a step, count the step after it.

Only public hooks of `torch.optim` are used. With a closure the gradient exists only after the
closure ran, so the closure is wrapped. A global hook finds steps that bypass the hooks of the site.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from spodgt.errors import Failed, InvalidInput
from spodgt.sites.correction import COUPLED, Correction, Recorded
from spodgt.sites.layout import ModelRow

Arguments: TypeAlias = tuple[Any, ...]  # of `Optimizer.step`, with the optimizer itself
Keywords: TypeAlias = dict[str, Any]
_BAD_STEPS = 10  # steps in a row without a finite gradient, after which the site stops
_SHARDED_MODELS = ("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")
_SHARDED_OPTIMIZERS = ("ZeroRedundancyOptimizer", "OSS")
_corrected: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # those with hooks


def unwrap_optimizer(optimizer: object) -> Optimizer:
    """The torch optimizer inside wrappers such as those of Accelerate and Lightning.

    Raises:
        InvalidInput: it is no torch optimizer, or one that cannot be corrected.
    """
    _check_sharding(optimizer)
    inner = getattr(optimizer, "optimizer", None)
    while inner is not None:
        optimizer = inner
        _check_sharding(optimizer)
        inner = getattr(optimizer, "optimizer", None)
    if not isinstance(optimizer, Optimizer):
        raise InvalidInput(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}; "
            "pass the object whose step() updates the model."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidInput(
            "LBFGS evaluates the gradient several times in a step, so it cannot be corrected; "
            "use SGD, Adam or AdamW."
        )
    return optimizer


def _check_sharding(optimizer: object) -> None:
    kind = type(optimizer)
    if kind.__name__ in _SHARDED_OPTIMIZERS or "deepspeed" in kind.__module__:
        raise InvalidInput(
            f"{kind.__name__} shards its state over processes; use DistributedDataParallel with a "
            "torch.optim optimizer."
        )


def check_model(model: nn.Module) -> None:
    """Refuse models whose parameters are sharded."""
    for module in model.modules():
        for kind in type(module).__mro__:  # fully_shard makes a subclass of each module's class
            if kind.__name__ in _SHARDED_MODELS:
                raise InvalidInput(
                    f"model is wrapped in {kind.__name__}, which shards parameters; "
                    "use DistributedDataParallel inside a site."
                )


def check_parameters(row: ModelRow, optimizer: Optimizer) -> None:
    """Refuse an optimizer that does not hold exactly the trained parameters of the model."""
    held: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        held.extend(group["params"])
    held_ids = set(map(id, held))
    for name, parameter in zip(row.names, row.parameters, strict=True):
        if id(parameter) not in held_ids:
            raise InvalidInput(
                f"optimizer does not hold parameter {name} of the model; a site has one optimizer: "
                "make it from model.parameters(), or freeze the parameter with "
                "requires_grad_(False)."
            )
    joined_ids = set(map(id, row.parameters))
    for parameter in held:
        if parameter.requires_grad and id(parameter) not in joined_ids:
            raise InvalidInput(
                f"optimizer holds a parameter of shape {tuple(parameter.shape)} that is not in "
                "model; pass a module that contains all trained parameters."
            )


class OptimizerHooks:
    """Connects a `Correction` with the steps of an optimizer.

    Args:
        optimizer: The user's.
        correction: Applied before every step.
        after_step: Called after every step that used a gradient.
        notify: Called with a sentence when a step is skipped.
        scaler: Of the loss, if the script uses one; `correct` divides gradients by its scale.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        correction: Correction,
        after_step: Callable[[], None],
        notify: Callable[[str], None],
        scaler: object = None,
    ) -> None:
        if optimizer in _corrected:
            raise InvalidInput(
                "the optimizer is used by another site of this process; leave that with block first."
            )
        _corrected.add(optimizer)
        self.optimizer = optimizer
        self.correction = correction
        self.after_step = after_step
        self.notify = notify
        self.scaler: torch.amp.GradScaler | None = None
        if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled():
            self.scaler = scaler
        self.steps = 0  # that used a gradient
        self.skipped = 0  # whose gradient was not finite
        self.without_gradient = 0  # steps before which there was no backward pass
        self._skipped_in_a_row = 0
        self._early: Recorded | None = None  # the result of `correct`, until the step
        self._witness: Tensor | None = None  # a parameter whose gradient `correct` has corrected
        self._watched: set[int] = set()  # ids of parameters with a hook on their backward passes
        self._early_gradient: Tensor | None = None  # of the witness
        self._has_newer_gradient = False  # the witness had a backward pass since then
        self._used_gradient = False  # in the present step
        self._ran = False  # whether the hook before the present step ran
        self._parameters = {id(parameter) for parameter in correction.row.parameters}
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            register_optimizer_step_post_hook(self._after_any_step),
        ]

    def remove(self) -> None:
        """Remove the hooks; the optimizer is as it was."""
        _corrected.discard(self.optimizer)
        for handle in self._handles:
            handle.remove()

    def correct(self) -> None:
        """Correct the gradients now, for clipping by the user; the step then corrects nothing."""
        if self._take_early() is Recorded.USED:
            self._early = Recorded.USED  # a second call changes nothing
            return
        self._unscale()
        self._watch_gradients()
        self._early = self._correct(scale=1.0)

    def _watch_gradients(self) -> None:
        """Notice a backward pass between `correct` and the step."""
        self._has_newer_gradient = False
        for parameter in self.correction.row.parameters:
            if parameter.grad is not None:
                self._witness = parameter
                self._early_gradient = parameter.grad
                if id(parameter) not in self._watched:
                    self._watched.add(id(parameter))
                    watch = parameter.register_post_accumulate_grad_hook
                    self._handles.append(watch(self._note_backward))  # type: ignore[no-untyped-call]
                return

    def _note_backward(self, parameter: Tensor) -> None:
        if parameter is self._witness:
            self._has_newer_gradient = True

    def _take_early(self) -> Recorded | None:
        """The result of `correct` for the present gradients; None if it was not called for them."""
        early = self._early
        self._early = None
        if early is None or not self._has_newer_gradient:
            return early
        assert self._witness is not None
        if early is Recorded.USED and self._witness.grad is self._early_gradient:
            raise Failed(
                "a backward pass was added to gradients that site.correct() had corrected; call "
                "it once for each step, after the last backward(), and leave out a step with "
                "zero_grad(set_to_none=True)."
            )
        return None  # no step followed `correct`, and these are new gradients

    def _unscale(self) -> None:
        """Divide the gradients by the scale of the loss, unless the script has done it."""
        if self.scaler is None:
            return
        try:
            self.scaler.unscale_(self.optimizer)
        except AssertionError:  # of torch: nothing was scaled yet
            raise Failed(
                "the scaler given to spodgt.join has scaled no loss; call "
                "scaler.scale(loss).backward(), or leave out scaler=."
            ) from None
        except RuntimeError as error:
            if "already been called" not in str(error):
                raise

    def _before(
        self, optimizer: Optimizer, args: Arguments, kwargs: Keywords
    ) -> tuple[Arguments, Keywords] | None:
        self._ran = True
        # args[0] is the optimizer itself in the hooks of torch
        closure = kwargs.get("closure")
        position = _closure_position(args)
        if position is not None:
            closure = args[position]
        if closure is None:
            self._before_gradient_use()
            return None

        calls = 0

        def corrected_closure() -> object:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise Failed(
                    f"{type(optimizer).__name__} evaluates its closure more than once in a step, "
                    "so it cannot be corrected; use SGD, Adam or AdamW."
                )
            loss = closure()
            self._before_gradient_use()
            return loss

        if position is None:
            return args, {**kwargs, "closure": corrected_closure}
        changed = list(args)
        changed[position] = corrected_closure
        return tuple(changed), kwargs

    def _before_gradient_use(self) -> None:
        # GradScaler sets both on fused optimizers, which divide by the scale themselves
        scale = getattr(self.optimizer, "grad_scale", None)
        found_inf = getattr(self.optimizer, "found_inf", None)
        early = self._take_early()
        self._early_gradient = None
        if early is not None:
            if scale is not None and early is Recorded.USED:
                raise Failed(
                    "site.correct() has corrected gradients that a GradScaler had scaled; pass "
                    "scaler= to spodgt.join, or call scaler.unscale_(optimizer) before it."
                )
            self._used_gradient = early is Recorded.USED
            return
        if isinstance(found_inf, Tensor) and float(found_inf.sum()) > 0:
            self._used_gradient = False
            return
        self._correct(1.0 if scale is None else float(scale))

    def _correct(self, scale: float) -> Recorded:
        result = self.correction.apply(self.optimizer, scale)
        self._used_gradient = result is Recorded.USED
        if result is Recorded.MISSING:
            self.without_gradient += 1
        if result is not Recorded.NOT_FINITE:
            self._skipped_in_a_row = 0
            return result
        self.skipped += 1
        if self.scaler is not None:
            return result  # it skips the step and lowers the scale, as without a site
        self._skipped_in_a_row += 1
        self.notify("the gradient is not finite; the step was skipped")
        if self._skipped_in_a_row >= _BAD_STEPS:
            raise Failed(
                f"{self._skipped_in_a_row} gradients in a row were not finite, none was used or "
                "sent; check the data of this site, or use a smaller step size (lr)."
            )
        return result

    def _after(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._used_gradient:
            self._used_gradient = False
            self.steps += 1
            self.after_step()

    def _after_any_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        """Find steps of the model that were not corrected."""
        if optimizer is self.optimizer:
            have_run = self._ran and not self._used_gradient  # the hooks before and after the step
            self._ran = False
            self._used_gradient = False
            if not have_run:
                raise Failed(
                    "the hooks of spodgt.join were removed from the optimizer; join again after "
                    "the code that removes them."
                )
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in self._parameters:
                    raise Failed(
                        f"another optimizer ({type(optimizer).__name__}) steps parameters of the "
                        "joined model; pass that optimizer to spodgt.join."
                    )


def _closure_position(args: Arguments) -> int | None:
    """Where the closure is among the positional arguments of `step`; None if there is none."""
    for position, value in enumerate(args):
        if position > 0 and callable(value):
            return position
    return None


def warn_of_unknown_decay(optimizer: Optimizer) -> None:
    """Warn if an optimizer that is not torch's has a weight decay: its kind is not known."""
    is_known = isinstance(optimizer, COUPLED) or type(optimizer).__module__.startswith("torch.")
    if is_known or not any(group.get("weight_decay") for group in optimizer.param_groups):
        return
    warnings.warn(
        f"weight_decay of {type(optimizer).__name__} is not tracked, as that of AdamW; if it is "
        "added to the gradient, add it to the loss instead.",
        stacklevel=4,
    )
