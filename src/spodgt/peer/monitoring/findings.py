"""Findings on the page of `spodgt peer watch`: what is wrong in a run, and which client is the cause.

A client is judged by its own report and by those of its neighbours. Reports are tables as in status.json,
after `report_validation`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spodgt.peer.membership.manifest import Manifest
from spodgt.peer.monitoring.report_validation import Json
from spodgt.peer.process.operator_warnings import SILENT_SECONDS, WARN_DAYS

STALE_SECONDS = 10.0  # after which a report is too old to be used, and its client counts as silent
EXACT = 1e-12  # a local audit above this is not zero to rounding

Report = Mapping[str, Any]  # of status.json
Ages = Mapping[str, float | None]  # seconds since the last report, by client


@dataclass(frozen=True)
class Finding:
    """Something that an operator should know."""

    level: str  # bad or warn
    client: str  # that it is about
    kind: str
    text: str


class FirstFlag(NamedTuple):
    """When a client was first called suspicious, and why."""

    at: float
    text: str


def first_flags(events: Iterable[Json]) -> dict[str, FirstFlag]:
    """The first time that each client was called suspicious, by client."""
    flags: dict[str, FirstFlag] = {}
    for event in events:
        name = event.get("subject", "")
        if event.get("event") != "suspicious" or not name:
            continue
        if name not in flags or event["time"] < flags[name].at:
            flags[name] = FirstFlag(event["time"], event["text"].removeprefix(f"{name}: "))
    return flags


def is_stale(age: float | None) -> bool:
    """Whether a report is too old to be used."""
    return (age or 0.0) > STALE_SECONDS


def find_problems(
    reports: Mapping[str, Report],
    ages: Ages,
    manifest: Manifest | None,
    first: Mapping[str, FirstFlag],
) -> list[Finding]:
    """All findings, bad ones first.

    Args:
        reports: The last report of each client.
        ages: Of these reports.
        manifest: In force; None if it is not known.
        first: When clients were first called suspicious.
    """
    fresh = {name: report for name, report in reports.items() if not is_stale(ages[name])}
    if manifest is not None:
        newest = manifest.version
        members = set(manifest.linked)
    else:
        newest = max((report.get("version", 0) for report in fresh.values()), default=0)
        members = set(reports)
    findings: list[Finding] = []
    for name, report in fresh.items():
        findings += _own_findings(name, report, newest)
    findings += _silence_findings(reports, ages, fresh, members - ended_clients(reports, newest))
    findings += _outlier_findings(fresh, first, members)
    return sorted(findings, key=lambda finding: (finding.level != "bad", finding.client))


def _own_findings(name: str, report: Report, newest_version: int) -> Iterator[Finding]:
    """What the report of a client shows about the client itself."""
    audit = report.get("audit")
    if audit is None or not audit <= EXACT:
        text = f"{name} has lost mass: its local audit is {_number(audit)}, not zero to rounding"
        yield Finding("bad", name, "audit", text)
    if report.get("loss") is None and report.get("k"):
        yield Finding("bad", name, "diverged", f"{name} has no finite loss: its model diverged")
    days_left = report.get("days_left")
    if days_left is not None and days_left < WARN_DAYS:
        end = f"ends in {days_left:.1f} days" if days_left > 0 else "has expired"
        text = f"{name}'s certificate {end}: spodgt peer renew {name}"
        yield Finding("bad" if days_left < 1 else "warn", name, "certificate", text)
    version = report.get("version", 0)
    if version < newest_version:
        text = f"{name} follows version {version} of the manifest, others {newest_version}"
        yield Finding("warn", name, "version", text)
    bad_gradients = report.get("bad_gradients")
    if bad_gradients:
        text = f"{name} computed {bad_gradients} gradients that are not finite; they were not used"
        yield Finding("warn", name, "gradients", text)
    if report.get("waiting"):
        text = f"{name} waits: it has received no message for too many rounds"
        yield Finding("warn", name, "waiting", text)


def ended_clients(reports: Mapping[str, Report], newest_version: int) -> set[str]:
    """Clients that have made all rounds of the newest manifest: their processes may have ended.

    A client is one of them by its own last report, or by those of most of its neighbours.
    """
    votes: Counter[str] = Counter()
    ended = set()
    for name, report in reports.items():
        if report.get("version", 0) < newest_version:
            continue
        if report.get("has_ended"):
            ended.add(name)
        for neighbour in report.get("neighbours", []):
            votes[neighbour["name"]] += 1 if neighbour.get("has_ended") else -1
    return ended | {name for name, surplus in votes.items() if surplus > 0}


@dataclass
class _Reception:
    """What the receivers of a client report."""

    silent: dict[str, float] = field(default_factory=dict)  # seconds without a message, by receiver
    receiving: int = 0  # number of receivers with messages


def _receptions(fresh: Mapping[str, Report]) -> dict[str, _Reception]:
    """Reception by sender."""
    receptions: dict[str, _Reception] = {}
    for name, report in fresh.items():
        for link in _in_links(report):
            reception = receptions.setdefault(link["name"], _Reception())
            silent = link["silent"]
            is_silent = silent is None or silent > SILENT_SECONDS
            if is_silent and link["state"] != "up":
                never = report.get("seconds", 0.0)
                reception.silent[name] = never if silent is None else silent
            else:
                reception.receiving += 1
    return receptions


def _silence_findings(
    reports: Mapping[str, Report], ages: Ages, fresh: Mapping[str, Report], members: set[str]
) -> Iterator[Finding]:
    """Clients that do not report, or of which most receivers get no messages."""
    receptions = _receptions(fresh)
    harm = "the others' models are biased until it returns or is removed"
    for name in sorted({*receptions, *reports} & members):
        reception = receptions.get(name, _Reception())
        receivers = ", ".join(reception.silent)
        if name in reports and name not in fresh:
            seen = f"; {receivers} receive nothing from it" if receivers else ""
            text = f"{name} is silent: no report for {ages.get(name) or 0:.0f} s{seen}; {harm}"
            yield Finding("bad", name, "silent", text)
        elif len(reception.silent) > reception.receiving:
            longest = max(reception.silent.values())
            text = f"{name} is silent: {receivers} received nothing for {longest:.0f} s; {harm}"
            yield Finding("bad", name, "silent", text)
        else:
            for receiver, seconds in reception.silent.items():
                link = f"link {name} → {receiver} is down for {seconds:.0f} s"
                yield Finding("warn", name, "link", f"{link}; other links of {name} work")


def _outlier_findings(
    fresh: Mapping[str, Report], first: Mapping[str, FirstFlag], members: set[str]
) -> Iterator[Finding]:
    """Clients whose messages are outliers for most of their receivers.

    Models mix, so the cause is the client that was flagged first. One report alone may be a lie: it is only a
    warning if other receivers do not agree, and it is never enough to advise a quarantine.
    """
    flagged_by, receivers = _flags(fresh, members)
    confirmed = []
    for name, reporters in flagged_by.items():
        if 2 * len(reporters) > receivers[name]:
            confirmed.append(name)
        else:
            text = (
                f"{name} sends huge numbers according to {', '.join(reporters)}; its other "
                "receivers do not agree: look at both"
            )
            yield Finding("warn", name, "accused", text)
    if not confirmed:
        return
    never = FirstFlag(math.inf, "")
    cause, *infected = sorted(confirmed, key=lambda name: first.get(name, never).at)
    yield _quarantine_advice(cause, flagged_by[cause], first.get(cause))
    for name in infected:
        reporters = flagged_by[name]
        text = f"{name} sends large numbers since {cause} did, according to {', '.join(reporters)}"
        yield Finding("warn", name, "infected", text)


def _flags(
    fresh: Mapping[str, Report], members: set[str]
) -> tuple[dict[str, list[str]], Counter[str]]:
    """By sender: the receivers that flag it, for members alone, and the number of all receivers."""
    flagged_by: dict[str, list[str]] = {}
    receivers: Counter[str] = Counter()
    for name, report in fresh.items():
        flags = {link["name"]: bool(link.get("flags")) for link in _in_links(report)}
        receivers.update(flags.keys())
        for sender, is_flagged in flags.items():
            if is_flagged and sender in members:
                flagged_by.setdefault(sender, []).append(name)
    return flagged_by, receivers


def _quarantine_advice(name: str, reporters: list[str], first: FirstFlag | None) -> Finding:
    reason = f" ({first.text})" if first is not None else ""
    advice = f"spodgt peer quarantine {name}"
    if len(reporters) == 1:
        advice = f"look at both, it has no other receiver; if it is so: {advice}"
    text = f"{name} sends huge numbers according to {', '.join(reporters)}{reason}: {advice}"
    return Finding("bad", name, "huge", text)


def link_states(reports: Mapping[str, Report], ages: Ages, manifest: Manifest | None) -> list[Json]:
    """Every directed link, from the reports of its two ends."""
    ends: dict[tuple[str, str], list[Json]] = {}
    if manifest is not None:
        ends = {(link.sender, link.receiver): [] for link in manifest.links}
    for name, report in reports.items():
        if is_stale(ages[name]):
            continue
        for end in report.get("neighbours", []):
            pair = (name, end["name"]) if end["way"] == "to" else (end["name"], name)
            if manifest is None or pair in ends:
                ends.setdefault(pair, []).append(end)
    return [_link_state(*pair, reported) for pair, reported in ends.items()]


def _link_state(sender: str, receiver: str, ends: list[Json]) -> Json:
    states = {end["state"] for end in ends}
    if not states:
        state = "unknown"
    elif states == {"up"}:
        state = "up"
    else:
        state = "down" if "down" in states else "waiting"
    distance = None
    for end in ends:
        if end["way"] == "from":
            distance = end["distance"]
            break
    reasons = dict.fromkeys(end["why"] for end in ends if end["why"])
    return {
        "sender": sender,
        "receiver": receiver,
        "state": state,
        "why": "; ".join(reasons),
        "distance": distance,
    }


def _in_links(report: Report) -> list[Json]:
    return [link for link in report.get("neighbours", []) if link["way"] == "from"]


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.3g}"
