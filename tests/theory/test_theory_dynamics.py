"""Exact moments against enumeration of every draw, and against simulation of the recursion as written."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import ArpackNoConvergence

from spodgt.algorithms.base import Rule
from spodgt.errors import InvalidInput
from spodgt.network import Network, graphs
from spodgt.theory import Dynamics
from spodgt.theory.moments import spectral_radius, stationary_moment
from spodgt.types import Bools, Floats, Ints

RULES: list[Rule] = ["zero", "importance", "memory"]


def problem(
    clients: int, n: int = 1, seed: int = 0, coupled: bool = False
) -> tuple[Floats, Floats]:
    """Random positive definite curvatures and scattered centres."""
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(clients, n, n))
    H = (
        np.einsum("iab,icb->iac", H, H) + 0.3 * np.eye(n)
        if coupled
        else rng.uniform(0.5, 2, (clients, n))
    )
    return H, rng.normal(size=(clients, n))


def dynamics(
    network: Network,
    rule: Rule,
    *,
    n: int = 1,
    seed: int = 0,
    coupled: bool = False,
    noise: float = 0.0,
    centred: bool = False,
) -> Dynamics:
    rng = np.random.default_rng(seed + 1)
    H, c = problem(network.clients, n, seed, coupled)
    p, p_hat = rng.uniform(0.3, 1, network.clients), rng.uniform(0.3, 1, network.links)
    return Dynamics(network, p, p_hat, H, 0 * c if centred else c, rule=rule, noise=noise)


def mix(d: Dynamics, up: Any) -> tuple[Floats, Floats]:
    """A^(k), B^(k) for link draws `up` (..., links)."""
    net, m = d.network, d.network.clients
    A, B = np.zeros((*up.shape[:-1], m, m)), np.zeros((*up.shape[:-1], m, m))
    A[..., net.receivers, net.senders], B[..., net.receivers, net.senders] = up * net.a, up * net.b
    own = np.arange(m)
    A[..., own, own], B[..., own, own] = 1 - A.sum(-1), 1 - B.sum(-2)
    return A, B


def next_gradient(d: Dynamics, x: Floats, g: Floats, v: Any, noise: Floats | float = 0.0) -> Floats:
    fresh = np.einsum("iab,...ib->...ia", d.H, x - d.c) + noise
    v = v[..., None]
    if d.rule == "memory":
        return np.where(v, fresh, g)
    return np.asarray(v * fresh / (d.p[:, None] if d.rule == "importance" else 1))


def step(
    d: Dynamics, eta: float, state: Any, *, up: Any, v: Any, noise: Floats | float = 0.0
) -> tuple[Floats, Floats, Floats]:
    """The recursion as `spodgt` runs it, on (x, y, g) of shape (..., clients, n)."""
    x, y, g = state
    A, B = mix(d, up)
    half = B @ y
    x = A @ x - eta * half
    following = next_gradient(d, x, g, v, noise)
    return x, half + following - g, following


def binary(count: int) -> Ints:
    return np.array(list(itertools.product([0, 1], repeat=count)))


# --- enumeration -------------------------------------------------------------------------------------
def enumerated_operators(d: Dynamics, eta: float) -> tuple[Floats, Floats, Floats]:
    """E[M] and E[M ⊗ M] of s⁺ = M s on (x, y, g), and a basis of the states with Σy = Σg."""
    m, n = d.c.shape
    size = m * n
    mean, square = np.zeros((3 * size, 3 * size)), np.zeros((9 * size**2, 9 * size**2))
    basis = np.eye(3 * size).reshape(-1, 3, m, n)
    for up in binary(d.network.links):
        for v in binary(m):
            probability = (
                np.where(up, d.p_hat, 1 - d.p_hat).prod() * np.where(v, d.p, 1 - d.p).prod()
            )
            M = (
                np.stack(step(d, eta, basis.swapaxes(0, 1), up=up, v=v), axis=1)
                .reshape(3 * size, -1)
                .T
            )
            mean += probability * M
            square += probability * np.kron(M, M)
    total = np.kron(np.ones(m), np.eye(n))  # (n, m n): Σ over clients
    constraint = np.concatenate([np.zeros((n, size)), total, -total], axis=1)
    _, _, rows = np.linalg.svd(constraint)
    return mean, square, rows[n:].T


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("clients", "n"), [(2, 1), (2, 2), (3, 1)])
def test_radii_by_enumeration(rule: Rule, clients: int, n: int) -> None:
    network = Network.ring(clients)
    d = dynamics(network, rule, n=n, coupled=n > 1, centred=True)
    for eta in (0.05, 0.4, 1.5):
        mean, square, Q = enumerated_operators(d, eta)
        QQ = np.kron(Q, Q)
        expected_mean = np.abs(np.linalg.eigvals(Q.T @ mean @ Q)).max()
        expected_square = np.abs(np.linalg.eigvals(QQ.T @ square @ QQ)).max()
        assert d.mean_radius(eta) == pytest.approx(expected_mean, rel=1e-9)
        assert d.mean_square_radius(eta) == pytest.approx(expected_square, rel=1e-9)
        # off the reachable subspace the recursion is the identity, which would hide every stable step size
        assert np.abs(np.linalg.eigvals(mean)).max() >= 1 - 1e-9


def enumerated_curve(d: Dynamics, eta: float, x0: Floats, rounds: int, deviation: float) -> Floats:
    """E‖x_k - x*‖²/clients over every draw of clients, links and gradient noise of ±`deviation`."""
    m, n = d.c.shape
    v, sign = binary(m), 2 * binary(m) - 1
    probabilities = np.where(v, d.p, 1 - d.p).prod(1)

    def fresh(states: Any, weights: Floats, up: Any) -> tuple[Any, Floats]:
        """Every next v and noise (and links `up`) for every state."""
        combined, probability = [], []
        links = np.where(up, d.p_hat, 1 - d.p_hat).prod(1) if len(up) else np.ones(1)
        for k, (vs, s) in itertools.product(
            range(len(links)), itertools.product(range(len(v)), range(len(sign)))
        ):
            noise = deviation * sign[s][:, None]
            if len(up):
                combined.append(step(d, eta, states, up=up[k], v=v[vs], noise=noise))
            else:
                x, _, g = states
                g = next_gradient(d, x, g, v[vs], noise)
                combined.append((x, g, g))
            probability.append(weights * links[k] * probabilities[vs] / len(sign))
        joined = tuple(np.concatenate([state[part] for state in combined]) for part in range(3))
        return joined, np.concatenate(probability)

    x = np.broadcast_to(x0, (1, m, n))
    states, weights = fresh((x, 0 * x, 0 * x), np.ones(1), np.empty((0, 0)))
    curve = [weights @ ((states[0] - d.optimum) ** 2).sum((1, 2)) / m]
    for _ in range(rounds):
        states, weights = fresh(states, weights, binary(d.network.links))
        curve.append(weights @ ((states[0] - d.optimum) ** 2).sum((1, 2)) / m)
    return np.array(curve)


@pytest.mark.parametrize("rule", RULES)
def test_curve_by_enumeration(rule: Rule) -> None:
    """Two rounds see the initial draw, the links, both mixings of one draw, and the noise."""
    d = dynamics(Network.ring(2), rule, n=2, coupled=True, noise=0.0)
    x0 = np.random.default_rng(5).normal(size=(2, 2))
    expected = enumerated_curve(d, 0.3, x0, 2, 0.0)
    np.testing.assert_allclose(d.curve(0.3, x0, 2), expected, rtol=1e-12)
    # ±1 noise, the same on both coordinates, would be correlated: take one coordinate
    d = dynamics(Network.ring(2), rule, n=1, noise=0.7)
    expected = enumerated_curve(d, 0.3, x0[:, :1], 2, 0.7)
    np.testing.assert_allclose(d.curve(0.3, x0[:, :1], 2), expected, rtol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_curve_ends_at_the_floor(rule: Rule) -> None:
    d = dynamics(Network.ring(3), rule, n=2, noise=0.1)
    assert d.mean_square_radius(0.2) < 1
    assert d.curve(0.2, np.ones(2), 2000)[-1] == pytest.approx(d.floor(0.2), rel=1e-9)


# --- what the rules promise ----------------------------------------------------------------------------
def test_bias_is_that_of_idle_clients() -> None:
    network = Network.ring(3)
    H, c = np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.5, 2.0])
    p = np.array([0.9, 0.5, 0.2])
    found = {rule: Dynamics(network, p, 0.8, H, c, rule=rule) for rule in RULES}
    assert found["zero"].limit == pytest.approx((p * H) @ c / (p @ H))
    assert found["zero"].bias == pytest.approx((p * H) @ c / (p @ H) - H @ c / H.sum())
    for rule in ("importance", "memory"):
        assert found[rule].bias == pytest.approx(0, abs=1e-14)
    # with memory the optimum is a fixed point of every draw; zeros and weights keep shaking it
    assert found["memory"].variance(0.05) == pytest.approx(0, abs=1e-20)
    assert found["zero"].variance(0.05) > 1e-3
    assert found["importance"].variance(0.05) > 1e-3
    assert found["zero"].variance(10.0) == math.inf


def test_without_sporadicity_all_rules_agree() -> None:
    network = Network.ring(4)
    H, c = problem(4, 2)
    found = [Dynamics(network, 1, 1, H, c, rule=rule) for rule in RULES]
    for d in found:
        assert d.mean_square_radius(0.1) == pytest.approx(d.mean_radius(0.1) ** 2, rel=1e-9)
        assert d.mean_radius(0.1) == pytest.approx(found[0].mean_radius(0.1), rel=1e-9)
        assert d.bias == pytest.approx(0, abs=1e-14)


def test_one_client_is_gradient_descent() -> None:
    """x⁺ = x - η H (x - c): stable up to 2/H, fastest at 1/H."""
    d = Dynamics(Network.from_adjacency([[0]]), 1, [], [4.0], [1.0], noise=1.0)
    assert d.mean_radius(0.1) == pytest.approx(0.6)
    assert d.largest_stable_step() == pytest.approx(0.5, rel=1e-4)
    assert d.fastest_step() == pytest.approx(0.25, rel=1e-2)
    # variance of x⁺ = (1 - ηH) x - η ξ
    assert d.variance(0.1) == pytest.approx(0.01 / (1 - 0.36))
    for H in np.linspace(
        0.1, 9, 40
    ):  # the search starts at the limit itself, on either side by rounding
        found = Dynamics(Network.from_adjacency([[0]]), 1, [], [H], [1.0]).largest_stable_step()
        assert found == pytest.approx(2 / H, rel=1e-4)


def test_effective_step_size() -> None:
    """For small η the mean follows descent with step m η φᵀπ on the average gradient."""
    network = Network.draw(graphs.ErdosRenyi(5, 0.4), seed=3, weights="random")
    p_hat = np.random.default_rng(0).uniform(0.3, 1, network.links)
    from spodgt.theory import perron_vectors

    phi, pi = perron_vectors(network, p_hat)
    d = Dynamics(network, 1, p_hat, np.ones(5), np.arange(5.0))
    eta = 1e-6
    assert (1 - d.mean_radius(eta)) / eta == pytest.approx(5 * phi @ pi, rel=1e-4)


def test_per_client_step_sizes() -> None:
    d = dynamics(Network.ring(3), "zero")
    assert d.mean_square_radius([0.1, 0.1, 0.1]) == pytest.approx(d.mean_square_radius(0.1))
    assert d.mean_square_radius([0.1, 0.2, 0.05]) < 1


def test_uncoupled_coordinates_are_taken_apart() -> None:
    network = Network.ring(3)
    d = dynamics(network, "memory", n=3, noise=0.2)
    alone = [
        Dynamics(network, d.p, d.p_hat, d.H[:, k, k], d.c[:, k], rule="memory", noise=0.2)
        for k in range(3)
    ]
    assert d.mean_square_radius(0.2) == pytest.approx(
        max(one.mean_square_radius(0.2) for one in alone)
    )
    assert d.variance(0.2) == pytest.approx(sum(one.variance(0.2) for one in alone))
    # the same problem in rotated coordinates is coupled, and must give the same numbers
    R, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    turned = Dynamics(network, d.p, d.p_hat, R.T @ d.H @ R, d.c @ R, rule="memory", noise=0.2)
    assert turned.mean_square_radius(0.2) == pytest.approx(d.mean_square_radius(0.2), rel=1e-8)
    assert turned.variance(0.2) == pytest.approx(d.variance(0.2), rel=1e-8)


@pytest.mark.parametrize("rule", RULES)
def test_matrix_free_equals_dense(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    d = dynamics(Network.ring(4), rule, noise=0.1)
    dense = [d.mean_square_radius(0.3), d.variance(0.3)]
    monkeypatch.setattr("spodgt.theory.moments.DENSE", 0)
    assert [d.mean_square_radius(0.3), d.variance(0.3)] == pytest.approx(dense)


def test_power_iteration_is_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    from spodgt.theory import moments

    def never(*_args: object, **_kwargs: object) -> None:
        raise ArpackNoConvergence("no", np.empty(0), np.empty(0))

    monkeypatch.setattr(moments, "eigs", never)
    monkeypatch.setattr(moments, "DENSE", 0)
    M = np.array([[0.5, 0.2], [0.1, 0.3]])
    found = spectral_radius(lambda S: M @ S @ M.T, np.eye(2))
    assert found == pytest.approx(np.abs(np.linalg.eigvals(M)).max() ** 2)
    S = stationary_moment(lambda S: M @ S @ M.T, np.eye(2))
    np.testing.assert_allclose(S, M @ S @ M.T + np.eye(2), rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "none"}, "rule must be one of zero, importance, memory, got 'none'; use "),
        (
            {"H": np.ones((2, 1))},
            r"H must be \(3, n, n\) and c \(3, n\) for 3 clients, got \(2, 1\)",
        ),
        ({"H": [1.0, -2.0, 0.5]}, "sum of H over clients must be positive definite"),
        ({"H": [5.0, -2.0, 0.5], "p": [0.1, 1.0, 1.0]}, "sum of p_i H_i"),
        (
            {"H": np.full((3, 2, 2), [[1.0, 1.0], [0.0, 1.0]]), "c": np.zeros((3, 2))},
            r"H must be symmetric, but H\[0\] is not; use ",
        ),
        ({"noise": -1.0}, r"noise\[0\] must be zero or positive and finite, got -1.0; use "),
        ({"p": 0.0}, r"p\[0\]"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    inputs: dict[str, Any] = {
        "p": 1.0,
        "p_hat": 1.0,
        "H": [1.0, 1.0, 1.0],
        "c": [0.0, 1.0, 2.0],
    } | change
    with pytest.raises(InvalidInput, match=message):
        Dynamics(Network.ring(3), **inputs)


# --- simulation ----------------------------------------------------------------------------------------
class Simulation:
    """Many runs at once of the recursion as written, all from the same start."""

    def __init__(self, d: Dynamics, eta: float, runs: int, x0: Floats, seed: int = 0) -> None:
        self.d, self.eta, self.rng = d, eta, np.random.default_rng(seed)
        x = np.broadcast_to(np.asarray(x0, dtype=float), (runs, *d.c.shape))
        g = next_gradient(d, x, np.zeros_like(x), self.clients(runs), self.noise(x))
        self.state = x, g, g

    def clients(self, runs: int) -> Bools:
        return self.rng.random((runs, len(self.d.p))) < self.d.p

    def noise(self, x: Floats) -> Floats | float:
        return self.d.noise[:, None] * self.rng.normal(size=x.shape) if self.d.noise.any() else 0.0

    def advance(self) -> None:
        runs = len(self.state[0])
        up = self.rng.random((runs, self.d.network.links)) < self.d.p_hat
        noise = self.noise(self.state[0])
        self.state = step(self.d, self.eta, self.state, up=up, v=self.clients(runs), noise=noise)

    def squares(self) -> Floats:
        """‖x - x*‖²/clients of every run."""
        return np.asarray(((self.state[0] - self.d.optimum) ** 2).sum((1, 2)) / len(self.d.p))


def simulated_rate(
    d: Dynamics, eta: float, *, runs: int, rounds: int, burn: int, seed: int = 0
) -> float:
    """Growth of E‖s‖² per round on a centred problem, by runs that are copied in proportion to ‖s‖².

    Plain averages miss the rare large runs that carry a mean square; copying them is the same expectation
    with a small variance.
    """
    simulation = Simulation(d, eta, runs, np.random.default_rng(seed).normal(size=d.c.shape), seed)
    logs = []
    for _ in range(rounds):
        simulation.advance()
        x, y, g = simulation.state
        norm = (x**2).sum((1, 2)) + (y**2).sum((1, 2)) + (g**2).sum((1, 2))
        logs.append(np.log(norm.mean()))
        points = (np.arange(runs) + simulation.rng.random()) / runs
        chosen = np.searchsorted(np.cumsum(norm) / norm.sum(), points).clip(max=runs - 1)
        scale = np.sqrt(norm[chosen])[:, None, None]
        x, y, g = (part[chosen] / scale for part in simulation.state)
        # scaling up a shrinking state would scale up the rounding error of Σy = Σg, which never shrinks
        simulation.state = x, y + (g - y).mean(1, keepdims=True), g
    return math.exp(np.mean(logs[burn:]))


@pytest.fixture(scope="module", params=range(2))
def network(request: pytest.FixtureRequest) -> Network:
    return Network.draw(
        graphs.ErdosRenyi(4 + request.param, 0.4), seed=request.param, weights="random"
    )


@pytest.mark.parametrize("rule", RULES)
def test_plain_simulation_follows_the_curve(network: Network, rule: Rule) -> None:
    d = dynamics(network, rule, n=2, noise=0.05)
    eta, x0, runs = 0.3 * d.largest_stable_step(), np.full(2, 3.0), 4000
    simulation = Simulation(d, eta, runs, x0)
    for predicted in d.curve(eta, x0, 60):
        square = simulation.squares()
        assert square.mean() == pytest.approx(
            predicted, abs=5 * square.std() / math.sqrt(runs) + 1e-12
        )
        simulation.advance()


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_simulated_rate(network: Network, rule: Rule) -> None:
    d = dynamics(network, rule, centred=True)
    for fraction in (0.1, 0.5, 0.9):
        eta = fraction * d.largest_stable_step()
        # the rate itself, and the smaller number 1 - rate, which is what a user waits for
        predicted = d.mean_square_radius(eta)
        measured = simulated_rate(d, eta, runs=5000, rounds=250, burn=100)
        assert measured == pytest.approx(predicted, rel=0.02)
        assert math.log(measured) == pytest.approx(math.log(predicted), rel=0.1, abs=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_simulated_floor(network: Network, rule: Rule) -> None:
    d = dynamics(network, rule, n=2, noise=0.05)
    eta = 0.4 * d.largest_stable_step()
    simulation, floors = Simulation(d, eta, 4000, d.optimum), []
    for k in range(600):
        simulation.advance()
        if k >= 300:
            floors.append(simulation.squares().mean())
    assert np.mean(floors) == pytest.approx(d.floor(eta), rel=0.05)
    x = simulation.state[0].mean((0, 1))
    spread = np.sqrt(d.variance(eta) / 4000)
    assert x - d.optimum == pytest.approx(d.bias, abs=5 * spread)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_simulated_stability_limit(network: Network, rule: Rule) -> None:
    d = dynamics(network, rule, centred=True)
    limit = d.largest_stable_step()
    assert simulated_rate(d, 0.98 * limit, runs=6000, rounds=300, burn=100) < 1
    assert simulated_rate(d, 1.02 * limit, runs=6000, rounds=300, burn=100) > 1


@pytest.mark.slow
def test_fifty_clients() -> None:
    """Matrix-free: 150 unknowns, so 22,500 second moments, on a graph of several hundred links."""
    network = Network.directed_geometric(50, 0.2, 0.4, seed=1)
    rng = np.random.default_rng(0)
    H, c = rng.uniform(0.5, 2, 50), rng.normal(size=50)
    d = Dynamics(
        network,
        rng.uniform(0.2, 1, 50),
        rng.uniform(0.2, 1, network.links),
        H,
        c,
        rule="memory",
        noise=0.1,
    )
    simulation, floors = Simulation(d, 0.1, 200, d.optimum), []
    for k in range(600):
        simulation.advance()
        if k >= 200:
            floors.append(simulation.squares().mean())
    assert np.mean(floors) == pytest.approx(d.variance(0.1), rel=0.05)
