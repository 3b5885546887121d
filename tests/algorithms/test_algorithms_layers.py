"""Layers around a method: Adam, clipping, weight decay, warm-up, local steps; what stays exact with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from spodgt.algorithms import ALGORITHMS, LAYERS, Constant, Cosine, Inverse, describe, method
from spodgt.algorithms.checks import check
from spodgt.algorithms.compose.clipping import row_norms
from spodgt.errors import Incompatible
from spodgt.experiment import Experiment
from spodgt.network import Network, graphs
from spodgt.participation import Always, Bernoulli
from spodgt.participation.roles import HasRoles
from spodgt.problems import Quadratic
from spodgt.runtimes.simulator import Simulation
from tests.helpers import FAMILY, NAMES, final, make_run, ring_of, states
from tests.kernels.test_loops import needs_loops, toy_problem
from tests.strategies import networks, participations

EACH: dict[str, dict[str, Any]] = {
    "adam": {"adam": True},
    "amsgrad": {"adam": {"amsgrad": True, "beta2": 0.99}},
    "clip-gradient": {"clip_gradient": 0.5},
    "clip-tracker": {"clip_tracker": 0.5},
    "weight-decay": {"weight_decay": 0.1},
    "l2": {"l2": 0.1},
    "local": {"local_steps": 3},
    "optimizer": {"optimizer": {"name": "Adam", "betas": [0.8, 0.9]}},
    "working": {"weights": "working"},
    "warm-up": {"step_size": Constant(0.05, warmup=7)},
}
ALL: dict[str, Any] = {
    "step_size": Cosine(0.05, 50, warmup=4), "local_steps": 2, "clip_tracker": 2.0, "adam": {"amsgrad": True},
    "optimizer": "RMSprop",
    "weight_decay": 0.01, "momentum": 0.5, "l2": 0.01, "clip_gradient": 3.0,
}  # fmt: skip
BOTH = EACH | {"all": ALL}
TURNED = [name for name in NAMES if ALGORITHMS[name].traits.direction]


def problem_of(clients: int = 5, **options: Any) -> Quadratic:
    return Quadratic.random(clients, 3, seed=1, condition=3, **options)


def distance(algorithm: Any, rounds: int, best: Any = None) -> float:
    """From the optimum after so many rounds with idle clients and links, over a one-way graph."""
    problem, network = problem_of(), Network.directed_geometric(5, seed=3)
    x = final(make_run(algorithm, problem, network, Bernoulli(0.6, 0.6)), rounds).x
    return float((x - (problem.optimum() if best is None else best)).norm(dim=1).max())


# --- laws --------------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=40)
@given(data=st.data(), name=st.sampled_from(FAMILY), layers=st.sampled_from(sorted(BOTH)))
def test_trackers_sum_up_to_the_gradients_they_are_given(data: Any, name: str, layers: str) -> None:
    """Σy = Σg in every round: of the changed gradients with a gradient layer, of the plain ones without."""
    network = data.draw(networks(least=2, most=5))
    participation = data.draw(participations(network))
    problem = Quadratic.random(network.clients, 3, seed=data.draw(st.integers(0, 99)), noise=0.3)
    run = make_run(method(name, **BOTH[layers]), problem, network, participation)
    for state in states([run], 12):
        assert_close(state.y.sum(0), state.g.sum(0), rtol=0, atol=1e-11)


@pytest.mark.parametrize("layers", BOTH)
@pytest.mark.parametrize("name", ["spod-gt-memory", "dsgd", "push-diging", "gsgt", "sgd"])
def test_a_batch_has_the_bits_of_its_runs(name: str, layers: str) -> None:
    fixed = {"local_steps": ("gsgt", "sgd"), "weights": ("gsgt", "sgd", "dsgd")}
    if any(name in fixed.get(key, ()) for key in BOTH[layers]):
        pytest.skip("has no links to rest or to weigh")
    runs = [
        make_run(method(name, **BOTH[layers]), problem_of(noise=0.1), ring_of(5), seed=n)
        for n in (0, 1)
    ]
    together = final(runs, 15)
    for n, run in enumerate(runs):
        for whole, alone in zip(together, final(run, 15), strict=True):
            assert torch.equal(whole[5 * n : 5 * n + 5], alone)


@pytest.mark.parametrize("width", [1, 7, 1024, 1025, 70_000])
def test_a_norm_does_not_depend_on_the_rows_beside_it(width: int) -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((9, width))).float()
    together = row_norms(x)
    assert_close(together, x.norm(dim=1, keepdim=True))
    for n in range(9):
        assert torch.equal(row_norms(x[n : n + 1]), together[n : n + 1])


# --- exactness on quadratics -------------------------------------------------------------------------
@pytest.mark.parametrize("layers", [name for name in EACH if name not in ("adam", "amsgrad")])
def test_what_is_declared_exact_is_exact_and_what_is_not_is_not(layers: str) -> None:
    fields = {"step_size": 0.05} | EACH[layers]
    algorithm = method("spod-gt-memory", **fields)
    away = distance(algorithm, 1500)
    assert algorithm.traits.exact == ("yes" if away < 1e-10 else "no")
    assert away < 1e-10 or away > 1e-3


def test_adam_is_exact_where_its_steps_shrink_with_the_tracker() -> None:
    """With the largest v below the root, or with ε of the order of the step as in GTAdam; else it is not."""
    plain = method("spod-gt-memory", step_size=0.01, adam={"beta2": 0.9})
    largest = method("spod-gt-memory", step_size=0.01, adam={"beta2": 0.9, "amsgrad": True})
    assert (plain.traits.exact, largest.traits.exact) == ("no", "yes")
    assert distance(plain, 2500) > 1e-4
    assert distance(largest, 2500) < 1e-10
    assert distance(method("spod-gt-memory", step_size=0.05, adam={"epsilon": 1.0}), 2500) < 1e-10


def test_exactness_is_the_methods_own() -> None:
    assert method("spod-gt", clip_tracker=1.0).traits.exact == "all active"
    assert method("dsgd", clip_tracker=1.0).traits.exact == "no"
    assert method("spod-gt-memory", local_steps=4, adam={"amsgrad": True}).traits.exact == "yes"


def test_l2_reaches_the_optimum_of_the_decayed_problem() -> None:
    problem, rate = problem_of(), 0.1
    H, c = problem.H.double(), problem.c.double()
    both = H + rate * torch.eye(3, dtype=torch.float64)
    best = torch.linalg.solve(both.sum(0), torch.einsum("iab,ib->a", H, c))
    assert distance(method("spod-gt-memory", step_size=0.05, l2=rate), 1500, best) < 1e-10
    near = distance(method("spod-gt-memory", step_size=0.05, weight_decay=rate), 1500, best)
    assert 1e-6 < near < 0.2  # of the order of the step


@pytest.mark.parametrize("name", ["ab-push-pull", "g-push-pull", "diging", "next", "push-pull"])
def test_local_steps_keep_trackers_exact(name: str) -> None:
    problem = problem_of()
    x = final(make_run(method(name, step_size=0.03, local_steps=4), problem, ring_of(5)), 2000).x
    assert_close(x, problem.optimum().expand(5, 3), rtol=0, atol=1e-9)


# --- numbers -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("name", ["sgd", "spod-gt", "dsgd"])
def test_one_client_is_torchs_adamw(name: str, amsgrad: bool) -> None:
    problem, x = Quadratic.random(1, 3, seed=2), torch.tensor([[1.0, -2.0, 3.0]]).double()
    fields = {"adam": {"amsgrad": amsgrad, "beta2": 0.9}, "weight_decay": 0.2}
    run = make_run(
        method(name, step_size=0.05, **fields), problem, Network.draw(graphs.Complete(1)), x0=x
    )
    model = torch.nn.Parameter(x.clone())
    theirs = torch.optim.AdamW(
        [model], lr=0.05, betas=(0.9, 0.9), weight_decay=0.2, amsgrad=amsgrad
    )
    for state in states([run], 20):
        assert_close(state.x, model.detach(), rtol=0, atol=1e-12)
        model.grad = problem.full(model.detach(), np.arange(1))[1]
        theirs.step()


def test_clipping_by_hand() -> None:
    problem, x = Quadratic.random(1, 3, seed=2), torch.tensor([[10.0, -20.0, 30.0]]).double()
    for key in ("clip_gradient", "clip_tracker"):
        run = make_run(
            method("ab", step_size=0.5, **{key: 2.0}),
            problem,
            Network.draw(graphs.Complete(1)),
            x0=x,
        )
        first, second, *_ = states([run], 2)
        assert float((second.x - first.x).norm()) == pytest.approx(1.0)
        assert (float(second.y.norm()) > 2) == (key == "clip_tracker")  # what is sent on is whole


def test_a_warm_up_by_hand() -> None:
    assert [
        float(Constant(0.6, warmup=3).with_warmup(k)) for k in (1, 2, 3, 4, 9)
    ] == pytest.approx([0.2, 0.4, 0.6, 0.6, 0.6])
    # after the warm-up a schedule begins at its start
    assert [float(Inverse(0.6, warmup=2).with_warmup(k)) for k in (1, 2, 3, 4)] == pytest.approx(
        [0.3, 0.6, 0.6, 0.3]
    )
    assert method("ab", step_size={"schedule": "constant", "start": 0.6}) == method(
        "ab", step_size=0.6
    )
    assert (
        method("ab", step_size={"schedule": "constant", "start": 0.6, "warmup": 3}).name
        == "ab+constant"
    )


def test_who_stands_still_keeps_its_moments() -> None:
    """An idle client of a method without tracking takes no step, with Adam or decay neither."""
    algorithm = method("dspodfl", step_size=0.1, adam=True, weight_decay=0.5)
    kept = states([make_run(algorithm, problem_of(), ring_of(5), Bernoulli(0.5, 1e-9))], 20)
    computes = Bernoulli(0.5, 1e-9).draw(ring_of(5), 0).computes(range(21))
    for k in range(1, 21):
        idle = torch.from_numpy(~computes[k - 1])  # its gradient is that of the round before
        for name in ("x", "adam_m", "adam_v", "adam_left"):
            assert torch.equal(getattr(kept[k], name)[idle], getattr(kept[k - 1], name)[idle])


@needs_loops
def test_local_steps_use_links_in_every_kth_round() -> None:
    network = ring_of(5)
    algorithm = method("spod-gt-memory", step_size=0.1, local_steps=3)
    links = (
        algorithm.adapt_availability(Always().draw(network, 0), network).links(range(1, 10)).used
    )
    assert links.any(1).tolist() == [False, False, True] * 3
    run = make_run(algorithm, toy_problem(clients=5), network, Bernoulli(0.6, 0.6))
    world = Simulation([run], dtype=torch.float64)
    assert world.rounds.compiled_rounds is not None
    for plain, fast in zip(states([run], 12), states([run], 12, compiled=True), strict=True):
        assert_close(plain.x, fast.x, rtol=0, atol=1e-12)


def test_weights_follow_the_links_that_work() -> None:
    network = Network.directed_geometric(6, seed=3)
    run = make_run(method("ab", weights="working"), problem_of(6), network, Bernoulli(0.5, 0.5))
    assert isinstance(run.availability, HasRoles)
    links, roles = run.availability.links(range(1, 40)), run.availability.roles(range(1, 40))
    for k, working in enumerate(links.pull):
        for link in range(network.links):
            heard = working[network.receivers == network.receivers[link]].sum()
            told = working[network.senders == network.senders[link]].sum()
            assert roles.a[k, link] == 1 / (1 + heard)
            assert roles.b[k, link] == 1 / (1 + told)
    assert roles.step_weight.all()
    assert not roles.reset_tracker.any()


def test_with_all_links_at_work_weights_are_those_by_degree() -> None:
    runs = [
        make_run(method("ab", **more), problem_of(), ring_of(5))
        for more in ({}, {"weights": "working"})
    ]
    for plain, weighed in zip(states([runs[0]], 12), states([runs[1]], 12), strict=True):
        assert_close(plain.x, weighed.x, rtol=0, atol=1e-13)


# --- declarations ------------------------------------------------------------------------------------
@needs_loops
@pytest.mark.parametrize("layers", BOTH)
def test_compiled_steps_with_layers_are_those_of_the_method(layers: str) -> None:
    """Layers that are linear in the state are traced with the step; others have no compiled step."""
    algorithm = method("spod-gt-memory", **BOTH[layers])
    run = make_run(algorithm, toy_problem(clients=5), ring_of(5))
    after = []
    for compiled in (True, False):
        simulation = Simulation([run], dtype=torch.float64, compiled=compiled)
        after.append(simulation.advance(simulation.init(), range(37))[0])
    assert_close(after[0], after[1], rtol=0, atol=1e-12)
    is_linear = layers in ("l2", "local", "warm-up")
    assert (Simulation([run]).rounds.compiled_rounds is not None) == is_linear


@pytest.mark.parametrize("name", TURNED)
def test_every_method_steps_along_one_direction_a_round(name: str) -> None:
    """What `direction` declares: no other step is taken, and the layer is asked once a round."""
    fields: dict[str, Any] = {"local_steps": 2} if ALGORITHMS[name].traits.local_steps else {}

    def after(**layer: Any) -> Any:
        start = torch.ones(3, dtype=torch.float64)
        algorithm = method(name, step_size=0.1, **fields, **layer)
        return final(make_run(algorithm, problem_of(), ring_of(5), x0=start), 4)

    assert torch.equal(after().x, after(clip_tracker=1e9).x)
    assert_close(
        after(clip_tracker=1e-9).x, torch.ones(5, 3, dtype=torch.float64), rtol=0, atol=1e-7
    )
    traits = ALGORITHMS[name].traits
    if (
        traits.activation == "all" and not traits.root and not traits.two_way
    ):  # trees take some rounds to stand
        assert after(adam=True).adam_left[:, 0].numpy() == pytest.approx(0.9**4)


def flat_problem(clients: int) -> Quadratic:
    """Every gradient is exactly zero, as that of a hinge loss where a batch is separated."""
    return Quadratic(torch.zeros(clients, 3, 3).double(), torch.zeros(clients, 3).double())


@pytest.mark.parametrize("layers", [{}, {"adam": True}, {"clip_tracker": 1.0}], ids=str)
@pytest.mark.parametrize("name", ["fedavg", "spod-gt", "spod-gt-memory", "mifa"])
def test_weight_decay_of_a_zero_gradient_is_that_of_any_other(
    name: str, layers: dict[str, Any]
) -> None:
    """Clients that step along trackers always decay; along their own gradients, those that took one."""
    alone = {"local_steps": 1000} if name == "fedavg" else {}
    algorithm = method(name, step_size=0.1, weight_decay=0.5, **alone, **layers)
    start = torch.ones(5, 3, dtype=torch.float64)
    run = make_run(algorithm, flat_problem(5), ring_of(5), Bernoulli(0.5, 0.5), x0=start)
    gradients = run.availability.computes(range(20)).sum(0)  # rounds 0 to 19 lead to x[20]
    steps = gradients if name == "fedavg" else np.full(5, 20)
    expected = torch.from_numpy(0.95**steps).view(5, 1).expand(5, 3)
    assert_close(final(run, 20).x, expected, rtol=1e-12, atol=0)


def test_adam_counts_steps_with_a_zero_gradient() -> None:
    algorithm = method("fedavg", step_size=0.1, adam=True)
    run = make_run(algorithm, flat_problem(5), ring_of(5), Bernoulli(0.5, 0.5))
    gradients = run.availability.computes(range(20)).sum(0)
    assert final(run, 20).adam_left[:, 0].numpy() == pytest.approx(0.9**gradients)


REFUSED = [
    (
        "relay",
        {"local_steps": 3},
        "relay+local needs its links in every round; drop local_steps, or use spod-gt-memory or dfedavg.",
    ),
    (
        "k-gt",
        {"adam": True},
        "k-gt+adam has no direction to step along; drop adam, or use spod-gt-memory.",
    ),
    (
        "extra",
        {"clip_tracker": 1.0},
        "extra+clip-tracker has no direction to step along; drop clip_tracker, or use spod-gt-memory.",
    ),
    (
        "relay",
        {"weights": "working"},
        "relay+working has weights of its own; drop weights, or use spod-gt-memory.",
    ),
    (
        "dsgd",
        {"weights": "working"},
        "dsgd+working has weights of its own; drop weights, or use spod-gt-memory.",
    ),
    *(
        (
            name,
            {"weights": "working"},
            f"{name}+working uses no links, so there are none to weigh; drop weights, or use spod-gt-memory.",
        )
        for name in ("fedavg", "mifa", "sgd")
    ),
    (
        "relay-sum",
        {"compress": "int8"},
        "relay-sum+int8 does not push trackers and pull models; drop compress, or use spod-gt-memory.",
    ),
    (
        "relay-sum",
        {"compress": "top-k"},
        "relay-sum+top-k does not push trackers and pull models; drop compress, or use spod-gt-memory.",
    ),
    (
        "gossip",
        {"l2": 0.1},
        "gossip+l2 needs gradients to filter, but the method takes none; drop l2.",
    ),
    (
        "gt-dsgd",
        {"local_steps": 3},
        "gt-dsgd+local needs its links in every round; drop local_steps, or use spod-gt-memory or dfedavg.",
    ),
]


@pytest.mark.parametrize(("name", "fields", "message"), REFUSED, ids=str)
def test_a_layer_that_does_not_fit_is_refused(
    name: str, fields: dict[str, Any], message: str
) -> None:
    network = ring_of(4)
    with pytest.raises(Incompatible) as caught:
        check(method(name, **fields), network, Always().draw(network, 0))
    assert str(caught.value) == message


@pytest.mark.parametrize("layers", BOTH)
def test_a_description_builds_the_layers_again(layers: str) -> None:
    built = method("spod-gt-memory", **BOTH[layers])
    again = method(**describe(built))
    assert again == built
    assert describe(again) == describe(built)
    off = {key: layer.off for key, layer in LAYERS.items()}
    assert method(built, **off, step_size=0.3) == method("spod-gt-memory", step_size=0.3)


def test_other_weights_are_the_networks() -> None:
    with pytest.raises(
        Exception, match=r"weights of ab must be 'working' .*, got 'degree'; use weights='working'"
    ):
        method("ab", weights="degree")


def test_layers_are_given_in_a_config_for_every_method() -> None:
    table = {
        "methods": ["spod-gt", {"name": "dsgd", "momentum": 0.5}],
        "layers": {"momentum": 0.9, "l2": 0.1},
    }
    experiment = Experiment.parse({"run": table})
    assert [describe(each)["momentum"] for each in experiment.methods] == [0.9, 0.5]
    assert Experiment.parse(experiment.to_dict()) == experiment
    assert "layers" not in Experiment().to_dict()["run"]
    swept = experiment.override({"run.layers.l2": 0.2})
    assert [describe(each)["l2"] for each in swept.methods] == [0.2, 0.2]
    with pytest.raises(Exception, match=r"adm=True is not a layer; did you mean 'adam'\?"):
        Experiment.parse({"run": {"layers": {"adm": True}}})


def test_traits_say_what_a_layer_adds() -> None:
    adam = method("spod-gt-memory", adam={"amsgrad": True})
    base = ALGORITHMS["spod-gt-memory"].traits
    fields = (*base.state, "adam_m", "adam_v", "adam_left", "adam_top")
    assert adam.traits == replace(base, state=fields, compiled=None, rule=None)
    assert method("spod-gt-memory", **ALL).name == (
        "spod-gt-memory+local+cosine+clip-tracker+adam+rmsprop+weight-decay+momentum+l2+clip-gradient"
    )


def test_adam_steps_at_the_root_of_a_relay() -> None:
    """Once the trees stand only the root's moments move, and with the largest v the limit stays exact."""
    problem, network = problem_of(), Network.directed_geometric(5, seed=3)
    algorithm = method("relay", step_size=0.01, adam={"amsgrad": True, "beta2": 0.9})
    kept = states([make_run(algorithm, problem, network, Bernoulli(0.8, 0.8))], 1500)
    moved = kept[1000].adam_left[:, 0] != kept[1500].adam_left[:, 0]
    assert int(moved.sum()) == 1
    assert_close(kept[-1].x, problem.optimum().double().expand(5, 3), rtol=0, atol=1e-10)
