"""The search for each method's own step size: laws of halving, resuming, and what a user gets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import spodgt
from spodgt.algorithms import describe
from spodgt.cli import app
from spodgt.errors import Failed, InvalidInput
from spodgt.experiment import Experiment
from spodgt.record import Record
from spodgt.record.record import Diverged, is_complete
from spodgt.sweeps.successive_halving import BUDGETS, Candidate, MethodSearch, Search
from spodgt.sweeps.tune import Tuned, tune_experiment
from spodgt.theory import Dynamics
from spodgt.theory.limits import stable_steps
from spodgt.types import Evaluation
from tests.sweeps.test_sweep import stamps

SMALL: dict[str, dict[str, Any]] = {
    "run": {"methods": ["spod-gt-memory", "k-gt"], "seeds": 2, "rounds": 80},
    "network": {"clients": 4, "radius": 0.9},
    "participation": {"kind": "bernoulli", "p": 0.6, "p_hat": 0.6},
    "problem": {"kind": "quadratic", "parameters": 3},
}
FEW = Search(candidates=4, seeds=2)


def experiment(**run: Any) -> Experiment:
    return Experiment.parse(SMALL | {"run": SMALL["run"] | run})


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuned, Path]:
    out = tmp_path_factory.mktemp("tune")
    return tune_experiment(experiment(), out, FEW, workers=1), out


# --- laws --------------------------------------------------------------------------------------------
def test_the_better_half_goes_on(tuned: tuple[Tuned, Path]) -> None:
    found, _ = tuned
    for _, own in found.frame.groupby("method"):
        parts: dict[Any, Any] = dict(list(own.groupby("budget")))
        assert sorted(map(float, parts)) == list(BUDGETS)
        before: Any = None
        for budget in BUDGETS:
            rows = parts[budget]
            if before is not None:
                kept = before.nsmallest(math.ceil(len(before) / 2), "loss")["step_size"]
                assert set(rows["step_size"]) == set(kept)
            before = rows
        best = before.loc[before["loss"].idxmin(), "step_size"]
        assert found.best[own["method"].iloc[0]]["step_size"] == best


def test_first_steps_are_inside_the_stable_limit(tuned: tuple[Tuned, Path]) -> None:
    found, _ = tuned
    limit = found.limits["spod-gt-memory"]
    assert limit is not None
    steps = found.frame[found.frame["method"] == "spod-gt-memory"]["step_size"].tolist()
    assert steps[:4] == pytest.approx([limit / 2**n for n in range(4)], rel=0.05)
    draw = experiment().draw(1000)
    exact = Dynamics(
        draw.network, draw.availability.p, draw.availability.p_hat,
        draw.problem.H.double().numpy(), draw.problem.c.double().numpy(), rule="memory",  # type: ignore[attr-defined]
    ).largest_stable_step()  # fmt: skip
    assert limit == pytest.approx(exact, rel=0.05)


def test_seeds_of_the_experiment_are_not_used(tuned: tuple[Tuned, Path]) -> None:
    _, out = tuned
    for path in (out / "cells").iterdir():
        used = json.loads((path / "summary.json").read_text())["config"]["run"]["seeds"]
        assert used == [1000, 1001]


def test_a_second_search_runs_nothing_and_finds_the_same(tuned: tuple[Tuned, Path]) -> None:
    found, out = tuned
    before = {path: stamps(path) for path in (out / "cells").iterdir()}
    again = tune_experiment(experiment(), out, FEW, workers=1)
    assert {path: stamps(path) for path in (out / "cells").iterdir()} == before
    assert again.best == found.best
    assert again.frame.equals(found.frame)


def test_a_fresh_search_deletes_its_short_runs_only(tmp_path: Path) -> None:
    full = experiment(methods=["spod-gt-memory"], rounds=16)
    tune_experiment(full, tmp_path, FEW, workers=1)
    before = {cell.name: stamps(cell) for cell in (tmp_path / "cells").iterdir()}
    (tmp_path / "notes.txt").write_text("mine")
    tune_experiment(full, tmp_path, FEW, fresh=True, workers=1)
    after = {cell.name: stamps(cell) for cell in (tmp_path / "cells").iterdir()}
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in before)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_search_that_was_stopped_goes_on(tuned: tuple[Tuned, Path], tmp_path: Path) -> None:
    def stop(method: str, fraction: float, note: str) -> None:
        if fraction >= 0.34:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune_experiment(experiment(), tmp_path, FEW, workers=1, progress=stop)
    done = {path: stamps(path) for path in (tmp_path / "cells").iterdir() if is_complete(path)}
    assert done
    again = tune_experiment(experiment(), tmp_path, FEW, workers=1)
    assert again.frame.equals(tuned[0].frame)
    assert all(stamps(path) == stamp for path, stamp in done.items())


@pytest.mark.slow
def test_worker_processes_find_the_same(tuned: tuple[Tuned, Path], tmp_path: Path) -> None:
    assert tune_experiment(experiment(), tmp_path, FEW, workers=2).frame.equals(tuned[0].frame)


# --- what is tried -----------------------------------------------------------------------------------
def test_steps_beyond_the_first_ones_are_tried_where_they_may_be_better(tmp_path: Path) -> None:
    """Without theory's help the first guesses may all be too large: then smaller ones follow."""
    steep = spodgt.Quadratic.random(4, 3, seed=1)
    steep = spodgt.Quadratic(steep.H * 3000, steep.c)
    found = spodgt.tune(
        [spodgt.method("spod-gt-memory", momentum=0.1)],
        steep,
        spodgt.Network.draw(spodgt.graphs.Complete(4)),
        rounds=80,
        search=FEW,
    )
    tried = found.frame["step_size"]
    assert found.limits == {"spod-gt-memory+momentum": None}
    assert tried.min() < 1 / 10**1.5
    assert not math.isnan(found.rows()[0]["loss"])


def test_a_method_that_always_diverges_is_a_failure() -> None:
    steep = spodgt.Quadratic.random(4, 3, seed=1)
    with pytest.raises(
        Failed,
        match=r"^no method could be tuned: spod-gt\+momentum diverged within 12\.5% of the experiment with "
        r"every step size tried there, down to 3.2e-05\.$",
    ):
        spodgt.tune(
            [spodgt.method("spod-gt", momentum=0.1)], spodgt.Quadratic(steep.H * 1e12, steep.c),
            spodgt.Network.draw(spodgt.graphs.Complete(4)), rounds=80, search=FEW,
        )  # fmt: skip


def test_one_more_field_and_schedules(tmp_path: Path) -> None:
    methods = [
        {
            "name": "spod-gt-memory",
            "step_size": {"schedule": "constant", "start": 0.1, "warmup": 5},
        },
        {"name": "ab", "step_size": [0.1, 0.1, 0.2, 0.2]},
    ]
    always = {
        **SMALL,
        "participation": {"kind": "always"},
        "run": SMALL["run"] | {"methods": methods},
    }
    search = Search(candidates=2, seeds=1, vary={"momentum": [0.0, 0.5]})
    found = tune_experiment(Experiment.parse(always), tmp_path, search, workers=1)
    one, other = found.best.values()
    assert one["step_size"]["warmup"] == 5
    assert one["momentum"] in (0.0, 0.5)
    ratio = [each / other["step_size"][-1] for each in other["step_size"]]
    assert ratio == pytest.approx([0.5, 0.5, 1, 1])
    assert set(found.frame["momentum"]) == {0.0, 0.5}
    again = Experiment.read(tmp_path / "tuned.toml").methods
    assert [*map(describe, again)] == [*map(describe, found.methods)]


def test_from_python_with_objects() -> None:
    problem, network = spodgt.Quadratic.random(4, 2, seed=3), spodgt.Network.ring(4)
    found = spodgt.tune(["spod-gt", "ab"], problem, network, rounds=64, search=FEW)
    assert set(found.best) == {"spod-gt", "ab"}
    plain = spodgt.compare(["spod-gt", "ab"], problem, network, rounds=64)
    better = spodgt.compare(found.methods, problem, network, rounds=64)
    assert (better.summary()["loss"].to_numpy() < plain.summary()["loss"].to_numpy()).all()


def test_limits_where_theory_has_none() -> None:
    draw = experiment().draw(0)
    names = ["spod-gt-memory", "k-gt", "spod-gt"]
    memory, other, wrapped = stable_steps(
        draw, [*(spodgt.method(name) for name in names[:2]), spodgt.method("spod-gt", adam=True)]
    )
    assert memory is not None
    assert other is not None
    assert wrapped is None


def test_mistakes_are_named(tmp_path: Path) -> None:
    for fields, message in [
        ({"candidates": 1}, r"^candidates must be a whole number of at least 2, got 1; use 2\.$"),
        ({"seeds": 0}, r"^seeds must be a whole number of at least 1, got 0"),
        ({"vary": {"momentum": 0.9}}, r"^vary of momentum must be a list of values, got 0.9"),
        ({"vary": {"momentum": [0], "l2": [0]}}, r"^vary must be one field, got momentum, l2"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            Search(**fields)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInput, match=r"^gossip has no step size to tune; leave it out of methods\.$"
    ):
        tune_experiment(experiment(methods=["gossip"]), tmp_path / "no", FEW)
    with pytest.raises(InvalidInput, match=r"^pace=1 is not a field of spod-gt-memory"):
        tune_experiment(experiment(), tmp_path / "no", Search(vary={"pace": [1, 2]}))
    assert not (tmp_path / "no").exists()


# --- the command line --------------------------------------------------------------------------------
ARGUMENTS = [
    "--set",
    "problem.kind=quadratic",
    "--set",
    "network.clients=4",
    "--set",
    "network.radius=0.9",
]
ARGUMENTS += ["--rounds", "40", "--methods", "spod-gt,k-gt", "--workers", "1", "--candidates", "3"]


def test_the_command_shows_a_table_and_leaves_a_config(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "t"), "--tuning-seeds", "1"]
    shown = CliRunner().invoke(app, ["tune", *ARGUMENTS, *out])
    assert shown.exit_code == 0, shown.output
    assert "step size" in shown.output
    assert "on the objective itself, which has no test data" in " ".join(shown.output.split())
    assert "k-gt" in shown.output
    told = CliRunner().invoke(app, ["tune", *ARGUMENTS, *out, "--json"])
    rows = json.loads(told.stdout)["methods"]
    assert {row["method"] for row in rows} == {"spod-gt", "k-gt"}
    assert {path.name for path in (tmp_path / "t").iterdir()} >= {
        "tune.csv",
        "tune.json",
        "tune.png",
        "tuned.toml",
    }
    again = CliRunner().invoke(
        app, ["run", str(tmp_path / "t" / "tuned.toml"), "--out", str(tmp_path / "r")]
    )
    assert again.exit_code == 0, again.output


def test_bad_input_of_the_command(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "t")]
    assert isinstance(
        CliRunner().invoke(app, ["tune", "--vary", "momentum", *out]).exception, InvalidInput
    )
    wrong = CliRunner().invoke(
        app, ["reproduce", "fmnist-rate", "--tuned", "--out", str(tmp_path / "r")]
    )
    assert "shows every step size" in str(wrong.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_figure_with_every_method_at_its_best(tmp_path: Path) -> None:
    arguments = [
        "--scale",
        "smoke",
        "--tuned",
        "--workers",
        "1",
        "--out",
        str(tmp_path),
        "--delay",
        "24",
    ]
    done = CliRunner().invoke(
        app, ["reproduce", "fmnist-noniid", *arguments, "--methods", "spod-gt,k-gt"]
    )
    assert done.exit_code == 0, done.output
    facts = json.loads((tmp_path / "fmnist-noniid-tuned" / "sweep.json").read_text())
    assert "own step size" in facts["title"]
    assert (tmp_path / "fmnist-noniid-tuned" / "report.html").exists()


# --- which data choose -------------------------------------------------------------------------------
def coin_tosses(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Labels that nothing can predict."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=draw), torch.randint(0, 2, (count,), generator=draw)


def guesses(**options: Any) -> spodgt.Learning:
    torch.manual_seed(0)
    clients = [coin_tosses(15, seed) for seed in range(3)]
    return spodgt.Learning(nn.Linear(4, 2), nn.CrossEntropyLoss(), clients, batch_size=5, **options)


def searched(problem: spodgt.Learning, **options: Any) -> Tuned:
    search = Search(candidates=4, seeds=1)
    return spodgt.tune(
        ["spod-gt"], problem, spodgt.Network.ring(3), rounds=24, search=search, **options
    )


def test_test_data_do_not_change_the_choice() -> None:
    found = [searched(guesses(test=coin_tosses(10, 100 + draw))) for draw in range(3)]
    assert len({tuned.steps["spod-gt"] for tuned in found}) == 1
    for tuned in found[1:]:
        assert tuned.frame.equals(found[0].frame)
    assert found[0].chosen_on == (
        "20% of each client's training samples, held out during the search only: later runs train on all of "
        "them"
    )


def test_validation_data_make_the_choice(tmp_path: Path) -> None:
    """As test data they would make the same one; the runs themselves are those on all training data."""
    held = coin_tosses(10, 100)
    tuned = searched(guesses(test=coin_tosses(10, 7), validation=held), out=tmp_path)
    assert tuned.metric == "accuracy"
    assert tuned.chosen_on == "the validation data of the problem"
    network = spodgt.Network.ring(3)
    for row in tuned.frame[tuned.frame["budget"] == BUDGETS[-1]].to_dict("records"):
        method = spodgt.method("spod-gt", step_size=row["step_size"])
        run = spodgt.train(method, guesses(test=held), network, rounds=12, seeds=[1000])
        assert row["accuracy"] == run.final()["accuracy"].item()
    facts = json.loads((tmp_path / "tune.json").read_text())
    assert facts["chosen_on"] == tuned.chosen_on
    first = (tmp_path / "tuned.toml").read_text().splitlines()[0]
    assert first == "# Step sizes chosen by accuracy on the validation data of the problem."


def test_a_problem_without_test_data_is_tuned_on_held_out_samples() -> None:
    tuned = searched(guesses())
    assert not math.isnan(tuned.rows()[0]["accuracy"])


def test_single_samples_cannot_be_held_out(tmp_path: Path) -> None:
    problem = spodgt.Learning(
        nn.Linear(4, 2), nn.CrossEntropyLoss(), [coin_tosses(1, n) for n in range(3)]
    )
    with pytest.raises(
        InvalidInput, match=r"^client 0 holds 1 sample, so none can be held out to choose by"
    ):
        searched(problem, out=tmp_path / "t")
    assert not (tmp_path / "t").exists()


class Unmeasured(spodgt.Quadratic):
    """A problem that evaluates to nothing."""

    def evaluate(self, x: Tensor, rows: Any = None) -> Evaluation:
        return Evaluation(torch.full((len(x),), math.nan), {})


def test_models_that_are_finite_did_not_diverge() -> None:
    base = spodgt.Quadratic.random(3, 2, seed=0)
    message = (
        r"spod-gt cannot be tuned: its loss is NaN although its models are finite; the problem must"
    )
    with pytest.raises(Failed, match=message):
        spodgt.tune(
            ["spod-gt"], Unmeasured(base.H, base.c), spodgt.Network.ring(3), rounds=24, search=FEW
        )


# --- candidates that are lost late -------------------------------------------------------------------
def method_search(steps: list[float]) -> MethodSearch:
    found = MethodSearch("m", spodgt.method("spod-gt"), 8.0, Search(candidates=len(steps), seeds=1))
    assert [one.step for one in found.candidates] == steps
    return found


def taken(one: MethodSearch, losses: dict[float, float]) -> list[float]:
    """Add the losses of the current candidates, NaN for diverged ones; returns the next step sizes."""
    names = [f"step {candidate.step:g}" for candidate in one.candidates]
    values = [losses.get(candidate.step, math.nan) for candidate in one.candidates]
    frame = pd.DataFrame({"method": names, "seed": 0, "round": 1, "delay": 1.0, "loss": values})
    gone = [
        Diverged(name, 0, 1, 0, "")
        for name, value in zip(names, values, strict=True)
        if math.isnan(value)
    ]
    one.add_results(Record(frame, pd.DataFrame(), pd.DataFrame(), {}, {}, gone), names)
    return [candidate.step for candidate in one.candidates]


@pytest.mark.parametrize("lost_at", [1, 2])
def test_smaller_steps_follow_where_all_were_lost(lost_at: int) -> None:
    one = method_search([8.0, 4.0, 2.0, 1.0])
    assert taken(one, {8.0: 2.0, 4.0: 1.0, 2.0: 3.0, 1.0: 4.0}) == [4.0, 8.0]
    if lost_at == 2:
        assert taken(one, {8.0: 2.0, 4.0: 1.0}) == [4.0]
    smallest = 4.0
    assert taken(one, {}) == [smallest / 2, smallest / 4]
    assert taken(one, {}) == [smallest / 8, smallest / 16]
    assert one.error == ""
    taken(one, {0.5: 1.0, 0.25: 2.0})
    if lost_at == 1:
        taken(one, {0.5: 1.0, 0.25: 2.0})
    assert one.best == Candidate(0.5)


@pytest.mark.parametrize(("lost_at", "part"), [(0, "12.5%"), (1, "25%"), (2, "50%")])
def test_a_method_that_is_lost_with_every_step_says_where(lost_at: int, part: str) -> None:
    one = method_search([8.0, 4.0, 2.0, 1.0])
    good = {8.0: 2.0, 4.0: 1.0, 2.0: 3.0, 1.0: 4.0}
    for _ in range(lost_at):
        taken(one, good)
    while not one.error:
        taken(one, {})
    assert one.best is None
    assert one.error.startswith(
        f"m diverged within {part} of the experiment with every step size tried there, down"
    )


def test_schedules_are_shortened_with_the_budget(tmp_path: Path) -> None:
    schedule = {"schedule": "cosine", "start": 0.1, "rounds": 80, "warmup": 16}
    methods = [{"name": "spod-gt-memory", "step_size": schedule}]
    tuned = tune_experiment(
        experiment(methods=methods), tmp_path, Search(candidates=2, seeds=1), workers=1
    )
    (best,) = tuned.best.values()
    assert (best["step_size"]["rounds"], best["step_size"]["warmup"]) == (80, 16)
    used = set()
    for path in (tmp_path / "cells").iterdir():
        run = json.loads((path / "summary.json").read_text())["config"]["run"]
        for method in run["methods"]:
            used.add((run["rounds"], method["step_size"]["rounds"], method["step_size"]["warmup"]))
    assert used == {(10, 10, 2), (20, 20, 4), (40, 40, 8)}
