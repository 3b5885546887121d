"""The folders of a run: made from an experiment; certificates, new manifests, audits and exported models.

RUN/ca.pem, ca.key            the authority; the key never leaves this folder
RUN/manifest.toml             what all agree on, signed
RUN/NAME/                     one client's certificate, key, manifest, and later its state and log
"""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from spodgt.algorithms import describe
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment, PythonProblem
from spodgt.experiment.join import client_names, join_clients
from spodgt.network import Network
from spodgt.network.names import describe_difference
from spodgt.peer.host.files import DISK, OWNER_ONLY, PUBLIC, locked
from spodgt.peer.membership import certificates
from spodgt.peer.membership.manifest import (
    Client,
    Link,
    Manifest,
    Method,
    SignedManifest,
    is_name,
    layout_of,
)
from spodgt.peer.membership.manifest_changes import check_devices, remove_client, with_root
from spodgt.peer.options import Deployment, Table, check_address
from spodgt.peer.process.local_problem import manifest_problem, problem_of, read_capacity, row_of
from spodgt.peer.protocol.audit import Audit, audit
from spodgt.peer.protocol.client_state import state_from
from spodgt.peer.storage import state_store
from spodgt.problems.protocols import HasLayout
from spodgt.problems.running_statistics import refuse_statistics
from spodgt.types import Floats, Problem


def create(folder: Path, experiment: Experiment, deployment: Deployment = Deployment()) -> Manifest:  # noqa: B008
    """Make a run's folder, which must not hold a run yet; returns its manifest, signed and written.

    The experiment's network, problem and one method are drawn with its first seed. Its participation is that
    of simulated clients: real ones compute and send as often as they can, unless `deployment` limits them.
    """
    _check_is_free(folder)
    return create_from(folder, plan_manifest(experiment, deployment))


def create_from(folder: Path, manifest: Manifest) -> Manifest:
    """Make a run's folder with a new authority and a first manifest; returns it signed and written."""
    _check_is_free(folder)
    check_devices(manifest)
    manifest = with_root(manifest)
    key, authority = certificates.create_authority(manifest.run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{folder} cannot be made: {error.strerror}; give another folder."
        ) from None
    DISK.replace(folder / "ca.key", key, mode=OWNER_ONLY)
    (folder / "ca.pem").write_bytes(authority)
    publish(folder, manifest)
    return manifest


def _check_is_free(folder: Path) -> None:
    if (folder / "ca.key").exists():
        raise InvalidInput(f"{folder} already holds a run; give another folder.")


def plan_manifest(experiment: Experiment, deployment: Deployment) -> Manifest:
    """The first manifest of a run."""
    seed = experiment.run.seed_list[0]
    network, availability = experiment.draw_network(seed, deployment.names)
    names, addresses = clients_of(network, deployment)
    if experiment.weights == "given":
        raise InvalidInput("network.weights='given' is not for peers; use weights = \"degree\".")
    parts = _number_of_parts(network, deployment)
    is_named = deployment.names is not None or network.names is not None
    problem = _first_problem(experiment, network, parts, names[0], is_named=is_named)
    if deployment.names is None and network.names is None and problem.clients == len(names):
        names = list(client_names(problem) or names)
    for part, name in enumerate(names):
        row_of(problem, name, part)  # raises if the data have no such client
    p = availability.p if deployment.limits_from_config else np.ones(network.clients)
    p_hat = availability.p_hat if deployment.limits_from_config else np.ones(network.links)
    return Manifest(
        run=secrets.token_hex(8),
        clients=_first_clients(names, addresses, p, deployment, seed),
        links=_first_links(network, names, addresses, p_hat),
        layout=layout_of(problem),
        parameters=problem.parameters,
        method=_method_of(experiment),
        problem=experiment.to_dict()["problem"],
        seed=seed,
        weights=experiment.weights or "degree",
        divided_into=parts,
        rounds_per_second=deployment.rounds_per_second,
        max_alone=deployment.max_alone,
        rounds=deployment.rounds,
    )


def _number_of_parts(network: Network, deployment: Deployment) -> int:
    """Number of parts of the data."""
    parts = deployment.divided_into or network.clients
    if parts < network.clients:
        must = f"at least {network.clients}, one part per client"
        raise InvalidInput(f"divided_into must be {must}, got {parts}; use {network.clients}.")
    return parts


def _first_problem(
    experiment: Experiment, network: Network, parts: int, name: str, *, is_named: bool
) -> Problem:
    """The problem of client `name`, or of all clients if their names are those of the data."""
    try:
        return _draw_problem(experiment, network, parts, name)
    except InvalidInput as error:
        if is_named or not isinstance(experiment.problem, PythonProblem):
            raise
        try:
            return _draw_problem(experiment, network, parts, None)
        except InvalidInput:
            message = str(error).removesuffix(".")
            raise InvalidInput(
                f"{message}; {name!r} is a default name, give the clients' names with --names."
            ) from error


def _draw_problem(
    experiment: Experiment, network: Network, parts: int, name: str | None
) -> Problem:
    """The problem of the run; a user's function builds that of client `name` alone."""
    if isinstance(experiment.problem, PythonProblem):
        problem = problem_of(experiment.problem, parts, name)
    else:
        _, problem = join_clients(
            network, experiment.base_problem.draw(experiment.run.seed_list[0])
        )
    refuse_statistics(problem, "peers")
    return problem


def _first_clients(
    names: list[str], addresses: list[str], p: Floats, deployment: Deployment, seed: int
) -> tuple[Client, ...]:
    """Clients with their devices: those of --compute, others compute with probability p."""
    for name, table in deployment.compute.items():
        if name not in names:
            raise InvalidInput(
                f"--compute names {name!r}, which is no client; they are {', '.join(names)}."
            )
        read_capacity(table, seed, names.index(name), name)  # raises for an invalid table
    clients = []
    for index, name in enumerate(names):
        device: Table = {"kind": "bernoulli", "p": float(p[index])}
        device = dict(deployment.compute.get(name, device))
        clients.append(Client(name, addresses[index], index, index, device))
    return tuple(clients)


def _first_links(
    network: Network, names: list[str], addresses: list[str], p_hat: Floats
) -> tuple[Link, ...]:
    links = []
    for receiver, sender, used in zip(network.receivers, network.senders, p_hat, strict=True):
        dial = "sender" if addresses[receiver] else "receiver"
        links.append(Link(names[sender], names[receiver], float(used), dial))
    return tuple(links)


def _method_of(experiment: Experiment) -> Method:
    """The method of the run as the manifest holds it."""
    if len(experiment.methods) != 1:
        several = ", ".join(each.name for each in experiment.methods)
        raise InvalidInput(
            f"run.methods must be one method, got {several}; use --method spod-gt-memory."
        )
    fields = describe(experiment.methods[0])
    if "patience" in fields:
        fields["patience"] = 0.0  # waiting is simulated; real clients and links do not wait
    name = fields.pop("name")
    step_size = _common(fields.pop("step_size", None))
    return Method(name, step_size, fields)


def clients_of(network: Network, deployment: Deployment) -> tuple[list[str], list[str]]:
    """Names and addresses in the order of the network's clients.

    Given names are joined by name to those of the network if both are the same; if they have none in
    common, they are new names for the clients in the order of the network.
    """
    addresses = [
        address_of(text) for text in deployment.addresses or free_addresses(network.clients)
    ]
    own = list(network.names or ())
    if deployment.names is None:
        usable = own and all(is_name(name) for name in own)
        names = own if usable else [f"p{i}" for i in range(network.clients)]
        _check_clients(network.clients, names, addresses)
        return names, addresses
    names = deployment.names
    _check_clients(network.clients, names, addresses)
    if not set(own) & set(names):
        return names, addresses
    difference = describe_difference("the network", own, "--names", names)
    if difference:
        raise InvalidInput(
            f"--names must be those of the network, but {difference}; leave --names out."
        )
    return own, [addresses[names.index(name)] for name in own]


def _common(step_size: object) -> float | Table:
    """The step size if it is the same for all clients: a number or a schedule."""
    start = step_size.get("start") if isinstance(step_size, dict) else step_size
    if not isinstance(start, float):
        raise InvalidInput(
            f"step_size must be one number between peers, got {step_size}; use 0.01."
        )
    return step_size  # type: ignore[return-value]


def _check_clients(clients: int, names: list[str], addresses: list[str]) -> None:
    for what, given in (("names", names), ("addresses", addresses)):
        if len(given) != clients:
            raise InvalidInput(
                f"{what} must be {clients}, one per client, got {len(given)}; "
                f"give {clients} separated by commas."
            )
    listening = [address for address in addresses if address]
    for address in listening:
        check_address(address, "addresses")
    if len(set(listening)) < len(listening):
        raise InvalidInput(
            f"addresses must differ, got {', '.join(addresses)}; give each client its own."
        )


def address_of(text: str) -> str:
    """An address of the manifest; "none" becomes "": the client does not listen."""
    return "" if text == "none" else text


def free_addresses(count: int) -> list[str]:
    """Loopback addresses with ports that are free now, below those the kernel gives to connections."""
    addresses: set[str] = set()
    while len(addresses) < count:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            addresses.add(f"127.0.0.1:{port}")
    return list(addresses)


def load(folder: Path) -> Manifest:
    """The manifest of a run's or a client's folder, checked against the authority there."""
    return _signed(folder).manifest


def publish(folder: Path, manifest: Manifest) -> None:
    """Sign a manifest and write it, also into the folders of clients in this folder."""
    signed = SignedManifest.sign(manifest, _authority_key(folder))
    signed.write(folder)
    for name in (*manifest.names, *manifest.removed):  # a removed client learns of its removal, too
        if (folder / name / "cert.pem").exists():
            signed.write(folder / name)


def publish_next(folder: Path, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Publish the next version of a run's manifest; from one running client's folder it spreads to all."""
    _authority_key(folder)  # raises if there is none
    with locked(folder / "ca.key"):  # else of two changes at once, one would be lost
        manifest = change(load(folder))
        publish(folder, manifest)
    return manifest


def issue(folder: Path, name: str, *, days: float = certificates.DAYS) -> Path:
    """Make a client's folder in the run's: a certificate valid for `days`, its key, authority, manifest."""
    signed = _signed(folder)
    if name != certificates.OBSERVER:
        signed.manifest.client(name)
    if not days > 0:
        raise InvalidInput(f"days must be above 0, got {days!r}; use days={certificates.DAYS}.")
    authority = (folder / "ca.pem").read_bytes()
    made = certificates.issue(_authority_key(folder), authority, name, days=days)
    home = folder / name
    home.mkdir(mode=0o700, exist_ok=True)
    DISK.replace(home / "ca.pem", authority, mode=PUBLIC)
    signed.write(home)
    # a running client takes the two together once they belong to each other
    DISK.replace(home / "key.pem", made.key, mode=OWNER_ONLY)
    DISK.replace(home / "cert.pem", made.certificate, mode=PUBLIC)
    return home


def observer_identity(folder: Path) -> certificates.Identity:
    """The identity for requests: the folder's owner, or an observer for a day if the run's key is there."""
    if (folder / "ca.key").exists():
        authority = (folder / "ca.pem").read_bytes()
        return certificates.issue(_authority_key(folder), authority, certificates.OBSERVER, days=1)
    return certificates.Identity.read(folder, certificates.certificate_name(folder))


def remove(folder: Path, name: str) -> Manifest:
    """Publish the next version of the manifest, without a client."""
    return publish_next(folder, lambda manifest: remove_client(manifest, name))


def audit_folders(folders: list[Path]) -> Audit:
    """The audit of stopped clients, from their disks alone."""
    saved = [_saved(folder) for folder in folders]
    problems = []
    runs = {meta["run"] for _, meta in saved}
    if len(runs) > 1:
        problems.append(f"the clients are of different runs: {', '.join(sorted(runs))}")
    for name, count in Counter(meta["name"] for _, meta in saved).items():
        if count > 1:
            problems.append(f"{name} was given {count} times")
    result = audit({meta["name"]: state_from(vectors, meta) for vectors, meta in saved})
    return replace(result, problems=[*problems, *result.problems])


def export(
    folder: Path, target: Path, problem: Problem | None = None, *, mean: bool = False
) -> dict[str, object]:
    """Write a client's model, as it was last committed, as safetensors.

    Args:
        folder: Of the client, which may be running.
        target: The file.
        problem: With the names of the parameters. Default: that of the manifest; without a manifest, the
            file has one vector "x".
        mean: Write the running mean of the models instead of the last one.

    Returns:
        What the file contains.
    """
    vectors, meta = _saved(folder, running=True)
    if mean and "more:mean" not in vectors:
        raise InvalidInput(
            f"mean=True, but {meta['name']} keeps no running mean; make the run with "
            "--set run.layers.running_mean=0.2, or leave it out."
        )
    x = vectors["more:mean" if mean else "x"].float()
    named = _named_parameters(folder, x, meta, problem)
    tensors = {name: tensor.contiguous() for name, tensor in named.items()}
    facts = {key: meta[key] for key in ("run", "name", "k", "epoch", "gradients", "layout")}
    save_file(tensors, target, {key: str(value) for key, value in facts.items()})
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return {"file": str(target), "tensors": shapes, **facts}


def _named_parameters(
    folder: Path, x: Tensor, meta: Mapping[str, object], problem: Problem | None
) -> dict[str, Tensor]:
    """The parameters of a flat model by name, if their names are known."""
    if problem is None and (folder / "manifest.toml").exists():
        manifest = load(folder)
        if manifest.is_script:
            return script_parameters(manifest, x)
        problem = manifest_problem(manifest, str(meta["name"]))
    if problem is None or layout_of(problem) != meta["layout"]:
        return {"x": x}
    if isinstance(problem, HasLayout):
        return dict(problem.layout.unflatten(x))
    return {"x": x}


def script_parameters(manifest: Manifest, x: Tensor) -> dict[str, Tensor]:
    """Parameters and running statistics of a training script's model by name, from a row.

    A row holds the parameters, the rest of those in float64, and the running statistics.
    """
    layout = manifest.problem["layout"]
    assert isinstance(layout, dict)
    named = {}
    start = 0  # of the next parameter
    rest = sum(
        math.prod(shape) for _, shape, _ in layout["parameters"]
    )  # of the next number after them
    for name, shape, dtype in layout["parameters"]:
        size = math.prod(shape)
        value = x[start : start + size]
        start += size
        if dtype == "float64":
            value = value.double() + x[rest : rest + size]
            rest += size
        named[name] = value.reshape(shape)
    for name, shape, _ in layout["buffers"]:
        size = math.prod(shape)
        named[name] = x[rest : rest + size].reshape(shape)
        rest += size
    return named


def _authority_key(folder: Path) -> bytes:
    try:
        return (folder / "ca.key").read_bytes()
    except FileNotFoundError:
        why = "certificates and manifests are made where the run was made"
        raise InvalidInput(f"{folder} holds no ca.key; {why}.") from None


def _signed(folder: Path) -> SignedManifest:
    if not (folder / "ca.pem").exists():
        raise InvalidInput(f"{folder} holds no run; make one with spodgt peer init --run {folder}.")
    return SignedManifest.read(folder, (folder / "ca.pem").read_bytes())


def _saved(folder: Path, *, running: bool = False) -> state_store.StoredState:
    return state_store.read(
        folder / "state" if (folder / "state").is_dir() else folder, running=running
    )
