"""Hooks of a site on an optimizer: what is recorded, and what the optimizer sees."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spodgt.errors import Failed, InvalidInput
from spodgt.sites.correction import Correction
from spodgt.sites.hooks import (
    OptimizerHooks,
    check_model,
    check_parameters,
    unwrap_optimizer,
    warn_of_unknown_decay,
)
from spodgt.sites.layout import model_row

D = 0.25  # the correction y - c in these tests


class Weights(nn.Module):
    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), start))


@contextmanager
def hooked(
    model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any
) -> Iterator[tuple[Correction, OptimizerHooks, list[str]]]:
    """A correction of D on the optimizer, and the warnings of its hooks."""
    correction = Correction(model_row(model), **options)
    size = correction.row.layout.tracked
    correction.set_correction(torch.full((size,), D), torch.zeros(size))
    texts: list[str] = []
    hooks = OptimizerHooks(optimizer, correction, lambda: None, texts.append)
    try:
        yield correction, hooks, texts
    finally:
        hooks.remove()


def backward(model: Weights, slope: float) -> None:
    torch.autograd.backward(slope * model.w.sum())


def test_step_uses_the_gradient_plus_the_correction_and_records_the_raw_gradient() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (correction, hooks, _):
        backward(model, 0.5)
        optimizer.step()
        assert torch.allclose(model.w, torch.full((3,), 1.0 - 0.5 - D))
        mean = correction.end_block()
    assert mean is not None
    assert torch.allclose(mean, torch.full((3,), 0.5))
    assert hooks.steps == 1
    assert correction.end_block() is None


def test_gradient_accumulation_is_one_step() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (correction, hooks, _):
        for slope in (1.0, 2.0, 3.0, 4.0):
            backward(model, slope / 4)
        optimizer.step()
        mean = correction.end_block()
    assert mean is not None
    assert torch.allclose(mean, torch.full((3,), 2.5))
    assert hooks.steps == 1


@pytest.mark.parametrize("as_keyword", [False, True])
def test_closure_is_corrected_after_its_backward_pass(as_keyword: bool) -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = 0.5 * model.w.sum()
        torch.autograd.backward(loss)
        return loss

    with hooked(model, optimizer) as (correction, hooks, _):
        if as_keyword:
            optimizer.step(closure=closure)
        else:
            optimizer.step(closure)
        assert torch.allclose(model.w, torch.full((3,), 1.0 - 0.5 - D))
        assert correction.steps == 1
    assert hooks.steps == 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler_records_unscaled_gradients_and_skips_infinite_ones(
    fused: bool, unscale: bool
) -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with hooked(model, optimizer) as (correction, hooks, _):
        for slope in (0.5, float("inf")):
            optimizer.zero_grad()
            torch.autograd.backward(scaler.scale(slope * model.w.sum()))
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert torch.allclose(model.w, torch.full((3,), 1.0 - 0.5 - D))
        assert torch.allclose(correction.gradient_sum, torch.full((3,), 0.5))
        assert correction.steps == 1
    assert hooks.steps == 1


def test_grad_scaler_with_early_correction_continues_after_a_skipped_step() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with hooked(model, optimizer) as (correction, hooks, texts):
        for slope in (float("inf"), 0.5):
            optimizer.zero_grad()
            torch.autograd.backward(scaler.scale(slope * model.w.sum()))
            scaler.unscale_(optimizer)
            hooks.correct()
            scaler.step(optimizer)
            scaler.update()
        assert correction.steps == 1
        assert len(texts) == 1
        assert torch.allclose(model.w, torch.full((3,), 1.0 - 0.5 - D))


@pytest.mark.parametrize(
    ("make", "counted"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), 0.1),
        (lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1), 0.1),
        (lambda p: torch.optim.RMSprop(p, lr=0.1, weight_decay=0.1), 0.1),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, maximize=True), -0.1),
        (lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1), 0.0),
        (lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True), 0.0),
    ],
)
def test_coupled_weight_decay_is_part_of_the_recorded_gradient(
    make: Callable[[Any], torch.optim.Optimizer], counted: float
) -> None:
    model = Weights(start=2.0)
    optimizer = make(model.parameters())
    with hooked(model, optimizer) as (correction, _, _):
        backward(model, 0.5)
        optimizer.step()
        mean = correction.end_block()
    assert mean is not None
    assert torch.allclose(mean, torch.full((3,), 0.5 + counted * 2.0))


def test_weight_decay_of_groups_is_taken_per_group() -> None:
    model = nn.Linear(2, 1)
    groups: list[dict[str, Any]] = [
        {"params": [model.weight], "weight_decay": 0.5},
        {"params": [model.bias]},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    weight = model.weight.detach().clone()
    with hooked(model, optimizer) as (correction, _, _):
        torch.autograd.backward(model.weight.sum() * 0 + model.bias.sum())
        optimizer.step()
        sums = correction.row.views(correction.gradient_sum)
        assert torch.allclose(sums[0], 0.5 * weight)
        assert torch.allclose(sums[1], torch.ones(1))


def test_missing_gradient_of_a_trained_parameter_counts_as_zero() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    bias = model.bias.detach().clone()
    with hooked(model, optimizer):
        torch.autograd.backward(model.weight.sum())
        assert model.bias.grad is None
        optimizer.step()
    assert torch.allclose(model.bias, bias - D)


def test_step_without_any_gradient_is_not_counted() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (correction, hooks, _):
        optimizer.step()
        assert correction.steps == 0
    assert hooks.steps == 0
    assert torch.equal(model.w, torch.ones(3))


def test_non_finite_gradient_changes_nothing_and_ten_in_a_row_end_the_run() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (correction, hooks, texts):
        for number in range(10):
            backward(model, float("nan"))
            if number == 9:
                with pytest.raises(Failed, match="10 gradients in a row were not finite"):
                    optimizer.step()
            else:
                optimizer.step()
        assert correction.steps == 0
        assert not correction.gradient_sum.any()
        assert hooks.skipped == 10
    assert texts == ["the gradient is not finite; the step was skipped"] * 10
    assert torch.equal(model.w, torch.ones(3))


def test_clipping_follows_the_correction() -> None:
    model = Weights(start=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer, max_norm=0.1) as (correction, _, _):
        backward(model, 0.5)
        optimizer.step()
        assert torch.allclose(correction.gradient_sum, torch.full((3,), 0.5))
    assert float(model.w.detach().norm()) == pytest.approx(0.1, rel=1e-4)


def test_clipping_leaves_the_limit_with_weight_decay_in_place() -> None:
    """At the limit g + λx + (y - c) = 0; clipping g + (y - c) = -λx alone would move x."""
    model = Weights(start=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
    with hooked(model, optimizer, max_norm=0.1) as (correction, _, _):
        correction.set_correction(torch.full((3,), -1.5), torch.zeros(3))
        backward(model, 0.5)
        optimizer.step()
        assert torch.allclose(correction.gradient_sum, torch.full((3,), 0.5 + 0.5 * 2.0))
    assert torch.allclose(model.w, torch.full((3,), 2.0))


def test_early_correction_lets_the_script_clip() -> None:
    model = Weights(start=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (correction, hooks, _):
        backward(model, 0.5)
        hooks.correct()
        hooks.correct()  # a second call changes nothing
        assert model.w.grad is not None
        assert torch.allclose(model.w.grad, torch.full((3,), 0.5 + D))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        assert correction.steps == 1
    assert float(model.w.detach().norm()) == pytest.approx(0.1, rel=1e-4)
    assert hooks.steps == 1


def test_weight_multiplies_the_gradient_before_all_else() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer, weight=2.0) as (correction, _, _):
        backward(model, 0.5)
        optimizer.step()
        assert torch.allclose(correction.gradient_sum, torch.full((3,), 1.0))
    assert torch.allclose(model.w, torch.full((3,), 1.0 - 1.0 - D))


def test_removed_hooks_are_found_at_the_next_step() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (_, hooks, _):
        for handle in hooks._handles[:2]:
            handle.remove()
        backward(model, 0.5)
        with pytest.raises(Failed, match=r"hooks of spodgt\.join were removed"):
            optimizer.step()


def test_step_of_another_optimizer_on_the_same_parameters_is_found() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    other = torch.optim.Adam(model.parameters())
    unrelated = torch.optim.Adam(Weights().parameters())
    with hooked(model, optimizer):
        unrelated.step()
        backward(model, 0.5)
        with pytest.raises(Failed, match=r"another optimizer \(Adam\)"):
            other.step()


def test_optimizers_that_cannot_be_corrected_are_refused() -> None:
    model = Weights()
    with pytest.raises(InvalidInput, match="LBFGS"):
        unwrap_optimizer(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(InvalidInput, match=r"must be a torch\.optim\.Optimizer, got dict"):
        unwrap_optimizer({})

    class ZeroRedundancyOptimizer(torch.optim.SGD):
        pass

    with pytest.raises(InvalidInput, match="shards its state"):
        unwrap_optimizer(ZeroRedundancyOptimizer(model.parameters(), lr=0.1))


def test_sharded_models_and_optimizers_are_refused_by_name() -> None:
    class FSDPModule:
        pass

    class FSDPLinear(FSDPModule, nn.Linear):
        pass

    with pytest.raises(InvalidInput, match="wrapped in FSDPModule, which shards parameters"):
        check_model(nn.Sequential(FSDPLinear(2, 2)))

    class ZeroOptimizer:
        optimizer = torch.optim.SGD(Weights().parameters(), lr=0.1)

    ZeroOptimizer.__module__ = "deepspeed.runtime.zero"
    with pytest.raises(InvalidInput, match="ZeroOptimizer shards its state"):
        unwrap_optimizer(ZeroOptimizer())


def test_closure_that_is_evaluated_twice_is_refused() -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            closure()
            return closure()

    model = Weights()
    optimizer = Twice(model.parameters(), lr=1.0)
    with (
        hooked(model, optimizer),
        pytest.raises(Failed, match="Twice evaluates its closure more than once"),
    ):
        optimizer.step(lambda: backward(model, 0.5))


@pytest.mark.parametrize("unscale", [False, True])
def test_early_correction_unscales_gradients_unless_the_script_has(unscale: bool) -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    correction = Correction(model_row(model))
    correction.set_correction(torch.full((3,), D), torch.zeros(3))
    hooks = OptimizerHooks(optimizer, correction, lambda: None, lambda text: None, scaler)
    torch.autograd.backward(scaler.scale(0.5 * model.w.sum()))
    if unscale:
        scaler.unscale_(optimizer)
    hooks.correct()
    scaler.step(optimizer)
    scaler.update()
    hooks.remove()
    assert torch.allclose(correction.gradient_sum, torch.full((3,), 0.5))
    assert torch.allclose(model.w, torch.full((3,), 1.0 - 0.5 - D))


def test_early_correction_without_a_step_does_not_hide_the_next_gradient() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (correction, hooks, _):
        backward(model, 2.0)
        hooks.correct()
        optimizer.zero_grad()
        backward(model, 0.5)
        hooks.correct()
        optimizer.step()
        assert correction.steps == 2
    assert torch.allclose(model.w, torch.full((3,), 1.0 - 0.5 - D))


def test_step_after_a_left_out_one_is_corrected_without_another_call() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (_, hooks, _):
        backward(model, 2.0)
        hooks.correct()
        optimizer.zero_grad()
        backward(model, 0.5)
        optimizer.step()
    assert torch.allclose(model.w, torch.full((3,), 1.0 - 0.5 - D))


@pytest.mark.parametrize("calls_again", [False, True])
@pytest.mark.parametrize("zeroes", [False, True])
def test_backward_pass_after_an_early_correction_is_refused(
    calls_again: bool, zeroes: bool
) -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (_, hooks, _):
        backward(model, 2.0)
        hooks.correct()
        if zeroes:
            optimizer.zero_grad(set_to_none=False)
        backward(model, 0.5)
        with pytest.raises(Failed, match="once for each step, after the last backward"):
            hooks.correct() if calls_again else optimizer.step()
    assert torch.equal(model.w, torch.ones(3))


def test_gradients_that_the_script_replaces_after_an_early_correction_are_used() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (correction, hooks, _):
        backward(model, 0.5)
        hooks.correct()
        assert model.w.grad is not None
        model.w.grad = model.w.grad / 3
        optimizer.step()
        assert correction.steps == 1
    assert torch.allclose(model.w, torch.full((3,), 1.0 - (0.5 + D) / 3))


def test_overflows_under_a_scaler_end_no_run_with_early_correction() -> None:
    """The scaler lowers its scale until gradients are finite, which may take many steps."""
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    correction = Correction(model_row(model))
    texts: list[str] = []
    hooks = OptimizerHooks(optimizer, correction, lambda: None, texts.append, scaler)
    for slope in [float("inf")] * 15 + [0.5]:
        optimizer.zero_grad()
        torch.autograd.backward(scaler.scale(slope * model.w.sum()))
        hooks.correct()
        scaler.step(optimizer)
        scaler.update()
    hooks.remove()
    assert scaler.get_scale() == 2.0**5
    assert texts == []
    assert torch.allclose(model.w, torch.full((3,), 0.5))


def test_early_correction_of_scaled_gradients_is_refused_by_a_fused_optimizer() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with hooked(model, optimizer) as (_, hooks, _):
        torch.autograd.backward(scaler.scale(0.5 * model.w.sum()))
        hooks.correct()
        with pytest.raises(Failed, match=r"pass scaler= to spodgt\.join"):
            scaler.step(optimizer)


def test_weight_decay_of_an_unknown_optimizer_is_reported() -> None:
    class Lion(torch.optim.Optimizer):
        def __init__(self, parameters: Any, weight_decay: float = 0.0) -> None:
            super().__init__(parameters, {"weight_decay": weight_decay})

    parameters = list(Weights().parameters())
    with pytest.warns(UserWarning, match="weight_decay of Lion is not tracked"):
        warn_of_unknown_decay(Lion(parameters, 0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_unknown_decay(Lion(parameters))
        warn_of_unknown_decay(torch.optim.AdamW(parameters))
        warn_of_unknown_decay(torch.optim.Adam(parameters, weight_decay=0.1))


def test_loading_states_and_copies_keep_the_hooks() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (correction, _, _):
        optimizer.load_state_dict(optimizer.state_dict())
        model.load_state_dict(model.state_dict())
        backward(model, 0.5)
        optimizer.step()
        assert correction.steps == 1


def test_compiled_step_and_compiled_model_are_corrected() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with warnings.catch_warnings(), hooked(model, optimizer) as (correction, _, _):
        warnings.simplefilter("ignore")
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(2):
            optimizer.zero_grad()
            backward(model, 0.5)
            step()
        assert correction.steps == 2
    assert torch.allclose(model.w, torch.full((3,), 1.0 - 2 * (0.5 + D)))


def test_model_on_another_device_than_at_joining_is_refused() -> None:
    model = nn.Linear(2, 1)
    model.bias = nn.Parameter(torch.empty(1, device="meta"))
    with pytest.raises(InvalidInput, match="bias is on meta, others were on cpu"):
        Correction(model_row(model))


def test_wrapped_optimizer_is_found() -> None:
    optimizer = torch.optim.SGD(Weights().parameters(), lr=0.1)

    class Wrapper:
        def __init__(self, optimizer: object) -> None:
            self.optimizer = optimizer

    assert unwrap_optimizer(Wrapper(Wrapper(optimizer))) is optimizer


def test_optimizer_must_hold_the_parameters_of_the_model() -> None:
    model = nn.Linear(2, 1)
    row = model_row(model)
    with pytest.raises(InvalidInput, match="does not hold parameter bias"):
        check_parameters(row, torch.optim.SGD([model.weight], lr=0.1))
    stranger = nn.Parameter(torch.zeros(7))
    with pytest.raises(InvalidInput, match=r"shape \(7,\) that is not in model"):
        check_parameters(row, torch.optim.SGD([*model.parameters(), stranger], lr=0.1))


def test_sparse_gradients_are_refused_before_anything_is_recorded() -> None:
    dense = nn.Linear(2, 1)
    sparse = nn.Embedding(4, 2, sparse=True)
    model = nn.Sequential(dense, sparse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hooked(model, optimizer) as (correction, _, _):
        torch.autograd.backward(dense.bias.sum() + sparse(torch.tensor([1])).sum())
        with pytest.raises(InvalidInput, match="sparse=False"):
            optimizer.step()
        assert not correction.gradient_sum.any()


def test_compiled_step_with_schedulers_has_no_warning() -> None:
    """A scheduler wraps optimizer.step; hooks still run once per step."""
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with warnings.catch_warnings(), hooked(model, optimizer) as (_, hooks, _):
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.zero_grad()
            backward(model, 0.5)
            optimizer.step()
            scheduler.step()
    assert hooks.steps == 3


@pytest.mark.parametrize("hook", [0, 1])
def test_one_removed_hook_is_found_at_the_next_step(hook: int) -> None:
    """Without the hook after the step no block would ever end."""
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (_, hooks, _):
        hooks._handles[hook].remove()
        backward(model, 0.5)
        with pytest.raises(Failed, match=r"hooks of spodgt\.join were removed"):
            optimizer.step()


def test_scaler_that_scales_no_loss_is_refused() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu")
    hooks = OptimizerHooks(
        optimizer, Correction(model_row(model)), lambda: None, lambda text: None, scaler
    )
    backward(model, 0.5)
    with pytest.raises(Failed, match=r"has scaled no loss; call scaler\.scale"):
        hooks.correct()
    hooks.remove()


def test_early_correction_registers_one_hook_per_parameter() -> None:
    """The first parameter with a gradient may be another one in every step."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hooked(model, optimizer) as (correction, hooks, _):
        for step in range(10):
            optimizer.zero_grad()
            parameter = (model.weight, model.bias)[step % 2]
            torch.autograd.backward(parameter.sum())
            hooks.correct()
            optimizer.step()
        assert correction.steps == 10
        assert len(hooks._handles) == 3 + 2
    for parameter in model.parameters():
        assert not parameter._post_accumulate_grad_hooks


def test_expanded_gradient_that_the_script_sets_is_corrected() -> None:
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hooked(model, optimizer) as (correction, _, _):
        model.w.grad = torch.tensor([0.5]).expand(3)
        optimizer.step()
        assert torch.allclose(correction.gradient_sum, torch.full((3,), 0.5))
    assert torch.allclose(model.w, torch.full((3,), 1.0 - 0.5 - D))
