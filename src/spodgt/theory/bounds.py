"""Bounds on the mean of E‖∇F(x̄)‖² over a run: the Theorem as printed, and what the lemmas prove."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spodgt.errors import InvalidInput
from spodgt.theory.constants import Constants, Infeasible, Number
from spodgt.types import Floats


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
    _check_rounds(rounds)
    c = constants
    factors = [c.term_optimality_k, c.term_model_k, c.term_tracking_k, c.term_eta2, c.term_const]
    scales = [start.optimality_gap / rounds, start.model_error / rounds, start.tracking_error / rounds, 1, 1]
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
    _check_rounds(rounds)
    c = constants
    if c.variant != "corrected":
        return Infeasible("the printed lemmas do not imply it; use variant='corrected'")
    descent, psi0, omega, omega0 = c.descent_exact, c.neumann_psi0, c.neumann_omega, c.omega0
    if isinstance(descent, Infeasible):
        return descent
    if isinstance(psi0, Infeasible) or isinstance(omega, Infeasible) or isinstance(omega0, Infeasible):
        return Infeasible("a sum over powers of Psi exceeds the range of floating point")
    if not descent > 0:
        return Infeasible(f"descent_exact = {descent:.3g} must be positive; idleness and noise outweigh it")
    errors = start.optimality_gap + psi0 @ [start.model_error, start.tracking_error]
    return float(errors / (descent * rounds) + (omega + omega0) / descent)


def _check_rounds(rounds: int) -> None:
    if rounds < 1:
        raise InvalidInput(f"rounds must be at least 1, got {rounds}; use rounds=1.")
