"""Early stopping, best models, and callbacks that stop a run or fail."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import spodgt
from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.experiment import Experiment
from spodgt.record.run_folder import CHECKPOINT

NETWORK = spodgt.Network.random_geometric(4, radius=0.9, seed=0)
PARTICIPATION = spodgt.Bernoulli(0.6, 0.7)
METHODS = ["spod-gt", "k-gt"]
STEPPING = [spodgt.method("spod-gt", step_size=0.1), spodgt.method("k-gt", step_size=0.3)]
GENERATOR = torch.Generator().manual_seed(0)


def blobs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 3, (count,), generator=GENERATOR)
    centers = 1.5 * nn.functional.one_hot(labels, 6)
    return centers + torch.randn(count, 6, generator=GENERATOR), labels


CLIENTS = [blobs(30) for _ in range(4)]
TEST = blobs(200)


def network_problem() -> spodgt.Learning:
    """Evaluated in the thread that trains."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return spodgt.Learning(model, nn.CrossEntropyLoss(), CLIENTS, test=TEST, batch_size=5)


def linear_problem() -> spodgt.Learning:
    """Evaluated in the background, if nothing depends on the values."""
    torch.manual_seed(0)
    return spodgt.Learning(nn.Linear(6, 3), nn.CrossEntropyLoss(), CLIENTS, test=TEST, batch_size=5)


def compare(problem: spodgt.Learning, **options: Any) -> spodgt.Result:
    settings: dict[str, Any] = {"rounds": 120, "every": 4, "seeds": [0, 1, 2], **options}
    return spodgt.compare(STEPPING, problem, NETWORK, PARTICIPATION, **settings)


def last_round(values: pd.Series[float], patience: int, min_delta: float) -> int:
    """The round in which a run stops, by the definition: `values` are by round, lower is better."""
    best = math.inf
    stale = 0
    for k, value in values.items():
        if value < best - min_delta:
            best = value
            stale = 0
        else:
            stale += 1
        if stale == patience:
            return int(str(k))
    return int(values.index[-1])


def check_equal(result: spodgt.Result, expected: spodgt.Result) -> None:
    """The same evaluations, models and stopped runs, bit for bit."""
    assert result.complete
    for table in ("frame", "clients", "participation"):
        left = getattr(result, table)
        pd.testing.assert_frame_equal(left, getattr(expected, table), check_exact=True)
    assert result.stopped == expected.stopped
    for ours, theirs in (
        (result.models, expected.models),
        (result.best_models, expected.best_models),
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(models, theirs[key]) for key, models in ours.items())


STOP_WHEN = spodgt.EarlyStopping("loss", patience=3, min_delta=0.02)


# --- laws ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("problem", [network_problem, linear_problem])
def test_each_seed_stops_on_its_own_and_has_the_evaluations_of_a_full_run(problem: Any) -> None:
    full = compare(problem()).frame
    result = compare(problem(), stop_when=STOP_WHEN)
    ends = {}
    for (method, seed), rows in full.groupby(["method", "seed"]):
        ends[method, seed] = last_round(rows.set_index("round")["loss"], 3, 0.02)
    found = result.frame.groupby(["method", "seed"])["round"].max().to_dict()
    assert found == ends
    assert len(set(ends.values())) > 2  # runs of a batch stop in different rounds
    stopped = {(run.method, run.seed): run.round for run in result.stopped}
    assert stopped == {run: k for run, k in ends.items() if k < 120}
    limits = full.set_index(["method", "seed"]).index.map(ends)
    expected = full[full["round"] <= limits].reset_index(drop=True)
    columns = ["method", "seed", "round", "delay", "loss", "accuracy"]
    pd.testing.assert_frame_equal(result.frame[columns], expected[columns], check_exact=True)
    assert len(result.clients) == 2 * 3 * 4  # clients of all runs, stopped or not
    assert "stopped early" in repr(result)


def test_a_callback_stops_one_run_of_a_batch() -> None:
    calls: list[tuple[str, int, int]] = []

    def stop_seed_1(row: dict[str, Any]) -> object:
        calls.append((row["method"], row["seed"], row["round"]))
        if row["seed"] == 1 and row["round"] >= 40:
            return spodgt.STOP
        return None

    result = compare(linear_problem(), callbacks=[stop_seed_1])
    ends = result.frame.groupby(["method", "seed"])["round"].max()
    assert ends.to_dict() == {
        (method, seed): 40 if seed == 1 else 120 for method in METHODS for seed in range(3)
    }
    assert [(run.method, run.seed, run.round) for run in result.stopped] == [
        ("spod-gt", 1, 40),
        ("k-gt", 1, 40),
    ]
    rows = result.frame[["method", "seed", "round"]].itertuples(index=False)
    assert sorted(calls) == sorted(tuple(row) for row in rows)  # each evaluation once


@pytest.mark.parametrize("answer", [None, True, "stop", 1])
def test_other_answers_of_callbacks_stop_nothing(answer: object) -> None:
    result = compare(linear_problem(), rounds=8, callbacks=[lambda row: answer])
    assert not result.stopped


@pytest.mark.parametrize("problem", [network_problem, linear_problem])
def test_best_models_are_those_of_the_best_evaluation(problem: Any) -> None:
    result = compare(problem(), keep="best", stop_when=spodgt.EarlyStopping("loss", patience=8))
    for method in METHODS:
        for seed in range(3):
            rows = result.frame.query("method == @method and seed == @seed")
            best_loss = float(rows["loss"].min())
            with torch.no_grad():
                losses = [
                    float(nn.functional.cross_entropy(model.eval()(TEST[0]), TEST[1]))
                    for model in (
                        result.model(method, seed, client, best=True) for client in range(4)
                    )
                ]
            assert sum(losses) / 4 == pytest.approx(best_loss, rel=1e-5)


def test_the_accuracy_is_the_default_metric_and_higher_is_better() -> None:
    result = compare(linear_problem(), keep="best")
    rows = result.frame.query("method == 'k-gt' and seed == 2")
    with torch.no_grad():
        output = result.model("k-gt", 2, best=True).eval()(TEST[0])
    accuracy = float((output.argmax(1) == TEST[1]).float().mean())
    best = rows.sort_values("accuracy", kind="stable", ascending=False).iloc[0]
    assert accuracy == pytest.approx(best["accuracy_average"])


def test_the_best_models_of_a_diverged_run_are_kept() -> None:
    with pytest.warns(spodgt.errors.DivergenceWarning):
        result = spodgt.train(
            spodgt.method("spod-gt", step_size=1e38),
            linear_problem(),
            NETWORK,
            rounds=60,
            every=1,
            keep="best",
        )
    model = result.model(best=True)
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())


# --- workers and resuming ------------------------------------------------------------------------
class StopAt:
    """Stops seeds in different rounds, and fails once in the round `fails_in` of spod-gt."""

    def __init__(self, fails_in: int | None = None, error: BaseException | None = None) -> None:
        self.fails_in = fails_in
        self.error = error or OSError("the server of the metrics is down")

    def __call__(self, row: dict[str, Any]) -> object:
        if row["round"] == self.fails_in and row["method"] == "spod-gt":
            self.fails_in = None
            raise self.error
        return spodgt.STOP if row["round"] >= 40 + 20 * row["seed"] else None


@pytest.mark.parametrize("workers", [2, 3])
def test_results_do_not_depend_on_the_number_of_workers(workers: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep": "best", "callbacks": [StopAt()], "stop_when": STOP_WHEN}
    expected = compare(network_problem(), workers=1, **options)
    assert len({run.reason for run in expected.stopped}) == 2
    check_equal(compare(network_problem(), workers=workers, out=tmp_path, **options), expected)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("problem", [network_problem, linear_problem])
def test_a_callback_that_fails_loses_nothing(problem: Any, workers: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep": "best", "stop_when": STOP_WHEN, "workers": workers}
    expected = compare(problem(), callbacks=[StopAt()], **options)
    out = tmp_path / "run"
    with pytest.raises(OSError, match="the server of the metrics is down"):
        compare(problem(), out=out, callbacks=[StopAt(fails_in=12)], **options)
    assert {"config.toml", CHECKPOINT, "metrics.parquet", "summary.json"} <= {
        path.name for path in out.iterdir()
    }
    frame = pd.read_parquet(out / "metrics.parquet")
    assert frame["round"].max() >= 12
    check_equal(compare(problem(), out=out, resume=True, callbacks=[StopAt()], **options), expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_gives_a_result_with_models(workers: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path / "run", "keep": "best", "workers": workers}
    interrupted = compare(
        network_problem(), callbacks=[StopAt(fails_in=20, error=KeyboardInterrupt())], **options
    )
    assert not interrupted.complete
    assert isinstance(interrupted.model("spod-gt", 0), nn.Sequential)
    assert isinstance(interrupted.model("spod-gt", 0, best=True), nn.Sequential)
    with pytest.raises(InvalidInput, match="is not one of this result"):
        interrupted.model("k-gt", 2)
    resumed = compare(network_problem(), resume=True, callbacks=[StopAt()], **options)
    options["out"] = None
    check_equal(resumed, compare(network_problem(), callbacks=[StopAt()], **options))


def test_a_callback_that_fails_at_the_last_evaluations_loses_nothing(tmp_path: Path) -> None:
    """Rows of evaluations in the background arrive when the method has ended."""
    pytest.importorskip("tensorboard", reason="pip install 'spodgt[tensorboard]'")

    class Logger(spodgt.loggers.TensorBoard):
        def __call__(self, row: Any) -> None:
            if row["round"] == 120:
                raise OSError("disk is full")

    expected = compare(linear_problem())
    out = tmp_path / "run"
    with pytest.raises(OSError, match="disk is full"):
        compare(linear_problem(), out=out, callbacks=[Logger(tmp_path / "events")])
    assert pd.read_parquet(out / "metrics.parquet")["round"].max() == 120
    check_equal(compare(linear_problem(), out=out, resume=True), expected)


def test_a_stopped_run_stays_stopped_when_the_limits_grow(tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path / "run", "stop_when": STOP_WHEN}
    first = compare(network_problem(), rounds=60, **options)
    assert first.stopped
    longer = compare(network_problem(), rounds=120, resume=True, **options)
    options["out"] = None
    check_equal(longer, compare(network_problem(), rounds=120, **options))


# --- files, configs and the command line ---------------------------------------------------------
def test_files_of_best_models_and_the_record(tmp_path: Path, cli: Any) -> None:
    out = tmp_path / "run"
    result = compare(network_problem(), out=out, keep="best", stop_when=STOP_WHEN)
    average = load_file(out / "models" / "k-gt-best-seed1.safetensors")
    expected = result.state_dict("k-gt", 1, best=True)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in average.items())
    file = tmp_path / "best.safetensors"
    code, _, err = cli("export", out, file, "--method", "k-gt", "--seed", 1, "--best")
    assert code == 0, err
    assert torch.equal(load_file(file)["0.weight"], expected["0.weight"])
    record = spodgt.Result.read(out)
    assert record.stopped == result.stopped
    config = tomllib.loads((out / "config.toml").read_text())
    assert config["run"]["stop_when"] == {
        "kind": "early-stopping",
        "metric": "loss",
        "patience": 3,
        "min_delta": 0.02,
    }
    assert config["run"]["keep"] == "best"


def test_configs_hold_it_and_are_read_again() -> None:
    tables = {"run": {"rounds": 5, "stop_when": {"metric": "loss", "patience": 4}, "keep": "best"}}
    experiment = Experiment.parse(tables)
    assert experiment.run.stop_when == spodgt.EarlyStopping("loss", patience=4)
    again = Experiment.parse(experiment.to_dict())
    assert again == experiment
    plain = Experiment.parse({"run": {"rounds": 5}}).to_dict()["run"]
    assert not plain.keys() & {"stop_when", "keep"}  # configs of older versions are unchanged


CONFIG = """
[run]
methods = ["spod-gt"]
rounds = 200
every = 2
seeds = 2

[network]
clients = 4

[problem]
kind = "quadratic"
"""


def test_options_of_the_command_line(tmp_path: Path, cli: Any) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG)
    out = tmp_path / "out"
    options = ["--patience", 3, "--set", "run.stop_when.metric=loss", "--keep", "best"]
    code, text, err = cli("run", config, "--out", out, *options)
    assert code == 0, err
    record = spodgt.Result.read(out)
    assert record.frame.groupby("seed")["round"].max().min() < 200
    assert {run.reason for run in record.stopped} == {"no better loss in 3 evaluations"}
    assert "stopped early" in text


def test_cells_of_a_sweep_stop_early(tmp_path: Path) -> None:
    result = spodgt.sweep(
        "spod-gt",
        spodgt.problems.Quadratic.random(4, 3, noise=0.3, seed=1),
        NETWORK,
        grid={"run.stop_when.patience": [2, 5]},
        out=tmp_path / "sweep",
        rounds=400,
        every=2,
        stop_when={"metric": "loss", "patience": 2},
    )
    rounds = result.results.set_index("run.stop_when.patience")["round"]
    assert rounds[2] < rounds[5] < 400


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stop_when": {"patience": 0}}, "run.stop_when.patience must be above 0, got 0"),
        ({"stop_when": {"metrc": "loss"}}, "did you mean 'metric'"),
        ({"stop_when": 5}, "stop_when must be a table or a spodgt.EarlyStopping, got 5"),
        ({"stop_when": {"kind": "plateau"}}, "use 'early-stopping'"),
        ({"keep": "all"}, "keep='all' is not known; use 'best'"),
        ({"stop_when": {"metric": "f1"}}, "stop_when.metric='f1' is not a metric of this problem"),
        ({"stop_when": {"metric": "distance"}}, "is not evaluated in this run"),
    ],
)
def test_bad_values_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((InvalidConfig, InvalidInput), match=sentence):
        compare(linear_problem(), **options)


@pytest.mark.parametrize("option", [{"stop_when": {"patience": 3}}, {"keep": "best"}])
def test_a_metric_without_test_data_is_refused(option: dict[str, Any]) -> None:
    problem = spodgt.Learning(nn.Linear(6, 3), nn.CrossEntropyLoss(), CLIENTS)
    with pytest.raises(InvalidInput, match="the problem has no test data"):
        compare(problem, **option)


def test_best_models_that_were_not_kept() -> None:
    result = compare(linear_problem(), rounds=4)
    with pytest.raises(InvalidInput, match='train with keep="best"'):
        result.model("spod-gt", best=True)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"patience": 0}, "patience must be a whole number above 0, got 0"),
        ({"min_delta": -1.0}, "min_delta must be a number of at least 0, got -1.0"),
    ],
)
def test_early_stopping_checks_its_fields(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        spodgt.EarlyStopping(**fields)


def test_the_summary_names_the_best_evaluations(tmp_path: Path) -> None:
    result = compare(linear_problem(), keep="best", out=tmp_path)
    assert [(run.method, run.seed) for run in result.best] == [
        (method, seed) for method in METHODS for seed in range(3)
    ]
    for run in result.best:
        rows = result.frame[(result.frame["method"] == run.method)]
        values = rows[rows["seed"] == run.seed].set_index("round")[run.metric]
        assert run.value == values.max() == values[run.round]
    means = {method: [r.value for r in result.best if r.method == method] for method in METHODS}
    for method, best in means.items():
        line = next(line for line in str(result).splitlines() if f"best: {method} at" in line)
        assert line.endswith(f": test accuracy {sum(best) / 3:.4g}, mean of 3 seeds")
    assert spodgt.Result.read(tmp_path).best == result.best


def test_a_summary_without_best_models_names_none() -> None:
    result = compare(linear_problem(), seeds=[0])
    assert result.best == []
    assert "best:" not in str(result)
