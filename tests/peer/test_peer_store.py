"""The disk: all of a commit or none, damage is seen, one process at a time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from spodgt.errors import InvalidInput
from spodgt.peer import faults
from spodgt.peer import store as stores
from spodgt.peer.store import Store, StoreFailed


def vectors(value: float) -> dict[str, torch.Tensor]:
    return {"y": torch.full((1000,), value, dtype=torch.float64), "out:p1": torch.full((1000,), float(value))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.mark.parametrize("durability", ["power", "process"])
def test_what_is_committed_comes_back(folder: Path, durability: str) -> None:
    store = Store(folder, durability=durability)
    assert store.load() is None
    for k in range(5):
        store.commit(vectors(k) if k % 2 == 0 else {"y": vectors(k)["y"]}, {"k": k})
    store.close()
    found, meta = stores.read(folder)
    assert meta == {"k": 4}
    assert torch.equal(found["y"], vectors(4)["y"])
    assert found["y"].dtype == torch.float64
    assert torch.equal(found["out:p1"], vectors(4)["out:p1"])


@pytest.mark.parametrize("point", ["vectors written", "before commit", "after commit"])
def test_kill_9_inside_a_commit_leaves_the_old_or_the_new_state(folder: Path, point: str) -> None:
    store = Store(folder, durability="process")
    store.commit(vectors(1), {"k": 1})
    store.close()
    child = os.fork()
    if not child:
        mine = Store(folder, durability="process")
        mine.load()
        faults.arm(point)
        mine.commit(vectors(2), {"k": 2})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    found, meta = stores.read(folder)
    value = 2 if point == "after commit" else 1
    assert meta == {"k": value}
    assert all(torch.equal(found[name], v) for name, v in vectors(value).items())


def damage(folder: Path, cut: bool) -> None:
    """Spoil the newest slot of y."""
    store = Store(folder)
    store.load()
    slot = store.slots["y"]
    at = slot["at"] + slot["slot"] * 8000
    store.close()
    if cut:
        os.truncate(folder / "vectors.bin", at + 10)
    else:
        with (folder / "vectors.bin").open("r+b") as file:
            file.seek(at + 100)
            file.write(b"\xff" * 10)


def test_a_damaged_slot_costs_one_commit(folder: Path) -> None:
    store = Store(folder)
    for k in (1, 2):
        store.commit(vectors(k), {"k": k})
    store.close()
    damage(folder, cut=False)
    store = Store(folder)
    loaded = store.load()
    assert loaded is not None
    assert loaded[1] == {"k": 1}
    assert all(torch.equal(loaded[0][name], v) for name, v in vectors(1).items())
    assert "checksum of y" in store.damaged
    store.commit(vectors(3), {"k": 3})  # and it goes on
    store.close()
    assert stores.read(folder)[1] == {"k": 3}


def test_a_state_that_is_beyond_repair_is_named(folder: Path) -> None:
    store = Store(folder)
    store.commit(vectors(1), {"k": 1})
    store.close()
    damage(folder, cut=True)
    with pytest.raises(StoreFailed, match=r"damaged.*remove the directory"):
        stores.read(folder)


def test_a_second_process_is_refused(folder: Path) -> None:
    store = Store(folder)
    with pytest.raises(StoreFailed, match="in use by another process"):
        Store(folder)
    store.close()
    Store(folder).close()


def test_bad_input_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="durability must be power or process, got 'fast'"):
        Store(folder, durability="fast")
    with pytest.raises(InvalidInput, match="holds no peer state"):
        stores.read(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 256 KiB."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=False
    ).returncode:
        pytest.skip("this kernel lets us mount no tmpfs")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_keeps_the_old_state(small_disk: Path) -> None:
    store = Store(small_disk / "state", durability="process")
    store.commit(vectors(1), {"k": 1})
    (small_disk / "filler").write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - 4096)))

    def go_on() -> None:
        for k in range(2, 200):
            store.commit({**vectors(k), f"more{k}": torch.zeros(4000)}, {"k": k})

    with pytest.raises(StoreFailed, match="full"):
        go_on()
    store.close()
    (small_disk / "filler").unlink()
    found, meta = stores.read(small_disk / "state")
    assert torch.equal(found["y"], vectors(meta["k"])["y"])


def test_a_read_only_disk_is_named(small_disk: Path) -> None:
    store = Store(small_disk / "state", durability="process")
    store.commit(vectors(1), {"k": 1})
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreFailed, match=r"read-only|readonly"):
        Store(small_disk / "state")
