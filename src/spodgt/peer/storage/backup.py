"""A client's folder as one file: made while the client runs, and put back whole or only its model.

The file is in the safetensors format: vectors of the state as tensors, all else as text beside them. It
holds the client's key: its mode is 0600.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.peer.host.files import DISK, OWNER_ONLY, PUBLIC
from spodgt.peer.protocol.client_state import meta_of, state_from, state_with_model, vectors_of
from spodgt.peer.protocol.running_sums import Incarnation
from spodgt.peer.storage import state_store
from spodgt.peer.storage.state_store import DiskStateStore

_KIND = "spodgt peer backup 1"
_FILES = {"ca.pem": PUBLIC, "cert.pem": PUBLIC, "manifest.toml": PUBLIC, "key.pem": OWNER_ONLY}


def backup(folder: Path, target: Path) -> dict[str, object]:
    """Write a client's certificate, key, manifest and newest commit to one file; returns what it holds."""
    vectors, meta = state_store.read(folder / "state", running=True)
    try:
        texts = {name: (folder / name).read_text() for name in _FILES}
    except OSError as error:
        raise InvalidInput(
            f"{error.filename} cannot be read: {error.strerror}; give a client's folder."
        ) from None
    notes = {"kind": _KIND, "meta": json.dumps(meta), **texts}
    tensors = {name: vector.contiguous() for name, vector in vectors.items()}
    DISK.replace(target, save(tensors, notes), mode=OWNER_ONLY)
    return {"file": str(target), "bytes": target.stat().st_size} | _summary(meta)


def restore(file: Path, folder: Path) -> dict[str, object]:
    """Make a client's folder from a backup; one that holds a state is refused.

    Neighbours prove to the client that it was set back, and an epoch begins: nothing is counted twice.
    """
    vectors, notes = _read(file)
    if (folder / "state").exists():
        fix = "remove that, or give another folder"
        raise InvalidInput(f"{folder} holds a state, which a restore would set back; {fix}.")
    meta = json.loads(notes["meta"])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, mode in _FILES.items():
        DISK.replace(folder / name, notes[name].encode(), mode=mode)
    with closing(DiskStateStore(folder / "state")) as made:
        made.commit(vectors, meta)
    return {"folder": str(folder)} | _summary(meta)


def restore_model(file: Path, folder: Path) -> dict[str, object]:
    """Put the model of a backup or an export into a stopped client, in a new epoch.

    Its gradient may be as bad as the model was: it begins at zero, and so does the tracker.
    """
    vectors, _ = _read(file, model=True)
    with closing(DiskStateStore(folder / "state")) as made:
        saved = made.load()
        if saved is None:
            raise InvalidInput(
                f"{folder} holds no committed state; give the folder of a stopped client."
            )
        if (
            vectors["x"].shape != saved.vectors["x"].shape
            or vectors["x"].dtype != saved.vectors["x"].dtype
        ):
            has = f"{len(vectors['x'])} numbers, the client's {len(saved.vectors['x'])}"
            raise InvalidInput(f"the model in {file} has {has}; give a model of this run.")
        state = state_with_model(state_from(*saved), vectors["x"])
        own = Incarnation(saved.meta["incarnation"])
        made.commit(vectors_of(state), {**saved.meta, **meta_of(state, own)})
    return {"folder": str(folder), "model": str(file)} | _summary(saved.meta)


def _read(file: Path, *, model: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(file, "pt") as source:
            notes = source.metadata() or {}
            vectors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InvalidInput(f"{file} cannot be read as a backup: {error}.") from None
    is_backup = notes.get("kind") == _KIND
    is_model = model and set(vectors) == {"x"}
    if not is_backup and not is_model:
        what = "no backup of a peer" + (" and no model of one vector" if model else "")
        raise InvalidInput(f"{file} is {what}; make one with: spodgt peer backup FOLDER FILE.")
    return vectors, notes


def _summary(meta: dict[str, object]) -> dict[str, object]:
    return {key: meta[key] for key in ("run", "name", "k", "epoch", "gradients")}
