"""Losses: torch's own modules are the reference, and the compiled forms are held to the definitions here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from spodgt.problems.gradients.linear_model import loss_slopes
from spodgt.problems.losses import (
    LOSSES,
    Loss,
    cross_entropy,
    multi_margin,
    one_vs_rest,
    stacked_loss,
)

MODULES: dict[Loss, nn.Module] = {
    multi_margin: nn.MultiMarginLoss(),
    cross_entropy: nn.CrossEntropyLoss(),
}


def scores_and_targets(seed: int, samples: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(samples, classes, generator=draws, dtype=torch.float64)
    return scores, torch.randint(classes, (samples,), generator=draws)


def test_every_loss_has_a_compiled_form_of_its_own() -> None:
    assert set(LOSSES) == {multi_margin, cross_entropy, one_vs_rest}
    assert len(set(LOSSES.values())) == len(LOSSES)


@pytest.mark.parametrize("loss", MODULES)
def test_definitions_are_torchs_and_stack_over_clients(loss: Loss) -> None:
    scores, targets = scores_and_targets(3, 12, 5)
    assert stacked_loss(MODULES[loss]) is loss
    assert_close(loss(scores, targets), MODULES[loss](scores, targets))
    stacked = loss(scores.view(3, 4, 5), targets.view(3, 4))
    each = [
        MODULES[loss](s, t) for s, t in zip(scores.view(3, 4, 5), targets.view(3, 4), strict=True)
    ]
    assert_close(stacked, torch.stack(each))


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(ignore_index=2),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(weight=torch.ones(3)),
        nn.MultiMarginLoss(p=2),
        nn.MultiMarginLoss(margin=0.5),
        nn.MSELoss(),
    ],
    ids=str,
)
def test_a_loss_with_other_settings_is_another_loss(loss: nn.Module) -> None:
    assert stacked_loss(loss) is None


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(list(LOSSES)), st.integers(0, 2**32 - 1), st.integers(1, 150), st.integers(2, 6)
)
def test_compiled_slopes_are_those_of_the_definition(
    loss: Loss, seed: int, samples: int, classes: int
) -> None:
    scores, targets = scores_and_targets(seed, samples, classes)
    wanted = scores.clone().requires_grad_()
    value = loss(wanted, targets)
    (slope,) = torch.autograd.grad(value, wanted)
    columns = samples + 3  # there may be room for more samples
    found = np.full((classes, columns), 7.0)
    found[:, :samples] = scores.T.numpy()
    shuffled = torch.randperm(samples)
    every = torch.empty(samples, dtype=torch.int64).index_put_((shuffled,), targets)
    sizes = np.uint64(classes), np.uint64(columns)
    loss_slopes(LOSSES[loss], found.reshape(-1), *sizes, every.numpy(), shuffled.numpy())
    np.testing.assert_allclose(found[:, :samples], slope.T.numpy(), rtol=1e-10, atol=1e-12)
    assert not found[:, samples:].any()
