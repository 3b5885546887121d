"""Making a run: manifest, certificates, capacities, the command line, and one sentence for every mistake."""

from __future__ import annotations

import base64
import datetime
import io
import json
import re
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography import x509
from rich.console import Console
from safetensors.torch import load_file

import spodgt
from spodgt.errors import InvalidConfig, InvalidInput, InvalidNetwork
from spodgt.experiment import Experiment
from spodgt.peer.membership import certificates, manifest_changes, run_folders
from spodgt.peer.membership.manifest import Manifest, SignedManifest
from spodgt.peer.membership.run_folders import create
from spodgt.peer.monitoring.console import overview, panel
from spodgt.peer.monitoring.metrics import _Metrics, serve_metrics
from spodgt.peer.options import Deployment, Options
from spodgt.peer.process.link_schedule import active_links
from spodgt.peer.process.local_problem import (
    BudgetCapacity,
    LocalProblem,
    describe_limits,
    read_capacity,
)
from spodgt.peer.process.main import Peer
from spodgt.peer.process.membership import Terms
from spodgt.peer.protocol.client_state import Member, initial_state
from spodgt.peer.protocol.epoch_topology import EpochRole
from spodgt.peer.storage.state_store import DiskStateStore
from tests.conftest import Cli
from tests.peer.world import World

CONFIG: dict[str, Any] = {
    "run": {"methods": ["spod-gt-memory"], "step_size": 0.05, "seeds": 1},
    "network": {"kind": "exponential", "clients": 5},
    "participation": {"kind": "bernoulli", "p": 0.5, "p_hat": 0.7},
    "problem": {"kind": "quadratic", "parameters": 6},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    create(tmp_path / "run", Experiment.parse(CONFIG), Deployment(limits_from_config=True))
    return tmp_path / "run"


@pytest.mark.parametrize(
    "words", [("--names", "lima,nairobi,oslo"), ("--addresses", "a:1,b:2,none")]
)
def test_as_many_clients_as_names_or_addresses(cli: Cli, words: tuple[str, str]) -> None:
    code, out, _ = cli("peer", "init", "--set", "problem.kind=quadratic", "--json", *words)
    assert (code, len(json.loads(out)["clients"])) == (0, 3)


def test_a_manifest_is_what_it_says(run: Path) -> None:
    made = run_folders.load(run)
    assert Manifest.parse(made.to_text()) == made
    assert {link.p_hat for link in made.links} == {0.7}
    assert made.client("p2").compute == {"kind": "bernoulli", "p": 0.5}
    out, into, *_ = made.topology("p0").role
    assert set(out) == {link.receiver for link in made.links if link.sender == "p0"}
    assert sum(into.values()) < 1


def test_a_changed_manifest_is_refused(run: Path) -> None:
    text = (run / "manifest.toml").read_text()
    (run / "manifest.toml").write_text(text.replace("seed = 0", "seed = 1"))
    with pytest.raises(InvalidInput, match="does not match its signature"):
        run_folders.load(run)


def test_a_client_leaves(run: Path) -> None:
    after = run_folders.remove(run, "p3")
    assert after.version == 2
    assert after.epoch > run_folders.load(run).version
    assert [client.place for client in after.clients] == [0, 1, 2, 4]
    with pytest.raises(InvalidInput, match="'p3' is not in version 2"):
        run_folders.remove(run, "p3")


def test_the_others_must_stay_connected(tmp_path: Path) -> None:
    create(
        tmp_path / "ring", Experiment.parse({**CONFIG, "network": {"kind": "ring", "clients": 4}})
    )
    made = run_folders.load(tmp_path / "ring")
    one_way = replace(
        made,
        links=tuple(
            link for link in made.links if int(link.receiver[1]) == (int(link.sender[1]) + 1) % 4
        ),
    )
    with pytest.raises(InvalidNetwork, match="strongly connected"):
        manifest_changes.remove_client(one_way, "p1")


def test_certificates_say_what_is_wrong() -> None:
    key, authority = certificates.create_authority("run")
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=5)
    future = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=5)
    good = certificates.issue(key, authority, "p0")
    certificates.check(good)
    cases = {
        "expired on": certificates.issue(key, authority, "p0", days=1, start=past),
        "set the clock": certificates.issue(key, authority, "p0", start=future),
        "names p1, not 'p0'": certificates.Identity(
            "p0", good.key, certificates.issue(key, authority, "p1").certificate, authority
        ),
        "another authority": certificates.Identity(
            "p0", good.key, good.certificate, certificates.create_authority("x")[1]
        ),
    }
    for text, person in cases.items():
        with pytest.raises(InvalidInput, match=text):
            certificates.check(person)


def test_certificates_pass_strict_verifiers() -> None:
    """Python 3.13 checks what RFC 5280 asks for: a certificate names the key that signed it."""
    key, authority = certificates.create_authority("run")
    root, leaf = (
        x509.load_pem_x509_certificate(pem)
        for pem in (authority, certificates.issue(key, authority, "p0").certificate)
    )
    own = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert issuer.key_identifier == own.digest


def test_keys_are_for_their_owner_only(run: Path) -> None:
    home = run_folders.issue(run, "p0")
    for path in (run / "ca.key", home / "key.pem"):
        assert path.stat().st_mode & 0o077 == 0


def test_capacities(tmp_path: Path) -> None:
    drawn = read_capacity({"kind": "bernoulli", "p": 0.3}, 0, 1)
    assert 0.25 < sum(drawn.computes(k) for k in range(2000)) / 2000 < 0.35
    now = [0.0]
    budget = BudgetCapacity(0.25, clock=lambda: now[0])
    used = 0
    for k in range(1000):
        if budget.computes(k):
            budget.note_gradient_time(0.1)
            now[0] += 0.1
            used += 1
        else:
            now[0] += 0.01
    assert used * 0.1 / now[0] == pytest.approx(0.25, abs=0.02)
    trace = tmp_path / "trace.csv"
    trace.write_text("round,receiver,sender,up\n0,0,0,1\n1,0,0,0\n2,0,0,1\n")
    replayed = read_capacity({"kind": "trace", "path": str(trace)}, 0, 0)
    assert [replayed.computes(k) for k in range(6)] == [True, False, True, True, False, True]
    for bad in (
        {"kind": "luck"},
        {"kind": "bernoulli", "p": 0},
        {"kind": "budget"},
        {"kind": "budget", "share": "x"},
    ):
        with pytest.raises(InvalidConfig, match="compute"):
            read_capacity(bad, 0, 0)


def test_links_are_drawn_by_name_and_round() -> None:
    probabilities = {"p1": 0.3, "p2": 1.0}
    drawn = [active_links(probabilities, 0, 0, k) for k in range(1000)]
    assert drawn == [active_links(probabilities, 0, 0, k) for k in range(1000)]
    assert all("p2" in names for names in drawn)
    assert 0.25 < sum("p1" in names for names in drawn) / 1000 < 0.35


LEAN = """
import sys
from pathlib import Path
from spodgt.engine import use_loops
from spodgt.peer.options import Options
from spodgt.peer.process.main import Peer
with use_loops(False):
    Peer(Path(sys.argv[1]), "p0", Options(durability="process", rounds=5)).run()
heavy = {"numba", "pandas", "pyarrow", "matplotlib", "networkx", "sklearn", "sympy", "torch._dynamo"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_a_peer_loads_no_heavy_package(tmp_path: Path) -> None:
    """On images with a linear model; numba alone takes 120 MB."""
    create(tmp_path, Experiment.parse({**CONFIG, "problem": {"model": "svm"}}))
    home = run_folders.issue(tmp_path, "p0")
    done = subprocess.run(
        [sys.executable, "-c", LEAN, str(home)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_rounds_between_peers_reach_the_optimum_of_all() -> None:
    """The same algorithm file as in the simulator, over links in memory."""
    world = World(5, n=4, rebase_every=16)
    for _ in range(400):
        for i in range(5):
            world.tick(i)
        while world.flying:
            world.deliver(0)
    assert (world.x() - world.optimum).abs().max() < 1e-5


def test_a_peer_alone_waits_and_restarts_where_it_was(run: Path) -> None:
    home = run_folders.issue(run, "p0")
    for incarnation, rounds in ((1, 30), (2, 60)):
        peer = Peer(home, "p0", Options(durability="process", rounds=rounds))
        peer.run()
        assert peer.node.incarnation.number == incarnation
        assert peer.node.state.k == rounds + 1
    status = json.loads((home / "status.json").read_text())
    assert status["k"] == 61
    assert status["audit"] <= 1e-12
    assert run_folders.audit_folders([home]).local["p0"] <= 1e-12
    told = run_folders.export(home, run / "model.safetensors")
    assert torch.equal(load_file(run / "model.safetensors")["x"], peer.node.state.method.x[0])
    assert told["k"] == 61


def test_a_lone_peer_that_is_started_again_does_not_drift_on(run: Path) -> None:
    """It waits after `max_alone` rounds without news, however often it is started."""
    home = run_folders.issue(run, "p0")
    for _ in range(3):
        peer = Peer(home, "p0", Options(durability="process", seconds=1.0, rounds=500))
        peer.run()
        assert peer.node.state.k <= peer.membership.manifest.max_alone
    assert peer.node.state.k == peer.membership.manifest.max_alone


def cli(
    *arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    from spodgt.cli import main

    monkeypatch.setattr("sys.argv", ["spodgt", *arguments])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["start", "p0"], "has no certificate in"),
        (["start", "north"], "; choose from p0, p1"),
        (
            ["issue", "p9"],
            "client 'p9' is not in version 1 of the manifest; its clients are p0, p1",
        ),
        (["issue", "p0", "--days", "-1"], "days must be above 0, got -1.0"),
        (["init"], "already holds a run"),
        (["status"], "holds no client that has reported"),
        (["remove", "x"], "client 'x' is not in"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(
    run: Path,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, text = cli("peer", *arguments, "--run", str(run), capsys=capsys, monkeypatch=monkeypatch)
    assert code == 2
    assert sentence in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("addresses", "sentence"),
    [
        ("none,none", "joins two clients without an address, so neither can reach the other; give"),
        ("10.0.0.1,10.0.0.2", "below 65536, got '10.0.0.1'; use for example 10.0.0.1:7000."),
        ("10.0.0.1:7000", "addresses must be 2, one per client, got 1; give 2 separated by commas"),
    ],
)
def test_addresses_that_cannot_work_are_refused_with_the_fix(
    addresses: str, sentence: str, cli: Cli
) -> None:
    options = ["--clients", "2", "--set", "problem.kind=quadratic", "--addresses", addresses]
    code, _, err = cli("peer", "init", *options)
    assert code == 2
    assert sentence in err


def test_init_issue_audit_by_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(tmp_path / "run")

    def call(*arguments: str) -> tuple[int, str]:
        return cli("peer", *arguments, capsys=capsys, monkeypatch=monkeypatch)

    code, text = call(
        "init", "--run", run, "--clients", "3", "--set", "problem.kind=quadratic", "--json"
    )
    assert code == 0
    assert json.loads(text)["clients"] == ["p0", "p1", "p2"]
    code, text = call("issue", "all", "--run", run)
    assert code == 0
    assert text.endswith(
        f"next: copy each folder to its host, and run spodgt peer start NAME --run {run} there\n"
    )
    for name in ("p0", "p1", "p2"):
        Peer(Path(run) / name, name, Options(durability="process", rounds=5)).run()
    code, text = call("audit", *(f"{run}/p{i}" for i in range(3)), "--json")
    assert code == 0
    assert json.loads(text)["error"] <= 1e-12
    code, text = call("status", "--run", run, "--json")
    assert [row["name"] for row in json.loads(text)] == ["p0", "p1", "p2"]


def test_an_audit_passes_only_what_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [tmp_path / "one", tmp_path / "two"]
    config = {**CONFIG, "network": {"kind": "ring", "clients": 3}}
    for run in runs:
        create(run, Experiment.parse(config))
        for name in ("p0", "p1", "p2"):
            run_folders.issue(run, name)
            Peer(run / name, name, Options(durability="process", rounds=5)).run()

    def audit(*homes: Path) -> tuple[int, str]:
        return cli("peer", "audit", *map(str, homes), capsys=capsys, monkeypatch=monkeypatch)

    def change(home: Path, **parts: Any) -> None:
        with closing(DiskStateStore(home / "state", labels={})) as store:
            saved = store.load()
            assert saved is not None
            vectors = {name: parts.pop(name) for name in list(parts) if name in saved.vectors}
            store.commit(vectors, {**saved.meta, **parts})

    homes = [runs[0] / name for name in ("p0", "p1", "p2")]
    assert audit(*homes)[0] == 0
    other = audit(homes[0], homes[1], runs[1] / "p2")
    assert (other[0], "of different runs" in other[1]) == (1, True)
    twice = audit(*homes, homes[1])
    assert (twice[0], "p1 was given 2 times" in twice[1]) == (1, True)
    bad = torch.full((6,), torch.nan, dtype=torch.float64)
    change(homes[0], y=bad)
    for command in (homes, [*homes, "--json"]):
        assert audit(*command)[0] == 1
    change(homes[0], y=torch.zeros(6, dtype=torch.float64))
    assert audit(*homes)[0] == 1
    epoch = run_folders.load(runs[1]).epoch
    assert audit(*(runs[1] / name for name in ("p0", "p1", "p2")))[0] == 0
    change(runs[1] / "p1", epoch=epoch + 1)
    late = audit(*(runs[1] / name for name in ("p0", "p1", "p2")))
    assert (late[0], "have reached the newest epoch: p0, p2" in late[1]) == (1, True)


OWN = """
import torch, spodgt
from pathlib import Path
def build(clients, client=None, size=3):
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(clients, 8, 4, generator=draws), torch.randint(size, (clients, 8), generator=draws)
    who = range(clients) if client is None else [int(client[1:])]
    net = torch.nn.Linear(4, size)
    return spodgt.Learning(net, torch.nn.CrossEntropyLoss(), [(x[i], y[i]) for i in who], test=(x[0], y[0]))
def whole(clients, size=3):
    return build(clients, None, size)
"""


@pytest.mark.parametrize("function", ["build", "whole"])
def test_a_problem_of_ones_own_is_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """The parts of clients are those of the simulator, whether a peer loads its own data or all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own.py").write_text(OWN)
    tables = CONFIG | {
        "problem": {"kind": "python", "build": f"own.py:{function}", "arguments": {"size": 2}}
    }
    made = create(tmp_path / "run", Experiment.parse(tables))
    assert made.problem["build"] == f"own.py:{function}"
    run_folders.issue(tmp_path / "run", "p2")
    peer = Peer(tmp_path / "run" / "p2", "p2", Options(durability="process"))
    with closing(peer.store):
        assert peer.local_problem.problem.clients == (
            1 if function == "build" else len(made.clients)
        )
        draw = Experiment.parse(tables).draw(made.seed)
        assert torch.equal(peer.local_problem.start(), draw.start[2])
        _, grad = draw.problem.full(draw.start[2:3], np.array([2]))
        own = peer.local_problem.problem.full(
            peer.local_problem.start()[None], np.array([peer.local_problem.row])
        )
        assert torch.equal(own[1], grad)
    found = run_folders.export(tmp_path / "run" / "p2", tmp_path / "model.safetensors")
    assert found["tensors"] == {"weight": [2, 4], "bias": [2]}
    net = torch.nn.Linear(4, 2)
    net.load_state_dict(load_file(tmp_path / "model.safetensors"))


def test_the_flag_of_init_writes_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own.py").write_text(OWN)
    words = ["peer", "init", "--run", "run", "--clients", "3", "--problem"]
    assert cli(*words, "own.py:build", "--set", "problem.arguments.size=4")[0] == 0
    table = {"kind": "python", "build": "own.py:build", "arguments": {"size": 4}}
    assert run_folders.load(tmp_path / "run").problem == table
    code, _, err = cli(
        "peer", "init", "--run", "other", "--clients", "3", "--problem", "own.py:make"
    )
    assert code == 2
    assert "problem.build='own.py:make' must name a function" in err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "fedavg"], "cannot run between peers"),
        (
            ["--set", "run.layers.compress=top-k"],
            "compress = 'top-k' cannot run between peers; use compress",
        ),
        (["--method", "spod-gt,dsgd"], "run.methods must be one method, got spod-gt, dsgd"),
        (["--set", "run.step_size=[0.1, 0.2, 0.3, 0.1, 0.1]"], "step_size must be one number"),
        (
            ["--addresses", "a,b,c,d,e"],
            "addresses must be host:port with a port below 65536, got 'a'",
        ),
        (["--addresses", "a:1,b:1,c:1,d:1,a:1"], "addresses must differ"),
        (
            ["--compute", "p9={kind='budget', share=0.5}"],
            "--compute names 'p9', which is no client",
        ),
        (["--compute", "p1={kind='budget', share=2}"], "compute.share must be in (0, 1], got 2"),
        (["--compute", "p1"], "--compute 'p1' must be NAME="),
        (
            ["--method", "ab", "--compute", "p1={kind='budget', share=0.5}"],
            "ab needs all clients, but p1",
        ),
        (["--method", "gossip-push-pull"], "method gossip-push-pull cannot run between peers"),
        (
            [
                "--method",
                "sporadic-k-gt",
                "--set",
                "participation.kind=bernoulli",
                "--limits-from-config",
            ],
            "method sporadic-k-gt needs all links, but p",
        ),
        (
            ["--set", "participation.p=0.5"],
            "--set participation.p=0.5 has no effect: participation is simulated",
        ),
        (
            ["--method", "push-pull"],
            "method push-pull cannot run between peers; use spod-gt-memory",
        ),
    ],
)
def test_what_could_never_start_is_not_made(
    tmp_path: Path,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    small = ("--set", "problem.kind=quadratic", "--run", str(run))
    code, text = cli("peer", "init", *small, *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 2
    assert sentence in text
    assert not run.exists()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--listen", "127.0.0.1:99999"], "--listen must be host:port"),
        (["--metrics-port", "99999999"], "--metrics-port must be a port below 65536"),
        (["--evaluate-every", "-1"], "evaluate_every must be above 0"),
    ],
)
def test_a_start_that_cannot_be_leaves_nothing(
    run: Path,
    option: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_folders.issue(run, "p0")
    code, text = cli(
        "peer", "start", "p0", "--run", str(run), *option, capsys=capsys, monkeypatch=monkeypatch
    )
    assert code == 2
    assert sentence in text
    assert not (run / "p0" / "state").exists()


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (
            {"step_size": {"schedule": "inverse", "start": 0.1, "scale": 30.0}},
            "spod-gt-memory+inverse",
        ),
        ({"step_size": 0.05, "layers": {"momentum": 0.9}}, "spod-gt-memory+momentum"),
        (
            {"step_size": 0.05, "layers": {"adam": True, "local_steps": 3}},
            "spod-gt-memory+local+adam",
        ),
    ],
)
def test_schedules_and_layers_travel_in_the_manifest(
    tmp_path: Path, run: dict[str, Any], name: str
) -> None:
    methods = {"methods": ["spod-gt-memory"], "seeds": 1, **run}
    made = create(tmp_path / "run", Experiment.parse({**CONFIG, "run": methods}))
    assert Manifest.parse(made.to_text()) == made
    assert made.method.build().name == name
    home = run_folders.issue(tmp_path / "run", "p0")
    for rounds in (10, 20):  # and their memory in the state
        peer = Peer(home, "p0", Options(durability="process", rounds=rounds))
        peer.run()
    assert peer.node.state.k == 21
    assert set(peer.node.state.more) == set(peer.node.method_step.algorithm.traits.state) - {
        "x",
        "y",
        "g",
    }


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be made"):
        create(tmp_path / "file" / "run", Experiment.parse(CONFIG))


def test_devices_are_what_they_are_said_to_be(tmp_path: Path) -> None:
    made = create(
        tmp_path / "run",
        Experiment.parse(CONFIG),
        Deployment(compute={"p1": {"kind": "budget", "share": 0.25}}),
    )
    assert made.client("p1").compute == {"kind": "budget", "share": 0.25}
    assert made.client("p0").compute == {"kind": "bernoulli", "p": 1.0}
    assert describe_limits(made) == ["p1: spends at most 25 % of its time on gradients"]


CONFIGS = {
    "without [participation]": "",  # the simulator's default is a lottery
    "with [participation]": '[participation]\nkind = "bernoulli"\np = [0.9, 0.6, 0.2]\np_hat = 0.5\n',
}


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_limits_real_clients_only_if_it_is_asked_to(
    config: str, cli: Cli, tmp_path: Path
) -> None:
    rest = '[network]\nkind = "ring"\nclients = 3\n[problem]\nkind = "quadratic"\n'
    (tmp_path / "run.toml").write_text(
        '[run]\nmethods = ["spod-gt-memory"]\n' + CONFIGS[config] + rest
    )
    code, out, _ = cli("peer", "init", "--run", "free", "--config", "run.toml")
    assert code == 0
    assert "no limits: every client computes and sends as often as it can" in out
    assert out.endswith("next: spodgt peer issue all --run free\n")
    made = run_folders.load(tmp_path / "free")
    assert {client.compute["p"] for client in made.clients} == {1.0}
    assert {link.p_hat for link in made.links} == {1.0}

    words = (
        "--run",
        "limited",
        "--config",
        "run.toml",
        "--limits-from-config",
        "--rounds-per-second",
        "20",
    )
    code, out, _ = cli("peer", "init", *words)
    assert code == 0
    assert "all clients: at most 20 rounds per second" in out
    limited = run_folders.load(tmp_path / "limited")
    assert all(client.compute["p"] != 1.0 for client in limited.clients)
    if CONFIGS[config]:
        assert [client.compute["p"] for client in limited.clients] == [0.9, 0.6, 0.2]
        assert "p2: computes in 20 % of its rounds, sends to p0 in 50 % of its rounds" in out
    code, out, _ = cli("peer", "init", "--run", "again", "--config", "run.toml", "--json")
    assert json.loads(out)["limits"] == []


def test_a_manifest_put_into_the_folder_of_a_running_client_is_taken(run: Path) -> None:
    run_folders.issue(run, "p0")
    peer = Peer(run / "p0", "p0", Options(durability="process"))

    def found() -> Terms | None:
        peer.membership.check_folder()
        return peer.membership.update

    assert found() is None
    run_folders.remove(run, "p3")
    whole = (run / "p0" / "manifest.toml").read_bytes()
    (run / "p0" / "manifest.toml").write_bytes(
        whole[:-20]
    )  # copied by a program that is not done yet
    assert found() is None
    SignedManifest.read(run, (run / "ca.pem").read_bytes()).write(run / "p0")
    newer = found()
    assert newer is not None
    assert newer.manifest.version == 2
    peer.store.close()


def test_a_model_with_another_layout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(name: str) -> Any:
        data = torch.randn(8, 3, generator=torch.Generator().manual_seed(int(name[1:])))
        return spodgt.Learning(
            torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), [(data, torch.arange(8) % 2)]
        )

    create(tmp_path / "run", Experiment.parse(CONFIG))
    home = run_folders.issue(tmp_path / "run", "p2")
    peer = Peer(home, "p2", Options(durability="process"))
    peer.store.close()
    target = tmp_path / "model.safetensors"
    run_folders.export(home, target, build("p2"))  # it does not describe these numbers
    assert torch.equal(load_file(target)["x"], peer.node.state.method.x[0])
    monkeypatch.setattr(
        "spodgt.peer.process.local_problem.manifest_problem", lambda manifest, name: build(name)
    )
    with pytest.raises(InvalidInput, match="with other names or shapes than the 6 of the manifest"):
        Peer(home, "p2", Options(durability="process"))


class Personal:
    """A problem with columns behind the parameters: the first `exchanged` travel, two are private."""

    def __init__(self, inner: Any, exchanged: int = 0) -> None:
        self.inner, self.exchanged, self.private = inner, exchanged, 2

    clients, parameters, work, metrics = (
        property(attrgetter(f"inner.{name}"))
        for name in ("clients", "parameters", "work", "metrics")
    )
    draw, start, join, full = (
        property(attrgetter(f"inner.{name}")) for name in ("draw", "start", "join", "full")
    )

    def to(self, *where: Any) -> Personal:
        return Personal(self.inner.to(*where), self.exchanged)

    def statistics(self, seed: int) -> torch.Tensor:
        return torch.zeros(self.inner.clients, self.exchanged + 2)

    def grad(self, x: torch.Tensor, batches: Any) -> torch.Tensor:
        n = self.inner.parameters
        x[:, n:] += 1
        return self.inner.grad(x[:, :n].contiguous(), batches)  # type: ignore[no-any-return]

    def evaluate(self, x: torch.Tensor, rows: Any = None) -> Any:
        assert x.shape[1] == self.inner.parameters + 2
        return self.inner.evaluate(x[:, : self.inner.parameters].contiguous(), rows)


def test_private_columns_stay_with_their_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = Experiment.parse({**CONFIG, "participation": {"kind": "always"}})
    inner = always.draw(0).problem
    assert create(tmp_path / "run", always).parameters == 6
    home = run_folders.issue(tmp_path / "run", "p0")
    problem = "spodgt.peer.process.local_problem.manifest_problem"
    monkeypatch.setattr(problem, lambda manifest, name: Personal(inner))
    for rounds in (10, 25):  # counted on after a restart
        peer = Peer(home, "p0", Options(durability="process", rounds=rounds))
        peer.run()
        assert torch.equal(peer.node.state.private, torch.full((1, 2), rounds + 1.0))
    message = peer.node.message("p1")
    assert message is not None
    assert len(message.x) == len(message.total) == 6
    monkeypatch.setattr(problem, lambda manifest, name: Personal(inner, 3))
    with pytest.raises(
        InvalidInput, match="must not keep running statistics on peers, got 3 of them"
    ):
        Peer(home, "p0", Options(durability="process"))


def test_what_a_peer_has_done_is_shown(run: Path) -> None:
    """The panel, the overview and the metrics read the same status."""
    home = run_folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process", rounds=20))
    peer.run()
    port = serve_metrics(peer.reporter.status, peer.journal, 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        text = page.read().decode()
    assert 'spodgt_peer_k{client="p0"} 21.0' in text
    assert 'spodgt_peer_incarnation{client="p0"} 1.0' in text
    assert 'spodgt_peer_link_up{client="p0",neighbour="p1",way="to"} 0.0' in text
    console = Console(record=True, width=160, file=io.StringIO())
    console.print(panel(peer.reporter.status, peer.journal))
    console.print(overview([json.loads((home / "status.json").read_text())]))
    shown = console.export_text()
    assert "local round 21" in shown
    assert "incarnation 1, manifest 1, epoch 0" in shown
    assert "p0 → p1" in shown
    row = json.loads((home / "status.json").read_text())
    for has_ended in (False, True):
        console.print(overview([{**row, "has_ended": has_ended}]))
        assert console.export_text().count("ended") == has_ended


@pytest.mark.parametrize("mean", [None, 0.12345])
def test_the_status_of_long_runs_fits_80_columns(mean: float | None) -> None:
    row = {
        "name": "nairobi", "k": 1_234_567, "gradients": 1_234_567, "rounds_per_second": 48.2,
        "loss": 0.12345, "mean_loss": mean, "accuracy": 0.82345, "mean_accuracy": mean,
        "consensus": 1.234e-05, "audit": 1.234e-17, "neighbours": [{"state": "up"}] * 2,
        "time": time.time(), "days_left": 29.94, "has_ended": True,
    }  # fmt: skip
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(overview([row]))
    shown = console.export_text()
    assert "…" not in shown
    words = "client round grads /s loss acc consensus audit links days age"
    assert words.split() == shown.splitlines()[1].split()
    for cell in ("nairobi 1,234,567 1,234,567 48 0.123", "1.2e-05", "1.2e-17", "2/2", "ended"):
        assert cell in shown


def test_a_running_mean_is_scored_shown_and_exported(tmp_path: Path, cli: Cli) -> None:
    run, words = (
        tmp_path / "run",
        ["--set", "run.layers.running_mean=0.2", "--labels-per-client", "2"],
    )
    assert cli("peer", "init", "--run", str(run), "--clients", "3", *words)[0] == 0
    home = run_folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process", rounds=30))
    peer.run()
    status, mean = peer.reporter.status, peer.node.state.more["mean"]
    rows = np.zeros(2, int)
    both = peer.local_problem.problem.evaluate(
        torch.cat((peer.node.state.method.x, mean.float())), rows
    )
    assert (status.loss, status.mean_loss) == tuple(map(float, both.loss))
    assert (status.accuracy, status.mean_accuracy) == tuple(map(float, both.metrics["accuracy"]))
    assert status.mean_loss != status.loss
    console = Console(record=True, width=160, file=io.StringIO())
    console.print(panel(status, peer.journal))
    console.print(overview([json.loads((home / "status.json").read_text())]))
    assert console.export_text().count(f"(mean {status.mean_accuracy:.3g})") == 2
    gauges = {each.name for each in _Metrics(status, peer.journal).collect()}
    assert {"spodgt_peer_mean_loss", "spodgt_peer_mean_accuracy"} <= gauges
    target = tmp_path / "mean.safetensors"
    code, out, _ = cli("peer", "export", str(home), str(target), "--mean")
    assert (code, out) == (0, f"2 tensors, 7,850 numbers: {target}\n")
    exported = json.loads(cli("peer", "export", str(home), str(target), "--mean", "--json")[1])
    assert exported["file"] == str(target)
    assert {type(exported[key]) for key in ("k", "epoch", "gradients")} == {int}
    flat = torch.cat([tensor.flatten() for tensor in load_file(target).values()])
    assert torch.equal(flat.sort().values, mean[0].float().sort().values)


def test_a_mean_that_is_not_kept_is_not_exported(run: Path, cli: Cli) -> None:
    home = run_folders.issue(run, "p0")
    Peer(home, "p0", Options(durability="process", rounds=2)).run()
    assert json.loads((home / "status.json").read_text())["mean_loss"] is None
    code, _, err = cli("peer", "export", str(home), str(run / "model.safetensors"), "--mean")
    assert code == 2
    assert "p0 keeps no running mean; make the run with --set run.layers.running_mean=0.2" in err
    assert not (run / "model.safetensors").exists()


def test_importance_weighs_the_first_gradient_too() -> None:
    """In round 0, too, a gradient that is computed with probability p counts 1/p times."""
    algorithm = spodgt.method("spod-gt-importance", step_size=0.1)
    alone = EpochRole({}, {}, frozenset(), frozenset())
    begun = algorithm, lambda x, k: torch.ones_like(x), torch.zeros(3), True, alone
    state = initial_state(*begun, member=Member(0, 2, 0.25))
    assert torch.equal(state.method.y, torch.full((1, 3), 4.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("p_hat = 0.7", "p_hat = 1.5", "links.p_hat must be in (0, 1], got 1.5"),
        ('address = "', 'adress = "', "is not a key of clients; did you mean 'address'?"),
        ("place = 1\n", 'place = "x"\n', "clients.place must be a whole number, got 'x'"),
        ("step_size = 0.05", "", "method.step_size is missing"),
        ("[method]", "[methods]", "the manifest must have tables clients, links and method"),
        ('sender = "p0"', 'sender = "p9"', "names 'p9', which is no client; add it."),
        ('name = "p1"', 'name = "p/1"', "client name 'p/1' must have 1 to 63 lower-case letters"),
        ('name = "p1"', 'name = "p0"', "client name 'p0' is or was another client's"),
        ('name = "p1"', 'name = "P0"', "client name 'P0' must have 1 to 63 lower-case letters"),
        ('name = "p1"', 'name = "ü"', "client name 'ü' must have 1 to 63 lower-case letters"),
        ('name = "p1"', 'name = "-rf"', "client name '-rf' must have 1 to 63 lower-case letters"),
        ('name = "p1"', 'name = "all"', "and not be all or observer"),
        (
            'dial = "sender"',
            'dial = "both"',
            "links.dial='both' is not known; choose sender or receiver.",
        ),
        ("format = 2", "format = 3", "has format 3, this version reads 2"),
    ],
)
def test_a_manifest_that_means_nothing_is_refused(
    run: Path, old: str, new: str, sentence: str
) -> None:
    text = (run / "manifest.toml").read_text()
    assert old in text
    with pytest.raises(InvalidConfig, match=re.escape(sentence)):
        Manifest.parse(text.replace(old, new, 1).encode())


# --- clients by name ------------------------------------------------------------------------------------
NAMED_PROBLEM = """
import torch
import spodgt

SIZES = {"north": 9, "south": 6, "east": 3}


def build(weights="equal", client=None, alone=False):
    chosen = [client] if alone and client else list(SIZES)
    targets = {name: torch.zeros(SIZES[name], dtype=torch.int64) for name in chosen}
    data = {name: (torch.ones(SIZES[name], 2), targets[name]) for name in chosen}
    counts = {name: float(size) for name, size in SIZES.items()}
    return spodgt.Learning(
        torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), data,
        client_weights=counts if weights == "counts" else weights,
    )
"""


def named_config(folder: Path, **arguments: Any) -> Experiment:
    (folder / "named_problem.py").write_text(NAMED_PROBLEM)
    problem = {"kind": "python", "build": "named_problem.py:build", "arguments": arguments}
    tables = {**CONFIG, "network": {"kind": "complete", "clients": 3}, "problem": problem}
    return Experiment.parse(tables)


def named_work(manifest: Manifest, name: str) -> LocalProblem:
    return LocalProblem(name, manifest, read_capacity({"kind": "bernoulli", "p": 1.0}, 0, 0))


def test_peers_hold_the_data_of_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = named_config(tmp_path)
    assert run_folders.plan_manifest(experiment, Deployment()).names == ["north", "south", "east"]
    made = run_folders.plan_manifest(experiment, Deployment(names=["east", "north", "south"]))
    for name, size in (("north", 9), ("south", 6), ("east", 3)):
        work = named_work(made, name)
        assert isinstance(work.problem, spodgt.Learning)
        assert work.problem.sizes()[work.row] == size
    with pytest.raises(
        InvalidInput, match="the data have no client 'west', their clients are 'north'"
    ):
        run_folders.plan_manifest(experiment, Deployment(names=["north", "south", "west"]))


def test_peers_take_names_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.txt").write_text("north south\nsouth east\neast north\n")
    network = {"kind": "file", "path": "graph.txt"}
    participation = {"kind": "bernoulli", "p": {"north": 0.1, "south": 0.2, "east": 0.3}}
    experiment = Experiment.parse({**CONFIG, "network": network, "participation": participation})
    assert run_folders.plan_manifest(experiment, Deployment()).names == ["east", "north", "south"]
    names = ["north", "south", "east"]
    made = run_folders.plan_manifest(
        experiment, Deployment(names=names, addresses=["n:1", "s:1", "e:1"])
    )
    assert {client.name: client.address for client in made.clients} == dict(
        zip(names, ["n:1", "s:1", "e:1"], strict=True)
    )
    assert ("north", "south") in {(link.sender, link.receiver) for link in made.links}
    with pytest.raises(InvalidInput, match="only the network has 'east', only --names has 'west'"):
        run_folders.plan_manifest(experiment, Deployment(names=["north", "south", "west"]))


@pytest.mark.parametrize("alone", [False, True])
def test_gradients_of_peers_have_the_weight_of_their_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    names = Deployment(names=["north", "south", "east"])
    made = run_folders.plan_manifest(named_config(tmp_path, weights="counts", alone=alone), names)
    plain = run_folders.plan_manifest(named_config(tmp_path, alone=alone), names)
    for name, scale in (("north", 1.5), ("south", 1.0), ("east", 0.5)):
        weighted, equal = named_work(made, name), named_work(plain, name)
        x = equal.start()[None]
        torch.testing.assert_close(weighted.gradient(x, 1), scale * equal.gradient(x, 1))
    if alone:
        with pytest.raises(
            InvalidInput, match="client_weights='samples' needs the samples of all clients"
        ):
            run_folders.plan_manifest(named_config(tmp_path, weights="samples", alone=True), names)


def test_a_certificate_with_a_damaged_key_is_refused_in_one_sentence(tmp_path: Path) -> None:
    create(tmp_path / "run", Experiment.parse(CONFIG))
    home = run_folders.issue(tmp_path / "run", "p0")
    first, *body, last = (home / "cert.pem").read_text().strip().splitlines()
    der = bytearray(base64.b64decode("".join(body)))
    der[der.index(b"\x03\x42\x00\x04") + 20] ^= 1  # the point is not on the curve any more
    text = base64.encodebytes(bytes(der)).decode()
    (home / "cert.pem").write_text(f"{first}\n{text}{last}\n")
    with pytest.raises(InvalidInput, match="holds no whole certificate"):
        Peer(home, "p0", Options(durability="process"))


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize("part", ["certificate", "authority", "key"])
def test_identity_with_any_flipped_bit_is_good_or_refused_in_one_sentence(part: str) -> None:
    whole = certificates.issue(*certificates.create_authority("run"), "p0")
    data = getattr(whole, part)
    refused = 0
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        changed: dict[str, Any] = {part: bytes(damaged)}
        try:
            certificates.check(replace(whole, **changed))
        except InvalidInput:
            refused += 1
    assert refused > 4 * len(data)


PROBLEM_OF_FILES = """
import torch, spodgt
from pathlib import Path
NAMES = ["lima", "nairobi", "oslo"]
def build(client=None):
    def read(name):
        x = torch.tensor([float(v) for v in Path(f"data/{name}.csv").read_text().split()]).reshape(-1, 2)
        return x, (x[:, 0] > 0).long()
    names = NAMES if client is None else [client]
    data = {name: read(name) for name in names}
    return spodgt.Learning(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), data)
"""


def test_names_of_clients_are_those_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("problem.py").write_text(PROBLEM_OF_FILES)
    command = ("peer", "init", "--clients", "3", "--problem", "problem.py:build")
    code, _, errors = cli(*command)
    assert code == 2
    assert "'p0' is a default name, give the clients' names with --names." in errors
    Path("data").mkdir()
    for name in ("lima", "nairobi", "oslo"):
        Path(f"data/{name}.csv").write_text("1 2 -1 3 2 2 -2 1")
    code, out, _ = cli(*command, "--json")
    assert code == 0
    assert json.loads(out)["clients"] == ["lima", "nairobi", "oslo"]
