"""Reports of clients as the page of `spodgt peer watch` takes them: known keys, right types, bounded sizes.

A report comes from another host and may contain anything. An invalid one is refused as a whole, so that the
page never computes with it.
"""

from __future__ import annotations

import json
import math
from typing import Any

from spodgt.peer.host.text import printable

MOST_BYTES = 2**20
SECONDS = 5.0  # in which a client must have answered
_LARGEST = 2**63  # of a number
_TEXT = 300  # characters
_NEIGHBOURS = 4096
_WARNINGS = 100  # that are shown; a client in a large network may have one for each neighbour
_EVENTS = 200
# Fields of `process.status.Status` and `Neighbour` that the page may show; others are left out.
_PROGRESS = ("k", "epoch", "version", "incarnation", "gradients", "seconds", "rounds_per_second")
_COUNTS = (*_PROGRESS, "bad_gradients", "messages", "bytes", "number", "flags")
_SCORES = ("loss", "accuracy", "mean_loss", "mean_accuracy", "consensus", "audit")
_MEASURES = (*_SCORES, "days_left", "silent", "distance", "mass")
_TEXTS = ("name", "root", "why")
Json = dict[str, Any]


def parse_report(data: bytes) -> tuple[Json, list[Json]]:
    """Status and events of an answer to "Status"; ValueError says what is wrong with it."""
    body = _table(json.loads(data), "the report")
    return check_status(body.get("status")), check_events(body.get("events"))


def check_status(value: object) -> Json:
    """The known keys of a status; ValueError if one of them has another type, or `time` is missing."""
    body = _table(value, "status")
    status = _scalars(body)
    status["time"] = _number(body.get("time"), "time")
    if status["time"] is None:
        raise ValueError("time must be a number")
    status["waiting"] = body.get("waiting") is True
    status["has_ended"] = body.get("has_ended") is True
    warnings = _list(body.get("warnings", []), "warnings", 4 * _NEIGHBOURS)
    status["warnings"] = [_text(warning, "warnings") for warning in warnings[:_WARNINGS]]
    neighbours = _list(body.get("neighbours", []), "neighbours", _NEIGHBOURS)
    status["neighbours"] = [_neighbour(neighbour) for neighbour in neighbours]
    return status


def check_events(value: object) -> list[Json]:
    """The events of a report; ValueError if one has another form."""
    events = []
    for row in _list(value, "events", _EVENTS):
        event = _table(row, "event")
        at = _number(event.get("time"), "time of an event")
        if at is None:
            raise ValueError("time of an event must be a number")
        text = _text(event.get("text", ""), "text")
        kind = _text(event.get("event"), "event")
        subject = _text(event.get("subject", ""), "subject")
        events.append({"time": at, "event": kind, "text": text, "subject": subject})
    return events


def _neighbour(value: object) -> Json:
    body = _table(value, "neighbour")
    # a text here, a number in the status
    version = body.get("version", "")
    neighbour = _scalars({key: field for key, field in body.items() if key != "version"})
    neighbour["version"] = _text(version, "version")
    for key, allowed in (("way", ("to", "from")), ("state", ("waiting", "up", "down"))):
        if body.get(key) not in allowed:
            raise ValueError(f"{key} of a neighbour must be one of {', '.join(allowed)}")
        neighbour[key] = body[key]
    neighbour["name"] = _text(body.get("name"), "name")
    neighbour["has_ended"] = body.get("has_ended") is True
    neighbour.setdefault("why", "")
    neighbour.setdefault("silent", None)
    neighbour.setdefault("distance", None)
    return neighbour


def _scalars(body: Json) -> Json:
    """The counts, measures and texts that are there."""
    fields: Json = {}
    for key, value in body.items():
        if key in _COUNTS:
            number = _number(value, key)
            if number is not None:
                fields[key] = number
        elif key in _MEASURES:
            fields[key] = _number(value, key)
        elif key in _TEXTS:
            fields[key] = _text(value, key)
    return fields


def _number(value: object, key: str) -> float | int | None:
    """A number; None for null, NaN and infinity."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} must be a number, got a {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise ValueError(f"{key} must be below 2^63")
    return value


def _text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} must be a text, got a {type(value).__name__}")
    return printable(value[:_TEXT])


def _table(value: object, what: str) -> Json:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a table, got a {type(value).__name__}")
    return value


def _list(value: object, what: str, most: int) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{what} must be a list, got a {type(value).__name__}")
    if len(value) > most:
        raise ValueError(f"{what} must have at most {most} entries, got {len(value)}")
    return value
