"""What users call is documented, argument by argument."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import networkx as nx
import pytest
import torch

import spodgt
from spodgt.algorithms.base import Algorithm
from spodgt.types import Problem

# Documented where the contract is: the methods of Problem and Algorithm, and `draw` of every recipe.
CONTRACT = {"draw", "split", "linear_data", "batches", "with_client_indices", "gradient"}
CONTRACT |= {
    name for base in (Problem, Algorithm) for name in vars(base) if not name.startswith("_")
}

RESULTS = {"theory"}  # classes that functions return; their fields are on the page of the module


def callables() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Every public function and constructor, with the text that documents it."""
    for name in set(spodgt.__all__) - RESULTS:
        value = getattr(spodgt, name)
        for owner in members(value) if inspect.ismodule(value) else [value]:
            if getattr(owner, "_is_protocol", False):
                continue
            if inspect.isfunction(owner):
                yield owner.__name__, owner, inspect.getdoc(owner) or ""
            elif inspect.isclass(owner) and not issubclass(owner, Exception):
                yield owner.__name__, owner, documentation(owner)
                for key, member in vars(owner).items():
                    function = getattr(member, "__func__", member)
                    if (
                        inspect.isfunction(function)
                        and not key.startswith("_")
                        and key not in CONTRACT
                    ):
                        yield f"{owner.__name__}.{key}", function, inspect.getdoc(function) or ""


def members(module: ModuleType) -> list[Any]:
    """What a module offers: its recipes, or the names it lists."""
    names = getattr(module, "__all__", None) or [
        cls.__name__ for cls in getattr(module, "RECIPES", {}).values()
    ]
    found = [getattr(module, name) for name in names]
    return [each for each in found if not getattr(each, "_is_protocol", False)]


def documentation(owner: type) -> str:
    """Docstrings of a class and its bases, and the fields of dataclasses that a comment explains."""
    text = []
    for part in owner.__mro__[:-1]:
        text += [part.__doc__ or "", part.__init__.__doc__ or ""]  # type: ignore[misc]
        if dataclasses.is_dataclass(part):
            fields = re.findall(r"^    (\w+): .*  # ", inspect.getsource(part), re.MULTILINE)
            text += [f"{name}:" for name in fields]
    return "\n".join(text)


CALLABLES = {name: (function, text) for name, function, text in callables()}


@pytest.mark.parametrize(
    "name", sorted(set(CALLABLES) - {"train"})
)  # `train` has the arguments of `compare`
def test_every_argument_is_documented(name: str) -> None:
    function, text = CALLABLES[name]
    given = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.name not in ("self", "cls")
    ]
    missing = [each for each in given if not re.search(rf"(^|[\s`*]){each}[`:,]", text)]
    assert not missing


def test_train_takes_what_compare_takes() -> None:
    ours, theirs = (inspect.signature(each).parameters for each in (spodgt.train, spodgt.compare))
    assert [*ours][1:] == [*theirs][1:]
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]


@pytest.mark.parametrize("recipe", [spodgt.Bernoulli, spodgt.Trace, spodgt.Time, spodgt.Bursts])
def test_types_of_arguments_say_what_is_accepted(recipe: type) -> None:
    hints = typing.get_type_hints(recipe)
    assert not [field.name for field in dataclasses.fields(recipe) if hints[field.name] is object]


def test_networks_and_problems_are_one_line() -> None:
    assert repr(spodgt.Network.ring(4)) == "<Network: 4 clients, 4 links, not all two-way>"
    assert (
        repr(spodgt.Network.draw(spodgt.graphs.Complete(4)))
        == "<Network: 4 clients, 12 links, all two-way>"
    )
    assert repr(spodgt.Quadratic.random(4, 2)) == "<Quadratic: 4 clients, 2 parameters, noise 0>"
    digits = (torch.zeros(6, 3), torch.zeros(6, dtype=torch.long))
    problem = spodgt.Learning(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), [digits, digits])
    assert repr(problem) == "<Learning: 2 clients, Linear of 8 parameters, 12 samples>"


def test_networks_and_problems_are_tables_in_a_notebook() -> None:
    network = spodgt.Network.from_networkx(
        nx.DiGraph([("a<b", "c"), ("c", "a<b"), ("c", "d"), ("d", "c")])
    )
    html = network._repr_html_()
    assert "&lt;Network: 3 clients, 4 links, all two-way&gt;" in html
    assert "<tr><td>c</td><td>2</td><td>2</td></tr>" in html
    assert "<td>a&lt;b</td>" in html
    many = spodgt.Network.ring(25)._repr_html_()
    assert many.count("<tr>") == 21
    assert "… and 5 more" in many
    inputs = torch.zeros(20, 3)
    targets = torch.zeros(20, dtype=torch.long)
    clients = {"north": (inputs, targets), "south": (inputs[:6], targets[:6])}
    problem = spodgt.Learning(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), clients)
    html = problem._repr_html_()
    assert "<tr><td>north</td><td>20</td><td>16</td></tr>" in html
    assert "<tr><td>south</td><td>6</td><td>6</td></tr>" in html
    html = spodgt.Quadratic([[[1.0, 0.0], [0.0, 4.0]]], [[0.0, 0.0]])._repr_html_()
    assert "<tr><td>0</td><td>1</td><td>4</td></tr>" in html


PUBLIC_MODULES = [name for name in spodgt.__all__ if inspect.ismodule(getattr(spodgt, name))]


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_dir_of_a_public_module_lists_its_public_names_only(name: str) -> None:
    module = getattr(spodgt, name)
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, each) for each in module.__all__)


def test_dir_of_the_package_lists_its_public_names_only() -> None:
    assert dir(spodgt) == sorted([*spodgt.__all__, "__version__"])


# --- deprecated names ----------------------------------------------------------------------------
def test_together_is_deprecated_for_intersection() -> None:
    with pytest.warns(DeprecationWarning, match=r"spodgt\.Together is deprecated; use .*Intersec"):
        assert spodgt.Together is spodgt.Intersection  # type: ignore[attr-defined]


def test_refuse_statistics_is_no_public_name_of_problems() -> None:
    from spodgt.problems.running_statistics import refuse_statistics

    with pytest.warns(DeprecationWarning, match=r"problems\.refuse_statistics is deprecated; use"):
        assert spodgt.problems.refuse_statistics is refuse_statistics
