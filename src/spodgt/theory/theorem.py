"""The propositions and the Theorem, from the lemmas' constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic

import numpy as np

from spodgt.theory.inputs import Inputs
from spodgt.theory.lemmas import Gradients, Graph, Mixing, N, Recursion, Stage, V
from spodgt.types import Floats


@dataclass(frozen=True, eq=False)
class PropositionLr(Stage, Generic[N]):
    """Proposition lr: a step size below this keeps ρ(Ψ) < 1."""

    lr_bound_prop1: N  # eqn:lr_constraint as stated, with 1 + ρ̃_A
    lr_bound_prop1_proof: N  # the same with 1 + ρ̂_A, as in the proof (eqn:lr_cond2)


def proposition_lr(
    inputs: Inputs, graph: Graph, mixing: Mixing, gradients: Gradients, kappa7: float
) -> PropositionLr[float]:
    m, k5, rho0_B = graph.m, gradients.kappa5, mixing.rho0_B
    gap_A, gap_B = mixing.one_minus_rho_tilde_A, mixing.one_minus_rho_tilde_B
    one_plus_B = 1 + mixing.rho_tilde_B
    coupling = 2 * gradients.kappa4 + m * k5 * mixing.rho0_A
    size = m + 1.0
    third = np.sqrt(gap_A / k5)
    corrected = inputs.variant == "corrected"
    if corrected:
        # κ7 has 1/min π̂ for 2(m+1), and ψ21 has an m² and the ȳ term of the mixing
        size = 1 / (2 * graph.pi.min())
        third /= m
        if rho0_B > 0:
            x = one_plus_B / (2 * mixing.rho_tilde_B) * m**2 * rho0_B
            coupling += x * gradients.kappa1 / (m * kappa7)
    fourth = gap_B / (2 * np.sqrt(m * size * one_plus_B * k5))

    def bound(one_plus_A: float) -> float:
        second = gap_A * gap_B / (4 * np.sqrt(size * one_plus_A * one_plus_B * coupling))
        return float(min(second, third, fourth) / (2 * np.sqrt(gradients.kappa3)))

    proof = bound(1 + mixing.rho_A)
    return PropositionLr(proof if corrected else bound(1 + mixing.rho_tilde_A), proof)


@dataclass(frozen=True, eq=False)
class PropositionLoss(Stage, Generic[N, V]):
    """Proposition loss. Its conditions are circular, so they are evaluated at a configuration, not solved."""

    Gamma1: N  # Γ₁, eqn:Gamma1_val
    min_p: V  # smallest p_i; 0 where any will do
    min_B: V  # smallest B_i; 1 where any will do
    tau_prime_B: N  # τ̂'_B with the largest b_ij
    r_prime_B: N  # r̂'_B; 0 where any p̂ will do
    one_minus_r_prime_B: N
    lr_bound_prop2: N
    q: N


def proposition_loss(
    inputs: Inputs, graph: Graph, mixing: Mixing, gradients: Gradients, r: Recursion[float]
) -> PropositionLoss[float, Floats]:
    m, pi, gap = graph.m, graph.pi, r.one_minus_rho_Psi
    G2, G3, product = inputs.gamma2, inputs.gamma3, graph.phi * pi
    G1_minus_1 = 8 * G3 / m * product.max() / product.min() * G2 * r.kappa7 * mixing.rho_tilde_B / gap
    G1 = 1 + G1_minus_1
    need_p = np.divide(m * pi, 9 * G1 * inputs.delta1**2, out=np.full(m, np.inf), where=inputs.delta1 > 0)
    # B_i >= D/(1 + c D) with c = mπ/(6Γ₁σ₁²); without σ₁ a single sample will do
    c = np.divide(m * pi, 6 * G1 * inputs.sigma1**2, out=np.full(m, np.inf), where=inputs.sigma1 > 0)
    b_max = inputs.links.b.max(initial=0.0)
    links = 9 * (m - 1) * gradients.kappa2 * G1 * b_max**2
    tau = 2 * m * pi.min() ** 2 / (links * pi.max()) if links > 0 else math.inf
    # ½(1 - √(1-τ')) without cancellation; at τ' >= 1 no p̂ is excluded, whatever the formula returns
    one_minus_r = tau / (2 * (1 + np.sqrt(1 - tau))) if tau < 1 else 1.0
    return PropositionLoss(
        Gamma1=G1,
        min_p=np.maximum(0.0, 1 - need_p),
        min_B=np.maximum(1.0, inputs.samples / (1 + c * inputs.samples)),
        tau_prime_B=tau,
        r_prime_B=1 - one_minus_r,
        one_minus_r_prime_B=one_minus_r,
        lr_bound_prop2=float(np.sqrt((1 - 1 / G3) / G1 * r.kappa10 / r.kappa9 * gap)),
        q=m**2 / 2 * (G1_minus_1 / G1) * (1 - 1 / G2) / G3 * product.min(),
    )


@dataclass(frozen=True, eq=False)
class TheoremTerms(Stage, Generic[N]):
    """The terms of Theorem constant, as factors of what they multiply."""

    term_optimality_k: N  # factor of (F(x̄⁰)-F*)/(k+1)
    term_model_k: N  # factor of ‖X⁰-1x̄⁰‖²/(k+1)
    term_tracking_k: N  # factor of the tracking error/(k+1)
    term_const: N  # the gap that does not shrink with η
    term_eta2: N  # the η² gap as printed
    term_eta2_fixed: N  # with the 1/(1-ρ_Ψ) that its own derivation gives


def theorem(
    graph: Graph, mixing: Mixing, gradients: Gradients, r: Recursion[float], q: float
) -> TheoremTerms[float]:
    m, g, gap, phi_max = graph.m, gradients, r.one_minus_rho_Psi, graph.phi.max()
    k7_rho, links = r.kappa7 * mixing.rho_tilde_B, 1 + 3 * mixing.rho0_B
    S, T = g.noise, g.sporadicity
    eta2 = 3 * m * phi_max / (2 * q) * r.kappa9 * g.kappa3 * k7_rho * (S + 3 * T) * g.eta_max**2
    return TheoremTerms(
        term_optimality_k=1 / (q * g.eta_max),
        term_model_k=links * g.kappa8 / (2 * q * gap),
        term_tracking_k=3 * phi_max * mixing.rho_tilde_B / (2 * m * q * gap),
        term_const=phi_max / q * (m * links / 2 + 3 * k7_rho / gap) * (S + 5 * T),
        term_eta2=eta2,
        term_eta2_fixed=eta2 / gap,
    )
