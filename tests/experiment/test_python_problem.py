"""Problems that a function of the user's makes: one door for every command, and for Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import spodgt
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment, PythonProblem
from spodgt.sweeps.sweep import fingerprint
from tests.conftest import Cli

SOURCE = '''
import torch
import spodgt

def build(clients, hidden=4, shift=0.0, seed=0):
    """Two clouds of points, divided evenly."""
    draws = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (clients * 20,), generator=draws)
    x = torch.randn(clients * 20, 3, generator=draws) + 2.0 * y[:, None] + shift
    model = torch.nn.Sequential(torch.nn.Linear(3, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 2))
    parts = [(x[i::clients], y[i::clients]) for i in range(clients)]
    return spodgt.Learning(model, torch.nn.CrossEntropyLoss(), parts, test=(x, y), batch_size=4)

def fixed():
    return spodgt.Quadratic.random(5, 2)

def asks(must, clients):
    return spodgt.Quadratic.random(clients, must)

def any_of(**options):
    return spodgt.Quadratic.random(options["size"], 2)

def one(clients, client=None):
    """The whole problem, or the part of one client."""
    assert client is None or client.startswith("p")
    return spodgt.Quadratic.random(clients if client is None else 1, 2)

def fails(clients):
    raise RuntimeError("no data today")

def refused(clients):
    return spodgt.Learning(None, torch.nn.CrossEntropyLoss(), [])

def nothing(clients):
    pass

number = 3
'''
CONFIG = """
[run]
methods = ["spod-gt"]
rounds = 3
seeds = 2
[network]
kind = "ring"
clients = 4
[participation]
kind = "always"
[problem]
kind = "python"
build = "mine.py:build"
[problem.arguments]
hidden = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code and a config in it, which is also the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


def made(build: str = "mine.py:build", clients: int = 4, /, **arguments: Any) -> Any:
    return spodgt.problems.python(build, **arguments).make(clients)


def done(cli: Cli, *words: object) -> None:
    code, _, err = cli(*words)
    assert code == 0, err


# --- laws --------------------------------------------------------------------------------------------
def test_a_file_and_a_module_make_the_same_problem(folder: Path) -> None:
    (folder / "as_module_of_laws.py").write_text(SOURCE)
    one, two = made(hidden=5), made("as_module_of_laws:build", hidden=5)
    assert one.clients == two.clients == 4
    assert one.parameters == two.parameters == 4 * 5 + 6 * 2
    assert torch.equal(one.start(3), two.start(3))


def test_it_survives_toml_and_overrides(folder: Path) -> None:
    experiment = Experiment.read("mine.toml")
    assert experiment.problem == spodgt.problems.python("mine.py:build", hidden=5)
    again = Experiment.parse(experiment.to_dict())
    assert again == experiment
    assert again.to_dict()["problem"] == {
        "kind": "python",
        "build": "mine.py:build",
        "arguments": {"hidden": 5},
    }
    wider = experiment.override({"problem.arguments.hidden": 7})
    assert wider.base_problem.parameters == 4 * 7 + 8 * 2
    plain = Experiment().override({"problem.kind": "python", "problem.build": "mine.py:fixed"})
    assert plain.problem == spodgt.problems.python("mine.py:fixed")


def test_the_function_is_told_what_it_asks_for(folder: Path) -> None:
    assert made("mine.py:fixed", 5).clients == 5
    assert made("mine.py:asks", 3, must=6).parameters == 6
    assert made("mine.py:any_of", 3, size=3).clients == 3
    recipe = spodgt.problems.python("mine.py:one")
    assert recipe.make(4).clients == 4
    assert recipe.make(4, "p2").clients == 1, "the part of one client"


def test_what_the_file_imports_lies_beside_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "sizes_beside_it.py").write_text("SIZE = 7\n")
    (inner / "problem.py").write_text(
        "import spodgt, sizes_beside_it\n"
        "def build(clients): return spodgt.Quadratic.random(clients, sizes_beside_it.SIZE)\n"
    )
    assert made("inner/problem.py:build").parameters == 7


def test_code_beside_the_config_is_found_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    experiment = Experiment.read("../mine.toml")
    assert experiment.to_dict()["problem"]["folder"] == ".."
    assert Experiment.parse(experiment.to_dict()).base_problem.clients == 4, (
        "a written config says where it was"
    )
    monkeypatch.chdir(folder)
    assert "folder" not in Experiment.read("mine.toml").to_dict()["problem"], "what the user wrote"


def test_a_changed_file_is_read_again_and_has_another_digest(folder: Path) -> None:
    before = spodgt.problems.python("mine.py:fixed")
    assert (before.make(5).parameters, before.digest) == (2, before.digest)
    (folder / "mine.py").write_text(SOURCE.replace("random(5, 2)", "random(5, 3)"))
    after = spodgt.problems.python("mine.py:fixed")
    assert after.make(5).parameters == 3
    assert after.digest != before.digest
    assert before == after, "the same recipe"


# --- commands ----------------------------------------------------------------------------------------
def test_python_and_the_command_line_get_the_same_numbers(folder: Path, cli: Cli) -> None:
    done(cli, "run", "mine.toml", "--out", "out")
    theirs = pd.read_parquet("out/metrics.parquet")
    recipe = spodgt.problems.python("mine.py:build", hidden=5)
    ours = spodgt.compare(
        ["spod-gt"], recipe, spodgt.Network.ring(4), rounds=3, seeds=range(2)
    ).frame
    pd.testing.assert_frame_equal(ours, theirs)
    given = spodgt.compare(
        ["spod-gt"], recipe.make(4), spodgt.Network.ring(4), rounds=3, seeds=range(2)
    )
    pd.testing.assert_frame_equal(ours, given.frame)
    done(cli, "run", "out/config.toml", "--out", "again")
    pd.testing.assert_frame_equal(pd.read_parquet("again/metrics.parquet"), theirs)


@pytest.mark.parametrize(
    "words",
    [
        "compare --problem mine.py:build --rounds 2 --seeds 1 --methods spod-gt --set network.clients=4 "
        "--set network.radius=0.9 --set problem.arguments.hidden=2 --out out",
        "network --config mine.toml --out n.png",
        "theory --config mine.toml --set run.methods=['spod-gt-memory'] --set problem.build=mine.py:fixed "
        "--set problem.arguments={} --set network.clients=5",
        "run mine.toml --set problem.arguments.hidden=2 --set problem.arguments.shift=0.5 --out out",
    ],
)
def test_every_command_takes_it(folder: Path, cli: Cli, words: str) -> None:
    done(cli, *words.split())


def test_a_sweep_over_its_arguments(folder: Path, cli: Cli) -> None:
    (folder / "sweep.toml").write_text(CONFIG + '[sweep]\n"problem.arguments.hidden" = [2, 3]\n')
    done(cli, "sweep", "sweep.toml", "--out", "out", "--workers", "1", "--json")
    table = pd.read_csv("out/results.csv")
    assert set(table["problem.arguments.hidden"]) == {2, 3}
    assert json.loads(Path("out/sweep.json").read_text())["complete"]


@pytest.mark.slow
def test_a_sweep_in_worker_processes(folder: Path, cli: Cli) -> None:
    (folder / "sweep.toml").write_text(CONFIG + '[sweep]\n"problem.arguments.hidden" = [2, 3]\n')
    done(cli, "sweep", "sweep.toml", "--out", "out", "--workers", "2", "--json")


def test_a_cell_of_other_code_is_another_cell(folder: Path) -> None:
    before = fingerprint(Experiment.read("mine.toml"))
    assert fingerprint(Experiment.read("mine.toml")) == before
    (folder / "mine.py").write_text(SOURCE + "# another line\n")
    assert fingerprint(Experiment.read("mine.toml")) != before


def test_resuming_with_other_code_is_refused(folder: Path, cli: Cli) -> None:
    assert cli("run", "mine.toml", "--out", "out")[0] == 0
    assert cli("run", "mine.toml", "--out", "out", "--resume")[0] == 0
    (folder / "mine.py").write_text(SOURCE + "# another line\n")
    code, _, err = cli("run", "mine.toml", "--out", "out", "--resume")
    assert code == 2
    assert err.startswith("spodgt: error: out holds another run: source of mine.py:build is '")
    assert err.endswith("here; use the same settings or another folder.\n")


@pytest.mark.network
@pytest.mark.slow
def test_two_processes_train_what_one_does(folder: Path, cli: Cli) -> None:
    words = ["-m", "spodgt", "run", "mine.toml", "--set", "run.dtype=float64", "--out"]
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    ended = subprocess.run(
        [*launch, *words, "two"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert cli(*words[2:], "one")[0] == 0
    one, two = (pd.read_parquet(f"{name}/metrics.parquet") for name in ("one", "two"))
    pd.testing.assert_frame_equal(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.network
@pytest.mark.slow
def test_two_processes_with_other_parameters_are_told_so(folder: Path) -> None:
    (folder / "mine.py").write_text(
        SOURCE.replace("seed=0)", "seed=int(__import__('os').environ['RANK']))", 1)
    )
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    command = [*launch, "-m", "spodgt", "run", "mine.toml", "--out", "two"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode != 0
    assert "all processes must be alike, but rank 1 has other settings" in ended.stderr
    assert not (folder / "two").exists()


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "processes", "sentence"),
    [
        ("normed", 2, "model must not keep running statistics on the distributed runtime"),
        ("build", 5, "5 processes are too many for 4 clients; use torchrun --nproc-per-node 4."),
    ],
)
def test_what_several_processes_cannot_run_leaves_nothing(
    folder: Path, function: str, processes: int, sentence: str
) -> None:
    more = SOURCE[SOURCE.index("def build") : SOURCE.index("def fixed")].replace("build", "normed")
    more = more.replace("torch.nn.Tanh()", "torch.nn.BatchNorm1d(hidden)").replace(
        "batch_size=4", "buffers='pull'"
    )
    (folder / "mine.py").write_text(SOURCE + more)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
    ]
    command = [
        *launch,
        "-m",
        "spodgt",
        "run",
        "mine.toml",
        "--set",
        f"problem.build=mine.py:{function}",
    ]
    ended = subprocess.run(
        [*command, "--out", "out"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode != 0
    assert sentence in ended.stderr
    assert "was lost" not in ended.stderr
    assert not (folder / "out").exists()


# --- bad input ---------------------------------------------------------------------------------------
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no function": (
        {"build": "mine.py"},
        "problem.build='mine.py' must be module:function or file.py:function; use problem.py:build.",
    ),
    "a number": (
        {"build": 3},
        'problem.build must be text in quotes, got 3; use build = "problem.py:build".',
    ),
    "no file": (
        {"build": "nowhere.py:build"},
        "problem.build='nowhere.py:build' does not exist in FOLDER; give the path of a Python file.",
    ),
    "no module": (
        {"build": "nowhere_at_all:build"},
        "problem.build='nowhere_at_all:build' cannot be imported: ModuleNotFoundError: "
        "No module named 'nowhere_at_all'.",
    ),
    "another name": (
        {"build": "mine.py:biuld"},
        "problem.build='mine.py:biuld' must name a function, but FOLDER/mine.py has none of that name; "
        "did you mean 'build'?",
    ),
    "not a function": (
        {"build": "mine.py:number"},
        "problem.build='mine.py:number' must name a function, but FOLDER/mine.py has none of that name; "
        "choose from build, fixed, asks, any_of, one, fails, refused, nothing.",
    ),
    "syntax": (
        {"build": "broken.py:build"},
        "problem.build='broken.py:build' cannot be imported: SyntaxError: invalid syntax "
        "(broken.py, line 1).",
    ),
    "module that ends": (
        {"build": "ends.py:build"},
        "problem.build='ends.py:build' cannot be imported: SystemExit: 3 (ends.py, line 1).",
    ),
    "raises": (
        {"build": "mine.py:fails"},
        "problem.build='mine.py:fails' failed: RuntimeError: no data today (mine.py, line 29).",
    ),
    "raises one of ours": (
        {"build": "mine.py:refused"},
        "problem.build='mine.py:refused' failed: clients must hold at least one dataset, got none "
        "(mine.py, line 32).",
    ),
    "returns nothing": (
        {"build": "mine.py:nothing"},
        "problem.build='mine.py:nothing' must return a spodgt.Learning, got NoneType; return one.",
    ),
    "other clients": (
        {"build": "mine.py:fixed"},
        "problem.build='mine.py:fixed' made 5 clients, but the network has 4; give it a parameter clients, "
        "or use network.clients = 5.",
    ),
    "misspelt argument": (
        {"arguments": {"hiden": 3}},
        "problem.arguments.hiden=3 is not a parameter of mine.py:build; did you mean 'hidden'?",
    ),
    "missing argument": (
        {"build": "mine.py:asks"},
        "problem.arguments.must is missing, which mine.py:asks needs; add it to [problem.arguments].",
    ),
    "clients": (
        {"arguments": {"clients": 3}},
        "problem.arguments.clients=3 cannot be set: it is network.clients; leave it out.",
    ),
    "arguments are a list": (
        {"arguments": [3]},
        "problem.arguments must be a table, got [3]; write it as [problem.arguments].",
    ),
    "no build": ({"build": None}, 'problem.build is missing; add build = "problem.py:build".'),
    "a key of another kind": (
        {"model": "svm"},
        "model='svm' is not a key of problem; choose from build, arguments, folder.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_sentence(folder: Path, cli: Cli, case: str) -> None:
    changes, sentence = BAD[case]
    (folder / "broken.py").write_text("def build(:\n")
    (folder / "ends.py").write_text("raise SystemExit(3)\n")
    problem = {"kind": "python", "build": "mine.py:build", **changes}
    values = {key: json.dumps(value) for key, value in problem.items() if value is not None}
    values |= {"arguments": toml(changes["arguments"])} if "arguments" in changes else {}
    text = (
        CONFIG.partition("[problem]")[0]
        + "[problem]\n"
        + "\n".join(f"{k} = {v}" for k, v in values.items())
    )
    (folder / "bad.toml").write_text(text)
    before = set(os.listdir())
    code, out, err = cli("run", "bad.toml", "--out", "out")
    assert (code, out) == (2, "")
    assert err.replace(str(folder.resolve()), "FOLDER").startswith(f"spodgt: error: {sentence}")
    assert err.count("\n") == 1
    assert set(os.listdir()) - before <= {"__pycache__"}, "nothing was written"


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


def test_arguments_are_what_a_config_can_hold() -> None:
    with pytest.raises(
        InvalidInput, match=r"arguments.x must be something a config can hold .* got Tensor"
    ):
        spodgt.problems.python("mine.py:build", x=torch.zeros(2))  # type: ignore[arg-type]
    assert isinstance(spodgt.problems.python("mine.py:build", x=[1, {"y": "z"}]), PythonProblem)
