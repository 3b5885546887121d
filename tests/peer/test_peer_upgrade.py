"""Rolling upgrades: two versions of the program in one run, and states of other versions on disk."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from spodgt.peer import folders
from spodgt.peer.options import Options
from spodgt.peer.run import Peer
from spodgt.peer.store import StoreFailed
from tests.peer.failures import all_up, beyond, exact, fleet, resets
from tests.peer.test_peer_changes import run as run  # noqa: PLC0414

# the next release: one more protocol, another number
NEXT = """
import functools, sys
from spodgt.peer import run
run.wire.Context = functools.partial(run.wire.Context, protocols=(1, 2, 3))
run.metadata.version = lambda name: "9.9"
run.Peer(sys.argv[1], sys.argv[2], run.Options(durability="process", report_every=0.3)).run()
"""
LATER = ("crew", "heard_at", "more")  # numbers that the first states did not have


def rewrite(home: Path, number: int) -> None:
    """Make the commits of a stopped client those of another version: its number, no sum, fewer keys."""
    with contextlib.closing(sqlite3.connect(home / "state" / "state.db")) as db:
        for generation, text in db.execute("SELECT generation, body FROM commits").fetchall():
            body: dict[str, Any] = json.loads(text[text.index("{") :])
            body["format"] = number
            body["meta"] = {key: value for key, value in body["meta"].items() if key not in LATER}
            db.execute(
                "UPDATE commits SET body = ? WHERE generation = ?", (json.dumps(body), generation)
            )
        db.commit()


def test_a_state_of_the_version_before_is_read_and_goes_on(run: Path) -> None:
    home = folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process", rounds=20))
    peer.run()
    rewrite(home, 1)
    again = Peer(home, "p0", Options(durability="process", rounds=40))
    assert torch.equal(again.node.state.method.y, peer.node.state.method.y)
    assert again.node.state.k == 21
    again.run()
    assert again.node.state.k == 41
    assert folders.audit_folders([home]).local["p0"] <= 1e-12


def test_a_state_of_a_later_version_is_refused_with_a_sentence_and_kept(run: Path) -> None:
    home = folders.issue(run, "p0")
    Peer(home, "p0", Options(durability="process", rounds=5)).run()
    rewrite(home, 3)
    before = (home / "state" / "vectors.bin").read_bytes()
    sentence = r"state has format 3, this version reads 1 and 2; use the version that wrote it\."
    with pytest.raises(StoreFailed, match=sentence):
        Peer(home, "p0", Options(durability="process", rounds=5))
    assert (home / "state" / "vectors.bin").read_bytes() == before


@pytest.mark.slow
@pytest.mark.network
def test_hosts_are_upgraded_one_by_one_while_the_others_run() -> None:
    with fleet(clients=3) as f:
        f.start()
        f.rounds(20, 120)
        upgraded: list[subprocess.Popen[bytes]] = []
        try:
            for name in f.names:
                f.kill(name, number=15)
                known = {name: f.status(name)["incarnation"]}
                line = [sys.executable, "-c", NEXT, str(f.run / name), name]
                upgraded.append(subprocess.Popen(line))
                restarted = beyond(f, "incarnation", known)
                f.wait(lambda restarted=restarted: restarted() and all_up(f), 60, name)  # type: ignore[misc]
                before = {each: f.status(each)["k"] for each in f.names}
                f.wait(beyond(f, "k", before, 20), 60, "all go on")
            time.sleep(1)
            for name in f.names:
                assert {n["version"] for n in f.status(name)["neighbours"]} == {"9.9"}
            assert resets(f) == 0
        finally:
            for process in upgraded:
                process.terminate()
            for process in upgraded:
                process.wait(30)
        exact(f.audit())
