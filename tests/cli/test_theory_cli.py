"""`spodgt theory`, and the section of the report."""

import json

import numpy as np
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from spodgt import Bernoulli, Learning, Network, SpodGT, cli, method, theory, train
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.report import write

QUADRATIC = {
    "network.kind": "ring",
    "network.clients": 3,
    "participation.kind": "bernoulli",
    "participation.p": [1.0, 0.5, 0.8],
    "participation.p_hat": 0.9,
    "problem.kind": "quadratic",
    "problem.parameters": 2,
    "problem.noise": 0.1,
    "run.step_size": 0.05,
}


def options(changes):
    return [part for key, value in changes.items() for part in ("--set", f"{key}={json.dumps(value)}")]


def call(*arguments):
    return CliRunner().invoke(cli.app, ["theory", *arguments])


def test_page_of_a_quadratic():
    found = call(*options(QUADRATIC))
    assert found.exit_code == 0, found.output
    assert max(map(cell_len, found.output.splitlines())) <= 80
    for words in ("Conditions of the paper", "p_hat >= r_A", "✗", "✓", "this is exact", "spod-gt-memory"):
        assert words in found.output
    assert "infeasible" in found.output


def test_json_is_complete():
    found = json.loads(call(*options(QUADRATIC), "--json", "--seed", "1").output)
    assert found["clients"] == 3
    assert found["model"]["exact"]
    assert len(found["conditions"]["paper"]) == 10
    assert len(found["conditions"]["corrected"]) == 4
    assert found["bounds"]["corrected"].startswith("infeasible")
    assert set(found["rules"]) == {"zero", "importance", "memory"}
    assert found["rules"]["zero"]["bias"] > 0
    assert found["rules"]["memory"]["bias"] == pytest.approx(0, abs=1e-12)
    for each in found["rules"].values():
        assert each["stable"]
        assert 0 < each["recommended_step"] <= each["largest_stable_step"] / 2
        assert each["floor"] == pytest.approx(np.hypot(each["bias"], each["noise"]))
    assert found["constants"]["paper"]["diameter"] == 2
    assert found["estimates"]["curvature"] == "exact"


def test_feasible_experiment_has_bounds():
    """Without idleness and noise, and with a tiny step, the corrected conditions hold."""
    always = {**QUADRATIC, "participation.p": 1.0, "participation.p_hat": 1.0, "problem.noise": 0.0}
    found = call(*options(always | {"run.step_size": 1e-6, "run.rounds": 50}))
    assert found.exit_code == 0, found.output
    assert "Bound on the mean of E|∇F|² over 50 rounds:" in found.output
    surveyed = theory.survey(theory.setup(Experiment().override(always | {"run.step_size": 1e-6})))
    assert all(one.holds for one in surveyed.conditions["corrected"])
    assert surveyed.corrected_bound > surveyed.estimates.gradient_norms[0] ** 2


def test_learning_uses_a_model_and_says_so():
    changes = {"network.kind": "ring", "network.clients": 3, "problem.model": "logistic"}
    found = call(*options(changes | {"participation.floor": 0.3}))
    assert found.exit_code == 0, found.output
    assert max(map(cell_len, found.output.splitlines())) <= 80
    for words in ("A model of the problem", "power iteration", "typical gradient", "estimated"):
        assert words in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "network.kind=moebius"], "network.kind='moebius'"),
        (["--seed", "one"], "--seed must be"),
        (["--config", "nowhere.toml"], "nowhere.toml does not exist"),
        (["--set", "network.clients=2000", "--set", "network.kind=ring"], "too many"),
    ],
)
def test_bad_input_is_exit_code_two(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["spodgt", "theory", *arguments])
    if "network.clients=2000" in arguments:
        arguments += [*options({"problem.kind": "quadratic", "problem.parameters": 1})]
        monkeypatch.setattr("sys.argv", ["spodgt", "theory", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_schedules_and_other_participation_are_noted():
    changes = {
        **QUADRATIC,
        "participation.kind": "every-k",
        "run.step_size": {"schedule": "inverse", "start": 0.1},
    }
    changes = {
        key: value for key, value in changes.items() if key not in ("participation.p", "participation.p_hat")
    }
    drawn = theory.setup(Experiment().override(changes))
    assert drawn.step_size == pytest.approx(0.1)
    assert len(drawn.notes) == 2


def test_the_report_compares_measured_and_predicted(tmp_path):
    changes = QUADRATIC | {"run.methods": ["spod-gt", "spod-gt-memory"], "run.rounds": 200}
    changes |= {"run.delay": None, "run.seeds": 8}
    config = Experiment().override(changes)
    from spodgt.training.api import run

    result = run(config, out=tmp_path / "run")
    found = theory.section(result.config, result.frame)
    assert [line.method for line in found.lines] == ["spod-gt", "spod-gt-memory"]
    for line in found.lines:
        assert line.measured[0] == pytest.approx(line.predicted[0], rel=1e-6)
        assert np.abs(np.log(line.measured / line.predicted[line.rounds])).max() < 0.4
        assert line.measured[-5:].mean() == pytest.approx(line.floor, rel=0.3)
        assert line.rate < 1
    assert json.dumps(found.as_dict())
    result.prediction = found.as_dict()
    result.write(tmp_path / "run")
    assert "Measured and predicted" in write(tmp_path / "run").read_text(encoding="utf-8")
    assert theory.section({"problem": "something from Python"}, result.frame) is None
    assert theory.section(Experiment().to_dict(), result.frame) is None


def test_vanishing_schedule_is_what_train_accepts():
    import torch
    from torch import nn

    data = [
        (torch.randn(n, 3, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 2)
        for n in (9, 20, 30)
    ]
    problem = Learning(nn.Linear(3, 2), nn.CrossEntropyLoss(), data)
    plan = theory.vanishing_schedule(50, problem.holdings.sizes)
    planned = plan.batches(problem)
    assert planned.batches(np.arange(3)).tolist() == plan.batch_size.tolist()
    algorithm = method("spod-gt", step_size=plan.schedule)
    result = train(
        algorithm, planned, Network.ring(3), plan.participation(0.9), rounds=plan.rounds, seeds=[0, 1]
    )
    assert np.isfinite(result.frame["train_loss"].iloc[-1])
    # a batch of runs draws what each run alone draws
    alone = train(algorithm, planned, Network.ring(3), plan.participation(0.9), rounds=plan.rounds, seeds=1)
    both = result.frame[result.frame["seed"] == 1]["loss" if "loss" in alone.frame else "train_loss"]
    assert both.to_numpy() == pytest.approx(alone.frame[both.name].to_numpy(), nan_ok=True, rel=1e-5)
    assert result.frame[result.frame["seed"] == 1]["consensus_x"].to_numpy() == pytest.approx(
        alone.frame["consensus_x"].to_numpy(), rel=1e-4
    )
    with pytest.raises(InvalidInput, match="batch_size must be one number or 3"):
        problem.with_batch_size([1, 2])
    with pytest.raises(InvalidInput, match="whole number"):
        problem.with_batch_size([1, 2, 0])
    assert isinstance(plan.participation(), Bernoulli)
    assert SpodGT(plan.step_size).step_size == pytest.approx(plan.schedule.at(1))
