"""Records: what is written is what is read, statistics are those of scipy, and one row makes a metric."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import spodgt
from spodgt import figures
from spodgt.cli.compare import results_table
from spodgt.errors import InvalidInput
from spodgt.record import (
    METRICS,
    Diverged,
    Metric,
    Record,
    RunSnapshot,
    Scale,
    SweepRecord,
    measure,
    statistics,
)
from spodgt.record.networks import networks_table
from spodgt.record.record import is_complete
from spodgt.record.sweep import CellRecord, collect, label
from spodgt.runtimes.world import RunState, with_average


@pytest.fixture(scope="module")
def result() -> spodgt.Result:
    problem = spodgt.Quadratic.random(5, 3)
    network = spodgt.graphs.RandomGeometric(5, radius=0.9)
    participation = spodgt.Beta(0.5, 0.5, floor=0.2)
    return spodgt.compare(
        ["spod-gt", "spod-gt-memory"], problem, network, participation, rounds=30, seeds=range(3)
    )


# --- metrics ------------------------------------------------------------------------------------------
def snapshot(
    problem: spodgt.Quadratic, fields: tuple[str, ...], *state: torch.Tensor, gradient: bool = False
) -> RunSnapshot:
    whole = RunState(state, torch.zeros(len(state[0]), 0))
    return RunSnapshot.take(
        problem, fields, whole, [problem.evaluate(with_average(whole))], gradient
    )


@given(st.integers(1, 6), st.integers(0, 1000))
def test_metrics_are_their_definitions(clients: int, seed: int) -> None:
    problem = spodgt.Quadratic.random(clients, 3, seed=seed).to(torch.device("cpu"), torch.float64)
    draw = torch.Generator().manual_seed(seed)
    x, y, g = (torch.randn(clients, 3, dtype=torch.float64, generator=draw) for _ in range(3))
    row = measure(snapshot(problem, ("x", "y", "g"), x, y, g, gradient=True))
    everyone = np.arange(clients)
    losses, grads = problem.full(x.mean(0).expand(clients, -1), everyone)
    expected = {
        "loss": problem.evaluate(x).loss.mean(),
        "consensus_x": (x - x.mean(0)).square().sum(1).mean().sqrt(),
        "consensus_y": (y - y.mean(0)).square().sum(1).mean().sqrt(),
        "tracking": (y.sum(0) - g.sum(0)).norm(),
        "train_loss": losses.mean(),
        "gradient_norm": grads.mean(0).norm(),
        "distance": (x - problem.optimum()).square().sum(1).mean().sqrt(),
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(float(value), rel=1e-9, abs=1e-12)
    assert list(row) == [name for name in METRICS if name in row], "in the order of the table"


def test_what_does_not_apply_is_left_out() -> None:
    problem = spodgt.Quadratic.random(3, 2)
    row = measure(snapshot(problem, ("x",), problem.start(0)))
    assert not {"consensus_y", "tracking", "train_loss", "gradient_norm"} & set(row)
    assert "accuracy" not in row, "nothing is classified"


def test_fields_count_by_their_declared_names() -> None:
    problem = spodgt.Quadratic.random(3, 2)
    x, z = problem.start(0), torch.ones(3, 2)
    assert "consensus_y" not in measure(snapshot(problem, ("x", "z"), x, z))
    assert "consensus_y" in measure(snapshot(problem, ("x", "y"), x, z))


def test_a_flat_problem_has_no_distance() -> None:
    flat = spodgt.Quadratic(np.zeros((2, 2, 2)), np.zeros((2, 2)))
    assert math.isnan(measure(snapshot(flat, ("x",), torch.ones(2, 2)))["distance"])


def test_a_new_metric_is_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def largest(s: RunSnapshot) -> float:
        return float(s.x.abs().max())

    monkeypatch.setitem(
        METRICS, "largest", Metric("largest", "largest parameter", "max |x|", largest, log=True)
    )
    problem, network = spodgt.Quadratic.random(4, 2), spodgt.Network.ring(4)
    found = spodgt.train("spod-gt", problem, network, rounds=5, out=tmp_path / "run")
    assert found.frame["largest"].notna().all()
    assert (
        json.loads((tmp_path / "run/summary.json").read_text())["metrics"]["largest"]["log"] is True
    )
    from spodgt import report

    assert "largest parameter" in report.write(tmp_path / "run").read_text()


# --- records ------------------------------------------------------------------------------------------
def test_what_is_written_is_what_is_read(result: spodgt.Result, tmp_path: Path) -> None:
    result.diverged = [Diverged("spod-gt-memory", 1, 20, 16, "0.5")]
    result.seconds, result.prediction = 1.5, {"lines": []}
    result.write(tmp_path)
    again = Record.read(tmp_path)
    for name in ("frame", "participation", "networks"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(result, name))
    for name in ("versions", "diverged", "complete", "seconds", "prediction", "methods"):
        assert getattr(again, name) == getattr(result, name)
    pd.testing.assert_frame_equal(again.summary(), result.summary())
    assert again.final().query("diverged")[["method", "seed"]].to_numpy().tolist() == [
        ["spod-gt-memory", 1]
    ]
    assert is_complete(tmp_path)
    result.diverged, result.seconds, result.prediction = [], None, None


def test_a_network_is_kept_with_its_positions_and_probabilities(result: spodgt.Result) -> None:
    network = spodgt.Network.draw(spodgt.graphs.RandomGeometric(5, radius=0.9), seed=1)
    available = spodgt.Beta(0.5, 0.5, floor=0.2).draw(network, 1)
    kept = result.drawn()[1]
    np.testing.assert_array_equal(kept.senders, network.senders)
    np.testing.assert_array_equal(kept.receivers, network.receivers)
    np.testing.assert_allclose(kept.p, available.p)
    np.testing.assert_allclose(kept.p_hat, available.p_hat)
    assert kept.positions is not None
    assert network.positions is not None
    np.testing.assert_allclose(kept.positions, network.positions)
    ring = spodgt.Network.ring(4)
    table = networks_table([(0, ring, spodgt.Always().draw(ring, 0))])
    assert table["x"].isna().all()
    assert Record(result.frame, result.participation, table, {}, {}).drawn()[0].positions is None


def test_names_of_clients_stand_in_the_tables(tmp_path: Path) -> None:
    edges = [("lima", "oslo"), ("oslo", "rome"), ("rome", "lima")]
    network = spodgt.Network.from_networkx(nx.DiGraph(edges))
    result = spodgt.train(
        "spod-gt", spodgt.Quadratic.random(3, 2), network, rounds=3, out=tmp_path / "run"
    )
    for table in (result.networks, result.participation):
        links = table[table["kind"] == "link"]
        assert list(zip(links["sender_name"], links["receiver_name"], strict=True)) == [
            edges[2],
            *edges[:2],
        ]
        assert table["receiver"].tolist() == [0, 1, 2, 0, 1, 2], "numbers stay"
    again = Record.read(tmp_path / "run")
    assert again.drawn()[0].names == ("lima", "oslo", "rome")
    assert again.drawn()[0].label(1) == "oslo"


def test_participation_is_counted_in_rounds(result: spodgt.Result) -> None:
    one = result.observed()["spod-gt"][0]
    rows = result.participation.query("method == 'spod-gt' and seed == 0")
    assert one.rounds == 30
    np.testing.assert_allclose(one.clients * 31, rows.loc[rows["kind"] == "client", "gradients"])
    np.testing.assert_allclose(one.links * 30, rows.loc[rows["kind"] == "link", "messages"])


@pytest.mark.parametrize("file", ["metrics", "participation", "networks", "clients"])
def test_a_table_of_something_else_is_one_sentence(
    result: spodgt.Result, tmp_path: Path, file: str
) -> None:
    result.write(tmp_path)
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / f"{file}.parquet")
    with pytest.raises(
        InvalidInput, match=f"is not a whole run directory .*{file}.parquet has no column"
    ):
        Record.read(tmp_path)


def test_a_folder_of_something_else_is_one_sentence(tmp_path: Path) -> None:
    assert not is_complete(tmp_path / "missing")
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(InvalidInput, match="is not a whole run directory"):
        Record.read(tmp_path)


def test_a_divergence_says_what_to_do() -> None:
    said = str(Diverged("spod-gt", 2, 64, 48, "9.0"))
    assert said.startswith(
        "spod-gt (seed 2) diverged by round 64, finite at round 48, with step_size=9.0; "
    )
    assert said.endswith("use a smaller step_size.")


def test_where_all_runs_diverged_the_summary_still_has_the_metric() -> None:
    row = {"method": "ab", "seed": 0, "round": 0, "delay": 0.0, "loss": 2.0, "accuracy": 0.1}
    lost = row | {"round": 9, "loss": math.nan, "accuracy": math.nan}
    done = pd.DataFrame({"method": ["ab"], "gradients": 9, "messages": 9})
    gone = [Diverged("ab", 0, 9, 8, "0.1")]
    result = spodgt.Result(pd.DataFrame([row, lost]), done, pd.DataFrame(), {}, {}, gone)
    assert result.summary()["accuracy"].isna().all()
    assert "NaN" in repr(result)


# --- sweeps -------------------------------------------------------------------------------------------
def test_a_sweep_is_read_as_it_was_written(result: spodgt.Result, tmp_path: Path) -> None:
    (tmp_path / "cells/a").mkdir(parents=True)
    result.write(tmp_path / "cells/a")
    cells = [
        CellRecord("a", {"network.radius": 0.4}, tmp_path / "cells/a", True, 2.5),
        CellRecord("b", {"network.radius": 0.5}, tmp_path / "cells/b", False, None, "it broke"),
    ]
    scale = Scale("laptop", {"problem.width": (16, 64)}, {"network.radius": (2, 8)})
    record = SweepRecord(
        "mine", collect(cells), {"network.radius": [0.4, 0.5]}, cells, scale=scale, source="#"
    )
    record.write(tmp_path)
    again = SweepRecord.read(tmp_path)
    assert again.failures == {"b": "it broke"}
    assert (again.complete, again.missing, again.seconds) == (False, [], 2.5)
    assert (
        str(again.scale)
        == str(scale)
        == "laptop scale: width 16 (paper 64), 2 of 8 values of network.radius"
    )
    assert again.cells[0].read().methods == ["spod-gt", "spod-gt-memory"]
    pd.testing.assert_frame_equal(again.results, record.results)
    assert again.results["network.radius"].tolist() == [0.4] * 6


def test_scales_and_labels_in_words() -> None:
    assert str(Scale("paper")) == "paper scale: the paper's size"
    assert Scale("paper").full
    assert not Scale("smoke", {"run.delay": (50, 5000)}).full
    assert not Scale(note="mine").full
    assert label({"kind": "labels", "labels": [1, 0.5]}) == "labels, 1, 0.5"


# --- statistics ---------------------------------------------------------------------------------------
def last(values: dict[str, list[float]], metric: str = "accuracy") -> pd.DataFrame:
    rows = [
        {"method": name, "seed": seed, metric: value}
        for name, column in values.items()
        for seed, value in enumerate(column)
    ]
    return pd.DataFrame(rows)


def test_paired_differences_agree_with_scipy() -> None:
    a, b = [0.7, 0.8, 0.75, 0.6], [0.6, 0.65, 0.72, 0.63]
    (one,) = statistics.paired(last({"spod-gt": a, "k-gt": b}), "accuracy", "spod-gt")
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    np.testing.assert_allclose([one.low, one.high], [low, high])
    assert one.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert (one.ahead, one.seeds, one.verdict) == (3, 4, "inconclusive")


def test_a_lead_in_loss_is_a_smaller_loss() -> None:
    (one,) = statistics.paired(
        last({"spod-gt": [1.0, 1.1], "k-gt": [2.0, 2.1]}, "loss"), "loss", "spod-gt"
    )
    assert one.mean == pytest.approx(1.0)
    assert one.ahead == 2


def test_one_seed_has_no_interval() -> None:
    (one,) = statistics.paired(last({"spod-gt": [0.7], "k-gt": [0.6]}), "accuracy", "spod-gt")
    assert np.isnan(one.low)
    assert one.verdict == "one seed"


def test_only_seeds_of_both_are_paired() -> None:
    frame = last({"spod-gt": [0.7, 0.8], "k-gt": [0.6]})
    (one,) = statistics.paired(frame, "accuracy", "spod-gt")
    assert one.seeds == 1


def test_a_line_is_straight_between_the_evaluations_of_each_seed() -> None:
    rows = [("m", 0, 0, 1.0), ("m", 0, 10, 3.0), ("m", 1, 0, 2.0), ("m", 1, 5, 5.0)]
    frame = pd.DataFrame(rows, columns=["method", "seed", "delay", "loss"])
    grid = np.array([0.0, 2.5, 5.0, 10.0, 12.0])
    points, band = statistics.lines(frame, "loss", "delay", grid)["m"]
    assert points is grid
    assert band.seeds == [0, 1]
    np.testing.assert_allclose(band.mean, [1.5, 2.5, 3.5, 4.0, np.nan])
    np.testing.assert_allclose(band.sigma, [0.5, 1.0, 1.5, 1.0, np.nan])
    assert band.final == 4.0
    points, band = statistics.lines(frame, "loss", "delay")["m"]
    assert points.tolist() == [0, 5, 10], "all evaluations"
    np.testing.assert_allclose(band.mean, [1.5, 3.5, 4.0])


def test_a_seed_that_left_the_numbers_is_not_hidden_by_the_others() -> None:
    rows = [("m", 0, 0, 1.0), ("m", 0, 10, np.inf), ("m", 1, 0, 2.0), ("m", 1, 10, 2.0)]
    frame = pd.DataFrame(rows, columns=["method", "seed", "delay", "loss"])
    _, band = statistics.lines(frame, "loss", "delay")["m"]
    assert band.mean[0] == 1.5
    assert np.isnan(band.mean[-1])


def test_each_method_is_shown_at_its_best() -> None:
    rows = [
        ("a", 0.1, 0, 0.5),
        ("a", 0.2, 0, 0.6),
        ("a", 0.2, 1, 0.8),
        ("b", 0.1, 0, 0.9),
        ("b", 0.2, 0, 0.1),
    ]
    frame = pd.DataFrame(rows, columns=["method", "run.step_size", "seed", "accuracy"])
    best = statistics.best_cells(frame, ["run.step_size"], "accuracy")
    assert best["method"].tolist() == ["b", "a"]
    assert best["run.step_size"].tolist() == [0.1, 0.2]
    assert best["accuracy"].tolist() == [0.9, pytest.approx(0.7)]
    lowest = statistics.best_cells(
        frame.rename(columns={"accuracy": "loss"}), ["run.step_size"], "loss"
    )
    assert lowest.set_index("method")["run.step_size"].to_dict() == {"b": 0.2, "a": 0.1}


def test_a_result_prints_as_its_table_in_80_columns(result: spodgt.Result) -> None:
    lines = repr(result).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert "..." not in repr(result)
    assert {"spod-gt", "spod-gt-memory"} == {line.split()[0] for line in lines[1:]}
    shown = re.findall(r"<td>(.*?)</td>", result._repr_html_())
    assert " ".join(shown).split() == " ".join(lines[1:]).split()  # the same values in a notebook
    rows = [
        {
            "method": "spod-gt-importance",
            "seed": 0,
            "round": 123_456,
            "delay": 5.0,
            "loss": 0.51234,
        }
    ]
    rows[0] |= {
        "bytes": 1.7e9,
        "accuracy": 0.61234,
        "accuracy_average": 0.61234,
        "accuracy_worst": 0.61234,
    }
    wide = Record(pd.DataFrame(rows), result.participation, result.networks, {}, {})
    wide.diverged = [Diverged("spod-gt-importance", 0, 9, 8, "0.1")]
    heads, cells, diverged = repr(wide).splitlines()
    assert max(map(len, (heads, cells))) <= 80
    assert heads.split()[0] == "method"
    assert {"delay", "rounds", "bytes", "seeds"} <= set(heads.split())
    assert "1.7 GB" in cells
    assert diverged == "spod-gt-importance diverged in 1 of 1 seeds."


def three(**options: object) -> spodgt.Result:
    """A method that waits, one that does not, one with local steps; clients and links are sporadic."""
    methods = ["spod-gt", "sporadic-k-gt", spodgt.method("fedavg", local_steps=4)]
    problem = spodgt.Quadratic.random(4, 3, seed=1)
    participation = spodgt.Bernoulli(0.5, 0.4)
    ring = spodgt.Network.ring(4)
    return spodgt.compare(methods, problem, ring, participation, seeds=[0, 1], **options)  # type: ignore[arg-type]


def test_costs_of_the_summary_are_means_per_seed(tmp_path: Path) -> None:
    result = three(rounds=12, out=tmp_path / "run")
    summary = result.summary().set_index("method")
    last = result.final().groupby("method")
    for name in ("gradients", "messages"):
        per_seed = result.participation.groupby(["method", "seed"])[name].sum()
        means = per_seed.groupby("method").mean()
        pd.testing.assert_series_equal(summary[name], means[summary.index], check_names=False)
    for name in ("delay", "bytes"):
        pd.testing.assert_series_equal(
            summary[name], last[name].mean()[summary.index], check_names=False
        )
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())["methods"]
    assert {"method", "delay", "rounds", "gradients", "messages", "bytes", "seeds"} <= set(rows[0])
    (table,) = [line for line in repr(result).splitlines() if line.strip().startswith("method")]
    assert {"delay", "bytes"} <= set(table.split())


def test_one_seed_prints_no_deviation() -> None:
    problem = spodgt.Quadratic.random(4, 3, seed=1)
    network = spodgt.Network.ring(4)
    one = repr(spodgt.train("spod-gt", problem, network, rounds=3)).splitlines()
    assert one[0].split()[:4] == ["method", "loss", "±", "σ"]
    assert one[1].split()[2] == "–"
    noisy = spodgt.Quadratic.random(4, 3, seed=1, noise=1.0)
    two = repr(spodgt.train("spod-gt", noisy, network, rounds=3, seeds=[0, 1])).splitlines()
    assert float(two[1].split()[2]) > 0


def test_notes_say_who_waits_and_what_is_evaluated(tmp_path: Path) -> None:
    result = three(rounds=12, out=tmp_path / "run")
    exchange = "With local steps, evaluated after the last exchange: fedavg (K = 4)."
    waits = (
        "Compared by rounds, but a round of sporadic-k-gt waits for idle clients or links "
        "and takes longer"
    )
    assert result.notes()[0] == exchange
    assert result.notes()[1].startswith(waits)
    assert repr(result).splitlines()[-2:] == result.notes()
    assert Record.read(tmp_path / "run").notes() == result.notes(), "a report has them, too"
    assert three(delay=40.0).notes() == [exchange], "at equal delay nothing is to be said"


def test_virtual_time_prints_seconds() -> None:
    problem = spodgt.Quadratic.random(4, 3, seed=1)
    time = spodgt.Time(compute=0.01, latency=0.01)
    result = spodgt.train("spod-gt", problem, spodgt.Network.ring(4), time=time, seconds=0.5)
    heads = repr(result).splitlines()[0].split()
    assert {"seconds", "bytes", "rounds"} <= set(heads)
    assert "delay" not in heads
    assert result.summary()["seconds"].item() == pytest.approx(0.5, rel=0.1)


def test_a_curve_ends_where_its_method_ends() -> None:
    rows = [
        ("slow", 0, 0.0, 1.0),
        ("slow", 0, 300.0, 3.0),
        ("quick", 0, 0.0, 2.0),
        ("quick", 0, 1.1, 5.0),
    ]
    rows += [("quick", 1, 0.0, 4.0), ("quick", 1, 0.7, 7.0)]
    frame = pd.DataFrame(rows, columns=["method", "seed", "delay", "loss"])
    grid = statistics.grid_of(frame, "delay", 7)
    lines = statistics.lines(frame, "loss", "delay", grid)
    _, quick = lines["quick"]
    is_shown = np.isfinite(quick.mean)
    assert grid[is_shown].max() == 1.1, "with its last model, also between two points"
    assert quick.mean[is_shown][-1] == quick.final == 6.0
    _, slow = lines["slow"]
    assert np.isfinite(slow.mean).all()
    figure = figures.plot_curves(frame, "loss", "delay")
    ends = {}
    for line in figure.axes[0].get_lines():
        drawn = np.isfinite(np.asarray(line.get_ydata(), float))
        ends[str(line.get_label()).split()[0]] = np.asarray(line.get_xdata())[drawn].max()
    assert ends == {"slow": 300.0, "quick": 1.1}
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {"quick  6", "slow  3"}


# --- deprecated names ----------------------------------------------------------------------------
def test_record_warns_of_deprecated_names(result: spodgt.Result) -> None:
    with pytest.warns(DeprecationWarning, match=r"Result\.judged is .*Result\.primary_metric"):
        assert result.judged == result.primary_metric


def test_primary_metric_is_that_of_the_validation_data_without_test_data() -> None:
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    clients = [(x, (x[:, 0] > 0).long())] * 3
    problem = spodgt.Learning(nn.Linear(2, 2), nn.CrossEntropyLoss(), clients, validation=0.2)
    result = spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=2)
    assert result.primary_metric == "validation_accuracy"
    assert "validation_accuracy" in str(result)
    headings = [str(column.header) for column in results_table(result).columns]
    assert headings[1] == "validation_accuracy"
