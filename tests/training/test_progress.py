"""Progress without a terminal: a few lines, none in short runs, none with --quiet."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import spodgt
from spodgt.training.progress import Display, Progress, ProgressLog, create_display


class Clock:
    """A clock that advances by `step` seconds at each look."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def report(k: int) -> Progress:
    return Progress("spod-gt", 1, 3, k, 2.5 * k, k / 100, 0.5)


def test_a_line_every_30_seconds() -> None:
    stream = io.StringIO()
    log = ProgressLog(stream, clock=Clock(10.0))
    for k in range(1, 10):
        log.show(report(k))
    assert stream.getvalue().splitlines() == [
        "spodgt: 0:00:30 spod-gt (1 of 3): 3%, k 3 delay 8 acc 0.500",
        "spodgt: 0:01:00 spod-gt (1 of 3): 6%, k 6 delay 15 acc 0.500",
        "spodgt: 0:01:30 spod-gt (1 of 3): 9%, k 9 delay 22 acc 0.500",
    ]


def test_bars_on_a_terminal_and_lines_elsewhere() -> None:
    assert isinstance(create_display(Console(force_terminal=True)), Display)
    assert isinstance(create_display(Console(file=io.StringIO())), ProgressLog)


@pytest.mark.parametrize(("ipywidgets", "shown"), [(None, ProgressLog), (object(), Display)])
def test_a_notebook_without_widgets_has_lines(
    monkeypatch: pytest.MonkeyPatch, ipywidgets: object, shown: type
) -> None:
    """Bars of rich need ipywidgets; without it they are a warning."""
    monkeypatch.setattr("spodgt.training.progress.find_spec", lambda name: ipywidgets)
    assert isinstance(create_display(Console(force_jupyter=True)), shown)


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_on_the_command_line(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    created = []

    def create(console: Console, *, name_width: int = 18) -> ProgressLog:
        created.append(ProgressLog(seconds=0.0))
        return created[0]

    monkeypatch.setattr("spodgt.training.progress.create_display", create)
    config = tmp_path / "run.toml"
    config.write_text('[run]\nmethods = ["spod-gt"]\nrounds = 5\n[problem]\nkind = "quadratic"\n')
    flags = ["--quiet"] if quiet else []
    code, out, err = cli("run", config, "--seeds", 1, "--out", tmp_path / "out", *flags)
    assert code == 0, err
    assert "spod-gt" in out  # the table
    assert ("spod-gt: 100%" in err) is not quiet
    assert len(created) == (0 if quiet else 1)


def test_a_long_run_of_a_script_prints_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "spodgt.training.api.create_display", lambda console: ProgressLog(seconds=0.0)
    )
    spodgt.train("spod-gt", spodgt.Quadratic.random(3, 2), spodgt.Network.ring(3), rounds=3)
    assert "spodgt: 0:00:00 spod-gt: 100%" in capsys.readouterr().err
