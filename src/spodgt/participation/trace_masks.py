"""The masks of a trace for one network, from any of the forms that a trace accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spodgt._util.text import short_repr
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.types import Array, Bools, Floats, Ints

if TYPE_CHECKING:
    from spodgt.participation.traces import Trace

ALWAYS = "always"
BOTH_UP = "both-up"
Mask = str | Sequence[Sequence[int]] | Array


@dataclass(frozen=True, eq=False)
class TraceMasks:
    """Active clients and links by round, by the clients and links of a network."""

    trace: Trace
    network: Network
    computes: Bools  # (rounds, clients)
    links: Bools  # (rounds, links); without `repeat` one round less, as round 0 has no links

    @staticmethod
    def of(trace: Trace, network: Network) -> TraceMasks:
        """Fit a trace to a network.

        Raises:
            InvalidInput: The masks have another shape, or name clients or links that the network
                lacks.
        """
        computes, links = _Fitting(trace, network).masks()
        _check_lengths(len(computes), len(links), trace.repeat)
        return TraceMasks(trace, network, computes, links)

    def client_frequencies(self) -> Floats:
        """(clients,) fraction of rounds in which each client computes, above 0."""
        p: Floats = self.computes.mean(0)
        if not p.all():
            raise self._never_active(p, "client", self.network.label)
        return p

    def link_frequencies(self) -> Floats:
        """(links,) fraction of rounds in which each link works, above 0."""
        if not len(self.links):
            return np.ones(self.network.links)
        p_hat: Floats = self.links.mean(0)
        if not p_hat.all():
            raise self._never_active(p_hat, "link", self.network.link_label)
        return p_hat

    def _never_active(
        self, observed: Floats, kind: str, label: Callable[[int], str]
    ) -> InvalidInput:
        """The error for a client or link that is never active, as p = 0 is an error."""
        verb = "computes" if kind == "client" else "works"
        if observed.any():
            which = f"{kind} {label(int(np.argmin(observed)))}"
            fix = "leave it out of the network or record it for longer"
        elif kind == "client":
            which = "a client"
            fix = f"add rows, or use computes='{ALWAYS}'"
        else:
            which = "a link"
            fix = f"add rows, or use links='{BOTH_UP}' or '{ALWAYS}'"
        return InvalidInput(
            f"{self.trace.description} must let every {kind} take part, but {which} never {verb}; "
            f"{fix}."
        )


def _check_lengths(client_rounds: int, link_rounds: int, repeat: bool) -> None:
    if repeat:
        expected = link_rounds
        rule = "as many rounds as links (from the second pass on round 0 has links)"
    else:
        expected = link_rounds + 1
        rule = "one round more than links (round 0 has no links)"
    if client_rounds != expected:
        raise InvalidInput(f"computes must have {rule}, got {client_rounds} and {link_rounds}.")


@dataclass(frozen=True, eq=False)
class _Fitting:
    """Columns of a trace, matched with the clients and links of a network."""

    trace: Trace
    network: Network

    def masks(self) -> tuple[Bools, Bools]:
        """Active clients (rounds, clients) and links (rounds, links)."""
        trace = self.trace
        network = self.network
        all_compute = isinstance(trace.computes, str) and trace.computes == ALWAYS
        if all_compute and isinstance(trace.links, str):
            raise InvalidInput(
                f"{trace.description} must record clients or links, got neither; "
                "use spodgt.Always()."
            )
        if all_compute:
            links = self._link_mask()
            rounds = len(links) if trace.repeat else len(links) + 1
            return np.ones((rounds, network.clients), bool), links
        computes = self._client_mask()
        if not isinstance(trace.links, str) or trace.links not in (ALWAYS, BOTH_UP):
            return computes, self._link_mask()
        in_link_rounds = computes if trace.repeat else computes[1:]
        if trace.links == ALWAYS:
            return computes, np.ones((len(in_link_rounds), network.links), bool)
        both_up = in_link_rounds[:, network.receivers] & in_link_rounds[:, network.senders]
        return computes, both_up

    def _client_mask(self) -> Bools:
        computes = as_mask(self.trace.computes, "computes")
        clients = self.network.clients
        is_by_name = self.trace.names is not None
        if computes.ndim != 2 or (not is_by_name and computes.shape[1] != clients):
            raise InvalidInput(
                f"computes must be (rounds + 1, {clients}) for this network, got {computes.shape}."
            )
        if not is_by_name:
            return computes
        mask = np.zeros((len(computes), clients), bool)
        mask[:, self._client_of_column()] = computes
        return mask

    def _link_mask(self) -> Bools:
        """(rounds, links) mask, from any of the accepted forms of `links`."""
        links = as_mask(self.trace.links, "links")
        m = self.network.clients
        if self.trace.ends is not None:
            receivers, senders = self._client_of_column()[self._check_ends(links)].T
            return self._by_network_link(links, receivers, senders)
        if links.ndim == 3 and links.shape[1:] == (m, m):
            receivers, senders = np.nonzero(~np.eye(m, dtype=bool))
            return self._by_network_link(links[:, receivers, senders], receivers, senders)
        if links.ndim == 2 and links.shape[1] == self.network.links:
            return links
        raise InvalidInput(
            f"links must be (rounds, {m}, {m}) or (rounds, {self.network.links}) here, "
            f"got {links.shape}."
        )

    def _by_network_link(self, links: Bools, receivers: Ints, senders: Ints) -> Bools:
        """(rounds, links) mask in the network's order.

        Args:
            links: (rounds, columns).
            receivers: (columns,) clients.
            senders: (columns,) clients.
        """
        network = self.network
        codes = network.receivers * network.clients + network.senders
        column_codes = receivers * network.clients + senders
        link = np.searchsorted(codes, column_codes)
        is_link = np.append(codes, -1)[link] == column_codes
        is_unknown = links.any(0) & ~is_link
        if is_unknown.any():
            column = int(is_unknown.argmax())
            label = f"{network.label(senders[column])} → {network.label(receivers[column])}"
            where = "links" if self.trace.source == "arrays" else self.trace.description
            raise InvalidInput(
                f"{where} has link {label}, which the network lacks; add it to the network."
            )
        mask = np.zeros((len(links), network.links), bool)
        mask[:, link[is_link]] = links[:, is_link]
        return mask

    def _check_ends(self, links: Bools) -> Ints:
        """(links, 2) receiver and sender of each column of `links`."""
        ends = np.asarray(self.trace.ends)
        columns = len(self.trace.names or ())
        is_valid = ends.dtype.kind in "iu" and ends.shape == (*links.shape[1:], 2)
        if not is_valid or ((ends < 0) | (ends >= columns)).any():
            raise InvalidInput(
                "ends must be (links, 2) receivers and senders, each the place of one of the "
                f"{columns} names, got {short_repr(self.trace.ends)}."
            )
        return ends.astype(np.int64)

    def _client_of_column(self) -> Ints:
        """The client of each column: by name if the network has such a name, else by number."""
        labels = self.trace.names or ()
        network = self.network
        client_of = {name: client for client, name in enumerate(network.names or ())}
        if not any(label in client_of for label in labels):
            client_of = {str(client): client for client in range(network.clients)}
        clients = []
        for label in labels:
            client = label if isinstance(label, int) else client_of.get(label, -1)
            if not 0 <= client < network.clients:
                raise self._unknown_client(label)
            clients.append(client)
        if len(set(clients)) < len(clients):
            raise InvalidInput(
                f"names must differ from each other, got {short_repr(labels)}; rename one."
            )
        return np.array(clients, np.int64)

    def _unknown_client(self, label: str | int) -> InvalidInput:
        network = self.network
        fix = "use these names"
        if network.names is None:
            fix = "number them so, or give clients, a list of their names in that order"
        return InvalidInput(
            f"{self.trace.description} has client {label!r}, which the network lacks: its clients "
            f"are {network.label(0)} to {network.label(network.clients - 1)}; {fix}."
        )


def as_mask(value: Mask, name: str) -> Bools:
    """An array of booleans, from booleans or from 0 and 1."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.array("")
    if array.dtype.kind == "b":
        return array
    got = short_repr(value)
    if array.dtype.kind in "iuf":
        is_valid = (array == 0) | (array == 1)
        if is_valid.all():
            return np.asarray(array, bool)
        got = f"{array[~is_valid][0]:.3g}"
    raise InvalidInput(f"{name} must be an array of 0 and 1, or of false and true, got {got}.")
