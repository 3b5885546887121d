"""Sweeps: grids, folders, resuming after anything, failures that take nothing else with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from spodgt.cli import app
from spodgt.cli.sweep_display import SweepDisplay
from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.sweeps import executors, sweep
from spodgt.sweeps import grid as experiments
from spodgt.sweeps.cell import CellProgress, Event, Job, Outcome
from spodgt.sweeps.executors.inline import Inline
from spodgt.sweeps.executors.processes import Processes
from tests.conftest import Cli

QUADRATIC = """
title = "Quadratics"
[run]
methods = ["spod-gt", "spod-gt-memory"]
seeds = 2
delay = {delay}
[network]
clients = 4
radius = 0.9
[problem]
kind = "quadratic"
parameters = 3
[sweep]
"run.step_size" = [0.01, 0.02, 0.05]
"""


def spec_of(folder: Path, text: str) -> experiments.Spec:
    path = folder / "quadratics.toml"
    path.write_text(text)
    return experiments.read(path)


@pytest.fixture
def spec(tmp_path: Path) -> experiments.Spec:
    return spec_of(tmp_path, QUADRATIC.format(delay=30))


def stamps(folder: Path) -> dict[str, int]:
    """When the files of a finished cell were written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


# --- the file ---------------------------------------------------------------------------------------
def test_several_keys_make_a_grid(tmp_path: Path) -> None:
    text = QUADRATIC.format(delay=30) + '"network.radius" = [0.5, 0.9]\n'
    points = spec_of(tmp_path, text).points()
    assert len(points) == 6
    assert points[0] == {"run.step_size": 0.01, "network.radius": 0.5}


def test_a_config_without_a_grid_is_one_cell(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, '[problem]\nkind = "quadratic"\n')
    assert spec.points() == [{}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[sweep]\n"run.step_size" = 0.1', "'run.step_size'.*list of values"),
        ('[sweep]\n"run.step_size" = []', "list of values"),
        ('[sweep]\n"step_size" = [0.1]', "section"),
        ('[sweep]\n"run.stepsize" = [0.1]', "stepsize.*step_size"),
        ("sweep = 3", "table"),
        ("[sweeps]", "sweeps is not a key"),
        ("title = 3", "title.*text"),
        ('base = "nowhere"', "nowhere.toml does not exist"),
        ('base = "quadratics"', "leads back"),
        ("[run", "not TOML"),
    ],
)
def test_a_file_that_means_nothing_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        spec_of(tmp_path, text)


def test_a_wrong_value_shows_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPODGT_DATA", "/nowhere")
    with pytest.raises(InvalidConfig, match="radius"):
        spec_of(tmp_path, QUADRATIC.format(delay=30) + '"network.radius" = [0.5, "wide"]\n')
    spec = spec_of(tmp_path, '[sweep]\n"problem.data" = ["fashion-mnist-small", "cifar-10"]\n')
    with pytest.raises(InvalidInput, match="cifar-10"):
        sweep.run(spec, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_a_saved_spec_reads_back(spec: experiments.Spec, tmp_path: Path) -> None:
    (tmp_path / "again.toml").write_text(spec.to_toml())
    again = experiments.read(tmp_path / "again.toml")
    assert (again.experiment.to_dict(), again.grid, again.title) == (
        spec.experiment.to_dict(),
        spec.grid,
        spec.title,
    )


def test_a_cell_is_named_by_its_configalone(spec: experiments.Spec) -> None:
    marks = [sweep.fingerprint(cell.experiment) for cell in sweep.plan(spec, Path("x"))]
    assert len(set(marks)) == 3
    reordered = type(spec.experiment).parse(dict(reversed(spec.experiment.to_dict().items())))
    assert sweep.fingerprint(reordered) == sweep.fingerprint(spec.experiment)


# --- running ----------------------------------------------------------------------------------------
def test_a_sweep_fills_tidy_tables(spec: experiments.Spec, tmp_path: Path) -> None:
    heard: list[object] = []
    done = sweep.run(spec, tmp_path / "out", workers=1, on_event=heard.append)
    assert done.complete
    assert not done.failures
    table = pd.read_csv(tmp_path / "out/results.csv")
    assert len(table) == 3 * 2 * 2  # cells, methods, seeds
    assert {"run.step_size", "method", "seed", "loss", "delay", "diverged", "cell"} <= set(table)
    note = json.loads((tmp_path / "out/sweep.json").read_text())
    assert note["complete"]
    assert all(cell["complete"] and cell["seconds"] > 0 for cell in note["cells"])
    assert sum(isinstance(event, Outcome) for event in heard) == 3
    assert any(isinstance(event, CellProgress) for event in heard)


def test_finished_cells_are_not_run_again(spec: experiments.Spec, tmp_path: Path) -> None:
    first = sweep.run(spec, tmp_path / "out", workers=1)
    before = {cell.name: stamps(cell.folder) for cell in first.cells}
    again = sweep.run(spec, tmp_path / "out", workers=1)
    assert {cell.name: stamps(cell.folder) for cell in again.cells} == before
    pd.testing.assert_frame_equal(first.results, again.results)


def test_experiments_share_the_cells_they_have_in_common(
    spec: experiments.Spec, tmp_path: Path
) -> None:
    home = tmp_path / "cells"
    sweep.run(spec, tmp_path / "one", cells_folder=home, workers=1)
    other = spec.override({"run.step_size": 0.02})
    assert [cell.complete for cell in sweep.plan(other, tmp_path / "two", home)] == [True]


def test_a_failing_cell_takes_no_other_with_it(tmp_path: Path) -> None:
    text = QUADRATIC.format(delay=30).replace(
        '"run.step_size" = [0.01, 0.02, 0.05]', '"run.methods" = [["spod-gt"], ["extra"]]'
    )
    done = sweep.run(spec_of(tmp_path, text), tmp_path / "out", workers=1)
    assert not done.complete
    assert list(done.results["method"].unique()) == ["spod-gt"]
    ((name, why),) = done.failures.items()
    assert "extra" in name
    assert "extra" in why
    note = json.loads((tmp_path / "out/sweep.json").read_text())
    assert [bool(cell["error"]) for cell in note["cells"]] == [False, True]


def test_the_command_shows_failures_at_the_end(tmp_path: Path) -> None:
    text = QUADRATIC.format(delay=30).replace(
        '"run.step_size" = [0.01, 0.02, 0.05]', '"run.methods" = [["extra"], ["spod-gt"]]'
    )
    spec_of(tmp_path, text)
    words = [
        "sweep",
        str(tmp_path / "quadratics.toml"),
        "--out",
        str(tmp_path / "out"),
        "--workers",
        "1",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "error: quadratics/methods-extra" in result.output
    page = (tmp_path / "out/report.html").read_text()
    assert "What went wrong" in page
    assert "spod-gt" in page


def test_a_folder_holds_one_sweep_at_a_time(spec: experiments.Spec, tmp_path: Path) -> None:
    with (
        sweep.exclusive(tmp_path / "out"),
        pytest.raises(InvalidInput, match="in use by a running sweep"),
    ):
        sweep.run(spec, tmp_path / "out", workers=1)


def test_unknown_backends_and_workers_are_named(spec: experiments.Spec, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"backend='cloud'.*local"):
        sweep.run(spec, tmp_path / "out", workers=1, backend="cloud")
    with pytest.raises(InvalidInput, match="workers"):
        sweep.run(spec, tmp_path / "out", workers=-1)


def test_a_backend_is_one_entry(
    spec: experiments.Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[Job] = []

    class Mine(Inline):
        def submit(self, job: Job) -> None:
            submitted.append(job)
            super().submit(job)

    monkeypatch.setitem(executors.BACKENDS, "mine", lambda workers: Mine())
    assert sweep.run(spec, tmp_path / "out", backend="mine").complete
    assert len(submitted) == 3
    json.dumps(submitted[0].tables)  # a job is plain values, so it can be sent anywhere


# --- processes --------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_worker_that_dies_loses_only_its_own_job(spec: experiments.Spec, tmp_path: Path) -> None:
    pool = Processes(2, 1)
    outcomes: dict[str, Outcome] = {}
    long = spec.experiment.override({"run.delay": 1e7})

    def tell(event: Event) -> None:
        if isinstance(event, Outcome):
            outcomes[event.name] = event
        elif event.name == "long":
            for worker in pool.workers:
                if worker.job and worker.job.name == "long":
                    worker.process.kill()

    try:
        pool.submit(Job("long", long.to_dict(), str(tmp_path / "long")))
        pool.submit(Job("short", spec.experiment.to_dict(), str(tmp_path / "short")))
        pool.submit(
            Job(
                "next",
                spec.experiment.override({"run.step_size": 0.03}).to_dict(),
                str(tmp_path / "next"),
            )
        )
        pool.wait(tell)
    finally:
        pool.close()
    assert "signal 9" in outcomes["long"].error
    assert outcomes["short"].complete
    assert outcomes["next"].complete


def start(file: Path, out: Path, workers: int = 2) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "spodgt", "sweep", str(file), "--out", str(out)]
    options = ["--workers", str(workers), "--checkpoint-every", "0.2"]
    return subprocess.Popen([*command, *options], start_new_session=True, stderr=subprocess.PIPE)


def until(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 120.0
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_sweep_goes_on_and_equals_an_unbroken_one(tmp_path: Path, workers: int) -> None:
    spec = spec_of(tmp_path, QUADRATIC.format(delay=600))
    file = tmp_path / "quadratics.toml"
    unbroken = sweep.run(spec, tmp_path / "unbroken", workers=1)

    process = start(file, tmp_path / "broken", workers)
    cells = sweep.plan(spec, tmp_path / "broken")
    until(lambda: any(cell.complete for cell in cells), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    finished = {cell.name: stamps(cell.folder) for cell in cells if cell.complete}
    assert 0 < len(finished) < 3
    assert not (tmp_path / "broken/sweep.json").exists()

    process = start(file, tmp_path / "broken", workers)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said.decode()
    for name, before in finished.items():
        assert stamps(tmp_path / "broken/cells" / name) == before, "a finished cell was run twice"
    resumed = pd.read_parquet(tmp_path / "broken/results.parquet")
    pd.testing.assert_frame_equal(unbroken.results, resumed)


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, QUADRATIC.format(delay=6000))
    process = start(tmp_path / "quadratics.toml", tmp_path / "out")
    cells = sweep.plan(spec, tmp_path / "out")
    until(lambda: any((cell.folder / "checkpoint.zip").exists() for cell in cells), process)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert b"run the same command to continue" in said
    assert (tmp_path / "out/sweep.json").exists()


# --- what is lost and what is not -------------------------------------------------------------------
def test_fresh_forgets_nothing_before_everything_is_checked(
    tmp_path: Path, spec: experiments.Spec
) -> None:
    sweep.run(spec, tmp_path / "out", workers=1)
    cells = sorted((tmp_path / "out" / "cells").iterdir())
    before = [stamps(cell) for cell in cells]
    with pytest.raises(InvalidInput, match="--backend='nope' is not known"):
        sweep.run(spec, tmp_path / "out", backend="nope", kept_cells=[])
    with sweep.exclusive(tmp_path / "out"), pytest.raises(InvalidInput, match="is in use"):
        sweep.run(spec, tmp_path / "out", workers=1, kept_cells=[])
    assert [stamps(cell) for cell in cells] == before
    sweep.run(spec, tmp_path / "out", workers=1, kept_cells=cells)
    assert [stamps(cell) for cell in cells] == before
    done = sweep.run(spec, tmp_path / "out", workers=1, kept_cells=[])
    assert done.complete
    assert all(stamps(cell) != old for cell, old in zip(cells, before, strict=True))


def test_a_changed_file_is_another_cell(tmp_path: Path) -> None:
    graph = tmp_path / "graph.csv"
    text = QUADRATIC.format(delay=30).replace(
        "clients = 4\nradius = 0.9", f"kind = 'file'\npath = '{graph}'"
    )
    graph.write_text("0,1,0\n0,0,1\n1,0,0\n")
    spec = spec_of(tmp_path, text)
    first = {cell.name for cell in sweep.plan(spec, tmp_path / "out")}
    assert {cell.name for cell in sweep.plan(spec, tmp_path / "out")} == first
    graph.write_text("0,1,1\n0,0,1\n1,0,0\n")
    assert not first & {cell.name for cell in sweep.plan(spec, tmp_path / "out")}


@pytest.mark.parametrize("clients", ["'ten'", "0"])
def test_a_wrong_number_of_clients_is_one_sentence(tmp_path: Path, clients: str) -> None:
    text = QUADRATIC.format(delay=30).replace("clients = 4", f"clients = {clients}")
    (tmp_path / "quadratics.toml").write_text(text)
    result = CliRunner().invoke(
        app, ["sweep", str(tmp_path / "quadratics.toml"), "--out", str(tmp_path / "o")]
    )
    assert isinstance(result.exception, InvalidInput)
    assert "clients" in str(result.exception)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--workers", "0"], "--workers must be at least 1, got 0"),
        (["--address", "host:1"], "--address='host:1' requires --backend ray, got 'local'"),
    ],
)
def test_options_that_cannot_be_meant(tmp_path: Path, option: list[str], message: str) -> None:
    spec_of(tmp_path, QUADRATIC.format(delay=30))
    result = CliRunner().invoke(app, ["sweep", str(tmp_path / "quadratics.toml"), *option])
    assert message in str(result.exception)


def test_an_interrupted_cell_is_not_shown_as_done(tmp_path: Path, spec: experiments.Spec) -> None:
    cells = sweep.plan(spec, tmp_path / "out")
    with SweepDisplay("Sweep", cells) as display:
        display.show(CellProgress(cells[0].name, 0.4, ""))
        display.show(Outcome(cells[0].name, complete=False))
        assert display.fractions[cells[0].name] == 0.4
        display.show(Outcome(cells[0].name, complete=True))
        assert display.fractions[cells[0].name] == 1.0


# --- folders of other results ------------------------------------------------------------------------
CONFIG = """
[run]
methods = ["spod-gt"]
seeds = 1
rounds = 4
[network]
clients = 3
radius = 0.9
[problem]
kind = "quadratic"
"""
SWEPT = CONFIG + '[sweep]\n"run.step_size" = [0.01, 0.02]\n'


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_sweep_does_not_write_into_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Nor a run or a search into a sweep: by default another folder is taken, a given one is refused."""
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text(CONFIG)
    assert cli("run", "base.toml")[0] == 0
    run = contents(Path("runs/base"))
    Path("base.toml").write_text(SWEPT)
    code, out, _ = cli("sweep", "base.toml", "--workers", "1")
    assert code == 0
    assert "each method in its best cell" in out
    assert contents(Path("runs/base")) == run
    swept = contents(Path("runs/base-2"))
    assert Path("runs/base-2/sweep.json") in swept
    stamp = Path("runs/base-2/results.csv").stat().st_mtime_ns
    assert cli("sweep", "base.toml", "--workers", "1")[0] == 0
    assert Path("runs/base-2/results.csv").stat().st_mtime_ns > stamp, (
        "the same command finds its folder again"
    )
    assert not Path("runs/base-3").exists()

    code, _, err = cli("sweep", "base.toml", "--out", "runs/base")
    assert code == 2
    assert err == (
        "spodgt: error: out='runs/base' holds a run, and a sweep would overwrite its files; use another "
        "folder.\n"
    )
    Path("plain.toml").write_text(CONFIG)
    for words in (["run", "plain.toml"], ["tune", "--config", "plain.toml"]):
        code, _, err = cli(*words, "--out", "runs/base-2")
        assert code == 2
        assert err.startswith("spodgt: error: out='runs/base-2' holds a sweep, and a")
    Path("base.toml").write_text(CONFIG)
    assert cli("run", "base.toml")[0] == 0
    assert Path("runs/base-3/summary.json").exists()
    assert contents(Path("runs/base")) == run


@pytest.mark.parametrize("text", [CONFIG, CONFIG + "[sweep]\n"])
def test_a_config_without_a_grid_is_not_swept(tmp_path: Path, cli: Cli, text: str) -> None:
    file = tmp_path / "plain.toml"
    file.write_text(text)
    code, _, err = cli("sweep", str(file), "--out", str(tmp_path / "out"))
    assert code == 2
    assert err == (
        f"spodgt: error: {file} has no keys in [sweep], so there is nothing to sweep; add one such as "
        f'"network.radius" = [0.3, 0.4], or use spodgt run {file}.\n'
    )
    assert not (tmp_path / "out").exists()


def test_a_figure_of_a_single_cell_is_mentioned(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "single.toml"
    file.write_text('title = "One"\n' + CONFIG)
    code, _, err = cli(
        "sweep", str(file), "--out", str(tmp_path / "out"), "--workers", "1", "--json"
    )
    assert code == 0
    assert f"{file} has no [sweep]: one cell is run." in err


def test_a_key_of_the_grid_is_set_without_its_section(spec: experiments.Spec) -> None:
    with pytest.raises(InvalidConfig, match=r"sweep\.run\.stepsize.*did you mean 'run\.step_size'"):
        spec.override({"sweep.run.stepsize": [1]})


def test_cells_of_other_settings_are_mentioned(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "quadratics.toml"
    file.write_text(QUADRATIC.format(delay=5).replace("0.01, 0.02, 0.05", "0.01, 0.02"))
    command = ("sweep", str(file), "--out", str(tmp_path / "out"), "--workers", "1")
    assert "of other settings" not in cli(*command, "--seeds", "1")[2]
    code, _, errors = cli(*command, "--seeds", "1", "--set", "run.delay=7")
    assert code == 0
    assert f"2 cells of other settings remain in {tmp_path / 'out' / 'cells'}." in errors
    code, _, errors = cli("export", str(tmp_path / "out"), "model.safetensors")
    assert code == 2
    assert "holds a sweep; give the run folder of a cell, such as" in errors
    assert "Errno" not in errors
