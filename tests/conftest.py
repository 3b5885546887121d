"""What all tests share: a fixed terminal, and properties that are the same today and tomorrow."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Tests are small and run in parallel processes, so each uses one thread unless OMP_NUM_THREADS is set.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the processes that tests start
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# A shell starts jobs in the background with Ctrl-C ignored, which tests of Ctrl-C would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# HYPOTHESIS_PROFILE=explore looks for new counterexamples; the default replays the same examples.
settings.register_profile(
    "fixed",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=300, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns without colours, as a pipe sees them."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(autouse=True)
def _initial_weights() -> None:
    """Modules that tests create have the same initial weights in every order of the tests."""
    torch.manual_seed(0)


class Cli:
    """The real entry of the command line, in this process: `code, out, err = cli("compare", "--help")`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *args: object) -> tuple[int, str, str]:
        from spodgt.cli import main

        self.monkeypatch.setattr(sys, "argv", ["spodgt", *map(str, args)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = self.capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Cli(monkeypatch, capsys)
