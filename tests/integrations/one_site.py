"""A correction on an optimizer without a network, in place of a joined site."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from spodgt.integrations.site_callback import SiteSession
from spodgt.sites.correction import Correction
from spodgt.sites.hooks import OptimizerHooks, unwrap_optimizer
from spodgt.sites.layout import model_row

D = 0.25  # the correction y - c in these tests


class LocalSession(SiteSession):
    """A session whose site has the correction D and no neighbours."""

    def __init__(self, max_norm: float | None = None) -> None:
        super().__init__("unused", {})
        self.max_norm = max_norm
        self.hooks: OptimizerHooks | None = None
        self.ended: BaseException | bool = False
        self.scores: list[dict[str, float]] = []

    def begin(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: object = None,
        scaler: object = None,
    ) -> None:
        self.correction = Correction(model_row(model), max_norm=self.max_norm)
        size = self.correction.row.layout.tracked
        self.correction.set_correction(torch.full((size,), D), torch.zeros(size))
        inner = unwrap_optimizer(optimizer)
        self.hooks = OptimizerHooks(inner, self.correction, lambda: None, lambda text: None, scaler)
        self.site = self.hooks  # type: ignore[assignment] # has `correct`

    def report(self, scores: object) -> None:
        assert isinstance(scores, dict)
        if scores:
            self.scores.append(scores)

    def end(self, error: BaseException | None = None) -> None:
        assert self.hooks is not None
        self.hooks.remove()
        self.ended = error or True
