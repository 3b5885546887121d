"""Conditions of a running peer that an operator must know of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spodgt.peer.protocol.node import Node

WARN_DAYS = 7.0  # before a certificate ends
SILENT_SECONDS = 30.0  # after which a neighbour without a message is called silent


class OperatorWarning(NamedTuple):
    """A condition and what to do about it."""

    subject: str  # the neighbour, or another name of the condition; it is logged once per subject
    text: str


def node_warnings(node: Node) -> Iterator[OperatorWarning]:
    """Warnings about outliers and epochs."""
    for name, detector in sorted(node.outliers.detectors.items()):
        if detector.flags:
            text = (
                f"{name} sent {detector.flags} large messages, the last {detector.last_ratio:.1g} times "
                "the median"
            )
            yield OperatorWarning(name, text)
    for name, count in node.epoch_limiter.ignored.most_common():
        text = (
            f"{name} is in epochs that are not followed, {count} so far: if {name} begins them, "
            f"remove it: spodgt peer remove {name}; if not, any spodgt peer set makes a common epoch"
        )
        yield OperatorWarning(name, text)


def certificate_warnings(name: str, days_left: float) -> Iterator[OperatorWarning]:
    """A warning if the certificate of client `name` ends soon."""
    if days_left < WARN_DAYS:
        end = f"ends in {days_left:.1f} days"
        if days_left <= 0:
            end = "has ended: no link can connect again"
        fix = f"renew it with: spodgt peer renew {name}"
        yield OperatorWarning("certificate", f"the certificate {end}; {fix}")


def silence_warnings(
    node: Node, silent_seconds: Mapping[str, float], limit: float
) -> Iterator[OperatorWarning]:
    """Warnings about neighbours that are silent for at least `limit` seconds."""
    for name, seconds in silent_seconds.items():
        if seconds >= limit:
            consequence = _consequence_of_silence(node, name)
            yield OperatorWarning(name, f"{name} silent for {seconds:.0f} s: {consequence}")


def _consequence_of_silence(node: Node, name: str) -> str:
    root = node.topology.root
    if name == root:
        return (
            "it is the root: no model moves until it returns or the manifest names another: "
            f"spodgt peer set --root {node.topology.name}, or spodgt peer remove {name}"
        )
    if root and node.role.into.get(name):
        return "models come through it: none comes until it returns or is removed"
    ends = (node.state.out.get(name), node.state.into.get(name))
    if any(end is not None and end.number for end in ends):
        return "models are biased until it returns or is removed"
    return "this epoch goes on without it until it returns"
