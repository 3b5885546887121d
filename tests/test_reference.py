"""The reference: every public name has an entry and an example, every argument is described."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spodgt
from tools import pages, tables

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "reference").rglob("*.md"))
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
EXAMPLES = "\n".join(
    block.text
    for text in TEXT.values()
    for block in pages.blocks(text)
    if block.language == "python"
)
METHODS = list(spodgt.ALGORITHMS.values())
# Classes that users get from a function and do not make; the example is that of the function.
RETURNED = {
    "Condition": "conditions",
    "Constants": "constants",
    "Contraction": "contraction",
    "EdgeUtility": "edge_utility",
    "Estimate": "estimate",
    "Estimates": "estimate",
    "Outlook": "outlooks",
    "PythonProblem": "python",
    "QuadraticModel": "quadratic_model",
    "Setting": "setting",
    "Text": "speeches",
    "TheorySummary": "summarize",
    "VanishingSchedule": "vanishing_schedule",
}
# Modules of these libraries are not installed everywhere; their sources are searched instead.
INTEGRATIONS = {
    "transformers": "class SpodgtCallback",
    "lightning": "class SpodgtCallback",
    "flower": "def run_client_app",
}


@dataclass(frozen=True)
class Name:
    """A public name: where it is imported from, and what it is."""

    path: str
    value: Any

    @property
    def last(self) -> str:
        return self.path.rpartition(".")[2]


def public_names() -> list[Name]:
    """Classes and functions of the package and of its public modules, each of them once."""
    found: dict[int, Name] = {}
    modules = {
        "spodgt": spodgt.__all__,
        "spodgt.problems": spodgt.problems.__all__,
        "spodgt.graphs": spodgt.graphs.__all__,
        "spodgt.partitions": spodgt.partitions.__all__,
        "spodgt.theory": spodgt.theory.__all__,
        "spodgt.loggers": ["Logger", "MLflow", "TensorBoard", "WandB"],
    }
    for path, names in modules.items():
        for name in names:
            value = getattr(getattr(spodgt, path.removeprefix("spodgt").lstrip("."), spodgt), name)
            if not isinstance(value, ModuleType) and callable(value) and value not in METHODS:
                found.setdefault(id(value), Name(f"{path}.{name}", value))
    return list(found.values())


NAMES = public_names()


def entries() -> list[Any]:
    """What the directives of the reference describe: objects, and the members of modules."""
    found = []
    for text in TEXT.values():
        for path, options in re.findall(r"^::: (spodgt[\w.]*)(?:\n    options: (.*))?", text, re.M):
            if path.startswith("spodgt.integrations."):
                continue
            value = resolve(path)
            if not isinstance(value, ModuleType):
                found.append(value)
                continue
            chosen = re.search(r"members: \[([^\]]*)\]", options)
            left_out = re.findall(r'"!\^(\w+)\$"', options)
            names = (
                chosen[1].split(", ") if chosen else [n for n in vars(value) if n not in left_out]
            )
            found += [getattr(value, name) for name in names]
    return found


def resolve(path: str) -> Any:
    """The object at a path; a module is preferred to a function of the same name, as by the site."""
    parts = path.split(".")
    value: Any = spodgt
    for number, part in enumerate(parts[1:], 2):
        try:
            value = importlib.import_module(".".join(parts[:number]))
        except ModuleNotFoundError:
            value = getattr(value, part)
    return value


def docstrings(value: Any) -> str:
    """The docstrings that describe the arguments of a function, or of the constructor of a class."""
    texts = [inspect.getdoc(value) or ""]
    for cls in own_classes(value):
        constructor = vars(cls).get("__init__")
        texts += [inspect.getdoc(cls) or "", inspect.getdoc(constructor) or ""]
    if "those of `compare`" in texts[0]:
        texts.append(inspect.getdoc(spodgt.compare) or "")
    return "\n".join(texts)


def own_classes(value: Any) -> list[type[Any]]:
    """A class and its bases, those of this package only."""
    bases = value.__mro__ if inspect.isclass(value) else ()
    return [cls for cls in bases if cls.__module__.startswith("spodgt")]


def undescribed(value: Any) -> list[str]:
    """Arguments without a description: in a docstring, or in a comment after the field."""
    text = docstrings(value)
    source = "\n".join(inspect.getsource(cls) for cls in own_classes(value))
    missing = []
    for name in inspect.signature(value).parameters:
        if name == "self" or name.startswith("_"):
            continue
        has_entry = re.search(rf"^ *(?:[\w, ]+, )?{name}(?:, [\w, ]+)?: \S", text, re.M)
        has_comment = re.search(rf"^ +{name}: .*  # \S", source, re.M)
        in_words = not inspect.isclass(value) and re.search(rf"\b{name}\b", text)
        if not (has_entry or has_comment or in_words):
            missing.append(name)
    return missing


def test_every_public_name_has_an_entry() -> None:
    described = entries()
    assert not [name.path for name in NAMES if not any(name.value is each for each in described)]


def test_integrations_have_entries_and_examples() -> None:
    scripts = TEXT[ROOT / "docs/reference/api/scripts.md"]
    for module, definition in INTEGRATIONS.items():
        name = definition.split()[1]
        assert f"::: spodgt.integrations.{module}.{name}\n" in scripts
        assert f"from spodgt.integrations.{module} import {name}\n" in EXAMPLES
        source = (ROOT / f"src/spodgt/integrations/{module}.py").read_text(encoding="utf-8")
        assert f"\n{definition}(" in source


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.path)
def test_every_public_name_has_an_example(name: Name) -> None:
    word = RETURNED.get(name.last, name.last)
    assert re.search(rf"\b{word}\b", EXAMPLES)


@pytest.mark.parametrize("name", spodgt.ALGORITHMS)
def test_the_example_of_a_method_makes_it(name: str) -> None:
    example = tables.method_example(name, spodgt.ALGORITHMS[name])
    assert eval(example, {"spodgt": spodgt}) == spodgt.method(name)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.path)
def test_every_argument_is_described(name: Name) -> None:
    if not getattr(name.value, "_is_protocol", False):
        assert not undescribed(name.value)
    members: dict[str, Any] = dict(vars(name.value)) if inspect.isclass(name.value) else {}
    for member, value in members.items():
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function) and function.__doc__ and not member.startswith("_"):
            missing = [
                argument
                for argument in list(inspect.signature(function).parameters)[1:]
                if not re.search(rf"\b{argument}\b", function.__doc__)
            ]
            assert not missing or member in ("init", "step"), (member, missing)


def test_errors_have_an_example_each() -> None:
    text = TEXT[ROOT / "docs/reference/errors.md"]
    errors = vars(spodgt.errors).items()
    classes = [
        name
        for name, value in errors
        if inspect.isclass(value) and value.__module__ == "spodgt.errors"
    ]
    assert not [name for name in classes if f"`{name}`" not in text and name not in EXAMPLES]


def test_docstrings_of_methods_become_text_and_formulas() -> None:
    """Formulas keep their columns, citations lead to the literature, x* is no emphasis."""
    shown = tables.as_markdown(
        "Averages [pu2020push].\n\n    x = y\n      + z\n\n*All* reach x* and y*."
    )
    link = "[pu2020push](../literature.md#pu2020push)"
    formulas = "```{ .text .formulas }\nx = y\n  + z\n```"
    assert shown == f"Averages {link}.\n\n{formulas}\n\n*All* reach x\\* and y\\*."


def test_descriptions_are_no_remarks_to_linters() -> None:
    pytest.importorskip("griffe")  # of the dependency group docs
    signatures = importlib.import_module("tools.signatures")
    assert signatures.field_comment("    a: int = f()  # noqa: RUF009 (recipes are frozen)") == ""
    assert signatures.field_comment("    noise: float = 0.0  # of a gradient") == "of a gradient"
