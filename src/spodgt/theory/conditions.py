"""The conditions of the theory, met or missed, and bounds on E‖∇F(x̄)‖²."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spodgt.errors import InvalidInput
from spodgt.theory.constants import Constants, Infeasible, Number, Vector
from spodgt.types import Floats


@dataclass(frozen=True)
class Condition:
    """One inequality value <= limit, with factor = value / limit (above one if it is missed)."""

    about: str  # links, clients, batches, step size, …
    formula: str  # in the names of `Constants`
    holds: bool  # value <= limit
    value: float  # left-hand side
    limit: Number  # right-hand side, or `Infeasible`
    factor: float  # value / limit

    @property
    def name(self) -> str:
        return f"{self.about}: {self.formula}"


def conditions(constants: Constants) -> list[Condition]:
    """List the conditions in the order of the proofs.

    All are phrased as something that must be small: for p̂ >= r that is 1 - p̂ <= 1 - r, which
    keeps its digits when r is 1 - 1e-30.

    Args:
        constants: of either variant; each has its own conditions.
    """
    c = constants
    idle_links = 1 - c.min_p_hat
    found = [
        _below("links of A", "rho0_A <= (1 - rho_A)/4", c.rho0_A, c.one_minus_rho_A / 4),
        _below("links of B", "rho0_B <= (1 - rho_B)/2", c.rho0_B, c.one_minus_rho_B / 2),
    ]
    step = _below("step size", "eta < Proposition lr", c.eta_max, c.lr_bound_prop1, strict=True)
    if c.variant == "corrected":
        used = c.neumann_gamma  # γ₀ > ψ₀ᵀ(I-Ψ)⁻¹γ
        margin = (math.inf, used) if isinstance(used, Infeasible) else (used, c.gamma0)
        return [
            *found,
            step,
            _below("descent", "psi0 (I - Psi)^-1 gamma < gamma0", *margin, strict=True),
        ]
    may_idle = c.min_p if isinstance(c.min_p, Infeasible) else 1 - c.min_p
    by_p = "p_i >= 1 - m pi_i/(9 Gamma1 delta1_i^2)"
    by_B = "B_i >= D_i/(1 + m pi_i D_i/(6 Gamma1 sigma1_i^2))"
    return [
        *found,
        _below_log("links", "p_hat >= r_A", idle_links, c.log_one_minus_r_A),
        _below_log("links", "p_hat >= r_B", idle_links, c.log_one_minus_r_B),
        step,
        _for_all("clients", by_p, 1 - c.p, may_idle),
        _for_all("batches", by_B, c.batch, c.min_B, at_least=True),
        _below("links", "p_hat >= r'_B", idle_links, c.one_minus_r_prime_B),
        _below("step sizes", "max eta <= Gamma3 mean eta", c.eta_max, c.gamma3 * c.eta_bar),
        _below("step size", "eta < Proposition loss", c.eta_max, c.lr_bound_prop2, strict=True),
    ]


def _below(
    about: str, formula: str, value: float, limit: Number, *, strict: bool = False
) -> Condition:
    if isinstance(limit, Infeasible):
        return Condition(about, formula, False, value, limit, math.inf)
    holds = value < limit if strict else value <= limit
    factor = value / limit if limit > 0 and value < math.inf else 1.0 if holds else math.inf
    return Condition(about, formula, holds, value, limit, factor)


def _below_log(about: str, formula: str, value: float, log_limit: float) -> Condition:
    """1 - p̂ <= 1 - r, where only log(1 - r) is a float."""
    excess = math.log(value) - log_limit if value > 0 else -math.inf
    factor = math.exp(excess) if excess < 700 else math.inf
    return Condition(about, formula, excess <= 0, value, math.exp(log_limit), factor)


def _for_all(
    about: str, formula: str, value: Floats, limit: Vector, *, at_least: bool = False
) -> Condition:
    """value <= limit (or >=) for every client: the client with the largest factor."""
    if isinstance(limit, Infeasible):
        worst = float(value.min() if at_least else value.max())
        return Condition(about, formula, False, worst, limit, math.inf)
    used, room = (limit, value) if at_least else (value, limit)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(used == 0, 0.0, used / room)
    i = int(np.argmax(factors))
    return Condition(
        about, formula, bool(factors[i] <= 1), float(value[i]), float(limit[i]), float(factors[i])
    )


# --- bounds on the mean of E‖∇F(x̄)‖² over a run ---
@dataclass(frozen=True)
class Start:
    """Where a run starts.

    Args:
        optimality_gap: F(x̄⁰) - F*.
        model_error: ‖X⁰ - 1x̄⁰‖²_φ, zero where all clients start from one model.
        tracking_error: E‖Π⁻¹Y⁰ - m1ȳ⁰‖²_π.
    """

    optimality_gap: float
    model_error: float
    tracking_error: float


def theorem_terms(constants: Constants, start: Start, rounds: int) -> Floats | Infeasible:
    """Evaluate the Theorem's bound as printed, term by term.

    Args:
        constants: of variant "paper"; the others have no such terms.
        start: errors of the initial models and trackers.
        rounds: k + 1, how many iterates the mean on the left runs over.

    Returns:
        (5,): the terms of optimality, models and trackers, the η² term and the constant one.
    """
    if rounds < 1:
        raise InvalidInput(f"rounds must be at least 1, got {rounds}; use rounds=1.")
    c = constants
    factors = [c.term_optimality_k, c.term_model_k, c.term_tracking_k, c.term_eta2, c.term_const]
    scales = [
        start.optimality_gap / rounds,
        start.model_error / rounds,
        start.tracking_error / rounds,
        1,
        1,
    ]
    terms = []
    for factor, scale in zip(factors, scales, strict=True):
        if isinstance(factor, Infeasible):
            return factor
        terms.append(factor * scale)
    return np.array(terms)


def rigorous_bound(constants: Constants, start: Start, rounds: int) -> Number:
    """Bound the mean of E‖∇F(x̄)‖² over `rounds` iterates by what follows from the lemmas alone.

    eqn:loss_expanded with (I-Ψ)⁻¹ for the sums of powers; proved for the corrected constants, where

        mean E‖∇F‖² <= (F⁰ - F* + ψ₀ᵀ(I-Ψ)⁻¹ς⁰)/(descent · rounds) + (ψ₀ᵀ(I-Ψ)⁻¹ω + ω₀)/descent.

    Args:
        constants: of variant "corrected"; the printed ones do not imply a bound.
        start: errors of the initial models and trackers.
        rounds: how many iterates the mean runs over.
    """
    if rounds < 1:
        raise InvalidInput(f"rounds must be at least 1, got {rounds}; use rounds=1.")
    c = constants
    if c.variant != "corrected":
        return Infeasible("the printed lemmas do not imply it; use variant='corrected'")
    descent = c.descent_exact
    psi0 = c.neumann_psi0
    omega = c.neumann_omega
    omega0 = c.omega0
    if isinstance(descent, Infeasible):
        return descent
    if (
        isinstance(psi0, Infeasible)
        or isinstance(omega, Infeasible)
        or isinstance(omega0, Infeasible)
    ):
        return Infeasible("a sum over powers of Psi exceeds the range of floating point")
    if not descent > 0:
        return Infeasible(
            f"descent_exact = {descent:.3g} must be positive; idleness and noise outweigh it"
        )
    errors = start.optimality_gap + psi0 @ [start.model_error, start.tracking_error]
    return float(errors / (descent * rounds) + (omega + omega0) / descent)
