"""Rolling upgrades: two versions of the program in one run, and states of other versions on disk."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from spodgt.peer.membership import run_folders
from spodgt.peer.options import Options
from spodgt.peer.process.main import Peer
from spodgt.peer.storage import state_store
from spodgt.peer.storage.state_store import StoreFailed
from tests.peer.failures import all_up, beyond, exact, fleet, resets
from tests.peer.test_peer_changes import run as run  # noqa: PLC0414
from tests.peer.test_peer_store import bodies, database

# the next release: one more protocol, another number
NEXT = """
import functools, sys
from spodgt.peer.process import main
main.wire_format.Context = functools.partial(main.wire_format.Context, protocols=(1, 2, 3))
main.metadata.version = lambda name: "9.9"
main.Peer(sys.argv[1], sys.argv[2], main.Options(durability="process", report_every=0.3)).run()
"""
LATER = ("crew", "heard_at", "more")  # numbers that the first states did not have


def rewrite(home: Path, number: int) -> None:
    """Make the commits of a stopped client those of another format."""
    for path in (home / "state").glob("commit.*"):
        record = state_store._decode_record(path.read_bytes())
        body: dict[str, Any] = json.loads(record.text)
        body["format"] = number
        path.write_bytes(
            state_store._encode_record(record._replace(text=json.dumps(body).encode()))
        )


def as_release_0_2(home: Path) -> None:
    """Make the state of a stopped client one of release 0.2.0: a database, and fewer keys."""
    states = bodies(home / "state")
    for body in states.values():
        meta: Any = body["meta"]
        body["meta"] = {key: value for key, value in meta.items() if key not in LATER}
    database(home / "state", states)


def test_a_state_of_the_version_before_is_read_and_goes_on(run: Path) -> None:
    home = run_folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process", rounds=20))
    peer.run()
    as_release_0_2(home)
    again = Peer(home, "p0", Options(durability="process", rounds=40))
    assert torch.equal(again.node.state.method.y, peer.node.state.method.y)
    assert again.node.state.k == 21
    again.run()
    assert again.node.state.k == 41
    assert run_folders.audit_folders([home]).local["p0"] <= 1e-12


def test_a_state_of_a_later_version_is_refused_with_a_sentence_and_kept(run: Path) -> None:
    home = run_folders.issue(run, "p0")
    Peer(home, "p0", Options(durability="process", rounds=5)).run()
    rewrite(home, 4)
    before = (home / "state" / "vectors.bin").read_bytes()
    sentence = r"state has format 4, this version reads 2 and 3; use the version that wrote it\."
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
