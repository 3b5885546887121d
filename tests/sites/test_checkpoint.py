"""The state of optimizer, scheduler and scaler beside that of the exchange."""

from __future__ import annotations

import copy
import errno
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spodgt.sites import checkpoint
from spodgt.sites.api import join
from spodgt.sites.checkpoint import Checkpoint
from tests.sites.fleet_of_threads import make_run


class Script:
    """Model, optimizer and what else is saved, as a script makes them."""

    def __init__(
        self, folder: Path, optimizer_type: Any, *, schedule: int = 10, **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        options = copy.deepcopy(options)  # schedules change a rate that is a tensor in place
        self.optimizer = optimizer_type(self.model.parameters(), **options)
        self.objects: dict[str, Any] = {
            "optimizer": self.optimizer,
            "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, schedule),
            "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer),
            "steps": torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4]),
            "scaler": torch.amp.GradScaler("cpu", init_scale=8.0),
        }
        self.texts: list[str] = []
        self.checkpoint = Checkpoint(folder, self.objects, lambda _, text: self.texts.append(text))

    def train(self, steps: int = 3) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            torch.autograd.backward(self.model(torch.ones(1, 3)).sum())
            self.optimizer.step()
            self.objects["cosine"].step()

    def restore(self) -> None:
        saved = self.checkpoint.read()
        if saved is not None:
            self.checkpoint.restore(saved)

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


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
    script = Script(tmp_path, optimizer_type, **options)
    script.train()
    script.checkpoint.save()
    again = Script(tmp_path, optimizer_type, **options)
    again.restore()
    assert not again.texts
    for name, each in script.objects.items():
        assert same(each.state_dict(), again.objects[name].state_dict()), name
    again.train()


def test_number_of_numpy_is_restored(tmp_path: Path) -> None:
    script = Script(tmp_path, torch.optim.SGD, lr=np.float32(0.5))
    script.train()
    script.checkpoint.save()
    again = Script(tmp_path, torch.optim.SGD, lr=np.float32(0.5))
    again.restore()
    assert again.rate == script.rate


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lr": 0.01}, "changed lr of its optimizer from 0.1 to 0.01; moments"),
        ({"schedule": 40}, "changed T_max of its cosine from 10 to 40; moments"),
    ],
)
def test_settings_that_the_script_has_changed_are_used(
    tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    """A smaller rate, or a longer script: moments and position in the schedule continue."""
    options: dict[str, Any] = {"lr": 0.1, "schedule": 10}
    script = Script(tmp_path, torch.optim.AdamW, **options)
    script.train(10)
    assert script.rate == 0
    script.checkpoint.save()
    for _ in range(2):  # killed before it has saved, the second process does the same
        again = Script(tmp_path, torch.optim.AdamW, **{**options, **change})
        again.restore()
        assert text in again.texts[0]
        assert len(again.texts) == 1
    expected = Script(tmp_path, torch.optim.AdamW, **{**options, **change})
    expected.train(10)
    assert again.rate == pytest.approx(expected.rate)
    moments = [each.optimizer.state_dict()["state"] for each in (script, again)]
    assert same(*moments)
    again.checkpoint.save()
    third = Script(tmp_path, torch.optim.AdamW, **{**options, **change})
    third.restore()
    assert not third.texts
    assert third.rate == pytest.approx(expected.rate)


def test_values_that_a_schedule_sets_are_no_change_of_the_script(tmp_path: Path) -> None:
    """A Trainer with resume_from_checkpoint has advanced its schedule before it joins."""
    script = Script(tmp_path, torch.optim.SGD, lr=0.1)
    script.train(5)
    script.checkpoint.save()
    resumed = Script(tmp_path, torch.optim.SGD, lr=0.1)
    resumed.train(3)
    resumed.checkpoint = Checkpoint(
        tmp_path, resumed.objects, lambda _, text: resumed.texts.append(text)
    )
    resumed.restore()
    assert not resumed.texts
    assert resumed.rate == script.rate


def test_state_of_another_optimizer_is_not_used(tmp_path: Path) -> None:
    script = Script(tmp_path, torch.optim.SGD, lr=0.1, momentum=0.9)
    script.train()
    script.checkpoint.save()
    other = Script(tmp_path, torch.optim.Adam, lr=0.2)
    other.restore()
    assert "optimizer does not fit: it is of SGD; it begins anew" in other.texts
    assert not other.optimizer.state
    other.train()


@pytest.mark.parametrize("content", [b"", b"1234", b"\xff" * 100])
def test_damaged_file_is_not_used(tmp_path: Path, content: bytes) -> None:
    script = Script(tmp_path, torch.optim.SGD, lr=0.1)
    (tmp_path / checkpoint.FILE).write_bytes(content)
    script.restore()
    assert "cannot be read" in script.texts[0]


def test_flipped_bits_in_the_header_are_found(tmp_path: Path) -> None:
    """The header holds rates and schedules; whatever bit is wrong, training begins."""
    script = Script(tmp_path, torch.optim.AdamW, lr=0.1)
    script.train()
    script.checkpoint.save()
    content = (tmp_path / checkpoint.FILE).read_bytes()
    header_end = 8 + int.from_bytes(content[:8], "little")
    draw = random.Random(0)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[draw.randrange(header_end)] ^= 1 << draw.randrange(8)
        (tmp_path / checkpoint.FILE).write_bytes(damaged)
        again = Script(tmp_path, torch.optim.AdamW, lr=0.1)
        again.restore()
        again.train(1)
        if "cannot be read" not in "".join(again.texts):
            assert same(again.optimizer.state_dict()["param_groups"][0]["betas"], (0.9, 0.999))


def test_moments_of_parameters_in_another_order_are_not_used(tmp_path: Path) -> None:
    """torch assigns moments by position; of another shape they would end every later step."""
    model = nn.Linear(3, 2)
    texts: list[str] = []
    for parameters in ([model.weight, model.bias], [model.bias, model.weight]):
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        saved_objects = {"optimizer": optimizer}
        copies = Checkpoint(tmp_path, saved_objects, lambda _, text: texts.append(text))
        saved = copies.read()
        if saved is not None:
            copies.restore(saved)
        torch.autograd.backward(model(torch.ones(1, 3)).sum())
        optimizer.step()
        copies.save()
    reason = "it holds other parameters, or in another order; it begins anew"
    assert texts == [f"optimizer does not fit: {reason}"]


def test_full_disk_keeps_the_older_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(tmp_path, torch.optim.SGD, lr=0.1)
    script.checkpoint.save()
    before = (tmp_path / checkpoint.FILE).read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "_write", fail)
    for _ in range(3):
        script.checkpoint.save()
    assert len(script.texts) == 1
    text = "cannot be written: No space left on device; the older copy stays"
    assert text in script.texts[0]
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
