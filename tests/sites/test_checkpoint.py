"""The state of optimizer, scheduler and scaler beside that of the exchange."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spodgt.sites import checkpoint
from spodgt.sites.api import join
from tests.sites.fleet_of_threads import make_run


def trained(optimizer_type: Any, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = optimizer_type(model.parameters(), **options)
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.ones(1, 3)).sum())
        optimizer.step()
    return model, optimizer


def same(first: Any, second: Any) -> bool:
    """Whether two state dicts hold the same numbers."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


@pytest.mark.parametrize(
    ("optimizer_type", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}),
        (torch.optim.Adam, {"lr": torch.tensor(0.1)}),
    ],
)
def test_state_is_restored(tmp_path: Path, optimizer_type: Any, options: dict[str, Any]) -> None:
    texts: list[tuple[str, str]] = []
    _, optimizer = trained(optimizer_type, **options)
    schedulers: dict[str, Any] = {
        "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        "steps": torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0),
    }
    objects = {"optimizer": optimizer, **schedulers}
    checkpoint.save(tmp_path, objects, lambda *event: texts.append(event))
    _, other = trained(optimizer_type, lr=0.5)
    again: dict[str, Any] = {
        "optimizer": other,
        "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(other, 99),
        "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau(other, patience=99),
        "steps": torch.optim.lr_scheduler.MultiStepLR(other, [99]),
        "scaler": torch.amp.GradScaler("cpu", init_scale=2.0),
    }
    checkpoint.load(tmp_path, again, lambda *event: texts.append(event))
    assert not texts
    for name, each in objects.items():
        assert same(each.state_dict(), again[name].state_dict()), name
    other.step()
    again["cosine"].step()


def test_state_of_another_optimizer_is_not_used(tmp_path: Path) -> None:
    texts: list[tuple[str, str]] = []
    _, optimizer = trained(torch.optim.SGD, lr=0.1, momentum=0.9)
    checkpoint.save(tmp_path, {"optimizer": optimizer}, lambda *event: texts.append(event))
    _, other = trained(torch.optim.Adam, lr=0.2)
    checkpoint.load(tmp_path, {"optimizer": other}, lambda *event: texts.append(event))
    assert texts == [("training state", "optimizer does not fit: it is of SGD; it begins anew")]
    assert other.param_groups[0]["lr"] == 0.2
    other.step()


@pytest.mark.parametrize("content", [b"", b"1234", b"\xff" * 100])
def test_damaged_file_is_not_used(tmp_path: Path, content: bytes) -> None:
    texts: list[tuple[str, str]] = []
    _, optimizer = trained(torch.optim.SGD, lr=0.1)
    (tmp_path / checkpoint.FILE).write_bytes(content)
    checkpoint.load(tmp_path, {"optimizer": optimizer}, lambda *event: texts.append(event))
    assert "cannot be read" in texts[0][1]


def test_full_disk_keeps_the_older_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[tuple[str, str]] = []
    _, optimizer = trained(torch.optim.SGD, lr=0.1)
    checkpoint.save(tmp_path, {"optimizer": optimizer}, lambda *event: texts.append(event))
    before = (tmp_path / checkpoint.FILE).read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "_write", fail)
    checkpoint.save(tmp_path, {"optimizer": optimizer}, lambda *event: texts.append(event))
    assert "cannot be written: No space left on device; the older copy stays" in texts[0][1]
    assert (tmp_path / checkpoint.FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.FILE]


@pytest.mark.network
def test_restarts_at_block_ends_do_not_change_training(tmp_path: Path) -> None:
    """Model, optimizer, schedule and correction continue as in an unbroken run."""

    def train(folder: Path, processes: int) -> tuple[torch.Tensor, float]:
        make_run(folder, nn.Linear(3, 1), 2)
        for _ in range(processes):
            torch.manual_seed(0)
            model = nn.Linear(3, 1)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
            with join(
                folder / "p0",
                model,
                optimizer,
                scheduler=scheduler,
                block_steps=10,
                max_silent_blocks=None,
                linger_seconds=0.1,
                durability="process",
            ) as site:
                for _ in range(40 // processes):
                    x = torch.ones(1, 3) * site.steps
                    optimizer.zero_grad()
                    torch.autograd.backward(model(x).square().sum())
                    optimizer.step()
                    scheduler.step()
        return model.weight.detach(), optimizer.param_groups[0]["lr"]

    unbroken, rate = train(tmp_path / "unbroken", 1)
    broken, last_rate = train(tmp_path / "broken", 4)
    assert torch.equal(unbroken, broken)
    assert rate == last_rate
