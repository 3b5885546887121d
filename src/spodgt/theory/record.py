"""The record of all constants, field by field as the paper names them.

Lemmas, propositions and tables are named by the labels of the paper's source. In words:
s_i = (1 - B_i/D_i)/B_i is what sampling without replacement leaves of the variance, an overline is a
mean over clients, and S = mean(σ₀² p s), T = mean((1-p) δ₀²).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from spodgt.network.recipes import Floats

Variant = Literal["paper", "corrected"]


@dataclass(frozen=True)
class Infeasible:
    """In place of a number that does not exist, with the condition that fails. Counts as false."""

    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"infeasible: {self.reason}"


Number = float | Infeasible
Vector = Floats | Infeasible


@dataclass(frozen=True, eq=False)
class Constants:
    """Every constant of the analysis for one network, data and step size.

    `variant` is "paper" (printed formulas, index typos repaired) or "corrected" (those for which the
    proofs go through). A field is a number, or `Infeasible` with the reason.
    """

    variant: Variant
    # --- inputs that conditions are checked against ------------------------------------------------
    p: Floats
    p_hat: Floats
    batch: Floats
    step_size: Floats
    gamma3: float
    # --- network ---------------------------------------------------------------------------------
    m: int  # clients
    diameter: int  # D(G), Lemma expected_contraction
    edge_utility: int  # K(G), Lemma expected_contraction
    A_hat: Floats  # Â, eqn:expected_mat
    B_hat: Floats  # B̂, eqn:expected_mat
    phi: Floats  # φ̂ᵀÂ = φ̂ᵀ, eqn:eigenvectors
    pi: Floats  # B̂π̂ = π̂, eqn:eigenvectors
    # --- contraction -----------------------------------------------------------------------------
    one_minus_rho_A: float  # 1 - ρ̂_A, Lemma expected_contraction (i)
    one_minus_rho_B: float  # 1 - ρ̂_B, Lemma expected_contraction (ii)
    rho_A: float
    rho_B: float
    rho0_A: float  # ρ̂_0A, Lemma sporadic_contraction (i)
    rho0_B: float  # ρ̂_0B, Lemma sporadic_contraction (ii)
    one_minus_rho_tilde_A: float  # 1 - ρ̃_A, ρ̃_A = ρ̂_A + 2ρ̂_0A, Lemma xdispersion; may be negative
    one_minus_rho_tilde_B: float  # 1 - ρ̃_B, ρ̃_B = ρ̂_B + ρ̂_0B, Lemma ydispersion; may be negative
    rho_tilde_A: float
    rho_tilde_B: float
    lemma_A_ok: bool  # ρ̂_0A <= (1 - ρ̂_A)/4, Lemma sporadic_contraction (i)
    lemma_B_ok: bool  # ρ̂_0B <= (1 - ρ̂_B)/2, Lemma sporadic_contraction (ii)
    log_tau_A: float  # log τ̂_A, Lemma sporadic_contraction (i)
    log_tau_B: float  # log τ̂_B, Lemma sporadic_contraction (ii)
    log_one_minus_r_A: float  # log(1 - r̂_A), root of x^(2m+2) + τ̂_A x - τ̂_A
    log_one_minus_r_B: float  # log(1 - r̂_B), root of x^(3m+2) + τ̂_B x - τ̂_B
    min_p_hat: float
    p_hat_ge_r_A: bool  # min p̂ >= r̂_A
    p_hat_ge_r_B: bool  # min p̂ >= r̂_B
    # --- data and step size ------------------------------------------------------------------------
    L_bar: float  # mean L_i, Assumption lipschitz
    noise: float  # S = mean(σ₀² p s), Theorem constant
    sporadicity: float  # T = mean((1-p) δ₀²), Theorem constant
    eta_max: float
    eta_bar: float
    kappa1: float  # Lemma descenteffect (i)
    kappa2: float  # Lemma descenteffect (i)
    kappa3: float  # Lemma descenteffect (iii)
    kappa4: float  # Lemma trackingeffect (iii)
    kappa5: float  # Lemma trackingeffect (iii)
    kappa8: float  # Lemma loss
    change_constant: float  # constant term of Lemma trackingeffect (iii)
    change_gradient: float  # coefficient of E‖∇F‖² in Lemma trackingeffect (iii)
    # --- the recursion ς⁺ <= Ψς + γ E‖∇F‖² + ω, eqn:varsigma, and the loss, eqn:loss_redefined --------
    kappa6: Number  # Lemma xdispersion
    kappa7: Number  # Lemma ydispersion
    kappa9: Number  # Proposition loss
    kappa10: Number  # Proposition loss
    psi11: Number  # Lemma xdispersion
    psi12: Number
    psi21: Number  # Lemma ydispersion
    psi22: Number
    gamma1: Number  # Lemma xdispersion
    gamma2: Number  # Lemma ydispersion
    omega1: Number  # Lemma xdispersion
    omega2: Number  # Lemma ydispersion
    psi01: Number  # Lemma loss
    psi02: Number
    gamma0: Number
    omega0: Number
    rho_Psi: Number  # spectral radius of Ψ, Corollary constant
    one_minus_rho_Psi: Number  # det(I-Ψ)/(1-λ₂)
    neumann_psi0: Vector  # ψ₀ᵀ(I-Ψ)⁻¹, what sums of powers of Ψ come to in the proof of the Theorem
    neumann_gamma: Number  # ψ₀ᵀ(I-Ψ)⁻¹γ
    neumann_gamma_paper: Number  # ψ₀ᵀγ/(1-ρ_Ψ), which the proof of Proposition loss takes for it
    neumann_omega: Number  # ψ₀ᵀ(I-Ψ)⁻¹ω
    descent_exact: Number  # γ₀ - ψ₀ᵀ(I-Ψ)⁻¹γ, to be positive in eqn:loss_expanded
    # --- propositions and theorem ------------------------------------------------------------------
    lr_bound_prop1: Number  # eqn:lr_constraint as stated
    lr_bound_prop1_proof: Number  # the same with 1 + ρ̂_A, as in the proof (eqn:lr_cond2)
    Gamma1: Number  # Γ₁, eqn:Gamma1_val
    min_p: Vector  # smallest p_i, Proposition loss; 0 where any will do
    min_B: Vector  # smallest B_i, Proposition loss; 1 where any will do
    tau_prime_B: Number  # τ̂'_B with the largest b_ij, Proposition loss
    r_prime_B: Number  # r̂'_B, Proposition loss; 0 where any p̂ will do
    one_minus_r_prime_B: Number
    lr_bound_prop2: Number  # Proposition loss
    q: Number  # Proposition loss
    term_optimality_k: Number  # Theorem constant: factor of (F(x̄⁰)-F*)/(k+1)
    term_model_k: Number  # factor of ‖X⁰-1x̄⁰‖²/(k+1)
    term_tracking_k: Number  # factor of the tracking error/(k+1)
    term_const: Number  # the gap that does not shrink with η
    term_eta2: Number  # the η² gap as printed
    term_eta2_fixed: Number  # with the 1/(1-ρ_Ψ) that its own derivation gives

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and, for what is infeasible, a sentence: ready for JSON."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Infeasible) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)  # JSON has no infinity
    return value.tolist() if isinstance(value, np.ndarray) else value
