"""Never lose work: killed, interrupted or out of space, a run goes on with the same bits or says why not."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import spodgt
from spodgt.cli import app
from spodgt.errors import Failed, InvalidInput
from spodgt.problems import Quadratic
from spodgt.record.run_folder import CHECKPOINT, RunFolder
from spodgt.training import Progress

METHODS = [
    "spod-gt",
    "spod-gt-memory",
    "g-push-pull",
    "k-gt",
    spodgt.method("dsgd", step_size=0.01),
]
RECIPE = spodgt.graphs.RandomGeometric(5, 0.7)
OPTIONS: dict[str, Any] = {
    "delay": 60.0,
    "seeds": [0, 1, 2],
    "evaluations": 7,
    "checkpoint_every": 0,
}


def run(out: Path | None, **options: Any) -> spodgt.Result:
    """Three seeds that end in different rounds, noise in the gradients, methods with other states."""
    settings = (
        OPTIONS
        | {"participation": spodgt.Beta(0.7, 0.7, floor=0.1), "methods": METHODS[:4]}
        | options
    )
    problem = settings.pop("problem", Quadratic.random(5, 4, seed=3, noise=0.3))
    methods, participation = settings.pop("methods"), settings.pop("participation")
    return spodgt.compare(methods, problem, RECIPE, participation, out=out, **settings)


@pytest.fixture(scope="module")
def unbroken() -> spodgt.Result:
    return run(None)


def same(out: Path, expected: spodgt.Result) -> None:
    """What lies in the folder is what an unbroken run gives, bit for bit."""
    pd.testing.assert_frame_equal(
        expected.frame,
        pd.read_parquet(out / "metrics.parquet"),
        check_exact=True,
        check_column_type=False,
    )
    activity = pd.read_parquet(out / "participation.parquet")
    pd.testing.assert_frame_equal(expected.participation, activity, check_exact=True)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["complete"]
    assert summary["diverged"] == [dataclasses.asdict(each) for each in expected.diverged]
    assert not [path for path in out.iterdir() if path.name.startswith(".")], (
        "nothing half-written stays"
    )


class StopAt:
    """Sends a signal to ourselves when one method reaches a round."""

    def __init__(self, method: str, k: int, number: int = signal.SIGINT) -> None:
        self.method, self.k, self.number = method, k, number

    def __call__(self, now: Progress) -> None:
        if now.method == self.method and now.k >= self.k:
            signal.raise_signal(self.number)
            self.k = 10**9


# --- interrupted -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "k", "number"),
    [
        ("spod-gt", 0, signal.SIGINT),
        ("spod-gt", 7, signal.SIGTERM),
        ("spod-gt-memory", 11, signal.SIGINT),
        ("g-push-pull", 2, signal.SIGINT),
        ("k-gt", 5, signal.SIGINT),
    ],
)
def test_ctrl_c_leaves_a_valid_part_and_resume_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Any, method: str, k: int, number: int
) -> None:
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    out = tmp_path / "run"
    part = run(out, progress=StopAt(method, k, number), checkpoint_every=1e9)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert not part.complete
    assert not json.loads((out / "summary.json").read_text())["complete"]
    rows = pd.read_parquet(out / "metrics.parquet")
    whole = unbroken.frame.set_index(["method", "seed", "round"])
    assert rows.set_index(["method", "seed", "round"]).index.isin(whole.index).all(), (
        "a part of the whole"
    )
    result = run(out, resume=True)
    assert result.complete
    assert result.frame.equals(unbroken.frame)
    same(out, unbroken)


def test_stopped_many_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Any) -> None:
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    out, tries = tmp_path / "run", 0
    while True:
        count = 0

        def progress(_: Progress) -> None:
            nonlocal count
            count += 1
            if count == 9:
                signal.raise_signal(signal.SIGINT)

        result = run(out, resume=tries > 0, progress=progress, checkpoint_every=1e9)
        tries += 1
        if result.complete:
            break
    assert tries > 4
    same(out, unbroken)


def test_without_a_folder_ctrl_c_is_the_callers(unbroken: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(None, progress=StopAt("spod-gt", 0))


def test_a_second_ctrl_c_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Any
) -> None:
    """Even then the folder holds a valid part, and what the last checkpoint had is not lost."""
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)

    def impatient(now: Progress) -> None:
        if now.method == "spod-gt-memory" and now.k == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    assert not run(tmp_path / "run", progress=impatient).complete
    run(tmp_path / "run", resume=True)
    same(tmp_path / "run", unbroken)


def test_a_thread_may_run_too(tmp_path: Path, unbroken: Any) -> None:
    """Signals arrive in the main thread only; elsewhere a run just runs."""
    thread = threading.Thread(target=run, args=(tmp_path / "run",))
    thread.start()
    thread.join()
    same(tmp_path / "run", unbroken)


# --- killed ----------------------------------------------------------------------------------------
KILL_LOOP = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[1])
import torch
from torch import nn
torch.set_num_threads(1)
from pathlib import Path
from tests.training.test_resume import run

run(None)  # compiled once, here
out, kills, random_wait = Path(sys.argv[2]), 0, random.Random(int(sys.argv[3]))
while True:
    child = os.fork()
    if not child:
        run(out, resume=True)
        os._exit(0)
    end = time.monotonic() + (random_wait.uniform(0.02, 0.3) if kills < 12 else 100)
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            print(kills)
            sys.exit()
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kills += 1
"""


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the children are forks, so that many kills take seconds"
)
def test_kill_9_at_random_moments(tmp_path: Path, unbroken: Any) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", KILL_LOOP, root, str(tmp_path / "run"), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2, "it was killed at all"
    same(tmp_path / "run", unbroken)


@pytest.mark.parametrize("name", [CHECKPOINT, "metrics.parquet", "finished/k-gt.zip"])
def test_what_a_kill_left_half_written_is_cleared_away(
    tmp_path: Path, unbroken: Any, name: str
) -> None:
    """Also in a run that had nothing left to write there."""
    out = tmp_path / "run"
    run(out)
    (out / name).parent.mkdir(exist_ok=True)
    half_written = (out / name).with_name(f".{Path(name).name}.part")
    half_written.write_bytes(b"half")
    run(out, resume=True)
    assert not half_written.exists()
    same(out, unbroken)


CONFIG = """
[run]
methods = ["spod-gt", "k-gt"]
seeds = 2
rounds = 120
evaluations = 10
[network]
clients = 4
radius = 0.8
[problem]
batch_size = 4
"""


def command(*args: Any) -> list[str]:
    return [sys.executable, "-m", "spodgt", *map(str, args)]


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGINT]
)
def test_the_command_line_survives(tmp_path: Path, number: int) -> None:
    """The real entry, on images: stop it in the middle, resume, compare with an unbroken run."""
    (tmp_path / "small.toml").write_text(CONFIG)
    common = ["run", tmp_path / "small.toml", "--json"]
    out = tmp_path / "broken"
    with subprocess.Popen(
        command(*common, "--out", out, "--checkpoint-every", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and not (out / CHECKPOINT).exists():
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130, stderr
        assert not json.loads(stdout)["complete"]
        assert f"interrupted; continue with --out {out} --resume." in stderr
        assert {path.name for path in out.iterdir()} >= FILES
        assert not json.loads((out / "summary.json").read_text())["complete"]
        pd.read_parquet(out / "metrics.parquet")
    else:
        assert process.returncode == -signal.SIGKILL
    resumed = subprocess.run(
        command(*common, "--out", out, "--resume"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert {path.name for path in out.iterdir()} >= FILES
    from spodgt.experiment import Experiment
    from spodgt.training.api import run

    whole = run(Experiment.read(tmp_path / "small.toml"), out=tmp_path / "whole")
    pd.testing.assert_frame_equal(
        whole.frame, pd.read_parquet(out / "metrics.parquet"), check_exact=True
    )
    assert (
        json.loads(resumed.stdout)["methods"]
        == json.loads((out / "summary.json").read_text())["methods"]
    )


FILES = {
    CHECKPOINT,
    "config.toml",
    "metrics.parquet",
    "networks.parquet",
    "participation.parquet",
    "summary.json",
}
FILES |= {"accuracy.png", "network.png"}


# --- what a checkpoint can hold --------------------------------------------------------------------
def test_every_kind_of_state_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States in which two parts are one tensor, momentum, schedules, statistics of none."""
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    methods = [
        spodgt.method("spod-gt", momentum=0.5),
        spodgt.method("spod-gt-memory", adam={"amsgrad": True}, clip_tracker=1.0, local_steps=2),
        spodgt.method("k-gt", local_steps=3),
        spodgt.method("push-diging", step_size={"schedule": "inverse-sqrt", "start": 0.05}),
    ]
    options = {"participation": spodgt.Always(), "delay": None, "rounds": 25, "methods": methods}
    whole = run(None, **options)
    for name in whole.methods:
        out = tmp_path / name
        assert not run(out, progress=StopAt(name, 13), **options).complete
        run(out, resume=True, **options)
        same(out, whole)


@pytest.mark.filterwarnings("ignore::spodgt.errors.DivergenceWarning")
def test_a_diverged_method_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    methods = [spodgt.method("spod-gt", step_size=1e6), spodgt.method("spod-gt-memory")]
    options = {"methods": methods, "delay": None, "rounds": 60}
    whole = run(None, **options)
    assert len(whole.diverged) == 3
    run(tmp_path / "run", progress=StopAt("spod-gt-memory", 20), **options)
    result = run(tmp_path / "run", resume=True, **options)
    assert result.diverged == whole.diverged
    same(tmp_path / "run", whole)


@pytest.mark.filterwarnings("ignore::spodgt.errors.DivergenceWarning")
def test_a_run_that_diverges_after_it_was_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    methods = [spodgt.method("spod-gt", step_size=8.0)]
    options = {
        "methods": methods,
        "delay": None,
        "rounds": 400,
        "seeds": [0],
        "checkpoint_every": 1e9,
    }
    whole = run(None, **options)
    (stop,) = whole.diverged
    assert stop.finite_at > 0
    run(tmp_path / "run", progress=StopAt("spod-gt", stop.round - 2), **options)
    assert run(tmp_path / "run", resume=True, **options).diverged == [stop]
    same(tmp_path / "run", whole)


def test_resume_of_a_finished_run_changes_nothing(tmp_path: Path, unbroken: Any) -> None:
    run(tmp_path / "run")
    same(tmp_path / "run", unbroken)
    before = (tmp_path / "run" / CHECKPOINT).read_bytes()
    assert run(tmp_path / "run", resume=True).frame.equals(unbroken.frame)
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == before


def test_resume_before_the_first_checkpoint_begins_anew(tmp_path: Path, unbroken: Any) -> None:
    """A kill may come before anything was saved."""
    assert run(tmp_path / "run", resume=True).frame.equals(unbroken.frame)


# --- what can be wrong with the folder -------------------------------------------------------------
@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in the middle; copy it."""
    out = tmp_path_factory.mktemp("half") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
        run(out, progress=StopAt("spod-gt-memory", 5))
    return out


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"not a checkpoint",
        lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
        lambda data: data.replace(b'"schedule"', b'"scheduler"'),
        lambda data: (
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        ),
    ],
    ids=["cut", "empty", "text", "one bit of the index", "notes", "one bit of the tensors"],
)
def test_a_corrupted_checkpoint_is_one_sentence(tmp_path: Path, half: Path, damage: Any) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    broken = damage((out / CHECKPOINT).read_bytes())
    (out / CHECKPOINT).write_bytes(broken)
    with pytest.raises(InvalidInput) as caught:
        run(out, resume=True)
    assert str(caught.value).startswith(f"{out / CHECKPOINT} is not a whole checkpoint (")
    assert str(caught.value).endswith("); remove it to begin anew, or use another folder.")
    assert "\n" not in str(caught.value)
    assert (out / CHECKPOINT).read_bytes() == broken, "it is left for the user to look at"


def test_a_checkpoint_of_another_version(
    tmp_path: Path, half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    monkeypatch.setattr("spodgt.record.run_folder._FORMAT", 99)
    with pytest.raises(
        InvalidInput, match=r"has format \d, but this version of spodgt reads 99; begin anew"
    ):
        run(out, resume=True)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_checkpoint(
    tmp_path: Path, half: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Any, call: str
) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    before = (out / CHECKPOINT).read_bytes()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(Failed) as caught:
            run(out, resume=True)
    assert str(caught.value) == (
        f"{out / CHECKPOINT} could not be written: No space left on device; "
        "free some space or choose another folder, then run again with --resume."
    )
    assert (out / CHECKPOINT).read_bytes() == before
    run(out, resume=True)
    same(out, unbroken)


def test_a_folder_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for out, reason in (
        (tmp_path / "file", "File exists"),
        (tmp_path / "file" / "run", "Not a directory"),
    ):
        with pytest.raises(InvalidInput) as caught:
            run(out)
        assert (
            str(caught.value)
            == f"out={str(out)!r} cannot be written: {reason}; choose another folder."
        )


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are Linux's")
def test_a_folder_is_tried_without_a_file_that_a_kill_would_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is removed has been there: a folder is tried without removing anything."""
    removed: list[str] = []
    for name in ("unlink", "remove"):
        monkeypatch.setattr(os, name, lambda path, *_, **__: removed.append(str(path)))
    with RunFolder(tmp_path / "run").opened(lambda: "", resume=False):
        assert os.listdir(tmp_path / "run") == ["config.toml"]
    assert removed == []


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path, half: Path) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput) as caught:
        run(out)
    assert str(caught.value) == (
        f"out={str(out)!r} already holds a run; go on with it by --resume, or use another folder."
    )
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_two_runs_cannot_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fcntl")
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    seen: list[str] = []

    def intrude(now: Progress) -> None:
        if not seen:
            with pytest.raises(InvalidInput) as caught:
                run(tmp_path / "run", resume=True)
            seen.append(str(caught.value))

    run(tmp_path / "run", progress=intrude)
    assert seen == [
        f"out={str(tmp_path / 'run')!r} is in use by a run that is still going; wait for it."
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seeds": [0, 1]}, "run.seeds is [0, 1, 2] there and [0, 1] here"),
        ({"evaluations": 8}, "run.evaluations is 7 there and 8 here"),
        ({"dtype": torch.float64}, "run.dtype is 'float32' there and 'float64' here"),
        (
            {"participation": spodgt.Always()},
            "participation.kind is 'beta' there and 'always' here",
        ),
        (
            {"participation": spodgt.Beta(0.8, 0.7, floor=0.1)},
            "participation.alpha is 0.7 there and 0.8 here",
        ),
        ({"x0": np.ones(4)}, "run.x0 is None there and"),
        ({"methods": METHODS[:3]}, "run.methods is [{"),
    ],
)
def test_resume_with_other_settings_names_the_key(
    tmp_path: Path, half: Path, changes: dict[str, Any], sentence: str
) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    with pytest.raises(InvalidInput) as caught:
        run(out, resume=True, **changes)
    assert str(caught.value).startswith(f"{out} holds another run: {sentence}")
    assert str(caught.value).endswith("; use the same settings or another folder.")


def test_a_run_can_be_extended_but_not_shortened(tmp_path: Path, half: Path) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    with pytest.raises(InvalidInput) as caught:
        run(out, resume=True, delay=50.0)
    assert str(caught.value) == (
        f"{out} holds another run: delay is 60.0 there and 50.0 here; a run can be extended but not "
        "shortened, so use a later end or another folder."
    )


@pytest.mark.parametrize(
    "stops", [1, pytest.param(0, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_an_extended_run_is_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: int
) -> None:
    """Seeds end in other rounds; each goes on from its own. Evaluations keep their spacing."""
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    whole = run(None, delay=180.0, evaluations=21)
    out = tmp_path / "run"
    run(out)
    assert tomllib.loads((out / "config.toml").read_text())["run"]["delay"] == 60
    for stop in range(stops):
        method = ("spod-gt-memory", "spod-gt-memory", "k-gt")[stop]
        part = run(out, resume=True, delay=180.0, progress=StopAt(method, (40, 60, 30)[stop]))
        assert not part.complete
    result = run(out, resume=True, delay=180.0)
    assert result.complete
    keys = ["method", "seed", "round"]
    ends = (
        result.frame.merge(whole.frame[keys], how="left", indicator=True)["_merge"] == "left_only"
    )
    assert ends.sum() <= len(METHODS[:4]) * 3, "at most the row at the old end of each run is more"
    kept = result.frame[~ends].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept[whole.frame.columns], whole.frame, check_exact=True)
    pd.testing.assert_frame_equal(result.participation, whole.participation, check_exact=True)
    assert tomllib.loads((out / "config.toml").read_text())["run"]["delay"] == 180


def test_what_was_too_large_to_keep_cannot_be_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spodgt.training.api.MAX_STATE_BYTES", 0)
    run(tmp_path / "run")
    with pytest.raises(InvalidInput, match="spod-gt cannot be extended: its states take more than"):
        run(tmp_path / "run", resume=True, delay=90.0)


def test_resume_needs_a_folder_and_keeps_no_states(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match="resume=True requires out, the folder of the run to continue"
    ):
        run(None, resume=True)
    with pytest.raises(InvalidInput, match="resume=True and keep_states=True exclude each other"):
        run(tmp_path / "run", resume=True, keep_states=True)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_is_a_zip_of_plain_formats(half: Path) -> None:
    assert RunFolder(half).load() is not None
    with zipfile.ZipFile(half / CHECKPOINT) as archive:
        names = set(archive.namelist())
        assert names <= {"notes.json", "tensors.safetensors", "metrics.parquet", "clients.parquet"}
        assert json.loads(archive.read("notes.json"))["format"] == 5
        assert b"torch._utils" not in archive.read("tensors.safetensors"), "nothing is pickled"


def images(labels: int = 2, batch_size: int = 4) -> spodgt.Learning:
    return spodgt.problems.fashion_mnist_svm(
        clients=5, labels_per_client=labels, batch_size=batch_size
    )


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ({"problem": images()}, {"problem": images(labels=1)}, "problem.checksum is"),
        (
            {"problem": images()},
            {"problem": images(batch_size=8)},
            "batch_size is '4' there and '8' here",
        ),
        ({}, {"problem": Quadratic.random(5, 4, seed=4, noise=0.3)}, "problem.checksum is"),
        (
            {},
            {"problem": Quadratic.random(5, 4, seed=3, noise=0.2)},
            "noise is '0.3' there and '0.2' here",
        ),
        (
            {"participation": spodgt.EveryK(2)},
            {"participation": spodgt.EveryK(7)},
            "participation.rounds is 2 there and 7 here",
        ),
    ],
    ids=["labels", "batch", "quadratic", "noise", "every k"],
)
def test_other_data_under_the_same_name_are_not_taken_up(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], what: str
) -> None:
    few: dict[str, Any] = {"methods": ["spod-gt"], "seeds": [0], "delay": 20.0, "evaluations": 1}
    run(tmp_path / "run", **few, **before)
    with pytest.raises(InvalidInput, match=what):
        run(tmp_path / "run", resume=True, **few, **before | after)
    run(tmp_path / "run", resume=True, **few, **before)


def test_a_network_without_links_is_saved_like_any_other(tmp_path: Path) -> None:
    problem, alone = Quadratic.random(1, 3, seed=0), spodgt.Network.draw(spodgt.graphs.Complete(1))
    result = spodgt.train(
        "spod-gt", problem, alone, rounds=30, out=tmp_path / "run", checkpoint_every=0
    )
    assert result.complete


def test_a_clock_that_stands_still_is_said() -> None:
    problem, alone = Quadratic.random(1, 3, seed=0), spodgt.Network.draw(spodgt.graphs.Complete(1))
    with pytest.raises(InvalidInput, match="delay=100 is never reached: "):
        spodgt.train("gossip", problem, alone, delay=100)


def test_a_changed_network_file_is_not_taken_up(tmp_path: Path) -> None:
    """As many links as before, so only where they go tells."""
    graph, text = tmp_path / "graph.csv", tmp_path / "config.toml"
    text.write_text(
        f"[run]\nmethods = ['spod-gt']\nseeds = 1\nrounds = 5\n[network]\nkind = 'file'\npath = '{graph}'\n"
        "[problem]\nkind = 'quadratic'\n"
    )
    out = str(tmp_path / "run")
    graph.write_text("0,1,0,1\n0,0,1,0\n0,0,0,1\n1,0,0,0\n")
    cli = CliRunner()
    assert cli.invoke(app, ["run", str(text), "--out", out]).exit_code == 0
    graph.write_text("0,1,1,0\n0,0,1,0\n0,0,0,1\n1,0,0,0\n")
    again = cli.invoke(app, ["run", str(text), "--out", out, "--resume"])
    assert isinstance(again.exception, InvalidInput)
    assert "links is" in str(again.exception)


def test_half_precision_data_can_be_kept(tmp_path: Path) -> None:
    data = [(torch.randn(8, 3).bfloat16(), torch.arange(8) % 2) for _ in range(5)]
    problem = spodgt.Learning(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), data)
    assert run(
        tmp_path / "run", problem=problem, methods=["spod-gt"], seeds=[0], delay=10.0
    ).complete


# --- what a config cannot tell: code and numbers of the user's own ----------------------------------------
class Bent(nn.Module):
    """An activation kept as an attribute does not show in the module's text."""

    def __init__(self, bend: Any = torch.relu) -> None:
        super().__init__()
        self.linear, self.bend = nn.Linear(3, 3), bend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bend(self.linear(x))  # type: ignore[no-any-return]


def leaky(slope: float) -> Any:
    return lambda x: torch.nn.functional.leaky_relu(x, slope)


WEIGHTS = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"loss": nn.CrossEntropyLoss(WEIGHTS)}, {"loss": nn.CrossEntropyLoss(WEIGHTS.flip(0))}),
        (
            {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
            {"loss": nn.CrossEntropyLoss(label_smoothing=0.2)},
        ),
        (
            {"loss": nn.CrossEntropyLoss(ignore_index=1)},
            {"loss": nn.CrossEntropyLoss(ignore_index=2)},
        ),
        (
            {"loss": lambda o, t: 3 * nn.functional.cross_entropy(o, t)},
            {"loss": lambda o, t: 2 * nn.functional.cross_entropy(o, t)},
        ),
        ({"model": Bent(leaky(0.1))}, {"model": Bent(leaky(0.3))}),
        ({"model": Bent(torch.relu)}, {"model": Bent(torch.tanh)}),
    ],
    ids=["weights of classes", "smoothing", "ignored class", "function", "closure", "activation"],
)
def test_a_run_of_other_code_is_not_taken_up(tmp_path: Path, before: Any, after: Any) -> None:
    draws = torch.Generator().manual_seed(0)
    data = torch.randn(12, 3, generator=draws), torch.arange(12) % 3
    state = Bent().state_dict()

    def go(changes: dict[str, Any], **options: Any) -> spodgt.Result:
        model = changes.get("model", Bent())
        model.load_state_dict(state)
        problem = spodgt.Learning(model, changes.get("loss", nn.CrossEntropyLoss()), [data] * 3)
        ring = spodgt.Network.ring(3)
        return spodgt.train("spod-gt", problem, ring, rounds=4, out=tmp_path / "run", **options)

    go(before)
    go(before, resume=True)
    with pytest.raises(InvalidInput, match="holds another run"):
        go(after, resume=True)


def test_another_w_is_another_network(tmp_path: Path) -> None:
    problem = Quadratic.random(4, 2)
    ring = spodgt.Network.from_networkx(nx.cycle_graph(4))
    assert ring.w is not None
    spodgt.train("dsgd", problem, ring, rounds=4, out=tmp_path / "run")
    other = dataclasses.replace(ring, w=ring.w * 0.5)
    with pytest.raises(InvalidInput, match="holds another run"):
        spodgt.train("dsgd", problem, other, rounds=4, out=tmp_path / "run", resume=True)


# --- interrupted, then extended --------------------------------------------------------------------
THREE = ["spod-gt", "spod-gt-memory", "k-gt"]
SHORT: dict[str, dict[str, Any]] = {
    "rounds": {"delay": None, "rounds": 40, "every": 4},
    "delay": {"delay": 60.0, "evaluations": 6},
}
LONG: dict[str, dict[str, Any]] = {
    "rounds": {"delay": None, "rounds": 72, "every": 4},
    "delay": {"delay": 120.0, "evaluations": 6},  # the spacing of the first call stays
}
RARELY = OPTIONS | {"checkpoint_every": 1e9}  # only where a run is interrupted
WHOLE: dict[str, dict[str, Any]] = {
    "rounds": LONG["rounds"],
    "delay": {"delay": 120.0, "evaluations": 12},
}


class Crash(Exception):
    """What a kill is, without the process."""


class CrashAt(StopAt):
    """Ends the run without a word to it: nothing is saved but what the last checkpoint holds."""

    def __call__(self, now: Progress) -> None:
        if now.method == self.method and now.k >= self.k:
            raise Crash


@pytest.fixture(scope="module", params=["rounds", "delay"])
def extended(request: pytest.FixtureRequest) -> tuple[str, spodgt.Result]:
    """The kind of the limit, and the unbroken run until the later one."""
    return request.param, run(None, methods=THREE, **WHOLE[request.param])


def rounds_of(whole: spodgt.Result, method: str) -> int:
    """The rounds of the longest run of a method."""
    return int(whole.frame.loc[whole.frame["method"] == method, "round"].max())


def assert_unbroken(out: Path, result: spodgt.Result, whole: spodgt.Result) -> None:
    """Rows, counts, models, and the clients' last evaluations are those of the unbroken run."""
    assert result.complete
    keys = ["method", "seed", "round"]
    extra = (
        result.frame.merge(whole.frame[keys], how="left", indicator=True)["_merge"] == "left_only"
    )
    ends = result.frame[extra].groupby(keys[:2]).size()
    assert (ends <= 1).all(), "at most the row at the old end of each run is more"
    rows = result.frame[~extra].reset_index(drop=True)
    pd.testing.assert_frame_equal(rows[whole.frame.columns], whole.frame, check_exact=True)
    pd.testing.assert_frame_equal(result.participation, whole.participation, check_exact=True)
    pd.testing.assert_frame_equal(
        result.clients.sort_values([*keys[:2], "client"], ignore_index=True),
        whole.clients.sort_values([*keys[:2], "client"], ignore_index=True),
        check_exact=True,
    )
    assert result.models.keys() == whole.models.keys()
    for key, models in whole.models.items():
        assert torch.equal(result.models[key], models), key
    assert json.loads((out / "summary.json").read_text())["complete"]


@pytest.mark.parametrize("method", THREE)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_an_interrupted_run_that_is_extended_is_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extended: Any, method: str, share: float
) -> None:
    """Wherever the interrupted method is in the list; by delay, some of its seeds had ended by then."""
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    kind, whole = extended
    out = tmp_path / "run"
    k = share * rounds_of(whole, method) * (0.5 if kind == "delay" else 40 / 72)
    part = run(out, methods=THREE, progress=StopAt(method, int(k)), **RARELY | SHORT[kind])
    assert not part.complete
    result = run(out, methods=THREE, resume=True, **RARELY | LONG[kind])
    assert_unbroken(out, result, whole)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (THREE[0], THREE[2]),
        (THREE[1], THREE[1]),
        (THREE[2], THREE[0]),
        *(
            pytest.param(first, second, marks=pytest.mark.slow)
            for first in THREE
            for second in THREE
        ),
    ],
)
def test_a_crash_during_the_extension_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extended: Any, first: str, second: str
) -> None:
    """Interrupted in one method, extended, killed in another or in the same, and extended once more."""
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    kind, whole = extended
    out = tmp_path / "run"
    stop = StopAt(first, rounds_of(whole, first) // 4)
    assert not run(out, methods=THREE, progress=stop, **RARELY | SHORT[kind]).complete
    crash = CrashAt(second, int(0.8 * rounds_of(whole, second)))
    with pytest.raises(Crash):
        run(out, methods=THREE, resume=True, progress=crash, **OPTIONS | LONG[kind])
    result = run(out, methods=THREE, resume=True, **RARELY | LONG[kind])
    assert_unbroken(out, result, whole)


def test_an_extension_of_a_run_that_stopped_between_two_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extended: Any
) -> None:
    kind, whole = extended
    out = tmp_path / "run"

    def finish_one(self: Any, *args: Any) -> None:
        finish(self, *args)
        raise KeyboardInterrupt

    from spodgt.training.executor import Executor

    finish = Executor.finish
    with monkeypatch.context() as patch:
        patch.setattr(Executor, "finish", finish_one)
        part = run(out, methods=THREE, **RARELY | SHORT[kind])
    assert not part.complete
    assert list(part.participation["method"].unique()) == ["spod-gt"]
    result = run(out, methods=THREE, resume=True, **RARELY | LONG[kind])
    assert_unbroken(out, result, whole)


def test_an_interrupted_method_runs_first_and_only_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of an interrupted method is never given to the one that comes first in the list."""
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    options = OPTIONS | SHORT["rounds"] | {"methods": THREE, "checkpoint_every": 1e9}
    run(tmp_path / "run", progress=StopAt("spod-gt-memory", 21), **options)
    seen: list[tuple[str, int]] = []
    later = options | LONG["rounds"]
    run(
        tmp_path / "run",
        resume=True,
        progress=lambda now: seen.append((now.method, now.k)),
        **later,
    )
    begins = dict(reversed(seen))
    assert list(dict.fromkeys(label for label, _ in seen)) == ["spod-gt-memory", "spod-gt", "k-gt"]
    assert begins["spod-gt-memory"] >= 21
    assert begins["spod-gt"] == 40
    assert begins["k-gt"] == 0


def test_virtual_time_interrupted_and_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    time = spodgt.Time(compute=0.01, latency=0.02)
    common: dict[str, Any] = {
        "methods": THREE,
        "delay": None,
        "rounds": None,
        "time": time,
        "every": 10,
    }
    whole = run(None, seconds=3.0, **RARELY | common)
    out = tmp_path / "run"
    ticks = int(whole.frame["round"].max()) // 4
    stop = StopAt("spod-gt-memory", ticks)
    assert not run(out, seconds=1.5, progress=stop, **RARELY | common).complete
    assert_unbroken(out, run(out, seconds=3.0, resume=True, **RARELY | common), whole)
