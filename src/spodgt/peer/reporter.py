"""Reports of a running peer: evaluates its model, audits its state, writes status.json and the log."""

from __future__ import annotations

import time
from pathlib import Path

from spodgt.peer.audit import local_error
from spodgt.peer.journal import Journal
from spodgt.peer.node import Node
from spodgt.peer.options import Options
from spodgt.peer.status import Status
from spodgt.peer.store import StoreFailed
from spodgt.peer.transport import Transport
from spodgt.peer.work import Work

SUSPECT = 1e-9  # a local audit above this means broken memory or a bug: stop rather than spread it


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
        return time.monotonic() - self.status.at >= self.options.report_seconds

    def report(self) -> None:
        """Write the status; raises if the local audit is not zero to rounding."""
        now, status, node = time.monotonic(), self.status, self.node
        evaluate = now - status.evaluated >= self.options.evaluate_seconds
        if evaluate:
            scores = self.work.evaluate(node.state.method.x)
            status.loss, status.accuracy = float(scores.loss[0]), float(scores.accuracy[0])
            status.evaluated = now
        status.audit, status.seconds = local_error(node.state), now - self.begun
        sent = {name: stream.traffic for name, stream in self.transport.out.items()}
        status.update(node, sent, self.transport.into)
        node.measure = True
        body = status.write(self.path)
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
