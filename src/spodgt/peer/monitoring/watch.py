"""`spodgt peer watch`: many peers on one local web page, from their folders or over mutual TLS.

    sources ──poll──▶ sightings ──judge──▶ view (JSON) ──▶ page/watch.html in a browser

Nothing is written and nothing leaves this host but requests for a peer's status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from spodgt.errors import Failed, InvalidInput
from spodgt.peer.host.text import json_values
from spodgt.peer.membership.certificates import Identity, certificate_name, seconds_left
from spodgt.peer.membership.manifest import Manifest, SignedManifest
from spodgt.peer.membership.run_folders import load, observer_identity
from spodgt.peer.monitoring.report_validation import (
    MOST_BYTES,
    SECONDS,
    Json,
    check_events,
    check_status,
    parse_report,
)
from spodgt.peer.process.membership import WARN_DAYS
from spodgt.peer.transport.connection import fetch

SILENT_SECONDS = 10.0  # without a report, or without a message as its neighbours see it
EXACT = 1e-12
_TAIL = 2**16  # bytes of a log that are read
_EVENTS = 40
_TEXT = 300  # characters of a reason
_MANIFEST_BYTES = 2**24
_RENEW_SECONDS = 3600.0  # before the certificate of the page ends
_HISTORY = 300
_PAGE = Path(__file__).with_name("page") / "watch.html"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
Row = Mapping[str, Any]  # of status.json


@dataclass
class WatchedClient:
    """What is known of one client."""

    name: str
    folder: Path | None  # None: it is asked over the network
    address: str = ""
    status: Json = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)
    why: str = "has not reported yet"
    changed: float = 0.0  # when its status last was another, on this host's clock
    history: deque[tuple[float, float | None, float | None]] = field(
        default_factory=lambda: deque(maxlen=_HISTORY)
    )

    def see(self, status: Json, events: list[Json], at: float) -> None:
        """Take a report that was written at `at`."""
        if status.get("time") != self.status.get("time"):
            self.status, self.changed = status, at
            point = (status["time"], status.get("loss"), status.get("accuracy"))
            if not self.history or self.history[-1][1:] != point[1:]:
                self.history.append(point)
        self.events, self.why = events, ""

    @property
    def age(self) -> float | None:
        """Seconds since its last report."""
        return max(0.0, time.time() - self.changed) if self.changed else None


class WatchedRun:
    """The clients that are watched, and what was last seen of each."""

    def __init__(self, places: list[str], asker: Path | None = None) -> None:
        """Find the clients.

        Args:
            places: folders of runs or of clients, and addresses host:port of running clients.
            asker: a client's or observer's folder, whose certificate is shown to clients that are asked; by
                default one is made with the key of the first run's folder.
        """
        self.clients: dict[str, WatchedClient] = {}
        self.manifest: Manifest | None = None
        self.identity: Identity | None = None
        self.first: dict[str, FirstFlag] = {}
        self.lock = threading.Lock()
        addresses = [place for place in places if not Path(place).is_dir()]
        self.folders = [Path(place) for place in places if place not in addresses]
        run = next((folder for folder in self.folders if (folder / "ca.key").exists()), None)
        self.home = asker or run  # whose certificate is shown
        for folder in self.folders:
            self._add_folder(folder)
        remote = [seen.name for seen in self.clients.values() if seen.folder is None]
        if addresses or remote:
            if self.home is None:
                fix = (
                    "give --identity with the folder of a client, or of: spodgt peer issue observer"
                )
                raise InvalidInput(
                    f"{(addresses or remote)[0]} must be asked over the network; {fix}."
                )
            self.identity = observer_identity(self.home)
            self.manifest = self.manifest or load(self.home)
        for address in addresses:
            self._add_address(address)
        if not self.clients:
            raise InvalidInput(
                f"no client was found in {', '.join(places)}; give the folder of a run."
            )
        members = self.manifest.names if self.manifest else []
        self.follows_all = run is not None or set(members) <= set(
            self.clients
        )  # later members, too

    def _add_folder(self, folder: Path) -> None:
        """Take what is new in the folder of a run or of a client: a manifest, or a client that reports."""
        inside = sorted(path.parent for path in folder.glob("*/cert.pem"))
        for home in [folder] if (folder / "cert.pem").exists() else inside:
            self._take_manifest(load(home))
            name = certificate_name(home)
            known = self.clients.get(name)
            if (known is None or known.folder is None) and (home / "status.json").exists():
                self.clients[name] = WatchedClient(name, home)
        if (folder / "ca.key").exists():  # a run's folder: its other clients are elsewhere
            self._take_manifest(load(folder))
            self._add_members()
        self._drop_strangers()

    def _take_manifest(self, manifest: Manifest) -> None:
        """Follow a manifest of which the signature was checked, if it is later than the one followed."""
        if self.manifest is None or manifest.version > self.manifest.version:
            self.manifest = manifest

    def _add_members(self) -> None:
        """Watch every member of the manifest, at its present address."""
        for client in self.manifest.clients if self.manifest else ():
            seen = self.clients.setdefault(
                client.name, WatchedClient(client.name, None, client.address)
            )
            seen.address = client.address

    def _drop_strangers(self) -> None:
        """Watch no client that the manifest has not, or has no more."""
        names = self.manifest.names if self.manifest else []
        self.clients = {name: seen for name, seen in self.clients.items() if name in names}

    def _add_address(self, address: str) -> None:
        assert self.manifest is not None
        found = [client for client in self.manifest.clients if client.address == address]
        if not found:
            known = ", ".join(client.address for client in self.manifest.clients if client.address)
            raise InvalidInput(
                f"{address!r} is no folder and no address of the manifest; they are {known}."
            )
        self.clients.setdefault(found[0].name, WatchedClient(found[0].name, None, address))

    # --- looking ---------------------------------------------------------------------------------
    def poll(self) -> None:
        """Follow the manifest, read all folders and ask all others, once."""
        with self.lock:
            self._follow_manifest()
        for seen in list(self.clients.values()):
            if seen.folder is not None:
                with self.lock:
                    _read(seen)
        remote = [seen for seen in self.clients.values() if seen.folder is None and seen.address]
        own = self._asker() if remote else None
        if own is not None:
            asyncio.run(self._ask_all(remote, own))
        with self.lock:
            self._remember()

    def _follow_manifest(self) -> None:
        """Watch who is a member now: clients join, leave and move while the page is open."""
        for folder in self.folders:
            with contextlib.suppress(
                InvalidInput
            ):  # a file that is being written is read at the next look
                self._add_folder(folder)
        if self.follows_all:
            self._add_members()
        self._drop_strangers()

    def _asker(self) -> Identity | None:
        """The certificate to show; made anew in time if the key of the run is there."""
        if self.home is None:
            return None
        if self.identity is None or seconds_left(self.identity.certificate) < _RENEW_SECONDS:
            self.identity = observer_identity(self.home)
        return self.identity

    async def _ask_all(self, remote: list[WatchedClient], own: Identity) -> None:
        await asyncio.gather(*(self._ask(seen, own) for seen in remote))

    async def _ask(self, seen: WatchedClient, own: Identity) -> None:
        """Ask one client for its report and, if it follows a later manifest, for that."""
        try:
            asked = fetch("Status", own, seen.address, seen.name, MOST_BYTES)
            status, events = parse_report(await asyncio.wait_for(asked, SECONDS))
            with self.lock:
                seen.see(status, events, time.time())
            if self.manifest is not None and status.get("version", 0) > self.manifest.version:
                file = await fetch("Manifest", own, seen.address, seen.name, _MANIFEST_BYTES)
                newer = SignedManifest.verify(file, own.authority).manifest
                with self.lock:
                    if newer.run == self.manifest.run:
                        self._take_manifest(newer)
        except ValueError as error:
            seen.why = f"has sent a report that cannot be used: {error}"[:_TEXT]
        except Exception as error:  # whatever it is, the page says it
            seen.why = f"cannot be asked at {seen.address}: {type(error).__name__}"

    def _remember(self) -> None:
        """Who was named first: logs forget it, and the page must not."""
        named = first_named(event for seen in self.clients.values() for event in seen.events)
        flagged = {
            n["name"]
            for seen in self.clients.values()
            for n in seen.status.get("neighbours", [])
            if n.get("flags")
        }
        self.first = {name: at for name, at in {**named, **self.first}.items() if name in flagged}

    def view(self) -> Json:
        """All that the page shows, as JSON values."""
        with self.lock:
            rows = {name: seen.status for name, seen in self.clients.items() if seen.status}
            ages = {name: seen.age for name, seen in self.clients.items()}
            found = find_problems(rows, ages, self.manifest, self.first)
            found += self._unseen()
            events = [{**e, "client": s.name} for s in self.clients.values() for e in s.events]
            return {
                "time": time.time(),
                "run": self.manifest.run if self.manifest else "",
                "version": self.manifest.version if self.manifest else 0,
                "clients": [self._client(self.clients[name], found) for name in self._order()],
                "links": link_states(rows, ages, self.manifest),
                "findings": [vars(each) for each in found],
                "events": sorted(events, key=lambda e: e.get("time", 0))[-_EVENTS:][::-1],
            }

    def _unseen(self) -> Iterator[Finding]:
        """Members of which there is no report, or none that can be used."""
        for name, seen in self.clients.items():
            if seen.folder is None and not seen.address:
                text = f"{name} has no address and cannot be asked: only its neighbours' reports show it"
                yield Finding("warn", name, "unseen", text)
            elif not seen.status:
                yield Finding("bad", name, "unseen", f"{name} {seen.why}")
        members = self.manifest.names if self.manifest else []
        missing = [name for name in members if name not in self.clients]
        if missing:
            text = f"{', '.join(missing)}: members that are not watched; give the run's folder to watch all"
            yield Finding("warn", missing[0], "unwatched", text)

    def _order(self) -> list[str]:
        """As in the manifest; who is not in it, at the end."""
        names = self.manifest.names if self.manifest else []
        return [n for n in names if n in self.clients] + [n for n in self.clients if n not in names]

    def _client(self, seen: WatchedClient, found: list[Finding]) -> Json:
        levels = [each.level for each in found if each.client == seen.name]
        body = {key: value for key, value in seen.status.items() if key != "neighbours"}
        members = self.manifest.clients if self.manifest else ()
        quarantined = any(c.name == seen.name and c.quarantined for c in members)
        return body | {
            "name": seen.name,
            "level": "bad" if "bad" in levels else "warn" if levels else "good",
            "kinds": sorted({each.kind for each in found if each.client == seen.name}),
            "age": seen.age,
            "quarantined": quarantined,
            "history": list(seen.history),
            "source": str(seen.folder or seen.address or "no address"),
        }


def _read(seen: WatchedClient) -> None:
    assert seen.folder is not None
    try:
        path = seen.folder / "status.json"
        status = check_status(json.loads(path.read_text()))
        seen.see(status, list(_events(seen.folder / "log.jsonl")), path.stat().st_mtime)
    except (OSError, ValueError) as error:
        seen.why = f"has no status that can be read: {error}"


def _events(path: Path) -> Iterator[Json]:
    """The last events of a log, from its end."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        for line in file.read().splitlines()[-200:]:
            with contextlib.suppress(ValueError):  # the first may be cut
                row = json.loads(line)
                if isinstance(row, dict) and row.get("event") != "status":
                    yield from check_events([row])


# --- what it means -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Finding:
    """Something that an operator should know, and which client it is about."""

    level: str  # bad or warn
    client: str
    kind: str
    text: str


class FirstFlag(NamedTuple):
    """When a client was first called suspicious, and what was said."""

    at: float
    text: str


def first_named(events: Iterable[Json]) -> dict[str, FirstFlag]:
    """Of every client that was called suspicious, the first time."""
    found: dict[str, FirstFlag] = {}
    for event in events:
        name, _, text = str(event.get("text", "")).partition(": ")
        known = found.get(name)
        if event.get("event") == "suspicious" and (known is None or event["time"] < known.at):
            found[name] = FirstFlag(event["time"], text)
    return found


def find_problems(
    rows: Mapping[str, Row],
    ages: Mapping[str, float | None],
    manifest: Manifest | None,
    first: Mapping[str, FirstFlag],
) -> list[Finding]:
    """What is wrong, and whose fault it is: a client is blamed by its own report and by its neighbours'."""
    found: list[Finding] = []
    fresh = {name: row for name, row in rows.items() if (ages[name] or 0.0) <= SILENT_SECONDS}
    newest = (
        manifest.version
        if manifest
        else max((row.get("version", 0) for row in fresh.values()), default=0)
    )
    for name, row in rows.items():
        if name not in fresh:
            continue
        audit, left, loss = row.get("audit"), row.get("days_left"), row.get("loss")
        if not (audit is not None and audit <= EXACT):
            text = (
                f"{name} has lost mass: its local audit is {_number(audit)}, not zero to rounding"
            )
            found.append(Finding("bad", name, "audit", text))
        if loss is None and row.get("k"):
            found.append(
                Finding("bad", name, "diverged", f"{name} has no finite loss: its model diverged")
            )
        if left is not None and left < WARN_DAYS:
            when = f"ends in {left:.1f} days" if left > 0 else "has ended"
            fix = f"spodgt peer renew {name}"
            level = "bad" if left < 1 else "warn"
            found.append(Finding(level, name, "certificate", f"{name}'s certificate {when}: {fix}"))
        if row.get("version", 0) < newest:
            text = f"{name} follows version {row.get('version')} of the manifest, others {newest}"
            found.append(Finding("warn", name, "version", text))
        if bad := row.get("bad_gradients"):
            text = f"{name} computed {bad} gradients that are not finite; they were not used"
            found.append(Finding("warn", name, "gradients", text))
        if row.get("waiting"):
            found.append(
                Finding("warn", name, "waiting", f"{name} waits: it has no news from anybody")
            )
    members = set(manifest.linked) if manifest else set(rows)
    found += _silent(rows, fresh, ages, members)
    found += _huge(fresh, first, members)
    return sorted(found, key=lambda each: (each.level != "bad", each.client))


def _silent(
    rows: Mapping[str, Row],
    fresh: Mapping[str, Row],
    ages: Mapping[str, float | None],
    members: set[str],
) -> Iterator[Finding]:
    """Clients that do not report, or from which most of their neighbours hear nothing."""
    unheard: dict[str, list[tuple[str, float]]] = {}
    heard: dict[str, int] = {}
    for name, row in fresh.items():
        for n in row.get("neighbours", []):
            if n["way"] == "from":
                long = n["silent"] is None or n["silent"] > SILENT_SECONDS
                if long and n["state"] != "up":
                    silent = row.get("seconds", 0.0) if n["silent"] is None else n["silent"]
                    unheard.setdefault(n["name"], []).append((name, silent))
                else:
                    heard[n["name"]] = heard.get(n["name"], 0) + 1
    harm = "the others' models are biased until it returns or is removed"
    for name in sorted({*unheard, *rows} & members):
        age, by = ages.get(name), unheard.get(name, [])
        if name in rows and name not in fresh:
            told = f"; {', '.join(who for who, _ in by)} hear nothing from it" if by else ""
            text = f"{name} is silent: no report for {age or 0:.0f} s{told}; {harm}"
            yield Finding("bad", name, "silent", text)
        elif len(by) > heard.get(name, 0):
            longest = max(seconds for _, seconds in by)
            who = ", ".join(who for who, _ in by)
            text = f"{name} is silent: {who} heard nothing for {longest:.0f} s; {harm}"
            yield Finding("bad", name, "silent", text)
        else:
            for who, seconds in by:
                text = (
                    f"link {name} → {who} is down for {seconds:.0f} s; other links of {name} work"
                )
                yield Finding("warn", name, "link", text)


def _huge(
    fresh: Mapping[str, Row], first: Mapping[str, FirstFlag], members: set[str]
) -> Iterator[Finding]:
    """Clients that most of those who hear them call far too large.

    Models mix, so it was the first that was named. One report alone may be a lie: it is only a warning if
    others that hear the same client do not agree, and it is never enough to advise a quarantine.
    """
    by: dict[str, list[str]] = {}
    listeners: dict[str, int] = {}
    for name, row in fresh.items():
        heard = {
            n["name"]: bool(n.get("flags")) for n in row.get("neighbours", []) if n["way"] == "from"
        }
        for sender, is_flagged in heard.items():
            listeners[sender] = listeners.get(sender, 0) + 1
            if is_flagged and sender in members:
                by.setdefault(sender, []).append(name)
    accused = [name for name in by if 2 * len(by[name]) <= listeners[name]]
    for name in accused:
        who = ", ".join(by[name])
        text = (
            f"{name} sends huge numbers, says {who}; the others that hear it do not: look at both"
        )
        yield Finding("warn", name, "accused", text)
    named = [name for name in by if name not in accused]
    order = sorted(named, key=lambda name: first.get(name, FirstFlag(math.inf, "")).at)
    for number, name in enumerate(order):
        who = ", ".join(by[name])
        if number == 0:
            how = f" ({first[name].text})" if name in first else ""
            advice = f"spodgt peer quarantine {name}"
            if len(by[name]) == 1:
                advice = f"look at both, nobody else hears it; if it is so: {advice}"
            yield Finding(
                "bad", name, "huge", f"{name} sends huge numbers, say {who}{how}: {advice}"
            )
        else:
            text = f"{name} sends large numbers since {order[0]} did, say {who}"
            yield Finding("warn", name, "infected", text)


def link_states(
    rows: Mapping[str, Row], ages: Mapping[str, float | None], manifest: Manifest | None
) -> list[Json]:
    """Every directed link, as its two ends see it."""
    ends: dict[tuple[str, str], list[Row]] = {}
    if manifest is not None:
        ends = {(link.sender, link.receiver): [] for link in manifest.links}
    for name, row in rows.items():
        if (ages[name] or 0.0) <= SILENT_SECONDS:
            for n in row.get("neighbours", []):
                pair = (name, n["name"]) if n["way"] == "to" else (n["name"], name)
                if manifest is None or pair in ends:
                    ends.setdefault(pair, []).append(n)
    made = []
    for (sender, receiver), seen in ends.items():
        states = {n["state"] for n in seen}
        some = "up" if states == {"up"} else "down" if "down" in states else "waiting"
        why = "; ".join(dict.fromkeys(n["why"] for n in seen if n["why"]))
        from_ = next((n for n in seen if n["way"] == "from"), None)
        distance = from_ and from_["distance"]
        link = {"sender": sender, "receiver": receiver, "state": some if seen else "unknown"}
        made.append({**link, "why": why, "distance": distance})
    return made


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.3g}"


# --- the server --------------------------------------------------------------------------------------
class WatchServer(ThreadingHTTPServer):
    """Serves the page and its data; `every` seconds pass between two looks."""

    daemon_threads = True

    def __init__(self, watched: WatchedRun, bind: str, port: int, every: float = 2.0) -> None:
        self.watched, self.every = watched, every
        self.halt = threading.Event()
        try:
            super().__init__((bind, port), _Handler)
        except OSError as error:
            fix = "give another with --port"
            raise Failed(
                f"the page cannot be served at {bind}:{port}: {error.strerror}; {fix}."
            ) from None
        local = (bind, "localhost", "127.0.0.1", "[::1]")
        self.hosts = {f"{host}:{self.server_port}" for host in local}
        self.open = bind in ("0.0.0.0", "::", "")  # to all, by whatever name

    def run(self) -> None:
        """Look and serve until interrupted."""
        looking = threading.Thread(target=self._look, daemon=True)
        looking.start()
        try:
            self.serve_forever()
        finally:
            self.halt.set()

    def _look(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # what cannot be read is shown as silent
                self.watched.poll()
            if self.halt.wait(self.every):
                return


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = 10

    def do_GET(self) -> None:
        if not self.server.open and self.headers.get("Host") not in self.server.hosts:
            self.send_error(403, "another host name")  # a page elsewhere must not read this one
        elif self.path == "/":
            self._send("text/html; charset=utf-8", _PAGE.read_bytes())
        elif self.path == "/data.json":
            self._send(
                "application/json", json.dumps(json_values(self.server.watched.view())).encode()
            )
        else:
            self.send_error(404)

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        for key, value in {
            **_HEADERS,
            "Content-Type": kind,
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No line per request."""
