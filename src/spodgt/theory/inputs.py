"""The inputs of the analysis: constants of the assumptions, probabilities and step sizes, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.theory.graph import Links, per_client, probabilities
from spodgt.types import Floats

Variant = Literal["paper", "corrected"]


@dataclass(frozen=True, eq=False)
class Data:
    """The constants of the assumptions: each field is one number, or an array (clients,).

        ‖∇F_i(x) - ∇F_i(x')‖ <= L_i ‖x - x'‖                                    Assumption lipschitz
        E‖mini-batch gradient - ∇F_i(x)‖² <= (1 - B/D)/B (σ₀² + σ₁² ‖∇F(x)‖²)    Assumption sgd
        ‖∇F_i(x)‖² <= δ₀² + δ₁² ‖∇F(x)‖²                                         Assumption graddiv

    Args:
        L: smoothness L_i, positive.
        sigma0: σ₀, gradient noise that stays at a stationary point; unit of a gradient.
        sigma1: σ₁, gradient noise relative to ‖∇F‖; no unit.
        delta0: δ₀, dissimilarity of clients at a stationary point; unit of a gradient.
        delta1: δ₁, dissimilarity relative to ‖∇F‖; no unit.
        samples: D_i, samples that client i holds.
        batch: B_i, samples in a mini-batch, from 1 to D_i.
    """

    L: ArrayLike
    sigma0: ArrayLike
    sigma1: ArrayLike
    delta0: ArrayLike
    delta1: ArrayLike
    samples: ArrayLike
    batch: ArrayLike


@dataclass(frozen=True, eq=False)
class Inputs:
    """What the formulas read: the links, and arrays (clients,)."""

    links: Links
    p: Floats
    L: Floats
    sigma0: Floats
    sigma1: Floats
    delta0: Floats
    delta1: Floats
    samples: Floats  # D
    batch: Floats  # B
    step_size: Floats  # η
    gamma2: float
    gamma3: float
    variant: Variant

    @property
    def s(self) -> Floats:
        """(1 - B/D)/B: variance of a mini-batch drawn without replacement, Assumption sgd."""
        return (1 - self.batch / self.samples) / self.batch

    @classmethod
    def of(
        cls,
        network: Network,
        p: ArrayLike,
        p_hat: ArrayLike,
        data: Data,
        step_size: ArrayLike,
        *,
        gamma2: float,
        gamma3: float,
        variant: Variant,
    ) -> Inputs:
        """Check all inputs of `constants` and broadcast them to one value per client."""
        if variant not in get_args(Variant):
            raise InvalidInput(
                f"variant must be 'paper' or 'corrected', got {variant!r}; use variant='corrected'."
            )
        for name, gamma in {"gamma2": gamma2, "gamma3": gamma3}.items():
            if not (gamma > 1 and math.isfinite(gamma)):
                raise InvalidInput(f"{name} must be a finite number above 1, got {gamma}; use {name}=2.0.")
        given = {field.name: getattr(data, field.name) for field in fields(data)} | {"step_size": step_size}
        arrays = {
            name: per_client(name, value, network.clients, zero=name.startswith(("sigma", "delta")))
            for name, value in given.items()
        }
        D, B = arrays["samples"], arrays["batch"]
        outside = (B > D) | (B < 1)
        if outside.any():
            worst = int(np.argmax(outside))
            raise InvalidInput(
                f"batch[{worst}] must be from 1 to {D[worst]:g}, the client's samples, got {B[worst]:g}; "
                "use batch=1."
            )
        links, p = Links.of(network, p_hat), probabilities("p", p, network.clients)
        return cls(links, p, gamma2=float(gamma2), gamma3=float(gamma3), variant=variant, **arrays)
