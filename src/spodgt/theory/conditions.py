"""The conditions of the theory: which hold for a configuration, and by what factor others are missed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spodgt.theory.constants import Constants, Infeasible, Number
from spodgt.types import Floats


@dataclass(frozen=True)
class Condition:
    """One inequality value <= limit. `factor` = value / limit: above one it is missed by that factor."""

    name: str
    holds: bool
    value: float
    limit: Number
    factor: float


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
        _condition("links' variance, A: rho0_A <= (1 - rho_A)/4", c.rho0_A, c.one_minus_rho_A / 4),
        _condition("links' variance, B: rho0_B <= (1 - rho_B)/2", c.rho0_B, c.one_minus_rho_B / 2),
    ]
    if c.variant == "corrected":
        gradient = c.neumann_gamma
        descent = (
            # γ₀ > ψ₀ᵀ(I-Ψ)⁻¹γ
            Condition("descent", False, math.inf, gradient, math.inf)
            if isinstance(gradient, Infeasible)
            else _condition("descent: psi0 (I - Psi)^-1 gamma < gamma0", gradient, c.gamma0, strict=True)
        )
        return [*found, _step("step size: eta < Proposition lr", c.eta_max, c.lr_bound_prop1), descent]
    return [
        *found,
        _threshold("links: p_hat >= r_A", idle_links, c.log_one_minus_r_A),
        _threshold("links: p_hat >= r_B", idle_links, c.log_one_minus_r_B),
        _step("step size: eta < Proposition lr", c.eta_max, c.lr_bound_prop1),
        _worst("clients: p_i >= 1 - m pi_i/(9 Gamma1 delta1_i^2)", 1 - c.p, c.min_p, complement=True),
        _worst(
            "batches: B_i >= D_i/(1 + m pi_i D_i/(6 Gamma1 sigma1_i^2))", c.batch, c.min_B, complement=False
        ),
        _condition("links: p_hat >= r'_B", idle_links, c.one_minus_r_prime_B),
        _condition("step sizes alike: max eta <= Gamma3 mean eta", c.eta_max, c.gamma3 * c.eta_bar),
        _step("step size: eta < Proposition loss", c.eta_max, c.lr_bound_prop2),
    ]


def _condition(name: str, value: float, limit: Number, strict: bool = False) -> Condition:
    if isinstance(limit, Infeasible):
        return Condition(name, False, value, limit, math.inf)
    holds = value < limit if strict else value <= limit
    if limit > 0:
        return Condition(name, holds, value, limit, value / limit if value < math.inf else math.inf)
    return Condition(name, holds, value, limit, 1.0 if holds else math.inf)


def _step(name: str, value: float, limit: Number) -> Condition:
    return _condition(name, value, limit, strict=True)


def _threshold(name: str, value: float, log_limit: float) -> Condition:
    """1 - p̂ <= 1 - r, where only log(1 - r) is a float."""
    if value == 0:
        return Condition(name, True, 0.0, math.exp(log_limit), 0.0)
    excess = math.log(value) - log_limit
    factor = math.exp(excess) if excess < 700 else math.inf
    return Condition(name, excess <= 0, value, math.exp(log_limit), factor)


def _worst(name: str, value: Floats, limit: Floats | Infeasible, complement: bool) -> Condition:
    """The client that misses its own limit most; batches must be large where the others must be small."""
    if isinstance(limit, Infeasible):
        return Condition(name, False, float(value.max() if complement else value.min()), limit, math.inf)
    room = 1 - limit if complement else value
    used = value if complement else limit
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(used == 0, 0.0, used / room)
    worst = int(np.argmax(factors))
    factor, bound = float(factors[worst]), (room if complement else limit)
    return Condition(name, factor <= 1, float(value[worst]), float(bound[worst]), factor)
