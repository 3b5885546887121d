"""Worker processes: the same results for any number of them, and no work lost when one dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spodgt
from spodgt.algorithms.base import Algorithm
from spodgt.cli import compare as commands
from spodgt.errors import Failed, InvalidInput
from spodgt.experiment import Experiment
from spodgt.record.run_folder import SINGLE_RUNS
from spodgt.training import Progress

METHODS: list[str | Algorithm[Any]] = ["spod-gt", spodgt.method("spod-gt-memory", step_size=0.02)]
NETWORK = spodgt.Network.random_geometric(4, radius=0.9, seed=0)
PARENT = os.getpid()


class Perceptron(nn.Module):
    """A small network that calls `hook` in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        HOOKS["forward"]()
        output: torch.Tensor = self.layers(inputs)
        return output


HOOKS: dict[str, Callable[[], None]] = {"forward": lambda: None}


@pytest.fixture(scope="module")
def problem() -> spodgt.Learning:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for _ in range(4):
        inputs = torch.randn(40, 6, generator=generator)
        targets = torch.randint(0, 3, (40,), generator=generator)
        clients.append(TensorDataset(inputs, targets))
    loss = nn.CrossEntropyLoss()
    return spodgt.Learning(
        model=Perceptron(), loss=loss, clients=clients, test=clients[0], batch_size=5
    )


def compare(problem: spodgt.Learning, workers: int | None, **options: Any) -> spodgt.Result:
    settings: dict[str, Any] = {
        "rounds": 30,
        "seeds": [0, 1, 2],
        "evaluations": 5,
        "workers": workers,
    }
    settings.update(options)
    return spodgt.compare(METHODS, problem, NETWORK, spodgt.Bernoulli(0.6, 0.7), **settings)


@pytest.fixture(scope="module")
def expected(problem: spodgt.Learning) -> spodgt.Result:
    return compare(problem, 1)


def check_equal(result: spodgt.Result, expected: spodgt.Result) -> None:
    """All tables and models, bit for bit."""
    assert result.complete
    for table in ("frame", "clients", "participation"):
        pd.testing.assert_frame_equal(
            getattr(result, table), getattr(expected, table), check_exact=True
        )
    assert result.models.keys() == expected.models.keys()
    for key, models in expected.models.items():
        assert torch.equal(result.models[key], models), key


@pytest.mark.parametrize("workers", [2, 3])
def test_results_do_not_depend_on_the_number_of_workers(
    problem: spodgt.Learning, expected: spodgt.Result, workers: int, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = []
    reports: list[Progress] = []
    out = tmp_path / "out"
    result = compare(problem, workers, out=out, callbacks=[rows.append], progress=reports.append)
    check_equal(result, expected)
    assert len(rows) == len(expected.frame)
    assert {report.method for report in reports} == set(expected.methods)
    assert reports[-1].fraction == 1
    pd.testing.assert_frame_equal(expected.frame, pd.read_parquet(out / "metrics.parquet"))
    assert not list((out / SINGLE_RUNS).iterdir())


def test_results_of_workers_do_not_depend_on_the_threads_of_torch() -> None:
    """Matrices that torch multiplies on several threads, and dropout."""
    generator = torch.Generator().manual_seed(0)
    clients = []
    for _ in range(3):
        inputs = torch.randn(64, 64, generator=generator)
        targets = torch.randint(0, 10, (64,), generator=generator)
        clients.append((inputs, targets))
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 256), nn.Linear(256, 10)
    )
    problem = spodgt.Learning(model, nn.CrossEntropyLoss(), clients, batch_size=64)
    threads = torch.get_num_threads()
    results = []
    torch.set_num_threads(2)
    try:
        for workers in (1, 2):
            options: dict[str, Any] = {"rounds": 5, "seeds": [0, 1], "workers": workers}
            ring = spodgt.Network.ring(3)
            results.append(spodgt.train("spod-gt", problem, ring, **options))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    check_equal(results[1], results[0])


def test_diverged_runs_are_reported_alike(problem: spodgt.Learning) -> None:
    options: dict[str, Any] = {"rounds": 90, "seeds": [0, 1], "evaluations": 3}
    methods = [spodgt.method("spod-gt", step_size=1e20)]
    found = []
    for workers in (1, 2):
        with pytest.warns(spodgt.errors.DivergenceWarning):
            result = spodgt.compare(methods, problem, NETWORK, workers=workers, **options)
        found.append(sorted(map(str, result.diverged)))
    assert len(found[0]) == 2
    assert found[0] == found[1]


def interrupt_at(signal_number: int, rows: int) -> list[Any]:
    """Callbacks that send a signal to this process after some evaluations."""
    seen = []

    def callback(row: dict[str, Any]) -> None:
        seen.append(row)
        if len(seen) == rows:
            os.kill(PARENT, signal_number)

    return [callback]


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_resume_takes_another_number_of_workers_and_more_rounds(
    problem: spodgt.Learning, expected: spodgt.Result, first: int, second: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"out": tmp_path / "out", "every": 6, "evaluations": 25}
    callbacks = interrupt_at(signal.SIGINT if first == 2 else signal.SIGTERM, 5)
    stopped = compare(problem, first, rounds=24, callbacks=callbacks, **options)
    assert not stopped.complete
    assert len(stopped.frame) >= 5
    check_equal(compare(problem, second, rounds=30, resume=True, **options), expected)


def test_a_finished_run_is_extended(
    problem: spodgt.Learning, expected: spodgt.Result, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"out": tmp_path / "out", "every": 6, "evaluations": 25}
    assert compare(problem, 1, rounds=12, **options).complete
    check_equal(compare(problem, 2, rounds=30, resume=True, **options), expected)


def test_a_dead_worker_is_named_and_other_runs_are_kept(
    problem: spodgt.Learning,
    expected: spodgt.Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"

    def kill_worker_of_seed_1() -> None:
        if os.getpid() != PARENT:
            log = Path(os.readlink("/proc/self/fd/2")).name
            if log == "00-spod-gt-seed-1.log":
                os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setitem(HOOKS, "forward", kill_worker_of_seed_1)
    message = r"the worker of spod-gt \(seed 1\) ended with SIGKILL .*00-spod-gt-seed-1\.log"
    with pytest.raises(Failed, match=message):
        compare(problem, 2, out=out)
    assert (out / "workers" / "00-spod-gt-seed-1.log").exists()
    assert list((out / SINGLE_RUNS).iterdir())
    monkeypatch.undo()
    check_equal(compare(problem, 2, out=out, resume=True), expected)


def test_a_worker_that_exits_without_a_result_is_an_error(
    problem: spodgt.Learning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with exit code 0: user code may call sys.exit()."""

    def leave() -> None:
        if os.getpid() != PARENT:
            os._exit(0)

    monkeypatch.setitem(HOOKS, "forward", leave)
    with pytest.raises(Failed, match=r"the worker of [a-z-]+ \(seed \d\) ended with exit code 0"):
        compare(problem, 2, out=tmp_path / "out", seeds=[0])


ORPHANS = """
import os, signal, sys
from pathlib import Path
import torch
from torch import nn
import spodgt

folder = Path(sys.argv[1])
data = [(torch.randn(20, 6), torch.zeros(20, dtype=torch.long)) for _ in range(4)]
problem = spodgt.Learning(nn.Linear(6, 2), lambda o, t: nn.functional.cross_entropy(o, t), data)

def report(progress):
    started = list(folder.glob("workers/*.log"))
    if len(started) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

ring = spodgt.Network.ring(4)
spodgt.train("spod-gt", problem, ring, rounds=10**9, seeds=[0, 1], workers=2, out=folder, progress=report)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds processes by their files")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", ORPHANS, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + 60
    while processes_with_files_in(out / "workers"):
        assert time.monotonic() < deadline, "workers are still running"
        time.sleep(0.1)


def processes_with_files_in(folder: Path) -> list[str]:
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/2"):
        with contextlib.suppress(OSError):  # a process that has ended, or of another user
            if Path(os.readlink(link)).parent == folder:
                found.append(link.parts[2])
    return found


def test_an_error_in_a_worker_is_raised_as_without_workers(
    problem: spodgt.Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise LookupError("no such thing")

    monkeypatch.setitem(HOOKS, "forward", fail)
    with pytest.raises(InvalidInput, match=r"model and loss failed .*: no such thing"):
        compare(problem, 2, seeds=[0])


def test_workers_before_torch_had_accelerators(
    problem: spodgt.Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.4 and 2.5, which `make lowest` installs, have no `torch.accelerator`."""
    monkeypatch.delattr(torch, "accelerator", raising=False)
    assert compare(problem, 2, seeds=[0], rounds=3).complete


def test_workers_is_checked(problem: spodgt.Learning) -> None:
    with pytest.raises(InvalidInput, match=r"workers must be .* got 0"):
        compare(problem, 0)
    with pytest.raises(
        InvalidInput, match="workers=2 cannot be used with keep_states=True; use workers=1"
    ):
        compare(problem, 2, keep_states=True)


def test_workers_is_a_key_of_configs_but_not_of_the_identity_of_a_run() -> None:
    tables: dict[str, Any] = {"run": {"rounds": 3, "workers": 2}}
    experiment = Experiment.parse(tables)
    assert experiment.run.workers == 2
    assert experiment.override({"run.seeds": 1}).run.workers == 2
    assert "workers" not in experiment.to_dict()["run"]


def test_the_command_takes_workers(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments: list[Experiment] = []
    monkeypatch.setattr(
        commands, "run_and_report", lambda experiment, *_: experiments.append(experiment)
    )
    code, _, err = cli("compare", "--workers", "2", "--seeds", "3")
    assert code == 0, err
    assert experiments[0].run.workers == 2
    code, _, err = cli("compare", "--workers", "none")
    assert code == 2
    assert "workers" in err


def test_cells_of_a_sweep_that_hold_objects_use_workers(
    problem: spodgt.Learning, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"grid": {"step_size": [0.01, 0.02]}, "rounds": 4, "seeds": [0, 1]}
    results: list[pd.DataFrame] = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        sweep = spodgt.sweep(["spod-gt"], problem, NETWORK, out=out, workers=workers, **options)
        assert sweep.complete
        results.append(sweep.results)
    pd.testing.assert_frame_equal(results[1], results[0], check_exact=True)
