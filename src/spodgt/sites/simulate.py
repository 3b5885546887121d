"""A training script as several processes on this machine, one per site: `spodgt simulate`.

Folders, certificates, links and messages are those of a real run. The script is started unchanged;
each process finds its folder and its seed in the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from spodgt.errors import Failed, InvalidInput
from spodgt.experiment import Experiment
from spodgt.peer.membership import run_folders
from spodgt.peer.membership.manifest import Manifest
from spodgt.peer.options import Deployment
from spodgt.peer.protocol.audit import Audit
from spodgt.peer.storage.state_store import has_state
from spodgt.sites.run_setup import create_script_run, find_error, read_layout
from spodgt.sites.seeds import SEED_VARIABLE
from spodgt.sites.site import FOLDER_VARIABLE

OUTPUT = "output.txt"  # of a site's process, in its folder
_POLL_SECONDS = 0.2
_TERMINATION_SECONDS = 10.0  # between SIGTERM and SIGKILL
_SEEDS_PER_RUN = 1000  # the seeds of the sites of run n begin at 1000 n


class SiteProgress(NamedTuple):
    """What a site has done so far, and its scores."""

    blocks: int = 0
    steps: int = 0
    messages: int = 0  # sent
    bytes: int = 0  # sent
    loss: float | None = None  # None: not reported
    accuracy: float | None = None
    seconds: float = 0.0

    @classmethod
    def read(cls, path: Path) -> SiteProgress:
        """From a status.json; before the first report nothing was done."""
        try:
            status = json.loads(path.read_text())
        except (OSError, json.JSONDecodeError):
            return cls()
        sent = [link for link in status["neighbours"] if link["way"] == "to"]
        return cls(
            blocks=max(0, status["k"] - 1),
            steps=status["gradients"],
            messages=sum(link["messages"] for link in sent),
            bytes=sum(link["bytes"] for link in sent),
            loss=status["loss"],
            accuracy=status["accuracy"],
            seconds=status["seconds"],
        )


@dataclass(frozen=True)
class ScriptRun:
    """A script and the sites that run it.

    Args:
        script: The training script.
        arguments: Of the script; {name}, {number}, {clients}, {seed} and {folder} are placeholders.
        folder: Of the run; made by `prepare`.
        seed: Of the run; every site has a seed of its own.
        manifest: Signed, with one client per site.
    """

    script: Path
    arguments: tuple[str, ...]
    folder: Path
    seed: int
    manifest: Manifest

    @property
    def names(self) -> list[str]:
        """Names of the sites."""
        return self.manifest.names

    def site_folder(self, name: str) -> Path:
        """Folder of a site."""
        return self.folder / name

    def command(self, name: str) -> list[str]:
        """The command line of a site's process."""
        number = self.names.index(name)
        values = _placeholders(
            name, number, len(self.names), self.site_seed(number), self.site_folder(name)
        )
        return [sys.executable, str(self.script), *_fill(self.arguments, values)]

    def site_seed(self, number: int) -> int:
        """The seed of a site."""
        return _SEEDS_PER_RUN * self.seed + number

    def environment(self, name: str) -> dict[str, str]:
        """Environment variables of a site's process."""
        number = self.names.index(name)
        threads = max(1, (os.cpu_count() or 1) // len(self.names))
        return {
            "OMP_NUM_THREADS": str(threads),  # replaced by the user's value, if there is one
            **os.environ,
            FOLDER_VARIABLE: str(self.site_folder(name)),
            SEED_VARIABLE: str(self.site_seed(number)),
            "PYTHONUNBUFFERED": "1",
        }

    def output(self, name: str) -> Path:
        """The file with what the script of a site has printed."""
        return self.site_folder(name) / OUTPUT

    def progress(self, name: str) -> SiteProgress:
        """How far a site has trained, by its last report."""
        return SiteProgress.read(self.site_folder(name) / "status.json")

    def audit(self) -> Audit:
        """The audit of all mass, from the disks; the processes must have ended."""
        return run_folders.audit_folders([self.site_folder(name) for name in self.names])


def _placeholders(
    name: str, number: int, clients: int, seed: int, folder: Path
) -> dict[str, object]:
    return {"name": name, "number": number, "clients": clients, "seed": seed, "folder": folder}


def _fill(arguments: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Arguments with the placeholders replaced; other braces are left as they are."""
    filled = []
    for argument in arguments:
        for key, value in values.items():
            argument = argument.replace(f"{{{key}}}", str(value))
        filled.append(argument)
    return filled


def prepare(
    script: Path, arguments: Sequence[str], folder: Path, experiment: Experiment
) -> ScriptRun:
    """Make the folders of a run for a script.

    Args:
        script: Calls `spodgt.join`.
        arguments: Of the script, with placeholders.
        folder: Must not hold a run yet.
        experiment: Its network and participation are those of the sites.

    Raises:
        InvalidInput: the script is missing or does not reach `spodgt.join`, or one site is alone.
    """
    seed = experiment.run.seed_list[0]
    network, _ = experiment.draw_network(seed)
    if network.clients < 2:
        raise InvalidInput(f"clients must be at least 2, got {network.clients}; use --clients 4.")
    first = _placeholders("p0", 0, network.clients, _SEEDS_PER_RUN * seed, folder / "p0")
    layout = read_layout(script, _fill(arguments, first))
    manifest = create_script_run(folder, experiment, layout, Deployment(limits_from_config=True))
    for name in manifest.names:
        run_folders.issue(folder, name)
    return ScriptRun(script, tuple(arguments), folder, seed, manifest)


class SiteProcesses:
    """The processes of a run, as a context manager that ends all of them."""

    def __init__(self, run: ScriptRun) -> None:
        self.run = run
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for name in self.run.names:
                self.running[name] = self._start(name)
        except BaseException:
            self.end_all()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end_all()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        with self.run.output(name).open("wb") as output:
            return subprocess.Popen(
                self.run.command(name),
                env=self.run.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process only, which ends the others
            )

    def wait(self, on_poll: Callable[[], None], seconds: float | None = None) -> None:
        """Wait until all processes have ended.

        Args:
            on_poll: Called several times a second.
            seconds: Longest time; then all are ended, as by a crash.

        Raises:
            Failed: a process ended with an error, or a site never joined.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            codes = {name: process.poll() for name, process in self.running.items()}
            for name, code in codes.items():
                if code:
                    raise Failed(self._describe_failure(name, code))
            if all(code == 0 for code in codes.values()):
                self._check_joined("when its script ended; call spodgt.join in it")
                return
            if deadline is not None and time.monotonic() >= deadline:
                self._check_joined(f"after {seconds:g} s; train longer")
                return
            on_poll()
            time.sleep(_POLL_SECONDS)

    def _check_joined(self, when: str) -> None:
        """Refuse a run in which a site has no state."""
        for name in self.running:
            if not has_state(self.run.site_folder(name) / "state"):
                raise Failed(f"{name} had not joined {when}; see {self.run.output(name)}.")

    def _describe_failure(self, name: str, code: int) -> str:
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was ended by signal {signal.Signals(-code).name}"
        path = self.run.output(name)
        reason = find_error(path.read_text(errors="replace"))
        return f"{name} {how}, so all sites were ended: {reason}; see {path}."

    def end_all(self) -> None:
        """End every process with its children: SIGTERM, and SIGKILL for those that remain."""
        for process in self.running.values():
            if process.poll() is None:
                _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + _TERMINATION_SECONDS
        for process in self.running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal_group(process, signal.SIGKILL)
                process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process and to those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
