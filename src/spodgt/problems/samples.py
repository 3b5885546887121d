"""Deprecated: `spodgt.problems.data.sampling`. Removed in the next release."""

from __future__ import annotations

import warnings

from spodgt.problems.data import sampling

_RENAMED = {
    "Holdings": "ClientIndices",
    "Samples": "Samples",
    "without_replacement": "sample_without_replacement",
}


def __getattr__(name: str) -> object:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new_name = _RENAMED[name]
    warnings.warn(
        f"spodgt.problems.samples.{name} is deprecated; use spodgt.problems.data.sampling.{new_name}.",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(sampling, new_name)
