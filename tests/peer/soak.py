"""A long run under everything at once: TCP resets, lost, repeated and late frames, and kill -9.

`python -m tests.peer.soak --seconds 1800 --clients 10 --kills 100` is the long form. Some clients are never
killed: their memory and descriptors tell whether anything grows. Exits 1 if a claim does not hold.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from spodgt.peer.membership import run_folders
from tests.peer.failures import CHAOS, EXACT, all_up, fleet, resets, resident, settled
from tests.peer.fleet import Fleet
from tests.peer.proxy import Proxies

GROWTH = (
    0.5e6  # bytes a minute that memory may grow; a process that lives for a year has to be flat
)


@dataclass
class Watch:
    """Memory and descriptors of clients that are never killed."""

    fleet: Fleet
    names: list[str]
    begun: float = field(default_factory=time.monotonic)
    rows: list[tuple[float, str, float, int]] = field(default_factory=list)

    def look(self) -> None:
        for name in self.names:
            pid = self.fleet.processes[name].pid
            files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            self.rows.append((time.monotonic() - self.begun, name, resident(pid), files))

    def growth(self) -> tuple[float, int]:
        """The largest growth over the second half: bytes a minute, and descriptors between the middles."""
        bytes_, files = 0.0, -(10**6)
        for name in self.names:
            rows = [row for row in self.rows if row[1] == name]
            half = rows[len(rows) // 2 :]
            bytes_ = max(
                bytes_, (half[-1][2] - half[0][2]) / max(half[-1][0] - half[0][0], 1e-9) * 60
            )
            part = max(1, len(rows) // 4)
            early, late = rows[part : 2 * part] or rows, rows[-part:]
            files = max(
                files, round(median(row[3] for row in late) - median(row[3] for row in early))
            )
        return bytes_, files


def soak(
    seconds: float, clients: int, kills: int, *, cut: float = 0.0005, seed: int = 1
) -> dict[str, object]:
    """Run, disturb, let it come to rest; what was measured, under "failed" the claims that do not hold."""
    draw = random.Random(seed)
    real, shown = run_folders.free_addresses(clients), run_folders.free_addresses(clients)
    with (
        Proxies(dict(zip(shown, real, strict=True)), cut=cut, seed=seed) as proxies,
        fleet(clients=clients, addresses=shown, rate=10, chaos=CHAOS) as f,
    ):
        options = {
            name: replace(f.options, listen=address, report_every=1.0)
            for name, address in zip(f.names, real, strict=True)
        }
        for name in f.names:
            f.start(name, options=options[name])
        f.rounds(10, 300)
        steady = f.names[-max(2, clients // 4) :]
        mortal = [name for name in f.names if name not in steady]
        watch, begun = Watch(f, steady), time.monotonic()
        while (now := time.monotonic() - begun) < seconds:
            if f.kills < kills and now > f.kills / kills * 0.95 * seconds:
                name = draw.choice(mortal)
                f.kill(name)
                f.start(name, options=options[name])
            watch.look()
            time.sleep(min(1.0, seconds / 100))
        proxies.cut = 0.0
        back = f.wait(lambda: all_up(f), 120, "all links up")
        memory, files = watch.growth()
        k, epochs = min(f.status(n)["k"] for n in f.names), resets(f)
        found = settled(f)
        claims = {
            "audit": found.passed(EXACT),
            "no epoch reset": epochs == 0,
            "memory": memory < GROWTH or seconds < 600,
            "descriptors": files <= 4,
        }
        return {
            "seconds": seconds, "clients": clients, "kills": f.kills, "resets": proxies.resets, "rounds": k,
            "audit": found.error, "problems": found.problems, "links up after": round(back, 1),
            "memory growth, MB/min": round(memory / 1e6, 3), "descriptors": files, "epochs": epochs,
            "failed": [claim for claim, holds in claims.items() if not holds],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--cut", type=float, default=0.0005, help="probability of a reset for each chunk"
    )
    chosen = parser.parse_args()
    measured = soak(chosen.seconds, chosen.clients, chosen.kills, cut=chosen.cut)
    for key, value in measured.items():
        print(f"{key}: {value}")
    sys.exit(1 if measured["failed"] else 0)


if __name__ == "__main__":
    main()
