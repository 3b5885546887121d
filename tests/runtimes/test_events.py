"""Virtual time: equal to rounds where nothing takes time, exact and conserving where it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import spodgt
from spodgt import report
from spodgt.algorithms import ALGORITHMS
from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.compose.running_mean import RunningMean
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.experiment.checks import is_portable
from spodgt.network import Network
from spodgt.participation import Always, Bernoulli, Participation
from spodgt.problems import Quadratic
from spodgt.record.record import Record
from spodgt.runtimes.events.compiled_tracking import CompiledTracking
from spodgt.runtimes.events.durations import NANO, Time
from spodgt.runtimes.events.executor import PlainSteps
from spodgt.runtimes.events.world import EventWorld, check_run
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Run, World
from tests.helpers import KINDS, build, make_run
from tests.strategies import SEEDS, networks


def runs_here(name: str) -> bool:
    traits = ALGORITHMS[name].traits
    return (
        traits.mixing not in ("server",)
        and traits.activation == "all"
        and not traits.root
        and not traits.two_way
    )


HERE = [name for name in ALGORITHMS if runs_here(name)]
FREE = [name for name in HERE if not ALGORITHMS[name].traits.waits]
SLOW = {"kind": "lognormal", "median": 0.1, "sigma": 0.8}
LATE = {"kind": "exponential", "mean": 0.2}


def run_of(
    algorithm: Algorithm, participation: Participation, *, seed: int = 0, noise: float = 0.0
) -> Run:
    network = Network.random_geometric(6, 0.6, seed=1)
    problem = Quadratic.random(6, 3, seed=1, noise=noise, condition=4)
    return make_run(algorithm, problem, network, participation, seed=seed)


def trajectory(world: World, ticks: int) -> list[Any]:
    state: Any = world.init()
    kept = [type(state)(*(tensor.clone() for tensor in state))]
    for k in range(1, ticks + 1):
        world.costs(k)
        state = world.advance(state, range(k, k + 1))
        kept.append(type(state)(*(tensor.clone() for tensor in state)))
    return kept


def sporadic(name: str) -> Participation:
    traits = build(name).traits
    return Bernoulli(
        0.6 if traits.sporadic_clients == "yes" else 1.0,
        0.7 if traits.sporadic_links == "yes" else 1.0,
    )


# --- where nothing takes time ------------------------------------------------------------------------
@pytest.mark.parametrize("name", HERE)
def test_equal_clients_and_instant_messages_are_rounds(name: str) -> None:
    """Every field of the state, the delay and the tally; with steps that differ between clients or rounds."""
    fields: dict[str, Any] = {"lazy": True} if name == "d2" else {}
    if ALGORITHMS[name].traits.local_steps:
        fields["local_steps"] = 3
    algorithm = build(name, step_size=0.05, **fields)
    # who remembers an older model uses it where a link did not work, which rounds cannot
    participation = Always() if ALGORITHMS[name].traits.uses_stale_models else sporadic(name)
    runs = [run_of(algorithm, participation, seed=seed, noise=0.1) for seed in (0, 3)]
    rounds = Simulation(runs, dtype=torch.float64, compiled=False)
    virtual = EventWorld(runs, Time(compute=0.1), dtype=torch.float64)
    for ours, theirs in zip(trajectory(virtual, 40), trajectory(rounds, 40), strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            assert_close(mine, other, rtol=0, atol=1e-12)
    costs = rounds.costs(1)[:16]
    again = EventWorld(runs, Time(compute=0.1), dtype=torch.float64)
    assert_close(torch.from_numpy(again.costs(1)[:16]), torch.from_numpy(costs), rtol=0, atol=1e-12)
    for mine, other in zip(virtual.tally(), rounds.tally(), strict=True):
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("layers", [
    {"step_size": {"schedule": "inverse-sqrt", "start": 0.1}},
    {"step_size": [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]},
    {"momentum": 0.5}, {"adam": True}, {"clip_tracker": 1.0}, {"local_steps": 3},
])  # fmt: skip
@pytest.mark.parametrize("time", [Time(compute=0.1), Time(compute=SLOW, latency=LATE)])
def test_layers_and_steps_of_single_clients(layers: dict[str, Any], time: Time) -> None:
    run = run_of(spodgt.method("spod-gt-memory", **layers), Bernoulli(0.6, 0.7))
    states = trajectory(EventWorld([run], time, dtype=torch.float64), 40)
    assert torch.isfinite(states[-1].x).all()
    if time.latency == 0.0:
        rounds = trajectory(Simulation([run], dtype=torch.float64, compiled=False), 40)
        assert_close(states[-1].x, rounds[-1].x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("time", [Time(compute=0.1), Time(compute=SLOW, latency=LATE)])
def test_a_running_mean_is_of_the_clients_own_rounds(time: Time) -> None:
    """Clients are in different rounds: each one's mean is that of its own last models."""
    layer = spodgt.method("spod-gt-memory", step_size=0.05, running_mean=0.3)
    run = run_of(layer, Bernoulli(0.6, 0.7))
    world = EventWorld([run], time, dtype=torch.float64)
    (engine,), state = world.executors, cast(Any, world.init())
    assert isinstance(layer, RunningMean)
    models = [[row.clone()] for row in state.x]
    for k in range(1, 41):
        engine.costs(k)
        for batch in engine.ticks[k - engine.first_tick].batches:
            engine.compute(state, [batch])
            for i in batch.clients:
                models[i].append(state.x[i].clone())
    assert (len({len(own) for own in models}) > 1) == (time.latency != 0.0)
    for own, mean in zip(models, state.mean, strict=True):
        first, _ = layer.first_rounds(len(own) - 1)
        assert_close(mean, torch.stack(own[first:]).mean(0), rtol=0, atol=1e-12)
    if time.latency == 0.0:
        rounds = trajectory(Simulation([run], dtype=torch.float64, compiled=False), 40)
        assert_close(state.mean, rounds[-1].mean, rtol=0, atol=1e-12)


SLOW_KINDS = ("int8", "rand-k")


@pytest.mark.parametrize("kind", KINDS)
def test_short_messages_are_those_of_rounds(kind: str) -> None:
    run = run_of(
        spodgt.method("spod-gt-memory", step_size=0.05, compress=KINDS[kind]),
        Bernoulli(0.6, 0.7),
        noise=0.1,
    )
    worlds: list[World] = [
        EventWorld([run], Time(compute=0.1), dtype=torch.float64),
        Simulation([run], dtype=torch.float64),
    ]
    for ours, theirs in zip(*(trajectory(world, 40) for world in worlds), strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            assert_close(mine, other, rtol=0, atol=1e-12)
    for mine, other in zip(*(world.tally() for world in worlds), strict=True):
        assert np.array_equal(mine, other)
    tally = worlds[0].tally()
    assert (tally.bytes == tally.messages * run.algorithm.message(3, 8)).all()  # the time they take


# --- where it does -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "kind",
    [
        *(kind for kind in KINDS if kind not in SLOW_KINDS),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW_KINDS),
    ],
)
def test_short_messages_reach_the_optimum_with_delays(kind: str) -> None:
    algorithm = spodgt.method("spod-gt-memory", step_size=0.1, compress=KINDS[kind])
    run = run_of(algorithm, Bernoulli(0.6, 0.7))
    world = EventWorld(
        [run], Time(compute=SLOW, latency=LATE, bandwidth=500.0), dtype=torch.float64
    )
    state = world.advance(world.init(), range(1, 3001))
    assert isinstance(run.problem, Quadratic)
    assert float((state[0] - run.problem.optimum()).abs().max()) < 1e-8


@given(
    network=networks(least=2),
    seed=SEEDS,
    name=st.sampled_from([name for name in FREE if ALGORITHMS[name].traits.tracking]),
    sigma=st.floats(0, 2),
    latency=st.sampled_from([0.0, 0.05, 3.0, LATE, {"kind": "uniform", "low": 0.0, "high": 2.0}]),
    bandwidth=st.sampled_from([None, 50.0, 500.0]),
    kind=st.sampled_from([None, *KINDS.values()]),
)
@settings(deadline=None, max_examples=60)
def test_no_mass_is_lost_at_any_event(
    network: Network,
    seed: int,
    name: str,
    sigma: float,
    latency: Any,
    bandwidth: float | None,
    kind: Any,
) -> None:
    """Σy + what is on its way = Σg, after every single batch of events; what is kept back is in y."""
    problem = Quadratic.random(network.clients, 2, seed=seed, noise=1.0)
    if kind is None or ALGORITHMS[name].traits.mixing != "pull+push":
        method = build(name, step_size=0.02)
    else:
        method = spodgt.method(name, step_size=0.02, compress=kind)
    run = make_run(method, problem, network, sporadic(name), seed=seed)
    compute = {"kind": "lognormal", "median": 0.1, "sigma": sigma}
    world = EventWorld([run], Time(compute, latency, bandwidth, tick=0.1), dtype=torch.float64)
    (engine,), state = world.executors, world.init()
    for k in range(1, 25):
        engine.costs(k)
        for batch in engine.ticks[k - engine.first_tick].batches:
            assert len(set(batch.clients)) == len(batch.clients)
            engine.compute(state, [batch])
            flight = engine.in_flight_mass()
            mass = state[1].sum(0) + (0 if flight is None else flight)
            assert_close(
                mass, state[2].sum(0), rtol=0, atol=1e-12 * max(1.0, float(state[1].abs().sum()))
            )


MIXED = Time([0.1, 0.2, 0.3, 0.1, 0.5, 0.1], 0.15, bandwidth=500.0)


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("spod-gt-memory", Time(compute=SLOW, latency=LATE)),
        ("spod-gt-memory", MIXED),
        ("r-fast", MIXED),
        pytest.param("spod-gt-memory", Time(compute=SLOW), marks=pytest.mark.slow),
        pytest.param("r-fast", Time(compute=SLOW), marks=pytest.mark.slow),
        pytest.param("r-fast", Time(compute=SLOW, latency=LATE), marks=pytest.mark.slow),
    ],
)
def test_exact_methods_reach_the_optimum_with_delays(name: str, time: Time) -> None:
    step = (
        0.3 if build(name).traits.uses_stale_models else 0.1
    )  # it steps along what stays of its tracker only
    run = run_of(build(name, step_size=step), sporadic(name))
    world = EventWorld([run], time, dtype=torch.float64)
    state = world.init()
    for k in range(1, 2001):
        world.costs(k)
        state = world.advance(state, range(k, k + 1))
    assert isinstance(run.problem, Quadratic)
    assert float((state[0] - run.problem.optimum()).abs().max()) < 1e-8


@pytest.mark.parametrize(
    "name", [n for n in HERE if ALGORITHMS[n].traits.compiled == "gradient-tracking"]
)
@pytest.mark.parametrize(
    "time", [Time(compute=0.1), Time(compute=SLOW, latency=LATE, bandwidth=500.0)]
)
def test_compiled_turns_are_the_methods_own(name: str, time: Time) -> None:
    run = run_of(build(name, step_size=0.05), sporadic(name), noise=0.1)
    worlds = [
        EventWorld([run], time, dtype=torch.float64, compiled=compiled)
        for compiled in (True, False)
    ]
    ours, theirs = (trajectory(world, 60) for world in worlds)
    assert isinstance(worlds[0].executors[0].computation, CompiledTracking)
    assert isinstance(worlds[1].executors[0].computation, PlainSteps)
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert_close(a, b, rtol=0, atol=1e-12)
    for a, b in zip(worlds[0].tally(), worlds[1].tally(), strict=True):
        assert np.array_equal(a, b)
    assert_close(
        worlds[0].executors[0].in_flight_mass(),
        worlds[1].executors[0].in_flight_mass(),
        rtol=0,
        atol=1e-12,
    )


def test_compiled_gradients_of_a_linear_model() -> None:
    """Clients are in different rounds, so their mini-batches are drawn by shifted keys."""
    problem = spodgt.problems.fashion_mnist_svm(clients=3).draw(0)
    run = Run.of(
        Experiment.of("spod-gt-memory", problem, Network.ring(3), rounds=1).draw(0),
        build("spod-gt-memory"),
    )
    worlds = [EventWorld([run], Time(SLOW, LATE), compiled=compiled) for compiled in (True, False)]
    ours, theirs = (trajectory(world, 12)[-1] for world in worlds)
    computation = worlds[0].executors[0].computation
    assert isinstance(computation, CompiledTracking)
    assert computation.linear_data is not None
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_who_waits_takes_as_long_as_the_slowest() -> None:
    """A round of dsgd ends when the slowest gradient and its message have come; spod-gt waits for nobody."""
    time = Time(compute=[0.1, 0.1, 0.1, 0.1, 0.1, 1.0], latency=0.5, tick=0.1)
    waiting = EventWorld([run_of(build("dsgd"), Always())], time)
    free = EventWorld([run_of(build("spod-gt"), Always())], time)
    for world in (waiting, free):
        state = world.init()
        for k in range(1, 151):  # 15 s
            world.costs(k)
            state = world.advance(state, range(k, k + 1))
    assert waiting.tally().gradients.tolist() == [11] * 6  # round 0, and one every 1.5 s
    assert free.tally().gradients.tolist() == [151] * 5 + [16]


def test_a_busy_link_sends_the_newest_total() -> None:
    """A link of one message a second, a sender of ten: the receiver has the last but few, and all mass."""
    network, problem = Network.ring(2), Quadratic.random(2, 2)
    run = make_run(build("spod-gt-memory"), problem, network)
    size = 2 * 2 * 8  # two vectors of two float64
    world = EventWorld(
        [run], Time([0.1, 1.0], bandwidth=float(size), tick=0.1), dtype=torch.float64
    )
    (engine,), state = world.executors, world.init()
    longest = 0
    for k in range(1, 301):
        engine.costs(k)
        engine.advance(state, range(k, k + 1))
        longest = max(longest, len({message.copy for message in engine.context.pool.in_flight}))
    assert longest <= 40
    assert world.tally().messages.sum() == 300 + 30


def test_times_are_drawn_as_they_say() -> None:
    network = Network.random_geometric(6, 0.6, seed=1)
    many = range(4000)
    clock = Time({"kind": "exponential", "mean": 0.2, "least": 0.1}, LATE).draw(network, 3)
    seconds = clock.durations(many) / NANO
    assert seconds.min() >= 0.1
    assert abs(seconds.mean() - 0.3) < 0.01
    assert np.array_equal(clock.durations(range(7, 9)), clock.durations(many)[7:9])
    lognormal = Time(SLOW).draw(network, 3).durations(many) / NANO
    assert abs(np.median(lognormal) - 0.1) < 0.003
    assert abs(np.log(lognormal).std() - 0.8) < 0.02
    once = Time({**SLOW, "once": True}).draw(network, 3).durations(range(5))
    assert (once == once[0]).all()
    assert len(set(once[0].tolist())) == 6
    assert Time({"kind": "uniform", "low": 1.0, "high": 3.0}).seconds == 2.0
    assert Time([1.0, 1.0, 3.0]).seconds == pytest.approx(9 / 7)


def test_traces_are_replayed_in_a_loop(tmp_path: Path) -> None:
    network = Network.ring(3)
    (tmp_path / "c.csv").write_text("client,seconds\n0,1\n0,2\n1,3\n2,4\n2,5\n2,6\n")
    (tmp_path / "l.csv").write_text("sender,receiver,seconds\n0,1,0.1\n1,2,0.2\n2,0,0.3\n2,0,0.4\n")
    compute, latency = (
        {"kind": "trace", "path": str(tmp_path / name)} for name in ("c.csv", "l.csv")
    )
    clock = Time(compute, latency).draw(network, 0)
    assert (clock.durations(range(4)) / NANO).tolist() == [
        [1, 3, 4],
        [2, 3, 5],
        [1, 3, 6],
        [2, 3, 4],
    ]
    order = [network.senders.tolist().index(sender) for sender in (0, 1, 2)]
    assert (clock.latencies(range(2))[:, order] / NANO).tolist() == [
        [0.1, 0.2, 0.3],
        [0.1, 0.2, 0.4],
    ]
    with pytest.raises(InvalidInput, match="has no row of client 3"):
        Time({"kind": "trace", "path": str(tmp_path / "c.csv")}).draw(Network.ring(4), 0)


# --- batches, restarts, records ----------------------------------------------------------------------
TIMES: dict[str, Any] = {"compute": SLOW, "latency": LATE}


def compared(**options: Any) -> spodgt.Result:
    problem, network = (
        Quadratic.random(5, 3, seed=2, noise=0.1),
        spodgt.graphs.RandomGeometric(5, 0.8),
    )
    given: dict[str, Any] = {
        "seeds": [0, 1, 2],
        "evaluations": 8,
        "time": Time(**TIMES),
        "seconds": 6.0,
    }
    return spodgt.compare(
        ["spod-gt-memory", "dsgd"], problem, network, Bernoulli(1.0, 0.8), **given | options
    )


def test_a_batch_is_its_runs_and_the_seed_decides() -> None:
    whole = compared().frame
    for seed in (0, 2):
        alone = compared(seeds=[seed]).frame
        part = whole[whole["seed"] == seed].reset_index(drop=True)
        assert alone.equals(part)


def test_seconds_and_bytes_are_recorded(tmp_path: Path) -> None:
    result = compared(out=tmp_path / "run", dtype=torch.float64)
    frame = result.frame
    assert frame["seconds"].max() == pytest.approx(6.0, abs=0.2)
    last = frame.groupby(["method", "seed"], sort=False).tail(1)
    assert last["bytes"].sum() == result.participation["bytes"].sum()
    assert frame["tracking"].dropna().max() < 1e-12
    again = Record.read(tmp_path / "run")
    assert again.config["time"]["compute"] == SLOW
    assert again.rerunnable is False  # the problem is an object of this script
    page = report.write(tmp_path / "run")
    assert "virtual seconds" in page.read_text(encoding="utf-8")
    result.plot(tmp_path / "seconds.png")
    result.plot(tmp_path / "bytes.png", against="bytes")


@pytest.mark.parametrize("name", ["spod-gt-memory", "r-fast", "osgp", "ad-psgd", "dsgd"])
def test_a_restart_changes_nothing(name: str, tmp_path: Path) -> None:
    """Broken off in the middle of what was planned, and extended after its end."""
    problem, network = (
        Quadratic.random(5, 3, seed=2, noise=0.1),
        spodgt.graphs.RandomGeometric(5, 0.8),
    )

    class Enough(Exception):
        pass

    def train(folder: str, ticks: int, **options: Any) -> Any:
        return spodgt.train(
            name, problem, network, sporadic(name), rounds=ticks, seeds=[0, 1], every=1,
            time=Time(**TIMES), out=tmp_path / folder, checkpoint_every=0.0, **options,
        ).frame  # fmt: skip

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 21:
            raise Enough

    whole = train("whole", 36)
    with pytest.raises(Enough):
        train("parts", 26, callbacks=[stop])
    first = train("parts", 26, resume=True)
    assert first.equals(whole[whole["round"] <= 26].reset_index(drop=True))
    assert train("parts", 36, resume=True).equals(whole)


def test_runs_in_virtual_time_stop_early_and_resume(tmp_path: Path) -> None:
    """Each seed ends by itself, with the evaluations and the best models of a full run."""

    class Enough(Exception):
        pass

    def stop(row: dict[str, Any]) -> object:
        if row["method"] == "spod-gt-memory" and row["seed"] == 0 and row["round"] >= 30:
            return spodgt.STOP
        return None

    def fail(row: dict[str, Any]) -> object:
        if row["method"] == "dsgd" and row["round"] == 40:  # of seed 1, which stops there
            raise Enough
        return stop(row)

    options: dict[str, Any] = {
        "every": 5,
        "stop_when": spodgt.EarlyStopping("loss", patience=2, min_delta=0.00095),
        "keep": "best",
    }
    full = compared(every=5).frame
    result = compared(callbacks=[stop], **options)
    ends = result.frame.groupby(["method", "seed"])["round"].max()
    assert ends["spod-gt-memory"].tolist()[0] == 30
    assert ends["dsgd"].tolist() == [10, 40, 10]
    last_rounds = full.set_index(["method", "seed"]).index.map(ends.to_dict())
    expected = full[full["round"] <= last_rounds].reset_index(drop=True)
    pd.testing.assert_frame_equal(result.frame[["round", "loss"]], expected[["round", "loss"]])
    with pytest.raises(Enough):
        compared(callbacks=[fail], out=tmp_path / "run", **options)
    resumed = compared(callbacks=[stop], out=tmp_path / "run", resume=True, **options)
    pd.testing.assert_frame_equal(resumed.frame, result.frame, check_exact=True)
    assert resumed.stopped == result.stopped
    assert resumed.best_models.keys() == result.best_models.keys()
    for run, models in resumed.best_models.items():
        assert torch.equal(models, result.best_models[run])


def test_a_config_chooses_virtual_time() -> None:
    tables = {
        "time": {"compute": 0.02, "latency": {"kind": "exponential", "mean": 0.1}},
        "run": {"seconds": 2.0},
    }
    experiment = Experiment.parse(tables)
    assert experiment.max_rounds == 100
    assert Experiment.parse(experiment.to_dict()).to_dict() == experiment.to_dict()
    assert is_portable(experiment)
    slower = experiment.override({"time.compute": 0.04})
    assert slower.max_rounds == 50
    assert json.loads(json.dumps(slower.to_dict()))["time"]["latency"]["mean"] == 0.1
    assert "time" not in Experiment().to_dict()
    assert Experiment().override({"time.latency": 0.5}).time == Time(latency=0.5)


@pytest.mark.parametrize(("tables", "sentence"), [
    ({"time": {"speed": 3}}, "speed=3 is not a key of time"),
    ({"time": {"compute": 0}}, "time.compute must be numbers above 0"),
    ({"time": {"compute": "fast"}}, "time.compute must be numbers above 0 .* got 'fast'"),
    ({"time": {"compute": {"kind": "normal"}}}, "time.compute.kind='normal' is not known"),
    ({"time": {"compute": {"kind": "lognormal"}}}, "time.compute.median is missing"),
    ({"time": {"latency": {"kind": "uniform", "low": 2.0, "high": 1.0}}}, "low must be at most high=1.0"),
    ({"time": {"latency": -1.0}}, "time.latency must be numbers of at least 0"),
    ({"time": {"tick": 0.0}}, "time.tick must be above 0, got 0.0"),
    ({"time": {"power": 1.0}}, "power=1.0 is not a key of time"),
    ({"run": {"seconds": 5.0}}, "seconds=5 needs virtual time"),
])  # fmt: skip
def test_bad_times_are_one_sentence(tables: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        Experiment.parse(tables)


def test_what_virtual_time_cannot_run_is_refused() -> None:
    for name, match in (("fedavg", "needs a server"), ("gsgt", "uses pairwise activation")):
        with pytest.raises(InvalidInput, match=match):
            check_run(run_of(build(name), Always()))
    with pytest.raises(InvalidInput, match="one number or 6, one per client, got 2"):
        EventWorld([run_of(build("spod-gt"), Always())], Time([1.0, 2.0]))
