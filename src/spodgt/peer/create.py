"""Create a run: an authority and a signed manifest, from an experiment."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.peer import identity
from spodgt.peer.capacity import Table, capacity
from spodgt.peer.folders import publish
from spodgt.peer.manifest import Client, Link, Manifest, Method, layout_of
from spodgt.peer.work import own_problem
from spodgt.problems import refuse_statistics


@dataclass(frozen=True)
class Deployment:
    """What a run between peers has beyond an experiment."""

    names: list[str] | None = None  # of the clients; None: p0, p1, …
    addresses: list[str] | None = None  # host:port of each; None: free ports on loopback
    compute: Mapping[str, Table] = field(default_factory=dict)  # what some devices can do, by name
    problem: Callable[[str], object] | None = None  # a client's problem from its name, for the experiment's
    rounds_per_second: float = 0.0  # upper limit of a client's local rounds; 0: none
    max_alone: int = 200  # rounds without news after which a client waits; 0: never

    def __post_init__(self) -> None:
        if self.rounds_per_second < 0 or self.max_alone < 0:
            raise InvalidInput(
                f"rounds_per_second and max_alone must be at least 0, got {self.rounds_per_second} and "
                f"{self.max_alone}; use 0."
            )


def create(folder: Path, experiment: Experiment, deployment: Deployment | None = None) -> Manifest:
    """Make a run's folder; returns its manifest, signed and written.

    Args:
        folder: Where; must not hold a run yet.
        experiment: Its network, participation, problem and one method, drawn with its first seed.
        deployment: Names, addresses and devices of the clients.
    """
    if (folder / "ca.key").exists():
        raise InvalidInput(f"{folder} already holds a run; give another folder.")
    manifest = plan(experiment, deployment or Deployment())
    manifest.method.build()  # refused here rather than when the clients start
    key, authority = identity.create_authority(manifest.run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be made: {error.strerror}; give another folder.") from None
    identity.write_secret(folder / "ca.key", key)
    (folder / "ca.pem").write_bytes(authority)
    publish(folder, manifest)
    return manifest


def plan(experiment: Experiment, deployment: Deployment) -> Manifest:
    """The first manifest of a run."""
    seed = experiment.run.seed_list[0]
    network, availability = experiment.draw_network(seed)
    names = deployment.names or [f"p{i}" for i in range(network.clients)]
    addresses = deployment.addresses or free_addresses(network.clients)
    _check_clients(network.clients, names, addresses)
    if len(experiment.methods) != 1:
        several = ", ".join(each.name for each in experiment.methods)
        raise InvalidInput(f"run.methods must be one method, got {several}; use --method spod-gt-memory.")
    method = experiment.methods[0]
    step_size = vars(method).get("step_size")
    if not isinstance(step_size, float):
        raise InvalidInput(f"step_size must be one number between peers, got {step_size}; use 0.01.")
    make = deployment.problem
    problem = own_problem(make, names[0]) if make else experiment.draw(seed).problem
    refuse_statistics(problem, "peers")
    devices: list[Table] = [{"kind": "bernoulli", "p": float(p)} for p in availability.p]
    for name, table in deployment.compute.items():
        if name not in names:
            raise InvalidInput(f"--compute names {name!r}, which is no client; they are {', '.join(names)}.")
        capacity(table, seed, names.index(name))  # raises if it means nothing
        devices[names.index(name)] = dict(table)
    return Manifest(
        run=secrets.token_hex(8),
        clients=tuple(map(Client, names, addresses, range(len(names)), devices)),
        links=tuple(
            Link(names[j], names[i], float(p_hat))
            for i, j, p_hat in zip(network.receivers, network.senders, availability.p_hat, strict=True)
        ),
        layout=layout_of(problem),
        parameters=problem.parameters,
        method=Method(method.name, step_size),
        problem=experiment.to_dict()["problem"],
        seed=seed,
        weights=experiment.weights,
        divided_into=network.clients,
        rounds_per_second=deployment.rounds_per_second,
        max_alone=deployment.max_alone,
    )


def _check_clients(clients: int, names: list[str], addresses: list[str]) -> None:
    for what, given in (("names", names), ("addresses", addresses)):
        if len(given) != clients:
            raise InvalidInput(f"{what} must be {clients}, one per client, got {len(given)}.")
    for address in addresses:
        check_address(address, "addresses")
    if len(set(addresses)) < len(addresses):
        raise InvalidInput(f"addresses must differ, got {', '.join(addresses)}; give each client its own.")


def check_address(address: str, what: str) -> None:
    """Refuse what is not host:port; `what` names the option."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(f"{what} must be host:port with a port below 65536, got {address!r}.")


def free_addresses(count: int) -> list[str]:
    """Loopback addresses with ports that are free now, below those the kernel gives to connections."""
    found: set[str] = set()
    while len(found) < count:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.add(f"127.0.0.1:{port}")
    return list(found)
