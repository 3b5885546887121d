"""The formulas of the constants, stage by stage in the order of the proofs, in the paper's letters.

Lemmas and equations are named by the labels of the paper's source. s_i = (1 - B_i/D_i)/B_i is the
variance factor of sampling without replacement, and mean(·) is over clients. Gaps such as 1 - ρ are
computed as such and never by subtracting a computed ρ from one; quantities that overflow are
logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.theory.constants import (
    Constants,
    Data,
    Draft,
    Infeasible,
    UnconditionalConstants,
    Variant,
)
from spodgt.theory.graph import RandomLinks, edge_utility, expected_matrices, perron_vectors
from spodgt.types import Floats


def constants(
    network: Network,
    p: ArrayLike,
    p_hat: ArrayLike,
    data: Data,
    step_size: ArrayLike,
    *,
    gamma2: float = 2.0,
    gamma3: float = 2.0,
    variant: Variant = "paper",
) -> Constants:
    """Compute every constant of the analysis; those that do not exist are `Infeasible`.

    The edge utility K(G) takes links × clients² steps, so this is for up to some hundred clients.

    Args:
        network: the graph and its weights A and B.
        p: probability in (0, 1] that a client computes in a round; one number or (clients,).
        p_hat: probability in (0, 1] that a link works; one number or (links,) in the network's
            order.
        data: smoothness, noise, dissimilarity and sample counts of the clients.
        step_size: η, positive; one number or (clients,).
        gamma2: Γ₂ > 1 of Proposition loss.
        gamma3: Γ₃ > 1 of Proposition loss: how much the largest step size may exceed the mean.
        variant: "paper" for the printed formulas, "corrected" for those that the proofs support.
    """
    for name, gamma in {"gamma2": gamma2, "gamma3": gamma3}.items():
        if not (gamma > 1 and math.isfinite(gamma)):
            raise InvalidInput(
                f"{name} must be a finite number above 1, got {gamma}; use {name}=2.0."
            )
    k = Draft(network, p, p_hat, data, step_size, variant)
    found = Constants()
    k.Gamma2 = float(gamma2)
    k.gamma3 = float(gamma3)
    # tiny probabilities may overflow; what is then not a number is reported as infeasible
    with np.errstate(all="ignore"):
        ended = Infeasible(_compute(k, network))
    always = {field.name for field in fields(UnconditionalConstants)}
    for field in fields(Constants):
        value = vars(k).get(field.name, ended)
        setattr(found, field.name, _finite(field.name, value, field.name in always))
    return found


def _finite(name: str, value: object, always_exists: bool) -> object:
    """Plain floats; values that are not finite are infeasible, or infinite if they always exist."""
    if isinstance(value, np.floating):
        value = float(value)
    if not isinstance(value, float | np.ndarray) or np.isfinite(value).all():
        return value
    if not always_exists:
        return Infeasible(f"{name} exceeds the range of floating point")
    return math.inf if np.isnan(value).any() else value


def _compute(k: Draft, network: Network) -> str:
    """Fill the draft in the order of the proofs; returns the reason if it cannot be completed."""
    _graph(k, network)
    _mixing(k)
    _gradients(k)
    for name, tilde, rho0, gap in (
        ("A", k.one_minus_rho_tilde_A, k.rho0_A, k.one_minus_rho_A),
        ("B", k.one_minus_rho_tilde_B, k.rho0_B, k.one_minus_rho_B),
    ):
        if not tilde > 0:
            return (
                f"1 - rho_tilde_{name} = {tilde:.3g} must be positive; the links' variance "
                f"rho0_{name} = {rho0:.3g} is too large for the gap 1 - rho_{name} = {gap:.3g}"
            )
    g1, g2 = _recursion(k)
    _loss(k)
    _proposition_lr(k)
    if not k.one_minus_rho_Psi > 0:
        return f"rho_Psi = {k.rho_Psi:.6g} must be below one; the step size is too large"
    _sums(k, g1, g2)
    if k.variant == "corrected":
        return "the proof of Proposition loss does not go through; use rigorous_bound instead"
    _proposition_loss(k)
    if not k.q > 0:
        return "q = 0: with a single client Gamma1 = 1 leaves no guaranteed descent"
    _theorem(k)
    return ""


def _graph(k: Draft, network: Network) -> None:
    k.A_hat, k.B_hat = (matrix.toarray() for matrix in expected_matrices(network, k.p_hat))
    k.phi, k.pi = perron_vectors(network, k.p_hat)
    graph = edge_utility(network)
    k.diameter = graph.diameter
    k.edge_utility = graph.edge_utility


# --- contraction ---
def _mixing(k: Draft) -> None:
    links = k.links
    m = k.m
    phi = k.phi
    pi = k.pi
    D = k.diameter
    K = k.edge_utility
    if m == 1:  # nothing to contract and no link to fail
        k.one_minus_rho_A = 1.0
        k.one_minus_rho_B = 1.0
        k.rho0_A = 0.0
        k.rho0_B = 0.0
        k.log_tau_A = k.log_tau_B = -math.inf
    else:
        # the smallest weight includes the diagonal: the proof walks along a_lj a_ll
        min_A, min_B = _extreme(links, links.p_hat, np.min)
        k.one_minus_rho_A = phi.min() * min_A**2 / (phi.max() ** 2 * D * K)
        k.one_minus_rho_B = pi.min() ** 2 * min_B**2 / (pi.max() ** 3 * D * K)
        k.rho0_A = 4 * (m - 1) * phi.max() / phi.min() * (links.a**2 * links.variance).max()
        k.rho0_B = 2 * (m - 1) * pi.max() / pi.min() * (links.b**2 * links.variance).max()
        log_min_A, log_min_B = np.log(_extreme(links, 1.0, np.min))
        log_max_A, log_max_B = np.log(_extreme(links, 1.0, np.max))
        k.log_tau_A = (
            math.log(16 * m**2 * (m - 1) * D * K) + 2 * log_max_A - 2 * (m + 1) * log_min_A
        )
        k.log_tau_B = math.log(4 * m**3 * (m - 1) * D * K) + 2 * log_max_B - (3 * m + 2) * log_min_B
    k.one_minus_rho_tilde_A = k.one_minus_rho_A - 2 * k.rho0_A
    k.one_minus_rho_tilde_B = k.one_minus_rho_B - k.rho0_B
    k.rho_A = 1 - k.one_minus_rho_A
    k.rho_B = 1 - k.one_minus_rho_B
    k.rho_tilde_A = 1 - k.one_minus_rho_tilde_A
    k.rho_tilde_B = 1 - k.one_minus_rho_tilde_B
    k.lemma_A_ok = bool(k.rho0_A <= k.one_minus_rho_A / 4)
    k.lemma_B_ok = bool(k.rho0_B <= k.one_minus_rho_B / 2)
    k.log_one_minus_r_A = _log_root(2 * (m + 1), k.log_tau_A)
    k.log_one_minus_r_B = _log_root(3 * m + 2, k.log_tau_B)
    k.min_p_hat = float(links.p_hat.min(initial=1.0))
    log_idle = math.log1p(-k.min_p_hat) if k.min_p_hat < 1 else -math.inf
    k.p_hat_ge_r_A = bool(log_idle <= k.log_one_minus_r_A)
    k.p_hat_ge_r_B = bool(log_idle <= k.log_one_minus_r_B)


def _extreme(
    links: RandomLinks, p_hat: Floats | float, pick: Callable[[Floats], float]
) -> tuple[float, float]:
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
    low = -float(np.logaddexp(log_tau, math.log(n))) - 1e-6
    high = min(-log_tau, -1e-300)
    return float(
        brentq(lambda u: n * math.log(-math.expm1(u)) - log_tau - u, low, high, xtol=1e-13)
    )


# --- gradients ---
def _gradients(k: Draft) -> None:
    m = k.m
    phi = k.phi
    pi = k.pi
    links = k.links
    p = k.p
    L = k.L
    k.L_bar = L_bar = L.mean()
    s1 = k.s * k.sigma1**2
    idle0 = (1 - p) * k.delta0**2
    idle1 = (1 - p) * k.delta1**2
    k.noise = (k.sigma0**2 * p * k.s).mean()
    k.sporadicity = idle0.mean()
    k.eta_max = k.step_size.max()
    k.eta_bar = k.step_size.mean()
    # m overline(b² p̂ (1-p̂)) is a plain sum over the out-links of j
    link_variance = np.bincount(links.j, links.b**2 * links.variance, m)
    k.kappa1 = (p / phi * (2 * s1 * L_bar**2 + 3 * L**2)).max()
    k.kappa2 = 2 * (p * s1).mean() + 3 * idle1.mean() + 3
    k.kappa3 = phi.max() * (pi.max() ** 2 / pi.min() + 2 * (pi * link_variance).max())
    k.kappa8 = (p * (2 * s1 * L_bar**2 + 3 * L**2)).max()
    if k.variant == "paper":
        k.kappa4 = (p / phi * (2 * s1 * L_bar**2 + 5 * L**2)).max()
        k.kappa5 = 2 * (p * (2 * s1 + 5 * idle1)).mean() * L_bar**2 + 5 * (p**2 * L**2).mean()
        k.change_constant = 2 * m * (p * (k.sigma0**2 * k.s + 5 * idle0)).mean()
        k.change_gradient = 3 * m * (p * (2 * s1 + 5 * idle1)).mean()
    else:  # X^(k+1) depends on G^(k) and v^(k), so the cross terms stay
        k.kappa4 = (p / phi * (4 * s1 * L_bar**2 + 8 * L**2)).max()
        k.kappa5 = (p * (4 * s1 * L_bar**2 + 8 * L**2)).mean()
        k.change_constant = m * (p * (3 * k.sigma0**2 * k.s + 16 * idle0)).mean()
        k.change_gradient = 8 * m * (p * (s1 + 2 * idle1)).mean()


# --- the recursion ς⁺ <= Ψς + γ E‖∇F‖² + ω, eqn:varsigma ---
def _recursion(k: Draft) -> tuple[float, float]:
    """Lemmas xdispersion and ydispersion; returns 1 - ψ11 and 1 - ψ22."""
    m = k.m
    k1 = k.kappa1
    k2 = k.kappa2
    k3 = k.kappa3
    k4 = k.kappa4
    k5 = k.kappa5
    rho_B = k.rho_tilde_B
    rho0_A = k.rho0_A
    rho0_B = k.rho0_B
    h = k.eta_max**2
    noise = k.noise + 3 * k.sporadicity
    corrected = k.variant == "corrected"
    k.kappa6 = (1 + k.rho_A) / k.one_minus_rho_tilde_A
    k.kappa7 = k7 = (
        (1 / k.pi.min() if corrected else 2 * (m + 1)) * (1 + rho_B) / k.one_minus_rho_tilde_B
    )
    k.kappa9 = (
        (m * (1 + 3 * rho0_B) / (3 * k7 * rho_B) + 1) * k4 * k.kappa6 + k5 / m
        if rho_B > 0
        else math.inf
    )
    k.kappa10 = 8 / (3 * k2 * k3) * (k.phi * k.pi).max() / k.phi.max()
    # |Y|² = |consensus error|² + m²|ȳ|²: the printed lemma loses this m², and the whole ȳ term of
    # the mixing
    m2 = m**2 if corrected else 1
    x = (1 + rho_B) / (2 * rho_B) * m**2 * rho0_B if corrected and rho0_B > 0 else 0.0
    k.psi12 = k.kappa6 * k3 * h
    k.gamma1 = m**2 * k2 * k.psi12
    k.omega1 = m**2 * noise * k.psi12
    g1 = k.one_minus_rho_tilde_A / 2 - m * k1 * k.psi12
    g2 = k.one_minus_rho_tilde_B / 2 - k7 * (k4 * k.psi12 + m * k5 * k3 * h)
    k.psi11 = 1 - g1
    k.psi22 = 1 - g2
    k.psi21 = k7 * k4 * (2 - g1) + m2 * k7 * k5 * k3 * k1 * h + m * k7 * k5 * rho0_A + x * k1 / m
    k.gamma2 = k7 * k4 * k.gamma1 + k7 * k.change_gradient + m * m2 * k7 * k5 * k3 * k2 * h + x * k2
    k.omega2 = (
        k7 * k4 * k.omega1 + k7 * k.change_constant + m * m2 * k7 * k5 * k3 * noise * h + x * noise
    )
    # 1 - ρ(Ψ) is the smaller eigenvalue of I - Ψ, without cancellation
    coupling = k.psi12 * k.psi21
    root = np.sqrt((g1 - g2) ** 2 + 4 * coupling)
    larger = (g1 + g2 + root) / 2
    k.one_minus_rho_Psi = (g1 * g2 - coupling) / larger if larger > 0 else (g1 + g2 - root) / 2
    k.rho_Psi = 1 - k.one_minus_rho_Psi
    return g1, g2


def _loss(k: Draft) -> None:
    """Lemma loss, eqn:loss_redefined."""
    m = k.m
    phi = k.phi
    pi = k.pi
    eta = k.step_size
    rho_B = k.rho_tilde_B
    links = 1 + 3 * k.rho0_B
    s1 = k.p * k.s * k.sigma1**2
    idle1 = (1 - k.p) * k.delta1**2
    if k.variant == "paper":
        per_client = k.sigma0**2 * k.p * k.s + 3 * (1 - k.p) * k.delta0**2
        k.psi01 = links * k.kappa8 * k.eta_max / 2
        k.psi02 = 3 * phi.max() * rho_B / (2 * m) * k.eta_max
        k.gamma0 = (
            m / 2 * (phi * eta * (m * pi - 2 * s1 - 3 * idle1 - 3 * k.rho0_B * k.kappa2)).mean()
        )
        k.omega0 = m / 2 * links * (phi * eta * per_client).mean()
        return
    step = (phi * eta).max()  # taken out of the sum, as the proof's last line does
    move = k.L_bar * k.kappa3 * k.eta_max**2 / 2  # the dropped (L̄/2)|x̄⁺-x̄|²
    spread = 2 * s1.mean() + 3 * idle1.mean() + 3 * k.rho0_B * k.kappa2
    noise = k.noise + 3 * k.sporadicity
    k.psi01 = step * links * k.kappa1 / 2 + k.L_bar / 2 * k.rho0_A + move * m * k.kappa1
    k.psi02 = 3 * step * rho_B / (2 * m) + move
    k.gamma0 = m**2 / 2 * (phi * pi * eta).mean() - m / 2 * step * spread - move * m**2 * k.kappa2
    k.omega0 = m / 2 * step * links * noise + move * m**2 * noise


def _sums(k: Draft, g1: float, g2: float) -> None:
    gap = k.one_minus_rho_Psi
    # det(I-Ψ) = (1-ρ_Ψ)(1-λ₂), and the two factors sum to g1 + g2
    det = gap * (g1 + g2 - gap)
    psi0 = np.array([k.psi01 * g2 + k.psi02 * k.psi21, k.psi01 * k.psi12 + k.psi02 * g1]) / det
    k.neumann_psi0 = psi0
    k.neumann_gamma = float(psi0 @ [k.gamma1, k.gamma2])
    k.neumann_gamma_paper = (k.psi01 * k.gamma1 + k.psi02 * k.gamma2) / gap
    k.neumann_omega = float(psi0 @ [k.omega1, k.omega2])
    k.descent_exact = k.gamma0 - k.neumann_gamma


# --- the propositions and the Theorem ---
def _proposition_lr(k: Draft) -> None:
    m = k.m
    k5 = k.kappa5
    gap_A = k.one_minus_rho_tilde_A
    gap_B = k.one_minus_rho_tilde_B
    one_plus_B = 1 + k.rho_tilde_B
    coupling = 2 * k.kappa4 + m * k5 * k.rho0_A
    size = m + 1.0
    third = np.sqrt(gap_A / k5)
    if k.variant == "corrected":
        # κ7 has 1/min π̂ for 2(m+1), and ψ21 has an m² and the ȳ term of the mixing
        size = 1 / (2 * k.pi.min())
        third /= m
        if k.rho0_B > 0:
            x = one_plus_B / (2 * k.rho_tilde_B) * m**2 * k.rho0_B
            coupling += x * k.kappa1 / (m * k.kappa7)
    fourth = gap_B / (2 * np.sqrt(m * size * one_plus_B * k5))

    def bound(one_plus_A: float) -> float:
        second = gap_A * gap_B / (4 * np.sqrt(size * one_plus_A * one_plus_B * coupling))
        return float(min(second, third, fourth) / (2 * np.sqrt(k.kappa3)))

    k.lr_bound_prop1_proof = bound(1 + k.rho_A)
    k.lr_bound_prop1 = bound(1 + (k.rho_A if k.variant == "corrected" else k.rho_tilde_A))


def _proposition_loss(k: Draft) -> None:
    m = k.m
    pi = k.pi
    gap = k.one_minus_rho_Psi
    G3 = k.gamma3
    product = k.phi * k.pi
    G1_minus_1 = (
        8 * G3 / m * product.max() / product.min() * k.Gamma2 * k.kappa7 * k.rho_tilde_B / gap
    )
    k.Gamma1 = G1 = 1 + G1_minus_1
    need_p = np.divide(m * pi, 9 * G1 * k.delta1**2, out=np.full(m, np.inf), where=k.delta1 > 0)
    k.min_p = np.maximum(0.0, 1 - need_p)
    # B_i >= D/(1 + c D) with c = mπ/(6Γ₁σ₁²); without σ₁ a single sample will do
    c = np.divide(m * pi, 6 * G1 * k.sigma1**2, out=np.full(m, np.inf), where=k.sigma1 > 0)
    k.min_B = np.maximum(1.0, k.samples / (1 + c * k.samples))
    links = 9 * (m - 1) * k.kappa2 * G1 * k.links.b.max(initial=0.0) ** 2
    k.tau_prime_B = tau = 2 * m * pi.min() ** 2 / (links * pi.max()) if links > 0 else math.inf
    # ½(1 - √(1-τ')) without cancellation; at τ' >= 1 no p̂ is excluded, whatever the formula
    # returns
    k.one_minus_r_prime_B = tau / (2 * (1 + np.sqrt(1 - tau))) if tau < 1 else 1.0
    k.r_prime_B = 1 - k.one_minus_r_prime_B
    k.lr_bound_prop2 = float(np.sqrt((1 - 1 / G3) / G1 * k.kappa10 / k.kappa9 * gap))
    k.q = m**2 / 2 * (G1_minus_1 / G1) * (1 - 1 / k.Gamma2) / G3 * product.min()


def _theorem(k: Draft) -> None:
    m = k.m
    gap = k.one_minus_rho_Psi
    q = k.q
    phi_max = k.phi.max()
    S = k.noise
    T = k.sporadicity
    k7_rho = k.kappa7 * k.rho_tilde_B
    links = 1 + 3 * k.rho0_B
    k.term_optimality_k = 1 / (q * k.eta_max)
    k.term_model_k = links * k.kappa8 / (2 * q * gap)
    k.term_tracking_k = 3 * phi_max * k.rho_tilde_B / (2 * m * q * gap)
    k.term_const = phi_max / q * (m * links / 2 + 3 * k7_rho / gap) * (S + 5 * T)
    k.term_eta2 = (
        3 * m * phi_max / (2 * q) * k.kappa9 * k.kappa3 * k7_rho * (S + 3 * T) * k.eta_max**2
    )
    k.term_eta2_fixed = k.term_eta2 / gap
