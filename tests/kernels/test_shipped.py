"""Machine code that comes with the package: that of the sources, and nothing is compiled where it fits."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spodgt.compiled import Loop, code, instructions, jit, shipped, text_of
from spodgt.compiled.shipped import TABLE, laid_out
from spodgt.kernels import sums
from spodgt.problems import samples
from spodgt.problems.gradients import linear
from tests.kernels.test_compiled import after, runs_of, toy_problem

here = pytest.mark.skipif(shipped.library() is None, reason="machine code for Linux on x86-64 alone")
KNOWN: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))


def loop_of(name: str) -> Loop:
    module, _, function = name.rpartition(".")
    loop = vars(importlib.import_module(module))[function]
    return loop if isinstance(loop, Loop) else loop_before(loop)


def loop_before(compiled: object) -> Loop:
    from spodgt import compiled as room

    return room._taken[id(compiled)]


@pytest.mark.parametrize("name", KNOWN)
def test_it_is_that_of_the_sources(name: str) -> None:
    assert loop_of(name).source() == KNOWN[name]["source"], "python tools/ship.py makes it anew"


@here
def test_a_comparison_compiles_nothing() -> None:
    """Neither on images nor on numbers, nor does it load the compiler."""
    script = (
        "import sys, spodgt, torch\n"
        "inputs, labels = torch.rand(60, 7), torch.arange(60) % 3\n"
        "data = [(inputs[n::5], labels[n::5]) for n in range(5)]\n"
        "loss = torch.nn.CrossEntropyLoss()\n"
        "own = spodgt.Learning(torch.nn.Linear(7, 3), loss, data, test=(inputs, labels), batch_size=4)\n"
        "images = spodgt.problems.fashion_mnist_svm(clients=5, labels_per_client=2)\n"
        "methods = ['spod-gt', 'spod-gt-memory', 'ab-push-pull', 'g-push-pull', 'k-gt', 'sporadic-k-gt']\n"
        "for problem in (own, images):\n"
        "    network = spodgt.Network.directed_geometric(5, seed=1)\n"
        "    spodgt.compare(methods, problem, network, spodgt.Beta(0.5, 0.5), rounds=10, seeds=range(2))\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@here
def test_what_is_shipped_is_what_numba_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(1)
    x, mean = draws.normal(size=(5, 37)).astype(np.float32), draws.normal(size=37)
    given = [(sums._sums, (x, np.zeros(37))), (sums._square_distances, (x, mean))]
    for loop, arguments in given:
        assert laid_out(arguments)[0] in shipped.entries(loop.function, loop.source)
        first = [np.copy(each) for each in arguments]
        with monkeypatch.context() as patch:
            patch.setattr(loop, "_shipped", {})
            second, result = [np.copy(each) for each in arguments], loop(*arguments)
            plain = loop(*second)
        assert loop(*first) == pytest.approx(plain, rel=1e-12) if result is not None else loop(*first) is None
        for ours, theirs in zip(first, second, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@here
@pytest.mark.slow  # numba compiles the loops of a linear model
def test_rounds_are_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = runs_of(toy_problem(), "spod-gt-memory")
    ours, _ = after(runs, 15, compiled=True)
    for name in KNOWN:
        monkeypatch.setattr(loop_of(name), "_shipped", {})
    theirs, _ = after(runs, 15, compiled=True)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_the_source_of_a_loop_is_what_inspect_finds() -> None:
    known: list[Any] = [loop_of(name).function for name in KNOWN]
    known += [instructions._blend, code.Code, code.Intrinsic]
    for what in known:
        assert text_of(what) == inspect.getsource(what).rstrip()


def test_a_stamp_follows_what_a_loop_calls_and_the_numbers_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = linear.linear_gradients
    before = loop.source()
    assert loop.source() == before
    with monkeypatch.context() as patch:
        patch.setattr(linear, "TILE", 8)
        assert loop.source() != before
    with monkeypatch.context() as patch:
        patch.setattr(samples, "word", jit(lambda state, coordinate: state))  # in another file
        assert loop.source() != before
    assert loop.source() == before


@here
def test_a_loop_that_has_changed_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: Callable[[], str] = lambda: "another"  # noqa: E731
    assert shipped.entries(sums._sums.function, sums._sums.source)
    assert not shipped.entries(sums._sums.function, changed)


def test_the_layout_of_arguments_tells_apart_what_numba_tells_apart() -> None:
    x = np.zeros((3, 4), np.float32)
    assert laid_out((x, (1, 2.0, True), np.uint64(2**63)))[0] == "f4[2C],(int64,float64,boolean),uint64"
    assert laid_out((x.T,))[0] == "f4[2F]"
    assert laid_out((x[:, ::2],))[0] == "f4[2A]"
    assert laid_out(("text",))[0] == "?"
    assert laid_out((x,))[2] == [0, 0, 12, 4, x.ctypes.data, 3, 4, 16, 4]
