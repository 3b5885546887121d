"""What is refused and what is said; the table, the docs, and methods from outside."""

# ruff: noqa: E501 (messages are pinned in full)

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import spodgt.algorithms.registry as package
from spodgt.algorithms import (
    ALGORITHMS,
    ALIASES,
    InverseSqrt,
    describe,
    method,
    register,
    stack,
    table,
)
from spodgt.algorithms.base import Algorithm, GradientState, Rate, Traits
from spodgt.algorithms.checks import check
from spodgt.algorithms.d2 import smallest_eigenvalue
from spodgt.algorithms.relay import Relay
from spodgt.errors import Incompatible, InvalidConfig, InvalidInput
from spodgt.network import Network
from spodgt.participation import Always, Bernoulli, EveryK, OneLink
from spodgt.problems import Quadratic
from spodgt.types import Availability, Round
from tests.helpers import NAMES, final, golden, golden_trace, make_run, ring_of
from tools.methods import update_page

ROOT = Path(__file__).parents[2]
ONE_WAY = Network.from_adjacency(golden()["digraph"])
TWO_WAY = Network.from_adjacency(golden()["undirected"])


# --- refusals ----------------------------------------------------------------------------------------
REFUSALS = [
    ("extra", ONE_WAY, Always(), "extra needs a reverse for every link, and link 2 → 0 has none; add link 0 → 2 or use push-pull."),
    ("dsgd", ONE_WAY, Always(), "dsgd needs a reverse for every link, and link 2 → 0 has none; add link 0 → 2 or use sgp."),
    ("dspodfl", ONE_WAY, golden_trace(), "dspodfl needs a reverse for every link, and link 2 → 0 has none; add link 0 → 2 or use spod-gt."),
    ("gsgt", ONE_WAY, Bernoulli(0.5, 0.5), "gsgt needs a reverse for every link, and link 2 → 0 has none; add link 0 → 2 or use spod-gt-memory."),
    ("extra", TWO_WAY, Bernoulli(1.0, [1.0] * 9 + [0.25]), "extra needs every link in every round, but link 2 → 3 works with probability 0.25; use diging."),
    ("d2", TWO_WAY, EveryK(3), "d2 needs every link in every round, but some links are down in some rounds; use diging."),
    ("frost", ONE_WAY, Bernoulli(1.0, 0.5), "frost needs every link in every round, but link 2 → 0 works with probability 0.5; use push-pull."),
    ("frost", ONE_WAY, golden_trace(), "frost needs every client in every round, but client 0 computes with probability 0.354; use spod-gt-memory."),
    ("dfedavg", TWO_WAY, Bernoulli(1.0, 0.5), "dfedavg needs every link in every round, but link 1 → 0 works with probability 0.5; use dspodfl."),
    ("dsgd", TWO_WAY, OneLink(pairs=True), "dsgd needs every client in every round, but client 1 computes with probability 0.4; use dspodfl."),
    ("push-pull", ONE_WAY, Bernoulli(0.5, 1.0), "push-pull needs every client in every round, but client 0 computes with probability 0.5; use spod-gt-memory."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "network", "participation", "message"), REFUSALS)
def test_refusals(name: str, network: Network, participation: Any, message: str) -> None:
    with pytest.raises(Incompatible) as caught:
        check(method(name), network, participation.draw(network, 0))
    assert str(caught.value) == message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("network", [ONE_WAY, TWO_WAY], ids=["one-way", "two-way"])
@pytest.mark.parametrize("p", [1.0, 0.5])
@pytest.mark.parametrize("p_hat", [1.0, 0.5])
def test_a_method_runs_or_names_one_that_does(
    name: str, network: Network, p: float, p_hat: float
) -> None:
    availability = Bernoulli(p, p_hat).draw(network, 0)
    traits = ALGORITHMS[name].traits
    refused = (not traits.directed and not network.two_way) or (
        (p < 1 and traits.sporadic_clients == "no") or (p_hat < 1 and traits.sporadic_links == "no")
    )
    try:
        check(method(name), network, availability)
        assert not refused
    except Incompatible as error:
        assert refused
        other = re.search(r"use ([\w-]+)\.$", str(error))
        assert other
        check(method(other[1]), network, availability)
        assert ALGORITHMS[other[1]].traits.tracking >= traits.tracking


STEPS = [
    ("extra", {"step_size": InverseSqrt(0.1)}, "extra+inverse-sqrt needs a constant step size, but got InverseSqrt(start=0.1, scale=1.0); use a number, or gt-dsgd."),
    ("d2", {"step_size": [0.1] * 4}, "d2 needs one step size for all clients, but got 4; use one, or gt-dsgd."),
    ("sgp", {"step_size": [0.1] * 4}, "sgp needs one step size for all clients, but got 4; use one, or push-pull."),
    ("sgp", {"step_size": InverseSqrt(torch.full((4, 1), 0.1))}, "sgp+inverse-sqrt needs one step size for all clients, but got 4; use one, or push-pull."),
    ("ab", {"step_size": [0.1] * 3}, "step_size of ab must be one number or 4, one per client, got 3."),
    ("gossip", {"momentum": 0.9}, "gossip+momentum needs gradients to filter, but the method takes none; drop momentum."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "message"), STEPS)
def test_refused_step_sizes_and_momentum(name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(method(name, **fields), TWO_WAY, Always().draw(TWO_WAY, 0))
    assert str(caught.value) == message


def test_what_is_allowed_passes() -> None:
    always = Always().draw(TWO_WAY, 0)
    check(method("ab", step_size=[0.1] * 4, momentum=0.9), TWO_WAY, always)
    check(method("gt-dsgd", step_size=InverseSqrt(torch.full((4, 1), 0.1))), TWO_WAY, always)
    check(method("dsgd", step_size=InverseSqrt(0.1), momentum=0.9), TWO_WAY, always)
    check(method("extra", momentum=0.9), TWO_WAY, always)


def test_d2_needs_eigenvalues_above_minus_a_third() -> None:
    square = Network.from_adjacency(np.roll(np.eye(4), 1, 0) + np.roll(np.eye(4), -1, 0))
    always = Always().draw(square, 0)
    assert smallest_eigenvalue(square) == pytest.approx(-1 / 3)
    with pytest.raises(Incompatible) as caught:
        check(method("d2"), square, always)
    assert (
        str(caught.value)
        == "d2 needs a W with eigenvalues above -1/3, got -0.333; use lazy=True or gt-dsgd."
    )
    check(method("d2", lazy=True), square, always)
    lazy = method("d2", lazy=True).with_mixing_weights(square)
    assert_close(torch.from_numpy(lazy.W), torch.from_numpy((np.eye(4) + square.W) / 2))
    large = Network.random_geometric(150, 0.3, seed=1)
    assert smallest_eigenvalue(large) == pytest.approx(np.linalg.eigvalsh(large.W)[0], abs=1e-9)


# --- the list ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "path", sorted((ROOT / "src/spodgt/algorithms").glob("*.py")), ids=lambda p: p.stem
)
def test_one_paper_one_file(path: Path) -> None:
    """Under 60 lines of code; file, class and CLI name agree; the docstring cites; the list has it."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r'^    name = "', text, re.MULTILINE):
        return  # shared by methods, not one of them
    _, docstring, code = text.split('"""', 2)
    assert len(code.strip().splitlines()) < 60
    assert path.stem in package.METHODS, f'add "{path.stem}" to METHODS in registry.py'
    cls = ALGORITHMS[path.stem.replace("_", "-")]
    assert cls.__name__.lower() == path.stem.replace("_", "")
    assert cls.__module__ == f"spodgt.algorithms.{path.stem}"
    if cls.traits.source != "spodgt":
        assert f"[{cls.traits.source}" in docstring


def test_every_method_of_the_design_is_there() -> None:
    listed = """
        spod-gt spod-gt-memory spod-gt-importance ab-push-pull g-push-pull sporadic-k-gt k-gt ab push-pull
        gossip-push-pull frost push-diging subgradient-push sgp dsgd dspodfl dgd dfedavg extra d2 next
        diging gt-dsgd gsgt gossip fedavg sgd
    """
    assert set(listed.split()) <= {*NAMES, *ALIASES}


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_name_one_method(alias: str) -> None:
    assert alias not in ALGORITHMS
    assert method(alias, step_size=0.1) == method(ALIASES[alias], step_size=0.1)
    clash = type("Clash", (ALGORITHMS["dsgd"],), {"name": alias})
    with pytest.raises(InvalidConfig, match=f"name '{alias}' of Clash is taken by"):
        register(clash)


def test_the_table_is_made_of_the_declarations() -> None:
    rows = {row["method"]: row for row in table()}
    assert list(rows) == list(NAMES)
    assert rows["k-gt"] == {
        "method": "k-gt",
        "source": "liu2025decentralized",
        "directed": "yes",
        "tracking": "yes",
        "sporadic_compute": "waits",
        "sporadic_links": "waits",
        "local_steps": "yes",
        "exact": "yes",
        "root": "no",
        "messages": "1 per link every K",
        "vectors": "2",
    }
    assert rows["spod-gt"]["exact"] == "if all compute"
    assert rows["extra"]["directed"] == "no"
    assert rows["sgd"]["directed"] == "any"
    assert rows["fedavg"]["messages"] == "2 per client every K"
    assert rows["gossip"]["messages"] == "2"


def test_the_page_says_what_is_declared() -> None:
    """No row is stale; that none is missing is for `make lint`, so that a new method needs no third edit."""
    page = (ROOT / "docs/reference/methods.md").read_text(encoding="utf-8")
    new = update_page(page)
    assert new.count("\n| `") >= len(NAMES)
    for line in page.splitlines():
        assert line in new.splitlines(), f"run make docs: {line}"


def test_every_citation_key_is_listed() -> None:
    page = (ROOT / "docs/reference/literature.md").read_text(encoding="utf-8")
    listed = set(re.findall(r'<a id="(\w+)"></a>\*\*\1\*\*', page))
    used = {cls.traits.source for cls in ALGORITHMS.values()}
    for path in (ROOT / "src").rglob("*.py"):
        used |= set(re.findall(r"\[([a-z]+\d{4}[a-z]+)[\],]", path.read_text(encoding="utf-8")))
    assert used <= listed, used - listed


# --- methods from outside ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Lazy(Algorithm[GradientState]):
    """DSGD that moves half of the way: ten lines, from outside."""

    name = "lazy"
    traits = Traits(
        source="spodgt",
        mixing="gossip",
        sporadic_clients="no",
        sporadic_links="no",
    )
    step_size: Rate = 0.01

    def init(self, x: Tensor, round: Round) -> GradientState:
        return GradientState(x, round.grad(x))

    def step(self, state: GradientState, round: Round) -> GradientState:
        x = (state.x + round.gossip(state.x)) / 2 - self.step_size * state.g
        return GradientState(x, round.grad(x))


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


def lazy_by_hand() -> Tensor:
    problem, network = Quadratic.random(5, 2, seed=1), ring_of(5)
    W, x = torch.from_numpy((np.eye(5) + network.W) / 2), problem.start(0)
    for _ in range(10):
        x = W @ x - 0.1 * problem.full(x, np.arange(5))[1]
    return x


def test_register() -> None:
    assert register(Lazy) is Lazy
    algorithm = method("lazy", step_size=0.1)
    run = make_run(algorithm, Quadratic.random(5, 2, seed=1), ring_of(5))
    assert_close(final(run, 10).x, lazy_by_hand(), rtol=0, atol=1e-14)
    assert describe(method("lazy", step_size=InverseSqrt(0.1), momentum=0.5))["name"] == "lazy"
    assert {row["method"] for row in table()} == {*NAMES, "lazy"}
    with pytest.raises(Incompatible, match="lazy needs a reverse"):
        check(algorithm, ONE_WAY, Always().draw(ONE_WAY, 0))
    register(Lazy)  # twice is once

    class Other(Lazy):
        name = "spod-gt"

    with pytest.raises(
        InvalidConfig, match="name 'spod-gt' of Other is taken by SpodGT; choose another"
    ):
        register(Other)


def entry_points_are(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = [EntryPoint(name, value, package.GROUP) for name, value in values.items()]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "spodgt.algorithms"
        return [point for point in points if name in (None, point.name)]

    monkeypatch.setattr(package, "entry_points", entry_points)


def test_entry_points_are_loaded_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("somebody_elses")
    module.Lazy = Lazy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebody_elses", module)
    entry_points_are(
        monkeypatch,
        lazy="somebody_elses:Lazy",
        broken="not_installed_here:Thing",
        wrong="somebody_elses:__name__",
    )
    assert "lazy" not in ALGORITHMS
    assert isinstance(method("lazy"), Lazy)
    with pytest.raises(
        InvalidConfig, match=r"method 'broken' of not_installed_here:Thing cannot be loaded: No mod"
    ):
        method("broken")
    with pytest.raises(
        InvalidConfig, match=r"method 'wrong' of somebody_elses:__name__ must be an Algorithm"
    ):
        method("wrong")
    with pytest.warns(UserWarning, match="method '(broken|wrong)' of") as caught:
        assert "lazy" in {row["method"] for row in table()}  # the others are listed all the same
    assert len(caught) == 2


def test_the_default_hooks_change_nothing() -> None:
    availability: Availability = Always().draw(TWO_WAY, 0)
    algorithm = Lazy()
    assert algorithm.fit(availability) is algorithm
    assert algorithm.adapt_availability(availability, TWO_WAY) is availability
    assert algorithm.with_mixing_weights(TWO_WAY) is TWO_WAY


def test_stack_accepts_zeros_where_one_run_has_them() -> None:
    """A field that may be 0 may be 0 in one run of a batch."""
    batch = stack([method("relay", proximal=0.0), method("relay", proximal=0.5)], [1, 2])
    assert isinstance(batch, Relay)
    assert torch.as_tensor(batch.proximal).flatten().tolist() == [0.0, 0.5, 0.5]
