"""The distributed runtime, in real processes, held to the simulator."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spodgt.algorithms import ALGORITHMS
from spodgt.errors import Failed, InvalidInput
from spodgt.experiment.early_stopping import EarlyStopping
from spodgt.network import Network
from spodgt.network.graphs import DirectedGeometric, RandomGeometric
from spodgt.participation import Bernoulli
from spodgt.problems import Learning, Quadratic, fashion_mnist_svm
from spodgt.runtimes.distributed import process_group as distributed_group
from spodgt.runtimes.distributed.client_blocks import assign_processes
from spodgt.runtimes.distributed.process_group import Group
from spodgt.runtimes.distributed.world import DistributedWorld
from spodgt.runtimes.loop import EvaluationSchedule, Stop, begin, run_rounds
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Run, Snapshot, World
from spodgt.training import Progress, compare
from spodgt.training.stopping import STOP
from spodgt.types import Bools
from tests.distributed_pool import Pool
from tests.helpers import KINDS, build, make_run

pytestmark = pytest.mark.network
CLIENTS = 7


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


# --- what the processes do ---------------------------------------------------------------------------
def runs_of(name: str, seeds: range = range(2), **fields: Any) -> list[Run]:
    """Runs that are as sporadic as the method bears, with unequal clients."""
    traits = build(name).traits
    p = np.linspace(0.3, 1.0, CLIENTS) if traits.sporadic_clients != "no" else 1.0
    p_hat = 0.6 if traits.sporadic_links != "no" else 1.0
    recipe: Any = DirectedGeometric(CLIENTS) if traits.directed else RandomGeometric(CLIENTS, 0.6)
    problem = Quadratic.random(CLIENTS, 5, noise=0.1)
    runs = []
    for seed in seeds:
        network = Network.draw(recipe, seed=seed)
        algorithm = build(name, **({"step_size": 0.05} | fields))
        x0 = torch.from_numpy(np.random.default_rng(seed).standard_normal((CLIENTS, 5)))
        runs.append(make_run(algorithm, problem, network, Bernoulli(p, p_hat), x0=x0, seed=seed))
    return runs


def trajectory(world: World, stop: Stop) -> list[tuple[int, list[int], list[list[torch.Tensor]]]]:
    """After every round, the live runs and each field of the state, one tensor per run."""
    seen: list[Any] = []

    def observe(snapshot: Snapshot, due: Bools, last: Bools) -> Bools:
        sizes = list(snapshot.world.sizes)
        fields = [[part.clone() for part in torch.split(t, sizes)] for t in snapshot.state]
        seen.append((snapshot.k, snapshot.world.runs.tolist(), fields))
        return np.zeros(len(snapshot.world.runs), bool)

    run_rounds(begin(world), stop, EvaluationSchedule(), observe, stride=1)
    return seen


def farthest(group: Group, name: str, stop: Stop, **fields: Any) -> float:
    """The largest difference between this block and its rows in the simulator, over the whole run."""
    runs = runs_of(name, **fields)
    there = trajectory(Simulation(runs, dtype=torch.float64, compiled=False), stop)
    world = DistributedWorld(runs, group, dtype=torch.float64)
    here = trajectory(world, stop)
    owner = np.split(world.block.owner, len(runs))
    worst = 0.0
    assert [entry[:2] for entry in here] == [entry[:2] for entry in there]
    for (_, live, ours), (_, _, theirs) in zip(here, there, strict=True):
        for field, whole in zip(ours, theirs, strict=True):
            for run, block, everyone in zip(live, field, whole, strict=True):
                rows = everyone[owner[run] == group.rank]
                worst = max(worst, float(((block - rows).abs() / (1 + rows.abs())).max()))
    return worst


# --- laws --------------------------------------------------------------------------------------------
SOME = ("spod-gt", "k-gt", "frost", "gossip-push-pull", "dsgd", "sgd")
SIZES = [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 4))]


# One method of each way to mix and to activate clients; `make test-slow` runs all methods.
FAMILIES = [
    "spod-gt-memory",
    "relay",
    "relay-sum",
    "push-diging",
    "asy-sonata",
    "ad-psgd",
    "extra",
    "fedavg",
    "mifa",
    "local-gt",
]
OTHERS = [name for name in ALGORITHMS if name not in FAMILIES]
EVERY = [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", EVERY)
def test_trajectory_is_the_simulators(pool: Pool, name: str, size: int) -> None:
    """Two runs, of which one ends before the other."""
    assert max(pool(size, farthest, name, Stop(rounds=30, delay=60.0))) <= 1e-12


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SOME)
def test_any_number_of_processes(pool: Pool, name: str, size: int) -> None:
    assert max(pool(size, farthest, name, Stop(rounds=20))) <= 1e-12


@pytest.mark.parametrize(
    "fields",
    [
        {"momentum": 0.5},
        {"step_size": {"schedule": "inverse-sqrt", "start": 0.05}},
        {"step_size": np.linspace(0.01, 0.05, CLIENTS)},
        {"adam": {"amsgrad": True}, "clip_tracker": 0.5, "weight_decay": 0.1, "local_steps": 3},
        {
            "clip_gradient": 0.5,
            "l2": 0.1,
            "step_size": {"schedule": "constant", "start": 0.05, "warmup": 7},
        },
        {"weights": "working"},
        {"compress": KINDS["top-k"], "momentum": 0.5},
        *({"compress": kind} for kind in KINDS.values()),
    ],
    ids=[
        "momentum",
        "schedule",
        "per client",
        "directions",
        "gradients",
        "weights",
        "top-k and momentum",
        *KINDS,
    ],
)
def test_values_per_client_are_cut_with_the_block(pool: Pool, fields: dict[str, Any]) -> None:
    assert max(pool(3, farthest, "spod-gt", Stop(rounds=20), **fields)) <= 1e-12


def bytes_sent(group: Group, compress: str | None) -> tuple[int, int]:
    """What one process puts on the wire in some rounds, and what the tally of all says."""
    problem, network = (
        Quadratic.random(CLIENTS, 640, seed=1),
        Network.directed_geometric(CLIENTS, seed=2),
    )
    run = make_run(
        build("spod-gt-memory", compress=compress), problem, network, Bernoulli(0.6, 0.6)
    )
    world = DistributedWorld([run], group, dtype=torch.float32)
    world.advance(world.init(), range(1, 21))
    return world.messenger.bytes, int(world.tally().bytes.sum())


def test_compression_shrinks_the_wire(pool: Pool) -> None:
    whole, short = (np.array(pool(3, bytes_sent, kind)) for kind in (None, "int8"))
    for measured, full in zip(short.T, whole.T, strict=True):
        assert 0 < measured.sum() <= 0.27 * full.sum()


@given(efforts=st.lists(st.integers(0, 1000), min_size=1, max_size=40), size=st.integers(1, 8))
@settings(deadline=None)
def test_blocks_hold_everybody_and_nobody_is_idle(efforts: list[int], size: int) -> None:
    if size > len(efforts):
        with pytest.raises(InvalidInput, match="too many"):
            assign_processes(np.array(efforts), size)
        return
    owner = assign_processes(np.array(efforts), size)
    assert (np.diff(owner) >= 0).all()
    assert set(owner.tolist()) == set(range(size))


def test_blocks_are_balanced_by_effort_and_not_by_number() -> None:
    owner = assign_processes(np.array([100, 1, 1, 1, 1, 1, 95]), 2)
    loads = np.bincount(owner, [100, 1, 1, 1, 1, 1, 95])
    assert abs(loads[0] - loads[1]) <= 10
    assert np.bincount(assign_processes(np.array([300, 100, 100, 100]), 2)).tolist() == [1, 3]


# --- what is sent ------------------------------------------------------------------------------------
def sent(group: Group, name: str, rounds: int) -> dict[str, Any]:
    """What this process sent, and the bound: one vector for every active link to another process."""
    runs = runs_of(name, range(1))
    world = DistributedWorld(runs, group, dtype=torch.float64)
    bound, links, pairs = 0, 0, 0
    for k in range(1, rounds + 1):
        activity = world.batch.activity.starting_with(k)
        up = activity.links.at(k - activity.first)
        vectors = (up.pull, up.pushing) if name not in ("dsgd", "extra") else (up.pull,)
        ends = (
            world.block.owner[world.batch.links.receivers],
            world.block.owner[world.batch.links.senders],
        )
        out = (ends[1] == group.rank) & (ends[0] != group.rank)
        bound += sum(int((active & out).sum()) for active in vectors) * 5 * 8
        links += int((up.pull & out).sum())
        pairs += len(set(ends[0][(up.pull | up.pushing) & out].tolist()))
    run_rounds(
        begin(world),
        Stop(rounds=rounds),
        EvaluationSchedule(),
        lambda snapshot, due, last: np.zeros(1, bool),
    )
    messenger = world.messenger
    return {
        "bytes": messenger.bytes,
        "messages": messenger.messages,
        "bound": bound,
        "pairs": pairs,
    }


@pytest.mark.parametrize("name", ["spod-gt", "ab", "dsgd", "extra", "gossip-push-pull"])
def test_no_more_is_sent_than_active_links_need(pool: Pool, name: str) -> None:
    for one in pool(3, sent, name, 60):
        assert 0 < one["bytes"] <= 1.05 * one["bound"]
        assert one["messages"] <= one["pairs"]  # one for each pair and round


# --- sessions ----------------------------------------------------------------------------------------
def trained(group: Group, out: str | None, **options: Any) -> Any:
    """A comparison in the processes of `group`; the tables that every process gets."""
    distributed_group._joined = group
    return compared(out=out, **options)


def compared(methods: Any = ("spod-gt", "dsgd"), stop_at: int | None = None, **options: Any) -> Any:
    def progress(now: Progress) -> None:
        if stop_at is not None and now.k >= stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    usual: dict[str, Any] = {"rounds": 60, "seeds": range(2), "dtype": torch.float64, "every": 8}
    own = options.pop("personal", False)
    result = compare(
        [build(name, step_size=0.05) if isinstance(name, str) else name for name in methods],
        personal() if own else Quadratic.random(CLIENTS, 5, noise=0.1),
        RandomGeometric(CLIENTS, 0.6),
        Bernoulli(1.0, 0.6),
        **({"progress": progress} | usual | options),
    )
    stopped = [str(stop) for stop in result.diverged]
    return result.frame, result.participation, stopped, result.complete, result.states


def personal() -> Learning:
    """A shared layer, a head of each client's own, and test data of its own."""
    draws = torch.Generator().manual_seed(0)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    data = [(torch.randn(12, 4, generator=draws), torch.arange(12) % 3) for _ in range(CLIENTS)]
    loss = torch.nn.CrossEntropyLoss()
    return Learning(
        model, loss, data, test=data, batch_size=4, personal="2.*", personal_step_size=0.1
    )


def same(ours: Any, theirs: Any, tolerance: float = 1e-12) -> None:
    """Tables are alike, counts are equal."""
    pd.testing.assert_frame_equal(
        ours[0], theirs[0], rtol=tolerance, atol=tolerance, check_dtype=False
    )
    pd.testing.assert_frame_equal(ours[1], theirs[1], check_dtype=False)
    assert ours[2:4] == theirs[2:4]


@pytest.mark.parametrize("stop", [{"rounds": 60}, {"rounds": None, "delay": 150.0, "every": None}])
def test_every_process_gets_the_simulators_tables(
    pool: Pool, tmp_path: Path, stop: dict[str, Any]
) -> None:
    theirs = compared(out=tmp_path / "simulator", **stop)
    for ours in pool(4, trained, str(tmp_path / "processes"), **stop):
        same(ours, theirs)
    files = [
        {path.name for path in (tmp_path / name).iterdir()} for name in ("simulator", "processes")
    ]
    assert files[0] == files[1]


def test_states_are_kept_on_rank_0(pool: Pool) -> None:
    ours, theirs = pool(2, trained, None, keep_states=True), compared(keep_states=True)
    torch.testing.assert_close(ours[0][4][1].x, theirs[4][1].x, rtol=1e-12, atol=1e-12)


def test_a_run_is_taken_up_by_another_number_of_processes(pool: Pool, tmp_path: Path) -> None:
    """By a signal to rank 0 all stop and save; three go on, then two, then the simulator."""
    out = str(tmp_path / "run")
    whole: dict[str, Any] = {"rounds": 200, "every": 40, "seeds": [0]}
    theirs = compared(**whole)
    stops = pool(4, trained, out, **whole, stop_at=40)
    assert not any(one[3] for one in stops)
    assert not pool(3, trained, out, **whole, resume=True, stop_at=80)[0][3]
    assert not pool(2, trained, out, **whole, resume=True, stop_at=160)[0][3]
    same(compared(out=out, **whole, resume=True), theirs)


def test_a_run_of_the_simulator_is_finished_by_processes(pool: Pool, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    whole: dict[str, Any] = {"rounds": 200, "every": 40, "seeds": [0]}
    assert not compared(out=out, **whole, stop_at=40)[3]
    same(pool(3, trained, out, **whole, resume=True)[0], compared(**whole))


def stopped(group: Group | None, out: str | None, *, by_callback: bool = False) -> Any:
    """Runs that stop early; the tables and the stopped runs that every process gets."""
    if group is not None:
        distributed_group._joined = group

    def stop(row: dict[str, Any]) -> object:
        return STOP if row["seed"] == 1 and row["round"] >= 24 else None

    result = compare(
        ["spod-gt", "dsgd"],
        Quadratic.random(CLIENTS, 5, noise=0.1),
        RandomGeometric(CLIENTS, 0.6),
        Bernoulli(1.0, 0.6),
        out=out,
        rounds=400,
        every=8,
        seeds=[0, 1],
        dtype=torch.float64,
        keep="best",
        callbacks=[stop] if by_callback else [],
        stop_when=None if by_callback else EarlyStopping("loss", patience=2, min_delta=0.05),
    )
    best = {str(run): models.tolist() for run, models in result.best_models.items()}
    return result.frame, result.participation, list(map(str, result.stopped)), True, best


@pytest.mark.parametrize("by_callback", [False, True])
def test_processes_stop_early_where_the_simulator_does(
    pool: Pool, tmp_path: Path, by_callback: bool
) -> None:
    """Callbacks are called in the process that records; the others stop with it."""
    theirs = stopped(None, None, by_callback=by_callback)
    assert len(theirs[2]) == (2 if by_callback else 4)
    main, *others = pool(3, stopped, str(tmp_path / "run"), by_callback=by_callback)
    for ours in (main, *others):
        same(ours, theirs)
    assert main[4].keys() == theirs[4].keys()
    for run, models in main[4].items():
        np.testing.assert_allclose(models, theirs[4][run], rtol=1e-6)


def test_personal_layers_stay_where_they_are(pool: Pool, tmp_path: Path) -> None:
    """Processes train them as the simulator does, also after a restart, and send the shared layer alone."""
    options: dict[str, Any] = {"personal": True, "methods": ["spod-gt"], "rounds": 40}
    theirs = compared(**options)
    same(pool(3, trained, None, **options)[0], theirs)
    links = theirs[1].query("kind == 'link'")
    shared = 4 * 6 + 6  # numbers of the first layer; a message has x and y
    assert (links["bytes"] == links["messages"] * 2 * shared * 8).all()
    out = str(tmp_path / "run")
    assert not pool(3, trained, out, **options, stop_at=16)[0][3]
    same(pool(2, trained, out, **options, resume=True)[0], theirs)


def test_processes_extend_a_finished_run(pool: Pool, tmp_path: Path) -> None:
    whole: dict[str, Any] = {"every": 40, "seeds": [0, 1]}
    out = str(tmp_path / "run")
    assert pool(3, trained, out, **whole, rounds=80)[0][3]
    same(pool(2, trained, out, **whole, rounds=200, resume=True)[0], compared(**whole, rounds=200))


@pytest.mark.filterwarnings("ignore::spodgt.errors.DivergenceWarning")
def test_a_run_that_diverges_is_given_up_everywhere(pool: Pool) -> None:
    methods = [build("spod-gt", step_size=1e3)]
    theirs = compared(methods, rounds=200, every=50)
    assert theirs[2]
    for ours in pool(3, trained, None, methods=methods, rounds=200, every=50):
        # What should be zero is the rounding of huge numbers.
        frames = [tables[0].drop(columns="tracking") for tables in (ours, theirs)]
        same((frames[0], *ours[1:]), (frames[1], *theirs[1:]))


def learned(group: Group | None) -> Any:
    if group is not None:
        distributed_group._joined = group
    result = compare(
        [build("spod-gt", step_size=0.05)],
        fashion_mnist_svm(clients=5, labels_per_client=2),
        RandomGeometric(5, 0.7),
        Bernoulli(0.7, 0.7),
        rounds=30,
        dtype=torch.float64,
    )
    return result.frame, result.participation, [], True


def test_models_are_evaluated_where_they_are(pool: Pool) -> None:
    same(pool(3, learned)[0], learned(None), 1e-9)


def test_bad_input_is_refused_by_all(pool: Pool, tmp_path: Path) -> None:
    """What only rank 0 can see, such as a folder that holds another run, all of them say."""
    compared(out=tmp_path, rounds=8)
    for answer in pool(2, refused, str(tmp_path)):
        assert "already holds a run" in answer


def refused(group: Group, out: str) -> str:
    try:
        trained(group, out)
    except InvalidInput as error:
        return str(error)
    return "taken"


def test_processes_with_other_settings_are_refused(pool: Pool) -> None:
    for answer in pool(3, differing):
        assert "all processes must be alike, but rank 2 has other" in answer


def differing(group: Group) -> str:
    distributed_group._joined = group
    try:
        compared(rounds=8 if group.rank < 2 else 9)
    except InvalidInput as error:
        return str(error)
    return "taken"


def test_default_store_is_local_if_torch_does_not_offer_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the private function of PyTorch, only the names of lost ranks are missing."""
    monkeypatch.delattr(torch.distributed.distributed_c10d, "_get_default_store", raising=False)
    store = distributed_group._default_store()
    group = Group(0, 3, torch.device("cpu"), 1.0, store)
    is_lost = pytest.raises(Failed, match="rank 2 was lost in round 0")
    with group.answering(), is_lost, group.errors_with_rank(2):
        raise RuntimeError("Connection closed by peer")
