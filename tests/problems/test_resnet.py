"""ResNet-18, running statistics that travel with models and never with gradients, and augmentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import spodgt
from spodgt import Learning, Network, Trace, rng
from spodgt.algorithms import ALGORITHMS
from spodgt.errors import InvalidData, InvalidInput
from spodgt.network import graphs
from spodgt.participation import Always, Bernoulli, Participation
from spodgt.problems import classification
from spodgt.problems.data import IID, load
from spodgt.problems.data.augmentation import PADDING, Windows, crop_and_flip
from spodgt.problems.data.evaluation_data import EvaluationData
from spodgt.problems.data.samples import ClientIndices, Samples
from spodgt.problems.gradients import flatten
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.losses import cross_entropy
from spodgt.problems.minibatch_gradients import sample_without_replacement
from spodgt.problems.models import MODELS
from spodgt.record.metrics import RunSnapshot, measure
from spodgt.runtimes.loop import begin
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Run, RunState, with_average
from spodgt.types import Minibatches

resnet18 = MODELS["resnet18"].build
CLIENTS, CLASSES = 4, 3


# --- the network ---------------------------------------------------------------------------------------
def test_the_usual_size_has_eleven_million_parameters() -> None:
    with torch.device("meta"):
        nets = [
            nn.Sequential(*list(resnet18((3, 32, 32), 10, norm=norm))[1:])
            for norm in ("group", "batch")
        ]
    for net in nets:
        assert (
            sum(p.numel() for p in net.parameters()) == 11_173_962
        )  # as in the literature: 11.17 million
    running = [b for b in nets[1].buffers() if b.is_floating_point()]
    assert sum(b.numel() for b in running) == 2 * 4800


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (4, 20, 24)])
def test_any_small_image_fits(shape: tuple[int, ...]) -> None:
    net = resnet18(shape, 7, width=2)
    assert net(torch.rand(2, *shape)).shape == (2, 7)


def test_stages_halve_the_image_and_double_the_channels() -> None:
    net, x, shapes = resnet18((3, 32, 32), 10, width=4), torch.rand(1, 3, 32, 32), []
    for part in net:
        x = part(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes[1:4] == [(4, 32, 32)] * 3  # the stem: no stride, no pooling
    assert shapes[4:12] == [
        shape
        for stage in ((4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4))
        for shape in (stage, stage)
    ]


def test_group_norm_is_the_default_and_keeps_no_statistics() -> None:
    kinds = {type(part) for part in resnet18((3, 32, 32), 10, width=32).modules()}
    assert nn.GroupNorm in kinds
    assert nn.BatchNorm2d not in kinds
    problem = classification("fashion-mnist-small", "resnet18", clients=2, width=2)
    assert problem.statistics(0).shape == (2, 0)
    batch = classification("fashion-mnist-small", "resnet18", clients=2, width=2, norm="batch")
    assert batch.parameters == problem.parameters
    assert batch.statistics(0).shape == (2, 2 * 4800 * 2 // 64)


def test_colours_are_standardised_inside_the_model() -> None:
    pixels = torch.rand(2, 3, 4, 4)
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    expected = (pixels - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    assert_close(resnet18((3, 4, 4), 2, width=2)[0](pixels), expected)
    assert_close(resnet18((1, 4, 4), 2, width=2)[0](pixels[:, :1]), 4 * pixels[:, :1] - 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width of resnet18 must be a whole number of at least 1, got 0; use 64"),
        ({"width": True}, "width of resnet18"),
        (
            {"norm": "layer"},
            "norm of resnet18 must be 'group' or 'batch', got 'layer'; use 'group'",
        ),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        resnet18((3, 32, 32), 10, **options)
    with pytest.raises(InvalidInput, match="needs images"):
        resnet18((784,), 10)


# --- running statistics ----------------------------------------------------------------------------------
def batch_norm_problem(**options: Any) -> Learning:
    """Three clouds of points, and a network with BatchNorm that tells them apart."""
    draws = torch.Generator().manual_seed(5)
    targets = torch.randint(CLASSES, (CLIENTS + 1, 24), generator=draws)
    centres = 6 * torch.randn(CLASSES, 6, generator=draws)
    inputs = 5 + centres[targets] + torch.randn(CLIENTS + 1, 24, 6, generator=draws)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    data = list(zip(inputs[:-1], targets[:-1], strict=True))
    settings: dict[str, Any] = {"batch_size": 8, "buffers": "pull", "init": "fresh"} | options
    return Learning(module, cross_entropy, data, (inputs[-1], targets[-1]), **settings)


def two_way() -> Network:
    """All but one pair are neighbours; with a symmetric W, as some methods need it."""
    adjacency = ~np.eye(CLIENTS, dtype=bool)
    adjacency[1, 3] = adjacency[3, 1] = False
    return Network.from_adjacency(adjacency)


def simulate(
    name: str,
    rounds: int,
    participation: Participation | None = None,
    *,
    statistics: Any = None,
    **fields: Any,
) -> Iterator[tuple[Any, Tensor, Simulation]]:
    """State, statistics and world after every round."""
    network, problem = two_way(), batch_norm_problem()
    if ALGORITHMS[name].traits.steps != "none":
        fields = {"step_size": 0.1} | fields
    algorithm = spodgt.method(name, **fields)
    availability = (participation or Always()).draw(network, 0)
    fitted = algorithm.fit(availability)
    uses = fitted.adapt_availability(availability, network)
    run = Run(0, fitted, fitted.with_mixing_weights(network), uses, problem, problem.start(0))
    snapshot = begin(Simulation([run], dtype=torch.float64, statistics=statistics))
    world: Any = snapshot.world
    state = snapshot.state
    yield state, world.statistics.values, world
    for k in range(1, rounds + 1):
        state = world.held.algorithm.step(state, world.rounds.start(k))
        yield type(state)(*(tensor.clone() for tensor in state)), world.statistics.values, world


@pytest.mark.parametrize("name", ALGORITHMS)
def test_statistics_never_enter_a_state(name: str) -> None:
    """Whatever they start from, every tensor of every method is the same, and variances stay above 0."""
    odd = torch.full((CLIENTS, 16), 7.0, dtype=torch.float64)
    for (state, statistics, world), (other, _, _) in zip(
        simulate(name, 6), simulate(name, 6, statistics=odd), strict=True
    ):
        assert state.x.shape == (CLIENTS, world.batch.problem.parameters)
        for ours, theirs in zip(state, other, strict=True):
            assert torch.equal(ours, theirs)
        assert torch.isfinite(statistics).all()
        assert (statistics[:, 8:] > 0).all()


def test_trackers_still_sum_to_gradients() -> None:
    for state, _, _ in simulate("spod-gt", 12, Bernoulli(0.6, 0.5)):
        assert_close(state.y.sum(0), state.g.sum(0))


def test_a_complete_graph_brings_statistics_to_consensus_in_one_pull() -> None:
    (_, statistics, world), *_ = list(simulate("spod-gt", 0))
    complete = dataclasses.replace(
        world.batch.live[0], network=Network.draw(graphs.Complete(CLIENTS))
    )
    availability = Always().draw(complete.network, 0)
    world = Simulation(
        [dataclasses.replace(complete, availability=availability)],
        dtype=torch.float64,
        statistics=statistics,
    )
    assert (statistics.std(0) > 0).any()
    world.rounds.start(1).pull(world.held.initial_models())
    assert_close(world.statistics.values, statistics.mean(0).expand_as(statistics))


def test_statistics_of_idle_clients_reach_consensus_within_their_range() -> None:
    rounds = 60
    computes = np.zeros((rounds + 1, CLIENTS), bool)
    computes[0] = True
    links = np.ones((rounds, two_way().links), bool)
    (_, first, _), *_, (_, last, _) = simulate("spod-gt", rounds, Trace(computes, links))
    assert_close(last, last[:1].expand_as(last), rtol=1e-6, atol=1e-8)
    assert (last >= first.amin(0)).all()
    assert (last <= first.amax(0)).all()


def test_an_idle_client_changes_its_statistics_by_pulling_only() -> None:
    computes = np.array([[True] * CLIENTS, [True, True, False, True], [True, False, False, True]])
    network = two_way()
    links = np.stack([network.receivers != 2, np.ones(network.links, bool)])
    before, alone, pulled = (
        statistics for _, statistics, _ in simulate("spod-gt", 2, Trace(computes, links))
    )
    assert torch.equal(alone[2], before[2])  # nothing came in
    assert not torch.equal(alone[0], before[0])
    A = torch.from_numpy(network.A)
    assert_close(pulled[[1, 2]], (A @ alone)[[1, 2]])  # both idle, all links at work
    assert not torch.allclose(pulled[0], (A @ alone)[0])


@pytest.mark.parametrize(
    ("name", "weights"),
    [("dsgd", "W"), ("sgp", "A"), ("push-pull", "A"), ("frost", "A"), ("diging", "W")],
)
def test_the_receiver_averages_once_a_round_whatever_the_method_mixes(
    name: str, weights: str
) -> None:
    (_, before, world), *_ = list(simulate(name, 0))
    round = world.rounds.start(1)
    round.statistics_updated = True  # look at the exchange alone
    state = world.held.algorithm.init(world.held.initial_models(), world.rounds.start(0))
    before = world.statistics.values
    world.held.algorithm.step(state, round)
    matrix = torch.from_numpy(getattr(world.batch.live[0].network, weights))
    assert_close(world.statistics.values, matrix @ before)


@pytest.mark.parametrize("name", ["fedavg", "sgd"])
def test_a_server_averages_statistics_too(name: str) -> None:
    *_, (state, statistics, _) = simulate(name, 5)
    if name == "sgd":
        assert_close(statistics, statistics[:1].expand_as(statistics))
    assert state.x.shape[1] == batch_norm_problem().parameters


def test_statistics_count_as_bytes_on_the_way() -> None:
    *_, (_, _, world) = simulate("spod-gt", 3)
    width = 2 * world.batch.problem.parameters + 16
    assert (world.tally().bytes == 3 * 8 * width).all()
    assert (world.tally().messages == 3).all()


def test_runs_side_by_side_keep_their_statistics_apart() -> None:
    def world(seeds: list[int]) -> Simulation:
        network, problem = two_way(), batch_norm_problem()
        algorithm = spodgt.method("spod-gt", step_size=0.1)
        draw = Bernoulli(0.5, 0.5)
        return Simulation(
            [
                Run(s, algorithm, network, draw.draw(network, s), problem, problem.start(s))
                for s in seeds
            ],
            dtype=torch.float64,
        )

    def run(world: Simulation, rounds: range, state: Any) -> Any:
        for k in rounds:
            state = world.held.algorithm.step(state, world.rounds.start(k))
        return state

    both, alone = world([1, 2]), world([2])
    state = run(both, range(1, 4), both.init())
    kept, state = both.select_runs(np.array([False, True]), state)
    state = run(kept, range(4, 7), state)
    other = run(alone, range(1, 7), alone.init())
    assert_close(kept.statistics.values, alone.statistics.values)
    assert_close(state.x, other.x)


def test_a_network_with_batch_norm_learns_and_its_average_does_too() -> None:
    result = spodgt.train(
        spodgt.SpodGT(step_size=0.1),
        batch_norm_problem(),
        two_way(),
        Bernoulli(0.7, 0.7),
        rounds=150,
        every=150,
    )
    last = result.frame.iloc[-1]
    assert last["accuracy"] > 0.9
    assert last["accuracy_average"] > 0.9  # it is evaluated with the average of the statistics
    assert last["loss"] < 0.5 * result.frame.iloc[0]["loss"]


def test_a_client_is_measured_with_its_own_statistics_and_the_average_with_their_average() -> None:
    *_, (state, statistics, world) = simulate("spod-gt", 5)
    problem: Any = world.batch.problem
    inputs, targets = problem.data.test.samples.take(slice(None), torch.float64)

    def by_hand(x: Tensor, running: Tensor) -> tuple[float, float]:
        module = problem.model.module.double().eval()
        nn.utils.vector_to_parameters(x, module.parameters())
        module[1].running_mean, module[1].running_var = running[:8], running[8:]
        with torch.no_grad():
            outputs = module(inputs)
        return float(cross_entropy(outputs, targets)), float(
            (outputs.argmax(1) == targets).double().mean()
        )

    losses = [by_hand(*model)[0] for model in zip(state.x, statistics, strict=True)]

    def measured(statistics: Tensor) -> dict[str, float]:
        whole = RunState(state, statistics)
        quality = problem.evaluate(with_average(whole))
        return measure(RunSnapshot.take(problem, state._fields, whole, [quality], gradient=False))

    row = measured(statistics)
    assert row["loss"] == pytest.approx(np.mean(losses))
    assert row["accuracy_average"] == by_hand(state.x.mean(0), statistics.mean(0))[1]
    assert row["loss"] != pytest.approx(measured(0 * statistics + 1)["loss"])


def test_a_checkpoint_holds_the_statistics(tmp_path: Path) -> None:
    def train(out: Path, **options: Any) -> Any:
        method = spodgt.SpodGT(step_size=0.1)
        return spodgt.train(
            method,
            batch_norm_problem(),
            two_way(),
            Bernoulli(0.7, 0.7),
            rounds=9,
            every=3,
            out=out,
            **options,
        )

    def interrupt(now: Any) -> None:
        if now.k >= 5:
            raise KeyboardInterrupt

    whole = train(tmp_path / "whole").frame
    broken = train(tmp_path / "broken", checkpoint_every=0, progress=interrupt)
    assert not broken.complete
    resumed = train(tmp_path / "broken", resume=True).frame
    assert resumed[["round", "loss", "accuracy"]].equals(whole[["round", "loss", "accuracy"]])


# --- augmentation ----------------------------------------------------------------------------------------
def windows(k: int = 3, clients: int = 5, batch: int = 7, seed: int = 0) -> Windows:
    samples = np.broadcast_to(np.arange(batch), (clients, batch))
    return Windows.draw(np.repeat(rng.key(seed, "batch"), clients), np.arange(clients), k, samples)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 9)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_crops_and_mirror_images_are_those_of_a_slow_loop(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    images = torch.randint(256, (5, 7, *shape)).to(dtype)
    chosen = windows()
    out = crop_and_flip(images, chosen)
    assert out.dtype == dtype
    _, height, width = shape
    for client in range(5):
        for sample in range(7):
            down, right, mirrored = (part[client, sample] for part in chosen)
            framed = nn.functional.pad(images[client, sample], (PADDING,) * 4)
            expected = framed[:, down : down + height, right : right + width]
            assert torch.equal(out[client, sample], expected.flip(-1) if mirrored else expected)


def test_no_window_moved_is_the_picture_itself() -> None:
    images = torch.randint(256, (2, 3, 3, 6, 6), dtype=torch.uint8)
    still = torch.full((2, 3), PADDING)
    assert torch.equal(crop_and_flip(images, Windows(still, still, still > PADDING)), images)
    assert torch.equal(
        crop_and_flip(images, Windows(still, still, still == PADDING)), images.flip(-1)
    )


def test_windows_are_a_function_of_seed_round_client_and_sample() -> None:
    first, again = windows(), windows()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (windows(k=4), windows(seed=1)):
        assert not torch.equal(first.top, other.top)
    key = np.repeat(rng.key(0, "batch"), 1)
    alone = Windows.draw(key, np.array([2]), 3, np.array([[5, 1]]))  # other company, another order
    for part, whole in zip(alone, first, strict=True):
        assert torch.equal(part[0], whole[2, [5, 1]])


def test_every_window_is_equally_likely() -> None:
    many = windows(clients=100, batch=200)
    expected = many.top.numel() / (2 * PADDING + 1)
    for part in (many.top, many.left):
        counts = torch.bincount(part.flatten(), minlength=2 * PADDING + 1)
        assert len(counts) == 2 * PADDING + 1
        assert ((counts - expected).abs() < 5 * expected**0.5).all()
    assert abs(float(many.flipped.double().mean()) - 0.5) < 0.02
    assert (
        abs(float(torch.corrcoef(torch.stack([p.flatten().double() for p in many]))[0, 1:].max()))
        < 0.03
    )


def test_training_is_on_augmented_pictures_and_nothing_else_is() -> None:
    images, targets = (
        torch.randint(256, (2, 6, 1, 8, 8), dtype=torch.uint8),
        torch.arange(6).expand(2, 6) % 3,
    )
    data = list(zip(images, targets, strict=True))
    for model in ("logistic", "cnn"):  # the first has a compiled pass of its own
        recipe = MODELS[model]
        module = recipe.build((1, 8, 8), 3)
        plain, augmented = (
            Learning(module, recipe.loss, data, data[0], batch_size=4, augment=flag)
            for flag in (False, True)
        )
        x, rows, keys = plain.start(0).clone(), np.arange(2), np.repeat(rng.key(0, "batch"), 2)
        grads = [
            problem.grad(x, Minibatches(rows, keys, rows, 1)) for problem in (plain, augmented)
        ]
        assert not torch.allclose(grads[0], grads[1])
        for ours, theirs in zip(plain.full(x, rows), augmented.full(x, rows), strict=True):
            assert_close(ours, theirs)
        assert_close(plain.evaluate(x).loss, augmented.evaluate(x).loss)
        assert_close(
            grads[1][1:], augmented.grad(x[1:], Minibatches(rows[1:], keys[1:], rows[1:], 1))
        )


def test_only_images_are_augmented() -> None:
    data = [(torch.rand(4, 10), torch.tensor([0, 1, 0, 1]))]
    with pytest.raises(
        InvalidInput, match=r"needs images .* got inputs of shape \(10,\); use augment=False"
    ):
        Learning(nn.Linear(10, 2), cross_entropy, data, augment=True)


# --- the real thing --------------------------------------------------------------------------------------
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnet_learns_cifar(norm: str) -> None:
    try:
        load("cifar-10")
    except InvalidData as error:
        pytest.skip(str(error))
    problem = classification("cifar-10", "resnet18", clients=2, partition=IID(), width=8, norm=norm)
    assert isinstance(problem.model.engine, LoopEngine)
    few = ClientIndices(np.arange(64), np.array([0, 32, 64]))
    seen = EvaluationData(Samples(problem.samples.inputs[:64], problem.samples.targets[:64]))
    few_data = dataclasses.replace(problem.data, client_indices=few, partition=None, test=seen)
    problem = problem._with(few_data)  # a few images, which the model can memorise
    method, network = spodgt.SpodGT(step_size=0.05), Network.draw(graphs.Complete(2))
    losses = spodgt.train(method, problem, network, rounds=30, every=30, gradient_norm=False).frame[
        "loss"
    ]
    assert losses.iloc[-1] < 0.85 * losses.iloc[0]


def test_resnet_gradients_are_plain_autograd() -> None:
    torch.manual_seed(0)
    problem = classification("fashion-mnist-small", "resnet18", clients=3, width=4, batch_size=8)
    rows, keys = np.arange(3), np.repeat(rng.key(0, "batch"), 3)
    x = problem.start(0).double()  # single precision flips a ReLU now and then
    x = x + 0.01 * torch.randn_like(x)
    g = problem.grad(x, Minibatches(rows, keys, rows, 2))
    drawn = sample_without_replacement(keys, rows, 2, problem.client_indices.sizes, 8)
    for client in rows:
        module = resnet18((1, 28, 28), 10, width=4).double()
        nn.utils.vector_to_parameters(x[client], module.parameters())
        inputs, targets = problem.samples.take(
            torch.from_numpy(problem.client_indices[client][drawn[client]]), x.dtype
        )
        nn.functional.cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        expected = flatten(p.grad for p in module.parameters() if p.grad is not None)
        assert_close(g[client], expected)
