"""Style: measures of readability with ceilings that may only fall, and names that must not return.

The ceilings are the values that the package has reached. Lower them when a value falls; the measures
are indicators, so rewrite the code that they point to instead of the measure.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import spodgt

SRC = Path(spodgt.__file__).parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MAX_METHODS = 12
MAX_COLUMNS = 100
# Words for people. Code, links and numbers do not say, know, want, come or go.
PERSONIFIED = frozenset(
    [
        "who",
        "whose",
        "whom",
        "nobody",
        "somebody",
        "everybody",
        "told",
        "tell",
        "tells",
        "says",
        "said",
        "hears",
        "heard",
        "knows",
        "knew",
        "wants",
        "wanted",
        "asks",
        "asked",
        "goes",
        "gone",
        "comes",
        "came",
        "stands",
        "stood",
    ]
)

CEILINGS = {
    "tuple assignments, % of assignments": 0.2,
    "comprehensions per 1,000 code lines": 24.0,
    "conditional expressions per 1,000 code lines": 14.5,
    "assignment expressions per 1,000 code lines": 0.1,
    "lines over 100 characters, %": 0.5,
    "personified words per 1,000 words of prose": 0.7,
    "classes over 12 methods": 8,
    "class names in several modules": 2,
}

# Names that were replaced by terms of the field, and the term to use.
BANNED = {
    "arranged": "reordering",
    "chance": "probability",
    "chances": "probabilities",
    "Chances": "Probabilities",
    "Chosen": "RandomEdge",
    "Derived": "AvailabilityWrapper",
    "FollowedEpochs": "EpochRateLimiter",
    "Holdings": "ClientIndices",
    "IntervalCode": "IntervalQuantizer",
    "Keeping": "OutputOptions",
    "laid_out": "to_arrays",
    "Loose": "LazySamples",
    "Lot": "BatchArrays",
    "Must": "FieldHint",
    "Norms": "OutlierDetector",
    "Overlay": "AvailabilityOverride",
    "Parcel": "PendingMessage",
    "Patient": "WaitForClients",
    "Relayed": "TreeRouting",
    "Reweighted": "ActiveDegreeWeights",
    "Seats": "EpochTopology",
    "Served": "NoLinks",
    "Sighting": "WatchedClient",
    "Singly": "GradientTasks",
    "Together": "Intersection",
    "Vault": "StateStore",
    "weighs": "with_mixing_weights",
    "Woken": "RandomActivation",
}


class Source(NamedTuple):
    """One file of the package."""

    path: Path
    text: str
    tree: ast.Module


@cache
def sources() -> list[Source]:
    """All files except generated ones."""
    files = []
    for path in sorted(SRC.rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            text = path.read_text(encoding="utf-8")
            files.append(Source(path, text, ast.parse(text)))
    return files


def nodes() -> Iterator[ast.AST]:
    for source in sources():
        yield from ast.walk(source.tree)


def docstring_lines(tree: ast.Module) -> set[int]:
    """Numbers of the lines of docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


@cache
def code_lines() -> int:
    """Lines with code: no blank lines, comments and docstrings."""
    ignored = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    count = 0
    for source in sources():
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type not in ignored:
                lines.update(range(token.start[0], token.end[0] + 1))
        count += len(lines - docstring_lines(source.tree))
    return count


def prose_words() -> Iterator[str]:
    """Words of docstrings and comments, in lower case."""
    for source in sources():
        texts = []
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type == tokenize.COMMENT:
                texts.append(token.string)
        for node in ast.walk(source.tree):
            if isinstance(node, DOCUMENTED):
                texts.append(ast.get_docstring(node) or "")
        yield from re.findall(r"[a-z']+", " ".join(texts).lower())


def per_thousand(kinds: type[ast.AST] | tuple[type[ast.AST], ...]) -> float:
    count = sum(isinstance(node, kinds) for node in nodes())
    return 1000 * count / code_lines()


def tuple_assignment_percentage() -> float:
    """`a, b = x, y`, as a percentage of all assignments; swaps count, too."""
    assignments = [node for node in nodes() if isinstance(node, ast.Assign)]
    parallel = [
        node
        for node in assignments
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    ]
    return 100 * len(parallel) / len(assignments)


def long_line_percentage() -> float:
    lines = [line for source in sources() for line in source.text.splitlines() if line.strip()]
    return 100 * sum(len(line) > MAX_COLUMNS for line in lines) / len(lines)


def personified_per_thousand() -> float:
    words = list(prose_words())
    return 1000 * sum(word in PERSONIFIED for word in words) / len(words)


def large_classes() -> int:
    count = 0
    for node in nodes():
        if isinstance(node, ast.ClassDef):
            count += sum(isinstance(member, FUNCTIONS) for member in node.body) > MAX_METHODS
    return count


def repeated_class_names() -> int:
    names = Counter(node.name for node in nodes() if isinstance(node, ast.ClassDef))
    return sum(count > 1 and not name.startswith("_") for name, count in names.items())


MEASURES = {
    "tuple assignments, % of assignments": tuple_assignment_percentage,
    "comprehensions per 1,000 code lines": lambda: per_thousand(COMPREHENSIONS),
    "conditional expressions per 1,000 code lines": lambda: per_thousand(ast.IfExp),
    "assignment expressions per 1,000 code lines": lambda: per_thousand(ast.NamedExpr),
    "lines over 100 characters, %": long_line_percentage,
    "personified words per 1,000 words of prose": personified_per_thousand,
    "classes over 12 methods": large_classes,
    "class names in several modules": repeated_class_names,
}


@pytest.mark.parametrize("measure", CEILINGS)
def test_style_measure_does_not_rise(measure: str) -> None:
    assert MEASURES[measure]() <= CEILINGS[measure]


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of classes, functions, arguments and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | FUNCTIONS[0] | FUNCTIONS[1]):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def test_style_banned_names_are_not_defined() -> None:
    found = []
    for source in sources():
        for line, name in defined_names(source.tree):
            if name in BANNED:
                where = f"{source.path.relative_to(SRC)}:{line}"
                found.append(f"{where}: use {BANNED[name]} instead of {name}")
    assert not found
