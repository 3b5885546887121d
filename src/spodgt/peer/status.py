"""What people and programs see of a running peer: status.json, and its evaluations in the log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from spodgt.peer.audit import local_error
from spodgt.peer.journal import Journal
from spodgt.peer.manifest import RESETS
from spodgt.peer.node import Node
from spodgt.peer.options import Options
from spodgt.peer.store import StoreFailed
from spodgt.peer.transport import Traffic, Transport
from spodgt.peer.work import Work

SUSPECT = 1e-9  # a local audit above this means broken memory or a bug: stop rather than spread it


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
    silent: float | None  # seconds since something was heard
    distance: float | None = None  # between the neighbour's model and the own


@dataclass
class Status:
    """A peer at one time."""

    name: str
    k: int = 0
    epoch: int = 0
    version: int = 0
    incarnation: int = 0
    gradients: int = 0
    seconds: float = 0.0
    rounds_per_second: float = 0.0
    loss: float = math.nan
    accuracy: float = math.nan
    audit: float = 0.0
    waiting: bool = False
    neighbours: list[Neighbour] = field(default_factory=list)
    at: float = 0.0  # monotonic time of the last update
    evaluated: float = 0.0  # and of the last evaluation

    def update(self, node: Node, out: Mapping[str, Traffic], into: Mapping[str, Traffic]) -> None:
        """Read the node and the traffic on its links."""
        now, state = time.monotonic(), node.state
        if self.at:
            self.rounds_per_second = (state.k - self.k) / max(now - self.at, 1e-9)
        self.at, self.k, self.gradients = now, state.k, state.gradients
        self.version, self.epoch = divmod(state.epoch, RESETS)
        self.incarnation = node.incarnation.number

        def links(
            way: str, numbers: Mapping[str, int], traffic: Mapping[str, Traffic]
        ) -> Iterator[Neighbour]:
            for name, number in numbers.items():
                if t := traffic.get(name):
                    silent = now - t.heard if t.heard else None
                    distance = node.distance.get(name) if way == "from" else None
                    yield Neighbour(name, way, t.state, t.why, t.messages, t.bytes, number, silent, distance)

        sent = {name: link.number for name, link in state.out.items()}
        got = {name: link.number for name, link in state.into.items()}
        self.neighbours = [*links("to", sent, out), *links("from", got, into)]

    @property
    def consensus(self) -> float:
        """Root mean square distance to the neighbours' models."""
        known = [n.distance for n in self.neighbours if n.distance is not None]
        return math.sqrt(sum(d * d for d in known) / len(known)) if known else math.nan

    def to_dict(self) -> dict[str, object]:
        """JSON values; NaN becomes null."""
        body = asdict(self) | {"consensus": self.consensus, "time": time.time()}
        del body["at"], body["evaluated"]
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in body.items()}


class Reporter:
    """Keeps the status of one peer up to date, in its folder."""

    def __init__(
        self, folder: Path, node: Node, work: Work, transport: Transport, journal: Journal, options: Options
    ) -> None:
        self.path, self.node, self.work, self.transport = folder / "status.json", node, work, transport
        self.journal, self.options = journal, options
        self.status = Status(journal.name)
        self.begun = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self.status.at >= self.options.report_every

    def report(self) -> None:
        """Write the status; raises if the local audit is not zero to rounding."""
        now, status, node = time.monotonic(), self.status, self.node
        evaluate = now - status.evaluated >= self.options.evaluate_every
        if evaluate:
            scores = self.work.evaluate(node.state.method.x)
            status.loss, status.accuracy = float(scores.loss[0]), float(scores.accuracy[0])
            status.evaluated = now
        status.audit, status.seconds = local_error(node.state), now - self.begun
        sent = {name: stream.traffic for name, stream in self.transport.out.items()}
        status.update(node, sent, self.transport.into)
        node.measure = True
        body = status.to_dict()
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(body))
        temporary.replace(self.path)
        if evaluate:
            self.journal.append({"event": "status"} | {k: v for k, v in body.items() if k != "neighbours"})
        if status.audit > SUSPECT:
            raise StoreFailed(
                f"the local audit of {status.name} is {status.audit:.1e}, it must be zero to rounding; "
                "nothing more is sent. Check this host's memory, remove the state directory and start again."
            )

    def final(self) -> None:
        """The last report, with an evaluation."""
        self.status.at = self.status.evaluated = 0.0
        self.report()
