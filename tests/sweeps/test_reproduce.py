"""The paper's experiments: files, scales, the commands, and the pages made of them."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from spodgt import report
from spodgt.cli import app
from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.experiment import Classification
from spodgt.network.graphs import RandomGeometric
from spodgt.participation import Beta
from spodgt.problems.data import LabelsPerClient
from spodgt.sweeps import grid as experiments
from spodgt.sweeps import sweep
from spodgt.sweeps.grid import value_at
from spodgt.training.loggers import TensorBoard

NAMES = [
    f"{data}-{what}"
    for data in ("fmnist", "cifar")
    for what in ("iid", "noniid", "labels", "radius", "clients", "rate")
]


def call(*words: object) -> str:
    """A command in this process; its errors are raised."""
    result = CliRunner().invoke(
        app, [str(word) for word in words], catch_exceptions=False, standalone_mode=False
    )
    assert not isinstance(result.return_value, int) or result.return_value == 0, result.output
    return result.stdout


# --- the files --------------------------------------------------------------------------------------
def test_every_figure_has_its_file() -> None:
    assert sorted(experiments.names()) == sorted(NAMES)
    figures = [experiments.load(name).figure for name in experiments.names()]
    assert figures == [f"{n}{letter}" for n in (2, 3, 5) for letter in "abcd"]


@pytest.mark.parametrize("name", NAMES)
def test_at_the_papers_scale_it_is_the_papers_setting(name: str) -> None:
    spec = experiments.load(name, "paper")
    run = spec.experiment.run
    assert spec.title
    assert spec.paper
    assert (run.step_size, run.delay, run.seed_list) == (0.01, 5000, [0, 1, 2, 3, 4])
    assert [each.name for each in spec.experiment.methods] == [
        *("spod-gt", "spod-gt-memory", "ab-push-pull", "g-push-pull", "k-gt", "sporadic-k-gt"),
        *("relay+mean", "relay-sum"),
    ]
    assert spec.experiment.network == RandomGeometric(10, 0.4)
    assert spec.experiment.weights == "degree"
    assert spec.experiment.participation == Beta(0.5, 0.5)
    problem = spec.experiment.problem
    assert isinstance(problem, Classification)
    assert problem.batch_size == 16
    everything = ("fmnist-iid", "cifar-iid", "cifar-radius", "cifar-clients")
    assert problem.partition == LabelsPerClient(10 if name in everything else 1)
    source = (experiments.FOLDER / f"{name}.toml").read_text()
    assert source.startswith(f"# Figure {spec.figure}")


def test_the_grids_are_the_papers() -> None:
    def grid(name: str) -> tuple[str, list[Any]]:
        return next(iter(experiments.load(name).grid.items()))

    for data in ("fmnist", "cifar"):
        assert grid(f"{data}-labels") == ("problem.partition.labels", [1, 2, 3, 5, 10])
        assert grid(f"{data}-clients") == ("network.clients", [10, 20, 30, 40, 50])
        assert grid(f"{data}-rate") == ("run.step_size", [1e-4, 1e-3, 1e-2, 1e-1])
        key, values = grid(f"{data}-radius")
        assert (key, values[0], values[-1]) == ("network.radius", 0.3, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_every_smoke_cell_can_be_built(name: str) -> None:
    spec = experiments.load(name, "smoke")
    assert len(spec.points()) <= 2
    for point in spec.points():
        made = spec.experiment.override(point)
        assert made.base_problem.clients == made.network.clients


def test_a_laptop_has_fashion_mnist_at_full_size() -> None:
    for what in ("iid", "radius"):
        paper, laptop = (experiments.load(f"fmnist-{what}", scale) for scale in ("paper", "laptop"))
        assert laptop.experiment == paper.experiment
        assert laptop.grid == paper.grid
        assert "paper's size" in str(laptop.scale)


def test_figures_of_many_cells_are_smaller_on_a_laptop() -> None:
    one, many = (experiments.load(name, "laptop") for name in ("cifar-noniid", "cifar-labels"))
    assert [value_at(each.experiment, "problem.width") for each in (one, many)] == [16, 8]
    assert "width 8 (paper 64)" in str(many.scale)
    evaluations: list[Any] = [value_at(each.experiment, "run.evaluations") for each in (one, many)]
    assert evaluations[0] > evaluations[1]
    assert many.experiment.run.delay == one.experiment.run.delay == 5000
    assert many.grid == experiments.load("cifar-labels").grid


def test_what_a_scale_changes_is_said() -> None:
    spec = experiments.load("cifar-iid", "laptop")
    assert "width 16 (paper 64)" in str(spec.scale)
    assert value_at(spec.experiment, "problem.width") == 16


def test_figures_share_the_cells_they_have_in_common() -> None:
    def marks(name: str) -> set[str]:
        spec = experiments.load(name)
        return {sweep.fingerprint(spec.experiment.override(point)) for point in spec.points()}

    one = (
        marks("fmnist-labels")
        & marks("fmnist-radius")
        & marks("fmnist-clients")
        & marks("fmnist-rate")
    )
    assert len(one) == 1  # one label, radius 0.4, ten clients and rate 0.01 are one setting
    assert len(marks("cifar-labels") & marks("cifar-rate")) == 1  # with one label
    assert (
        len(marks("cifar-labels") & marks("cifar-radius") & marks("cifar-clients")) == 1
    )  # with all


def test_unknown_names_and_scales_are_one_sentence() -> None:
    with pytest.raises(InvalidConfig, match="fmnist-iid"):
        experiments.load("fmnist")
    with pytest.raises(InvalidConfig, match="smoke, laptop, paper"):
        experiments.load("fmnist-iid", "phone")
    with pytest.raises(InvalidInput, match="NAME"):
        call("reproduce")


def test_a_swept_key_can_be_fixed_by_hand() -> None:
    spec = experiments.load("fmnist-radius", "smoke").override({"network.radius": 0.5})
    assert spec.grid == {}
    assert spec.experiment.network == RandomGeometric(10, 0.5)
    assert spec.changes == {"network.radius": 0.5}


def test_a_list_for_a_swept_key_is_part_of_the_figure() -> None:
    whole = experiments.load("fmnist-radius", "laptop")
    part = whole.override({"network.radius": [0.3, 1.0]})
    assert part.grid == {"network.radius": [0.3, 1.0]}
    marks = {sweep.fingerprint(whole.experiment.override(point)) for point in whole.points()}
    assert marks >= {sweep.fingerprint(part.experiment.override(point)) for point in part.points()}
    with pytest.raises(InvalidConfig, match="a list of values"):
        whole.override({"network.radius": []})
    with pytest.raises(InvalidConfig, match="more than 10,000 cells"):
        whole.override({"network.radius": [n / 20_000 for n in range(1, 10_002)]})


def test_where_values_are_lists_one_list_is_one_value(tmp_path: Path) -> None:
    file = tmp_path / "methods.toml"
    file.write_text('[sweep]\n"run.methods" = [["spod-gt"], ["k-gt"]]\n')
    spec = experiments.read(file)
    fixed = spec.override({"run.methods": ["spod-gt", "k-gt"]})
    assert (fixed.grid, list(fixed.experiment.run.methods)) == ({}, ["spod-gt", "k-gt"])
    assert spec.override({"run.methods": [["k-gt"]]}).grid == {"run.methods": [["k-gt"]]}


# --- the commands -----------------------------------------------------------------------------------
def test_the_list_names_every_figure() -> None:
    rows = json.loads(call("reproduce", "--list", "--json"))
    assert [row["name"] for row in rows] == experiments.names()


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two figures at the smallest scale; they share a folder of cells."""
    out = tmp_path_factory.mktemp("reproduced")
    quick = ("--scale", "smoke", "--workers", "1", "--json", "--out", out)
    fewer = ("--methods", "spod-gt,spod-gt-memory,g-push-pull", "--set", "run.delay=30")
    rows = json.loads(call("reproduce", "fmnist-noniid", *quick, *fewer))
    rows += json.loads(call("reproduce", "fmnist-labels", *quick, *fewer))
    assert all(row["complete"] for row in rows)
    return out


def test_two_figures_are_reproduced(reproduced: Path) -> None:
    for name in ("fmnist-noniid", "fmnist-labels"):
        files = {path.name for path in (reproduced / name).iterdir()}
        assert {
            "report.html",
            "figure.pdf",
            "figure.svg",
            "figure.png",
            "results.csv",
            "sweep.json",
        } <= files
    assert len(list((reproduced / "cells").iterdir())) == 2  # one label is a cell of both
    page = (reproduced / "fmnist-labels/report.html").read_text()
    assert "Figure 3a of the paper" in page
    assert "smoke scale: data fashion-mnist-small (paper fashion-mnist)" in page
    assert "changed by hand" in page
    (command,) = re.findall(r"<pre>(spodgt reproduce .*?)</pre>", page)
    assert "--scale smoke" in command
    assert "run.delay=30" in command


def test_a_reproduced_figure_is_not_run_again(reproduced: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (reproduced / "cells").rglob("*")}
    quick = ("--scale", "smoke", "--workers", "1", "--json", "--out", reproduced)
    fewer = ("--methods", "spod-gt,spod-gt-memory,g-push-pull", "--set", "run.delay=30")
    call("reproduce", "fmnist-noniid", *quick, *fewer)
    assert {path: path.stat().st_mtime_ns for path in (reproduced / "cells").rglob("*")} == before


@pytest.mark.slow
def test_a_cifar_figure_is_reproduced(tmp_path: Path) -> None:
    quick = ("--scale", "smoke", "--workers", "1", "--json", "--out", tmp_path)
    (row,) = json.loads(
        call("reproduce", "cifar-rate", *quick, "--methods", "spod-gt,k-gt", "--seeds", "1")
    )
    assert row["complete"]


def test_a_report_is_made_anew(reproduced: Path) -> None:
    path = reproduced / "fmnist-noniid/report.html"
    path.unlink()
    assert call("report", path.parent).strip() == str(path)
    assert path.exists()


def results_tool() -> Any:
    source = Path(__file__).parents[2] / "tools/results.py"
    spec = importlib.util.spec_from_file_location("results", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_of_several_networks_say_what_a_step_counts_for(tmp_path: Path) -> None:
    (tmp_path / "kinds.toml").write_text(
        """
        [run]
        methods = ["spod-gt"]
        seeds = 2
        rounds = 5
        [network]
        kind = "complete"
        clients = 4
        [participation]
        kind = "bernoulli"
        p_hat = 0.3
        [problem]
        kind = "quadratic"
        parameters = 3
        [sweep]
        "network.kind" = ["complete", "star"]
        """
    )
    call("sweep", tmp_path / "kinds.toml", "--workers", "1", "--out", tmp_path / "out")
    page = report.read(tmp_path / "out")
    text = list(results_tool().step_part(page, "loss"))
    loss = page.results.set_index(["network.kind", "seed"])["loss"]
    for kind, step in (("complete", 1), ("star", 1.12)):  # star: φ = π = (2, 1, 1, 1)/5, 4 · 7/25
        cells = [f"{step:.2f} ({loss[kind, seed]:.3f})" for seed in (0, 1)]
        assert f"| {kind} | {cells[0]} | {cells[1]} |" in text


def test_results_pages_hold_the_numbers(
    reproduced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = results_tool()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/fmnist-noniid.md").write_text("Seed 0 draws a client that is never heard.")
    monkeypatch.setattr(sys, "argv", ["results", str(reproduced), "--out", str(tmp_path)])
    module.main()
    page = (tmp_path / "fmnist-noniid.md").read_text()
    frame = pd.read_csv(tmp_path / "fmnist-noniid.csv")
    for value in frame.groupby("method")["accuracy"].mean():
        assert f"{value:.3f}" in page
    assert "spodgt reproduce fmnist-noniid --scale smoke" in page
    assert "never heard" in page
    leads = pd.read_csv(tmp_path / "fmnist-noniid-differences.csv")
    assert f"{leads['mean'][0]:+.3f}" in page
    index = (tmp_path / "README.md").read_text()
    assert index.count("not run yet") == 10
    labels = (tmp_path / "fmnist-labels.md").read_text()
    assert "| labels per client | 1 | 10 |" in labels  # more methods than settings: they are rows
    assert "**Not complete:** not run at labels per client = 2; 3; 5." in labels
    assert index.count("| 2 of 5 cells. ") == 1  # at this scale; the other is complete
    again = [
        "results",
        str(reproduced),
        "--out",
        str(tmp_path),
        "--suffix=-two",
        "--title=once more",
    ]
    monkeypatch.setattr(sys, "argv", again)
    module.main()
    lines = (tmp_path / "README.md").read_text().splitlines()
    (at,) = (number for number, line in enumerate(lines) if "(fmnist-noniid.md)" in line)
    assert lines[at] in index  # what was there stays, the other setting follows it
    assert "one label per client, once more](fmnist-noniid-two.md)" in lines[at + 1]
    assert len(lines) == len(index.splitlines()) + 2


# --- compare ----------------------------------------------------------------------------------------
def test_compare_writes_a_report_and_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'spodgt[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    words = (
        "--methods",
        "spod-gt",
        "--seeds",
        "2",
        "--rounds",
        "8",
        "--set",
        "problem.kind=quadratic",
    )
    call("compare", *words, "--out", out, "--json", "--tensorboard")
    assert (out / "report.html").exists()
    events = EventAccumulator(str(out / "tensorboard/spod-gt/seed-1")).Reload()
    frame = pd.read_parquet(out / "metrics.parquet").query("seed == 1")
    found = events.Scalars("loss")
    assert [event.step for event in found] == frame["round"].tolist()
    assert [event.value for event in found] == pytest.approx(frame["loss"].tolist(), rel=1e-6)


def test_missing_tensorboard_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InvalidInput, match=r"spodgt\[tensorboard\]"):
        TensorBoard("folder")
