"""What the callbacks of training libraries share: a site that begins and ends with the training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from torch import nn
from torch.optim import Optimizer

from spodgt.sites.api import join
from spodgt.sites.checkpoint import HasState
from spodgt.sites.site import Site


class JoinOptions(TypedDict, total=False):
    """Options of `spodgt.join` that do not depend on the library."""

    block_steps: int | None
    block_seconds: float | None
    alpha: float
    weight: float
    max_norm: float | None
    max_silent_blocks: int | None
    initial: str
    durability: str
    linger_seconds: float
    checkpoint_blocks: int


class SiteSession:
    """A site that is joined when training begins and left when it ends.

    Args:
        folder: Of the site.
        options: Of `spodgt.join`.
    """

    def __init__(self, folder: str | Path, options: JoinOptions) -> None:
        self.folder = folder
        self.options = options
        self.site: Site | None = None

    def begin(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: HasState | None = None,
        scaler: HasState | None = None,
    ) -> None:
        """Join the run.

        Args:
            model: Of which the trained parameters travel.
            optimizer: Of the library, perhaps wrapped.
            scheduler: Of the step size; saved beside the optimizer.
            scaler: Of the loss; the same.
        """
        self.end(RuntimeError("the training before this one did not end"))
        site = join(
            self.folder, model, optimizer, scheduler=scheduler, scaler=scaler, **self.options
        )
        site.__enter__()
        self.site = site

    def report(self, scores: Mapping[str, float]) -> None:
        """Report loss and accuracy, by name, if there are any."""
        if self.site is not None and scores:
            self.site.report(loss=scores.get("loss"), accuracy=scores.get("accuracy"))

    def end(self, error: BaseException | None = None) -> None:
        """Leave the run; without an error after a last block, which is sent."""
        site = self.site
        self.site = None
        if site is None:
            return
        if error is None:
            site.__exit__(None, None, None)
        else:
            site.__exit__(type(error), error, error.__traceback__)


def find_scores(
    metrics: Mapping[str, object], keys: Mapping[str, tuple[str, ...]]
) -> dict[str, float]:
    """The first number of each score among the metrics of a library.

    Args:
        metrics: By name; numbers or tensors of one element.
        keys: Names of metrics for each score, the best first.
    """
    scores = {}
    for score, names in keys.items():
        for name in names:
            if name in metrics:
                scores[score] = float(str(_item(metrics[name])))
                break
    return scores


def _item(value: object) -> object:
    item = getattr(value, "item", None)
    return value if item is None else item()
