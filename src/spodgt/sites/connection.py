"""A site as a client of a run: folder, state, links and the two threads of the exchange."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from spodgt.algorithms.base import TrackingState
from spodgt.errors import Failed, InvalidInput
from spodgt.peer.host.files import raise_descriptor_limit
from spodgt.peer.membership import certificates
from spodgt.peer.membership.certificates import Identity
from spodgt.peer.membership.manifest import SCRIPT, Manifest
from spodgt.peer.options import Options
from spodgt.peer.process.journal import Journal
from spodgt.peer.process.membership import Membership
from spodgt.peer.process.startup import load_state, make_links, start_node
from spodgt.peer.protocol.client_state import State, epoch_start_state
from spodgt.peer.protocol.node import Node
from spodgt.peer.storage.state_store import DiskStateStore
from spodgt.peer.transport.grpc_wire import system_host
from spodgt.peer.transport.links import Transport
from spodgt.sites.exchange import AWAITED, COMMON, MODEL, Exchange, ExchangeOptions
from spodgt.sites.handover import Block, Handover
from spodgt.sites.layout import ModelRow, RowLayout
from spodgt.tensors import zero_row

_START_SECONDS = 20.0  # for opening the server
_PATIENCE = 5.0  # seconds of waiting after which the user is told what is waited for
_open_stores: weakref.WeakSet[DiskStateStore] = weakref.WeakSet()


def _close_stores_in_child() -> None:
    """Data loaders fork the process; a child that outlives it would keep the folder locked."""
    for store in list(_open_stores):
        store.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_stores_in_child)


class ReportedScores:
    """The scores that the training script has reported last."""

    def __init__(self) -> None:
        self.loss = float("nan")
        self.accuracy = float("nan")

    def evaluate(self, state: State) -> list[tuple[float, float]]:
        """(loss, accuracy) of the model."""
        return [(self.loss, self.accuracy)]


class Connection:
    """The client of a site.

    Args:
        folder: Made by `spodgt peer issue`.
        row: Of the site's model; the present model is used if the folder has no state yet.
        dtype: Of the contribution: float32, or float64 for models in float64.
        initial: "first": take over the model of the first client of the manifest; "own": keep
            the present one.
        options: Of the exchange.
        durability: "power" or "process".
    """

    def __init__(
        self,
        folder: Path,
        row: ModelRow,
        *,
        dtype: torch.dtype,
        initial: str,
        options: ExchangeOptions,
        durability: str,
    ) -> None:
        if not (folder / "cert.pem").exists():
            raise InvalidInput(
                f"{folder} holds no certificate; make it with spodgt peer init --script and "
                "spodgt peer issue, or give the folder of one client."
            )
        host = system_host()
        self.folder = folder
        self.host = host
        self.name = certificates.certificate_name(folder)
        identity = Identity.read(folder, self.name, host.files, host.clock.wall())
        self.journal = Journal(folder / "log.jsonl", self.name, host)
        self.membership = Membership(folder, identity, self.journal.event, host)
        manifest = self.membership.manifest
        check_layout(manifest, row.layout)
        raise_descriptor_limit()  # every mapped row has one
        self.store = DiskStateStore(
            folder / "state",
            durability=durability,
            labels={"run": manifest.run, "name": self.name, "layout": row.layout.hash},
            files=host.files,
            mapped=True,
        )
        _open_stores.add(self.store)
        self.is_restored = False  # whether the folder had a state
        self.loop: asyncio.AbstractEventLoop | None = None
        self._worker: threading.Thread | None = None
        try:
            self.node = self._restore(row, dtype, initial)
            self._build(folder, options)
        except BaseException:
            self.store.close()
            raise

    def _build(self, folder: Path, options: ExchangeOptions) -> None:
        self.scores = ReportedScores()
        self.transport, self.reporter = make_links(
            folder, self.node, self.membership, self.scores, self.journal, Options()
        )
        self.handover = Handover()
        self.exchange = Exchange(
            self.node,
            self.transport,
            self.membership,
            self.reporter,
            self.handover,
            options,
            store=self.store,
        )
        self.blocks_before = self.node.state.k  # at the start of this process
        # read before the exchange begins: the model may arrive at any time after that
        self.needs_initial_model = not self.exchange.has_common_model

    def _restore(self, row: ModelRow, dtype: torch.dtype, initial: str) -> Node:
        """The node as it was last committed, or a new one; committed as a new incarnation."""
        terms = self.membership.terms
        manifest = terms.manifest
        saved = load_state(self.store, manifest, self.journal)
        self.is_restored = saved is not None
        if saved is None:
            is_first = self.name == manifest.names[0]
            has_model = is_first or initial == "own"
            self.store.labels[MODEL] = COMMON if has_model else AWAITED
        else:
            self.store.labels[MODEL] = str(saved.meta.get(MODEL, COMMON))

        def first_state() -> State:
            new_row = self.store.new_row
            empty = initial_state(row.read(new_row), dtype)
            return epoch_start_state(empty, manifest.epoch, terms.topology.role, new_row)

        return start_node(
            saved, first_state, _no_gradient, self.store, self.membership, self.journal
        )

    # --- threads ---------------------------------------------------------------------------------
    def start(self) -> None:
        """Listen, connect, and begin to exchange in the background."""
        loop = asyncio.new_event_loop()
        self.loop = loop
        self._network = threading.Thread(
            target=loop.run_forever, name="spodgt-network", daemon=True
        )
        self._network.start()
        manifest = self.membership.manifest
        address = manifest.client(self.name).address
        opening = self.transport.start(address, *manifest.neighbours(self.name))
        try:
            asyncio.run_coroutine_threadsafe(opening, loop).result(_START_SECONDS)
        except (RuntimeError, TimeoutError):
            raise Failed(
                f"{self.name} cannot listen at {address}; end the process that uses it, or change "
                "the address with spodgt peer set."
            ) from None
        self._worker = threading.Thread(
            target=self.exchange.run, name="spodgt-exchange", daemon=True
        )
        self._worker.start()

    def inform(self, kind: str, text: str) -> None:
        """Log an event, and show it to the user of the script."""
        self.journal.event(kind, text)
        print(f"spodgt: {self.name}: {text}", file=sys.stderr)

    def submit(self, block: Block) -> None:
        """Hand a block over to the exchange; waits while the one before is being written."""
        self.handover.submit(block)
        self.node.inbox.arrived.set()

    def wait_for_news(self) -> None:
        """Wait for a message if there has been none for too many blocks."""
        if not self.exchange.is_alone:
            return
        handover = self.handover

        def has_news() -> bool:
            return handover.block is None and not self.exchange.is_alone

        if handover.wait_for_news(has_news, _PATIENCE):
            return
        state = self.node.state
        senders = ", ".join(sorted(state.into.keys() - state.ended))
        limit = self.exchange.options.max_silent_blocks
        self.inform(
            "waiting",
            f"waits: no message from {senders} in {limit} blocks; max_silent_blocks=None trains on "
            "alone",
        )
        handover.wait_for_news(has_news)

    def finish(self, seconds: float) -> None:
        """Inform the neighbours that no more blocks follow; waits `seconds` for their answers."""
        handover = self.handover
        handover.wait_until(lambda: handover.block is None)
        handover.is_ending = True
        handover.is_waiting = True  # what arrives is committed at once
        self.node.inbox.arrived.set()
        node = self.node
        handover.wait_until(lambda: node.has_ended and node.is_end_acknowledged(), seconds)

    def close(self) -> None:
        """End both threads and release the folder."""
        self.handover.is_stopped = True
        self.node.inbox.arrived.set()
        try:
            if self._worker is not None:
                self._worker.join()
            if self.loop is not None:
                self._stop_network(self.loop)
            if self.handover.failure is None and self._worker is not None:
                self.reporter.report(last=True)
        finally:
            self.store.close()

    def _stop_network(self, loop: asyncio.AbstractEventLoop) -> None:
        stopping = asyncio.run_coroutine_threadsafe(_stop(self.transport), loop)
        stopping.result(_START_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        self._network.join()
        loop.close()


def initial_state(x: Tensor, dtype: torch.dtype) -> State:
    """The state before the first block: no contribution, an empty tracker."""
    zero = zero_row(len(x), torch.float64)[None]
    method = TrackingState(x[None], zero, zero_row(len(x), dtype)[None])
    return State(1, 0, method, zero, {}, {})


def check_layout(manifest: Manifest, layout: RowLayout) -> None:
    """Refuse a run of another kind, and a model that differs from that of the manifest."""
    problem: Mapping[str, object] = manifest.problem
    if problem.get("kind") != SCRIPT:
        raise InvalidInput(
            "the run in this folder has its own model and data; make one for training scripts with "
            "spodgt peer init --script."
        )
    table = problem.get("layout")
    if not isinstance(table, Mapping):
        raise InvalidInput(
            "the manifest has no layout; make the run with spodgt peer init --script."
        )
    difference = layout.difference(RowLayout.from_table(table))
    if difference:
        raise InvalidInput(
            f"model differs from the manifest: {difference}; use the same model at every site, or "
            "make a new run with spodgt peer init --script."
        )


def _no_gradient(x: Tensor, k: int) -> Tensor:
    raise AssertionError("the gradients of a site are computed by its training script")


async def _stop(transport: Transport) -> None:
    await asyncio.sleep(0.05)  # the last frames leave
    await transport.stop()
