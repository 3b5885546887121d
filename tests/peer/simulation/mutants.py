"""Wrong versions of the program: a simulator that does not find them would not find such bugs either.

`python -m tests.peer.simulation.mutants` prints how many seeds each of them needs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from cryptography.hazmat.primitives import serialization
from torch import Tensor

from spodgt.peer.membership import certificates
from spodgt.peer.process.membership import Membership
from spodgt.peer.process.publisher import Publisher
from spodgt.peer.process.round_loop import RoundLoop
from spodgt.peer.process.status import Reporter
from spodgt.peer.protocol import client_state, running_sums
from spodgt.peer.protocol.epoch_limit import EpochRateLimiter
from spodgt.peer.protocol.frame_processing import FrameProcessor
from spodgt.peer.protocol.running_sums import (
    Ack,
    FrameAge,
    InLink,
    Mass,
    Message,
    MessageEffect,
    NewerEpoch,
    OutLink,
    RolledBack,
)
from spodgt.peer.storage import state_store
from spodgt.peer.storage.state_store import DiskStateStore, StoreFailed
from spodgt.peer.transport import link_dialer, wire_format
from tests.peer.simulation import test_found, test_liars
from tests.peer.simulation.simulator import plan_of, simulate

MOST_SEEDS = 300


class Mutant(NamedTuple):
    """One function or number of the program, and a wrong one in its place."""

    owner: Any  # a module or a class
    name: str
    wrong: Any
    test: Callable[[], None] | None = None  # that finds it; None: seeds do


# --- the protocol ----------------------------------------------------------------------------------
def forget_ack(link: OutLink, ack: Ack) -> OutLink:
    return replace(link, seen=ack.sender)


def unrounded(link: OutLink, y: Tensor, *args: Any) -> tuple[OutLink, Mass]:
    new = torch.add(link.total, y, alpha=link.weight).to(link.total.dtype)
    return replace(link, total=new, number=link.number + 1), Mass(link.weight * y)


def rebase_early(link: OutLink) -> tuple[OutLink, Tensor] | None:
    return replace(link, base=link.number, total=torch.zeros_like(link.total)), link.total


_rebase = running_sums.rebase


def rebase_without_z(link: OutLink) -> tuple[OutLink, Tensor] | None:
    quiet = _rebase(link)
    return None if quiet is None else (quiet[0], torch.zeros_like(quiet[1]))


_take = running_sums.apply_message


def take_old(link: InLink, message: Message) -> MessageEffect | RolledBack:
    if message.number < link.number and message.base == link.base:
        mass = Mass(message.total, link.total)
        return MessageEffect(replace(link, number=message.number, total=message.total), mass, None)
    return _take(link, message)


def believe_own_disk(
    own: running_sums.Incarnation, epoch: int, frame: Message | Ack
) -> FrameAge | NewerEpoch:
    if frame.epoch > epoch:
        return NewerEpoch(frame.epoch)
    return FrameAge.CURRENT if frame.epoch == epoch else FrameAge.EARLIER


_epoch_start_state = client_state.epoch_start_state


def keep_tracker(state: client_state.State, *args: Any) -> client_state.State:
    return _epoch_start_state(state, *args)._replace(method=state.method)


_meta_of = client_state.meta_of


def same_incarnation(state: client_state.State, own: running_sums.Incarnation) -> dict[str, object]:
    return {**_meta_of(state, own), "incarnation": own.number - 1}


# --- rounds ----------------------------------------------------------------------------------------
def send_before_commit(self: Publisher) -> None:
    committed = self.node.committed
    self.node.committed = self.node.state
    self.send_unacknowledged()
    self.node.committed = committed
    for source in sorted(self.node.commit()):
        ack = self.node.ack(source)
        if ack:
            self.transport.send_ack(source, ack)


def ack_before_commit(self: Publisher) -> None:
    committed = self.node.committed
    self.node.committed = self.node.state
    for source in sorted(self.node.pending_acks):
        ack = self.node.ack(source)
        if ack:
            self.transport.send_ack(source, ack)
    self.node.committed = committed
    self.node.commit()
    self.send_unacknowledged()


def silent_while_waiting(self: RoundLoop, has_frames: bool) -> None:
    return


def never_send_first(self: Publisher) -> None:
    self.sent_at = self.clock.monotonic()
    for target in self.node.state.out:
        link = self.node.committed.out.get(target)
        message = self.node.message(target)
        if link is not None and link.acked < link.number and message:
            self.transport.send_latest(target, message)


# --- the disk --------------------------------------------------------------------------------------
def skip_sync(self: DiskStateStore, record: state_store.StoredRecord) -> None:
    file = self.records[record.generation % 2]
    file.write(memoryview(state_store._encode_record(record)), 0)


_write = DiskStateStore._write


def overwrite_slot(self: DiskStateStore, vector: Tensor, old: Any, generation: int) -> Any:
    if old is not None:
        old = {**old, "slot": 1 - old["slot"]}
    return _write(self, vector, old, generation)


_commit = DiskStateStore.commit


def ignore_full_disk(self: DiskStateStore, vectors: Any, meta: Any) -> None:
    try:
        _commit(self, vectors, meta)
    except StoreFailed:
        return


def one_record(self: DiskStateStore, record: state_store.StoredRecord) -> None:
    file = self.records[0]
    file.write(memoryview(state_store._encode_record(record)), 0)
    if self.durability == "power":
        file.sync()


# --- links and the manifest ------------------------------------------------------------------------
async def connect_once(self: link_dialer.LinkDialer) -> None:
    self.down(await self._attempt())
    await asyncio.Event().wait()


_check_epoch = FrameProcessor._check_epoch


def deaf_to_epochs(
    self: FrameProcessor, name: str, frame: Message | Ack
) -> FrameAge | NewerEpoch | RolledBack:
    if self.node.state.epoch < frame.epoch <= self.node.last_epoch:
        return FrameAge.EARLIER
    return _check_epoch(self, name, frame)


_adopt = Membership.adopt


def adopt_any(self: Membership) -> Any:
    update = self.update
    self.update = None
    if update is None:
        file = self.host.files.read(self.folder / "manifest.toml")
        if file == self.terms.signed.file:
            return None
        signed = type(self.terms.signed).verify(file, self.identity.authority)
        update = type(self.terms).of(signed, self.identity.name, self.terms, self.host.clock)
    self.terms = update
    return update


def overwrite_newer(self: Membership) -> Any:
    with patch.object(self, "_read_manifest"):
        return _adopt(self)


def ask_nobody(self: Membership, neighbour: str, loop: object) -> None:
    return


def every_root(
    self: FrameProcessor, name: str, frame: Message | Ack
) -> FrameAge | NewerEpoch | RolledBack:
    return running_sums.check_epoch(self.node.incarnation, self.node.state.epoch, frame)


def follow_all(self: EpochRateLimiter, name: str, current: int, claimed: int) -> int:
    return claimed


def any_vectors(message: Message) -> None:
    return


def any_signature(authority: bytes, text: bytes, signature: bytes) -> bool:
    return True


def key_that_must_be_whole(pem: bytes, file: str, fix: str = "") -> Any:
    return serialization.load_pem_private_key(pem, None)


def status_with_key(self: Reporter) -> bytes:
    return bytes(self.journal.host.files.read(self.path.with_name("key.pem")))


def note_no_end(self: FrameProcessor, name: str, has_ended: bool, is_newer: bool) -> None:
    return


MUTANTS: dict[str, Mutant] = {
    "forget an acknowledgement": Mutant(running_sums, "apply_ack", forget_ack),
    "subtract the unrounded mass": Mutant(running_sums, "add_mass", unrounded),
    "rebase before all is acknowledged": Mutant(running_sums, "rebase", rebase_early),
    "forget what a rebase folds away": Mutant(running_sums, "rebase", rebase_without_z),
    "take older messages": Mutant(running_sums, "apply_message", take_old),
    "ignore proofs of a disk set back": Mutant(running_sums, "check_epoch", believe_own_disk),
    "keep the tracker in a new epoch": Mutant(client_state, "epoch_start_state", keep_tracker),
    "start with the old incarnation": Mutant(client_state, "meta_of", same_incarnation),
    "send before the commit": Mutant(Publisher, "publish", send_before_commit),
    "acknowledge before the commit": Mutant(Publisher, "publish", ack_before_commit),
    "send nothing while waiting": Mutant(
        RoundLoop, "_exchange_without_round", silent_while_waiting
    ),
    "send nothing before it is heard": Mutant(Publisher, "send_unacknowledged", never_send_first),
    "skip the sync of a commit": Mutant(DiskStateStore, "_write_record", skip_sync),
    "overwrite the slot in use": Mutant(DiskStateStore, "_write", overwrite_slot),
    "go on with a full disk": Mutant(DiskStateStore, "commit", ignore_full_disk),
    "keep one record": Mutant(
        DiskStateStore,
        "_write_record",
        one_record,
        test_found.test_losses_of_power_in_commits_lose_no_commit,
    ),
    "connect once": Mutant(link_dialer.LinkDialer, "_run", connect_once),
    "do not follow epochs": Mutant(FrameProcessor, "_check_epoch", deaf_to_epochs),
    "accept an older manifest": Mutant(Membership, "adopt", adopt_any),
    "overwrite a newer manifest": Mutant(Membership, "adopt", overwrite_newer),
    "ask nobody for a manifest": Mutant(Membership, "request_manifest", ask_nobody),
    "send whole messages again": Mutant(wire_format, "REPEATS", 99),
    "end with half a key": Mutant(certificates, "_private", key_that_must_be_whole),
    "show the key in the status": Mutant(Reporter, "to_json", status_with_key),
    "wait for clients that have ended": Mutant(FrameProcessor, "_note_end", note_no_end),
    "follow any root": Mutant(
        FrameProcessor,
        "_check_epoch",
        every_root,
        test_liars.test_a_liar_cannot_make_itself_the_root,
    ),
    "follow all epochs": Mutant(
        EpochRateLimiter,
        "next_epoch",
        follow_all,
        partial(test_liars.test_a_liar_that_begins_epochs_is_followed_into_few_and_named, 1),
    ),
    "take NaN": Mutant(
        running_sums,
        "check_vectors",
        any_vectors,
        test_liars.test_a_liar_cannot_put_nan_into_a_model,
    ),
    "take a manifest of another authority": Mutant(
        certificates,
        "is_signed",
        any_signature,
        test_liars.test_a_liar_cannot_spread_a_forged_manifest,
    ),
}


class Finding(NamedTuple):
    """How a mutant was found."""

    seeds: int  # that were run; the last one found it
    failure: str


def find(mutant: Mutant, most: int = MOST_SEEDS) -> Finding | None:
    """Run seeds, or the test of the mutant, until one fails; None if none of them does."""
    with patch.object(mutant.owner, mutant.name, mutant.wrong):
        if mutant.test is not None:
            return _find_by_test(mutant.test)
        for seed in range(most):
            outcome = simulate(plan_of(seed))
            if outcome.failure:
                return Finding(seed + 1, outcome.failure)
    return None


def _find_by_test(test: Callable[[], None]) -> Finding | None:
    try:
        test()
    except Exception as error:  # of a peer, or of what the test asserts
        return Finding(0, f"by a test: {type(error).__name__}: {error}")
    return None


def main() -> int:
    missed = 0
    for name, mutant in MUTANTS.items():
        if sys.argv[1:] and sys.argv[1] not in name:
            continue
        finding = find(mutant)
        missed += finding is None
        result = "not found"
        if finding is not None:
            failure = " ".join(finding.failure.split())
            result = f"{finding.seeds} seeds: {failure[:100]}"
        print(f"{name}: {result}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
