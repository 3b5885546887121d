"""Rows of the failure table that need wires: clients in network namespaces of their own, joined by a bridge.

Everything is made in here and removed at the end; without root or nft the rows are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spodgt.peer.membership import run_folders
from tests.peer.failures import Skipped, exact, make


def sh(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if check and done.returncode:
        raise Skipped(
            f"{' '.join(command)}: "
            f"{done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}"
        )
    return done.stdout


class Wires:
    """Clients p0 … p(m-1) at 10.77.0.(i+1), each in its namespace."""

    def __init__(self, clients: int, tag: str) -> None:
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise Skipped("network namespaces need root and iproute2")
        self.clients, self.tag, self.bridge = clients, tag, f"{tag}hub"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def space(self, i: int) -> str:
        return f"{self.tag}{i}"

    def build(self) -> None:
        sh("ip", "netns", "add", self.bridge)
        inside = ("ip", "-n", self.bridge)
        sh(*inside, "link", "add", "br0", "type", "bridge")
        sh(*inside, "link", "set", "br0", "up")
        for i in range(self.clients):
            sh("ip", "netns", "add", self.space(i))
            sh(
                "ip",
                "link",
                "add",
                "eth0",
                "netns",
                self.space(i),
                "type",
                "veth",
                "peer",
                "name",
                f"v{i}",
                "netns",
                self.bridge,
            )
            sh(*inside, "link", "set", f"v{i}", "master", "br0", "up")
            sh("ip", "-n", self.space(i), "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            sh("ip", "-n", self.space(i), "link", "set", "eth0", "up")
            sh("ip", "-n", self.space(i), "link", "set", "lo", "up")

    def inside(self, i: int, *command: str) -> str:
        return sh("ip", "netns", "exec", self.space(i), *command)

    def remove(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        for name in (*map(self.space, range(self.clients)), self.bridge):
            sh("ip", "netns", "del", name, check=False)

    def limit(self, i: int, rate: float) -> None:
        """Let client i send so many bytes per second, to all others together."""
        line = f"tc qdisc add dev eth0 root tbf rate {8 * rate:.0f}bit burst 16kb latency 5s"
        self.inside(i, *line.split())

    def start(self, run: Path, names: list[str], *options: str) -> None:
        for i, name in enumerate(names):
            command = [
                "ip",
                "netns",
                "exec",
                self.space(i),
                sys.executable,
                "-m",
                "spodgt",
                "peer",
                "start",
                name,
                "--run",
            ]
            with (run / f"{name}.out").open("w") as out:
                self.processes[name] = subprocess.Popen(
                    [*command, str(run), "--durability", "process", "--quiet", *options],
                    stdout=out,
                    stderr=out,
                )

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(30)


@contextmanager
def wired(
    tag: str, clients: int = 3, hidden: int = -1, **options: Any
) -> Iterator[tuple[Wires, Path, list[str]]]:
    """A run on wires; client number `hidden` can open connections, but none reaches it."""
    wires = Wires(clients, tag)
    with tempfile.TemporaryDirectory() as folder:
        addresses = ["none" if i == hidden else f"10.77.0.{i + 1}:7000" for i in range(clients)]
        run = make(
            Path(folder) / "run", clients=clients, addresses=addresses, graph="complete", **options
        )
        names = [client.name for client in run_folders.load(run).clients]
        for name in names:
            run_folders.issue(run, name)
        try:
            wires.build()
            if hidden >= 0:
                wires.inside(hidden, "nft", NAT)
            wires.start(run, names)
            wait(lambda: all(status(run, n).get("k", 0) >= 20 for n in names), 120)
            yield wires, run, names
        finally:
            wires.remove()


NAT = (
    "add table inet t; add chain inet t in { type filter hook input priority 0; };"
    " add rule inet t in iifname eth0 tcp flags & (syn|ack) == syn drop"
)


def row_30(seconds: float = 10) -> str:
    """a client behind NAT: only its outgoing connections work (nft)"""
    if not shutil.which("nft"):
        raise Skipped("nft is not installed")
    with wired("spd", hidden=1) as (wires, run, names):
        took = wait(
            lambda: all(
                n["state"] == "up" for name in names for n in status(run, name)["neighbours"]
            ),
            60,
        )
        assert len(status(run, names[1])["neighbours"]) == 4
        before = {
            n["name"]: n["messages"]
            for n in status(run, names[1])["neighbours"]
            if n["way"] == "from"
        }
        time.sleep(seconds)
        after = {
            n["name"]: n["messages"]
            for n in status(run, names[1])["neighbours"]
            if n["way"] == "from"
        }
        heard = min(after[name] - before[name] for name in before) / seconds
        found = audit(wires, run, names)
        return f"all links up after {took:.1f} s, it hears {heard:.0f} messages/s a link; {found}"


def status(run: Path, name: str) -> dict[str, Any]:
    try:
        return json.loads((run / name / "status.json").read_text())  # type: ignore[no-any-return]
    except (OSError, json.JSONDecodeError):
        return {}


def wait(condition: Any, seconds: float) -> float:
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.1)
    return time.monotonic() - begun


def audit(wires: Wires, run: Path, names: list[str]) -> str:
    wires.stop()
    return exact(run_folders.audit_folders([run / name for name in names]))


def rate(run: Path, names: list[str], seconds: float) -> dict[str, float]:
    before, begun = {n: status(run, n)["k"] for n in names}, time.monotonic()
    time.sleep(seconds)
    return {n: (status(run, n)["k"] - before[n]) / (time.monotonic() - begun) for n in names}


def messages(run: Path, names: list[str]) -> int:
    return sum(
        n["messages"]
        for name in names
        for n in status(run, name)["neighbours"]
        if n["way"] == "from"
    )


def row_2(seconds: float = 15) -> str:
    """30 % packet loss on the wire (nft)"""
    if not shutil.which("nft"):
        raise Skipped("nft is not installed")
    with wired("spa") as (wires, run, names):
        clean, begun = messages(run, names), time.monotonic()
        time.sleep(5)
        clean_rate = (messages(run, names) - clean) / (time.monotonic() - begun)
        for i in range(wires.clients):
            wires.inside(
                i,
                "nft",
                "add table inet t; add chain inet t in { type filter hook input priority 0; };"
                " add rule inet t in iifname eth0 numgen random mod 100 < 30 drop",
            )
        lossy, begun = messages(run, names), time.monotonic()
        time.sleep(seconds)
        lossy_rate = (messages(run, names) - lossy) / (time.monotonic() - begun)
        return f"{audit(wires, run, names)}; messages/s {clean_rate:.0f} without loss, {lossy_rate:.1f} with"


def row_3(seconds: float = 15) -> str:
    """one slow link, 1 Mbit/s (tbf)"""
    large = {"model": "svm", "partition": {"kind": "iid"}}
    with wired("spb", problem=large, rate=15) as (wires, run, names):
        before = rate(run, names, 8)
        wires.limit(2, 1e6 / 8)
        memory = {n: rss(wires, n) for n in names}
        after = rate(run, names, seconds)
        grown = max(rss(wires, n) - memory[n] for n in names)
        others = [n for n in names if n != names[2]]
        slowest = min(after[n] / before[n] for n in others)
        return (
            f"{audit(wires, run, names)}; others at {100 * slowest:.0f} % of their rounds/s; memory "
            f"grew {grown / 1024:.0f} MB at most"
        )


def rss(wires: Wires, name: str) -> int:
    """KiB."""
    text = Path(f"/proc/{wires.processes[name].pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])


def row_4(seconds: float = 60) -> str:
    """one-way partition, then full partition (nft)"""
    if not shutil.which("nft"):
        raise Skipped("nft is not installed")
    with wired("spc") as (wires, run, names):
        took = []
        for hooks in (("input",), ("input", "output")):
            for hook in hooks:
                wires.inside(
                    1,
                    "nft",
                    f"add table inet t; add chain inet t {hook} {{ type filter hook {hook} priority 0; }};"
                    f" add rule inet t {hook} meta oifname != lo meta iifname != lo drop",
                )
            time.sleep(seconds)
            wires.inside(1, "nft", "delete table inet t")
            took.append(
                wait(
                    lambda: (
                        all(
                            n["state"] == "up"
                            for name in names
                            for n in status(run, name)["neighbours"]
                        )
                        and all(
                            (n["silent"] or 99) < 2
                            for name in names
                            for n in status(run, name)["neighbours"]
                        )
                    ),
                    60,
                )
            )
        return (
            f"{audit(wires, run, names)}; all links up {took[0]:.1f} s after the one-way and "
            f"{took[1]:.1f} s after the full partition"
        )
