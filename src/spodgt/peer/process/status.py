"""What people and programs see of a running peer: status.json, and its log of one JSON object per line."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from spodgt.peer.host.files import OWNER_ONLY
from spodgt.peer.host.interfaces import Host
from spodgt.peer.host.text import json_values, printable
from spodgt.peer.membership.manifest import RESETS
from spodgt.peer.options import Options
from spodgt.peer.protocol.audit import local_error
from spodgt.peer.protocol.client_state import State
from spodgt.peer.protocol.epoch_limit import STEP
from spodgt.peer.protocol.node import Node
from spodgt.peer.protocol.outlier_detection import norm
from spodgt.peer.storage.state_store import StoreFailed
from spodgt.peer.transport.grpc_wire import system_host
from spodgt.peer.transport.links import Transport

SUSPECT = 1e-9  # a local audit above this means broken memory or a bug: stop rather than spread it
_QUIET = 5.0  # seconds between two entries of the same kind and neighbour
FLAG_SECONDS = 3600.0  # after its last large message a neighbour is not named any more
SILENT_SECONDS = 30.0  # a neighbour not heard for so long is named in the status
_TEXT = 300  # characters of an event
RUINED = 100.0  # times the first loss: the model is worse than that of no training
_LOG_BYTES = 8_000_000  # then the log is moved to log.jsonl.1, and the one before it goes


class Journal:
    """The log in a file, counts of events by kind, and the most recent events."""

    def __init__(self, path: Path, name: str, host: Host | None = None) -> None:
        self.path = path
        self.name = name
        self.host = host or system_host()
        self.told: dict[tuple[str, str], float] = {}
        self.recent: deque[tuple[float, str, str]] = deque(maxlen=4)
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.logger = logging.getLogger(f"spodgt.peer.{name}")

    def event(self, kind: str, text: str) -> None:
        """Count an event, and log it unless one of the same kind and neighbour was logged just now."""
        now = self.host.clock.monotonic()
        text = printable(text[:_TEXT])
        key = kind, text.partition(":")[0]
        with self.lock:
            self.counts[kind] += 1
            if now - self.told.get(key, -math.inf) < _QUIET:
                return
            if len(self.told) > 1000:
                self.told.clear()
            self.told[key] = now
            self.recent.append((self.host.clock.wall(), kind, text))
        self.append({"event": kind, "text": text})
        self.logger.info("%s: %s", kind, text)

    def append(self, row: Mapping[str, object]) -> None:
        """Write one line; a log that cannot be written, as on a full disk, ends nothing."""
        body = {"time": self.host.clock.wall(), "client": self.name, **row}
        line = json.dumps(json_values(body)) + "\n"
        files = self.host.files
        try:
            with self.lock:
                with contextlib.suppress(FileNotFoundError):
                    if files.status(self.path).size > _LOG_BYTES:
                        files.rename(self.path, self.path.with_name(self.path.name + ".1"))
                files.append(self.path, line.encode())
        except OSError:
            self.logger.warning("log %s cannot be written", self.path)


@dataclass
class Neighbour:
    """One directed link."""

    name: str
    way: str  # "to" or "from"
    state: str
    why: str
    messages: int
    bytes: int
    number: int
    silent: float | None  # seconds since something was heard; None also for a link that is not used
    distance: float | None  # between the neighbour's model and the own
    mass: float | None = None  # the norm of what its last message brought
    flags: int = 0  # messages under this manifest that were far above their median
    version: str = ""  # of its program
    has_ended: bool = False  # it has made all rounds of the manifest


@dataclass
class Status:
    """A peer at one time."""

    name: str
    k: int = 0
    epoch: int = 0
    version: int = 0
    root: str = ""  # who leads, if the method has a root
    incarnation: int = 0
    gradients: int = 0
    seconds: float = 0.0
    rounds_per_second: float = 0.0
    loss: float = math.nan
    accuracy: float = math.nan
    mean_loss: float = math.nan  # of the running mean of the models, where the method keeps one
    mean_accuracy: float = math.nan
    consensus: float = math.nan  # root mean square distance to the neighbours' models
    audit: float = 0.0
    waiting: bool = False
    has_ended: bool = False  # all rounds of the manifest were made
    days_left: float = math.nan  # until the certificate ends
    bad_gradients: int = 0  # that were not finite, in this incarnation
    warnings: list[str] = field(default_factory=list)  # what an operator must know, worst first
    neighbours: list[Neighbour] = field(default_factory=list)

    def to_dict(self, time: float) -> dict[str, object]:
        """JSON values, with the `time` of the wall clock; NaN and infinity become null."""
        body = json_values(asdict(self) | {"time": time})
        assert isinstance(body, dict)
        return body


class Evaluates(Protocol):
    """Scores the model of a peer."""

    def evaluate(self, state: State) -> list[tuple[float, float]]:
        """(loss, accuracy) of the model, and of its running mean where there is one."""
        ...


class Reporter:
    """Keeps the status of one peer up to date, in its folder."""

    def __init__(
        self,
        folder: Path,
        node: Node,
        work: Evaluates,
        transport: Transport,
        journal: Journal,
        options: Options,
    ) -> None:
        self.path = folder / "status.json"
        self.node = node
        self.work = work
        self.transport = transport
        self.journal = journal
        self.options = options
        self.clock = journal.host.clock
        self.status = Status(journal.name)
        self.flags: dict[str, int] = {}  # large messages of each neighbour at the last look
        self.flagged_at = -math.inf  # monotonic time at which there were more
        self.first: tuple[float, float] | None = None  # the first loss, and the norm of its model
        self.begun = self.clock.monotonic()
        self.reported = -math.inf  # when last
        self.evaluated = -math.inf

    @property
    def due(self) -> bool:
        return self.clock.monotonic() - self.reported >= self.options.report_every

    def report(self, *, last: bool = False) -> None:
        """Write the status; the last one is evaluated. Raises if the local audit is not zero to rounding."""
        now = self.clock.monotonic()
        status = self.status
        state = self.node.state
        evaluate = last or now - self.evaluated >= self.options.evaluate_every
        if evaluate:
            self._evaluate()
            self._look_for_ruin()
            self.evaluated = now
        if math.isfinite(self.reported) and not last:
            status.rounds_per_second = (state.k - status.k) / max(now - self.reported, 1e-9)
        self._update_flags(now)
        self.reported, status.seconds = now, now - self.begun
        status.k, status.gradients = state.k, state.gradients
        status.incarnation = self.node.incarnation.number
        status.version, status.epoch = divmod(state.epoch, RESETS)
        status.root = self.node.seats.root
        status.has_ended = self.node.has_ended
        status.audit = local_error(state)
        status.neighbours = list(self._neighbours(now))
        known = [n.distance for n in status.neighbours if n.distance is not None]
        status.consensus = math.sqrt(sum(d * d for d in known) / len(known)) if known else math.nan
        status.bad_gradients = self.node.bad_gradients
        before, status.warnings = status.warnings, list(self._warnings())
        for warning in status.warnings:
            if warning.split()[0] not in {known.split()[0] for known in before}:
                self.journal.event("warning", warning)
        self._write(status.to_dict(self.clock.wall()), evaluate)
        if not status.audit <= SUSPECT:  # so it is for NaN, too
            raise StoreFailed(
                f"the local audit of {status.name} is {status.audit:.1e}, it must be zero to rounding; "
                "nothing more is sent. Check this host's memory, remove the state directory and start again."
            )

    def _evaluate(self) -> None:
        """Score the model, and its running mean beside it where there is one."""
        status = self.status
        rows = self.work.evaluate(self.node.state)
        rows.append((math.nan, math.nan))  # where there is no mean
        (status.loss, status.accuracy), (status.mean_loss, status.mean_accuracy), *_ = rows

    def _update_flags(self, now: float) -> None:
        """Note when a neighbour was last flagged; flags end some time after the last one."""
        norms = dict(self.node.norms)
        flags = {name: each.flags for name, each in norms.items()}
        if any(count > self.flags.get(name, 0) for name, count in flags.items()):
            self.flagged_at = now
        elif now - self.flagged_at >= FLAG_SECONDS:
            for each in norms.values():
                each.flags = 0
            flags = dict.fromkeys(flags, 0)
        self.flags = flags

    def _look_for_ruin(self) -> None:
        """Find the neighbour that has ruined the model, slowly or at once, if the loss says that one has."""
        loss = self.status.loss
        if self.first is None:
            if math.isfinite(loss):
                self.first = (loss, norm(self.node.state.method.x))
            return
        first_loss, length = self.first
        if not loss - first_loss <= RUINED * max(abs(first_loss), 1e-9):
            self.node.name_who_ruined(length)

    def _neighbours(self, now: float) -> Iterator[Neighbour]:
        # copies: a manifest may change the links in the other thread
        state, out, into = self.node.state, dict(self.transport.out), dict(self.transport.into)
        ends = [("to", n, link.number, out[n].traffic) for n, link in state.out.items() if n in out]
        ends += [("from", n, link.number, into[n]) for n, link in state.into.items() if n in into]
        part = self.node.part
        for way, name, number, t in ends:
            used = name in (
                part.sends if way == "to" else part.hears
            )  # another one has nothing to say
            silent = now - t.heard if t.heard and used else None
            counts = t.messages, t.bytes, number, silent
            norms = self.node.norms.get(name) if way == "from" else None
            distance, mass, flags = (
                (norms.distance, norms.mass, norms.flags) if norms else (None, None, 0)
            )
            norm_columns = (distance, mass, flags)
            has_ended = name in state.ended
            yield Neighbour(name, way, t.state, t.why, *counts, *norm_columns, t.version, has_ended)

    def silence(self) -> dict[str, float]:
        """Seconds since each neighbour was heard on any link, or since the start.

        Those are left out whose links the method does not use, and those that have made all their rounds.
        """
        now = self.clock.monotonic()
        heard = dict.fromkeys(sorted(self.transport.into), self.begun)
        for name, traffic in self.transport.traffic():
            heard[name] = max(heard.get(name, self.begun), traffic.heard)
        asked = (self.node.part.sends | self.node.part.hears) - self.node.state.ended
        return {name: now - at for name, at in heard.items() if name in asked}

    def _warnings(self) -> Iterator[str]:
        state, status = self.node.state, self.status
        if state.k > 1 and self.first is not None and not math.isfinite(status.loss):
            yield "loss is not finite: the model has diverged"
        for name, norms in sorted(self.node.norms.items()):
            if norms.flags:
                yield f"{name} sent {norms.flags} large messages, the last {norms.far:.1g} times the median"
        for name, count in self.node.epochs.ignored.most_common():
            cure = f"if {name} begins them, remove it: spodgt peer remove {name}"
            yield f"{name} is in epochs that are not followed, {count} so far: {cure}"
        for name, ahead in sorted(self.node.epochs.ahead.items()):
            if ahead > STEP:
                cure = "any spodgt peer set or remove makes a manifest version and one common epoch"
                yield f"{name} is {ahead} epochs ahead, {STEP} of them are followed at a time: {cure}"
        for name, seconds in self.silence().items():
            if seconds >= min(SILENT_SECONDS, self.options.drop_after or math.inf):
                ends = state.out.get(name), state.into.get(name)
                takes_part = any(end is not None and end.number for end in ends)
                if name == status.root:
                    what = "it is the root: no model moves until it returns or the manifest names another"
                    what += f": spodgt peer set --root {status.name}, or spodgt peer remove {name}"
                elif status.root and self.node.part.into.get(name):
                    what = "models come through it: none comes until it returns or is removed"
                elif takes_part:
                    what = "models are biased until it returns or is removed"
                else:
                    what = "this epoch goes on without it until it returns"
                yield f"{name} silent for {seconds:.0f} s: {what}"
        if self.transport.is_full:
            held = f"all {self.transport.most_connections} connections are in use"
            yield f"{held}: a neighbour that restarts cannot connect; limit them in the firewall"
        if status.bad_gradients:
            yield f"gradients that were not finite, and not used: {status.bad_gradients}"

    def _write(self, body: dict[str, object], evaluated: bool) -> None:
        text = json.dumps(body).encode()
        try:
            self.journal.host.files.replace(self.path, text, mode=OWNER_ONLY)
        except OSError as error:  # what is only shown must not end what is done
            self.journal.event("status", f"{self.path} cannot be written: {error.strerror}")
        if evaluated:
            del body["neighbours"]
            self.journal.append({"event": "status", **body})
