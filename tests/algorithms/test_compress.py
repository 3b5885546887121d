"""Short messages: codes say what they promise, nothing is lost, exact stays exact, bytes are counted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import spodgt
from spodgt.algorithms import describe, method
from spodgt.algorithms.checks import check
from spodgt.algorithms.compose.codecs import Int8Codec, Int8Intervals, SparseCodec
from spodgt.algorithms.compose.compressors import COMPRESSORS
from spodgt.errors import Incompatible, InvalidInput
from spodgt.kernels.links import move_into_intervals
from spodgt.network import Network, graphs
from spodgt.participation import Bernoulli
from spodgt.problems import Quadratic
from tests.helpers import FAMILY, KINDS, final, make_run, ring_of, states
from tests.strategies import SEEDS, networks, participations

NAMES = " or ".join(COMPRESSORS)
DTYPES = (torch.float32, torch.float64)


@st.composite
def rows(draw: st.DrawFn) -> torch.Tensor:
    """Rows of numbers of very different sizes, zeros among them."""
    n, columns, rng = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 200)),
        np.random.default_rng(draw(SEEDS)),
    )
    sizes = 10.0 ** rng.integers(-12, 12, (n, columns // draw(st.integers(1, 50)) + 1))
    values = rng.standard_normal((n, columns)) * np.repeat(sizes, columns, 1)[:, :columns]
    values[rng.random((n, columns)) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = 0.0
    return torch.from_numpy(values).to(draw(st.sampled_from(DTYPES)))


# --- codes -----------------------------------------------------------------------------------------------
@given(rows())
def test_int8_says_what_it_rounds_to(x: torch.Tensor) -> None:
    code, columns = Int8Codec(), x.shape[1]
    said = code.quantize(x)
    assert torch.equal(code.quantize(said), said)
    data = code.pack(said)
    assert data.dtype == torch.uint8
    assert data.shape == (len(x), code.size(columns, x.element_size()))
    back = code.unpack(data, columns, x.dtype)
    assert back.dtype == x.dtype
    assert torch.equal(back, said)
    for low in range(0, columns, 64):
        part = slice(low, low + 64)
        largest = x[:, part].abs().amax(1, keepdim=True)
        assert ((x - said)[:, part].abs() <= largest / 127).all()


def test_int8_edges() -> None:
    x = torch.tensor([[0.0, 0.0], [1e-45, -1e-44], [127.5, -127.0], [3e38, -1.0]])
    said = Int8Codec().quantize(x)
    assert said[:2].abs().max() == 0
    assert said[2].tolist() == [128.0, -128.0]
    assert said[3, 0] == pytest.approx(3e38, rel=0.01)
    assert torch.isnan(Int8Codec().quantize(torch.tensor([[float("nan"), 1.0]]))[0, 0])


@given(rows(), st.integers(1, 30))
def test_sparse_rows_come_back(x: torch.Tensor, count: int) -> None:
    code, columns = SparseCodec(count), x.shape[1]
    kept = x.abs().topk(min(count, columns), 1).indices
    said = torch.zeros_like(x).scatter(1, kept, x.gather(1, kept))
    data = code.pack(said)
    assert data.shape == (len(x), code.size(columns, x.element_size()))
    assert torch.equal(code.unpack(data, columns, x.dtype), said)


@given(rows(), st.integers(0, 200), st.integers(1, 60))
def test_intervals_hold_what_they_are_of(x: torch.Tensor, first: int, width: int) -> None:
    columns = x.shape[1]
    exact = slice(first % columns, min(first % columns + width, columns))
    code = Int8Intervals(exact)
    data = code.pack(x)
    assert data.shape == (len(x), code.size(columns, x.element_size()))
    middle, half = code.unpack(data, columns, x.dtype)
    assert ((x - middle).abs() <= half).all()
    assert torch.equal(middle[:, exact], x[:, exact])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_move_into_the_intervals_of_their_senders(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(3)
    x, middle, half = (torch.from_numpy(rng.standard_normal((6, 90))).to(dtype) for _ in range(3))
    into, out = rng.integers(6, size=(2, 11))
    weights = rng.random(11) / 5
    fast = move_into_intervals(x, middle, half.abs(), into, out, weights)
    expected = x.double().numpy().copy()
    for i, j, w in zip(into, out, weights, strict=True):
        for c in range(90):
            low, high = (
                float(middle[j, c] - half[j, c].abs()),
                float(middle[j, c] + half[j, c].abs()),
            )
            at = float(x[i, c])
            expected[i, c] += w * (max(low - at, 0.0) - max(at - high, 0.0))
    assert_close(fast.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-6)


# --- laws ------------------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=60)
@given(data=st.data(), name=st.sampled_from(FAMILY), kind=st.sampled_from(sorted(KINDS)))
def test_nothing_is_lost(data: Any, name: str, kind: str) -> None:
    """What messages leave out stays in the trackers: Σy = Σg in every round, whoever is idle."""
    network = data.draw(networks(least=2, most=5))
    participation = data.draw(participations(network))
    problem = Quadratic.random(network.clients, 7, seed=data.draw(st.integers(0, 99)), noise=0.3)
    run = make_run(method(name, compress=KINDS[kind]), problem, network, participation)
    for state in states([run], 12):
        assert_close(state.y.sum(0), state.g.sum(0), rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(networks(least=2, most=6), st.sampled_from(sorted(KINDS)), SEEDS)
def test_models_stay_between_those_they_come_from(network: Network, kind: str, seed: int) -> None:
    """A row of weights from 0 to a that sums to one: no number leaves the range of all clients' numbers."""
    x0 = np.random.default_rng(seed).standard_normal((network.clients, 70))
    still = Quadratic(torch.zeros(network.clients, 70, 70), torch.zeros(network.clients, 70))
    run = make_run(
        method("spod-gt", compress=KINDS[kind]), still, network, Bernoulli(0.5, 0.7), x0=x0
    )
    before = x0
    for state in states([run], 8):
        x = state.x.numpy()
        assert (x <= before.max(0) + 1e-12).all()
        assert (x >= before.min(0) - 1e-12).all()
        before = x


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_agree_stay_where_they_are(kind: str) -> None:
    still = Quadratic(torch.zeros(5, 70, 70), torch.zeros(5, 70))
    x0 = np.random.default_rng(0).standard_normal(70)
    run = make_run(
        method("spod-gt", compress=KINDS[kind]), still, ring_of(5), Bernoulli(1.0, 0.7), x0=x0
    )
    assert_close(states([run], 10)[-1].x, torch.from_numpy(x0).expand(5, 70), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_has_the_bits_of_its_runs(kind: str) -> None:
    problem = Quadratic.random(5, 3, seed=1, noise=0.1)
    algorithm = method("spod-gt-memory", compress=KINDS[kind])
    runs = [make_run(algorithm, problem, ring_of(5), Bernoulli(0.5, 0.5), seed=n) for n in (0, 1)]
    together = final(runs, 15)
    for n, run in enumerate(runs):
        for whole, alone in zip(together, final(run, 15), strict=True):
            assert torch.equal(whole[5 * n : 5 * n + 5], alone)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_bit_by_bit(kind: str, tmp_path: Path) -> None:
    problem, network = (
        Quadratic.random(5, 9, seed=2, noise=0.2),
        Network.directed_geometric(5, seed=1),
    )
    options: dict[str, Any] = {"seeds": [0, 1], "every": 10, "participation": Bernoulli(0.6, 0.6)}
    methods = [method("spod-gt-memory", compress=KINDS[kind], momentum=0.5)]
    whole = spodgt.compare(methods, problem, network, rounds=40, **options)
    spodgt.compare(methods, problem, network, rounds=20, out=tmp_path / "o", **options)
    rest = spodgt.compare(
        methods, problem, network, rounds=40, out=tmp_path / "o", resume=True, **options
    )
    pd.testing.assert_frame_equal(rest.frame, whole.frame, check_exact=True)


# --- exactness -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("spod-gt-memory", kind) for kind in KINDS),
        ("k-gt", "top-k"),
        *(
            pytest.param(name, kind, marks=pytest.mark.slow)
            for name in ("ab-push-pull", "k-gt")
            for kind in KINDS
            if (name, kind) != ("k-gt", "top-k")
        ),
    ],
)
def test_exact_methods_stay_exact(name: str, kind: str) -> None:
    problem, network = (
        Quadratic.random(5, 6, seed=1, condition=3),
        Network.directed_geometric(5, seed=3),
    )
    algorithm = method(
        name, step_size=0.05, compress=KINDS[kind], **({"local_steps": 3} if name == "k-gt" else {})
    )
    assert algorithm.traits.exact == "yes"
    x = final(make_run(algorithm, problem, network, Bernoulli(0.6, 0.6)), 4000).x
    assert float((x - problem.optimum()).norm(dim=1).max()) < 1e-8


def test_top_k_of_a_run_with_local_steps_does_not_depend_on_the_rest_of_its_batch() -> None:
    problem, network = Quadratic.random(6, 20, seed=1), Network.draw(graphs.Complete(6))
    algorithm = method("k-gt", step_size=0.02, compress="top-k")
    alone, batch = (
        spodgt.train(
            algorithm, problem, network, spodgt.Beta(), rounds=40, seeds=seeds, dtype=torch.float64
        )
        for seeds in ([1], [0, 1, 2])
    )
    name = alone.methods[0]
    assert torch.equal(alone.models[name, 1], batch.models[name, 1])


# --- bytes -----------------------------------------------------------------------------------------------
def test_bytes_are_counted_and_drawn(tmp_path: Path) -> None:
    problem, network = Quadratic.random(5, 640, seed=2), Network.directed_geometric(5, seed=1)
    methods = [method("spod-gt-memory", compress=kind) for kind in (None, *COMPRESSORS)]
    result = spodgt.compare(methods, problem, network, Bernoulli(0.6, 0.6), rounds=30, seeds=[0, 1])
    last = result.frame.groupby(["method", "seed"])["bytes"].last()
    table = result.participation.groupby(["method", "seed"])["bytes"].sum()
    pd.testing.assert_series_equal(last, table.astype(last.dtype), check_names=False)
    assert (result.frame.groupby(["method", "seed"])["bytes"].diff().dropna() >= 0).all()
    assert (result.frame[result.frame["round"] == 0]["bytes"] == 0).all()
    size = last.groupby("method").sum() / last["spod-gt-memory"].sum()
    for kind, compressed in zip(COMPRESSORS, methods[1:], strict=True):
        messages = compressed.message(640, 4) / methods[0].message(640, 4)
        assert size[f"spod-gt-memory+{kind}"] == pytest.approx(messages)
    assert size["spod-gt-memory+int8"] <= 0.27
    assert size["spod-gt-memory+rand-k"] == pytest.approx(0.05)
    assert size["spod-gt-memory+top-k"] == pytest.approx((32 * 8 + 32 * 4) / (640 * 8))
    assert result.plot(tmp_path / "bytes.png", against="bytes").exists()


def test_the_tally_is_that_of_the_compiled_step() -> None:
    problem, network = Quadratic.random(5, 8, seed=2), Network.directed_geometric(5, seed=1)
    one = spodgt.compare(["spod-gt"], problem, network, Bernoulli(0.6, 0.6), rounds=20)
    other = spodgt.compare(
        ["spod-gt"], problem, network, Bernoulli(0.6, 0.6), rounds=20, engine="plain"
    )
    assert one.frame["bytes"].tolist() == other.frame["bytes"].tolist()


# --- edges -----------------------------------------------------------------------------------------------
def test_every_kind_is_tested_and_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/compress.md").read_text(encoding="utf-8")
    assert set(KINDS) == set(COMPRESSORS)
    assert all(f"| `{kind}` |" in page for kind in COMPRESSORS)


def test_it_is_described_as_it_was_given() -> None:
    assert describe(method("spod-gt", compress="int8"))["compress"] == "int8"
    assert describe(method("spod-gt", compress=True))["compress"] == "int8"
    for kind in KINDS.values():
        algorithm = method("spod-gt", compress=kind)
        assert describe(algorithm)["compress"] == kind
        assert describe(method(**describe(algorithm))) == describe(algorithm)
    assert "compress" not in describe(method("spod-gt", compress=None))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "no-such-kind",
            f"compress of spod-gt must be {NAMES}, got 'no-such-kind'; use compress=\"int8\".",
        ),
        (0.5, f"compress of spod-gt must be {NAMES}, got 0.5"),
        (
            {"kind": "top-k", "share": 0},
            "compress of spod-gt must be with share above 0 and at most 1, got 0",
        ),
        (
            {"kind": "top-k", "part": 1},
            "part=1 is not a field of compress; its fields are kind, share.",
        ),
    ],
)
def test_bad_values_are_one_sentence(value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        method("spod-gt", compress=value)


@pytest.mark.parametrize(
    "name", ["dsgd", "sgp", "push-diging", "fedavg", "sgd", "frost", "gossip-push-pull", "relay"]
)
def test_methods_that_cannot_are_told(name: str) -> None:
    network = ring_of(5)
    with pytest.raises(Incompatible, match="drop compress, or use spod-gt-memory"):
        check(method(name, compress="int8"), network, Bernoulli(1.0, 1.0).draw(network, 0))
