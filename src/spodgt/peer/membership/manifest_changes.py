"""Changes of a run's manifest: each gives the next version, which running peers adopt whole or refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spodgt.errors import Incompatible, InvalidInput
from spodgt.peer.membership.manifest import Client, Link, Manifest, check_name
from spodgt.peer.options import Change, Ends, Table, check_limits
from spodgt.peer.process.local_problem import read_capacity
from spodgt.validation import from_table

_FIXED = ("run", "layout", "parameters", "problem", "seed", "divided_into")  # of every version


def apply_change(manifest: Manifest, change: Change) -> Manifest:
    """The next version, with other numbers, addresses, devices or links.

    Raises:
        InvalidInput: Nothing would change, or a value is invalid.
    """
    _check_known(manifest, change)
    check_limits(change)
    after = replace(
        manifest,
        clients=_changed_clients(manifest, change),
        links=_changed_links(manifest, change),
    )
    for key in ("rounds_per_second", "max_alone", "rounds", "root"):
        value = getattr(change, key)
        if value is not None:
            after = replace(after, **{key: value})
    if change.step_size is not None:
        after = replace(after, method=replace(manifest.method, step_size=change.step_size))
    if after == manifest:
        raise InvalidInput("nothing would change; give another value.")
    return _next(after)


def _changed_clients(manifest: Manifest, change: Change) -> tuple[Client, ...]:
    clients = []
    for client in manifest.clients:
        address = change.addresses.get(client.name, client.address)
        compute = dict(change.compute.get(client.name, client.compute))
        clients.append(replace(client, address=address, compute=compute))
    return tuple(clients)


def _changed_links(manifest: Manifest, change: Change) -> tuple[Link, ...]:
    """The links after additions, changes and removals; a changed link keeps what is not given."""
    links = {(link.sender, link.receiver): link for link in manifest.links}
    for ends, table in change.links.items():
        fields: dict[str, object] = {}
        if ends in links:
            fields = {"p_hat": links[ends].p_hat, "dial": links[ends].dial}
        fields |= table
        fields |= {"sender": ends[0], "receiver": ends[1]}
        links[ends] = from_table(Link, fields, "link")
    for ends in change.unlinked:
        del links[ends]
    return tuple(links.values())


def _check_known(manifest: Manifest, change: Change) -> None:
    """Refuse a root, a client or a removed link that is not in the manifest."""
    if change.root is not None:
        name = manifest.method.name
        if not manifest.method.build().traits.root:
            raise InvalidInput(
                f"root={change.root!r} is for methods with a root, not for {name}; use relay."
            )
        if change.root not in manifest.linked:
            raise InvalidInput(f"root={change.root!r} must be one of {', '.join(manifest.linked)}.")
    for name in (*change.addresses, *change.compute):
        manifest.client(name)
    known = {(link.sender, link.receiver) for link in manifest.links}
    for sender, receiver in change.unlinked - known:
        raise InvalidInput(f"link {sender} → {receiver} is not in the manifest; leave it out.")


def add_client(
    manifest: Manifest,
    name: str,
    *,
    address: str,
    links: Mapping[Ends, Table],
    compute: Table | None = None,
) -> Manifest:
    """The next version, with one more client: on the lowest part of the problem that no client holds.

    Args:
        manifest: the version in force.
        name: of the new client; one that was never used in this run.
        address: host:port; "" if it does not listen: then its links are dialled by itself.
        links: at least one from it and one to it, with p_hat and dial where they are not the default.
        compute: what its device can do; by default it computes in every round.
    """
    check_name(name)
    if name in (*manifest.names, *manifest.removed):
        raise InvalidInput(
            f"client name {name!r} is or was another client's in this run; use another."
        )
    place = len(manifest.clients) + len(manifest.removed)
    part = min(set(range(place + 1)) - {client.part for client in manifest.clients})
    # a user's function may load the data of a client by name
    is_user_function = "build" in manifest.problem
    if 0 < manifest.divided_into <= part and not is_user_function:
        raise InvalidInput(
            f"{name} would have no data: all {manifest.divided_into} parts of the problem are held; "
            "make a run with --divided-into more."
        )
    client = Client(name, address, place, part)
    if compute is not None:
        client = replace(client, compute=dict(compute))
    new_links = []
    for (sender, receiver), table in links.items():
        fields = {"sender": sender, "receiver": receiver, **table}
        if not address and "dial" not in table:
            fields["dial"] = "sender" if sender == name else "receiver"
        new_links.append(from_table(Link, fields, "link"))
    after = replace(
        manifest,
        clients=(*manifest.clients, client),
        links=(*manifest.links, *new_links),
    )
    return _next(after)


def remove_client(manifest: Manifest, name: str) -> Manifest:
    """The next version, in which a client has left; its name is never used again."""
    manifest.client(name)
    after = replace(
        manifest,
        clients=tuple(client for client in manifest.clients if client.name != name),
        links=tuple(link for link in manifest.links if name not in (link.sender, link.receiver)),
        removed=(*manifest.removed, name),
    )
    return _next(after)


def set_quarantine(manifest: Manifest, name: str, on: bool = True) -> Manifest:
    """The next version, in which a client stays a member but has no links, or has them again."""
    if manifest.client(name).quarantined == on:
        condition = "is in quarantine already" if on else "is not in quarantine"
        raise InvalidInput(f"{name} {condition}; nothing would change.")
    clients = []
    for client in manifest.clients:
        changed = replace(client, quarantined=on) if client.name == name else client
        clients.append(changed)
    return _next(replace(manifest, clients=tuple(clients)))


def _next(changed: Manifest) -> Manifest:
    """The changed manifest with the next version number, if its network and devices are valid."""
    after = replace(changed, version=changed.version + 1)
    _ = after.network  # raises if the clients are not strongly connected
    check_devices(after)
    return with_root(after)


def with_root(manifest: Manifest) -> Manifest:
    """The manifest with a root if its method needs one: the same as long as it can be, else the best one.

    A newcomer never leads at once, however good its links: its model is the initial one.
    """
    if not manifest.method.build().traits.root or manifest.root in manifest.linked:
        return manifest
    return replace(manifest, root=manifest.topology(manifest.linked[0]).root)


def check_devices(manifest: Manifest) -> None:
    """Refuse devices and links that are idle in some rounds if the method needs all of them."""
    built = manifest.method.build()  # refused here rather than when the clients start
    for client in manifest.clients:
        p = read_capacity(client.compute, manifest.seed, client.place, client.name).p
        if p < 1 and built.traits.sporadic_clients != "yes":
            rests = f"{client.name} computes in a fraction {p:.3g} of its rounds"
            raise Incompatible(
                f"method {built.name} needs all clients, but {rests}; use spod-gt-memory."
            )
    for link in manifest.links:
        if link.p_hat < 1 and built.traits.sporadic_links != "yes":
            rests = f"{link} is used in a fraction {link.p_hat:.3g} of the rounds"
            raise Incompatible(
                f"method {built.name} needs all links, but {rests}; use spod-gt-memory."
            )


def why_incompatible(ours: Manifest, theirs: Manifest) -> str | None:
    """Why a running peer cannot adopt a later version; None if it can."""
    for key in _FIXED:
        if getattr(ours, key) != getattr(theirs, key):
            return f"{key} is another; it cannot change while a run lasts"
    known = {client.name: client for client in ours.clients}
    for client in theirs.clients:
        old = known.get(client.name, client)
        if (client.place, client.part) != (old.place, old.part):
            return f"place or part of {client.name} is another; it cannot change while a run lasts"
    return None
