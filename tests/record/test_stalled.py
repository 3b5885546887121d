"""Runs whose models do not move are reported, and only these."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

import spodgt
from spodgt import report
from spodgt.errors import StalledWarning
from spodgt.record.stalled import Stalled, find_stalled

NETWORK = spodgt.Network.draw(spodgt.graphs.Complete(4))
PROBLEM = spodgt.Quadratic.random(4, 3, seed=1)


def frame_of(losses: list[float], norms: list[float], every: int = 50) -> pd.DataFrame:
    rounds = every * np.arange(len(losses))
    return pd.DataFrame(
        {
            "method": "relay",
            "seed": 3,
            "round": rounds,
            "bytes": 8.0 * rounds,
            "loss": losses,
            "consensus_x": 0.0,
            "gradient_norm": norms,
        }
    )


@pytest.mark.parametrize(
    ("losses", "norms", "scheduled", "since"),
    [
        ([5, 5, 5], [1, 1, 1], False, 0),
        ([5, 5, 5], [1, 1, 1], True, 0),  # a schedule starts above zero
        ([5, 5, 5], [np.nan] * 3, False, 0),
        ([5, 4, 4, 4], [1, 0.5, 0.5, 0.5], False, 50),
        ([5, 4, 4, 4], [1, 0.5, 0.5, 0.5], True, None),
        ([5, 4, 4, 4], [1, 1e-4, 1e-4, 1e-4], False, None),  # converged
        ([5, 4, 4, 4], [np.nan] * 4, False, None),  # it may have converged
        ([5, 5, 5], [0, 0, 0], False, None),
        ([5, 5], [1, 1], False, None),  # 50 rounds only
        ([5, 5, 5, 4], [1, 1, 1, 1], False, None),  # it moved in the end
    ],
)
def test_stalled_runs_are_those_without_movement_that_have_not_converged(
    losses: list[float], norms: list[float], scheduled: bool, since: int | None
) -> None:
    expected = [] if since is None else [Stalled("relay", 3, since, 50 * (len(losses) - 1))]
    assert find_stalled(frame_of(losses, norms), scheduled=scheduled) == expected


def test_methods_without_steps_and_rounds_without_messages_are_not_stalled() -> None:
    frame = frame_of([5.0, 5.0, 5.0], [1.0, 1.0, 1.0])
    assert find_stalled(frame.assign(method="gossip"), scheduled=False) == []
    assert find_stalled(frame.assign(bytes=7.0), scheduled=False) == []


def test_models_that_agree_are_not_stalled_where_no_loss_is_known() -> None:
    """Without test data, consensus_x alone is zero at the start and at the optimum."""
    frame = frame_of([np.nan] * 3, [np.nan, np.nan, 0.5])
    assert find_stalled(frame, scheduled=False) == []


def still(**options: Any) -> Any:
    """A run in which no client ever computes after round 0, which nobody moved in."""
    computes = np.zeros((301, 4), bool)
    links = np.ones((300, NETWORK.links), bool)
    trace = spodgt.Trace(computes, links, p=np.full(4, 0.5), p_hat=0.5)
    return spodgt.train("spod-gt", PROBLEM, NETWORK, trace, rounds=300, every=100, **options)


def test_a_stalled_run_is_in_the_result_the_warnings_and_the_report(tmp_path: Any) -> None:
    words = r"spod-gt \(seed 0\): no model has moved from round 0 to round 300"
    with pytest.warns(StalledWarning, match=words):
        result = still(out=tmp_path / "run")
    assert result.stalled == [Stalled("spod-gt", 0, 0, 300)]
    assert result.as_dict()["stalled"] == [
        {"method": "spod-gt", "seed": 0, "since": 0, "round": 300}
    ]
    report.write(tmp_path / "run")
    assert "no model has moved from round 0" in (tmp_path / "run" / "report.html").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("name", ["relay", "relay-sum", "spod-gt-memory"])
def test_methods_move_along_a_trace_that_repeats(name: str) -> None:
    draws = np.random.default_rng(0)
    trace = spodgt.Trace(draws.random((20, 4)) < 0.7, draws.random((20, 12)) < 0.7, repeat=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", StalledWarning)
        result = spodgt.train(
            spodgt.method(name, step_size=0.05), PROBLEM, NETWORK, trace, rounds=600, every=200
        )
    loss = result.frame["loss"].to_numpy()
    assert loss[-1] < loss[0]
    assert result.frame["distance"].iloc[-1] < 0.5 * result.frame["distance"].iloc[0]
