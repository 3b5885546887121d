"""The command line: helpful, readable at 80 columns, and leaving complete folders."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from rich.console import Console

import spodgt
from spodgt.algorithms import ALGORITHMS
from spodgt.cli import app
from spodgt.cli.app import ConfigOptions
from spodgt.cli.compare import free_folder, wrap_label
from spodgt.experiment import PAPER_METHODS, Experiment
from spodgt.network.graphs import RECIPES
from spodgt.participation import PARTICIPATIONS
from spodgt.problems.data import PARTITIONS
from spodgt.problems.models import MODELS
from spodgt.record.summary import short_bytes, short_count
from spodgt.training import Progress
from spodgt.training.progress import Display
from tests.conftest import Cli

SMALL = ("--set", "network.clients=4", "--set", "network.radius=0.8", "--set", "run.evaluations=2")
QUADRATIC = (
    "--set",
    "problem.kind=quadratic",
    "--set",
    "problem.parameters=2",
    "--set",
    "network.radius=1.5",
)
FILES = {
    "config.toml",
    "metrics.parquet",
    "networks.parquet",
    "participation.parquet",
    "summary.json",
    "checkpoint.zip",
    "clients.parquet",
}


def commands() -> list[tuple[str, ...]]:
    """Every command there is, with its groups."""

    def walk(command: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        inner = getattr(command, "commands", None)
        return (
            [path]
            if inner is None
            else [p for name in inner for p in walk(inner[name], (*path, name))]
        )

    return walk(typer.main.get_command(app), ())


def fits(text: str) -> None:
    """Nothing is cut, nothing runs over the edge."""
    assert max(map(len, text.splitlines())) <= 80, max(text.splitlines(), key=len)
    assert "…" not in text.replace("mps, …", "")


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(cli: Cli, path: tuple[str, ...]) -> None:
    code, out, _ = cli(*path, "--help")
    assert code == 0
    assert f"Example: spodgt {' '.join(path)}" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("path", [(), ("peer",), ("data",), *commands()], ids=" ".join)
def test_help_shows_no_type_beside_flags(cli: Cli, path: tuple[str, ...]) -> None:
    shown = cli(*path, "--help")[1]
    assert "--help" in shown
    assert "<bool>" not in shown


def test_help_loads_nothing_heavy() -> None:
    """It takes a third of a second; torch alone would take two."""
    heavy = (
        "torch",
        "numba",
        "pandas",
        "matplotlib",
        "networkx",
        "scipy",
        "pyarrow",
        "pydantic",
        "numpy",
    )
    code = f"import sys, spodgt.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_no_command_shows_the_commands(cli: Cli) -> None:
    code, out, err = cli()
    assert code == 2
    assert "compare" in out + err
    assert "error" not in err


def test_compare_needs_no_arguments_but_takes_them(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("compare", "--rounds", 3, "--seeds", 2, "--out", "here", *SMALL)
    assert code == 0, err
    folder = tmp_path / "here"
    assert {path.name for path in folder.iterdir()} >= FILES | {"accuracy.png", "network.png"}
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    frame = pd.read_parquet(folder / "metrics.parquet")
    assert frame["method"].unique().tolist() == list(PAPER_METHODS)
    assert frame["seed"].unique().tolist() == [0, 1]
    assert (frame.groupby(["method", "seed"])["round"].max() == 3).all()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["complete"]
    assert [row["method"] for row in summary["methods"]] == list(PAPER_METHODS)
    assert {"accuracy", "accuracy_std", "delay", "rounds", "seeds"} <= set(summary["methods"][0])
    for name in ("accuracy.png", "network.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert Experiment.read(folder / "config.toml").network.clients == 4
    fits(out)
    for name in PAPER_METHODS:
        assert name in out
    assert out.endswith(": here\n")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the report, which has tests of its own."""
    monkeypatch.setattr("spodgt.report.write", lambda *_, **__: None)


@pytest.mark.usefixtures("quick")
def test_the_folder_holds_what_is_needed_to_run_again(cli: Cli, tmp_path: Path) -> None:
    """`spodgt run` on the saved config gives the same numbers."""
    options = ("--methods", "spod-gt,k-gt", "--rounds", 4, "--seeds", "[5, 2]", *SMALL)
    assert cli("compare", "--out", "first", "--labels-per-client", 2, *options)[0] == 0
    assert cli("run", "first/config.toml", "--out", "second")[0] == 0
    one, two = (
        pd.read_parquet(tmp_path / name / "metrics.parquet") for name in ("first", "second")
    )
    pd.testing.assert_frame_equal(one, two, check_exact=True)
    assert one["seed"].unique().tolist() == [2, 5]
    assert (tmp_path / "first/config.toml").read_text() == (
        tmp_path / "second/config.toml"
    ).read_text()


@pytest.mark.usefixtures("quick")
def test_json_is_json_and_nothing_else(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli(
        "compare", "--rounds", 2, "--seeds", 1, "--json", "--out", "here", *QUADRATIC
    )
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["out"] == "here"
    assert answer["complete"]
    assert len(answer["methods"]) == len(PAPER_METHODS)
    assert "accuracy" not in answer["methods"][0], "a quadratic has none"
    assert (tmp_path / "here" / "loss.png").exists()
    for command in (("methods",), ("data", "list"), ("network",)):
        code, out, err = cli(*command, "--json")
        assert (code, err) == (0, "")
        json.loads(out)


def test_runs_are_numbered_and_the_last_is_resumed(tmp_path: Path) -> None:
    assert free_folder(tmp_path, "compare", resume=False) == tmp_path / "compare"
    for number in ("compare", "compare-2"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "config.toml").touch()
    assert free_folder(tmp_path, "compare", resume=False) == tmp_path / "compare-3"
    assert free_folder(tmp_path, "compare", resume=True) == tmp_path / "compare-2"
    assert free_folder(tmp_path, "run", resume=False) == tmp_path / "run"


@pytest.mark.usefixtures("quick")
def test_resume_says_when_there_is_nothing_yet(cli: Cli) -> None:
    options = ("--rounds", 2, "--seeds", 1, "--methods", "spod-gt", *QUADRATIC)
    code, _, err = cli("compare", *options, "--out", "new", "--resume")
    assert code == 2
    sentence = (
        "--resume found no run in --out new; check the folder, or drop --resume to start a new run."
    )
    assert sentence in err
    assert not Path("new").exists(), "a misspelt folder is not made"
    Path("new").mkdir()
    Path("new/config.toml").touch()  # a run that was killed before its first checkpoint
    code, _, err = cli("compare", *options, "--out", "new", "--resume")
    assert code == 0
    assert err == "spodgt: no checkpoint in new yet; starting at round 0.\n"


@pytest.mark.usefixtures("quick")
def test_a_diverging_method_is_named_and_the_others_finish(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "wild.toml").write_text(
        """
        [run]
        methods = [{ name = "spod-gt", step_size = 1e8 }, "spod-gt-memory"]
        rounds = 60
        seeds = 1
        [network]
        radius = 1.5
        [problem]
        kind = "quadratic"
        """
    )
    code, out, err = cli("run", "wild.toml", "--out", "here")
    assert code == 0
    fits(out)
    assert "spod-gt (diverged)" in out
    assert err.startswith("spodgt: warning: spod-gt (seed 0) diverged by round ")
    assert err.endswith("with step_size=100000000.0; use a smaller step_size.\n")
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert len(summary["diverged"]) == 1
    assert summary["methods"][1]["rounds"] == 60


def test_tables_fit_80_columns_whatever_the_numbers(cli: Cli) -> None:
    code, out, _ = cli("methods")
    assert code == 0
    fits(out)
    assert all(name in out for name in ALGORITHMS)
    code, out, _ = cli("data", "list")
    assert code == 0
    fits(out)
    assert "fashion-mnist-small" in out
    counts = (0, 9_999, 38_879, 132_556, 999_999, 1_234_567, 7_200_000_000, float("nan"))
    assert [short_count(n) for n in counts] == [
        "0",
        "9,999",
        "38.9k",
        "133k",
        "1.0M",
        "1.2M",
        "7.2G",
        "–",
    ]
    sizes = (0, 999, 83_210, 999_999, 1_234_567, 7_200_000_000)
    assert [short_bytes(n) for n in sizes] == [
        "0 B",
        "999 B",
        "83.2 kB",
        "1.0 MB",
        "1.2 MB",
        "7.2 GB",
    ]


def test_results_of_long_names_and_long_runs_are_not_cut() -> None:
    from spodgt.cli.compare import results_table
    from spodgt.record.record import Diverged
    from spodgt.training.result import Result

    names = ["spod-gt-importance step_size=0.0123456789", "spod-gt-importance", "sporadic-k-gt"]
    frame = pd.DataFrame(
        [
            {
                "method": name,
                "seed": seed,
                "round": 123_456,
                "delay": 5000.0,
                "loss": 0.5,
                "accuracy": 0.71234,
                "accuracy_average": 0.72345,
                "accuracy_worst": 0.6,
            }
            for name in names
            for seed in (0, 1)
        ]
    )
    done = pd.DataFrame({"method": names, "gradients": 123_456_789, "messages": 98_765_432_100})
    frame["bytes"] = 123_456_789_000.0
    result = Result(frame, done, pd.DataFrame(), {}, {}, [Diverged(names[1], 0, 9, 8, "0.1")])
    screen = io.StringIO()
    Console(file=screen, width=80).print(results_table(result))
    fits(screen.getvalue())
    lines = screen.getvalue().splitlines()
    assert any(line.strip().startswith("spod-gt-importance") for line in lines), (
        "the longest name is not broken"
    )
    assert any("step_size=0.0" in line for line in lines), "what is longer is continued, not cut"
    # gradients and messages are means over the two seeds, like everything else
    for cell in (
        "0.712",
        "0.723",
        "0.600",
        "123,456",
        "5,000",
        "61.7M",
        "49.4G",
        "123 GB",
        "(diverged)",
    ):
        assert cell in screen.getvalue()


def test_labels_are_broken_before_a_layer_or_between_words() -> None:
    assert wrap_label("spod-gt-importance") == "spod-gt-importance"
    assert wrap_label("spod-gt-memory+top-k") == "spod-gt-memory\n+top-k"
    assert (
        wrap_label("spod-gt-memory+local+momentum+int8") == "spod-gt-memory\n+local+momentum\n+int8"
    )
    assert (
        wrap_label("k-gt local_steps=3, step_size=0.05") == "k-gt\nlocal_steps=3,\nstep_size=0.05"
    )


def test_a_problems_own_score_stands_beside_the_loss() -> None:
    from spodgt.cli.compare import results_table
    from spodgt.record.metrics import declare
    from spodgt.training.result import Result

    declare({"perplexity": "down"})
    row = {"method": "ab", "seed": 0, "round": 9, "delay": 5.0, "loss": 2.0, "perplexity": 7.389}
    done = pd.DataFrame({"method": ["ab"], "gradients": 9, "messages": 9})
    for frame, shown in (
        (pd.DataFrame([row]), True),
        (pd.DataFrame([row]).drop(columns="perplexity"), False),
    ):
        result = Result(frame, done, pd.DataFrame(), {}, {}, [], scores={"perplexity": "down"})
        screen = io.StringIO()
        Console(file=screen, width=80).print(results_table(result))
        assert ("7.389" in screen.getvalue()) == shown


def test_progress_bars_fit_80_columns() -> None:
    screen = io.StringIO()
    console = Console(
        file=screen, width=80, force_terminal=True, color_system=None, legacy_windows=False
    )
    with Display(console) as display:
        for name in ("spod-gt-importance", "k-gt step_size=0.123456789"):
            display.show(Progress(name, 1, 2, 1_234_567, 1_234_567.0, 0.5, 0.7123))
        display.show(Progress("spod-gt", 1, 2, 5, 5.0, 0.5, float("nan")))
        display.bars.refresh()
    lines = screen.getvalue().splitlines()
    last = [line for line in lines if "spod-gt-importance" in line][-1]
    for part in ("spod-gt-importance", "━", "50%", "1,234,567", "acc 0.712"):
        assert part in last
    assert max(len(line.split("\x1b[2K")[-1]) for line in lines) <= 80


def test_network_draws_and_tells(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli(
        "network", "--kind", "directed-geometric", "--clients", 7, "--seed", 3, "--out", "n.svg"
    )
    assert code == 0
    fits(out)
    assert (tmp_path / "n.svg").read_text().startswith("<?xml")
    facts = json.loads(cli("network", "--clients", 7, "--json")[1])
    assert facts["clients"] == 7
    assert len(facts["p_hat"]) == facts["links"] == len(facts["receivers"])
    assert np.all(np.array(facts["p"]) > 0)


def test_a_network_tells_the_names_of_its_clients(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "net.txt").write_text("rome lima\nlima oslo\noslo rome\n")
    options = ("network", "--set", "network.kind=file", "--set", "network.path=net.txt")
    code, out, err = cli(*options)
    assert (code, err) == (0, "")
    assert "lima, oslo, rome" in out
    facts = json.loads(cli(*options, "--json")[1])
    assert facts["names"] == ["lima", "oslo", "rome"]
    assert (facts["senders"], facts["receivers"]) == ([2, 0, 1], [0, 1, 2])
    assert json.loads(cli("network", "--clients", 3, "--json")[1])["names"] is None


def test_a_network_of_one_client(cli: Cli) -> None:
    code, out, err = cli("network", "--kind", "complete", "--clients", "1")
    assert (code, err) == (0, "")
    assert "0 to 0" in out


def test_a_network_from_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("2 0\n0 1\n1 2\n1 0\n")
    (tmp_path / "matrix.csv").write_text("0,1,1\n1,0,0\n0,1,0\n")
    for path in ("links.txt", "matrix.csv"):  # both say: 0 hears 1 and 2, 1 hears 0, 2 hears 1
        out = cli(
            "network", "--set", "network.kind=file", "--set", f"network.path={path}", "--json"
        )[1]
        facts = json.loads(out)
        assert list(zip(facts["receivers"], facts["senders"], strict=True)) == [
            (0, 1),
            (0, 2),
            (1, 0),
            (2, 1),
        ]


def test_set_reaches_every_key(cli: Cli) -> None:
    chosen = Experiment().override(
        {
            "network.clients": 5,
            "network.kind": "ring",  # given last, but does not drop the clients
            "participation.floor": 0.1,
            "problem.partition.labels": 3,
            "run.rounds": 7,
            "run.delay": None,
        }
    )
    tables = chosen.to_dict()
    assert tables["network"] == {"kind": "ring", "clients": 5, "weights": "degree"}
    assert tables["participation"]["floor"] == 0.1
    assert tables["problem"]["partition"] == {"kind": "labels-per-client", "labels": 3}
    assert (chosen.run.rounds, chosen.run.delay) == (7, None)
    assert Experiment.parse({"problem": {"partition": {"labels": 3}}}).problem == chosen.problem


def test_delay_or_rounds_given_alone_replaces_the_other() -> None:
    both = Experiment.parse({"run": {"delay": 10.0, "rounds": 5}})
    for options, expected in (
        (ConfigOptions(rounds="7"), (None, 7)),
        (ConfigOptions(delay="70"), (70.0, None)),
        (ConfigOptions(delay="70", rounds="7"), (70.0, 7)),
        (ConfigOptions(), (10.0, 5)),
    ):
        run = both.override(options.config_changes()).run
        assert (run.delay, run.rounds) == expected


def test_algorithms_is_a_deprecated_name_of_methods(cli: Cli) -> None:
    code, out, err = cli("algorithms", "--json")
    assert (code, out) == cli("methods", "--json")[:2]
    assert err == "spodgt: warning: spodgt algorithms is deprecated; use spodgt methods.\n"
    assert "algorithms" not in cli("--help")[1]


@pytest.mark.skipif(os.name == "nt", reason="pipes of a shell")
def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m spodgt methods --json | head -n 1"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "["
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_where_everything_diverges_the_table_and_the_advice_are_there(
    cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    few = (
        "--methods",
        "spod-gt,dsgd",
        "--rounds",
        "200",
        "--seeds",
        "2",
        "--set",
        "run.step_size=10",
    )
    always = ("--set", "participation.kind=always")
    code, printed, errors = cli("compare", *few, *always, *SMALL, *QUADRATIC, "--out", str(out))
    assert code == 0, errors
    assert "spod-gt" in printed
    assert "use a smaller step_size" in errors
    assert (out / "report.html").exists()


def test_the_page_about_the_configuration_is_true() -> None:
    """Its file is the default, and it names every kind there is with its keys."""
    page = (Path(__file__).parents[2] / "docs/reference/config.md").read_text(encoding="utf-8")
    block = page.split("```toml\n")[1].split("```")[0]
    assert Experiment.parse(tomllib.loads(block)) == Experiment()
    known: tuple[dict[str, Any], ...] = (RECIPES, PARTICIPATIONS, PARTITIONS)
    for kinds in known:
        for kind, made in kinds.items():
            assert f"`{kind}`" in page
            keys = {f.name for f in dataclasses.fields(made) if f.init} - {"clients"}
            assert all(f"`{key}`" in page for key in keys), kind
    for model, entry in MODELS.items():
        assert f"`{model}`" in page
        assert all(f"`{key}`" in page for key in entry.options)
    for slot in dataclasses.fields(Experiment().run):
        assert f"{slot.name} = " in block, slot.name


# --- export ---------------------------------------------------------------------------------------------
def test_export_writes_a_model_by_name(cli: Cli, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    words = (
        "--methods",
        "spod-gt,k-gt",
        "--seeds",
        "2",
        "--rounds",
        "3",
        "--set",
        "problem.test_samples=20",
    )
    assert cli("compare", *words, "--out", "run", "--json")[0] == 0
    code, out, _ = cli(
        "export", "run", "model.safetensors", "--method", "k-gt", "--seed", "1", "--client", "2"
    )
    assert (code, out) == (0, "2 tensors, 7,850 numbers: model.safetensors\n")
    found, whole = (
        load_file(tmp_path / "model.safetensors"),
        load_file("run/models/k-gt-seed1-clients.safetensors"),
    )
    assert all((found[name] == whole[name][2]).all() for name in found)
    for more, sentence in (
        ((), "--method is required, because the run has several; choose from spod-gt, k-gt."),
        (("--method", "k-gt", "--seed", "7"), "--seed=7 is not one of this run; choose from 0, 1."),
        (
            ("--method", "k-gt", "--client", "all"),
            '--client=\'all\' must be "average" or a number below 10; use "average".',
        ),
        (
            ("--method", "k-gt", "--client", "10"),
            '--client=\'10\' must be "average" or a number below 10; use "average".',
        ),
    ):
        assert cli("export", "run", "other.safetensors", *more) == (
            2,
            "",
            f"spodgt: error: {sentence}\n",
        )
    assert not (tmp_path / "other.safetensors").exists()


def test_the_version_has_one_source(cli: Cli) -> None:
    code, out, err = cli("--version")
    assert (code, out, err) == (0, f"spodgt {spodgt.__version__}\n", "")
    assert spodgt.__version__ == metadata.version("spodgt")
