"""The golden trajectories, through the public API, to 1e-12."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spodgt

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "trajectories.json").read_text("utf-8")
)
SPORADIC = (
    "spod-gt",
    "spod-gt-memory",
    "spod-gt-importance",
    "ab-push-pull",
    "g-push-pull",
    "sporadic-k-gt",
)


def replay(name: str, **fields: Any) -> spodgt.Result:
    rounds = fields.pop("rounds", 8)
    return spodgt.train(
        spodgt.method(name, step_size=GOLDEN["step_size"], **fields),
        spodgt.Quadratic(GOLDEN["H"], GOLDEN["c"]),
        spodgt.Network.from_adjacency(GOLDEN["digraph"]),
        spodgt.Trace(GOLDEN["computes"], GOLDEN["links"], p=GOLDEN["p"], p_hat=GOLDEN["p_hat"]),
        rounds=rounds,
        x0=GOLDEN["x0"],
        dtype=torch.float64,
        keep_states=True,
        every=1,
    )


def near(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", SPORADIC)
def test_trajectory(name: str) -> None:
    result = replay(name)
    assert result.states[0].x.shape == (9, 4, 2)
    near(result.states[0].x, GOLDEN["x"][name])
    near(result.states[0].y, GOLDEN["y"][name])


def test_k_gt_at_its_exchanges() -> None:
    result = replay("k-gt", local_steps=3, rounds=12)
    near(result.states[0].x[::3], GOLDEN["x"]["k-gt"])


def test_delay() -> None:
    for name in ("spod-gt", "spod-gt-memory", "spod-gt-importance"):  # who use what the trace says
        result = replay(name)
        assert result.frame["round"].tolist() == list(range(9))
        near(result.frame["delay"], GOLDEN["delay"])


def test_bare_name_and_instance_are_the_same() -> None:
    args = (
        spodgt.Quadratic.random(4, 2),
        spodgt.Network.from_adjacency(GOLDEN["digraph"]),
        spodgt.Trace(GOLDEN["computes"], GOLDEN["links"]),
    )
    bare = spodgt.train("spod-gt", *args, rounds=8).frame
    built = spodgt.train(spodgt.SpodGT(step_size=0.01), *args, rounds=8).frame
    assert bare.equals(built)


def test_what_really_happened_is_counted() -> None:
    """The counters say what the trace says, message by message."""
    result = replay("spod-gt")
    activity = result.participation
    clients = activity[activity["kind"] == "client"]
    np.testing.assert_array_equal(clients["gradients"], np.sum(GOLDEN["computes"], 0))
    np.testing.assert_allclose(clients["probability"], GOLDEN["p"])
    links = activity[activity["kind"] == "link"]
    used = np.sum(GOLDEN["links"], 0)[links["receiver"], links["sender"]]
    np.testing.assert_array_equal(links["messages"], used)
    np.testing.assert_array_equal(
        links["bytes"], used * 2 * 2 * 8
    )  # x and y, two parameters, eight bytes
