"""Optional capabilities of problems; callers test for them with `isinstance`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from spodgt.types import Floats, Ints, Minibatches, Problem


@runtime_checkable
class HasOptimum(Protocol):
    """A problem with a known minimiser of Σ w_i F_i, (parameters,)."""

    def optimum(self, weights: ArrayLike | None = None) -> Tensor: ...


@runtime_checkable
class HasWork(Protocol):
    """A problem with a known cost of its full gradients."""

    @property
    def work(self) -> float: ...  # multiplications in one `full` call of all clients


@runtime_checkable
class HasEvaluationWork(Protocol):
    """A problem with a known cost of its evaluations."""

    @property
    def evaluation_work(self) -> float: ...  # multiplications in one evaluation of all models


@runtime_checkable
class HasIdentity(Protocol):
    """A problem that is compared with another when a run is resumed."""

    @property
    def identity(self) -> tuple[dict[str, str], list[Tensor | Ints]]: ...  # settings and numbers


@runtime_checkable
class HasValidation(Protocol):
    """A problem with validation data."""

    @property
    def validation_source(self) -> str: ...  # a description of the data
    def on_validation_data(self) -> Problem: ...  # the same problem evaluated on them


@runtime_checkable
class HasBatches(Protocol):
    """A problem of samples, with gradients on mini-batches."""

    def batches(self, rows: Ints) -> Ints: ...  # samples in a gradient of each client


@runtime_checkable
class HasSamples(HasBatches, Protocol):
    """A problem with sample counts per client."""

    def sizes(self) -> Ints: ...  # (clients,) samples
    def labels(self) -> Ints | None: ...  # (clients, classes) samples; None without classes


@runtime_checkable
class HasModel(Protocol):
    """A problem with a torch module; a model (columns,) holds its parameters."""

    def state_dict(self, x: Tensor) -> dict[str, Tensor]: ...  # complete, as the module's own
    def module(self, x: Tensor) -> nn.Module: ...  # the user's module with this model


@runtime_checkable
class HasClientNames(Protocol):
    """A problem with optional names of clients, which are matched with those of a network."""

    @property
    def client_names(self) -> tuple[str, ...] | None: ...
    def reordered(self, order: Ints) -> Problem: ...  # client order[i] becomes client i


@runtime_checkable
class HasClientWeights(Protocol):
    """A problem with the objective Σ w_i F_i / Σ w_i.

    `grad` and `full` are those of (n w_i / Σ w) F_i, with n clients.
    """

    @property
    def weighting(self) -> str: ...  # "equal", "samples" or "given"
    @property
    def loss_scales(self) -> Floats | None: ...  # (clients,) n w_i / Σ w; None: all are one


class TensorLayout(Protocol):
    """Named tensors, stored one after the other in a flat vector."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def shapes(self) -> tuple[torch.Size, ...]: ...
    def unflatten(self, x: Tensor) -> dict[str, Tensor]: ...  # views into x (…, parameters)


@runtime_checkable
class HasLayout(Protocol):
    """A problem of named tensors; processes that exchange models must have the same layout."""

    @property
    def layout(self) -> TensorLayout: ...


GradientFunction = Callable[[Tensor, Minibatches], Tensor]  # as `Problem.grad`


@runtime_checkable
class PreparesGradients(Protocol):
    """A problem that resolves once what the gradients of many rounds share."""

    def gradient_function(self, dtype: torch.dtype) -> GradientFunction: ...  # of models of `dtype`


class LinearData(NamedTuple):
    """The data of a linear model, as compiled loops read them."""

    numbers: Ints  # client i holds the samples numbers[offsets[i] : offsets[i + 1]]
    offsets: Ints  # (clients + 1,)
    inputs: NDArray[np.generic]  # (samples, features): bytes, or floats of the models' type
    targets: Ints  # (samples,) classes
    scale: float  # feature = scale * input
    classes: int
    bias: bool
    loss: int  # index in `problems.losses.LOSSES`


@runtime_checkable
class CompiledGradient(HasBatches, Protocol):
    """A problem with gradients in compiled loops, unless `linear_data` is None."""

    def linear_data(self, dtype: torch.dtype) -> LinearData | None: ...
