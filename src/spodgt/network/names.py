"""Values by the name of a client or link, and how two sets of names differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from spodgt.errors import InvalidInput
from spodgt.types import Ints

K = TypeVar("K")
T = TypeVar("T")
_MAX_LISTED = 8  # names in one error message


class NamedLinks(Protocol):
    """The part of a network that link names depend on."""

    @property
    def senders(self) -> Ints: ...
    @property
    def receivers(self) -> Ints: ...
    def label(self, client: int) -> str: ...
    def link_label(self, link: int) -> str: ...


def list_names(names: Collection[str]) -> str:
    """Names for an error message: quoted, the first few of many."""
    quoted = [repr(name) for name in names]
    if len(quoted) > _MAX_LISTED:
        return f"{', '.join(quoted[:_MAX_LISTED])} and {len(quoted) - _MAX_LISTED} more"
    return ", ".join(quoted)


def describe_difference(first: str, ours: Iterable[str], second: str, theirs: Iterable[str]) -> str:
    """Which names only `first` has and which only `second` has; empty if both have the same."""
    ours = list(ours)
    theirs = list(theirs)
    only_first = [name for name in ours if name not in set(theirs)]
    only_second = [name for name in theirs if name not in set(ours)]
    parts = []
    if only_first:
        parts.append(f"only {first} has {list_names(only_first)}")
    if only_second:
        parts.append(f"only {second} has {list_names(only_second)}")
    return ", ".join(parts)


def client_number(client: object, names: Sequence[str] | None, clients: int, key: str) -> int:
    """The number of a client that is given by name or number; `key` names the argument in errors.

    A name comes first: "7" is the client of this name, if there is one, and else number 7.
    """
    number = client
    if isinstance(client, str):
        if names is not None and client in names:
            return names.index(client)
        number = int(client) if client.isdecimal() else None
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < clients:
        return number
    choices = '"average"'
    if names is not None:
        choices = f"{choices}, one of {list_names(names)}"
    raise InvalidInput(
        f'{key}={client!r} must be {choices} or a number below {clients}; use "average".'
    )


def values_by_client(given: Mapping[K, T], labels: Sequence[str], key: str) -> list[T]:
    """The values of a dictionary by client, in the order of `labels`; `key` names it in errors."""
    return _ordered({str(name): value for name, value in given.items()}, labels, key, "client")


def values_by_link(given: Mapping[K, T], network: NamedLinks, key: str) -> list[T]:
    """The values of a dictionary by link, in the order of the network's links.

    A link is named by (sender, receiver), "sender:receiver" or "sender → receiver".
    """
    labels = []
    aliases = {}
    for link, (sender, receiver) in enumerate(zip(network.senders, network.receivers, strict=True)):
        label = network.link_label(link)
        labels.append(label)
        aliases[f"{network.label(sender)}:{network.label(receiver)}"] = label
    values = {}
    for name, value in given.items():
        text = ":".join(map(str, name)) if isinstance(name, tuple) else str(name)
        values[aliases.get(text, text)] = value
    return _ordered(values, labels, key, "link")


def _ordered(values: Mapping[str, T], labels: Sequence[str], key: str, each: str) -> list[T]:
    known = set(labels)
    unknown = [name for name in values if name not in known]
    missing = [label for label in labels if label not in values]
    if not unknown and not missing:
        return [values[label] for label in labels]
    problems = []
    if unknown:
        none = f"is no {each}" if len(unknown) == 1 else f"are no {each}s"
        problems.append(f"{list_names(unknown)} {none}")
    if missing:
        problems.append(f"{list_names(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    raise InvalidInput(
        f"{key} must have one value for each {each}, but {' and '.join(problems)}; "
        f"the {each}s are {list_names(labels)}."
    )
