"""The conditions of the theory: which hold for a configuration, and by what factor others are missed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spodgt.theory.constants import Constants, Infeasible, Number
from spodgt.types import Floats

Margin = tuple[bool, float, Number, float]  # the last four fields of a `Condition`


@dataclass(frozen=True)
class Condition:
    """One inequality value <= limit. `factor` = value / limit: above one it is missed by that factor."""

    about: str  # what it limits: links, clients, batches, step size, …
    formula: str  # in the names of `Constants`
    holds: bool
    value: float
    limit: Number
    factor: float

    @property
    def name(self) -> str:
        return f"{self.about}: {self.formula}"


def conditions(constants: Constants) -> list[Condition]:
    """List the conditions in the order of the proofs.

    All are phrased as something that must be small: for p̂ >= r that is 1 - p̂ <= 1 - r, which keeps its
    digits when r is 1 - 1e-30.

    Args:
        constants: of either variant; each has its own conditions.
    """
    c = constants
    idle_links = 1 - c.min_p_hat
    found = [
        Condition("links of A", "rho0_A <= (1 - rho_A)/4", *_below(c.rho0_A, c.one_minus_rho_A / 4)),
        Condition("links of B", "rho0_B <= (1 - rho_B)/2", *_below(c.rho0_B, c.one_minus_rho_B / 2)),
    ]
    step = Condition("step size", "eta < Proposition lr", *_below(c.eta_max, c.lr_bound_prop1, strict=True))
    if c.variant == "corrected":
        gradient = c.neumann_gamma  # γ₀ > ψ₀ᵀ(I-Ψ)⁻¹γ
        margin = (
            (False, math.inf, gradient, math.inf)
            if isinstance(gradient, Infeasible)
            else _below(gradient, c.gamma0, strict=True)
        )
        return [*found, step, Condition("descent", "psi0 (I - Psi)^-1 gamma < gamma0", *margin)]
    by_p = "p_i >= 1 - m pi_i/(9 Gamma1 delta1_i^2)"
    by_B = "B_i >= D_i/(1 + m pi_i D_i/(6 Gamma1 sigma1_i^2))"
    even = _below(c.eta_max, c.gamma3 * c.eta_bar)
    return [
        *found,
        Condition("links", "p_hat >= r_A", *_below_log(idle_links, c.log_one_minus_r_A)),
        Condition("links", "p_hat >= r_B", *_below_log(idle_links, c.log_one_minus_r_B)),
        step,
        Condition("clients", by_p, *_worst(1 - c.p, c.min_p, complement=True)),
        Condition("batches", by_B, *_worst(c.batch, c.min_B, complement=False)),
        Condition("links", "p_hat >= r'_B", *_below(idle_links, c.one_minus_r_prime_B)),
        Condition("step sizes", "max eta <= Gamma3 mean eta", *even),
        Condition("step size", "eta < Proposition loss", *_below(c.eta_max, c.lr_bound_prop2, strict=True)),
    ]


def _below(value: float, limit: Number, strict: bool = False) -> Margin:
    if isinstance(limit, Infeasible):
        return False, value, limit, math.inf
    holds = value < limit if strict else value <= limit
    if limit > 0:
        return holds, value, limit, value / limit if value < math.inf else math.inf
    return holds, value, limit, 1.0 if holds else math.inf


def _below_log(value: float, log_limit: float) -> Margin:
    """1 - p̂ <= 1 - r, where only log(1 - r) is a float."""
    if value == 0:
        return True, 0.0, math.exp(log_limit), 0.0
    excess = math.log(value) - log_limit
    return excess <= 0, value, math.exp(log_limit), math.exp(excess) if excess < 700 else math.inf


def _worst(value: Floats, limit: Floats | Infeasible, complement: bool) -> Margin:
    """The client that misses its own limit most; batches must be large where the others must be small."""
    if isinstance(limit, Infeasible):
        return False, float(value.max() if complement else value.min()), limit, math.inf
    room = 1 - limit if complement else value
    used = value if complement else limit
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(used == 0, 0.0, used / room)
    worst = int(np.argmax(factors))
    bound = room if complement else limit
    return bool(factors[worst] <= 1), float(value[worst]), float(bound[worst]), float(factors[worst])
