"""Tables of the reference that are made from the program itself, as Markdown."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from spodgt.algorithms import ALGORITHMS
from spodgt.experiment.run_options import ExperimentOptions, RunOptions
from spodgt.record.metrics import METRICS
from spodgt.training.api import ExecutionOptions, TrainOptions

_COMMENT = re.compile(r"^    (?P<name>\w+):.*?  # (?P<text>.+)$", re.MULTILINE)
_WIDTH = 80  # columns of an example
_CITATION = re.compile(r"\[([a-z]+\d{4}[a-z0-9]+(?:[,;] [a-z]+\d{4}[a-z0-9]+)*)\]")
_ENTRY = """### {name}

{update}

```python
{example}
```

{fields}

::: {path}
    options: {{ heading_level: 4, members: [], show_if_no_docstring: true, show_root_toc_entry: false }}
"""


def metrics() -> str:
    """Every metric: its column, what it is, and which direction is better."""
    lines = ["| column | meaning | better |", "|---|---|---|"]
    for name, metric in METRICS.items():
        text = metric.description.replace("|", "\\|")
        lines.append(f"| `{name}` | {text} | {metric.better} |")
    return "\n".join(lines)


def csv_table(path: Path) -> str:
    """A CSV file as a table; its first row has the headings."""
    with path.open(encoding="utf-8", newline="") as file:
        heads, *rows = csv.reader(file)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def train_options() -> str:
    """Every keyword argument of `train` and `compare`, from the docstrings of the options."""
    meanings: dict[str, str] = {}
    for options in (TrainOptions, RunOptions, ExperimentOptions, ExecutionOptions):
        meanings.update(arguments(options))
    lines = ["| option | meaning |", "|---|---|"]
    for name in TrainOptions.__annotations__:
        text = meanings[name].replace("|", "\\|")
        lines.append(f"| `{name}` | {text} |")
    return "\n".join(lines)


def arguments(documented: type[Any]) -> dict[str, str]:
    """The arguments in the docstring of a class, with their descriptions in one line each."""
    _, _, section = (inspect.getdoc(documented) or "").partition("Args:\n")
    found: dict[str, str] = {}
    for line in section.splitlines():
        start = re.match(r"    (\w+): (.*)", line)
        if start:
            name = start[1]
            found[name] = start[2]
        elif line.strip():
            found[name] += " " + line.strip()
    return {name: text[:1].upper() + text[1:] for name, text in found.items()}


def method_classes() -> str:
    """Every method: the update of its docstring, its hyperparameters and its class."""
    return "\n".join(_entry(name, method) for name, method in ALGORITHMS.items())


def _entry(name: str, method: type[Any]) -> str:
    update = as_markdown(inspect.getdoc(sys.modules[method.__module__]) or "")
    path = f"{method.__module__}.{method.__name__}"
    example = method_example(name, method)
    return _ENTRY.format(
        name=name, update=update, example=example, fields=_fields(method), path=path
    )


def method_example(name: str, method: type[Any]) -> str:
    """A call that makes the method, with the default of every hyperparameter."""
    arguments = [repr(name).replace("'", '"')]
    for field in dataclasses.fields(method):
        arguments.append(f"{field.name}={field.default!r}".replace("'", '"'))
    call = f"spodgt.method({', '.join(arguments)})"
    if len(call) <= _WIDTH:
        return call
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"spodgt.method(\n{lines})"


def as_markdown(docstring: str) -> str:
    """A docstring as Markdown: indented lines are formulas, citation keys lead to the literature."""
    parts = []
    for part in re.split(r"\n\s*\n", docstring):
        if all(line.startswith("    ") for line in part.splitlines()):
            formulas = inspect.cleandoc("\n" + part)
            parts.append(f"```{{ .text .formulas }}\n{formulas}\n```")
        else:
            prose = re.sub(r"(?<!\*)\b(\w+)\*(?!\w)", r"\1\\*", part)  # the optimum x*
            parts.append(_CITATION.sub(_citation_links, prose))
    return "\n\n".join(parts)


def _citation_links(found: re.Match[str]) -> str:
    keys = re.split(r"[,;] ", found[1])
    return ", ".join(f"[{key}](../literature.md#{key})" for key in keys)


def _fields(method: type[Any]) -> str:
    comments: dict[str, str] = {}
    for each in reversed(method.__mro__[:-1]):
        comments.update(_COMMENT.findall(inspect.getsource(each)))
    lines = ["| field | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(method):
        meaning = comments.get(field.name, "").replace("|", "\\|")
        lines.append(f"| `{field.name}` | `{field.default!r}` | {meaning} |")
    return "\n".join(lines) if len(lines) > 2 else ""
