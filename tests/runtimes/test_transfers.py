"""Rounds on an accelerator: all clients in one call, data that stay there, few and small messages to it.

The device is torch's `meta`, which has shapes and no numbers: whatever would wait for a number, fails.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import spodgt
from spodgt.algorithms.base import Algorithm
from spodgt.problems.gradients.vmap import VmapEngine
from spodgt.problems.learning import Learning
from spodgt.problems.models.engine_selection import select_engine
from spodgt.problems.text import speeches
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Draw, Run

CLIENTS, BATCH = 6, 4


class Transfers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The sizes of all tensors that change their device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].device != result.device:
            self.sizes.append(result.numel())
        if func is torch.ops.aten.copy_.default and args[0].device != args[1].device:
            self.sizes.append(args[1].numel())
        return result


def problem(name: str) -> Learning:
    if name == "transformer":
        return speeches(
            clients=CLIENTS, context=8, batch_size=BATCH, test_samples=12, width=8, depth=1
        )
    return spodgt.problems.classification(
        model=name, clients=CLIENTS, batch_size=BATCH, test_samples=50
    )


def world(given: Learning, method: Algorithm, **options: object) -> Simulation:
    network = spodgt.Network.draw(spodgt.graphs.Complete(CLIENTS))
    available = spodgt.Bernoulli(0.5, 0.5).draw(network, 0)
    part = given.draw(0)
    run = Run.of(Draw(0, network, available, part, part.start(0)), method)
    return Simulation([run], **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["cnn", "transformer", "mlp", "svm"])
def given(request: pytest.FixtureRequest) -> tuple[str, Learning]:
    return request.param, problem(request.param)


@pytest.mark.parametrize("method", ["spod-gt", "spod-gt-memory", "k-gt"])
def test_a_round_sends_few_small_tensors_and_waits_for_none(
    given: tuple[str, Learning], method: str
) -> None:
    there = world(given[1], spodgt.method(method), device="meta")
    state = there.init()
    small = max(CLIENTS**2, CLIENTS * BATCH)
    for k in range(1, 6):
        with Transfers() as seen:
            state = there.advance(state, range(k, k + 1))
        # weights of pull and push; who computes, and which samples, for every gradient of a round
        assert len(seen.sizes) <= 6, seen.sizes
        assert max(seen.sizes, default=0) <= small


def test_data_are_brought_once(given: tuple[str, Learning]) -> None:
    name, learning = given
    device = torch.device("meta")
    first = learning.draw(0).to(device, torch.float32)
    with Transfers() as seen:
        again = learning.draw(1).to(device, torch.float32)
        world(learning, spodgt.SpodGT(), device=device).batch.problem_of(0)
    assert not seen.sizes
    assert again.samples is first.samples
    assert again.model.engine is first.model.engine
    assert first.samples.inputs.device == device
    if name != "svm":
        assert isinstance(first.model.engine, VmapEngine)


def test_all_clients_at_once_are_one_after_the_other(
    given: tuple[str, Learning], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of an accelerator on the CPU, whole rounds and evaluations."""
    name, learning = given
    assert learning.model.probe_batch is not None
    engine = select_engine(learning.model.plain, *learning.model.probe_batch, device="cuda")
    assert name == "svm" or isinstance(engine, VmapEngine)
    found = []
    for one, usable in ((learning.model.plain, True), (engine, False)):
        if not usable:  # neither loops nor replays, as there
            monkeypatch.setenv("SPODGT_ENGINE", "plain")
        other = learning._with(learning.data, replace(learning.model, engine=one))
        here = world(other, spodgt.SpodGT(), compiled=False, dtype=torch.float64)
        state = here.advance(here.init(), range(1, 6))
        whole = here.gather(state, np.ones(1, bool))
        assert whole is not None
        found.append((state, here.evaluate(state, 0, whole[0])))
    (ours, seen), (theirs, expected) = found
    for mine, other_s in zip(ours, theirs, strict=True):
        assert_close(mine, other_s, rtol=1e-9, atol=1e-12)
    assert seen is not None
    assert expected is not None
    assert_close(seen.loss, expected.loss, rtol=1e-9, atol=1e-12)
