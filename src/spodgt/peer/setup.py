"""Making a run: an authority and a signed manifest, and a folder for each client to take home.

RUN/ca.pem, ca.key            the authority; the key never leaves this folder
RUN/manifest.toml, .sig       what all agree on
RUN/NAME/                     one client's certificate, key, manifest, and later its state and log
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from spodgt.algorithms.spod_gt import SpodGTState
from spodgt.errors import InvalidInput
from spodgt.experiment.config import Config, build
from spodgt.network import as_network
from spodgt.participation import as_availability
from spodgt.peer import identity, store
from spodgt.peer import manifest as manifests
from spodgt.peer.audit import Audit, audit
from spodgt.peer.capacity import capacity
from spodgt.peer.manifest import Client, Link, Manifest, layout_of
from spodgt.peer.runner import as_method, own_problem
from spodgt.peer.states import state_from


def init(
    folder: Path,
    config: Config,
    *,
    names: list[str] | None = None,
    addresses: list[str] | None = None,
    compute: Mapping[str, Mapping[str, Any]] | None = None,
    problem: Callable[[str], Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Make a run's folder from an experiment: its network, method, problem and participation.

    `compute` says what the devices of some clients can do, by name; `problem` makes a client's problem from
    its name, in place of the experiment's.
    """
    if (folder / "ca.key").exists():
        raise InvalidInput(f"{folder} already holds a run; give another folder.")
    experiment = build(config)
    seed = config.run.seed_list[0]
    network = as_network(experiment.network, seed, config.network.get("weights", "degree"))
    available = as_availability(experiment.participation, network, seed)
    names = names or [f"p{i}" for i in range(network.clients)]
    addresses = addresses or free_addresses(network.clients)
    for what, given in (("names", names), ("addresses", addresses)):
        if len(given) != network.clients:
            raise InvalidInput(f"{what} must be {network.clients}, one per client, got {len(given)}.")
    for address in addresses:
        check_address(address, "addresses")
    if len(set(addresses)) < len(addresses):
        raise InvalidInput(f"addresses must differ, got {', '.join(addresses)}; give each client its own.")
    if len(experiment.methods) != 1:
        several = ", ".join(each.name for each in experiment.methods)
        raise InvalidInput(f"run.methods must be one method, got {several}; use --method spod-gt-memory.")
    method: Any = experiment.methods[0]
    if not isinstance(method.step_size, float):
        raise InvalidInput(f"step_size must be one number between peers, got {method.step_size}; use 0.01.")
    drawn = own_problem(problem, names[0]) if problem else experiment.problem.draw(seed)
    can = {name: {"kind": "bernoulli", "p": float(p)} for name, p in zip(names, available.p, strict=True)}
    for name, table in (compute or {}).items():
        if name not in can:
            raise InvalidInput(f"--compute names {name!r}, which is no client; they are {', '.join(names)}.")
        capacity(table, seed, names.index(name))  # says what is wrong with it
        can[name] = dict(table)
    run = secrets.token_hex(8)
    manifest = Manifest(
        run=run,
        clients=tuple(
            Client(name, address, place, can[name])
            for place, (name, address) in enumerate(zip(names, addresses, strict=True))
        ),
        links=tuple(
            Link(names[j], names[i], float(chance))
            for i, j, chance in zip(network.receivers, network.senders, available.p_hat, strict=True)
        ),
        layout=layout_of(drawn),
        parameters=drawn.parameters,
        method={"name": method.name, "step_size": method.step_size},
        problem=dict(config.problem),
        seed=seed,
        weights=config.network.get("weights", "degree"),
        places=network.clients,
        **dict(options or {}),
    )
    manifest.check()
    as_method(manifest)
    key, authority = identity.create_authority(run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be made: {error.strerror}; give another folder.") from None
    identity.write_secret(folder / "ca.key", key)
    (folder / "ca.pem").write_bytes(authority)
    publish(folder, manifest)
    return manifest


def publish(folder: Path, manifest: Manifest) -> None:
    """Sign a manifest and write it; clients' folders in this place get it too."""
    text = manifest.to_text()
    signature = identity.sign((folder / "ca.key").read_bytes(), text)
    manifests.write(folder, text, signature)
    for client in manifest.clients:
        if (folder / client.name / "cert.pem").exists():
            manifests.write(folder / client.name, text, signature)


def load(folder: Path) -> Manifest:
    if not (folder / "ca.pem").exists():
        raise InvalidInput(f"{folder} holds no run; make one with spodgt peer init --run {folder}.")
    return manifests.read(folder, (folder / "ca.pem").read_bytes())[0]


def issue(folder: Path, name: str, *, days: float = identity.DAYS) -> Path:
    """A client's own folder, to be copied to its host: certificate, key, authority, manifest."""
    manifest = load(folder)
    manifest.client(name)
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
    for file in ("manifest.toml", "manifest.sig"):
        shutil.copyfile(folder / file, home / file)
    return home


def remove(folder: Path, name: str) -> Manifest:
    """A client leaves: the next version of the manifest; give it to any one running client and it spreads."""
    manifest = load(folder).without(name)
    publish(folder, manifest)
    return manifest


def audit_folders(folders: list[Path]) -> Audit:
    """The audit of stopped clients, from their disks alone."""
    states = {}
    for folder in folders:
        vectors, meta = store.read(folder / "state" if (folder / "state").is_dir() else folder)
        states[meta["name"]] = state_from(vectors, meta, SpodGTState)
    return audit(states)


def export(folder: Path, target: Path, problem: Any = None) -> dict[str, Any]:
    """A client's model as safetensors, by parameter name where the problem is known."""
    vectors, meta = store.read(folder / "state" if (folder / "state").is_dir() else folder)
    x = vectors["x"]
    if problem is None and (folder / "manifest.toml").exists():
        manifest = load(folder)
        problem = manifests.as_problem(manifest.problem, manifest.places, manifest.seed)
    layout = getattr(problem, "layout", None)
    tensors = {"x": x} if layout is None else {k: v.contiguous() for k, v in layout.unflatten(x).items()}
    notes = {key: str(meta[key]) for key in ("run", "name", "k", "epoch", "gradients", "layout")}
    save_file({name: torch.as_tensor(tensor) for name, tensor in tensors.items()}, target, notes)
    return {"file": str(target), "tensors": {name: list(t.shape) for name, t in tensors.items()}, **notes}


def check_address(address: str, what: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(f"{what} must be host:port with a port below 65536, got {address!r}.")


def free_addresses(count: int) -> list[str]:
    """Loopback addresses with ports that are free now, below those the kernel gives to connections."""
    found: list[str] = []
    while len(found) < count:
        address = ("127.0.0.1", 20_000 + secrets.randbelow(12_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(address)
            text = f"{address[0]}:{address[1]}"
            found += [] if text in found else [text]
    return found
