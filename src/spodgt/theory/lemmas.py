"""The lemmas' constants, one formula a line in the paper's letters.

Gaps such as 1 - ρ are computed as such and never by subtracting a computed ρ from one; what exceeds
the floats lives in logarithms. Values are numpy scalars on the way: an overflow is inf, not an exception.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import brentq

from spodgt.network import Network
from spodgt.network.recipes import Floats
from spodgt.theory.graph import Links, edge_utility, expected_matrices, perron_vectors
from spodgt.theory.setting import Setting

Values = dict[str, Any]


def network_values(network: Network, setting: Setting) -> Values:
    p_hat = setting.links.p_hat
    A_hat, B_hat = expected_matrices(network, p_hat)
    phi, pi = perron_vectors(network, p_hat)
    graph = edge_utility(network)
    return {
        "m": network.clients,
        "diameter": graph.diameter,
        "edge_utility": graph.edge_utility,
        "A_hat": A_hat.toarray(),
        "B_hat": B_hat.toarray(),
        "phi": phi,
        "pi": pi,
    }


def contraction(setting: Setting, v: Values) -> Values:
    """Lemmas expected_contraction and sporadic_contraction."""
    links, m, phi, pi = setting.links, v["m"], v["phi"], v["pi"]
    D, K = v["diameter"], v["edge_utility"]
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
    return {
        "one_minus_rho_A": np.float64(gap_A),
        "one_minus_rho_B": np.float64(gap_B),
        "rho_A": np.float64(1 - gap_A),
        "rho_B": np.float64(1 - gap_B),
        "rho0_A": np.float64(rho0_A),
        "rho0_B": np.float64(rho0_B),
        "one_minus_rho_tilde_A": np.float64(gap_tilde_A),
        "one_minus_rho_tilde_B": np.float64(gap_tilde_B),
        "rho_tilde_A": np.float64(1 - gap_tilde_A),
        "rho_tilde_B": np.float64(1 - gap_tilde_B),
        "lemma_A_ok": bool(rho0_A <= gap_A / 4),
        "lemma_B_ok": bool(rho0_B <= gap_B / 2),
        "log_tau_A": np.float64(log_tau_A),
        "log_tau_B": np.float64(log_tau_B),
        "log_one_minus_r_A": log_r_A,
        "log_one_minus_r_B": log_r_B,
        "min_p_hat": min_p_hat,
        "p_hat_ge_r_A": log_idle <= log_r_A,
        "p_hat_ge_r_B": log_idle <= log_r_B,
    }


def _extreme(links: Links, p_hat: Floats | float, pick: Any) -> tuple[float, float]:
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


def data(setting: Setting, v: Values) -> Values:
    """κ1 to κ5, κ8 and the terms of Lemma trackingeffect (iii)."""
    m, phi, pi, links = v["m"], v["phi"], v["pi"], setting.links
    p, s, L, eta = setting.p, setting.s, setting.L, setting.step_size
    L_bar = L.mean()
    s1 = s * setting.sigma1**2
    idle0, idle1 = (1 - p) * setting.delta0**2, (1 - p) * setting.delta1**2
    # m overline(b² p̂ (1-p̂)) is a plain sum over the out-links of j
    link_variance = np.bincount(links.j, links.b**2 * links.variance, m)
    values = {
        "L_bar": L_bar,
        "noise": (setting.sigma0**2 * p * s).mean(),
        "sporadicity": idle0.mean(),
        "eta_max": eta.max(),
        "eta_bar": eta.mean(),
        "kappa1": (p / phi * (2 * s1 * L_bar**2 + 3 * L**2)).max(),
        "kappa2": 2 * (p * s1).mean() + 3 * idle1.mean() + 3,
        "kappa3": phi.max() * (pi.max() ** 2 / pi.min() + 2 * (pi * link_variance).max()),
        "kappa8": (p * (2 * s1 * L_bar**2 + 3 * L**2)).max(),
    }
    if setting.variant == "paper":
        values |= {
            "kappa4": (p / phi * (2 * s1 * L_bar**2 + 5 * L**2)).max(),
            "kappa5": 2 * (p * (2 * s1 + 5 * idle1)).mean() * L_bar**2 + 5 * (p**2 * L**2).mean(),
            "change_constant": 2 * m * (p * (setting.sigma0**2 * s + 5 * idle0)).mean(),
            "change_gradient": 3 * m * (p * (2 * s1 + 5 * idle1)).mean(),
        }
    else:  # X^(k+1) depends on G^(k) and v^(k), so the cross terms stay
        values |= {
            "kappa4": (p / phi * (4 * s1 * L_bar**2 + 8 * L**2)).max(),
            "kappa5": (p * (4 * s1 * L_bar**2 + 8 * L**2)).mean(),
            "change_constant": m * (p * (3 * setting.sigma0**2 * s + 16 * idle0)).mean(),
            "change_gradient": 8 * m * (p * (s1 + 2 * idle1)).mean(),
        }
    return {name: np.float64(value) for name, value in values.items()}


def recursion(setting: Setting, v: Values) -> Values:
    """Ψ, γ, ω of Lemmas xdispersion and ydispersion, and Lemma loss."""
    m, phi, pi, eta = v["m"], v["phi"], v["pi"], setting.step_size
    k1, k2, k3, k4, k5 = (v[f"kappa{n}"] for n in range(1, 6))
    gap_A, gap_B = v["one_minus_rho_tilde_A"], v["one_minus_rho_tilde_B"]
    rho_B, rho0_A, rho0_B = v["rho_tilde_B"], v["rho0_A"], v["rho0_B"]
    h = v["eta_max"] ** 2
    noise = v["noise"] + 3 * v["sporadicity"]
    corrected = setting.variant == "corrected"
    k6 = (1 + v["rho_A"]) / gap_A
    k7 = (1 / pi.min() if corrected else 2 * (m + 1)) * (1 + rho_B) / gap_B
    # |Y|² = |consensus error|² + m²|ȳ|²: the printed lemma loses this m², and the whole ȳ term of the mixing
    m2 = m**2 if corrected else 1
    x = (1 + rho_B) / (2 * rho_B) * m**2 * rho0_B if corrected and rho0_B > 0 else 0.0
    psi12 = k6 * k3 * h
    gamma1 = m**2 * k2 * psi12
    omega1 = m**2 * noise * psi12
    rise11 = m * k1 * psi12
    rise22 = k7 * k4 * psi12 + m * k7 * k5 * k3 * h
    psi11 = 1 - gap_A / 2 + rise11
    psi22 = 1 - gap_B / 2 + rise22
    psi21 = k7 * k4 * (1 + psi11) + m2 * k7 * k5 * k3 * k1 * h + m * k7 * k5 * rho0_A + x * k1 / m
    gamma2 = k7 * k4 * gamma1 + k7 * v["change_gradient"] + m * m2 * k7 * k5 * k3 * k2 * h + x * k2
    omega2 = k7 * k4 * omega1 + k7 * v["change_constant"] + m * m2 * k7 * k5 * k3 * noise * h + x * noise
    values = {
        "kappa6": k6,
        "kappa7": k7,
        # κ9 and κ10 serve Proposition loss alone, which stands only in the printed variant
        "kappa9": (m * (1 + 3 * rho0_B) / (3 * k7 * rho_B) + 1) * k4 * k6 + k5 / m if rho_B > 0 else math.inf,
        "kappa10": 8 / (3 * k2 * k3) * (phi * pi).max() / phi.max(),
        "psi11": psi11,
        "psi12": psi12,
        "psi21": psi21,
        "psi22": psi22,
        "gamma1": gamma1,
        "gamma2": gamma2,
        "omega1": omega1,
        "omega2": omega2,
    }
    s1 = setting.p * setting.s * setting.sigma1**2
    idle1 = (1 - setting.p) * setting.delta1**2
    if corrected:
        step = (phi * eta).max()  # taken out of the sum, as the proof's last line does
        move = v["L_bar"] * k3 * h / 2  # the dropped (L̄/2)|x̄⁺-x̄|²
        spread = 2 * s1.mean() + 3 * idle1.mean() + 3 * rho0_B * k2
        values |= {
            "psi01": step * (1 + 3 * rho0_B) * k1 / 2 + v["L_bar"] / 2 * rho0_A + move * m * k1,
            "psi02": 3 * step * rho_B / (2 * m) + move,
            "gamma0": m**2 / 2 * (phi * pi * eta).mean() - m / 2 * step * spread - move * m**2 * k2,
            "omega0": m / 2 * step * (1 + 3 * rho0_B) * noise + move * m**2 * noise,
        }
    else:
        per_client = setting.sigma0**2 * setting.p * setting.s + 3 * (1 - setting.p) * setting.delta0**2
        values |= {
            "psi01": (1 + 3 * rho0_B) * v["kappa8"] * v["eta_max"] / 2,
            "psi02": 3 * phi.max() * rho_B / (2 * m) * v["eta_max"],
            "gamma0": m / 2 * (phi * eta * (m * pi - 2 * s1 - 3 * idle1 - 3 * rho0_B * k2)).mean(),
            "omega0": m / 2 * (1 + 3 * rho0_B) * (phi * eta * per_client).mean(),
        }
    gap = _radius_gap(gap_A / 2 - rise11, gap_B / 2 - rise22, psi12 * psi21)
    values |= {"rho_Psi": 1 - gap, "one_minus_rho_Psi": gap}
    return {name: np.float64(value) for name, value in values.items()}


def _radius_gap(g1: Any, g2: Any, coupling: Any) -> Any:
    """1 - ρ(Ψ) from 1-ψ11, 1-ψ22 and ψ12ψ21: the smaller eigenvalue of I - Ψ, without cancellation."""
    larger = (g1 + g2 + np.sqrt((g1 - g2) ** 2 + 4 * coupling)) / 2
    if not larger > 0:
        return (g1 + g2 - np.sqrt((g1 - g2) ** 2 + 4 * coupling)) / 2
    return (g1 * g2 - coupling) / larger


def sums(v: Values) -> Values:
    """What the sums over powers of Ψ come to, by (I-Ψ)⁻¹."""
    rho_gap = v["one_minus_rho_Psi"]
    h = v["eta_max"] ** 2
    g1 = v["one_minus_rho_tilde_A"] / 2 - v["m"] * v["kappa1"] * v["psi12"]
    rise22 = v["kappa7"] * (v["kappa4"] * v["psi12"] + v["m"] * v["kappa5"] * v["kappa3"] * h)
    g2 = v["one_minus_rho_tilde_B"] / 2 - rise22
    # det(I-Ψ) = (1-ρ_Ψ)(1-λ₂), and the two factors sum to g1 + g2
    det = rho_gap * (g1 + g2 - rho_gap)
    psi0 = np.array(
        [
            (v["psi01"] * g2 + v["psi02"] * v["psi21"]) / det,
            (v["psi01"] * v["psi12"] + v["psi02"] * g1) / det,
        ]
    )
    gamma = psi0 @ [v["gamma1"], v["gamma2"]]
    return {
        "neumann_psi0": psi0,
        "neumann_gamma": gamma,
        "neumann_gamma_paper": (v["psi01"] * v["gamma1"] + v["psi02"] * v["gamma2"]) / rho_gap,
        "neumann_omega": psi0 @ [v["omega1"], v["omega2"]],
        "descent_exact": v["gamma0"] - gamma,
    }
