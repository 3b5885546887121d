"""Names of clients and links: labels, order, values by name, differences between sets of names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from spodgt._util.text import short_repr
from spodgt.errors import InvalidInput, InvalidNetwork
from spodgt.types import Ints

K = TypeVar("K")
T = TypeVar("T")
_MAX_LISTED = 8  # names in one error message


class ClientNames:
    """Labels of clients: their names, or their numbers if `names` is None."""

    names: tuple[str, ...] | None

    def label(self, client: int) -> str:
        """Name or number of a client.

        Args:
            client: Number of the client.
        """
        if self.names is None:
            return str(client)
        return self.names[client]


class NamedLinks(Protocol):
    """The part of a network that link names depend on."""

    @property
    def senders(self) -> Ints: ...
    @property
    def receivers(self) -> Ints: ...
    def label(self, client: int) -> str: ...
    def link_label(self, link: int) -> str: ...


def check_names(names: Iterable[str] | None, clients: int) -> tuple[str, ...] | None:
    """The names as a tuple: one per client, no two equal."""
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Iterable):
        names = (names,)
    checked = tuple(names)
    if len(checked) != clients or not all(isinstance(name, str) for name in checked):
        raise InvalidNetwork(
            f"names must be {clients} texts, one per client, got {short_repr(checked)}."
        )
    if len(set(checked)) < clients:
        duplicate = next(name for name in checked if checked.count(name) > 1)
        raise InvalidNetwork(
            f"names must differ, but {duplicate!r} is there twice; rename one of them."
        )
    return checked


def sort_by_name(nodes: Iterable[Hashable]) -> list[Hashable]:
    """Sort nodes by name, with numbers inside of names by value: 2 before 10, n2 before n10.

    The order depends on the names only, so a graph in memory and the same graph in a file agree.
    """
    node_of: dict[str, Hashable] = {}
    for node in nodes:
        name = str(node)
        if name in node_of:
            raise InvalidNetwork(
                f"nodes {node_of[name]!r} and {node!r} have the same name; rename one of them."
            )
        node_of[name] = node
    return [node_of[name] for name in sorted(node_of, key=_natural_key)]


def _natural_key(name: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Sort key: the numbers and other parts of a name in turn; a number sorts before other text."""
    key = []
    for part in re.findall(r"[0-9]+|[^0-9]+", name):
        is_number = part[0] in "0123456789"
        key.append((not is_number, int(part) if is_number else 0, part))
    return key, name


def list_names(names: Collection[str]) -> str:
    """Names for an error message: quoted, the first few of many."""
    quoted = [repr(name) for name in names]
    if len(quoted) > _MAX_LISTED:
        return f"{', '.join(quoted[:_MAX_LISTED])} and {len(quoted) - _MAX_LISTED} more"
    return ", ".join(quoted)


def describe_difference(first: str, ours: Iterable[str], second: str, theirs: Iterable[str]) -> str:
    """Which names only `first` has and which only `second` has; empty if both have the same."""
    ours = dict.fromkeys(ours)
    theirs = dict.fromkeys(theirs)
    only_first = [name for name in ours if name not in theirs]
    only_second = [name for name in theirs if name not in ours]
    parts = []
    if only_first:
        parts.append(f"only {first} has {list_names(only_first)}")
    if only_second:
        parts.append(f"only {second} has {list_names(only_second)}")
    return ", ".join(parts)


def client_number(client: object, names: Sequence[str] | None, clients: int, key: str) -> int:
    """The number of a client that is given by name or number; `key` names the argument in errors.

    Names have precedence: "7" is the client of this name, if there is one, else number 7.
    """
    number = client
    if isinstance(client, str):
        if names is not None and client in names:
            return names.index(client)
        number = int(client) if client.isdecimal() else None
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < clients:
        return number
    name_of = {name.lower(): name for name in names or ()}
    similar = difflib.get_close_matches(str(client).lower(), name_of, 1)
    if similar:
        name = name_of[similar[0]]
        raise InvalidInput(f"{key}={client!r} is not a client; did you mean {name!r}?")
    choices = '"average"'
    if names is not None:
        choices = f"{choices}, one of {list_names(names)}"
    raise InvalidInput(
        f'{key}={client!r} must be {choices} or a number below {clients}; use "average".'
    )


def values_by_client(given: Mapping[K, T], labels: Sequence[str], key: str) -> list[T]:
    """The values of a dictionary by client, in the order of `labels`; `key` names it in errors."""
    return _in_order({str(name): value for name, value in given.items()}, labels, key, "client")


def values_by_link(given: Mapping[K, T], network: NamedLinks, key: str) -> list[T]:
    """The values of a dictionary by link, in the order of the network's links.

    A link is named by (sender, receiver), "sender:receiver" or "sender → receiver".
    """
    labels = []
    label_of = {}
    for link, (sender, receiver) in enumerate(zip(network.senders, network.receivers, strict=True)):
        label = network.link_label(link)
        labels.append(label)
        label_of[f"{network.label(sender)}:{network.label(receiver)}"] = label
    values = {}
    for name, value in given.items():
        text = ":".join(map(str, name)) if isinstance(name, tuple) else str(name)
        values[label_of.get(text, text)] = value
    return _in_order(values, labels, key, "link")


def _in_order(values: Mapping[str, T], labels: Sequence[str], key: str, kind: str) -> list[T]:
    """The values in the order of `labels`; `kind` is "client" or "link"."""
    known_labels = set(labels)
    unknown = [name for name in values if name not in known_labels]
    missing = [label for label in labels if label not in values]
    if not unknown and not missing:
        return [values[label] for label in labels]
    problems = []
    if unknown:
        verb = f"is no {kind}" if len(unknown) == 1 else f"are no {kind}s"
        problems.append(f"{list_names(unknown)} {verb}")
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        problems.append(f"{list_names(missing)} {verb} missing")
    raise InvalidInput(
        f"{key} must have one value for each {kind}, but {' and '.join(problems)}; "
        f"the {kind}s are {list_names(labels)}."
    )
