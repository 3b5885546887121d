"""Sweeps on Ray, held to those of local workers."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.sweeps import executors, sweep
from spodgt.sweeps.grid import Spec


def grid(cells: int) -> Spec:
    config = Experiment.parse(
        {
            "run": {
                "methods": ["spod-gt"],
                "seeds": 2,
                "rounds": 1500,
                "evaluations": 5,
                "dtype": "float64",
            },
            "network": {"kind": "random-geometric", "clients": 5, "radius": 0.7},
            "participation": {"kind": "bernoulli", "p": 0.7, "p_hat": 0.7},
            "problem": {"kind": "quadratic", "parameters": 20},
        }
    )
    return Spec("steps", config, {"run.step_size": [0.01 + 0.001 * n for n in range(cells)]})


def test_without_ray_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"pip install 'spodgt\[ray\]'"):
        executors.executor("ray", 1)


def tasks_of(ancestor: int) -> list[int]:
    """Ray workers at a cell, below this process."""
    parents, found = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            )
            if (folder / "cmdline").read_bytes().startswith(b"ray::_run_job"):
                found.append(int(folder.name))
        except OSError:
            continue

    def below(pid: int) -> bool:
        while pid in parents and pid != ancestor:
            pid = parents[pid]
        return pid == ancestor

    return [pid for pid in found if below(pid)]


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")
def test_twenty_cells_with_a_worker_killed_are_complete_and_equal_to_local_ones(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray")
    spec = grid(20)
    killed: list[int] = []

    def kill_one() -> None:
        end = time.monotonic() + 120
        while not killed and time.monotonic() < end:
            done = sum(cell.complete for cell in sweep.plan(spec, tmp_path / "ray"))
            if done >= 3 and (pids := tasks_of(os.getpid())):
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])
            time.sleep(0.05)

    killer = threading.Thread(target=kill_one)
    killer.start()
    on_ray = sweep.run(spec, tmp_path / "ray", backend="ray", workers=2, save_every=0.2)
    killer.join()
    assert killed
    assert on_ray.complete
    assert not on_ray.failures
    local = sweep.run(spec, tmp_path / "local", workers=2)
    assert len(local.cells) == 20
    pd.testing.assert_frame_equal(on_ray.results, local.results, check_exact=True)
