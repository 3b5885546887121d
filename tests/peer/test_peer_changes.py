"""The life of a run: clients join and leave, numbers and addresses change, certificates are renewed."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spodgt.errors import InvalidConfig, InvalidInput, InvalidNetwork
from spodgt.experiment import Experiment
from spodgt.peer.membership import certificates, manifest_changes, run_folders
from spodgt.peer.membership.manifest import Client, Link, Manifest, SignedManifest
from spodgt.peer.membership.run_folders import create
from spodgt.peer.options import Change, Deployment, Options
from spodgt.peer.process.main import Peer
from spodgt.peer.storage import state_store
from spodgt.peer.storage.backup import backup, restore, restore_model
from spodgt.peer.storage.state_store import DiskStateStore
from tests.peer.life import changing, renewals
from tests.peer.test_peer_setup import CONFIG, cli

BOTH: dict[tuple[str, str], dict[str, object]] = {("p0", "p5"): {}, ("p5", "p1"): {}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    create(tmp_path / "run", Experiment.parse(CONFIG), Deployment(divided_into=6))
    return tmp_path / "run"


# --- what a change is --------------------------------------------------------------------------------
def test_a_client_joins_on_the_part_of_the_problem_that_nobody_holds(run: Path) -> None:
    first = run_folders.load(run)
    made = manifest_changes.add_client(first, "p5", address="127.0.0.1:9", links=BOTH)
    assert (made.version, made.client("p5").part, made.client("p5").place) == (2, 5, 5)
    with pytest.raises(InvalidInput, match="all 6 parts of the problem are held"):
        manifest_changes.add_client(
            made, "p6", address="127.0.0.1:8", links={("p0", "p6"): {}, ("p6", "p1"): {}}
        )
    # a part is free again when its holder leaves; a place, from which draws come, never is
    later = manifest_changes.add_client(
        manifest_changes.remove_client(made, "p2"),
        "p6",
        address="127.0.0.1:8",
        links={("p0", "p6"): {}, ("p6", "p1"): {}},
    )
    assert (later.client("p6").part, later.client("p6").place) == (2, 6)
    assert Manifest.parse(later.to_text()) == later


def test_a_client_with_a_function_of_its_own_brings_its_data(run: Path) -> None:
    own = {"kind": "python", "build": "own.py:build"}
    full = replace(run_folders.load(run), problem=own, divided_into=5)
    made = manifest_changes.add_client(full, "p5", address="127.0.0.1:9", links=BOTH)
    assert made.client("p5").part == 5
    with pytest.raises(InvalidInput, match="all 5 parts of the problem are held"):
        manifest_changes.add_client(
            replace(full, problem={}), "p5", address="127.0.0.1:9", links=BOTH
        )


def test_a_root_stays_until_it_leaves_and_a_newcomer_never_leads(tmp_path: Path) -> None:
    run = tmp_path / "run"
    methods = {**CONFIG, "run": {**CONFIG["run"], "methods": ["relay"]}}
    create(run, Experiment.parse(methods), Deployment(divided_into=6))
    first = run_folders.load(run)
    assert first.root in first.names
    assert first.method.more["patience"] == 0.0
    links: dict[tuple[str, str], dict[str, object]] = {}
    for name in first.names:  # the newcomer has the best links of all
        links |= {("p5", name): {"p_hat": 1.0}, (name, "p5"): {"p_hat": 1.0}}
    made = manifest_changes.add_client(first, "p5", address="127.0.0.1:9", links=links)
    assert made.root == first.root
    assert made.topology("p5").root == first.root
    assert manifest_changes.remove_client(made, first.root).root == "p5"
    assert manifest_changes.set_quarantine(made, first.root).root == "p5"
    other = next(name for name in first.names if name != first.root)
    moved = manifest_changes.apply_change(made, Change(root=other))
    assert Manifest.parse(moved.to_text()).root == other
    leads = [moved.topology(name).role.step_weight for name in moved.names]
    assert [name for name, lead in zip(moved.names, leads, strict=True) if lead] == [other]
    with pytest.raises(InvalidInput, match=r"root='p9' must be one of p0, "):
        manifest_changes.apply_change(made, Change(root="p9"))


def test_a_root_is_for_methods_that_have_one(run: Path) -> None:
    assert b"root" not in run_folders.load(run).to_text()  # the release before reads this
    with pytest.raises(
        InvalidInput, match="root='p1' is for methods with a root, not for spod-gt-memory"
    ):
        manifest_changes.apply_change(run_folders.load(run), Change(root="p1"))


def test_a_name_is_used_once(run: Path) -> None:
    gone = manifest_changes.remove_client(run_folders.load(run), "p3")
    for manifest, name in ((gone, "p3"), (gone, "p0")):
        with pytest.raises(InvalidInput, match=f"'{name}' is or was another client's"):
            manifest_changes.add_client(manifest, name, address="127.0.0.1:9", links={})


def test_a_client_without_an_address_dials_its_links(run: Path) -> None:
    made = manifest_changes.add_client(run_folders.load(run), "p5", address="", links=BOTH)
    dial = {(link.sender, link.receiver): link.dial for link in made.links}
    assert dial["p0", "p5"] == "receiver"
    assert dial["p5", "p1"] == "sender"
    with pytest.raises(
        InvalidConfig, match=r"dials p5, which has no address; give it one, or use dial"
    ):
        manifest_changes.apply_change(made, Change(links={("p0", "p5"): {"dial": "sender"}}))


def test_what_a_change_gives_and_what_it_refuses(run: Path) -> None:
    first = run_folders.load(run)
    link = (first.links[0].sender, first.links[0].receiver)
    made = manifest_changes.apply_change(
        first,
        Change(
            0.02,
            30.0,
            50,
            {"p1": "127.0.0.1:9"},
            {"p2": {"kind": "budget", "share": 0.5}},
            {link: {"p_hat": 0.5}},
        ),
    )
    assert (made.version, made.method.step_size, made.rounds_per_second, made.max_alone) == (
        2,
        0.02,
        30.0,
        50,
    )
    assert made.client("p1").address == "127.0.0.1:9"
    assert made.client("p2").compute == {"kind": "budget", "share": 0.5}
    assert made.links[0].p_hat == 0.5
    assert manifest_changes.why_incompatible(first, made) is None
    for change, sentence in (
        (Change(), "nothing would change"),
        (Change(step_size=-1.0), "step_size"),
        (Change(max_alone=-1), "max_alone must be at least 0"),
        (Change(addresses={"p9": "a:1"}), "'p9' is not in version 1"),
        (Change(addresses={"p1": "nowhere"}), "the address of p1 must be host:port"),
        (Change(compute={"p1": {"kind": "luck"}}), "compute="),
        (Change(unlinked=frozenset({("p0", "p0")})), "link p0 → p0 is not in the manifest"),
        (Change(links={("p0", "p0"): {}}), "leads to itself"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            manifest_changes.apply_change(first, change)
    every = frozenset((link.sender, link.receiver) for link in first.links if link.receiver == "p0")
    with pytest.raises(InvalidNetwork, match="strongly connected"):
        manifest_changes.apply_change(first, Change(unlinked=every))


def test_a_client_in_quarantine_has_no_links_and_gets_them_back(run: Path) -> None:
    first = run_folders.load(run)
    made = manifest_changes.set_quarantine(first, "p0")
    assert made.topology("p0").role[:2] == ({}, {})
    assert made.neighbours("p0") == ({}, {})
    assert "p0" in made.names
    assert "p0" not in made.linked
    assert all("p0" not in made.topology(name).role.out for name in made.linked)
    back = manifest_changes.set_quarantine(made, "p0", on=False)
    assert back.topology("p0").role == first.topology("p0").role
    with pytest.raises(InvalidInput, match="p0 is in quarantine already"):
        manifest_changes.set_quarantine(made, "p0")


def test_what_cannot_change_is_refused_by_a_running_peer(run: Path) -> None:
    first = run_folders.load(run)
    moved = tuple(replace(c, place=9) if c.name == "p1" else c for c in first.clients)
    for later, why in (
        (replace(first, seed=4), "seed is another"),
        (replace(first, clients=moved), "place or part of p1 is another"),
    ):
        assert why in str(manifest_changes.why_incompatible(first, later))


def test_a_manifest_for_many_is_read_quickly_and_is_beyond_one_message() -> None:
    clients = [f"c{i}" for i in range(140)]
    made = replace(
        run_folders.plan_manifest(Experiment.parse(CONFIG), Deployment()),
        clients=tuple(Client(name, f"h:{i + 1}", i, i) for i, name in enumerate(clients)),
        links=tuple(Link(a, b) for a in clients for b in clients if a != b),
    )
    text = made.to_text()
    assert len(text) > 2**20
    assert Manifest.parse(text) == made


# --- files -------------------------------------------------------------------------------------------
def test_the_signature_is_inside_and_half_a_file_is_never_there(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = run_folders.issue(run, "p0")
    assert not list(run.rglob("*.sig"))
    before = (home / "manifest.toml").read_bytes()
    newer = SignedManifest.sign(
        replace(run_folders.load(run), version=2), (run / "ca.key").read_bytes()
    )

    def power_fails(_: int) -> None:
        raise OSError("no power")

    monkeypatch.setattr(os, "fsync", power_fails)
    with pytest.raises(OSError, match="no power"):
        newer.write(home)
    assert (home / "manifest.toml").read_bytes() == before
    monkeypatch.undo()
    assert run_folders.load(home).version == 1


def test_of_two_manifests_of_one_version_the_first_stays_in_force(
    run: Path, tmp_path: Path
) -> None:
    """Two operators change the same version: the second change is named, and not taken silently."""
    home = run_folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process"))
    authority = peer.membership.identity.authority
    key = (run / "ca.key").read_bytes()
    first, second, third = (
        SignedManifest.verify(SignedManifest.sign(made, key).file, authority)
        for made in (
            manifest_changes.apply_change(run_folders.load(run), Change(max_alone=201)),
            manifest_changes.apply_change(run_folders.load(run), Change(max_alone=202)),
            replace(run_folders.load(run), version=3, max_alone=203),
        )
    )
    membership = peer.membership
    membership._consider(first)
    membership._consider(second)  # a neighbour answers before the first is in force
    taken = membership.adopt()
    assert taken is not None
    assert taken.manifest.max_alone == 201
    membership._consider(second)
    assert membership.adopt() is None
    assert peer.journal.recent[-1][1:3] == (
        "refused",
        "manifest: another one of version 2 is in force; two were made from one version; "
        "make the next with spodgt peer set",
    )
    late = membership.terms.of(second, "p0")
    membership.update = late  # the other thread had found it before the first came into force
    assert membership.adopt() is None
    assert membership.manifest.max_alone == 201
    membership._consider(third)
    taken = membership.adopt()
    assert taken is not None
    assert taken.manifest.version == 3
    peer.store.close()


def test_a_neighbour_that_never_answers_delays_no_manifest_of_another(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that was removed kept its neighbours waiting for a manifest that came one byte a second."""
    home = run_folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process"))
    newer = SignedManifest.sign(
        manifest_changes.remove_client(run_folders.load(run), "p1"), (run / "ca.key").read_bytes()
    )
    asked = []

    async def answer(what: str, own: Any, address: str, name: str, *_: Any) -> bytes:
        asked.append(name)
        if name == "p1":
            await asyncio.sleep(3600)
        return newer.file

    monkeypatch.setattr("spodgt.peer.process.membership.fetch", answer)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        for name in ("p1", "p1", "p2"):
            await asyncio.to_thread(peer.membership.request_manifest, name, loop)
        while peer.membership.update is None:
            await asyncio.sleep(0.01)
        for request in peer.membership._requests.values():
            request.cancel()

    asyncio.run(asyncio.wait_for(work(), 20))
    assert sorted(asked) == ["p1", "p2"]
    assert peer.membership.update is not None
    assert peer.membership.update.manifest.names == ["p0", "p2", "p3", "p4"]
    peer.store.close()


def test_an_observer_reads_the_manifest_and_a_removed_client_does_not(run: Path) -> None:
    peer = Peer(run_folders.issue(run, "p0"), "p0", Options(durability="process"))
    for name, may in (("p1", True), (certificates.OBSERVER, True), ("p9", False)):
        assert (peer.membership.manifest_for(name) is not None) == may
    peer.store.close()


def test_an_older_manifest_than_the_state_is_refused(run: Path) -> None:
    home = run_folders.issue(run, "p0")
    old = (home / "manifest.toml").read_bytes()
    run_folders.remove(run, "p3")
    Peer(home, "p0", Options(durability="process", rounds=3)).run()
    (home / "manifest.toml").write_bytes(old)
    with pytest.raises(InvalidInput, match=r"has version 2, but manifest.toml has version 1"):
        Peer(home, "p0", Options(durability="process"))
    DiskStateStore(
        home / "state"
    ).close()  # it can be opened again: a start that was refused holds no lock


def test_a_key_that_others_can_read_is_refused_and_made_anew_as_a_secret(run: Path) -> None:
    home = run_folders.issue(run, "p0")
    (home / "key.pem").chmod(0o644)
    with pytest.raises(
        InvalidInput, match=r"key.pem has mode 0644, others could read it; run: chmod 600"
    ):
        certificates.Identity.read(home, "p0")
    run_folders.issue(run, "p0")
    assert (home / "key.pem").stat().st_mode & 0o777 == 0o600


def test_a_running_client_is_exported_and_backed_up_and_comes_back(
    run: Path, tmp_path: Path
) -> None:
    home = run_folders.issue(run, "p0")
    Peer(home, "p0", Options(durability="process", rounds=20)).run()
    peer = Peer(home, "p0", Options(durability="process"))  # holds the lock from here on
    told = run_folders.export(home, tmp_path / "model.safetensors")
    assert told["k"] == 21
    file = tmp_path / "p0.backup"
    assert backup(home, file)["k"] == 21
    assert file.stat().st_mode & 0o777 == 0o600
    x = peer.node.state.method.x[0].clone()
    peer.store.close()
    with pytest.raises(InvalidInput, match="holds a state, which a restore would set back"):
        restore(file, home)
    back = tmp_path / "back" / "p0"
    assert restore(file, back)["name"] == "p0"
    assert (back / "key.pem").stat().st_mode & 0o777 == 0o600
    again = Peer(back, "p0", Options(durability="process", rounds=40))
    assert torch.equal(again.node.state.method.x[0], x)
    again.run()
    assert run_folders.audit_folders([back]).local["p0"] <= 1e-12
    # only the model: the run was ruined, and gradients were taken at ruined models
    epoch = again.node.state.epoch
    for good in (file, tmp_path / "model.safetensors"):
        restore_model(good, back)
        model, meta = state_store.read(back / "state")
        assert torch.equal(model["x"], x)
        epoch += 1
        assert (meta["k"], meta["epoch"]) == (41, epoch)
        assert not model["y"].any()
        assert not model["g"].any()
        assert run_folders.audit_folders([back]).local["p0"] <= 1e-12
    (tmp_path / "junk").write_bytes(b"junk")
    for bad, folder, why in (
        (tmp_path / "junk", back, "cannot be read as a backup"),
        (tmp_path / "model.safetensors", tmp_path / "new", "is no backup of a peer"),
    ):
        with pytest.raises(InvalidInput, match=why):
            restore(bad, folder)
    assert not (tmp_path / "new").exists()
    with pytest.raises(InvalidInput, match="holds no peer state"):
        backup(run / "nobody", file)


def test_half_a_renewal_is_not_used_and_the_whole_one_is(run: Path) -> None:
    home = run_folders.issue(run, "p0", days=1)
    peer = Peer(home, "p0", Options(durability="process", report_every=0.0))
    first = peer.membership.identity
    peer.transport.loop = Loop()  # type: ignore[assignment]
    peer.transport.listener.address = run_folders.load(run).client("p0").address
    peer.rounds._report()
    assert peer.reporter.status.warnings == [
        "the certificate ends in 1.0 days; renew it with: spodgt peer renew p0"
    ]
    other = run_folders.issue(run, "p1", days=20)
    (home / "key.pem").write_bytes((other / "key.pem").read_bytes())
    assert peer.membership.check_folder() is None
    assert peer.membership.identity is first
    run_folders.issue(run, "p0", days=20)
    renewed = peer.membership.check_folder()
    assert renewed is not None
    assert 19.9 < certificates.days_left(renewed) < 20
    assert peer.membership.check_folder() is None
    assert peer.transport.local.identity is first
    loop = peer.transport.loop = Loop()  # type: ignore[assignment]
    peer.membership.certificate._seen = ()
    peer.rounds._report()
    assert loop.done[0] == "renew"
    assert 19.9 < peer.reporter.status.days_left < 20
    assert peer.reporter.status.warnings == []
    told = [text for _, kind, text, _ in peer.journal.recent if kind == "certificate"]
    assert "do not belong to each other" in told[-2]
    assert "a new one, valid for 20.0 days" in told[-1]
    peer.store.close()


BROKEN: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "half": ("cert.pem", lambda data: data[:300]),
    "empty": ("cert.pem", lambda data: b""),
    "garbage": ("cert.pem", lambda data: b"hello\n"),
    "half a key": ("key.pem", lambda data: data[:100]),
    "an empty key": ("key.pem", lambda data: b""),
    "a broken authority": ("ca.pem", lambda data: b"x"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_certificate_that_is_copied_in_place_does_not_end_a_running_peer(
    how: str, run: Path
) -> None:
    home = run_folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process"))
    own = peer.membership.identity
    run_folders.issue(run, "p0", days=20)
    file, damage = BROKEN[how]
    whole = (home / file).read_bytes()
    (home / file).write_bytes(damage(whole))
    for _ in range(3):
        assert peer.membership.check_folder() is None
    assert peer.membership.identity is own
    told = [text for _, kind, text, _ in peer.journal.recent if kind == "certificate"]
    assert len(told) == 1
    assert told[0].startswith(f"the old one stays in use: {file} of p0 holds no whole ")
    (home / file).write_bytes(whole)
    renewed = peer.membership.check_folder()
    assert renewed is not None
    assert 19.9 < certificates.days_left(renewed) < 20
    peer.store.close()


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_certificate_at_a_start_is_one_sentence(
    how: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = run_folders.issue(run, "p0")
    file, damage = BROKEN[how]
    (home / file).write_bytes(damage((home / file).read_bytes()))
    code, text = cli(
        "peer", "start", "p0", "--run", str(run), capsys=capsys, monkeypatch=monkeypatch
    )
    assert code == 2
    assert f"error: {file} of p0 holds no whole " in text
    assert len(text.splitlines()) == 1


def test_an_unusable_manifest_in_the_folder_of_a_running_peer_is_named(run: Path) -> None:
    home = run_folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process"))
    first = (home / "manifest.toml").read_bytes()
    made = replace(run_folders.load(run), max_alone=7)  # another one of version 1, rightly signed
    same = SignedManifest.sign(made, (run / "ca.key").read_bytes()).file
    for file, sentence in (
        (b"garbage", "manifest.toml does not match its signature"),
        (
            first.replace(b"version = 1", b"version = 9"),
            "manifest.toml does not match its signature",
        ),
        (same, "another one of the same version is in use; publish the next version."),
    ):
        peer.journal.recent.clear()
        peer.journal.last_logged.clear()
        peer.membership._refusal = ""
        (home / "manifest.toml").write_bytes(file)
        for _ in range(3):
            peer.membership.check_folder()
        told = [text for _, kind, text, _ in peer.journal.recent if kind == "manifest"]
        assert len(told) == 1
        assert told[0].startswith(
            "version 1 stays in use; manifest.toml in the folder is not usable: "
        )
        assert sentence in told[0]
    peer.store.close()


def test_two_manifests_of_one_version_are_not_both_taken(run: Path) -> None:
    home = run_folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process"))
    key = (run / "ca.key").read_bytes()
    for alone in (7, 8):
        newer = SignedManifest.sign(replace(run_folders.load(run), version=2, max_alone=alone), key)
        if alone == 8:
            late = peer.membership.terms.of(newer, "p0", peer.membership.terms)
        else:
            newer.write(home)
    peer.membership.check_folder()
    assert peer.membership.adopt() is not None
    peer.membership.update = late  # considered by the other thread before version 2 was in force
    assert peer.membership.adopt() is None
    assert peer.membership.manifest.max_alone == 7
    peer.store.close()


def test_changes_of_two_admins_at_once_are_both_made(run: Path) -> None:
    begun = threading.Event()

    def slow(manifest: Manifest) -> Manifest:
        begun.set()
        time.sleep(0.3)  # the other one must not read the manifest now
        return manifest_changes.apply_change(manifest, Change(max_alone=7))

    first = threading.Thread(target=run_folders.publish_next, args=(run, slow))
    first.start()
    assert begun.wait(10)
    run_folders.publish_next(
        run,
        lambda manifest: manifest_changes.apply_change(manifest, Change(rounds_per_second=20.0)),
    )
    first.join(10)
    made = run_folders.load(run)
    assert (made.version, made.max_alone, made.rounds_per_second) == (3, 7, 20.0)


def test_a_client_that_was_removed_ends_with_a_sentence(run: Path) -> None:
    home = run_folders.issue(run, "p3")
    peer = Peer(home, "p3", Options(durability="process", seconds=20, report_every=0.1))
    run_folders.remove(run, "p3")
    with pytest.raises(InvalidInput, match="p3 was removed from the run in version 2"):
        peer.run()


def test_a_manifest_that_cannot_be_taken_whole_is_not_taken(run: Path) -> None:
    home = run_folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process"))
    run_folders.publish(run, replace(run_folders.load(run), version=2, seed=7))
    peer.membership.check_folder()
    assert peer.membership.update is None
    assert "seed is another" in list(peer.journal.recent)[-1][2]
    peer.store.close()


class Loop:
    """An event loop that does at once what it is told."""

    def call_soon_threadsafe(self, call: Any, *arguments: Any) -> None:
        self.done = (call.__name__, *arguments)


def test_all_that_a_manifest_says_is_taken(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = run_folders.issue(run, "p0")
    peer = Peer(home, "p0", Options(durability="process"))
    loop = peer.transport.loop = Loop()  # type: ignore[assignment]
    device = {"kind": "bernoulli", "p": 0.25}
    wanted = Change(1e-9, addresses={"p1": "127.0.0.1:9"}, compute={"p0": device})
    made = run_folders.publish_next(
        run,
        lambda m: manifest_changes.apply_change(manifest_changes.remove_client(m, "p3"), wanted),
    )
    peer.membership.check_folder()
    assert peer.rounds._follow_manifest()
    node = peer.node
    assert vars(node.method_step.algorithm)["step_size"] == 1e-9
    assert peer.local_problem.capacity.p == node.member.p == 0.25
    assert node.member.clients == 4
    assert node.state.epoch == made.epoch
    name, out, into = loop.done
    assert name == "relink"
    assert out["p1"] == "127.0.0.1:9"
    assert "p3" not in {*out, *into}
    assert peer.membership.manifest_for("p1") == (home / "manifest.toml").read_bytes()
    assert peer.membership.manifest_for("p3") is None
    # where it listens, too
    moved: list[str] = []
    monkeypatch.setattr(peer.transport.listener, "move", moved.append)
    monkeypatch.setattr("asyncio.run_coroutine_threadsafe", lambda work, loop: None)
    peer.rounds._report()
    assert moved == [made.client("p0").address]
    peer.store.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "P5", "--address", "a:1", "--links", "p0"], "client name 'P5' must have 1 to 63"),
        (["add", "p5", "--address", "a", "--links", "p0"], "the address of p5 must be host:port"),
        (["add", "p5", "--address", "a:1", "--links", "p9"], "names 'p9', which is no client"),
        (["set"], "nothing would change"),
        (["set", "--step-size", "fast"], "step_size must be a number or a schedule, got 'fast'"),
        (["set", "--step-size", "{schedule = 'up'}"], "schedule"),
        (["set", "--address", "p1"], "--address 'p1' must be NAME=host:port"),
        (["set", "--link", "p1"], "link 'p1' must be SENDER:RECEIVER"),
        (["quarantine", "p9"], "client 'p9' is not in version 1"),
        (["quarantine", "p1", "--end"], "p1 is not in quarantine"),
        (["renew", "p9"], "client 'p9' is not in version 1"),
    ],
)
def test_a_change_that_cannot_be_leaves_the_manifest_alone(
    run: Path,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = (run / "manifest.toml").read_bytes()
    code, text = cli("peer", *arguments, "--run", str(run), capsys=capsys, monkeypatch=monkeypatch)
    assert code == 2
    assert sentence in text
    assert (run / "manifest.toml").read_bytes() == before


def test_changes_by_command(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: str) -> str:
        code, text = cli(
            "peer", *arguments, "--run", str(run), capsys=capsys, monkeypatch=monkeypatch
        )
        assert code == 0, text
        return text

    assert "part 5 of the problem" in call(
        "add", "p5", "--address", "127.0.0.1:9", "--links", "p0,p5:p1"
    )
    ends = {
        (link.sender, link.receiver) for link in run_folders.load(run).links if "p5" in str(link)
    }
    assert ends == {("p0", "p5"), ("p5", "p0"), ("p5", "p1")}
    assert (run / "p5" / "key.pem").exists()
    call("set", "--step-size", "0.01", "--address", "p0=127.0.0.1:8", "--unlink", "p5:p1")
    call("set", "--step-size", "{schedule = 'inverse', start = 0.1, scale = 30.0}")
    assert run_folders.load(run).method.build().name == "spod-gt-memory+inverse"
    call("set", "--step-size", "0.01")
    call("quarantine", "p2")
    call("renew", "p5", "--days", "2")
    made = run_folders.load(run / "p5")
    assert (made.version, made.method.step_size, made.client("p0").address) == (
        6,
        0.01,
        "127.0.0.1:8",
    )
    assert made.client("p2").quarantined


# --- while it runs -----------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.network
def test_join_leave_another_step_and_another_address_while_it_runs() -> None:
    print(changing())


@pytest.mark.slow
@pytest.mark.network
def test_short_certificates_are_renewed_and_no_link_stays_down() -> None:
    print(renewals(45, 15, 0.003))


def test_a_signed_file_is_its_text_and_one_line(run: Path) -> None:
    text = (run / "manifest.toml").read_text()
    assert text.splitlines()[-1].startswith("# signature: ")
    authority = (run / "ca.pem").read_bytes()
    assert SignedManifest.verify(text.encode(), authority).manifest == run_folders.load(run)
    for changed in (
        text.replace("seed = 0", "seed = 1"),
        text[:-9],
        text + "x = 1\n",
        "",
        "# signature: !",
    ):
        with pytest.raises(InvalidInput, match="does not match its signature"):
            SignedManifest.verify(changed.encode(), authority)
