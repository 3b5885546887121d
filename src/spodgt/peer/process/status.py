"""The status of a running peer, written to status.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from spodgt.peer.host.files import OWNER_ONLY
from spodgt.peer.host.text import json_values
from spodgt.peer.membership.manifest import RESETS
from spodgt.peer.options import Options
from spodgt.peer.process.journal import Journal
from spodgt.peer.process.operator_warnings import (
    SILENT_SECONDS,
    OperatorWarning,
    certificate_warnings,
    node_warnings,
    silence_warnings,
)
from spodgt.peer.protocol.audit import local_error
from spodgt.peer.protocol.client_state import State
from spodgt.peer.protocol.node import Node
from spodgt.peer.protocol.running_sums import InLink, OutLink
from spodgt.peer.storage.state_store import StoreFailed
from spodgt.peer.transport.connection import Traffic
from spodgt.peer.transport.links import Transport
from spodgt.tensors import norm

SUSPECT = 1e-9  # a local audit above this means broken memory or a bug: stop rather than spread it
FLAG_SECONDS = 3600.0  # after its last outlier a neighbour is not named any more
RUINED = 100.0  # times the first loss: the model is worse than that of no training


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
    silent: float | None  # seconds since the last frame; None also for a link that is not used
    distance: float | None = None  # between the neighbour's model and the own
    mass: float | None = None  # the norm of what its last message brought
    flags: int = 0  # messages under this manifest that were far above their median
    version: str = ""  # of its program
    has_ended: bool = False  # it has made all rounds of the manifest


@dataclass
class Status:
    """A peer at one time.

    Every number is also a Prometheus gauge, `spodgt_peer_` and the name of the field. The page of
    `spodgt peer watch` takes only fields that `monitoring.report_validation` lists.
    """

    name: str
    k: int = 0
    epoch: int = 0
    version: int = 0
    root: str = ""  # the root client, if the method has one
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


class ModelEvaluator(Protocol):
    """Scores the model of a peer."""

    def evaluate(self, state: State) -> list[tuple[float, float]]:
        """(loss, accuracy) of the model, and of its running mean if there is one."""
        ...


class Reporter:
    """Keeps the status of one peer up to date, in its folder.

    Args:
        folder: Of the client.
        node: The client.
        evaluator: Scores its model.
        transport: Its links.
        journal: Its log.
        options: Of the peer.
    """

    def __init__(
        self,
        folder: Path,
        node: Node,
        evaluator: ModelEvaluator,
        transport: Transport,
        journal: Journal,
        options: Options,
    ) -> None:
        self.path = folder / "status.json"
        self.node = node
        self.evaluator = evaluator
        self.transport = transport
        self.journal = journal
        self.options = options
        self.clock = journal.host.clock
        self.status = Status(journal.name)
        self.flags: dict[str, int] = {}  # outliers of each neighbour at the last report
        self.flagged_at = -math.inf  # monotonic time at which there were more
        self.initial_loss: float | None = None  # the first finite one
        self.initial_norm = math.nan  # of the model with this loss
        self.begun = self.clock.monotonic()
        self.reported = -math.inf  # monotonic time of the last report
        self.evaluated = -math.inf
        self._warned_subjects: set[str] = set()  # of the warnings in the last report

    @property
    def due(self) -> bool:
        """Whether it is time for the next report."""
        return self.clock.monotonic() - self.reported >= self.options.report_every

    def to_json(self) -> bytes:
        """The status and the latest events."""
        status = self.status.to_dict(self.clock.wall())
        return json.dumps({"status": status, "events": self.journal.recent_rows()}).encode()

    def report(self, *, last: bool = False) -> None:
        """Write the status.

        Args:
            last: Evaluate the model now.

        Raises:
            StoreFailed: The local audit is not zero to rounding.
        """
        now = self.clock.monotonic()
        evaluates = last or now - self.evaluated >= self.options.evaluate_every
        if evaluates:
            self._evaluate()
            self._flag_if_diverged()
            self.evaluated = now
        self._update_flags(now)
        if math.isfinite(self.reported) and not last:
            rounds = self.node.state.k - self.status.k
            self.status.rounds_per_second = rounds / max(now - self.reported, 1e-9)
        self._update_status(now)
        self._update_warnings()
        self.reported = now
        self._write(self.status.to_dict(self.clock.wall()), evaluates)
        if not self.status.audit <= SUSPECT:  # also for NaN
            raise StoreFailed(
                f"the local audit of {self.status.name} is {self.status.audit:.1e}, it must be zero to "
                "rounding; nothing more is sent. Check this host's memory, remove the state directory "
                "and start again."
            )

    def _update_status(self, now: float) -> None:
        status = self.status
        node = self.node
        state = node.state
        status.seconds = now - self.begun
        if state.k != status.k:  # it reads all of the state
            status.audit = local_error(state)
        status.k = state.k
        status.gradients = state.gradients
        status.incarnation = node.incarnation.number
        status.version, status.epoch = divmod(state.epoch, RESETS)
        status.root = node.topology.root
        status.has_ended = node.has_ended
        status.bad_gradients = node.method_step.bad_gradients
        status.neighbours = list(self._neighbours(now))
        distances = [n.distance for n in status.neighbours if n.distance is not None]
        status.consensus = math.nan
        if distances:
            mean_square = sum(distance * distance for distance in distances) / len(distances)
            status.consensus = math.sqrt(mean_square)

    def _update_warnings(self) -> None:
        """Update the warnings, and log those about a new subject."""
        warnings = list(self._warnings())
        for warning in warnings:
            if warning.subject not in self._warned_subjects:
                self.journal.event("warning", warning.text)
        self._warned_subjects = {warning.subject for warning in warnings}
        self.status.warnings = [warning.text for warning in warnings]

    def _warnings(self) -> Iterator[OperatorWarning]:
        had_finite_loss = self.initial_loss is not None and self.node.state.k > 1
        if had_finite_loss and not math.isfinite(self.status.loss):
            yield OperatorWarning("loss", "loss is not finite: the model has diverged")
        yield from node_warnings(self.node)
        limit = min(SILENT_SECONDS, self.options.drop_after or math.inf)
        yield from silence_warnings(self.node, self.silent_seconds(), limit)
        yield from certificate_warnings(self.status.name, self.status.days_left)
        if self.transport.listener.is_full:
            text = (
                f"all {self.transport.listener.max_connections} connections are in use: a neighbour that "
                "restarts cannot connect; limit new connections per address in the firewall"
            )
            yield OperatorWarning("connections", text)
        bad = self.status.bad_gradients
        if bad:
            text = f"gradients that were not finite, and not used: {bad}"
            yield OperatorWarning("gradients", text)

    def _evaluate(self) -> None:
        """Score the model, and its running mean if there is one."""
        status = self.status
        scores = self.evaluator.evaluate(self.node.state)
        status.loss, status.accuracy = scores[0]
        status.mean_loss = math.nan
        status.mean_accuracy = math.nan
        if len(scores) > 1:
            status.mean_loss, status.mean_accuracy = scores[1]

    def _update_flags(self, now: float) -> None:
        """Note when a neighbour was last flagged; flags end some time after the last one."""
        detectors = dict(self.node.outliers.detectors)
        flags = {name: detector.flags for name, detector in detectors.items()}
        if any(count > self.flags.get(name, 0) for name, count in flags.items()):
            self.flagged_at = now
        elif now - self.flagged_at >= FLAG_SECONDS:
            for detector in detectors.values():
                detector.flags = 0
            flags = dict.fromkeys(flags, 0)
        self.flags = flags

    def _flag_if_diverged(self) -> None:
        """Flag the neighbour that has ruined the model, if the loss is far above the first one."""
        loss = self.status.loss
        if self.initial_loss is None:
            if math.isfinite(loss):
                self.initial_loss = loss
                self.initial_norm = norm(self.node.state.method.x)
            return
        if loss - self.initial_loss <= RUINED * max(abs(self.initial_loss), 1e-9):
            return
        flagged = self.node.outliers.flag_model_outlier(self.initial_norm)
        if flagged is not None:
            name, sentence = flagged
            self.journal.event("suspicious", sentence, name)

    def _neighbours(self, now: float) -> Iterator[Neighbour]:
        """Both directions of every link, out-links first."""
        state = self.node.state
        role = self.node.role
        # copies: a manifest may change the links in the other thread
        out = dict(self.transport.out)
        into = dict(self.transport.in_links.traffic)
        for name, out_link in state.out.items():
            if name in out:
                is_used = name in role.used_out
                yield self._neighbour(name, "to", out_link, out[name].traffic, now, is_used)
        for name, in_link in state.into.items():
            if name in into:
                is_used = name in role.used_in
                neighbour = self._neighbour(name, "from", in_link, into[name], now, is_used)
                detector = self.node.outliers.detectors.get(name)
                if detector is not None:
                    neighbour.distance = detector.distance
                    neighbour.mass = detector.mass
                    neighbour.flags = detector.flags
                yield neighbour

    def _neighbour(
        self,
        name: str,
        way: str,
        link: OutLink | InLink,
        traffic: Traffic,
        now: float,
        is_used: bool,
    ) -> Neighbour:
        silent = None
        if traffic.last_received and is_used:
            silent = now - traffic.last_received
        return Neighbour(
            name,
            way,
            traffic.state,
            traffic.why,
            traffic.messages,
            traffic.bytes,
            link.number,
            silent,
            version=traffic.version,
            has_ended=name in self.node.state.ended,
        )

    def silent_seconds(self) -> dict[str, float]:
        """Seconds since the last sign of each neighbour on any link, or since the start.

        Neighbours whose links the method does not use, and those that have made all their rounds, are left
        out.
        """
        now = self.clock.monotonic()
        last_received = dict.fromkeys(sorted(self.transport.in_links.traffic), self.begun)
        for name, traffic in self.transport.traffic():
            before = last_received.get(name, self.begun)
            last_received[name] = max(before, traffic.last_sign(now))
        role = self.node.role
        expected = (role.used_out | role.used_in) - self.node.state.ended
        return {name: now - time for name, time in last_received.items() if name in expected}

    def _write(self, body: dict[str, object], evaluated: bool) -> None:
        text = json.dumps(body).encode()
        try:
            self.journal.host.files.replace(self.path, text, mode=OWNER_ONLY)
        except OSError as error:  # training continues without a status file
            self.journal.event("status", f"{self.path} cannot be written: {error.strerror}")
        if evaluated:
            del body["neighbours"]
            self.journal.append({"event": "status", **body})
