"""The lemmas by exact enumeration of all draws: what holds, and the two that are false as printed."""

import itertools
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spodgt import theory
from spodgt.network import Network, graphs
from spodgt.theory import Constants
from spodgt.theory.constants import Variant
from spodgt.types import Floats

networks = st.builds(
    lambda clients, seed, weights: Network.draw(
        graphs.ErdosRenyi(clients, 0.5), seed=seed, weights=weights
    ),
    st.integers(2, 4),
    st.integers(0, 10_000),
    st.sampled_from(["degree", "random"]),
).filter(lambda network: network.links <= 9)
seeds = st.integers(0, 10_000)


def draws(network: Network, p_hat: Floats) -> tuple[Floats, Floats, Floats]:
    """Every pattern of working links: probabilities (2^links,), A^(k) and B^(k) (2^links, m, m)."""
    up = np.array(list(itertools.product([0, 1], repeat=network.links)))
    probability = np.where(up, p_hat, 1 - np.asarray(p_hat)).prod(1)
    A = np.zeros((len(up), network.clients, network.clients))
    B = np.zeros_like(A)
    A[:, network.receivers, network.senders] = up * network.a
    B[:, network.receivers, network.senders] = up * network.b
    own = np.arange(network.clients)
    A[:, own, own], B[:, own, own] = 1 - A.sum(2), 1 - B.sum(1)
    return probability, A, B


def uniform_links(network: Network, seed: int, low: float = 0.02) -> Floats:
    return np.random.default_rng(seed).uniform(low, 1, network.links)


def constants(
    network: Network, p_hat: Floats | float, variant: Variant = "corrected", **inputs: Any
) -> Constants:
    p, step_size = inputs.pop("p", 1.0), inputs.pop("step_size", 1e-3)
    default = dict.fromkeys(("sigma0", "sigma1", "delta0", "delta1"), 0.0)
    default |= {"L": 1.0, "samples": 1, "batch": 1}
    return theory.constants(
        network, p, p_hat, theory.Data(**(default | inputs)), step_size, variant=variant
    )


# --- mixing ----------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=60)
@given(network=networks, seed=seeds)
def test_second_moments(network: Network, seed: int) -> None:
    p_hat = uniform_links(network, seed)
    probability, A, B = draws(network, p_hat)
    A_hat, B_hat = theory.expected_matrices(network, p_hat)
    np.testing.assert_allclose(np.einsum("k,kij->ij", probability, A), A_hat.toarray(), atol=1e-14)
    np.testing.assert_allclose(np.einsum("k,kij->ij", probability, B), B_hat.toarray(), atol=1e-14)
    weights = np.random.default_rng(seed).uniform(0.1, 1, network.clients)
    pulled = np.einsum("k,kli,l,klj->ij", probability, A, weights, A)
    pushed = np.einsum("k,kli,l,klj->ij", probability, B, 1 / weights, B)
    np.testing.assert_allclose(
        theory.pull_second_moment(network, p_hat, weights), pulled, atol=1e-13
    )
    np.testing.assert_allclose(
        theory.push_second_moment(network, p_hat, weights), pushed, atol=1e-12
    )


def expected_factors(network: Network, p_hat: Floats | float) -> tuple[float, float]:
    """Exact contraction of the expected matrices Â and B̂ in the φ- and π⁻¹-norms."""
    phi, pi = theory.perron_vectors(network, p_hat)
    A, B = (matrix.toarray() for matrix in theory.expected_matrices(network, p_hat))
    root = np.sqrt(phi)
    A = root[:, None] * (A - np.outer(np.ones(len(phi)), phi)) / root
    root = np.sqrt(pi)
    B = (B - np.outer(pi, np.ones(len(pi)))) * root / root[:, None]
    return float(np.linalg.norm(A, 2)) ** 2, float(np.linalg.norm(B, 2)) ** 2


@settings(deadline=None, max_examples=60)
@given(network=networks, seed=seeds)
def test_expected_contraction(network: Network, seed: int) -> None:
    p_hat = uniform_links(network, seed)
    found, (pull, push) = constants(network, p_hat), expected_factors(network, p_hat)
    assert pull <= found.rho_A * (1 + 1e-12)
    assert push <= found.rho_B * (1 + 1e-12)


def test_smallest_weight_includes_the_diagonal() -> None:
    """With the smallest weight of links alone the contraction would come out negative."""
    A = np.array([[0.01, 0.99], [0.99, 0.01]])
    network = Network.from_adjacency([[0, 1], [1, 0]], A=A, B=A)
    exact, _ = expected_factors(network, 1.0)
    assert exact == pytest.approx(0.9604)
    assert 1 - 0.5 * 0.99**2 / 0.5**2 < 0 < exact <= constants(network, 1.0).rho_A


@settings(deadline=None, max_examples=60)
@given(network=networks, seed=seeds)
def test_sporadic_contraction(network: Network, seed: int) -> None:
    """The bounds hold for every p̂; the thresholds r serve only to make them useful."""
    p_hat = uniform_links(network, seed)
    rng = np.random.default_rng(seed)
    found = constants(network, p_hat)
    probability, A, B = draws(network, p_hat)
    phi, pi, m = found.phi, found.pi, network.clients
    x, y = rng.normal(size=m), rng.normal(size=m)
    spread = phi @ (x - phi @ x) ** 2
    pulled = probability @ ((A @ x - phi @ x) ** 2 @ phi)
    error = (y / pi - y.sum()) ** 2 @ pi
    pushed = probability @ ((B @ y / pi - y.sum()) ** 2 @ pi)
    assert pulled <= (found.rho_A + found.rho0_A) * spread
    assert pushed <= (found.rho_B + found.rho0_B) * error + found.rho0_B * y.sum() ** 2

    exact = theory.contraction(network, p_hat)
    assert pulled <= exact.A * spread * (1 + 1e-9)
    gap = 1 - exact.A
    assert gap >= exact.one_minus_bound_A - 1e-12
    assert probability @ ((B @ pi / pi - 1) ** 2 @ pi) == pytest.approx(exact.injection, abs=1e-12)
    centred = y - y.mean()
    assert probability @ ((B @ centred) ** 2 @ (1 / pi)) <= exact.B * (centred**2 @ (1 / pi)) * (
        1 + 1e-9
    )


@settings(deadline=None, max_examples=30)
@given(network=networks, seed=seeds)
def test_true_contraction_is_attained(network: Network, seed: int) -> None:
    p_hat = uniform_links(network, seed)
    phi, pi = theory.perron_vectors(network, p_hat)
    probability, A, B = draws(network, p_hat)
    root = np.sqrt(phi)
    A = root[:, None] * (A - np.outer(np.ones(len(phi)), phi)) / root
    worst_A = np.linalg.eigvalsh(np.einsum("k,kli,klj->ij", probability, A, A))[-1]
    root, centre = np.sqrt(pi), np.eye(len(pi)) - np.outer(np.sqrt(pi), np.sqrt(pi))
    B = (B * root / root[:, None]) @ centre
    worst_B = np.linalg.eigvalsh(np.einsum("k,kli,klj->ij", probability, B, B))[-1]
    exact = theory.contraction(network, p_hat)
    np.testing.assert_allclose([exact.A, exact.B], [worst_A, worst_B], atol=1e-12)


# --- Lemma trackingeffect (iii): false as printed ----------------------------------------------------
def change_bound(found: Constants, moved: float) -> float:
    """Its right-hand side at x = 0 on all clients, a stationary point: constant and average movement."""
    return found.change_constant + found.m * found.kappa5 * moved


@pytest.mark.parametrize("clients", [1, 2])
def test_tracking_lemma_as_printed_is_false(clients: int) -> None:
    """F = x²/2, everything active, x = 0, gradient noise of variance one: X⁺ depends on the noise in G.

    y = g = ξ; x⁺ = -η mean(ξ) on every client; g⁺ = x⁺ + ξ⁺.
    """
    eta = 0.2
    network = (
        Network.draw(graphs.Complete(clients)) if clients > 1 else Network.from_adjacency([[0]])
    )
    data = {"sigma0": 2**0.5, "samples": 2, "batch": 1, "step_size": eta}  # s σ₀² = 1
    moved = eta**2 / clients
    change = clients * (1 + 1 + 2 * eta / clients + eta**2 / clients)
    printed = change_bound(constants(network, 1.0, "paper", **data), moved)
    corrected = change_bound(constants(network, 1.0, "corrected", **data), moved)
    assert change > printed
    assert change <= corrected
    if clients == 1:
        assert change - printed == pytest.approx(2 * eta * (1 - 2 * eta))
    else:
        assert [change, printed] == pytest.approx([4.44, 4.20])


# --- one round from any state, exactly ---------------------------------------------------------------
class OneRound:
    """E over v, gradient noise, links, and the next round's v and noise, for F_i = L_i (x - c_i)²/2."""

    def __init__(
        self,
        network: Network,
        p: Floats,
        p_hat: Floats,
        *,
        L: Floats,
        c: Floats,
        seed: int,
        spread: float = 1.0,
    ) -> None:
        rng = np.random.default_rng(seed)
        m = network.clients
        self.network, self.p, self.p_hat, self.L, self.c = network, p, p_hat, L, c
        self.samples, self.batch = np.full(m, 4.0), rng.integers(1, 5, m).astype(float)
        self.sigma0, self.sigma1 = rng.uniform(0, 1, m), rng.uniform(0, 1, m)
        self.optimum = L @ c / L.sum()
        # ∇F_i = L_i (x - x*) + L_i (x* - c_i), and |a + b|² <= 2a² + 2b²
        self.delta0 = np.sqrt(2) * L * np.abs(self.optimum - c)
        self.delta1 = np.sqrt(2) * L / L.mean()
        self.x = rng.normal(size=m) * spread + rng.normal()
        z = rng.normal(size=m) * spread
        self.z = z - z.mean()

    def constants(self, step_size: float, variant: Variant) -> Constants:
        names = ("p", "L", "sigma0", "sigma1", "delta0", "delta1", "samples", "batch")
        inputs = {name: getattr(self, name) for name in names}
        return constants(self.network, self.p_hat, variant, step_size=step_size, **inputs)

    def loss(self, x: Any) -> Any:
        return (self.L * (x[..., None] - self.c) ** 2).mean(-1) / 2

    def gradient(self, x: Any) -> Any:
        return self.L.mean() * (x - self.optimum)

    def noise(self, x: Any) -> Any:
        s = (1 - self.batch / self.samples) / self.batch
        return s * (self.sigma0**2 + self.sigma1**2 * self.gradient(x) ** 2)

    def sides(
        self, step_size: float, phi: Floats, pi: Floats
    ) -> tuple[tuple[float, float, float, float], tuple[float, float, float]]:
        """Errors before (model, tracking, squared gradient, loss) and after (model, tracking, loss)."""
        m, p, x = self.network.clients, self.p, self.x
        v = np.array(list(itertools.product([0, 1], repeat=m)))
        sign = np.array(list(itertools.product([-1, 1], repeat=m)))
        v, sign = np.repeat(v, len(sign), 0), np.tile(sign, (len(v), 1))
        weight = np.where(v, p, 1 - p).prod(1) / 2**m
        g = v * (self.L * (x - self.c) + sign * np.sqrt(self.noise(x)))
        y = self.z + g
        probability, A, B = draws(self.network, self.p_hat)
        weights = probability[:, None] * weight
        half = np.einsum("kij,vj->kvi", B, y)
        after = (A @ x)[:, None, :] - step_size * half
        mean = after @ phi
        # the next v and noise in closed form: y⁺_i = w_i + v⁺_i (f_i + ξ⁺_i)
        w, f, tau = half - g, self.L * (after - self.c), self.noise(after)
        square = w**2 + 2 * w * p * f + p * (f**2 + tau)
        total = (w + p * f).sum(-1) ** 2 + (p * (f**2 + tau) - (p * f) ** 2).sum(-1)
        before_mean = phi @ x
        before = (
            float(phi @ (x - before_mean) ** 2),
            weight @ ((y**2) @ (1 / pi) - y.sum(1) ** 2),
            self.gradient(before_mean) ** 2,
            self.loss(before_mean),
        )
        model = (weights * ((after - mean[..., None]) ** 2 @ phi)).sum()
        tracking = (weights * (square @ (1 / pi) - total)).sum()
        return before, (model, tracking, (weights * self.loss(mean)).sum())

    def slack(self, step_size: float, variant: Variant) -> list[float]:
        """(Right - left)/left of Lemmas xdispersion, ydispersion and loss, where they are feasible."""
        k: Any = self.constants(step_size, variant)
        (model, tracking, gradient, loss), after = self.sides(step_size, k.phi, k.pi)
        right = (
            k.psi11 * model + k.psi12 * tracking + k.gamma1 * gradient + k.omega1,
            k.psi21 * model + k.psi22 * tracking + k.gamma2 * gradient + k.omega2,
            loss - k.gamma0 * gradient + k.psi01 * model + k.psi02 * tracking + k.omega0,
        )
        return [(r - a) / a for r, a in zip(right, after, strict=True)]


def random_round(seed: int) -> OneRound:
    rng = np.random.default_rng(seed)
    network = Network.draw(
        graphs.ErdosRenyi(3, 0.5), seed=seed, weights=("degree", "random")[seed % 2]
    )
    p_hat = 1 - 10 ** rng.uniform(-6, -2.5, network.links)
    p, L, c = rng.uniform(0.2, 1, 3), rng.uniform(0.3, 3, 3), rng.normal(size=3)
    return OneRound(network, p, p_hat, L=L, c=c, seed=seed, spread=10 ** rng.uniform(-2, 1))


@settings(deadline=None, max_examples=40)
@given(seed=seeds, scale=st.sampled_from([1e-6, 0.9, 1e3]))
def test_corrected_lemmas_hold(seed: int, scale: float) -> None:
    case = random_round(seed)
    bound = case.constants(1e-3, "corrected").lr_bound_prop1
    assume(isinstance(bound, float))
    assert isinstance(bound, float)
    assert min(case.slack(scale * bound, "corrected")) >= -1e-13


@settings(deadline=None, max_examples=20)
@given(seed=seeds)
def test_step_size_below_the_bound_contracts(seed: int) -> None:
    case = random_round(seed)
    for variant in get_args(Variant):
        bound = case.constants(1e-3, variant).lr_bound_prop1
        if isinstance(bound, float):
            gap = case.constants(0.999 * bound, variant).one_minus_rho_Psi
            assert isinstance(gap, float)
            assert gap > 0


def test_loss_lemma_as_printed_is_false() -> None:
    """A ring of three, F = x²/2, X = (1, 0, -1), and links that fail once in a million, as the lemma allows.

    At η = 0 the average model still moves when a link fails, so E F rises by Var(φᵀA^(k)X)/2. The printed
    right-hand side has only terms that vanish with η: the term (L̄/2)|x̄⁺ - x̄|² is missing.
    """
    case = OneRound(
        Network.ring(3), np.ones(3), np.full(3, 1 - 1e-6), L=np.ones(3), c=np.zeros(3), seed=0
    )
    case.x, case.z, case.batch = np.array([1.0, 0.0, -1.0]), np.zeros(3), case.samples
    printed: Any = case.constants(1e-12, "paper")
    assert printed.p_hat_ge_r_A
    assert printed.p_hat_ge_r_B
    (model, tracking, gradient, loss), (_, _, after) = case.sides(1e-12, printed.phi, printed.pi)
    right = (
        loss
        - printed.gamma0 * gradient
        + printed.psi01 * model
        + printed.psi02 * tracking
        + printed.omega0
    )
    assert after == pytest.approx(8.33e-8, rel=1e-3)
    assert right == pytest.approx(1.875e-12, rel=1e-3)
    assert min(case.slack(1e-12, "corrected")) >= 0


def test_loss_lemma_as_printed_fails_often() -> None:
    found = [random_round(seed) for seed in range(60)]
    bounds = [case.constants(1e-3, "paper").lr_bound_prop1 for case in found]
    slack = [
        case.slack(0.9 * bound, "paper")
        for case, bound in zip(found, bounds, strict=True)
        if isinstance(bound, float)
    ]
    assert len(slack) > 20
    assert sum(model < 0 for model, _, _ in slack) == 0
    assert sum(loss < 0 for _, _, loss in slack) >= 5
