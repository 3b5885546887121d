"""Wrong uses of `spodgt.join`: one sentence that names the fix, and nothing is lost."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spodgt.errors import Failed, InvalidInput
from spodgt.experiment import Experiment
from spodgt.peer.host.files import DiskFile
from spodgt.peer.membership import run_folders
from spodgt.peer.membership.run_folders import audit_folders
from spodgt.peer.protocol.client_state import state_from
from spodgt.peer.storage import state_store
from spodgt.sites.api import join
from spodgt.sites.layout import model_row
from spodgt.sites.run_setup import create_script_run
from spodgt.sites.site import Site
from tests.conftest import Cli
from tests.sites.fleet_of_threads import make_run

pytestmark = pytest.mark.network


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the first of two sites; the second is never started."""
    make_run(tmp_path / "run", network(), 2)
    return tmp_path / "run" / "p0"


def alone(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Site:
    """A site that does not wait for the other one."""
    chosen = {
        "block_steps": 2,
        "max_silent_blocks": None,
        "linger_seconds": 0.1,
        "durability": "process",
        **options,
    }
    return join(folder, model, optimizer, **chosen)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, scale: float = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.ones(2, 3)).sum() * scale)
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def committed_steps(folder: Path) -> int:
    steps = state_store.read(folder / "state").meta["gradients"]
    assert isinstance(steps, int)
    return steps


def check_audit(folder: Path) -> None:
    """The other site has no state, so only the local identity can be checked."""
    assert max(audit_folders([folder]).local.values()) <= 1e-12


def check_nothing_is_lost(folder: Path, steps: int) -> None:
    """The state passes its audit and holds `steps`, and the site continues from it."""
    check_audit(folder)
    assert committed_steps(folder) == steps
    model = network()
    optimizer = sgd(model)
    with alone(folder, model, optimizer) as site:
        assert site.steps == steps
        train(model, optimizer, 2)
    assert committed_steps(folder) == steps + 2


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)),
            r"0\.weight float32\[5, 3\] is where 0\.weight float32\[4, 3\] was expected",
        ),
        (lambda: nn.Linear(3, 4), r"weight float32\[4, 3\] is where 0\.weight"),
        (lambda: network().append(nn.Linear(1, 1)), "it has 6 parameters, 4 were expected"),
        (lambda: network().double(), r"0\.weight float64\[4, 3\] is where 0\.weight float32"),
    ],
)
def test_model_that_differs_from_the_manifest_is_refused(
    folder: Path, other: Callable[[], nn.Module], text: str
) -> None:
    model = network()
    optimizer = sgd(model)
    with alone(folder, model, optimizer):
        train(model, optimizer, 2)
    changed = other()
    with pytest.raises(InvalidInput, match=f"{text}.*; use the same model at every site"):
        alone(folder, changed, sgd(changed)).__enter__()
    check_nothing_is_lost(folder, 2)


def test_half_precision_and_foreign_optimizers_are_refused(folder: Path) -> None:
    model = network()
    with pytest.raises(InvalidInput, match=r"use torch\.autocast for mixed precision"):
        join(folder, network().half(), sgd(model))
    with pytest.raises(InvalidInput, match=r"make it from\s+model\.parameters\(\)"):
        join(folder, model, sgd(network()))
    with pytest.raises(InvalidInput, match=r"model must be a torch\.nn\.Module, got dict"):
        join(folder, {}, sgd(model))  # type: ignore[arg-type]


def test_folder_without_certificate_or_of_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(InvalidInput, match="holds no certificate; make it with spodgt peer init"):
        join(tmp_path, model, sgd(model)).__enter__()
    config = Experiment.parse(
        {
            "problem": {"kind": "quadratic", "parameters": 3},
            "network": {"kind": "exponential", "clients": 2},
            "run": {"methods": ["spod-gt-memory"], "seeds": 1, "step_size": 0.1},
        }
    )
    run_folders.create(tmp_path / "run", config)
    run_folders.issue(tmp_path / "run", "p0")
    with pytest.raises(InvalidInput, match="spodgt peer init --script"):
        join(tmp_path / "run" / "p0", model, sgd(model)).__enter__()


def test_commands_of_peers_name_the_script(tmp_path: Path, cli: Cli) -> None:
    experiment = Experiment.parse({"network": {"kind": "exponential", "clients": 2}})
    create_script_run(tmp_path / "run", experiment, model_row(network()).layout)
    code, out, _ = cli("peer", "issue", "all", "--run", "run")
    assert (code, out.splitlines()[-1]) == (
        0,
        "next: copy each folder to its host, and start the script there",
    )
    for words, sentence in {
        ("status",): "start the script at a site, or give the folder of a site: run/NAME",
        ("start", "p0"): "start the script that calls spodgt.join with this folder",
    }.items():
        code, _, err = cli("peer", *words, "--run", "run")
        assert (code, sentence in err) == (2, True), err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"block_steps": 0}, "block_steps must be a positive number, got 0; use block_steps=50"),
        ({"block_steps": 2.5}, r"block_steps must be an integer, got 2\.5"),
        ({"block_seconds": -1.0}, "block_seconds must be a positive number"),
        ({"max_silent_blocks": "10"}, "max_silent_blocks must be a positive number, got '10'"),
        ({"linger_seconds": None}, "linger_seconds must be a positive number, got None"),
        ({"alpha": 0}, r"alpha must be in \(0, 1\], got 0; use alpha=1.0"),
        ({"weight": float("nan")}, "weight must be a positive number, got nan"),
        ({"max_norm": 0.0}, r"max_norm must be a positive number, got 0\.0"),
        ({"weight": "2"}, "weight must be a positive number, got '2'"),
        ({"weight": float("inf")}, "weight must be finite, got inf"),
        ({"block_steps": float("inf")}, "block_steps must be an integer, got inf"),
        ({"scheduler": "cosine"}, r"scheduler must have state_dict\(\).*, got str"),
        ({"block_steps": True}, "block_steps must be a positive number, got True"),
        ({"alpha": True}, r"alpha must be in \(0, 1\], got True"),
        ({"initial": "mine"}, "initial must be 'first' or 'own', got 'mine'"),
        ({"durability": "none"}, "durability must be 'power' or 'process', got 'none'"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    model = network()
    with pytest.raises(InvalidInput, match=text):
        join(tmp_path, model, sgd(model), **options)


def test_numbers_of_numpy_are_options(tmp_path: Path) -> None:
    model = network()
    numbers: dict[str, Any] = {"block_steps": np.int64(3), "alpha": np.float32(0.5)}
    site = join(tmp_path, model, sgd(model), **numbers)
    assert site.options.block_steps == 3


@pytest.mark.parametrize("folder", [None, 3])
def test_folder_that_is_no_path_is_refused(folder: Any) -> None:
    model = network()
    with pytest.raises(InvalidInput, match=r"folder must be a path, got .*; give the folder of"):
        join(folder, model, sgd(model))


def test_join_that_is_repeated_without_with_replaces_the_first(folder: Path) -> None:
    """As in a notebook, where a cell is run again."""
    model = network()
    optimizer = sgd(model)
    alone(folder, model, optimizer)
    site = alone(folder, model, optimizer)
    with pytest.raises(Failed, match="inside the with block"):
        train(model, optimizer, 1)
    with site:
        train(model, optimizer, 2)
    assert len(optimizer._optimizer_step_pre_hooks) == 0
    check_nothing_is_lost(folder, 2)


def test_with_block_may_be_entered_again(folder: Path) -> None:
    model = network()
    optimizer = sgd(model)
    site = alone(folder, model, optimizer)
    for _ in range(2):
        with site:
            train(model, optimizer, 2)
    assert site.steps == 4
    check_nothing_is_lost(folder, 4)


def test_second_join_in_one_folder_is_refused_and_the_first_continues(folder: Path) -> None:
    model = network()
    optimizer = sgd(model)
    other = network()
    with alone(folder, model, optimizer) as site:
        train(model, optimizer, 2)
        with pytest.raises(Failed, match="is in use by another process; stop that first"):
            alone(folder, other, sgd(other)).__enter__()
        train(model, optimizer, 2)
        assert site.steps == 4
    check_nothing_is_lost(folder, 4)


def test_optimizer_of_two_sites_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its gradients would be corrected twice."""
    make_run(tmp_path / "other", network(), 2)
    model = network()
    optimizer = sgd(model)
    with alone(folder, model, optimizer):
        train(model, optimizer, 2)
        with pytest.raises(InvalidInput, match="used by another site of this process"):
            alone(tmp_path / "other" / "p0", model, optimizer).__enter__()
        train(model, optimizer, 2)
    check_nothing_is_lost(folder, 4)


def test_step_that_is_never_called_is_reported(folder: Path) -> None:
    model = network()
    with (
        pytest.warns(UserWarning, match=r"optimizer\.step\(\) was never called"),
        alone(folder, model, sgd(model)),
    ):
        pass
    assert committed_steps(folder) == 0


def test_steps_without_a_gradient_are_reported(folder: Path) -> None:
    """As when gradients are cleared before the step, or belong to another copy of the model."""
    model = network()
    optimizer = sgd(model)

    def script() -> None:
        with alone(folder, model, optimizer):
            for _ in range(3):
                torch.autograd.backward(model(torch.ones(2, 3)).sum())
                optimizer.zero_grad()
                optimizer.step()

    with pytest.warns(UserWarning, match=r"3 steps had no gradient.*call loss\.backward"):
        script()
    assert committed_steps(folder) == 0


def test_score_that_is_no_number_is_refused(folder: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with alone(folder, model, optimizer) as site:
        train(model, optimizer, 2)
        with pytest.raises(InvalidInput, match=r"loss must be a number, got 'low'; pass for exa"):
            site.report(loss="low")  # type: ignore[arg-type]
        site.report(loss=torch.tensor(1.0))  # type: ignore[arg-type]
    check_nothing_is_lost(folder, 2)


def test_methods_need_the_with_block(folder: Path) -> None:
    model = network()
    site = alone(folder, model, sgd(model))
    for call in (site.exchange, site.correct):
        with pytest.raises(InvalidInput, match=r"with spodgt\.join"):
            call()


def test_steps_before_the_with_block_are_refused(folder: Path) -> None:
    """A script that forgets `with` would train alone."""
    model = network()
    optimizer = sgd(model)
    site = alone(folder, model, optimizer)
    with pytest.raises(Failed, match="put the training loop inside the with block"):
        train(model, optimizer, 1)
    with site:
        train(model, optimizer, 2)
    check_nothing_is_lost(folder, 2)


def test_site_that_was_left_exchanges_nothing_and_still_takes_scores(folder: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with alone(folder, model, optimizer) as site:
        train(model, optimizer, 2)
    for call in (site.exchange, site.correct):
        with pytest.raises(InvalidInput, match=r"with spodgt\.join"):
            call()
    train(model, optimizer, 1)  # a plain step: the hooks are gone
    assert site.steps == 2
    assert site.exchange_seconds > 0
    site.report(accuracy=0.5)
    assert json.loads((folder / "status.json").read_text())["accuracy"] == 0.5


def test_smaller_learning_rate_of_a_restarted_script_is_used(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The advice after a model that has diverged."""
    model = network()
    optimizer = sgd(model)
    with alone(folder, model, optimizer):
        train(model, optimizer, 2)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with alone(folder, model, optimizer):
        assert optimizer.param_groups[0]["lr"] == 0.001
        train(model, optimizer, 2)
    expected = "p0: the script changed lr of its optimizer from 0.01 to 0.001; moments and position"
    assert expected in capfd.readouterr().err


def test_removed_hooks_end_the_run_without_loss(folder: Path) -> None:
    model = network()
    optimizer = sgd(model)

    def script() -> None:
        with alone(folder, model, optimizer) as site:
            train(model, optimizer, 2)
            assert site._hooks is not None
            for handle in site._hooks._handles[:2]:
                handle.remove()
            train(model, optimizer, 1)

    with pytest.raises(Failed, match="join again after the code that removes them"):
        script()
    check_nothing_is_lost(folder, 2)


def test_nan_loss_is_skipped_then_ends_the_run_without_loss(folder: Path) -> None:
    model = network()
    optimizer = sgd(model)

    def script() -> None:
        with alone(folder, model, optimizer):
            train(model, optimizer, 2)
            train(model, optimizer, 10, scale=float("nan"))

    text = "10 gradients in a row were not finite, none was used or sent"
    with pytest.warns(UserWarning, match="not finite; the step was skipped"):  # noqa: SIM117
        with pytest.raises(Failed, match=text):
            script()
    check_nothing_is_lost(folder, 2)


def test_diverged_model_is_not_sent_and_the_site_continues_from_its_last_exchange(
    folder: Path,
) -> None:
    model = network()
    optimizer = sgd(model)

    def script() -> None:
        with alone(folder, model, optimizer) as site:
            train(model, optimizer, 2)
            for parameter in model.parameters():
                parameter.data.fill_(float("inf"))
            site.exchange()

    with pytest.raises(Failed, match="holds NaN or infinity; nothing of this block was sent"):
        script()
    check_nothing_is_lost(folder, 2)


def test_full_disk_ends_the_run_without_loss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    optimizer = sgd(model)
    write = DiskFile.write

    def script() -> None:
        with alone(folder, model, optimizer) as site:
            train(model, optimizer, 2)
            assert site._connection is not None
            handover = site._connection.handover
            handover.wait_until(lambda: handover.block is None)
            monkeypatch.setattr(DiskFile, "write", _no_space)
            train(model, optimizer, 6)

    with pytest.raises(Failed, match=r"the disk is full; nothing was sent\. Free the disk"):
        script()
    monkeypatch.setattr(DiskFile, "write", write)
    check_nothing_is_lost(folder, 2)


def _no_space(file: DiskFile, data: memoryview, at: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m[0].requires_grad_(False), r"0\.weight was frozen or replaced after"),
        (
            lambda m: m.load_state_dict(network().state_dict(), assign=True),
            r"0\.weight was frozen or replaced after",
        ),
        (lambda m: m.append(nn.Linear(1, 1)), r"3\.weight was unfrozen or added after"),
        (lambda m: m.double(), r"0\.weight is float64 now, it was float32"),
    ],
)
def test_model_that_changes_after_joining_is_refused(
    folder: Path, change: Callable[[nn.Module], object], text: str
) -> None:
    model = network()
    optimizer = sgd(model)

    def script() -> None:
        with alone(folder, model, optimizer) as site:
            train(model, optimizer, 2)
            change(model)
            site.exchange()

    with pytest.raises(InvalidInput, match=text):
        script()
    check_nothing_is_lost(folder, 2)


def test_own_checkpoints_may_be_loaded_freely(folder: Path) -> None:
    """The model changes; tracker and contribution do not, and hooks stay."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with alone(folder, model, optimizer) as site:
        train(model, optimizer, 4)
        assert site._connection is not None
        before = site._connection.node.state.method
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        after = site._connection.node.state.method
        assert torch.equal(before.y, after.y)
        assert torch.equal(before.g, after.g)
        train(model, optimizer, 2)
        assert site.steps == 6
    check_audit(folder)
    state = state_from(*state_store.read(folder / "state"))
    assert state.method.g.any()


def test_loss_that_is_not_reported_is_no_warning_and_one_that_is_nan_is(folder: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with alone(folder, model, optimizer) as site:
        train(model, optimizer, 2)
        assert site._connection is not None
        reporter = site._connection.reporter
        reporter.report()
        assert reporter.status.warnings == []
        site.report(loss=1.0)
        reporter.evaluated = -1e9
        reporter.report()
        assert reporter.status.warnings == []
        site.report(loss=float("nan"))
        reporter.evaluated = -1e9
        reporter.report()
        assert reporter.status.warnings == ["loss is not finite: the model has diverged"]
