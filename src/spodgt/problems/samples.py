"""Deprecated: `spodgt.problems.data.sampling`. Removed in the next release."""

from __future__ import annotations

from spodgt._util.deprecation import renamed_attribute

_SAMPLING = "spodgt.problems.data.sampling"
_RENAMED = {
    "Holdings": f"{_SAMPLING}.ClientIndices",
    "Samples": f"{_SAMPLING}.Samples",
    "without_replacement": f"{_SAMPLING}.sample_without_replacement",
}


def __getattr__(name: str) -> object:
    return renamed_attribute(__name__, name, _RENAMED)
