"""The folders of a run: certificates, new manifests, audits and exported models.

RUN/ca.pem, ca.key            the authority; the key never leaves this folder
RUN/manifest.toml, .sig       what all agree on
RUN/NAME/                     one client's certificate, key, manifest, and later its state and log
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from spodgt.errors import InvalidInput
from spodgt.peer import identity, store
from spodgt.peer.audit import Audit, audit
from spodgt.peer.manifest import Manifest, SignedManifest
from spodgt.peer.states import state_from
from spodgt.peer.work import manifest_problem
from spodgt.types import HasLayout, Problem


def load(folder: Path) -> Manifest:
    """The manifest of a run's or a client's folder, checked against the authority there."""
    return _signed(folder).manifest


def publish(folder: Path, manifest: Manifest) -> None:
    """Sign a manifest and write it, also into the folders of clients in this folder."""
    signed = SignedManifest.sign(manifest, (folder / "ca.key").read_bytes())
    signed.write(folder)
    for client in manifest.clients:
        if (folder / client.name / "cert.pem").exists():
            signed.write(folder / client.name)


def issue(folder: Path, name: str, *, days: float = identity.DAYS) -> Path:
    """Make a client's folder in the run's: a certificate valid for `days`, its key, authority, manifest."""
    signed = _signed(folder)
    signed.manifest.client(name)
    if not (folder / "ca.key").exists():
        raise InvalidInput(f"{folder} holds no ca.key; issue certificates where the run was made.")
    if not days > 0:
        raise InvalidInput(f"days must be above 0, got {days!r}; use days={identity.DAYS}.")
    authority = (folder / "ca.pem").read_bytes()
    made = identity.issue((folder / "ca.key").read_bytes(), authority, name, days=days)
    home = folder / name
    home.mkdir(mode=0o700, exist_ok=True)
    identity.write_secret(home / "key.pem", made.key)
    (home / "cert.pem").write_bytes(made.certificate)
    (home / "ca.pem").write_bytes(authority)
    signed.write(home)
    return home


def remove(folder: Path, name: str) -> Manifest:
    """Publish the next version of the manifest, without a client; given to one running client, it spreads."""
    manifest = load(folder).without(name)
    publish(folder, manifest)
    return manifest


def audit_folders(folders: list[Path]) -> Audit:
    """The audit of stopped clients, from their disks alone."""
    saved = [_saved(folder) for folder in folders]
    return audit({meta["name"]: state_from(vectors, meta) for vectors, meta in saved})


def export(folder: Path, target: Path, problem: Problem | None = None) -> dict[str, object]:
    """Write a stopped client's model as safetensors; returns what the file holds.

    `problem` knows the names of the parameters; if None, the manifest's problem does, if there is one.
    """
    vectors, meta = _saved(folder)
    if problem is None and (folder / "manifest.toml").exists():
        problem = manifest_problem(load(folder))
    layout = problem.layout if isinstance(problem, HasLayout) else None
    named = {"x": vectors["x"]} if layout is None else layout.unflatten(vectors["x"])
    tensors = {name: tensor.contiguous() for name, tensor in named.items()}
    notes = {key: str(meta[key]) for key in ("run", "name", "k", "epoch", "gradients", "layout")}
    save_file(tensors, target, notes)
    return {"file": str(target), "tensors": {name: list(t.shape) for name, t in tensors.items()}, **notes}


def _signed(folder: Path) -> SignedManifest:
    if not (folder / "ca.pem").exists():
        raise InvalidInput(f"{folder} holds no run; make one with spodgt peer init --run {folder}.")
    return SignedManifest.read(folder, (folder / "ca.pem").read_bytes())


def _saved(folder: Path) -> store.Saved:
    return store.read(folder / "state" if (folder / "state").is_dir() else folder)
