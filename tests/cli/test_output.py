"""The output of the command line on any terminal or pipe, and its end by Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMPARE = [
    *(
        "compare",
        "--rounds",
        "2",
        "--seeds",
        "2",
        "--methods",
        "spod-gt",
        "--set",
        "problem.kind=quadratic",
    ),
    *("--set", "network.clients=3", "--set", "network.radius=1.5", "--out", "out"),
]


def spodgt(*words: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **options.pop("env", {})}  # type: ignore[dict-item]
    command = [sys.executable, "-m", "spodgt", *words]
    given: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, cwd=cwd, env=environment, timeout=300, check=False, **given)  # type: ignore[call-overload, no-any-return]


THEORY = ["theory", "--set", "problem.kind=quadratic"]


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        (["compare", "--help"], "cp1252"),
        (COMPARE, "ascii"),
        pytest.param(COMPARE, "cp1252", marks=pytest.mark.slow),
        pytest.param(THEORY, "ascii", marks=pytest.mark.slow),
        pytest.param(THEORY, "cp1252", marks=pytest.mark.slow),
    ],
)
def test_letters_that_a_pipe_cannot_show_are_replaced(
    tmp_path: Path, words: list[str], encoding: str
) -> None:
    done = spodgt(*words, cwd=tmp_path, env={"PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert len(done.stdout.splitlines()) > 5


@pytest.mark.parametrize("columns", ["20", pytest.param("40", marks=pytest.mark.slow)])
def test_a_narrow_terminal_shows_method_and_accuracy(tmp_path: Path, columns: str) -> None:
    words = [
        *COMPARE[:7],
        "--set",
        "network.clients=3",
        "--set",
        "network.radius=1.5",
        "--out",
        "out",
    ]
    done = spodgt(*words, cwd=tmp_path, env={"COLUMNS": columns})
    assert done.returncode == 0, done.stderr
    joined = b"".join(line.strip() for line in done.stdout.splitlines())
    assert b"spod-gt" in joined
    assert b"0." in joined


def test_a_closed_and_a_full_output(tmp_path: Path) -> None:
    command = " ".join([sys.executable, "-m", "spodgt", "methods"])
    closed = subprocess.run(
        ["sh", "-c", f"{command} >&-"], capture_output=True, check=False, cwd=tmp_path
    )
    assert (closed.returncode, closed.stderr) == (0, b"")
    full = subprocess.run(
        ["sh", "-c", f"{command} > /dev/full"], capture_output=True, check=False, cwd=tmp_path
    )
    assert full.returncode == 1
    assert (
        full.stderr
        == b"spodgt: error: No space left on device; give another path, or free some space.\n"
    )


@pytest.mark.parametrize(
    "seconds",
    [1.5, pytest.param(0.7, marks=pytest.mark.slow), pytest.param(3.0, marks=pytest.mark.slow)],
)
def test_ctrl_c_while_libraries_load(tmp_path: Path, seconds: float) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("Ctrl-C is ignored here, and so by what is started from here")
    process = subprocess.Popen(
        [sys.executable, "-m", "spodgt", *COMPARE[:2], "9999999", *COMPARE[3:]],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    time.sleep(seconds)
    for _ in range(6):  # a library that is loading may swallow one; people press it again
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, err = process.communicate(timeout=20)
            break
    else:
        process.kill()
        pytest.fail("six times Ctrl-C did not end it")
    assert b"Traceback" not in err
    if process.returncode != -signal.SIGINT:  # that of the signal itself: Python did not hear it
        assert process.returncode == 130
        assert err.splitlines()[-1].startswith((b"spodgt: stopped", b"spodgt: interrupted"))
