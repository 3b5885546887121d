"""A copy of a site's model that is trained by code of others: beginning and end of a loan."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from spodgt.sites.correction import Correction
from spodgt.sites.layout import model_row
from spodgt.sites.lent_model import LentModel
from spodgt.sites.options import BlockOptions


def test_a_loan_begins_and_ends_while_another_thread_makes_a_step() -> None:
    """Torch iterates over its hooks meanwhile, so a loan must not add or remove one."""
    model = nn.Linear(2, 1)
    correction = Correction(model_row(model))
    training: Any = None  # not used: no optimizer of the loan makes a step
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loans = 0

    def lend(*_: object) -> None:
        nonlocal loans
        assert LentModel(correction, training, BlockOptions()).take_back() == 0
        loans += 1

    lend()
    hooks = [register_optimizer_step_pre_hook(lend), register_optimizer_step_pre_hook(_do_nothing)]
    try:
        optimizer.step()
    finally:
        for hook in hooks:
            hook.remove()
    assert loans == 2


def _do_nothing(*_: object) -> None:
    """The hook after that of the test: torch notices a change when it comes to the next one."""
