"""The constants of the lemmas, stage by stage in the order of the proofs, in the paper's letters.

Lemmas and equations are named by the labels of the paper's source. s_i = (1 - B_i/D_i)/B_i is what sampling
without replacement leaves of the variance, and mean(·) is over clients. Gaps such as 1 - ρ are computed as
such and never by subtracting a computed ρ from one; what exceeds the floats lives in logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import numpy as np
from scipy.optimize import brentq

from spodgt.network import Network
from spodgt.theory.graph import Links, edge_utility, expected_matrices, perron_vectors
from spodgt.theory.inputs import Inputs
from spodgt.types import Floats

N = TypeVar("N")  # a float while it is computed, float | Infeasible in `Constants`
V = TypeVar("V")  # an array, or array | Infeasible


@dataclass(frozen=True, eq=False)
class Stage:
    """Some constants. Floats are kept as numpy scalars: an overflow is inf, not an exception."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float):
                object.__setattr__(self, field.name, np.float64(value))


# --- network -------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Graph(Stage):
    m: int  # clients
    diameter: int  # D(G), Lemma expected_contraction
    edge_utility: int  # K(G), Lemma expected_contraction
    A_hat: Floats  # Â, eqn:expected_mat
    B_hat: Floats  # B̂, eqn:expected_mat
    phi: Floats  # φ̂ᵀÂ = φ̂ᵀ, eqn:eigenvectors
    pi: Floats  # B̂π̂ = π̂, eqn:eigenvectors


def graph_constants(network: Network, inputs: Inputs) -> Graph:
    p_hat = inputs.links.p_hat
    A_hat, B_hat = expected_matrices(network, p_hat)
    phi, pi = perron_vectors(network, p_hat)
    graph = edge_utility(network)
    return Graph(
        network.clients, graph.diameter, graph.edge_utility, A_hat.toarray(), B_hat.toarray(), phi, pi
    )


# --- contraction ---------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Mixing(Stage):
    """Lemmas expected_contraction and sporadic_contraction."""

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


def mixing_constants(inputs: Inputs, graph: Graph) -> Mixing:
    links, m, phi, pi = inputs.links, graph.m, graph.phi, graph.pi
    D, K = graph.diameter, graph.edge_utility
    if m == 1:  # nothing to contract and no link to fail
        gap_A, gap_B, rho0_A, rho0_B, log_tau_A, log_tau_B = 1.0, 1.0, 0.0, 0.0, -math.inf, -math.inf
    else:
        # the smallest weight includes the diagonal: the proof walks along a_lj a_ll
        min_A, min_B = _extreme(links, links.p_hat, np.min)
        gap_A = phi.min() * min_A**2 / (phi.max() ** 2 * D * K)
        gap_B = pi.min() ** 2 * min_B**2 / (pi.max() ** 3 * D * K)
        rho0_A = 4 * (m - 1) * phi.max() / phi.min() * (links.a**2 * links.variance).max()
        rho0_B = 2 * (m - 1) * pi.max() / pi.min() * (links.b**2 * links.variance).max()
        log_min_A, log_min_B = np.log(_extreme(links, 1.0, np.min))
        log_max_A, log_max_B = np.log(_extreme(links, 1.0, np.max))
        log_tau_A = math.log(16 * m**2 * (m - 1) * D * K) + 2 * log_max_A - 2 * (m + 1) * log_min_A
        log_tau_B = math.log(4 * m**3 * (m - 1) * D * K) + 2 * log_max_B - (3 * m + 2) * log_min_B
    log_r_A, log_r_B = _log_root(2 * (m + 1), log_tau_A), _log_root(3 * m + 2, log_tau_B)
    gap_tilde_A, gap_tilde_B = gap_A - 2 * rho0_A, gap_B - rho0_B
    min_p_hat = float(links.p_hat.min(initial=1.0))
    log_idle = math.log1p(-min_p_hat) if min_p_hat < 1 else -math.inf
    return Mixing(
        one_minus_rho_A=gap_A, one_minus_rho_B=gap_B, rho_A=1 - gap_A, rho_B=1 - gap_B, rho0_A=rho0_A,
        rho0_B=rho0_B, one_minus_rho_tilde_A=gap_tilde_A, one_minus_rho_tilde_B=gap_tilde_B,
        rho_tilde_A=1 - gap_tilde_A, rho_tilde_B=1 - gap_tilde_B, lemma_A_ok=bool(rho0_A <= gap_A / 4),
        lemma_B_ok=bool(rho0_B <= gap_B / 2), log_tau_A=log_tau_A, log_tau_B=log_tau_B,
        log_one_minus_r_A=log_r_A, log_one_minus_r_B=log_r_B, min_p_hat=min_p_hat,
        p_hat_ge_r_A=log_idle <= log_r_A, p_hat_ge_r_B=log_idle <= log_r_B,
    )  # fmt: skip


def _extreme(links: Links, p_hat: Floats | float, pick: Callable[[Floats], float]) -> tuple[float, float]:
    """Smallest or largest weight of A and of B when links count `p_hat`, diagonals included."""
    diagonal_a, diagonal_b = links.diagonals(p_hat)
    return (
        float(pick(np.concatenate([links.a * p_hat, diagonal_a]))),
        float(pick(np.concatenate([links.b * p_hat, diagonal_b]))),
    )


def _log_root(n: int, log_tau: float) -> float:
    """log d of the root of (1-d)ⁿ = τ d, where 1-d is a root of xⁿ + τx - τ and d may be 1e-38."""
    if math.isinf(log_tau):
        return 0.0 if log_tau < 0 else -math.inf  # no links, no threshold; no self-weight, no way
    # decreasing in u = log d; d <= 1/τ, and d >= 1/(τ+n) since (1-d)ⁿ >= 1-nd
    low, high = -float(np.logaddexp(log_tau, math.log(n))) - 1e-6, min(-log_tau, -1e-300)
    return float(brentq(lambda u: n * math.log(-math.expm1(u)) - log_tau - u, low, high, xtol=1e-13))


# --- gradients -----------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Gradients(Stage):
    """Lemmas descenteffect and trackingeffect: what the data and the step sizes contribute."""

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


def gradient_constants(inputs: Inputs, graph: Graph) -> Gradients:
    m, phi, pi, links = graph.m, graph.phi, graph.pi, inputs.links
    p, s, L, eta = inputs.p, inputs.s, inputs.L, inputs.step_size
    L_bar = L.mean()
    s1 = s * inputs.sigma1**2
    idle0, idle1 = (1 - p) * inputs.delta0**2, (1 - p) * inputs.delta1**2
    # m overline(b² p̂ (1-p̂)) is a plain sum over the out-links of j
    link_variance = np.bincount(links.j, links.b**2 * links.variance, m)
    if inputs.variant == "paper":
        kappa4 = (p / phi * (2 * s1 * L_bar**2 + 5 * L**2)).max()
        kappa5 = 2 * (p * (2 * s1 + 5 * idle1)).mean() * L_bar**2 + 5 * (p**2 * L**2).mean()
        change_constant = 2 * m * (p * (inputs.sigma0**2 * s + 5 * idle0)).mean()
        change_gradient = 3 * m * (p * (2 * s1 + 5 * idle1)).mean()
    else:  # X^(k+1) depends on G^(k) and v^(k), so the cross terms stay
        kappa4 = (p / phi * (4 * s1 * L_bar**2 + 8 * L**2)).max()
        kappa5 = (p * (4 * s1 * L_bar**2 + 8 * L**2)).mean()
        change_constant = m * (p * (3 * inputs.sigma0**2 * s + 16 * idle0)).mean()
        change_gradient = 8 * m * (p * (s1 + 2 * idle1)).mean()
    return Gradients(
        L_bar=L_bar,
        noise=(inputs.sigma0**2 * p * s).mean(),
        sporadicity=idle0.mean(),
        eta_max=eta.max(),
        eta_bar=eta.mean(),
        kappa1=(p / phi * (2 * s1 * L_bar**2 + 3 * L**2)).max(),
        kappa2=2 * (p * s1).mean() + 3 * idle1.mean() + 3,
        kappa3=phi.max() * (pi.max() ** 2 / pi.min() + 2 * (pi * link_variance).max()),
        kappa4=kappa4,
        kappa5=kappa5,
        kappa8=(p * (2 * s1 * L_bar**2 + 3 * L**2)).max(),
        change_constant=change_constant,
        change_gradient=change_gradient,
    )


# --- the recursion ς⁺ <= Ψς + γ E‖∇F‖² + ω, eqn:varsigma -------------------------------------------------
@dataclass(frozen=True, eq=False)
class Recursion(Stage, Generic[N]):
    """Lemmas xdispersion and ydispersion."""

    kappa6: N  # Lemma xdispersion
    kappa7: N  # Lemma ydispersion
    kappa9: N  # Proposition loss, which stands only in the printed variant
    kappa10: N  # Proposition loss
    psi11: N  # Lemma xdispersion
    psi12: N
    psi21: N  # Lemma ydispersion
    psi22: N
    gamma1: N  # Lemma xdispersion
    gamma2: N  # Lemma ydispersion
    omega1: N  # Lemma xdispersion
    omega2: N  # Lemma ydispersion
    rho_Psi: N  # spectral radius of Ψ, Corollary constant
    one_minus_rho_Psi: N  # det(I-Ψ)/(1-λ₂)


def recursion(inputs: Inputs, graph: Graph, mixing: Mixing, gradients: Gradients) -> Recursion[float]:
    m, g = graph.m, gradients
    k1, k2, k3, k4, k5 = g.kappa1, g.kappa2, g.kappa3, g.kappa4, g.kappa5
    rho_B, rho0_A, rho0_B = mixing.rho_tilde_B, mixing.rho0_A, mixing.rho0_B
    h, noise = g.eta_max**2, g.noise + 3 * g.sporadicity
    corrected = inputs.variant == "corrected"
    k6 = (1 + mixing.rho_A) / mixing.one_minus_rho_tilde_A
    k7 = (1 / graph.pi.min() if corrected else 2 * (m + 1)) * (1 + rho_B) / mixing.one_minus_rho_tilde_B
    # |Y|² = |consensus error|² + m²|ȳ|²: the printed lemma loses this m², and the whole ȳ term of the mixing
    m2 = m**2 if corrected else 1
    x = (1 + rho_B) / (2 * rho_B) * m**2 * rho0_B if corrected and rho0_B > 0 else 0.0
    psi12 = k6 * k3 * h
    gamma1 = m**2 * k2 * psi12
    omega1 = m**2 * noise * psi12
    g1, g2 = _gaps(graph, mixing, gradients, k7, psi12)
    psi21 = k7 * k4 * (2 - g1) + m2 * k7 * k5 * k3 * k1 * h + m * k7 * k5 * rho0_A + x * k1 / m
    gap = _radius_gap(g1, g2, psi12 * psi21)
    return Recursion(
        kappa6=k6,
        kappa7=k7,
        kappa9=(m * (1 + 3 * rho0_B) / (3 * k7 * rho_B) + 1) * k4 * k6 + k5 / m if rho_B > 0 else math.inf,
        kappa10=8 / (3 * k2 * k3) * (graph.phi * graph.pi).max() / graph.phi.max(),
        psi11=1 - g1,
        psi12=psi12,
        psi21=psi21,
        psi22=1 - g2,
        gamma1=gamma1,
        gamma2=k7 * k4 * gamma1 + k7 * g.change_gradient + m * m2 * k7 * k5 * k3 * k2 * h + x * k2,
        omega1=omega1,
        omega2=k7 * k4 * omega1 + k7 * g.change_constant + m * m2 * k7 * k5 * k3 * noise * h + x * noise,
        rho_Psi=1 - gap,
        one_minus_rho_Psi=gap,
    )


def _gaps(graph: Graph, mixing: Mixing, g: Gradients, k7: float, psi12: float) -> tuple[float, float]:
    """1 - ψ11 and 1 - ψ22."""
    rise22 = k7 * (g.kappa4 * psi12 + graph.m * g.kappa5 * g.kappa3 * g.eta_max**2)
    return (
        mixing.one_minus_rho_tilde_A / 2 - graph.m * g.kappa1 * psi12,
        mixing.one_minus_rho_tilde_B / 2 - rise22,
    )


def _radius_gap(g1: float, g2: float, coupling: float) -> float:
    """1 - ρ(Ψ) from 1-ψ11, 1-ψ22 and ψ12ψ21: the smaller eigenvalue of I - Ψ, without cancellation."""
    larger = (g1 + g2 + np.sqrt((g1 - g2) ** 2 + 4 * coupling)) / 2
    if not larger > 0:
        return float((g1 + g2 - np.sqrt((g1 - g2) ** 2 + 4 * coupling)) / 2)
    return float((g1 * g2 - coupling) / larger)


# --- the loss, eqn:loss_redefined --------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Loss(Stage, Generic[N]):
    """Lemma loss."""

    psi01: N
    psi02: N
    gamma0: N
    omega0: N


def loss_constants(inputs: Inputs, graph: Graph, mixing: Mixing, gradients: Gradients) -> Loss[float]:
    m, phi, pi, eta, g = graph.m, graph.phi, graph.pi, inputs.step_size, gradients
    rho_B, rho0_B = mixing.rho_tilde_B, mixing.rho0_B
    links = 1 + 3 * rho0_B
    s1 = inputs.p * inputs.s * inputs.sigma1**2
    idle1 = (1 - inputs.p) * inputs.delta1**2
    if inputs.variant == "paper":
        per_client = inputs.sigma0**2 * inputs.p * inputs.s + 3 * (1 - inputs.p) * inputs.delta0**2
        return Loss(
            psi01=links * g.kappa8 * g.eta_max / 2,
            psi02=3 * phi.max() * rho_B / (2 * m) * g.eta_max,
            gamma0=m / 2 * (phi * eta * (m * pi - 2 * s1 - 3 * idle1 - 3 * rho0_B * g.kappa2)).mean(),
            omega0=m / 2 * links * (phi * eta * per_client).mean(),
        )
    step = (phi * eta).max()  # taken out of the sum, as the proof's last line does
    move = g.L_bar * g.kappa3 * g.eta_max**2 / 2  # the dropped (L̄/2)|x̄⁺-x̄|²
    spread = 2 * s1.mean() + 3 * idle1.mean() + 3 * rho0_B * g.kappa2
    noise = g.noise + 3 * g.sporadicity
    return Loss(
        psi01=step * links * g.kappa1 / 2 + g.L_bar / 2 * mixing.rho0_A + move * m * g.kappa1,
        psi02=3 * step * rho_B / (2 * m) + move,
        gamma0=m**2 / 2 * (phi * pi * eta).mean() - m / 2 * step * spread - move * m**2 * g.kappa2,
        omega0=m / 2 * step * links * noise + move * m**2 * noise,
    )


# --- sums over powers of Ψ -----------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Sums(Stage, Generic[N, V]):
    """What the sums in the proof of the Theorem come to, by (I-Ψ)⁻¹."""

    neumann_psi0: V  # ψ₀ᵀ(I-Ψ)⁻¹, (2,)
    neumann_gamma: N  # ψ₀ᵀ(I-Ψ)⁻¹γ
    neumann_gamma_paper: N  # ψ₀ᵀγ/(1-ρ_Ψ), which the proof of Proposition loss takes for it
    neumann_omega: N  # ψ₀ᵀ(I-Ψ)⁻¹ω
    descent_exact: N  # γ₀ - ψ₀ᵀ(I-Ψ)⁻¹γ, to be positive in eqn:loss_expanded


def sums(
    graph: Graph, mixing: Mixing, gradients: Gradients, r: Recursion[float], loss: Loss[float]
) -> Sums[float, Floats]:
    g1, g2 = _gaps(graph, mixing, gradients, r.kappa7, r.psi12)
    gap = r.one_minus_rho_Psi
    # det(I-Ψ) = (1-ρ_Ψ)(1-λ₂), and the two factors sum to g1 + g2
    det = gap * (g1 + g2 - gap)
    psi0 = np.array([loss.psi01 * g2 + loss.psi02 * r.psi21, loss.psi01 * r.psi12 + loss.psi02 * g1]) / det
    gamma = float(psi0 @ [r.gamma1, r.gamma2])
    return Sums(
        neumann_psi0=psi0,
        neumann_gamma=gamma,
        neumann_gamma_paper=(loss.psi01 * r.gamma1 + loss.psi02 * r.gamma2) / gap,
        neumann_omega=float(psi0 @ [r.omega1, r.omega2]),
        descent_exact=loss.gamma0 - gamma,
    )
