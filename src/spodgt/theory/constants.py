"""All constants of the convergence analysis, and the data they depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike

from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.theory.graph import RandomLinks, per_client, probabilities
from spodgt.types import Floats

Variant = Literal["paper", "corrected"]
N = TypeVar("N")  # a float while it is computed, float | Infeasible in `Constants`
V = TypeVar("V")  # an array, or array | Infeasible


@dataclass(frozen=True)
class Infeasible:
    """In place of a number that does not exist, with the failed condition. Is false."""

    reason: str  # the failed condition, with its numbers

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"infeasible: {self.reason}"


Number = float | Infeasible
Vector = Floats | Infeasible


@dataclass(frozen=True, eq=False)
class Data:
    """The constants of the assumptions: each field is one number, or an array (clients,).

        ‖∇F_i(x) - ∇F_i(x')‖ <= L_i ‖x - x'‖                                    Assumption lipschitz
        E‖mini-batch gradient - ∇F_i(x)‖² <= (1 - B/D)/B (σ₀² + σ₁² ‖∇F(x)‖²)    Assumption sgd
        ‖∇F_i(x)‖² <= δ₀² + δ₁² ‖∇F(x)‖²                                         Assumption graddiv

    Args:
        L: smoothness L_i, positive.
        sigma0: σ₀, gradient noise at a stationary point; unit of a gradient.
        sigma1: σ₁, gradient noise relative to ‖∇F‖; no unit.
        delta0: δ₀, dissimilarity of clients at a stationary point; unit of a gradient.
        delta1: δ₁, dissimilarity relative to ‖∇F‖; no unit.
        samples: D_i, samples that client i holds.
        batch: B_i, samples in a mini-batch, from 1 to D_i.
    """

    L: ArrayLike
    sigma0: ArrayLike
    sigma1: ArrayLike
    delta0: ArrayLike
    delta1: ArrayLike
    samples: ArrayLike
    batch: ArrayLike


@dataclass(init=False, eq=False)
class UnconditionalConstants:
    """Constants that exist for every network, data and step size; some may be infinite."""

    variant: Variant
    p: Floats
    p_hat: Floats
    batch: Floats
    step_size: Floats
    gamma3: float
    # network
    m: int  # clients
    diameter: int  # D(G), Lemma expected_contraction
    edge_utility: int  # K(G), Lemma expected_contraction
    A_hat: Floats  # Â, eqn:expected_mat
    B_hat: Floats  # B̂, eqn:expected_mat
    phi: Floats  # φ̂ᵀÂ = φ̂ᵀ, eqn:eigenvectors
    pi: Floats  # B̂π̂ = π̂, eqn:eigenvectors
    # contraction, Lemmas expected_contraction and sporadic_contraction
    one_minus_rho_A: float  # 1 - ρ̂_A, Lemma expected_contraction (i)
    one_minus_rho_B: float  # 1 - ρ̂_B, Lemma expected_contraction (ii)
    rho_A: float
    rho_B: float
    rho0_A: float  # ρ̂_0A, Lemma sporadic_contraction (i)
    rho0_B: float  # ρ̂_0B, Lemma sporadic_contraction (ii)
    one_minus_rho_tilde_A: float  # with ρ̃_A = ρ̂_A + 2ρ̂_0A, Lemma xdispersion; may be negative
    one_minus_rho_tilde_B: float  # with ρ̃_B = ρ̂_B + ρ̂_0B, Lemma ydispersion; may be negative
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
    # gradients, Lemmas descenteffect and trackingeffect: what the data and the step sizes
    # contribute
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


@dataclass(init=False, eq=False)
class Fields(UnconditionalConstants, Generic[N, V]):
    """All constants, in the order of the proofs."""

    # the recursion ς⁺ <= Ψς + γ E‖∇F‖² + ω, eqn:varsigma
    kappa6: N  # Lemma xdispersion
    kappa7: N  # Lemma ydispersion
    kappa9: N  # Proposition loss, only in the printed variant
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
    # Lemma loss, eqn:loss_redefined
    psi01: N
    psi02: N
    gamma0: N
    omega0: N
    # sums over powers of Ψ in the proof of the Theorem, by (I-Ψ)⁻¹
    neumann_psi0: V  # ψ₀ᵀ(I-Ψ)⁻¹, (2,)
    neumann_gamma: N  # ψ₀ᵀ(I-Ψ)⁻¹γ
    neumann_gamma_paper: N  # ψ₀ᵀγ/(1-ρ_Ψ), which the proof of Proposition loss takes for it
    neumann_omega: N  # ψ₀ᵀ(I-Ψ)⁻¹ω
    descent_exact: N  # γ₀ - ψ₀ᵀ(I-Ψ)⁻¹γ, to be positive in eqn:loss_expanded
    # Proposition lr: a step size below this keeps ρ(Ψ) < 1
    lr_bound_prop1: N  # eqn:lr_constraint as stated, with 1 + ρ̃_A
    lr_bound_prop1_proof: N  # the same with 1 + ρ̂_A, as in the proof (eqn:lr_cond2)
    # Proposition loss; its conditions are circular, so they are evaluated at a configuration, not
    # solved
    Gamma1: N  # Γ₁, eqn:Gamma1_val
    min_p: V  # smallest p_i; 0 where any will do
    min_B: V  # smallest B_i; 1 where any will do
    tau_prime_B: N  # τ̂'_B with the largest b_ij
    r_prime_B: N  # r̂'_B; 0 where any p̂ will do
    one_minus_r_prime_B: N
    lr_bound_prop2: N
    q: N
    # the terms of Theorem constant, as factors of what they multiply
    term_optimality_k: N  # factor of (F(x̄⁰)-F*)/(k+1)
    term_model_k: N  # factor of ‖X⁰-1x̄⁰‖²/(k+1)
    term_tracking_k: N  # factor of the tracking error/(k+1)
    term_const: N  # the gap that does not shrink with η
    term_eta2: N  # the η² gap as printed
    term_eta2_fixed: N  # with the 1/(1-ρ_Ψ) that its own derivation gives


@dataclass(init=False, eq=False)
class Constants(Fields[Number, Vector]):
    """Every constant of the analysis for one network, data and step size; made by `constants`.

    `variant` is "paper" (printed formulas, index typos repaired) or "corrected" (those for which
    the proofs go through). A field is a number, an array, or `Infeasible` with the reason.
    """


class Draft(Fields[float, Floats]):
    """Constants during their computation, and the inputs; arrays are (clients,)."""

    links: RandomLinks
    L: Floats
    sigma0: Floats
    sigma1: Floats
    delta0: Floats
    delta1: Floats
    samples: Floats  # D
    s: Floats  # (1 - B/D)/B: variance of a mini-batch drawn without replacement, Assumption sgd
    Gamma2: float  # Γ₂

    def __init__(
        self,
        network: Network,
        p: ArrayLike,
        p_hat: ArrayLike,
        data: Data,
        step_size: ArrayLike,
        variant: Variant,
    ) -> None:
        """Check the inputs and broadcast them to one value per client."""
        if variant not in get_args(Variant):
            raise InvalidInput(
                f"variant must be 'paper' or 'corrected', got {variant!r}; use variant='corrected'."
            )
        self.variant = variant
        self.m = network.clients
        for name, value in {**vars(data), "step_size": step_size}.items():
            setattr(
                self,
                name,
                per_client(name, value, self.m, zero=name.startswith(("sigma", "delta"))),
            )
        B = self.batch
        D = self.samples
        outside = (B > D) | (B < 1)
        if outside.any():
            worst = int(np.argmax(outside))
            raise InvalidInput(
                f"batch[{worst}] must be from 1 to {D[worst]:g}, the client's samples, "
                f"got {B[worst]:g}; use batch=1."
            )
        self.s = (1 - B / D) / B
        self.links = RandomLinks.of(network, p_hat)
        self.p = probabilities("p", p, self.m)
        self.p_hat = self.links.p_hat

    def __setattr__(self, name: str, value: object) -> None:
        """Floats are kept as numpy scalars: an overflow is inf, not an exception."""
        super().__setattr__(name, np.float64(value) if isinstance(value, float) else value)
