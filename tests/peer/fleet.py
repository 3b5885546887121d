"""Several peers on this host under one supervisor, for failure tests and benchmarks.

Processes come from a fork server that has imported everything, so a killed client restarts quickly.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from spodgt.engine import use_loops
from spodgt.errors import SpodgtError
from spodgt.peer.host import fault_injection
from spodgt.peer.membership import run_folders
from spodgt.peer.options import Options
from spodgt.peer.process.main import Peer
from spodgt.peer.protocol.audit import Audit
from tests.peer.chaos import Chaos


class Fleet:
    """The clients of a run's folder, each a process; methods act on the clients named, or on all."""

    def __init__(
        self,
        run: Path,
        options: Options = Options(),  # noqa: B008
        chaos: Mapping[str, float] | None = None,
    ) -> None:
        self.run, self.options, self.chaos = Path(run), options, dict(chaos or {})
        self.names = run_folders.load(self.run).names
        for name in self.names:
            if not (self.run / name / "cert.pem").exists():
                run_folders.issue(self.run, name)
        self.processes: dict[str, BaseProcess] = {}
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__, "spodgt.problems.data.datasets"])
        self.kills = 0

    def start(self, *names: str, crash: str = "", options: Options | None = None) -> None:
        """Start processes; `crash` is the crash point at which they end."""
        for name in names or self.names:
            arguments = (
                self.run / name,
                name,
                options or self.options,
                self.chaos,
                crash,
            )
            process = self.context.Process(target=_child, args=arguments, name=name, daemon=True)
            process.start()
            self.processes[name] = process

    def kill(self, *names: str, number: int = signal.SIGKILL) -> None:
        """Send a signal, and wait for the end of those that it ends."""
        chosen = [self.processes[name] for name in names or self.names if name in self.processes]
        for process in chosen:
            if process.pid and process.is_alive():
                os.kill(process.pid, number)
                self.kills += number == signal.SIGKILL
        if number in (signal.SIGKILL, signal.SIGTERM):
            for process in chosen:
                process.join(20)

    def stop(self) -> None:
        """End all cleanly."""
        self.kill(number=signal.SIGTERM)
        self.kill()

    def alive(self, name: str) -> bool:
        return name in self.processes and self.processes[name].is_alive()

    def status(self, name: str) -> dict[str, Any]:
        """The content of status.json; empty before the first report."""
        with contextlib.suppress(OSError, json.JSONDecodeError):
            return json.loads((self.run / name / "status.json").read_text())  # type: ignore[no-any-return]
        return {}

    def log(self, name: str, event: str) -> list[dict[str, Any]]:
        """Rows of one kind in a client's log."""
        path = self.run / name / "log.jsonl"
        rows = []
        for line in path.read_text().splitlines() if path.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):  # a kill may cut a line
                rows.append(json.loads(line))
        return [row for row in rows if row["event"] == event]

    def wait(self, condition: Callable[[], object], seconds: float, what: str = "") -> float:
        """Wait until `condition()`; returns how long it took, raises if it takes longer than `seconds`."""
        begun = time.monotonic()
        while not condition():
            if time.monotonic() - begun > seconds:
                raise TimeoutError(f"not within {seconds} s: {what or condition}")
            time.sleep(0.05)
        return time.monotonic() - begun

    def rounds(self, at_least: int, seconds: float) -> float:
        """Wait until all have reached a local round."""
        return self.wait(
            lambda: all(self.status(n).get("k", 0) >= at_least for n in self.names), seconds
        )

    def audit(self, *names: str) -> Audit:
        """From the disks; the clients must have stopped."""
        return run_folders.audit_folders([self.run / name for name in names or self.names])

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _exit_with(parent: int) -> None:
    """End a client whose supervisor was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _child(
    folder: Path, name: str, options: Options, chaos: Mapping[str, float], crash: str
) -> None:
    threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()
    fault_injection.arm(crash)
    try:
        with use_loops(options.compiled):
            peer = Peer(folder, name, options)
            local = peer.transport.local
            if chaos:
                local.receive = Chaos(local.receive, **chaos)
            peer.run()
    except SpodgtError as error:
        (folder / "error.txt").write_text(str(error))
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
