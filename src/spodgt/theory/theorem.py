"""Propositions, Theorem and the bounds they give, from the lemmas' constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spodgt.errors import InvalidInput
from spodgt.network.recipes import Floats
from spodgt.theory.record import Constants, Infeasible, Number
from spodgt.theory.setting import Setting

Values = dict[str, Any]


def proposition_lr(setting: Setting, v: Values) -> Values:
    """Proposition lr: a step size below this keeps ρ(Ψ) < 1. Text and proof differ in 1 + ρ̃_A and 1 + ρ̂_A."""
    m, k3, k5 = v["m"], v["kappa3"], v["kappa5"]
    gap_A, gap_B = v["one_minus_rho_tilde_A"], v["one_minus_rho_tilde_B"]
    one_plus_B, rho0_B = 1 + v["rho_tilde_B"], v["rho0_B"]
    coupling = 2 * v["kappa4"] + m * k5 * v["rho0_A"]
    size = m + 1.0
    third = np.sqrt(gap_A / k5)
    corrected = setting.variant == "corrected"
    if corrected:
        # κ7 has 1/min π̂ for 2(m+1), and ψ21 has an m² and the ȳ term of the mixing
        size = 1 / (2 * v["pi"].min())
        third /= m
        if rho0_B > 0:
            x = one_plus_B / (2 * v["rho_tilde_B"]) * m**2 * rho0_B
            coupling += x * v["kappa1"] / (m * v["kappa7"])
    fourth = gap_B / (2 * np.sqrt(m * size * one_plus_B * k5))

    def bound(one_plus_A: Any) -> Any:
        second = gap_A * gap_B / (4 * np.sqrt(size * one_plus_A * one_plus_B * coupling))
        return min(second, third, fourth) / (2 * np.sqrt(k3))

    proof = bound(1 + v["rho_A"])
    stated = proof if corrected else bound(1 + v["rho_tilde_A"])
    return {"lr_bound_prop1": stated, "lr_bound_prop1_proof": proof}


def proposition_loss(setting: Setting, v: Values) -> Values:
    """Proposition loss. Its conditions are circular, so they are evaluated at a configuration, not solved."""
    m, phi, pi = v["m"], v["phi"], v["pi"]
    gap = v["one_minus_rho_Psi"]
    G2, G3 = setting.gamma2, setting.gamma3
    product = phi * pi
    G1_minus_1 = 8 * G3 / m * product.max() / product.min() * G2 * v["kappa7"] * v["rho_tilde_B"] / gap
    G1 = 1 + G1_minus_1
    need_p = np.divide(m * pi, 9 * G1 * setting.delta1**2, out=np.full(m, np.inf), where=setting.delta1 > 0)
    # B_i >= D/(1 + c D) with c = mπ/(6Γ₁σ₁²); without σ₁ a single sample will do
    c = np.divide(m * pi, 6 * G1 * setting.sigma1**2, out=np.full(m, np.inf), where=setting.sigma1 > 0)
    b_max = setting.links.b.max(initial=0.0)
    links = 9 * (m - 1) * v["kappa2"] * G1 * b_max**2
    tau = 2 * m * pi.min() ** 2 / (links * pi.max()) if links > 0 else math.inf
    # ½(1 - √(1-τ')) without cancellation; at τ' >= 1 no p̂ is excluded, whatever the formula returns
    one_minus_r = tau / (2 * (1 + np.sqrt(1 - tau))) if tau < 1 else 1.0
    return {
        "Gamma1": G1,
        "min_p": np.maximum(0.0, 1 - need_p),
        "min_B": np.maximum(1.0, setting.samples / (1 + c * setting.samples)),
        "tau_prime_B": tau,
        "r_prime_B": 1 - one_minus_r,
        "one_minus_r_prime_B": one_minus_r,
        "lr_bound_prop2": np.sqrt((1 - 1 / G3) / G1 * v["kappa10"] / v["kappa9"] * gap),
        "q": m**2 / 2 * (G1_minus_1 / G1) * (1 - 1 / G2) / G3 * product.min(),
    }


def theorem(v: Values) -> Values:
    """The five terms of Theorem constant, as factors of what they multiply."""
    m, q, gap, phi_max = v["m"], v["q"], v["one_minus_rho_Psi"], v["phi"].max()
    k7_rho = v["kappa7"] * v["rho_tilde_B"]
    S, T = v["noise"], v["sporadicity"]
    links = 1 + 3 * v["rho0_B"]
    eta2 = 3 * m * phi_max / (2 * q) * v["kappa9"] * v["kappa3"] * k7_rho * (S + 3 * T) * v["eta_max"] ** 2
    return {
        "term_optimality_k": 1 / (q * v["eta_max"]),
        "term_model_k": links * v["kappa8"] / (2 * q * gap),
        "term_tracking_k": 3 * phi_max * v["rho_tilde_B"] / (2 * m * q * gap),
        "term_const": phi_max / q * (m * links / 2 + 3 * k7_rho / gap) * (S + 5 * T),
        "term_eta2": eta2,
        "term_eta2_fixed": eta2 / gap,
    }


def theorem_terms(
    constants: Constants, optimality_gap: float, model_error: float, tracking_error: float, rounds: int
) -> Floats | Infeasible:
    """The Theorem's bound as printed, term by term: optimality, model, tracking, η² and constant.

    `optimality_gap` is F(x̄⁰) - F*, `model_error` ‖X⁰-1x̄⁰‖²_φ, `tracking_error` ‖Π⁻¹Y⁰-m1ȳ⁰‖²_π, and the
    average on the left runs over `rounds` = k + 1 iterates.
    """
    _check_rounds(rounds)
    c = constants
    factors = [c.term_optimality_k, c.term_model_k, c.term_tracking_k, c.term_eta2, c.term_const]
    scales = [optimality_gap / rounds, model_error / rounds, tracking_error / rounds, 1.0, 1.0]
    terms = []
    for factor, scale in zip(factors, scales, strict=True):
        if isinstance(factor, Infeasible):
            return factor
        terms.append(factor * scale)
    return np.array(terms)


def rigorous_bound(
    constants: Constants, optimality_gap: float, model_error: float, tracking_error: float, rounds: int
) -> Number:
    """Bound on the mean of E‖∇F(x̄)‖² over `rounds` iterates that follows from the lemmas alone.

    eqn:loss_expanded with (I-Ψ)⁻¹ for the sums of powers; proved for the corrected constants, where

        mean E‖∇F‖² <= (F⁰ - F* + ψ₀ᵀ(I-Ψ)⁻¹ς⁰)/(descent · rounds) + (ψ₀ᵀ(I-Ψ)⁻¹ω + ω₀)/descent.
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
    start = optimality_gap + psi0[0] * model_error + psi0[1] * tracking_error
    return float(start / (descent * rounds) + (omega + omega0) / descent)


def _check_rounds(rounds: int) -> None:
    if rounds < 1:
        raise InvalidInput(f"rounds is {rounds}, but the average needs at least one round.")
