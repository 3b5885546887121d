"""The corrected local step, without network: recorded gradients and the correction y - c.

    before a step      g ← w g;  s ← s + g + λ x;  h ← h + 1
                       the optimizer sees g + (y - c)
    end of a block     mean gradient s / h;  s ← 0;  h ← 0

w is the weight of the site, λ the coupled weight decay of the optimizer. The tracker y and the
contribution c are held by the exchange; only their difference is needed here.

`max_norm` limits the norm of g + λ x + (y - c). The optimizer adds λ x itself, so that it sees the
clipped vector less λ x. At the limit the vector is 0, so clipping does not move the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spodgt.errors import InvalidInput
from spodgt.sites.layout import ModelRow
from spodgt.tensors import NewRow, new_row, slices

COUPLED = (  # optimizers of torch that add weight_decay * x to the gradient
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
)


class Recorded(Enum):
    """What became of the gradients of a step."""

    USED = "used"
    MISSING = "missing"  # no parameter has a gradient: there was no backward pass
    NOT_FINITE = "not finite"


class Correction:
    """Records the gradients of a block and adds the correction to them.

    Args:
        row: The model.
        weight: w, multiplies every gradient; 1 weighs all sites equally.
        max_norm: Largest norm of the corrected gradient; None: no clipping.
    """

    def __init__(self, row: ModelRow, weight: float = 1.0, max_norm: float | None = None) -> None:
        first = row.parameters[0]
        dtypes = {parameter.dtype for parameter in row.parameters}
        self.dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        self.row = row
        self.weight = weight
        self.max_norm = max_norm
        self.gradient_sum = torch.zeros(row.layout.tracked, dtype=self.dtype, device=first.device)
        self.correction = torch.zeros_like(self.gradient_sum)  # y - c
        self.steps = 0  # h
        self._sums = row.views(self.gradient_sum)
        self._corrections = row.views(self.correction)
        self._check_devices()

    def _check_devices(self) -> None:
        device = self.gradient_sum.device
        for name, parameter in zip(self.row.names, self.row.parameters, strict=True):
            if parameter.device != device:
                raise InvalidInput(
                    f"parameter {name} is on {parameter.device}, others were on {device} at "
                    "spodgt.join; move the whole model to one device before joining."
                )

    @torch.no_grad()
    def set_correction(self, y: Tensor, c: Tensor) -> None:
        """Replace y - c, of which the first columns are tracked; on any device."""
        for part in slices(len(self.correction)):
            self.correction[part].copy_(y[part] - c[part])

    @torch.no_grad()
    def apply(self, optimizer: Optimizer, scale: float = 1.0) -> Recorded:
        """Record the gradients and add the correction to them.

        Args:
            optimizer: Of which the weight decay is taken.
            scale: Of the loss; gradients are larger than the true ones by this factor.

        Returns:
            USED, or why nothing was recorded. Gradients that are not finite are removed.
        """
        parameters = self.row.parameters
        self._check_devices()
        if all(parameter.grad is None for parameter in parameters):
            return Recorded.MISSING
        check_dense(parameters)
        if not are_finite(parameters):
            for parameter in parameters:
                parameter.grad = None
            return Recorded.NOT_FINITE
        decay = coupled_decay(optimizer)
        recorded = zip(parameters, self._sums, self._corrections, strict=True)
        for parameter, gradient_sum, correction in recorded:
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter)
                parameter.grad = gradient
            if 0 in gradient.stride():  # expanded: its elements share memory
                gradient = gradient.contiguous()
                parameter.grad = gradient
            if self.weight != 1.0:
                gradient.mul_(self.weight)
            gradient_sum.add_(gradient, alpha=1 / scale)
            coefficient = decay.get(id(parameter), 0.0)
            if coefficient:
                gradient_sum.add_(parameter, alpha=coefficient)
            gradient.add_(correction, alpha=scale)
        if self.max_norm is not None:
            self._clip(self.max_norm * scale, decay, scale)
        self.steps += 1
        return Recorded.USED

    def _clip(self, max_norm: float, decay: Mapping[int, float], scale: float) -> None:
        """Clip what the optimizer steps along, with the weight decay that it adds itself."""
        decayed = [each for each in self.row.parameters if id(each) in decay]
        for parameter in decayed:
            assert parameter.grad is not None
            parameter.grad.add_(parameter, alpha=decay[id(parameter)] * scale)
        nn.utils.clip_grad_norm_(self.row.parameters, max_norm)
        for parameter in decayed:
            assert parameter.grad is not None
            parameter.grad.sub_(parameter, alpha=decay[id(parameter)] * scale)

    @torch.no_grad()
    def copy_from(self, other: Correction) -> None:
        """Take over the correction and the gradients of the block from another copy of the model."""
        self.correction.copy_(other.correction)
        self.gradient_sum.copy_(other.gradient_sum)
        self.steps = other.steps

    @torch.no_grad()
    def end_block(self, new_row: NewRow = new_row) -> Tensor | None:
        """End the block: (columns,) on the CPU, its mean gradient; None if no step was made.

        It is zero in the columns that have no tracker.
        """
        if not self.steps:
            return None
        tracked = len(self.gradient_sum)
        mean = new_row(self.row.layout.columns, self.dtype)
        mean[tracked:] = 0.0
        for part in slices(tracked):
            mean[part].copy_(self.gradient_sum[part] / self.steps)
        self.gradient_sum.zero_()
        self.steps = 0
        return mean


def check_dense(parameters: Sequence[nn.Parameter]) -> None:
    """Refuse sparse gradients."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise InvalidInput(
                "a gradient is sparse, which cannot be corrected; use sparse=False in embeddings."
            )


def are_finite(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether no gradient holds NaN or infinity; one synchronization with the device.

    At least one parameter must have a gradient.
    """
    sums = [
        parameter.grad.sum(dtype=torch.float32)
        for parameter in parameters
        if parameter.grad is not None
    ]
    total = torch.stack([value.to(sums[0].device) for value in sums]).sum()
    return bool(torch.isfinite(total))


def coupled_decay(optimizer: Optimizer) -> dict[int, float]:
    """λ by id of parameter, where the optimizer adds λ x to the gradient.

    Decoupled decay, as that of AdamW, is no part of the gradient; it is not listed.
    """
    if not isinstance(optimizer, COUPLED) or isinstance(optimizer, torch.optim.AdamW):
        return {}
    decay = {}
    for group in optimizer.param_groups:
        coefficient = float(group.get("weight_decay", 0.0) or 0.0)
        if not coefficient or group.get("decoupled_weight_decay", False):
            continue
        if group.get("maximize", False):
            coefficient = -coefficient
        for parameter in group["params"]:
            decay[id(parameter)] = coefficient
    return decay
