"""Tables of results with the names of columns of older versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

import pandas as pd

from spodgt._util.deprecation import warn_renamed

METHOD = "method"  # the label of the method of a row
_OLD_NAMES = ("algorithm", "name")  # of this column, in older versions


def _accepts_old_names(name: str) -> Callable[..., object]:
    """The method `name` of a DataFrame, with old names of columns in its arguments."""
    original: Callable[..., object] = getattr(pd.DataFrame, name)

    @wraps(original)
    def call(self: ResultFrame, *args: object, **options: object) -> object:
        new_args = [_rename_key(self, value) for value in args]
        new_options = {key: _rename_key(self, value) for key, value in options.items()}
        return original(self, *new_args, **new_options)

    return call


class ResultFrame(pd.DataFrame):
    """A table with the column `method`, which older versions called `algorithm` or `name`.

    The old names work in `frame["algorithm"]` and in the methods below, with a warning; they are
    removed in the next release.
    """

    if not TYPE_CHECKING:  # type checkers know the new names only

        @property
        def _constructor(self) -> type[ResultFrame]:
            return ResultFrame  # so that selected rows and copies have the old names, too

        __getitem__ = _accepts_old_names("__getitem__")
        groupby = _accepts_old_names("groupby")
        pivot = _accepts_old_names("pivot")
        pivot_table = _accepts_old_names("pivot_table")
        set_index = _accepts_old_names("set_index")
        sort_values = _accepts_old_names("sort_values")

        def query(self, expr: str, **options: object) -> object:
            """As `pandas.DataFrame.query`.

            Args:
                expr: The condition.
                options: Of pandas.
            """
            if re.search(r"\balgorithm\b", expr) and METHOD in self.columns:
                warn_renamed("the column 'algorithm'", repr(METHOD))
                expr = re.sub(r"\balgorithm\b", METHOD, expr)
            options["level"] = options.get("level", 0) + 1  # local variables of the caller
            return super().query(expr, **options)


def _rename_key(frame: pd.DataFrame, key: object) -> object:
    """The new name of a column, or a list of them; other arguments are returned unchanged."""
    if isinstance(key, list):
        return [_rename_key(frame, part) for part in key]
    is_old = isinstance(key, str) and key in _OLD_NAMES
    if is_old and key not in frame.columns and METHOD in frame.columns:
        warn_renamed(f"the column {key!r}", repr(METHOD), stacklevel=4)
        return METHOD
    return key


def with_old_names(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the column `method`, also if an older version wrote it as `algorithm`.

    Args:
        table: Of methods, as it was made or read.
    """
    if "algorithm" in table.columns and METHOD not in table.columns:
        table = table.rename(columns={"algorithm": METHOD})
    return ResultFrame(table)
