"""The methods that have no golden trajectory, once more, client by client in plain numpy."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spodgt.network import Network, graphs
from spodgt.participation import Bernoulli
from spodgt.participation.local_blocks import block_ends
from spodgt.problems import Quadratic
from spodgt.runtimes.world import Run
from spodgt.types import Floats
from tests.helpers import NAMES, build, golden, make_run, states

ROUNDS, STEP = 14, 0.1
TREES = frozenset(name for name in NAMES if name.startswith("relay"))


class Bench:
    """One run, its gradients and who is active, in numpy."""

    def __init__(self, name: str, p: float, p_hat: float, **fields: Any) -> None:
        self.network = Network.random_geometric(5, 0.7, seed=3)
        if name == "gossip-push-pull":
            self.network = Network.draw(graphs.ErdosRenyi(5, 0.5), seed=3)
        self.problem = Quadratic.random(5, 2, seed=1)
        self.x0 = np.random.default_rng(1).standard_normal((5, 2))
        algorithm = build(name, step_size=STEP, **fields)
        self.run: Run = make_run(
            algorithm, self.problem, self.network, Bernoulli(p, p_hat), x0=self.x0, seed=4
        )

    def grad(self, i: int, x: Floats) -> Floats:
        return np.asarray(self.problem.H[i].numpy() @ (x - self.problem.c[i].numpy()))

    def active(self, k: int) -> tuple[Any, list[tuple[int, int]], list[tuple[int, int]]]:
        """Who computes, and the links (receiver, sender) that pull and push."""
        links = self.run.availability.links(range(k, k + 1))
        pull, push = links.pull, links.pushing
        ends = list(
            zip(self.network.receivers.tolist(), self.network.senders.tolist(), strict=True)
        )
        chosen = [[ends[n] for n in np.flatnonzero(links[0])] for links in (pull, push)]
        return self.run.availability.computes(range(k, k + 1))[0], chosen[0], chosen[1]

    def agrees(self, trajectory: list[Floats]) -> None:
        ours = np.stack([state.x.numpy() for state in states([self.run], ROUNDS)])
        np.testing.assert_allclose(ours, np.stack(trajectory), rtol=0, atol=1e-12)


def strings(path: Path) -> set[str]:
    """All string literals of a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(golden()["x"])))
def test_a_method_without_golden_trajectory_has_a_second_implementation(name: str) -> None:
    """In this file, or in a file of its own, as the two that route over trees."""
    here = Path(__file__)
    written_out = strings(here) | (TREES & strings(here.parent / "test_relay.py"))
    assert name in written_out, f"add a test with Bench({name!r}, …) to {here.name}"


@pytest.mark.parametrize("name", ["dspodfl", "dsgd", "dgd"])
def test_dspodfl(name: str) -> None:
    bench = Bench(name, 0.5 if name == "dspodfl" else 1.0, 0.5)
    W, x, out = bench.network.W, bench.x0.copy(), [bench.x0]
    v, _, _ = bench.active(0)
    for k in range(1, ROUNDS + 1):
        after = x.copy()
        computes, links, _ = bench.active(k)
        for i, j in links:
            assert (j, i) in links  # both directions or none
            after[i] += W[i, j] * (x[j] - x[i])
        for i in np.flatnonzero(v).tolist():
            after[i] -= STEP * bench.grad(i, x[i])
        x, v = after, computes
        out.append(x)
    bench.agrees(out)


@pytest.mark.parametrize("name", ["diging", "next"])
@pytest.mark.parametrize("p_hat", [1.0, 0.5])
def test_tracking_over_two_way_links(name: str, p_hat: float) -> None:
    averaging = 0.7
    bench = Bench(name, 1.0, p_hat, **({"averaging": averaging} if name == "next" else {}))
    x, out = bench.x0.copy(), [bench.x0]
    g = np.stack([bench.grad(i, x[i]) for i in range(5)])
    y = g.copy()
    for k in range(1, ROUNDS + 1):
        W = np.eye(5)
        for i, j in bench.active(k)[1]:
            W[i, j] += bench.network.W[i, j]
            W[i, i] -= bench.network.W[i, j]
        if name == "next":
            best = x - STEP * y
            x = W @ (x + averaging * (best - x))
        else:
            x = W @ x - STEP * y
        new = np.stack([bench.grad(i, x[i]) for i in range(5)])
        y, g = W @ y + new - g, new
        out.append(x)
    bench.agrees(out)


@pytest.mark.parametrize("name", ["dfedavg", "fedavg"])
def test_local_steps(name: str) -> None:
    bench = Bench(name, 0.5 if name == "fedavg" else 1.0, 1.0, local_steps=4)
    z, out = bench.x0.copy(), [bench.x0]
    v, _, _ = bench.active(0)
    for k in range(1, ROUNDS + 1):
        z = np.stack([z[i] - STEP * v[i] * bench.grad(i, z[i]) for i in range(5)])
        if k % 4 == 0:
            z = bench.network.W @ z if name == "dfedavg" else np.tile(z.mean(0), (5, 1))
        v, links, _ = bench.active(k)
        assert bool(links) == (name == "dfedavg" and k % 4 == 0)
        out.append(z)
    bench.agrees(out)


@pytest.mark.parametrize("averaging", [1.0, 0.3])
@pytest.mark.parametrize("lengths", [4, [1, 2, 3, 4, 5], "1-6"])
def test_local_gt(lengths: Any, averaging: float) -> None:
    """Client by client and link by link: blocks, contributions, and messages of block ends only."""
    bench = Bench("local-gt", 0.5, 0.6, local_steps=lengths, averaging=averaging)
    A = bench.network.A
    B = bench.network.B
    x = bench.x0.copy()
    y = np.zeros((5, 2))
    c = np.zeros((5, 2))
    blocks: list[list[Floats]] = [[] for _ in range(5)]  # gradients since the last block end
    out = [bench.x0]
    for k in range(1, ROUNDS + 1):
        computed, _, _ = bench.active(k - 1)
        for i in np.flatnonzero(computed).tolist():
            g = bench.grad(i, x[i])
            blocks[i].append(g)
            x[i] = x[i] - STEP * (g + y[i] - c[i])
        ends = np.flatnonzero(block_ends(bench.run.availability, range(k, k + 1))[0]).tolist()
        for i in ends:
            if blocks[i]:
                new = c[i] + averaging * (np.mean(blocks[i], 0) - c[i])
                y[i] = y[i] + new - c[i]
                c[i] = new
                blocks[i] = []
        sent_x = x.copy()
        sent_y = y.copy()
        for i, j in bench.active(k)[1]:
            assert j in ends
            x[i] = x[i] + A[i, j] * (sent_x[j] - sent_x[i])
            y[i] = y[i] + B[i, j] * sent_y[j]
            y[j] = y[j] - B[i, j] * sent_y[j]
        out.append(x.copy())
    bench.agrees(out)


@pytest.mark.parametrize("name", ["local-sgd", "local-sgp"])
@pytest.mark.parametrize("lengths", [4, "1-6"])
def test_averaging_after_local_steps(name: str, lengths: Any) -> None:
    bench = Bench(name, 0.5, 0.6, local_steps=lengths)
    is_push = name == "local-sgp"
    weights = bench.network.B if is_push else bench.network.A
    x = bench.x0.copy()
    u = x.copy()
    s = np.ones(5)
    out = [bench.x0]
    for k in range(1, ROUNDS + 1):
        for i in np.flatnonzero(bench.active(k - 1)[0]).tolist():
            u[i] = u[i] - STEP * bench.grad(i, x[i])
        sent_u = u.copy()
        sent_s = s.copy()
        for i, j in bench.active(k)[1]:
            if is_push:
                u[i] += weights[i, j] * sent_u[j]
                u[j] -= weights[i, j] * sent_u[j]
                s[i] += weights[i, j] * sent_s[j]
                s[j] -= weights[i, j] * sent_s[j]
            else:
                u[i] += weights[i, j] * (sent_u[j] - sent_u[i])
        x = u / s[:, None]
        out.append(x)
    assert is_push == bool((s != 1).any())
    bench.agrees(out)


@pytest.mark.parametrize("lengths", [4, "1-6"])
def test_tracked_diloco(lengths: Any) -> None:
    outer, beta = 0.7, 0.6
    bench = Bench("tracked-diloco", 0.5, 0.6, local_steps=lengths, outer_step=outer, nesterov=beta)
    A, B = bench.network.A, bench.network.B
    moved = np.zeros((5, 2))  # by the local steps of the block
    anchor = bench.x0.copy()
    y, c, m = np.zeros((3, 5, 2))
    count = np.zeros(5, int)
    out = [bench.x0]
    for k in range(1, ROUNDS + 1):
        for i in np.flatnonzero(bench.active(k - 1)[0]).tolist():
            moved[i] += STEP * bench.grad(i, anchor[i] - moved[i])
            count[i] += 1
        ends = block_ends(bench.run.availability, range(k, k + 1))[0]
        for i in np.flatnonzero(ends & (count > 0)).tolist():
            y[i] += moved[i] - c[i]
            c[i] = moved[i]
            m[i] = beta * m[i] + y[i]
            anchor[i] = anchor[i] - outer * (y[i] + beta * m[i])
            moved[i] = 0
            count[i] = 0
        sent_x, sent_y = anchor.copy(), y.copy()
        for i, j in bench.active(k)[1]:
            anchor[i] = anchor[i] + A[i, j] * (sent_x[j] - sent_x[i])
            y[i] = y[i] + B[i, j] * sent_y[j]
            y[j] = y[j] - B[i, j] * sent_y[j]
        out.append(anchor - moved)
    bench.agrees(out)


def test_scaffold() -> None:
    """The paper's listing: option II, c_i⁺ = c_i - c + (x - z_i)/(K_i η) after K_i steps."""
    bench = Bench("scaffold", 0.4, 1.0, local_steps=4)
    server = None  # x; before the first exchange models differ
    z = bench.x0.copy()
    start = z.copy()
    own = np.zeros((5, 2))
    c = np.zeros(2)
    count = np.zeros(5, int)
    out = [bench.x0]
    for k in range(1, ROUNDS + 1):
        for i in np.flatnonzero(bench.active(k - 1)[0]).tolist():
            z[i] = z[i] - STEP * (bench.grad(i, z[i]) + c - own[i])
            count[i] += 1
        if k % 4 == 0:
            chosen = np.flatnonzero(count).tolist()
            change = np.zeros(2)
            for i in chosen:
                new = own[i] - c + (start[i] - z[i]) / (count[i] * STEP)
                change += (new - own[i]) / 5
                own[i] = new
            c = c + change
            server = z[chosen].mean(0)
            z = np.tile(server, (5, 1))
            start = z.copy()
            count[:] = 0
        assert not bench.active(k)[1]
        out.append(z.copy())
    assert server is not None
    bench.agrees(out)


def test_mifa() -> None:
    bench = Bench("mifa", 0.4, 0.3)
    x, out, last = bench.x0.mean(0), [np.tile(bench.x0.mean(0), (5, 1))], np.zeros((5, 2))
    for k in range(ROUNDS):
        computes, links, _ = bench.active(k)
        assert not links
        for i in np.flatnonzero(computes).tolist():
            last[i] = bench.grad(i, x)
        x = x - STEP * last.mean(0)
        out.append(np.tile(x, (5, 1)))
    bench.agrees(out)


def test_sgd_is_gradient_descent_on_the_average() -> None:
    bench = Bench("sgd", 0.3, 0.3)
    x, out = bench.x0.mean(0), [np.tile(bench.x0.mean(0), (5, 1))]
    for _ in range(ROUNDS):
        x = x - STEP * np.mean([bench.grad(i, x) for i in range(5)], 0)
        out.append(np.tile(x, (5, 1)))
    bench.agrees(out)


@pytest.mark.parametrize("name", ["gsgt", "gossip"])
def test_pairs_meet_halfway(name: str) -> None:
    bench = Bench(name, 0.5, 0.5)
    x, out = bench.x0.copy(), [bench.x0]
    g = np.stack([bench.grad(i, x[i]) for i in range(5)])
    y = g.copy()
    for k in range(1, ROUNDS + 1):
        _, links, _ = bench.active(k)
        (i, j), back = links
        assert back == (j, i)
        x, y, old_x, old_y = x.copy(), y.copy(), x, y
        for one, other in ((i, j), (j, i)):
            x[one] = (old_x[one] + old_x[other]) / 2 - (STEP * old_y[one] if name == "gsgt" else 0)
            new = bench.grad(one, x[one])
            y[one] = (old_y[one] + old_y[other]) / 2 + new - g[one]
            g[one] = new
        out.append(x)
    bench.agrees(out)


def test_gossip_push_pull() -> None:
    bench = Bench("gossip-push-pull", 0.5, 0.5)
    x, out = bench.x0.copy(), [bench.x0]
    g = np.stack([bench.grad(i, x[i]) for i in range(5)])
    y = g.copy()
    for k in range(1, ROUNDS + 1):
        computes, ((i, j),), ((to, wakes),) = bench.active(k)
        assert wakes == i
        assert set(np.flatnonzero(computes)) == {i, j, to}
        x, y, old = x.copy(), y.copy(), y
        x[i] = (x[i] + x[j]) / 2
        y[i], y[to] = old[i] / 2, old[to] + old[i] / 2
        for one in {i, j, to}:
            x[one] -= STEP * old[one]
            new = bench.grad(one, x[one])
            y[one] += new - g[one]
            g[one] = new
        out.append(x)
    bench.agrees(out)


# --- made for virtual time -----------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["asy-sonata", "r-fast"])
def test_running_sums(name: str) -> None:
    """The papers' listing, all clients in every round: v, W v, then z, the totals ρ and what was taken."""
    bench = Bench(name, 1.0, 1.0)
    A, B, x, out = bench.network.A, bench.network.B, bench.x0.copy(), [bench.x0]
    rho, taken = np.zeros((5, 5, 2)), np.zeros((5, 5, 2))
    g = np.stack([bench.grad(i, x[i]) for i in range(5)])
    z = np.stack([B[i, i] * g[i] for i in range(5)])
    for j in range(5):  # the first gradient is sent as any later one
        for i in range(5):
            rho[i, j] += B[i, j] * g[j] * (i != j)
    for _ in range(ROUNDS):
        v = x - STEP * z
        x = np.stack([sum(A[i, j] * v[j] for j in range(5)) for i in range(5)])
        new = np.stack([bench.grad(i, x[i]) for i in range(5)])
        half = np.stack([z[i] + (rho[i] - taken[i]).sum(0) + new[i] - g[i] for i in range(5)])
        taken, g = rho.copy(), new
        for i in range(5):
            z[i] = B[i, i] * half[i]
            for j in range(5):
                rho[i, j] += B[i, j] * half[j] * (i != j)
        out.append(x)
    bench.agrees(out)


def test_osgp_is_sgp_where_messages_arrive_at_once() -> None:
    bench = Bench("osgp", 1.0, 1.0)
    P, u, w, out = bench.network.B, bench.x0.copy(), np.ones(5), [bench.x0]
    for _ in range(ROUNDS):
        half = np.stack([u[i] - STEP * bench.grad(i, u[i] / w[i]) for i in range(5)])
        u = np.stack([sum(P[i, j] * half[j] for j in range(5)) for i in range(5)])
        w = np.array([sum(P[i, j] * w[j] for j in range(5)) for i in range(5)])
        out.append(u / w[:, None])
    bench.agrees(out)


def test_a_client_averages_with_one_neighbour_and_steps() -> None:
    bench = Bench("ad-psgd", 0.5, 0.5)
    x, out = bench.x0.copy(), [bench.x0]
    begun = x.copy()  # the models at which gradients are under way
    for k in range(1, ROUNDS + 1):
        (i,), links, _ = np.flatnonzero(bench.active(k)[0]).tolist(), *bench.active(k)[1:]
        (j,) = {sender for receiver, sender in links if receiver == i}
        x = x.copy()
        x[i] = x[j] = (x[i] + x[j]) / 2
        x[i] = x[i] - STEP * bench.grad(i, begun[i])
        begun[i] = x[i]
        out.append(x)
    bench.agrees(out)


@pytest.mark.slow
def test_the_bias_of_ad_psgd_shrinks_with_its_step() -> None:
    """Who wakes is random, so models move about: their mean over time is what has a limit."""
    problem, network = (
        Quadratic.random(5, 2, seed=1, condition=3),
        Network.random_geometric(5, 0.7, seed=1),
    )
    off = []
    for step in (0.02, 0.04):
        run = make_run(build("ad-psgd", step_size=step), problem, network, seed=1)
        mean = np.mean([state.x.numpy() for state in states([run], 8000)[2000:]], 0)
        off.append(np.linalg.norm(mean - problem.optimum().numpy()))
    assert 1e-3 < off[0] < off[1] < 0.5
    assert 1.5 < off[1] / off[0] < 2.5
