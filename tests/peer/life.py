"""Long runs in the life of peers; `python -m tests.peer.life` prints their figures."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from spodgt.experiment import Experiment
from spodgt.peer.membership import run_folders
from spodgt.peer.membership.manifest import Manifest
from spodgt.peer.membership.manifest_changes import add_client, apply_change, remove_client
from spodgt.peer.membership.run_folders import create, free_addresses
from spodgt.peer.options import Change, Deployment, Options
from tests.peer.fleet import Fleet
from tests.peer.proxy import Proxies

CONFIG: dict[str, Any] = {
    "run": {"methods": ["spod-gt-memory"], "step_size": 0.05, "seeds": 1},
    "network": {"kind": "exponential", "clients": 4},
    "participation": {"kind": "always"},
    "problem": {"kind": "quadratic", "parameters": 6},
}


class Outages:
    """How long each link was down, from the status files."""

    def __init__(self, f: Fleet) -> None:
        self.f = f
        self.since: dict[tuple[str, str, str], float] = {}
        self.longest = 0.0

    def look(self) -> bool:
        """Note what is down now; whether all is up."""
        now = time.monotonic()
        for name in self.f.names:
            for n in self.f.status(name).get("neighbours", []):
                link = (name, n["way"], n["name"])
                if n["state"] == "up":
                    self.since.pop(link, None)
                else:
                    self.longest = max(self.longest, now - self.since.setdefault(link, now))
        return not self.since


def renewals(seconds: float = 600, life: float = 120, cut: float = 0.0005) -> str:
    """Short certificates, renewed at half their life, over connections that are reset now and then."""
    shown, real = free_addresses(4), free_addresses(4)
    with tempfile.TemporaryDirectory(prefix="spodgt-life-") as folder:
        run = Path(folder) / "run"
        create(run, Experiment.parse(CONFIG), Deployment(rounds_per_second=20, addresses=shown))
        names = run_folders.load(run).names
        options = Options(durability="process", report_every=0.2)
        with (
            Proxies(dict(zip(shown, real, strict=True)), cut=cut) as proxies,
            Fleet(run, options) as f,
        ):
            for name, address in zip(names, real, strict=True):
                f.start(name, options=replace(options, listen=address))
            outages = Outages(f)
            f.wait(lambda: all(f.status(n).get("k", 0) for n in names), 120)
            f.wait(outages.look, 60, "all links up")
            outages.longest, renewed, due = 0.0, 0, time.monotonic()
            end = due + seconds
            while time.monotonic() < end:
                if time.monotonic() > due:
                    for name in names:
                        run_folders.issue(run, name, days=life / 86400)
                    renewed, due = renewed + 1, due + life / 2
                outages.look()
                time.sleep(0.1)
            proxies.cut = 0.0
            f.wait(outages.look, 60, "all links up at the end")
            f.stop()
            found = f.audit()
            assert found.error is not None
            assert max(found.error, *found.local.values()) <= 1e-12, found
            assert proxies.resets, "no connection was made anew"
            times = f"{seconds:.0f} s, certificates of {life:.0f} s"
            counts = f"{renewed} renewals, {proxies.resets} resets"
            outage = f"no link down for more than {outages.longest:.1f} s"
            return f"{times}, {counts}: {outage}; audit {found.error:.1e}"


def settled(f: Fleet, version: int) -> bool:
    """Whether all follow a version of the manifest and all links are up."""
    rows = [f.status(name) for name in f.names]
    up = all(n["state"] == "up" for row in rows for n in row.get("neighbours", [{"state": ""}]))
    return up and all(row.get("version") == version for row in rows)


def changing() -> str:
    """A client joins, one leaves, the step and an address change, all while the others run."""
    with tempfile.TemporaryDirectory(prefix="spodgt-life-") as folder:
        run, told = Path(folder) / "run", []
        network = {"network": {"kind": "exponential", "clients": 5}}
        create(
            run,
            Experiment.parse({**CONFIG, **network}),
            Deployment(divided_into=6, rounds_per_second=60),
        )
        with Fleet(run, Options(durability="process", report_every=0.2)) as f:

            def taken(
                what: str, change: Callable[[Manifest], Manifest], newcomer: str = ""
            ) -> None:
                """Publish a change; when all follow it, stop them, audit their disks, start them again."""
                version = run_folders.publish_next(run, change).version
                if newcomer:
                    run_folders.issue(run, newcomer)
                    f.names.append(newcomer)
                    f.start(newcomer)
                took = f.wait(lambda: settled(f, version), 90, what)
                f.kill(number=signal.SIGTERM)
                found = f.audit()
                assert found.error is not None, found
                assert max(found.error, *found.local.values()) <= 1e-12, found
                told.append(f"{what}: all follow after {took:.1f} s, audit {found.error:.1e}")
                f.start()
                f.wait(lambda: settled(f, version), 90, "all are back")

            f.start()
            f.wait(lambda: settled(f, 1), 90, "all links up")
            links: dict[tuple[str, str], dict[str, object]] = {}
            for n in ("p0", "p2"):
                links |= {("p5", n): {}, (n, "p5"): {}}
            where, moved = free_addresses(2)
            taken("joined", lambda m: add_client(m, "p5", address=where, links=links), "p5")
            f.names.remove("p1")
            taken("left", lambda m: remove_client(m, "p1"))
            assert not f.alive("p1")
            taken("another step", lambda m: apply_change(m, Change(step_size=0.01)))
            taken("address moved", lambda m: apply_change(m, Change(addresses={"p3": moved})))
            assert f.log("p3", "address")[-1]["text"] == f"listening at {moved}"
            return "; ".join(told)


if __name__ == "__main__":
    print(renewals(*map(float, sys.argv[1:])) if sys.argv[1:] else changing())
