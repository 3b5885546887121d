"""The manifest: the configuration that all clients of a run share, as TOML signed by the run's authority.

A higher version replaces a lower one and spreads from peer to peer; it begins a new epoch. That is how
a client joins, leaves or loses its certificate, and how a step size or an address changes (`changes`).
The epoch is (version, resets) in one number. The last line of the file is the signature of all before it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import tomllib
from collections import Counter
from dataclasses import asdict, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import tomli_w

from spodgt.algorithms import describe, method
from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.errors import Incompatible, InvalidConfig, InvalidInput
from spodgt.network import Network
from spodgt.peer.host.files import DISK, PUBLIC, Files
from spodgt.peer.membership import certificates
from spodgt.peer.options import Table, check_address
from spodgt.peer.protocol.epoch_topology import EpochTopology
from spodgt.problems.protocols import HasLayout
from spodgt.types import Problem
from spodgt.validation import Field, FieldHint, Number, Whole, from_table, one_of, recipe

FORMAT = 2
SCRIPT = "script"  # `kind` of the problem of a run whose clients are training scripts
RESETS = 2**32  # epochs that one version has room for
DIAL = ("sender", "receiver")
_SIGNED = b"# signature: "  # begins the last line of the file
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")  # TLS compares names without case
_Text = Annotated[str, FieldHint("text in quotes", "…")]
_Count = Annotated[Whole, FieldHint("a whole number", 1)]


@recipe(InvalidConfig)
class Client:
    """One client: where it listens, which part of the problem it holds and how often it computes."""

    name: _Text
    address: str  # host:port; "": it does not listen and dials all its links
    place: _Count  # its number, for its draws; never used again when it leaves
    part: _Count  # of the problem; free again when it leaves
    compute: Table = field(default_factory=lambda: {"kind": "bernoulli", "p": 1.0})
    quarantined: bool = False  # a member without links


@recipe(InvalidConfig)
class Link:
    """A directed link, how often it is used and which end connects."""

    sender: _Text
    receiver: _Text
    p_hat: Annotated[Number, Field(gt=0, le=1), FieldHint("in (0, 1]")] = 1.0
    dial: Annotated[str, one_of(DIAL)] = "sender"

    def __str__(self) -> str:
        return f"{self.sender} → {self.receiver}"


@recipe(InvalidConfig)
class Method:
    """The method that all clients run."""

    name: _Text
    step_size: Annotated[
        Number | Table, FieldHint("a number or a schedule", 0.01)
    ]  # of local rounds
    more: Table = field(default_factory=dict)  # other fields and layers: {momentum = 0.9}

    @property
    def quantized(self) -> bool:
        """Whether messages have 8 bits per number: quantization is done by the links, not by the method."""
        return self.more.get("compress") not in (None, False)

    def build(self) -> Algorithm[TrackingState]:
        """The method itself.

        Raises:
            Incompatible: Its links carry other fields than x and y, or its state lacks g.
        """
        step_size = self.step_size if isinstance(self.step_size, float) else dict(self.step_size)
        fields = {key: value for key, value in self.more.items() if key != "compress"}
        built = method(self.name, step_size=step_size, **fields)
        if self.quantized:
            self._check_compression(built)
        local_steps = self.more.get("local_steps", 1)
        if not isinstance(local_steps, int):
            raise Incompatible(
                f"local_steps = {local_steps!r} cannot run between peers; use one number, such as "
                "local_steps = 5."
            )
        traits = built.traits
        has_fields = set(TrackingState._fields) <= set(traits.state)
        has_links = set(traits.mixed_fields) == {("push", "y"), ("pull", "x")}
        # active links, or the pair of a round, would have to be known to all clients
        needs_agreement = traits.degree_reweighting or traits.activation != "all"
        if not has_fields or not has_links or needs_agreement:
            raise Incompatible(
                f"method {built.name} cannot run between peers; use spod-gt-memory, spod-gt, "
                "spod-gt-importance, relay or ab."
            )
        return built

    def _check_compression(self, built: Algorithm[TrackingState]) -> None:
        codec = describe(method(self.name, compress=self.more["compress"]))["compress"]
        if codec != "int8" or built.traits.root:
            raise Incompatible(
                f"{self.name} with compress = {codec!r} cannot run between peers; use compress = "
                '"int8" with spod-gt-memory.'
            )


@recipe(InvalidConfig)
class Manifest:
    """The configuration of a run; the TOML file has the same keys."""

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
    divided_into: Whole = 0  # parts of the problem; at least the clients at the beginning
    removed: tuple[str, ...] = ()  # names of former clients, which are never used again
    good_since: Whole = 0  # of release 0.2.0, which could go back to earlier models; not used
    rounds_per_second: Number = 0.0  # 0: as fast as the device can
    max_alone: Whole = 200  # rounds without a message after which a client waits; 0: never
    root: str = ""  # the root client, if the method has one
    rounds: Whole = 0  # local rounds that each client makes; 0: until it is stopped

    # --- text ------------------------------------------------------------------------------------
    def to_text(self) -> bytes:
        body = {"format": FORMAT, **asdict(self)}
        body["method"] = {key: value for key, value in body["method"].items() if value != {}}
        for key in ("root", "rounds"):
            if not body[key]:
                del body[key]  # the previous release refuses unknown keys
        return tomli_w.dumps(body).encode()

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
            body["removed"] = tuple(body.get("removed", ()))
            body["clients"] = tuple(
                from_table(Client, table, "clients") for table in body["clients"]
            )
            body["links"] = tuple(from_table(Link, table, "links") for table in body["links"])
            body["method"] = from_table(Method, body["method"], "method")
        except (KeyError, TypeError):
            must = "must have tables clients, links and method"
            raise InvalidConfig(f"the manifest {must}; write it with spodgt peer init.") from None
        return from_table(cls, body, "manifest")

    def __post_init__(self) -> None:
        _check_clients(self)
        ends = Counter((link.sender, link.receiver) for link in self.links)
        for link in self.links:
            _check_link(self, link)
            if link.sender == link.receiver or ends[link.sender, link.receiver] > 1:
                raise InvalidConfig(f"link {link} is there twice or leads to itself; leave it out.")

    # --- views -----------------------------------------------------------------------------------
    @cached_property
    def names(self) -> list[str]:
        return [client.name for client in self.clients]

    @property
    def is_script(self) -> bool:
        """Whether the clients are training scripts."""
        return self.problem.get("kind") == SCRIPT

    @cached_property
    def _index(self) -> dict[str, Client]:
        return {client.name: client for client in self.clients}

    @cached_property
    def links_in_use(self) -> tuple[Link, ...]:
        """The links that are in use: those of quarantined clients are not."""
        used = set(self.linked)
        return tuple(link for link in self.links if {link.sender, link.receiver} <= used)

    def listening_end(self, link: Link) -> Client:
        """The end of a link that listens."""
        return self.client(link.receiver if link.dial == "sender" else link.sender)

    def client(self, name: str) -> Client:
        if name not in self._index:
            known = (
                f"version {self.version} of the manifest; its clients are {', '.join(self.names)}"
            )
            raise InvalidInput(f"client {name!r} is not in {known}.")
        return self._index[name]

    @property
    def epoch(self) -> int:
        """The first epoch of this version."""
        return self.version * RESETS

    @property
    def last_epoch(self) -> int:
        return self.epoch + RESETS - 1

    @cached_property
    def network(self) -> Network:
        """Of the clients with links, in the order of `linked`."""
        index = {name: i for i, name in enumerate(self.linked)}
        adjacency = np.zeros((len(index), len(index)), bool)
        for link in self.links_in_use:
            adjacency[index[link.receiver], index[link.sender]] = True
        return Network.from_adjacency(adjacency, weights=self.weights, seed=self.seed)

    @property
    def linked(self) -> list[str]:
        """The names of the clients that are not quarantined."""
        return [client.name for client in self.clients if not client.quarantined]

    def topology(self, name: str) -> EpochTopology:
        """The topology of this version as one client uses it."""
        names = self.linked
        client_indices = {linked_name: self.client(linked_name).place for linked_name in names}
        network = self.network
        if not self.method.build().traits.root:
            return EpochTopology(name, client_indices, network)
        p_hat = {(link.sender, link.receiver): link.p_hat for link in self.links_in_use}
        link_costs = []
        for sender, receiver in zip(network.senders, network.receivers, strict=True):
            link_costs.append(1 / p_hat[names[sender], names[receiver]])
        return EpochTopology(name, client_indices, network, np.array(link_costs), self.root)

    def probabilities(self, name: str) -> dict[str, float]:
        """p̂ of the out-links of a client."""
        return {link.receiver: link.p_hat for link in self.links_in_use if link.sender == name}

    def neighbours(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        """A client's out- and in-neighbours, with the address to connect to; "" if the neighbour connects."""
        out = {}
        into = {}
        for link in self.links_in_use:
            end = self.listening_end(link)
            address = "" if end.name == name else end.address
            if link.sender == name:
                out[link.receiver] = address
            elif link.receiver == name:
                into[link.sender] = address
        return out, into


def _check_clients(manifest: Manifest) -> None:
    """Refuse invalid names and addresses, and names that are or were another client's."""
    uses = Counter([*manifest.names, *manifest.removed])
    for client in manifest.clients:
        check_name(client.name)
        if uses[client.name] > 1:
            raise InvalidConfig(
                f"client name {client.name!r} is or was another client's; rename it."
            )
        if client.address:
            check_address(client.address, f"the address of {client.name}")


def _check_link(manifest: Manifest, link: Link) -> None:
    """Refuse a link without two clients, or that neither end or not the chosen one can open."""
    for end in (link.sender, link.receiver):
        if end not in manifest._index:
            raise InvalidConfig(f"link {link} names {end!r}, which is no client; add it.")
    if not manifest.client(link.sender).address and not manifest.client(link.receiver).address:
        raise InvalidConfig(
            f"link {link} joins two clients without an address, so neither can reach the "
            "other; give one of them an address."
        )
    listening_end = manifest.listening_end(link)
    if not listening_end.address:
        other = "receiver" if link.dial == "sender" else "sender"
        why = f"dials {listening_end.name}, which has no address"
        raise InvalidConfig(f'link {link} {why}; give it one, or use dial = "{other}".')


def is_name(name: str) -> bool:
    """Whether a name is valid in certificates, file systems and shells."""
    return bool(_NAME.fullmatch(name)) and name not in ("all", certificates.OBSERVER)


def check_name(name: str) -> None:
    """Refuse a name that is not valid in certificates, file systems and shells."""
    if not is_name(name):
        must = "1 to 63 lower-case letters, digits, - and _, the first no sign, and not be all or observer"
        raise InvalidConfig(f"client name {name!r} must have {must}; rename it.")


def layout_of(problem: Problem) -> str:
    """A hash of the names and shapes of the parameters in a flat vector."""
    text = f"flat {problem.parameters}"
    if isinstance(problem, HasLayout):
        pairs = zip(problem.layout.names, problem.layout.shapes, strict=True)
        text = ";".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in pairs)
    return hashlib.sha256(text.encode()).hexdigest()


class SignedManifest(NamedTuple):
    """A manifest, and its file: the text as it was signed, and the signature."""

    manifest: Manifest
    file: bytes

    @classmethod
    def sign(cls, manifest: Manifest, authority_key: bytes) -> SignedManifest:
        text = manifest.to_text()
        signature = base64.b64encode(certificates.sign(authority_key, text))
        return cls(manifest, text + _SIGNED + signature + b"\n")

    @classmethod
    def verify(cls, file: bytes, authority: bytes) -> SignedManifest:
        """Parse a file that the authority has signed; anything else is refused."""
        text, _, last = file.rpartition(_SIGNED)
        try:
            signed = certificates.is_signed(
                authority, text, base64.b64decode(last.strip(), validate=True)
            )
        except binascii.Error:
            signed = False
        if not signed:
            fix = "take it from the authority again, unchanged"
            raise InvalidInput(f"manifest.toml does not match its signature; {fix}.")
        return cls(Manifest.parse(text), file)

    @classmethod
    def read(cls, folder: Path, authority: bytes, files: Files = DISK) -> SignedManifest:
        """A folder's manifest, checked against the authority."""
        try:
            file = files.read(folder / "manifest.toml")
        except FileNotFoundError as error:
            fix = "make it with spodgt peer init and spodgt peer issue"
            raise InvalidInput(f"{error.filename} does not exist; {fix}.") from None
        return cls.verify(file, authority)

    def write(self, folder: Path, files: Files = DISK) -> None:
        """Replace a folder's manifest at once."""
        files.replace(folder / "manifest.toml", self.file, mode=PUBLIC)
