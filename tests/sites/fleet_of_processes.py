"""Training scripts in processes of their own, killed and started again.

    python -m tests.sites.fleet_of_processes 60 0      # 60 kill -9 in training, seed 0
    python -m tests.sites.fleet_of_processes 0 1       # an unbroken run with another seed

prints the audit of the disks and the accuracies of the four scripts.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from spodgt.errors import SpodgtError
from spodgt.peer.host import fault_injection
from spodgt.peer.membership import run_folders
from spodgt.peer.protocol.audit import Audit
from spodgt.problems.data.samples import Samples
from spodgt.sites.api import join
from tests.sites.fleet_of_threads import Point, Quadratics, make_run

SITES = 4


class Task(NamedTuple):
    """What one process trains."""

    folder: Path
    site: int
    seed: int = 0
    steps: int = 400
    pause: float = 0.0  # seconds of a step, beyond its computation


Script = Callable[[Task], None]


def quadratics(task: Task) -> None:
    """A script: its part of a sum of quadratics; writes its distance from the optimum."""
    problem = Quadratics(SITES)
    model = Point(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    with join(task.folder, model, optimizer, block_steps=4, durability="process") as site:
        while site.steps < task.steps:
            optimizer.zero_grad()
            torch.autograd.backward(problem.loss(task.site, model.x))
            optimizer.step()
            time.sleep(task.pause)
    _write_result(task, problem.error(model.x.detach()))


def images(task: Task) -> None:
    """A script: a perceptron on the images of some labels; writes its accuracy on all."""
    from spodgt.problems.data import datasets

    data = datasets.load("fashion-mnist-small")
    x, labels = _samples(data.train)
    own = (labels % SITES == task.site).nonzero()[:, 0]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, task.steps)
    with join(
        task.folder,
        model,
        optimizer,
        scheduler=scheduler,
        block_steps=10,
        durability="process",
        checkpoint_blocks=1,
    ) as site:
        while site.steps < task.steps:
            generator = torch.Generator().manual_seed(1000 * task.seed + site.steps)
            batch = own[torch.randint(len(own), (16,), generator=generator)]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), labels[batch])
            torch.autograd.backward(loss)
            optimizer.step()
            scheduler.step()
            time.sleep(task.pause)
    x, labels = _samples(data.test)
    _write_result(task, float((model(x).argmax(1) == labels).float().mean()))


def _samples(samples: Samples) -> tuple[Tensor, Tensor]:
    x = samples.inputs
    return x.float().reshape(len(x), -1) / 255, samples.targets.long()


def _write_result(task: Task, value: float) -> None:
    (task.folder / "result.json").write_text(json.dumps(value))


class Processes:
    """The scripts of all sites of a run, each in a process that a fork server starts quickly."""

    def __init__(self, run: Path, script: Script, steps: int, seed: int, pause: float) -> None:
        self.run = run
        self.script = script
        self.tasks = {}
        for number, name in enumerate(run_folders.load(run).names):
            self.tasks[name] = Task(run / name, number, seed, steps, pause)
        self.processes: dict[str, BaseProcess] = {}
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__, "spodgt.problems.data.datasets"])
        self.kills = 0
        self.steps_at_start: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return list(self.tasks)

    def start(self, *names: str, crash: str = "") -> None:
        for name in names or self.names:
            self.steps_at_start[name] = self.steps(name)
            process = self.context.Process(
                target=_run_script, args=(self.script, self.tasks[name], crash)
            )
            process.start()
            self.processes[name] = process

    def kill(self, *names: str) -> None:
        """kill -9."""
        for name in names or self.names:
            process = self.processes.get(name)
            if process is not None and process.pid and process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                self.kills += 1
                process.join(20)

    def wait(self, seconds: float) -> None:
        """Wait until all scripts have ended."""
        deadline = time.monotonic() + seconds
        for name, process in self.processes.items():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                raise TimeoutError(f"{name} did not end within {seconds} s: {self.status(name)}")
            if process.exitcode:
                raise RuntimeError(f"{name} ended with exit code {process.exitcode}")

    def wait_until_training(self, seconds: float) -> None:
        """Wait until all scripts have made steps since their last start."""
        deadline = time.monotonic() + seconds
        while any(self.steps(name) <= self.steps_at_start[name] for name in self.names):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all scripts train after {seconds} s")
            time.sleep(0.05)

    def wait_for_crash(self, name: str, seconds: float) -> None:
        process = self.processes[name]
        process.join(seconds)
        if process.exitcode != -signal.SIGKILL:
            raise TimeoutError(f"{name} did not reach its crash point within {seconds} s")
        self.kills += 1

    def status(self, name: str) -> dict[str, object]:
        path = self.run / name / "status.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def steps(self, name: str) -> int:
        """Steps that the site has committed, at its last report."""
        value = self.status(name).get("gradients", 0)
        assert isinstance(value, int)
        return value

    def results(self) -> list[float]:
        """What the scripts have written at their end."""
        return [float(json.loads((self.run / n / "result.json").read_text())) for n in self.names]

    @property
    def folders(self) -> list[Path]:
        return [task.folder for task in self.tasks.values()]

    def audit(self) -> Audit:
        return run_folders.audit_folders(self.folders)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.kill()


def _run_script(script: Script, task: Task, crash: str) -> None:
    parent = os.getppid()
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    fault_injection.arm(crash)
    try:
        script(task)
    except SpodgtError as error:
        print(f"{task.folder.name}: {error}", file=sys.stderr)
        sys.exit(1)


def _exit_with(parent: int) -> None:
    """End with the process of the tests."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


class Outcome(NamedTuple):
    """What is left after all scripts have ended."""

    audits: list[Audit]
    results: list[float]
    kills: int


def train_with_kills(
    folder: Path,
    script: Script,
    model: nn.Module,
    *,
    kills: int,
    steps: int,
    seed: int = 0,
    pause: float = 0.0,
    seconds: float = 300.0,
    points: tuple[str, ...] = (),
) -> Outcome:
    """Train four scripts to their end; one after another is killed and started again.

    Args:
        folder: Of the run, made here.
        script: Of every site.
        model: Of which the layout is taken.
        kills: Random ones; none follows once a script is near its end.
        steps: Of every script.
        seed: Of kills and batches.
        pause: Seconds of a step.
        seconds: Limit of the whole.
        points: Crash points at which the last site dies first, one after another.
    """
    make_run(folder, model, SITES, p_hat=0.8)
    draw = random.Random(seed)
    audits = []
    deadline = time.monotonic() + seconds
    with Processes(folder, script, steps, seed, pause) as fleet:
        last = fleet.names[-1]
        fleet.start(*fleet.names[:-1])
        for point in points:
            fleet.start(last, crash=f"{point}:{draw.randint(1, 3)}")
            fleet.wait_for_crash(last, seconds)
        fleet.start(last)
        for number in range(kills):
            fleet.wait_until_training(max(60.0, deadline - time.monotonic()))
            time.sleep(draw.uniform(0.0, 2.0))
            if max(map(fleet.steps, fleet.names)) > 0.8 * steps or time.monotonic() > deadline:
                break
            names = fleet.names if number % 10 == 9 else [draw.choice(fleet.names)]
            fleet.kill(*names)
            if len(names) > 1:
                audits.append(fleet.audit())
            fleet.start(*names)
        fleet.wait(max(60.0, deadline - time.monotonic()))
        audits.append(fleet.audit())
        return Outcome(audits, fleet.results(), fleet.kills)


def _print_outcome(what: str, outcome: Outcome) -> None:
    errors = [math_error(audit) for audit in outcome.audits]
    mean = sum(outcome.results) / len(outcome.results)
    rows = ", ".join(f"{value:.3f}" for value in outcome.results)
    print(
        f"{what}: {outcome.kills} kill -9, worst of {len(errors)} audits {max(errors):.1e}, "
        f"accuracies {rows}, mean {mean:.4f}",
        flush=True,
    )


def math_error(audit: Audit) -> float:
    """The largest error of an audit; infinite if something is missing."""
    if audit.problems or audit.error is None:
        return float("inf")
    return max(audit.error, *audit.local.values())


if __name__ == "__main__":
    network = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    kill_count, seed_number = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="spodgt-kills-") as directory:
        found = train_with_kills(
            Path(directory) / "run",
            images,
            network,
            kills=kill_count,
            steps=5000,
            seed=seed_number,
            pause=0.12,
            seconds=3000,
        )
    _print_outcome(f"seed {seed_number}", found)
