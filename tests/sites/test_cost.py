"""What an exchange costs: memory, bytes written and bytes sent, in units of the model."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from spodgt.peer.membership.run_folders import audit_folders
from spodgt.peer.protocol.running_sums import Message
from spodgt.peer.transport import wire_format
from spodgt.sites.checkpoint import Checkpoint
from spodgt.sites.connection import Connection
from spodgt.sites.correction import Correction
from spodgt.sites.exchange import ExchangeOptions
from spodgt.sites.layout import model_row
from spodgt.sites.local_training import LocalTraining
from spodgt.sites.options import BlockOptions
from spodgt.sites.replicas import Replicas
from tests.sites.fleet_of_threads import make_run

WIDTH = 2000  # the model has WIDTH² parameters
MODEL = 4 * WIDTH * WIDTH  # bytes


class Peak:
    """The largest memory that was allocated at once in this thread, in models."""

    value = 0.0


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """Measure tensors (profiler of torch), arrays and bytes (tracemalloc); mapped rows are neither."""
    peak = Peak()
    tracemalloc.start()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield peak
        _, largest_of_python = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    allocated = 0
    largest = 0
    for event in sorted(profiler.events(), key=lambda event: event.time_range.start):
        allocated += event.self_cpu_memory_usage
        largest = max(largest, allocated)
    peak.value = (largest + largest_of_python) / MODEL


class Client(NamedTuple):
    """A site without threads: the test makes its steps, and carries its messages."""

    connection: Connection
    training: LocalTraining

    @property
    def name(self) -> str:
        return self.connection.name


def client(folder: Path, others: set[str]) -> Client:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    row = model_row(model)
    correction = Correction(row)
    connection = Connection(
        folder,
        row,
        dtype=correction.dtype,
        initial="own",
        options=ExchangeOptions(),
        durability="process",
    )
    connection.transport.connected = lambda: others  # type: ignore[method-assign]
    connection.exchange.upkeep.check = lambda: None  # type: ignore[method-assign]  # it has no links
    checkpoint = Checkpoint(folder, {"optimizer": optimizer}, lambda kind, text: None)
    options = BlockOptions(durability="process")
    arguments: Any = (model, optimizer, correction, options, Replicas(), connection, checkpoint)
    return Client(connection, LocalTraining(*arguments))


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[list[Client]]:
    """Two sites that have met."""
    manifest = make_run(tmp_path / "run", nn.Linear(WIDTH, WIDTH, bias=False), 2)
    names = set(manifest.names)
    both = [client(tmp_path / "run" / name, names - {name}) for name in manifest.names]
    for _ in range(3):
        carry(both)
    for each in both:
        each.training._take_update(each.connection)
    yield both
    for each in both:
        each.connection.store.close()
    assert audit_folders([each.connection.folder for each in both]).passed(1e-12)


def carry(clients: list[Client]) -> int:
    """Deliver the message and the acknowledgement of each site; returns the bytes of the messages."""
    size = 0
    for sender, receiver in (clients, clients[::-1]):
        source = sender.connection.node
        target = receiver.connection.node
        message = source.message(receiver.name)
        assert message is not None
        local = receiver.connection.transport.local
        assembler = wire_format.MessageAssembler(local.context, sender.name, local.new_row)
        context = sender.connection.transport.local.context
        received = None
        for chunk in wire_format.pack(context, receiver.name, message, 1):
            size += len(chunk)
            received = assembler.add(chunk)
        assert isinstance(received, Message)
        target.receive(sender.name, received)
        receiver.connection.exchange.step()
        ack = target.ack(sender.name)
        assert ack is not None
        source.receive(receiver.name, ack)
        sender.connection.exchange.step()
    return size


def exchange(clients: list[Client]) -> int:
    """One block of every site, and their messages; returns the bytes of the messages."""
    for each in clients:
        each.training.end_block()
        each.connection.exchange.step()
    size = carry(clients)
    for each in clients:
        each.training._take_update(each.connection)
    return size


def make_step(clients: list[Client]) -> None:
    for each in clients:
        for parameter in each.training.row.parameters:
            parameter.grad = torch.randn_like(parameter)
        each.training.correction.apply(each.training.optimizer)


def test_exchange_allocates_less_than_a_model(clients: list[Client]) -> None:
    """All rows of the state, of messages and of blocks are in the mapped file of each site."""
    peaks = []
    for _ in range(3):
        make_step(clients)
        with peak_memory() as peak:
            exchange(clients)
        peaks.append(peak.value)
    print(peaks)
    assert max(peaks) < 1.0


def test_exchange_in_memory_allocates_several_models(clients: list[Client]) -> None:
    """The measure of the test before counts vectors that are not mapped."""
    for each in clients:
        each.connection.store.rows = None
    make_step(clients)
    with peak_memory() as peak:
        exchange(clients)
    assert peak.value > 5.0


def test_correction_that_is_being_read_is_not_changed(clients: list[Client]) -> None:
    """The training thread may take it over while the exchange thread ends the next block."""
    make_step(clients)
    for each in clients:
        each.training.end_block()
        each.connection.exchange.step()
    carry(clients)  # the tracker of the correction is of no commit yet
    make_step(clients)
    for each in clients:
        update = each.connection.handover.take_update()
        assert update is not None
        assert update.correction is not None
        y = update.correction.y
        before = y.clone()
        each.training.end_block()
        each.connection.exchange.step()
        assert torch.equal(y, before)


def test_exchange_writes_each_vector_once(clients: list[Client]) -> None:
    """x, c, σ and the received X and Σ in four bytes for each parameter, y in eight."""
    for _ in range(3):
        make_step(clients)
        made = [each.connection.store.rows.bytes_made for each in clients]  # type: ignore[union-attr]
        size = exchange(clients)
        for each, before in zip(clients, made, strict=True):
            rows = each.connection.store.rows
            assert rows is not None
            assert (rows.bytes_made - before) / MODEL == 7.0
        assert size / len(clients) / MODEL == pytest.approx(2.0, abs=0.01)
    for each in clients:  # the file does not grow without bound
        size_of_file = each.connection.store.file.size() / MODEL
        print(size_of_file)
        assert size_of_file < 32


def test_site_takes_as_many_descriptors_as_the_host_allows(tmp_path: Path) -> None:
    """Every row has one: a site with a hundred neighbours has a thousand."""
    manifest = make_run(tmp_path / "run", nn.Linear(WIDTH, WIDTH, bias=False), 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
    try:
        site = client(tmp_path / "run" / manifest.names[0], set())
        store = site.connection.store
        rows = [store.new_row(1, torch.float32) for _ in range(600)]
        assert len(rows) == 600
        store.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
