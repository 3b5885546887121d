"""The page of many peers: what is wrong, whose fault it is, and that a browser shows it."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spodgt.errors import Failed, InvalidInput
from spodgt.experiment import Experiment
from spodgt.peer.membership import certificates, manifest_changes, run_folders
from spodgt.peer.membership.certificates import Identity
from spodgt.peer.membership.run_folders import create
from spodgt.peer.monitoring.console import JsonLines
from spodgt.peer.monitoring.findings import FirstFlag, find_problems, first_flags, link_states
from spodgt.peer.monitoring.metrics import serve_metrics
from spodgt.peer.monitoring.report_validation import check_events, check_status
from spodgt.peer.monitoring.watch_server import WatchServer
from spodgt.peer.monitoring.watched_run import WatchedRun
from spodgt.peer.options import Deployment, Options
from spodgt.peer.process.journal import Journal
from spodgt.peer.process.main import Peer
from spodgt.peer.process.status import Status
from spodgt.peer.transport import wire_format
from spodgt.peer.transport.connection import LocalClient
from spodgt.peer.transport.links import Transport
from tests.peer.test_peer_setup import CONFIG
from tests.report.test_report import BROWSER, FLAGS

RING = [(f"p{i}", f"p{(i + 1) % 5}") for i in range(5)] + [
    (f"p{i}", f"p{(i + 2) % 5}") for i in range(5)
]
NAMES = [f"p{i}" for i in range(5)]


def neighbour(name: str, way: str, **changes: Any) -> dict[str, Any]:
    usual = {
        "state": "up",
        "why": "",
        "messages": 9,
        "bytes": 9,
        "number": 9,
        "silent": 0.1,
        "distance": 0.02,
    }
    return {"name": name, "way": way, **usual, "flags": 0, **changes}


def row(name: str, **changes: Any) -> dict[str, Any]:
    ends = [neighbour(b, "to") for a, b in RING if a == name]
    ends += [neighbour(a, "from") for a, b in RING if b == name]
    numbers = {
        "k": 120,
        "version": 1,
        "seconds": 60.0,
        "rounds_per_second": 20.0,
        "loss": 0.3,
        "accuracy": 0.7,
    }
    more = {
        "audit": 3e-16,
        "waiting": False,
        "has_ended": False,
        "days_left": 29.5,
        "time": time.time(),
        "neighbours": ends,
    }
    return {"name": name, **numbers, **more, "neighbours": ends, **changes}


def world(**changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float | None]]:
    rows = {name: row(name) for name in NAMES}
    for name, change in changes.items():
        rows[name] |= change
    return rows, dict.fromkeys(NAMES, 0.5)


def see(rows: dict[str, Any], name: str, about: str, way: str = "from", **changes: Any) -> None:
    """Let client `name` report something of its link with `about`."""
    next(n for n in rows[name]["neighbours"] if (n["name"], n["way"]) == (about, way)).update(
        changes
    )


def kinds(*found: Any) -> list[tuple[str, str, str]]:
    return [(each.level, each.client, each.kind) for each in find_problems(*found)]


def test_all_is_well() -> None:
    assert find_problems(*world(), None, {}) == []


def test_a_client_that_does_not_report_is_silent_and_its_neighbours_are_not_blamed() -> None:
    rows, ages = world()
    ages["p3"] = 42.0
    for name in ("p4", "p0"):
        see(rows, name, "p3", state="down", silent=41.0)
    (only,) = find_problems(rows, ages, None, {})
    assert (only.level, only.client, only.kind) == ("bad", "p3", "silent")
    assert only.text.startswith(
        "p3 is silent: no report for 42 s; p0, p4 receive nothing from it; the others'"
    )


def test_a_client_whose_neighbours_hear_nothing_is_silent_though_it_reports() -> None:
    rows, ages = world()
    see(rows, "p4", "p3", state="down", silent=41.0)
    assert kinds(rows, ages, None, {}) == [("warn", "p3", "link")]
    see(rows, "p0", "p3", state="down", silent=None)
    assert kinds(rows, ages, None, {}) == [("bad", "p3", "silent")]


def test_a_client_that_has_made_all_its_rounds_is_not_silent() -> None:
    rows, ages = world(p3={"has_ended": True})
    ages["p3"] = 42.0
    for name in ("p4", "p0"):
        see(rows, name, "p3", state="down", silent=41.0, has_ended=True)
    assert find_problems(rows, ages, None, {}) == []
    # its last report was not received: most of its neighbours must report its end
    rows["p3"]["has_ended"] = False
    for name in ("p1", "p2"):
        see(rows, name, "p3", way="to", has_ended=True)
    assert find_problems(rows, ages, None, {}) == []
    for name in ("p1", "p2", "p4"):
        for neighbour in rows[name]["neighbours"]:
            neighbour["has_ended"] = False
    assert ("bad", "p3", "silent") in kinds(rows, ages, None, {})


def test_a_client_that_ended_before_the_newest_manifest_is_silent() -> None:
    rows, ages = world(p3={"has_ended": True})
    ages["p3"] = 42.0
    for name in ("p0", "p1", "p2", "p4"):
        rows[name]["version"] = 2
    assert kinds(rows, ages, None, {}) == [("bad", "p3", "silent")]


def test_who_was_named_first_sends_huge_numbers() -> None:
    rows, ages = world()
    for name in ("p2", "p3"):
        see(rows, name, "p1", flags=40)
    for name in ("p3", "p4"):
        see(rows, name, "p2", flags=90)
    first = {
        "p1": FirstFlag(10.0, "model: 1e9 times the median"),
        "p2": FirstFlag(10.1, "model: …"),
    }
    found = find_problems(rows, ages, None, first)
    assert [(f.level, f.client, f.kind) for f in found] == [
        ("bad", "p1", "huge"),
        ("warn", "p2", "infected"),
    ]
    said = (
        "p1 sends huge numbers according to p2, p3 (model: 1e9 times the median): "
        "spodgt peer quarantine p1"
    )
    assert found[0].text == said
    told = [
        {"time": 5.0, "event": "suspicious", "text": "p1: later", "subject": "p1"},
        {"time": 2.0, "event": "link up"},
    ]
    told.append({"time": 4.0, "event": "suspicious", "text": "p1: sooner", "subject": "p1"})
    assert first_flags(told) == {"p1": FirstFlag(4.0, "sooner")}


def test_one_report_is_not_enough_to_advise_a_quarantine() -> None:
    rows, ages = world()
    see(rows, "p2", "p1", flags=9)
    first = {"p1": FirstFlag(5.0, "model: 1e29 times the median")}
    (only,) = find_problems(rows, ages, None, first)
    assert (only.level, only.client, only.kind) == ("warn", "p1", "accused")
    assert "quarantine" not in only.text
    assert "p2" in only.text
    ages["p3"] = (
        60.0  # the only other one that hears p1 does not report: who is right cannot be told
    )
    (huge,) = [each for each in find_problems(rows, ages, None, first) if each.client == "p1"]
    assert huge.level == "bad"
    assert "look at both, it has no other receiver" in huge.text


def test_all_models_that_diverged_are_named() -> None:
    rows, ages = world(**{name: {"loss": None} for name in NAMES})
    assert kinds(rows, ages, None, {}) == [("bad", name, "diverged") for name in NAMES]
    rows, ages = world(p2={"loss": None, "k": 0})  # it has only just started
    assert kinds(rows, ages, None, {}) == []


@pytest.mark.parametrize(
    "change",
    [
        {"audit": "zero"},
        {"neighbours": 7},
        {"neighbours": [{"name": "p1"}]},
        {"neighbours": [neighbour("p1", "sideways")]},
        {"neighbours": [neighbour(["p1"], "to")]},  # type: ignore[arg-type]
        {"loss": {"a": 1}},
        {"time": None},
        {"time": "now"},
        {"k": 10**400},
        {"waiting": 3, "warnings": "all"},
        {"warnings": [3]},
    ],
)
def test_a_report_with_wrong_types_is_refused_as_a_whole(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        check_status(row("p0", **change))


@pytest.mark.parametrize(
    "events",
    [7, [7], [{"time": "yesterday", "event": "x", "text": "y"}], [{"time": 5, "text": "y"}]],
)
def test_events_with_wrong_types_are_refused(events: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        check_events(events)


def test_a_report_with_a_warning_for_each_of_many_neighbours_is_shown() -> None:
    warnings = [f"p{number} silent for 40 s" for number in range(500)]
    found = check_status(row("p0", warnings=warnings))
    assert found["warnings"] == warnings[:100]


def test_a_report_keeps_what_is_known_and_drops_the_rest() -> None:
    body = row("p0", x="A" * 10**6, root="p1\x1b[2J", loss=float("inf"), version=None)
    found = check_status(body)
    assert "x" not in found
    assert "version" not in found
    assert found["root"] == "p1?[2J"
    assert found["loss"] is None
    assert find_problems({"p0": found}, {"p0": 0.1}, None, {}) != []
    whole = check_status(row("p0"))
    assert whole == {
        **row("p0", time=whole["time"]),
        "warnings": [],
        "neighbours": whole["neighbours"],
    }
    assert link_states({"p0": whole}, {"p0": 0.1}, None)


@pytest.mark.parametrize(
    ("change", "level", "kind"),
    [
        ({"audit": 1e-3}, "bad", "audit"),
        ({"audit": None}, "bad", "audit"),
        ({"audit": float("nan")}, "bad", "audit"),
        ({"loss": None}, "bad", "diverged"),
        ({"days_left": 5.0}, "warn", "certificate"),
        ({"days_left": 0.5}, "bad", "certificate"),
        ({"days_left": -1.0}, "bad", "certificate"),
        ({"version": 0}, "warn", "version"),
        ({"bad_gradients": 2}, "warn", "gradients"),
        ({"waiting": True}, "warn", "waiting"),
    ],
)
def test_what_is_named(change: dict[str, Any], level: str, kind: str) -> None:
    rows, ages = world(p2=change)
    assert kinds(rows, ages, None, {}) == [(level, "p2", kind)]


def test_a_link_is_up_if_both_ends_say_so() -> None:
    rows, ages = world()
    see(rows, "p1", "p0", state="down", why="nobody listens")
    made = {(link["sender"], link["receiver"]): link for link in link_states(rows, ages, None)}
    assert len(made) == 10
    assert made["p0", "p1"]["state"] == "down"
    assert made["p0", "p1"]["why"] == "nobody listens"
    assert made["p1", "p2"]["state"] == "up"


# --- folders, sockets, browsers -------------------------------------------------------------------------
@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Five clients as files: p3 died a minute ago, p1 sends huge numbers."""
    made = create(tmp_path / "run", Experiment.parse(CONFIG))
    run, now = tmp_path / "run", time.time()
    ends = [(link.sender, link.receiver) for link in made.links]
    for name in made.names:
        home = run_folders.issue(run, name)
        near = [neighbour(b, "to") for a, b in ends if a == name]
        near += [neighbour(a, "from") for a, b in ends if b == name]
        for n in near:
            if n["name"] == "p3":
                n |= {"state": "down", "why": "nobody listens at 127.0.0.1:1", "silent": 60.0}
            if n["name"] == "p1" and n["way"] == "from" and name != "p3":
                n |= {"flags": 7, "distance": 1e22}
        body = row(name, neighbours=near, time=now, loss=1e300 if name == "p0" else 0.3)
        (home / "status.json").write_text(json.dumps(body))
        text = "p1: model: its distance from ours is 1e+22, 1e+24 times the median"
        told = {"time": now - 5, "event": "suspicious", "text": text, "subject": "p1"}
        lines = [json.dumps(told), '{"time": 1, "event": "status"}', '{"half', "7"]
        (home / "log.jsonl").write_text("\n".join(lines))
    os.utime(run / "p3" / "status.json", (now - 60, now - 60))
    return run


def test_folders_are_read_and_the_two_culprits_are_named(run: Path) -> None:
    for places in ([str(run)], [str(run / name) for name in NAMES]):
        watched = WatchedRun(places)
        watched.poll()
        view = watched.view()
        bad = {(f["client"], f["kind"]) for f in view["findings"] if f["level"] == "bad"}
        assert bad == {("p1", "huge"), ("p3", "silent")}
        levels = {client["name"]: client["level"] for client in view["clients"]}
        assert levels == {"p0": "good", "p1": "bad", "p2": "good", "p3": "bad", "p4": "good"}
        assert all(event["event"] == "suspicious" for event in view["events"])
    with pytest.raises(InvalidInput, match="no client was found"):
        WatchedRun([str(run.parent)])
    with pytest.raises(
        InvalidInput,
        match=r"10\.0\.0\.1:7 is no folder here, so it is requested .* needs --identity",
    ):
        WatchedRun(["10.0.0.1:7"])
    with pytest.raises(
        InvalidInput, match=r"'10\.0\.0\.1:7' is no folder and no address of the manifest"
    ):
        WatchedRun(["10.0.0.1:7"], run / "p0")


@contextmanager
def served(watched: WatchedRun, bind: str = "127.0.0.1") -> Iterator[WatchServer]:
    watched.poll()
    page = WatchServer(watched, bind, 0, 0.2)
    threading.Thread(target=page.run, daemon=True).start()
    yield page
    page.shutdown()
    page.server_close()


@pytest.mark.network
def test_the_server_gives_its_page_to_this_host_alone(run: Path) -> None:
    with served(WatchedRun([str(run)])) as page:
        root = f"http://127.0.0.1:{page.server_port}"
        with urllib.request.urlopen(f"{root}/data.json") as answer:
            view = json.loads(answer.read(), parse_constant=pytest.fail)
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert view["version"] == 1
        asked = urllib.request.Request(f"{root}/data.json", headers={"Host": "evil.example"})
        for request, code in ((asked, 403), (f"{root}/../etc/passwd", 404)):
            with pytest.raises(urllib.error.HTTPError, match=str(code)):
                urllib.request.urlopen(request)
        with pytest.raises(Failed, match="cannot be served at"):
            WatchServer(WatchedRun([str(run)]), "127.0.0.1", page.server_port)


@pytest.mark.network
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_who_is_silent_and_who_sends_huge_numbers(
    run: Path, tmp_path: Path, scheme: str
) -> None:
    if BROWSER is None:
        pytest.skip("no Chromium here: install chromium to test the page in a browser")
    with served(WatchedRun([str(run)])) as page:
        line = [
            BROWSER,
            *FLAGS,
            f"--user-data-dir={tmp_path}/profile",
            "--window-size=1280,900",
            "--dump-dom",
        ]
        line += [
            "--enable-logging=stderr",
            "--v=0",
            f"--blink-settings=preferredColorScheme={scheme != 'dark':d}",
        ]
        shown = subprocess.run(
            [*line, f"http://127.0.0.1:{page.server_port}/"],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    dom = shown.stdout
    assert not re.search(r"CONSOLE.*(Error|Refused|violates)", shown.stderr), shown.stderr[-2000:]
    nodes = dict(re.findall(r'data-node="(\w+)" data-level="(\w+)"', dom))
    assert nodes == {"p0": "good", "p1": "bad", "p2": "good", "p3": "bad", "p4": "good"}
    verdict = re.findall(r'<li class="bad" data-client="(\w+)" data-kind="(\w+)">', dom)
    assert verdict == [("p1", "huge"), ("p3", "silent")]
    assert "HUGE NUMBERS" in dom
    assert re.search(r"SILENT \d\d s", dom)
    states = re.findall(r'data-link="\w+:\w+" data-state="(\w+)"', dom)
    assert len(states) == len(run_folders.load(run).links)
    assert {"up", "down"} == set(states)
    assert len(re.findall(r'<tr data-client="', dom)) == 5
    assert "<title>(2) p1, p3 – spodgt peers</title>" in dom


def test_the_page_follows_the_manifest(run: Path) -> None:
    """A client that joins is watched, and red until it reports; one that leaves is not missed."""
    for places in ([str(run)], [str(run / name) for name in NAMES]):
        watched = WatchedRun(places)
        watched.poll()
        before = run_folders.load(run).version
        name = f"late{before}"
        links: dict[tuple[str, str], dict[str, object]] = {(name, "p0"): {}, ("p0", name): {}}
        room = replace(run_folders.load(run), divided_into=9)
        made = manifest_changes.add_client(room, name, address="127.0.0.1:9", links=links)
        run_folders.publish(run, made)
        watched.poll()
        view = watched.view()
        assert view["version"] == before + 1
        assert name in [client["name"] for client in view["clients"]]
        (unseen,) = [each for each in view["findings"] if each["client"] == name]
        assert (unseen["level"], unseen["kind"]) == ("bad", "unseen")
        home = run_folders.issue(run, name)
        (home / "status.json").write_text(json.dumps(row(name, neighbours=[])))
        again = WatchedRun([*places, str(home)]) if len(places) > 1 else watched
        again.poll()
        assert not [each for each in again.view()["findings"] if each["kind"] == "unseen"]
        run_folders.remove(run, name)
        watched.poll()
        assert name not in [client["name"] for client in watched.view()["clients"]]


def test_members_that_are_not_watched_are_named(run: Path) -> None:
    watched = WatchedRun([str(run / "p0")])
    watched.poll()
    (only,) = [each for each in watched.view()["findings"] if each["kind"] == "unwatched"]
    assert only["text"].startswith("p1, p2, p3, p4: members that are not watched")


@pytest.mark.network
def test_a_report_that_is_too_large_or_too_slow_delays_no_other(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spodgt.peer.monitoring.watched_client.SECONDS", 0.5)
    asked = []

    async def answer(what: str, own: Any, address: str, name: str, limit: int) -> bytes:
        asked.append(limit)
        if name == "p0":
            await asyncio.sleep(3600)
        return json.dumps({"status": row(name), "events": [] if name != "p1" else 7}).encode()

    monkeypatch.setattr("spodgt.peer.monitoring.watched_client.fetch", answer)
    for name in NAMES:
        shutil.rmtree(run / name)
    watched = WatchedRun([str(run)])
    watched.poll()
    view = watched.view()
    assert set(asked) == {2**20}
    assert [client["name"] for client in view["clients"] if "k" in client] == ["p2", "p3", "p4"]
    texts = {each["client"]: each["text"] for each in view["findings"] if each["kind"] == "unseen"}
    assert texts.keys() == {"p0", "p1"}
    assert "events must be a list" in texts["p1"]


@pytest.mark.network
def test_clients_elsewhere_are_asked_over_mutual_tls(run: Path) -> None:
    """p0 runs elsewhere: an observer may ask it, a removed client and another run's observer may not."""
    manifest = run_folders.load(run)
    own = Identity.read(run / "p0", "p0")
    body = json.dumps({"status": row("p0", k=777), "events": []}).encode()
    context = wire_format.Context(manifest.run, b"\1" * 32, 3, "p0")
    transport = Transport(LocalClient(context, own, lambda *_: None, lambda *_: None))
    readers = (*manifest.names, certificates.OBSERVER)
    transport.calls.status = lambda name: body if name in readers else None
    shutil.rmtree(run / "p0")
    address = manifest.client("p0").address
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        await transport.start(address, {}, {})
        ready.set()
        while not done.is_set():
            await asyncio.sleep(0.05)
        await transport.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        for places, asker in (([str(run)], None), ([address], run / "p2"), ([address], run)):
            watched = WatchedRun(places, asker)
            watched.poll()
            assert {c["name"]: c.get("k") for c in watched.view()["clients"]}["p0"] == 777
        other = create(run.parent / "other", Experiment.parse(CONFIG))
        assert other.run != manifest.run
        stranger = WatchedRun([address], run)
        assert stranger.remote is not None
        stranger.remote.identity = run_folders.observer_identity(run.parent / "other")
        stranger.poll()
        only, unwatched = stranger.view()["findings"]
        assert unwatched["kind"] == "unwatched"
        assert only["kind"] == "unseen"
        assert "cannot be asked at" in only["text"]
    finally:
        done.set()
        thread.join(20)


def test_a_peer_tells_its_status_to_members_and_observers(run: Path) -> None:
    peer = Peer(run / "p0", "p0", Options(durability="process"))
    for name in ("p1", "observer"):
        told = peer.transport.calls.status(name)
        assert told is not None
        assert json.loads(told)["status"]["name"] == "p0"
    assert peer.transport.calls.status("p9") is None
    peer.store.close()
    home = run_folders.issue(run, "observer", days=2)
    assert run_folders.observer_identity(home).name == "observer"
    assert manifest_changes.remove_client(run_folders.load(run), "p4").version == 2


# --- deployment ---------------------------------------------------------------------------------------
DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_unit_and_the_container_start_what_there_is() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "spodgt-peer@.service")
    words = unit["Service"]["ExecStart"].split()
    entry = json.loads(
        re.findall(r"^ENTRYPOINT (.*)$", (DEPLOY / "Containerfile").read_text(), re.M)[0]
    )
    compose = re.findall(r"command: \[p\d, (.*)\]", (DEPLOY / "compose.yaml").read_text())
    package = Path(run_folders.__file__).parents[2]
    declarations = [package / "peer" / "options.py", *(package / "cli" / "peer").glob("*.py")]
    source = "".join(path.read_text() for path in declarations)
    for text in (" ".join(words), " ".join(entry), *compose):
        for option in re.findall(r"--[a-z-]+", text):
            assert option.removeprefix("--").replace("-", "_") in source, option
    assert (
        unit["Service"]["RestartPreventExitStatus"] == "2"
    )  # a mistake is not tried again and again


@pytest.mark.network
def test_the_dashboard_asks_for_metrics_that_a_peer_serves(run: Path) -> None:
    status, journal = Status("p0"), Journal(run / "log.jsonl", "p0")
    journal.event("link up", "p0 → p1")
    port = serve_metrics(status, journal, 0, "127.0.0.1")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        names = set(re.findall(r"^# TYPE (\w+)", page.read().decode(), re.M))
    asked = set(re.findall(r"spodgt_peer_\w+", (DEPLOY / "grafana.json").read_text()))
    assert asked <= names, asked - names
    with pytest.raises(Failed, match="metrics cannot be served at"):
        serve_metrics(status, journal, port, "127.0.0.1")


def test_a_line_of_the_log_is_json(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        Journal(run / "log.jsonl", "p0").event("link up", "p0 → p1")
    told = json.loads(JsonLines().format(caplog.records[-1]))
    assert told | {"time": 0} == {
        "time": 0, "level": "info", "client": "p0", "event": "link up", "text": "p0 → p1",
    }  # fmt: skip


def test_deployment_makes_room_for_newcomers(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match="divided_into must be at least 5, one part per client, got 3"
    ):
        create(tmp_path / "run", Experiment.parse(CONFIG), Deployment(divided_into=3))
