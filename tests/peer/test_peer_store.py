"""The disk: all of a commit or none, damage is seen, one process at a time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
from collections import Counter, UserDict
from collections.abc import Callable, ItemsView, Iterator
from pathlib import Path

import pytest
import torch

from spodgt.errors import InvalidInput
from spodgt.peer.host import fault_injection
from spodgt.peer.storage import state_store as stores
from spodgt.peer.storage.state_store import DiskStateStore, StoredState, StoreFailed


def vectors(value: float) -> dict[str, torch.Tensor]:
    return {
        "y": torch.full((1000,), value, dtype=torch.float64),
        "out:p1": torch.full((1000,), float(value)),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.mark.parametrize("durability", ["power", "process"])
def test_what_is_committed_comes_back(folder: Path, durability: str) -> None:
    store = DiskStateStore(folder, durability=durability)
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
    store = DiskStateStore(folder, durability="process")
    store.commit(vectors(1), {"k": 1})
    store.close()
    child = os.fork()
    if not child:
        mine = DiskStateStore(folder, durability="process")
        mine.load()
        fault_injection.arm(point)
        mine.commit(vectors(2), {"k": 2})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    found, meta = stores.read(folder)
    value = 2 if point == "after commit" else 1
    assert meta == {"k": value}
    assert all(torch.equal(found[name], v) for name, v in vectors(value).items())


def damage(folder: Path, cut: bool) -> None:
    """Spoil the newest slot of y."""
    store = DiskStateStore(folder)
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
    store = DiskStateStore(folder)
    for k in (1, 2):
        store.commit(vectors(k), {"k": k})
    store.close()
    damage(folder, cut=False)
    store = DiskStateStore(folder)
    loaded = store.load()
    assert loaded is not None
    assert loaded[1] == {"k": 1}
    assert all(torch.equal(loaded[0][name], v) for name, v in vectors(1).items())
    assert "checksum of y" in store.damaged
    store.commit(vectors(3), {"k": 3})  # and it goes on
    store.close()
    assert stores.read(folder)[1] == {"k": 3}


def test_a_state_that_is_beyond_repair_is_named(folder: Path) -> None:
    store = DiskStateStore(folder)
    store.commit(vectors(1), {"k": 1})
    store.close()
    damage(folder, cut=True)
    with pytest.raises(StoreFailed, match=r"damaged.*remove the directory"):
        stores.read(folder)


def outcome(folder: Path, states: dict[int, dict[str, torch.Tensor]]) -> str:
    """What loading a damaged directory gives; a state must be one that was committed."""
    try:
        store = DiskStateStore(folder, durability="process")
    except StoreFailed:
        return "refused"
    try:
        loaded = store.load()
    except StoreFailed:
        return "refused"
    finally:
        store.close()
    if loaded is None:
        assert store.damaged
        return "named as lost"
    expected = states[loaded.meta["k"]]
    assert all(torch.equal(loaded.vectors[name], vector) for name, vector in expected.items())
    assert loaded.meta == {"k": loaded.meta["k"], "text": "x" * 500}
    assert loaded.meta["k"] == 3 or store.damaged, "an older state was taken without a word"
    return "older, named" if loaded.meta["k"] < 3 else "whole"


def flipped(folder: Path, copy: Path, name: str, at: int, bit: int) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    data = bytearray((copy / name).read_bytes())
    data[at] ^= 1 << bit
    (copy / name).write_bytes(data)


@pytest.mark.parametrize("every", [97, pytest.param(5, marks=pytest.mark.slow)])
def test_no_bit_of_a_commit_can_be_wrong_unseen(folder: Path, tmp_path: Path, every: int) -> None:
    """Of 2,946 flips in a database without checksums 114 were taken as good, 6 ended in a traceback."""
    store = DiskStateStore(folder, durability="process")
    states = {k: vectors(k) for k in (1, 2, 3)}
    for k, state in states.items():
        store.commit(state, {"k": k, "text": "x" * 500})
    store.close()
    tally: Counter[str] = Counter()
    for name in ("commit.0", "commit.1", "vectors.bin"):
        size = (folder / name).stat().st_size
        for number, at in enumerate(range(0, size, every if name != "vectors.bin" else 9 * every)):
            flipped(folder, tmp_path / "copy", name, at, number % 8)
            tally[outcome(tmp_path / "copy", states)] += 1
    print(dict(tally))
    assert tally["whole"] < sum(tally.values())


def test_lost_commits_are_named(folder: Path) -> None:
    store = DiskStateStore(folder, durability="process")
    store.commit(vectors(1), {"k": 1})
    store.close()
    for path in folder.glob("commit.*"):
        path.unlink()
    store = DiskStateStore(folder)
    assert store.load() is None
    assert store.damaged == "vectors.bin holds numbers, but no commit is left"
    store.close()


@pytest.mark.parametrize("size", [0, 10, 64, 97, 98, 200])
def test_a_first_commit_that_was_torn_is_no_state(folder: Path, size: int) -> None:
    store = DiskStateStore(folder)
    store.commit(vectors(1), {"k": 1})
    store.close()
    os.truncate(folder / "commit.1", size)
    store = DiskStateStore(folder)
    assert store.load() is None
    assert store.damaged
    store.commit(vectors(2), {"k": 2})
    store.close()
    assert stores.read(folder)[1] == {"k": 2}


@pytest.mark.parametrize("size", [0, 10, 64, 97, 98, 200])
def test_a_torn_commit_leaves_the_one_before(folder: Path, size: int) -> None:
    store = DiskStateStore(folder)
    for k in (1, 2, 3):
        store.commit(vectors(k), {"k": k})
    store.close()
    os.truncate(folder / "commit.1", size)
    assert stores.read(folder)[1] == {"k": 2}


def test_a_state_that_cannot_be_is_not_taken(folder: Path) -> None:
    def check(saved: StoredState) -> None:
        if saved.meta["k"] == 2:
            raise ValueError("its local audit is 0.18")

    store = DiskStateStore(folder)
    for k in (1, 2):
        store.commit(vectors(k), {"k": k})
    loaded = store.load(check)
    assert loaded is not None
    assert loaded.meta == {"k": 1}
    assert store.damaged == "ValueError: its local audit is 0.18"
    store.close()


def database(folder: Path, states: dict[int, dict[str, object]]) -> None:
    """Turn the commits of a directory into the database of release 0.2.0."""
    with contextlib.closing(sqlite3.connect(folder / "state.db")) as db:
        db.execute("CREATE TABLE commits (generation INTEGER PRIMARY KEY, body TEXT NOT NULL)")
        for generation, body in states.items():
            text = json.dumps({**body, "format": 2})
            digest = hashlib.sha256(b"%d " % generation + text.encode()).hexdigest()
            db.execute("INSERT INTO commits VALUES (?, ?)", (generation, digest + text))
        db.commit()
    for path in folder.glob("commit.*"):
        path.unlink()


def bodies(folder: Path) -> dict[int, dict[str, object]]:
    written = [path.read_bytes() for path in folder.glob("commit.*") if path.stat().st_size]
    records = [stores._decode_record(content) for content in written]
    return {record.generation: json.loads(record.text) for record in records}


def test_a_state_of_the_release_before_is_read_and_converted(folder: Path) -> None:
    store = DiskStateStore(folder)
    for k in (1, 2, 3):
        store.commit(vectors(k), {"k": k})
    store.close()
    database(folder, bodies(folder))
    assert stores.read(folder, running=True)[1] == {"k": 3}
    store = DiskStateStore(folder)
    loaded = store.load()
    assert loaded is not None
    assert loaded.meta == {"k": 3}
    assert not store.damaged
    assert all(torch.equal(loaded.vectors[name], v) for name, v in vectors(3).items())
    assert not list(folder.glob("state.db*"))
    store.commit(vectors(4), {"k": 4})
    store.close()
    assert stores.read(folder)[1] == {"k": 4}


def test_a_backup_on_a_read_only_disk_can_be_read(folder: Path, tmp_path: Path) -> None:
    store = DiskStateStore(folder, durability="process")
    for k in (1, 2):
        store.commit(vectors(k), {"k": k})
    copy = tmp_path / "backup"
    shutil.copytree(folder, copy)
    store.close()
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in copy.iterdir()}
    copy.chmod(0o500)
    assert stores.read(copy)[1] == {"k": 2}
    copy.chmod(0o700)
    assert {
        path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in copy.iterdir()
    } == before


def test_a_running_client_is_read_only_if_asked(folder: Path) -> None:
    store = DiskStateStore(folder, durability="process")
    store.commit(vectors(1), {"k": 1})
    with pytest.raises(StoreFailed, match="in use by another process") as refused:
        stores.read(folder)
    assert isinstance(refused.value, InvalidInput)  # exit code 2: no supervisor starts it again
    for k in range(2, 40):
        store.commit(vectors(k), {"k": k})
        found, meta = stores.read(folder, running=True)
        assert meta == {"k": k}
        assert torch.equal(found["y"], vectors(k)["y"])
    store.close()


def test_systems_without_fallocate_and_fdatasync(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.delattr(os, "fdatasync")
    store = DiskStateStore(folder)
    for k in (1, 2):
        store.commit(vectors(k), {"k": k})
    store.close()
    assert stores.read(folder)[1] == {"k": 2}
    monkeypatch.setattr("spodgt.peer.host.files.CAN_LOCK", False)
    with pytest.raises(StoreFailed, match="run them on Linux or macOS"):
        DiskStateStore(folder)


def test_a_state_is_for_its_owner_only(folder: Path) -> None:
    store = DiskStateStore(folder, durability="process")
    store.commit(vectors(1), {"k": 1})
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    store.close()
    assert modes.pop("state") == 0o700
    assert set(modes.values()) == {0o600}, modes


def test_a_link_in_the_place_of_a_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "mine").write_text("precious")
    (folder / "vectors.bin").symlink_to(tmp_path / "mine")
    with pytest.raises(StoreFailed, match="cannot be used"):
        DiskStateStore(folder)
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_second_process_is_refused(folder: Path) -> None:
    store = DiskStateStore(folder)
    with pytest.raises(StoreFailed, match="in use by another process"):
        DiskStateStore(folder)
    (folder / "commit.0").unlink()
    with pytest.raises(StoreFailed, match="in use by another process"):
        DiskStateStore(folder)
    store.close()
    DiskStateStore(folder).close()


def test_bad_input_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="durability must be power or process, got 'fast'"):
        DiskStateStore(folder, durability="fast")
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
    store = DiskStateStore(small_disk / "state", durability="process")
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
    store = DiskStateStore(small_disk / "state", durability="process")
    store.commit(vectors(1), {"k": 1})
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreFailed, match=r"read-only|readonly"):
        DiskStateStore(small_disk / "state")


def test_spoilt_text_of_the_database_is_damage_and_no_traceback(tmp_path: Path) -> None:
    """sqlite quotes the text in its error, which Python cannot decode then."""
    with contextlib.closing(DiskStateStore(tmp_path, durability="process")) as disk:
        disk.commit({"x": torch.ones(3)}, {"k": 1})
    database(tmp_path, bodies(tmp_path))
    data = bytearray((tmp_path / "state.db").read_bytes())
    data[data.index(b"commitscommits")] ^= 0x80  # the name of the table
    (tmp_path / "state.db").write_bytes(data)
    with pytest.raises(StoreFailed, match=r"state\.db cannot be read"):
        stores.read(tmp_path)
    with pytest.raises(StoreFailed, match=r"state\.db cannot be read"):
        DiskStateStore(tmp_path, durability="process")


def mapped(folder: Path) -> DiskStateStore:
    return DiskStateStore(folder, durability="process", mapped=True)


def row(store: DiskStateStore, value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return store.new_row(1000, dtype).fill_(value)


def test_rows_in_use_are_not_overwritten(folder: Path) -> None:
    """By tensors, as those of a message on its way, or by the last two commits."""
    store = mapped(folder)
    draws = random.Random(0)
    held: dict[float, torch.Tensor] = {}
    for k in range(1, 60):
        y = row(store, k, torch.float64)
        total = row(store, k)
        if draws.random() < 0.7:
            held[float(k)] = draws.choice((y, total))
        for value in [value for value in held if draws.random() < 0.3]:
            del held[value]
        store.commit({"y": y, "out:p1": total}, {"k": k})
        del y, total
        row(store, -1.0)  # computed, and not committed
        for value, vector in held.items():
            assert torch.equal(vector, torch.full_like(vector, value))
        found, meta = stores.read(folder, running=True)
        assert meta == {"k": k}
        assert all(torch.equal(found[name], vector) for name, vector in vectors(k).items())
    assert store.file.size() < 30 * 12_000  # space is used again
    store.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_damaged_row_costs_one_commit(folder: Path, restarts: bool) -> None:
    store = mapped(folder)
    for k in (1, 2, 3):
        store.commit({"y": row(store, k, torch.float64), "out:p1": row(store, k)}, {"k": k})
    if restarts:
        store.close()
        store = mapped(folder)
        store.load()
    for _ in range(3):  # all space between the rows
        held = [row(store, -1.0), row(store, -1.0, torch.float64)]
    del held
    store.close()
    damage(folder, cut=False)
    store = mapped(folder)
    loaded = store.load()
    assert loaded is not None
    assert loaded.meta == {"k": 2}
    assert all(torch.equal(loaded.vectors[name], v) for name, v in vectors(2).items())
    store.close()


def test_rows_and_slots_can_be_in_one_file(folder: Path) -> None:
    """A backup is restored without mapping, into a folder in which a script was trained and trains on."""
    for k in range(1, 9):
        with contextlib.closing(mapped(folder) if k % 4 < 2 else DiskStateStore(folder)) as store:
            store.load()
            changed = {
                name: store.new_row(1000, v.dtype).copy_(v) for name, v in vectors(k).items()
            }
            store.commit(changed if k % 3 else {"y": changed["y"]}, {"k": k})
            del changed
        found, meta = stores.read(folder)
        assert meta == {"k": k}
        assert torch.equal(found["y"], vectors(k)["y"])
        assert torch.equal(found["out:p1"], vectors(k if k % 3 else k - 1)["out:p1"])


class KeptDuringCommit(UserDict[int, int]):
    """What commits keep; another thread ends its commit while this is read."""

    def __init__(self, end_commit: Callable[[], None]) -> None:
        super().__init__()
        self.end_commit = end_commit

    def items(self) -> ItemsView[int, int]:
        self.end_commit()
        return super().items()


def test_row_of_a_commit_that_ends_meanwhile_is_not_overwritten(folder: Path) -> None:
    """Its last tensor may end with the commit, while another thread looks for space."""
    store = mapped(folder)
    assert store.rows is not None
    held = {"y": row(store, 1.0)}

    def end_commit() -> None:
        store.commit(held, {"k": 1})
        held.clear()

    store.rows.kept = KeptDuringCommit(end_commit)
    row(store, -1.0)
    found, _ = stores.read(folder, running=True)
    assert torch.equal(found["y"], torch.ones(1000))
    store.close()


def test_reading_a_file_that_was_cut_does_not_make_it_longer(folder: Path) -> None:
    """It would have a hole, and a full disk would show in the middle of a computation."""
    store = mapped(folder)
    for k in (1, 2, 3):
        store.commit({"y": row(store, k, torch.float64)}, {"k": k})
    store.close()
    damage(folder, cut=True)
    size = (folder / "vectors.bin").stat().st_size
    store = mapped(folder)
    loaded = store.load()
    assert loaded is not None
    assert loaded.meta == {"k": 2}
    assert store.file.size() == size
    store.close()


@pytest.mark.parametrize("part", [slice(10), slice(10, None), slice(None, None, 2)])
def test_part_of_a_row_is_committed(folder: Path, part: slice) -> None:
    store = mapped(folder)
    vector = torch.arange(1000.0)
    y = store.new_row(1000, torch.float32).copy_(vector)
    store.commit({"y": y[part]}, {"k": 1})
    store.close()
    found, _ = stores.read(folder)
    assert torch.equal(found["y"], vector[part])
