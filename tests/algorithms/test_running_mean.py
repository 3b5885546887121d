"""Running means: what is averaged, that training is untouched, and that they are evaluated and kept."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import spodgt
from spodgt.algorithms import method
from spodgt.algorithms.compose.running_mean import RunningMean
from spodgt.errors import InvalidInput
from spodgt.problems import Quadratic
from spodgt.record.models import RUNNING_MEAN, read_model
from spodgt.record.record import Record
from spodgt.report.tables import final_table
from spodgt.training import Progress
from tests.helpers import NAMES, build, make_run, ring_of, states


@given(st.integers(8, 10**6), st.sampled_from([0.05, 0.2, 0.5]))
def test_the_mean_covers_about_the_share_that_is_asked_for(k: int, share: float) -> None:
    layer = RunningMean(method("spod-gt"), share)
    before, last = layer.first_rounds(k)
    assert 0 <= before < last <= k
    if k * share > 30:  # whole rounds matter no more
        assert 0.6 * share * k < k - before < 1.35 * share * k


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_mean_of_the_models_and_changes_nothing_else(name: str) -> None:
    def after(**layer: float) -> Any:
        run = make_run(build(name, **layer), Quadratic.random(5, 2, seed=1), ring_of(5), seed=3)
        return states([run], 60)

    plain, kept = after(), after(running_mean=0.3)
    layer = RunningMean(method(name), 0.3)
    for k in (0, 1, 5, 37, 60):
        assert torch.equal(kept[k].x, plain[k].x)
        models = torch.stack([state.x for state in plain[layer.first_rounds(k)[0] : k + 1]])
        assert_close(kept[k].mean, models.mean(0), rtol=0, atol=1e-12)


def compared(out: Path, stop_at: int | None = None, resume: bool = False) -> Any:
    def progress(now: Progress) -> None:
        if stop_at is not None and now.k >= stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    problem = spodgt.problems.fashion_mnist_svm(clients=4, labels_per_client=2)
    methods, half = [method("relay", step_size=0.1, running_mean=0.2)], spodgt.Bernoulli(0.5, 0.5)
    return spodgt.compare(
        methods, problem, ring_of(4), half, rounds=400, seeds=range(2), every=20, out=out, resume=resume,
        progress=progress,
    )  # fmt: skip


def test_it_is_evaluated_beside_the_last_models(tmp_path: Path) -> None:
    result = compared(tmp_path)
    assert result.frame["accuracy_mean"].between(0, 1).all()
    assert (result.frame["loss_mean"] > 0).all()
    last = result.frame[result.frame["round"] == 400]
    assert (last["accuracy_mean"] != last["accuracy"]).any()
    assert "accuracy_mean" in pd.read_parquet(tmp_path / "metrics.parquet")
    assert "running mean" in final_table(Record.read(tmp_path)).heads
    last, mean = (
        read_model(tmp_path, "relay+mean" + suffix, 1, None) for suffix in ("", RUNNING_MEAN)
    )
    assert {name: tensor.shape for name, tensor in last.items()} == {
        n: t.shape for n, t in mean.items()
    }
    assert not all(torch.equal(last[name], mean[name]) for name in last)


def test_a_resumed_run_has_the_same_means(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    theirs = compared(whole)
    assert not compared(part, stop_at=20).complete
    pd.testing.assert_frame_equal(compared(part, resume=True).frame, theirs.frame)


@pytest.mark.parametrize("value", [0, 0.9, -1, "x"])
def test_a_share_that_makes_no_sense_is_refused(value: Any) -> None:
    if value == 0:
        assert method("spod-gt", running_mean=value) == method("spod-gt")  # no such layer
        return
    with pytest.raises(
        InvalidInput, match=r"^running_mean of spod-gt must be above 0 and at most 0.75, got"
    ):
        method("spod-gt", running_mean=value)
