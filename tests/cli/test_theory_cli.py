"""`spodgt theory`: the page, its JSON, and bad input."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner, Result

from spodgt import cli
from spodgt.cli.theory import setting_of
from spodgt.experiment import Experiment
from spodgt.record import Record
from spodgt.theory import summarize

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


def options(changes: Mapping[str, object]) -> list[str]:
    return [
        part for key, value in changes.items() for part in ("--set", f"{key}={json.dumps(value)}")
    ]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["theory", *arguments])


def test_page_of_a_quadratic() -> None:
    found = call(*options(QUADRATIC))
    assert found.exit_code == 0, found.output
    assert max(map(cell_len, found.output.splitlines())) <= 80
    assert "Rounds per decade: rounds for a 10× reduction" in found.output
    for words in (
        "Conditions of the paper",
        "p_hat >= r_A",
        "✗",
        "✓",
        "this is exact",
        "spod-gt-memory",
    ):
        assert words in found.output
    assert "infeasible" in found.output


def test_json_is_complete() -> None:
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
        assert 0 < each["recommended_rounds_per_decade"] <= each["rounds_per_decade"]
        assert each["floor"] == pytest.approx(np.hypot(each["bias"], each["noise"]))
    assert found["constants"]["paper"]["diameter"] == 2
    assert found["estimates"]["curvature"] == "exact"


def test_feasible_experiment_has_bounds() -> None:
    """Without idleness and noise, and with a tiny step, the corrected conditions hold."""
    always = {**QUADRATIC, "participation.p": 1.0, "participation.p_hat": 1.0, "problem.noise": 0.0}
    found = call(*options(always | {"run.step_size": 1e-6, "run.rounds": 50}))
    assert found.exit_code == 0, found.output
    assert "Bound on the mean of E|∇F|² over 50 rounds:" in found.output
    shown = summarize(setting_of(Experiment().override(always | {"run.step_size": 1e-6}), 0))
    assert all(one.holds for one in shown.conditions["corrected"])
    assert isinstance(shown.corrected_bound, float)
    assert shown.corrected_bound > shown.estimates.gradient_norms[0] ** 2


def test_learning_uses_a_model_and_says_so() -> None:
    changes = {"network.kind": "ring", "network.clients": 3, "problem.model": "logistic"}
    found = call(*options(changes | {"participation.floor": 0.3}))
    assert found.exit_code == 0, found.output
    assert max(map(cell_len, found.output.splitlines())) <= 80
    assert "…" not in found.output  # nothing is cut off
    for words in ("A model of the problem", "power iteration", "typical gradient", "estimated"):
        assert words in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "network.kind=moebius"], "network.kind='moebius'"),
        (["--seed", "one"], "--seed must be"),
        (["--config", "nowhere.toml"], "nowhere.toml does not exist"),
        (["--set", "network.clients=2000", "--set", "network.kind=ring"], "at most 300"),
    ],
)
def test_bad_input_is_exit_code_two(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["spodgt", "theory", *arguments])
    if "network.clients=2000" in arguments:
        arguments += [*options({"problem.kind": "quadratic", "problem.parameters": 1})]
        monkeypatch.setattr("sys.argv", ["spodgt", "theory", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_schedules_and_other_participation_are_noted() -> None:
    changes = {
        **QUADRATIC,
        "participation.kind": "every-k",
        "run.step_size": {"schedule": "inverse", "start": 0.1},
    }
    changes = {
        key: value
        for key, value in changes.items()
        if key not in ("participation.p", "participation.p_hat")
    }
    asked = setting_of(Experiment().override(changes), 0)
    assert asked.step_size == pytest.approx(0.1)
    assert [note.split()[0] for note in asked.notes] == ["clients", "the"]


def test_step_size_of_the_first_method_that_the_theory_covers() -> None:
    tables = [
        {"name": "k-gt", "step_size": 0.5},
        {"name": "spod-gt-memory", "step_size": 0.25},
        "spod-gt",
    ]
    asked = setting_of(Experiment().override({**QUADRATIC, "run.methods": tables}), 0)
    assert asked.step_size.tolist() == [0.25] * 3
    asked = setting_of(Experiment().override({**QUADRATIC, "run.methods": tables[:1]}), 0)
    assert asked.step_size.tolist() == [0.05] * 3


def test_a_run_on_quadratics_records_its_prediction(tmp_path: Path) -> None:
    changes = QUADRATIC | {"run.methods": ["spod-gt", "k-gt"], "run.rounds": 40, "run.seeds": 2}
    out = tmp_path / "run"
    found = CliRunner().invoke(
        cli.app, ["compare", "--rounds", "40", *options(changes), "--out", str(out), "--json"]
    )
    assert found.exit_code == 0, found.output
    prediction = json.loads((out / "summary.json").read_text(encoding="utf-8"))["prediction"]
    assert [line["method"] for line in prediction["lines"]] == ["spod-gt"]
    assert Record.read(out).prediction == prediction
    assert "Measured and predicted" in (out / "report.html").read_text(encoding="utf-8")
