"""The manifest: what all clients of a run have agreed on, as TOML signed by the run's authority.

A higher version replaces a lower one and spreads from peer to peer; it begins a new epoch. That is how
a client leaves or loses its certificate. The epoch is (version, resets) in one number.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import tomli_w

from spodgt.algorithms import method
from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.errors import Incompatible, InvalidConfig, InvalidInput
from spodgt.network import Network
from spodgt.peer import identity
from spodgt.peer.options import Table
from spodgt.types import HasLayout, Problem
from spodgt.validation import Field, Must, Number, Whole, from_table, recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMAT = 1
RESETS = 2**32  # epochs that one version has room for
_Text = Annotated[str, Must("text in quotes", "…")]
_Count = Annotated[Whole, Must("a whole number", 1)]


@recipe(InvalidConfig)
class Client:
    """One client: where it listens and how often it computes."""

    name: _Text
    address: _Text  # host:port
    place: _Count  # its number in the problem; never used again when it leaves
    compute: Table = field(default_factory=lambda: {"kind": "bernoulli", "p": 1.0})


@recipe(InvalidConfig)
class Link:
    """A directed link and how often it is used."""

    sender: _Text
    receiver: _Text
    p_hat: Annotated[Number, Field(gt=0, le=1), Must("in (0, 1]")] = 1.0


@recipe(InvalidConfig)
class Method:
    """The method that all clients run."""

    name: _Text
    step_size: Annotated[Number, Must("a number", 0.01)]

    def build(self) -> Algorithm[TrackingState]:
        """The method itself; refused if its state is not x, y, g, for which peers have links."""
        built = method(self.name, step_size=self.step_size)
        if built.traits.state != TrackingState._fields or built.traits.rule is None:
            fix = "use spod-gt-memory or spod-gt"
            raise Incompatible(f"method {built.name} cannot run between peers; {fix}.")
        return built


@recipe(InvalidConfig)
class Manifest:
    """Everything that clients must know of each other; the TOML file has the same keys."""

    run: _Text
    clients: tuple[Client, ...]
    links: tuple[Link, ...]
    layout: _Text
    parameters: _Count
    method: Method
    problem: Annotated[Table, Field(examples=[{}])]  # a recipe, as in an experiment's TOML
    version: Whole = 1
    seed: Whole = 0
    weights: str = "degree"
    divided_into: Whole = 0  # parts of the problem: the clients at the beginning
    rounds_per_second: Number = 0.0  # 0: as fast as the device can
    max_alone: Whole = 200  # rounds without news after which a client waits; 0: never

    # --- text ------------------------------------------------------------------------------------
    def to_text(self) -> bytes:
        return tomli_w.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def parse(cls, text: bytes) -> Manifest:
        try:
            body = tomllib.loads(text.decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidConfig(f"the manifest is not TOML: {error}.") from None
        form = body.pop("format", None)
        if form != FORMAT:
            known = f"has format {form!r}, this version reads {FORMAT}"
            raise InvalidConfig(f"the manifest {known}; use the same version.")
        try:
            body["clients"] = tuple(from_table(Client, table, "clients") for table in body["clients"])
            body["links"] = tuple(from_table(Link, table, "links") for table in body["links"])
            body["method"] = from_table(Method, body["method"], "method")
        except (KeyError, TypeError):
            must = "must have tables clients, links and method"
            raise InvalidConfig(f"the manifest {must}; write it with spodgt peer init.") from None
        return from_table(cls, body, "manifest")

    def __post_init__(self) -> None:
        for name in (names := self.names):
            legal = 0 < len(name) <= 63 and all(c.isalnum() or c in "-_" for c in name)
            if not legal or names.count(name) > 1:
                must = "a name of its own made of letters, digits, - and _"
                raise InvalidConfig(f"client {name!r} must have {must}; rename it.")
        for link in self.links:
            for end in (link.sender, link.receiver):
                if end not in names:
                    which = f"link {link.sender} → {link.receiver}"
                    raise InvalidConfig(f"{which} names {end!r}, which is no client; add it.")

    # --- views -----------------------------------------------------------------------------------
    @property
    def names(self) -> list[str]:
        return [client.name for client in self.clients]

    def client(self, name: str) -> Client:
        if name not in self.names:
            known = f"version {self.version} of the manifest; its clients are {', '.join(self.names)}"
            raise InvalidInput(f"client {name!r} is not in {known}.")
        return self.clients[self.names.index(name)]

    @property
    def epoch(self) -> int:
        """The first epoch of this version."""
        return self.version * RESETS

    @property
    def last_epoch(self) -> int:
        return self.epoch + RESETS - 1

    @property
    def network(self) -> Network:
        index = {name: i for i, name in enumerate(self.names)}
        adjacency = np.zeros((len(index), len(index)), bool)
        for link in self.links:
            adjacency[index[link.receiver], index[link.sender]] = True
        return Network.from_adjacency(adjacency, weights=self.weights, seed=self.seed)

    def weights_of(self, name: str) -> tuple[dict[str, float], dict[str, float]]:
        """b of the out-links and a of the in-links of a client."""
        network, names = self.network, self.names
        ends = list(zip(network.receivers, network.senders, network.a, network.b, strict=True))
        out = {names[i]: float(b) for i, j, _, b in ends if names[j] == name}
        return out, {names[j]: float(a) for i, j, a, _ in ends if names[i] == name}

    def probabilities(self, name: str) -> dict[str, float]:
        """p̂ of the out-links of a client."""
        return {link.receiver: link.p_hat for link in self.links if link.sender == name}

    def neighbours(self, name: str) -> tuple[dict[str, str], set[str]]:
        """A client's out-neighbours with their addresses, and the names of its in-neighbours."""
        out = {receiver: self.client(receiver).address for receiver in self.probabilities(name)}
        return out, {link.sender for link in self.links if link.receiver == name}

    # --- changes ---------------------------------------------------------------------------------
    def without(self, name: str) -> Manifest:
        """The next version, in which a client has left."""
        self.client(name)
        after = replace(
            self,
            version=self.version + 1,
            clients=tuple(client for client in self.clients if client.name != name),
            links=tuple(link for link in self.links if name not in (link.sender, link.receiver)),
        )
        _ = after.network  # says so if the others are no longer strongly connected
        return after


def layout_of(problem: Problem) -> str:
    """A hash of what a flat vector of parameters means."""
    text = f"flat {problem.parameters}"
    if isinstance(problem, HasLayout):
        pairs = zip(problem.layout.names, problem.layout.shapes, strict=True)
        text = ";".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in pairs)
    return hashlib.sha256(text.encode()).hexdigest()


class SignedManifest(NamedTuple):
    """A manifest with its text as it was signed, and the signature."""

    manifest: Manifest
    text: bytes
    signature: bytes

    @classmethod
    def sign(cls, manifest: Manifest, authority_key: bytes) -> SignedManifest:
        text = manifest.to_text()
        return cls(manifest, text, identity.sign(authority_key, text))

    @classmethod
    def verify(cls, text: bytes, signature: bytes, authority: bytes) -> SignedManifest:
        """Parse a text that the authority has signed; anything else is refused."""
        if not identity.verified(authority, text, signature):
            fix = "take it from the authority again, unchanged"
            raise InvalidInput(f"manifest.toml does not match its signature; {fix}.")
        return cls(Manifest.parse(text), text, signature)

    @classmethod
    def read(cls, folder: Path, authority: bytes) -> SignedManifest:
        """A folder's manifest, checked against the authority."""
        try:
            text, signature = (folder / "manifest.toml").read_bytes(), (folder / "manifest.sig").read_bytes()
        except FileNotFoundError as error:
            fix = "make it with spodgt peer init and spodgt peer issue"
            raise InvalidInput(f"{error.filename} does not exist; {fix}.") from None
        return cls.verify(text, signature, authority)

    def write(self, folder: Path) -> None:
        """Replace a folder's manifest; each of its two files at once."""
        for name, data in (("manifest.sig", self.signature), ("manifest.toml", self.text)):
            temporary = folder / f".{name}"
            temporary.write_bytes(data)
            temporary.replace(folder / name)
