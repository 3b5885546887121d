"""`spodgt simulate`: processes, placeholders, seeds, failures and the report page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spodgt.errors import Failed
from spodgt.experiment import Experiment
from spodgt.sites.run_setup import find_error
from spodgt.sites.simulate import ScriptRun, SiteProcesses, prepare
from spodgt.sites.simulation_report import SimulationResult, write_report
from tests.conftest import Cli

pytestmark = pytest.mark.network

SCRIPT = """
import sys, time, torch, spodgt
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
number, steps, pause, fails = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
x = torch.eye(2)
y = torch.full((2, 1), float(number))
with spodgt.join("unused", model, optimizer, block_steps=2, durability="process") as site:
    print("noise", torch.rand(()).item())
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(pause)
        site.report(loss=loss.item(), accuracy=1 / (1 + loss.item()))
        if fails == site.name and step == 3:
            raise ValueError("the disk is on fire")
"""


JOIN = """
import torch, spodgt
model = torch.nn.Linear(2, 1)
spodgt.join("unused", model, torch.optim.{}, block_steps={})
"""


def experiment(clients: int = 2, **participation: object) -> Experiment:
    table = {"kind": "bernoulli", "p": 1.0, "p_hat": 1.0, **participation}
    return Experiment.parse(
        {
            "network": {"kind": "exponential", "clients": clients},
            "participation": table,
            "run": {"methods": ["spod-gt-memory"], "seeds": [3]},
        }
    )


def prepared(folder: Path, *, steps: int = 40, pause: float = 0.05, fails: str = "-") -> ScriptRun:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    arguments = ["{number}", str(steps), str(pause), fails]
    return prepare(script, arguments, folder / "run", experiment())


def test_every_site_trains_and_the_page_has_all_of_them(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    with SiteProcesses(run) as processes:
        processes.wait(lambda: None, 120)
        codes = [process.poll() for process in processes.running.values()]
    assert codes == [0, 0]
    result = SimulationResult.read(run)
    assert result.audit_passed
    assert [site.progress.steps for site in result.sites] == [40, 40]
    assert all(site.progress.blocks >= 20 and site.progress.messages > 0 for site in result.sites)
    assert all(len(points) == 40 for points in result.scores.values())
    assert result.remarks == []
    # each alone would end at the targets 0 and 1
    losses = [site.progress.loss for site in result.sites]
    assert all(loss is not None and 0.05 < loss < 0.6 for loss in losses), losses
    noise = {run.output(name).read_text().split("noise ")[1].split()[0] for name in run.names}
    assert len(noise) == 2  # every site has a seed of its own
    page = tmp_path / "report.html"
    write_report(result, page)
    text = page.read_text()
    assert "<svg" in text
    assert "Passed" in text
    assert all(f"<td>{name}</td>" in text for name in run.names)


def test_placeholders_are_replaced_and_other_braces_are_left(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    run = ScriptRun(
        run.script, ("{name}/{number}", "{seed}", "{clients}", "{x}"), run.folder, 3, run.manifest
    )
    assert run.command("p1")[2:] == ["p1/1", "3001", "2", "{x}"]
    assert run.environment("p1")["SPODGT_SITE"] == str(run.folder / "p1")
    assert run.environment("p1")["SPODGT_SEED"] == "3001"


def test_a_site_that_fails_is_named_and_all_others_are_ended(tmp_path: Path) -> None:
    run = prepared(tmp_path, steps=100_000, fails="p1")
    sentence = r"p1 ended with exit code 1, .*: ValueError: the disk is on fire; see .*output\.txt"
    with SiteProcesses(run) as processes:
        with pytest.raises(Failed, match=sentence):
            processes.wait(lambda: None, 120)
        started = list(processes.running.values())
    assert all(process.poll() is not None for process in started)


def test_a_killed_site_is_named_with_the_signal(tmp_path: Path) -> None:
    run = prepared(tmp_path, steps=100_000)
    with SiteProcesses(run) as processes:
        processes.running["p0"].kill()
        with pytest.raises(Failed, match="p0 was ended by signal SIGKILL"):
            processes.wait(lambda: None, 120)


def test_a_site_that_never_joins_is_named(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    too_early = pytest.raises(Failed, match=r"p0 had not joined after 0\.01 s; train longer")
    with SiteProcesses(run) as processes, too_early:
        processes.wait(lambda: None, 0.01)
    run.script.write_text("print('another file now')")
    never = pytest.raises(Failed, match="p0 had not joined when its script ended")
    with SiteProcesses(run) as processes, never:
        processes.wait(lambda: None, 120)


def test_limits_of_sites_and_links_are_in_the_manifest(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    arguments = ["{number}", "1", "0", "-"]
    run = prepare(script, arguments, tmp_path / "run", experiment(3, p=0.5, p_hat=0.25))
    assert {client.compute["p"] for client in run.manifest.clients} == {0.5}
    assert {link.p_hat for link in run.manifest.links} == {0.25}


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "it printed nothing"),
        ("Traceback (m\n  a\nspodgt.errors.InvalidInput: x is 1; use 2.\n", "x is 1; use 2"),
        ("one\n  two\n", "two"),
        (
            "Traceback (most recent call last):\n  File x\nKeyError: 'a'\nTask destroyed",
            "KeyError: 'a'",
        ),
    ],
)
def test_the_error_of_a_script_is_found_in_its_output(output: str, message: str) -> None:
    assert find_error(output) == message


def test_bad_input_is_one_sentence_and_makes_no_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    # the progress bar of a library is no reason
    bar = "import sys; sys.stderr.write('\\r 50%|##  | 1/2\\r100%|####| 2/2\\n')"
    (tmp_path / "other.py").write_text(bar)
    (tmp_path / "fails.py").write_text(f"{bar}; raise ValueError('no data\\nin the folder')")
    (tmp_path / "lbfgs.py").write_text(JOIN.format("LBFGS(model.parameters())", 1))
    (tmp_path / "steps.py").write_text(JOIN.format("SGD(model.parameters())", -1))
    (tmp_path / "taken").mkdir()
    cases = {
        "training script missing.py does not exist": ["missing.py"],
        "other.py ended without calling spodgt.join; add spodgt.join or a": ["other.py"],
        "did not reach spodgt.join: ValueError: no data.": ["fails.py"],
        "did not reach spodgt.join: LBFGS evaluates": ["lbfgs.py"],
        "did not reach spodgt.join: block_steps must be a positive number, got -1": ["steps.py"],
        "clients must be at least 2, got 1": ["train.py", "--clients", "1"],
        "network.clients must be a whole number": ["train.py", "--clients", "x"],
        "network.kind='knot' is not known": ["train.py", "--graph", "knot"],
        "--p must be a probability above 0 and at most 1, got 2": ["train.py", "--p", "2"],
        "--p-hat must be a probability above 0 and at most 1, got a": ["train.py", "--p-hat", "a"],
        "--seconds must be positive, got 0.0": ["train.py", "--seconds", "0"],
        "--seed must be a whole number": ["train.py", "--seed", "x"],
        "taken exists already": ["train.py", "--out", "taken"],
    }
    for sentence, arguments in cases.items():
        code, _, err = cli("simulate", *arguments)
        assert (code, sentence in err) == (2, True), err
        assert err.count("\n") == 1, err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("train.py 'open", '--script "train.py \'open" cannot be split into words: no closing'),
        (" ", "--script is empty; write for example --script train.py"),
        ("train.py", "train.py did not reach spodgt.join: LBFGS evaluates"),
    ],
)
def test_script_that_cannot_join_makes_no_run(
    cli: Cli, tmp_path: Path, script: str, sentence: str
) -> None:
    (tmp_path / "train.py").write_text(JOIN.format("LBFGS(model.parameters())", 1))
    code, _, err = cli("peer", "init", "--script", script, "--run", "run")
    assert (code, sentence in err) == (2, True), err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_command_prints_a_table_and_ctrl_c_ends_all_processes(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, out, err = cli(
        "simulate",
        "train.py",
        "--clients",
        "3",
        "--p",
        "0.8",
        "--json",
        "--",
        "{number}",
        "60",
        "0.05",
        "-",
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["audit_passed"]
    assert [site["name"] for site in found["sites"]] == ["p0", "p1", "p2"]
    assert Path(found["report"]).exists()

    command = [
        sys.executable,
        "-m",
        "spodgt",
        "simulate",
        "train.py",
        "--clients",
        "2",
        "--out",
        "long",
    ]
    process = subprocess.Popen(
        [*command, "--", "{number}", "100000", "0.05", "-"], stderr=subprocess.PIPE, text=True
    )
    logs = [tmp_path / "long" / name / "log.jsonl" for name in ("p0", "p1")]
    deadline = time.monotonic() + 120
    while not all(path.exists() and "scores" in path.read_text() for path in logs):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "spodgt: stopped." in err
    sizes = [os.path.getsize(path) for path in logs]
    time.sleep(0.5)
    assert sizes == [os.path.getsize(path) for path in logs]
