"""For the API reference: what griffe does not see by itself in these sources.

Classes made by `@recipe` are dataclasses, and a comment after a field documents the field.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

KEYWORD = griffe.ParameterKind.positional_or_keyword
_COMMENT = re.compile(r"^\s+\w+\s*:.*?\s{2}# (?P<text>.+)$")
_IS_FOR_TOOLS = re.compile(r"noqa|type: ignore|fmt: ")


class Declared(griffe.Extension):
    """Constructors of recipes, and docstrings of fields."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        fields = [each for each in cls.attributes.values() if "instance-attribute" in each.labels]
        for field in fields:
            text = field_comment(field.lines[0]) if field.lines else ""
            if text and field.docstring is None:
                field.docstring = griffe.Docstring(text, parent=field)
        if (
            any(str(each.value).startswith("recipe(") for each in cls.decorators)
            and "__init__" not in cls.members
        ):
            given = [
                griffe.Parameter(
                    each.name, annotation=each.annotation, kind=KEYWORD, default=each.value
                )
                for each in fields
                if "ClassVar" not in str(each.annotation) and not each.name.startswith("_")
            ]
            me = griffe.Parameter("self", kind=KEYWORD)
            cls.set_member(
                "__init__", griffe.Function("__init__", parameters=griffe.Parameters(me, *given))
            )


def field_comment(line: str) -> str:
    """The comment after a field; empty if there is none, or one for linters."""
    found = _COMMENT.match(line)
    if found is None or _IS_FOR_TOOLS.match(found["text"]):
        return ""
    return found["text"]
