"""Deprecated: `problems.data.samples` and `problems.minibatch_gradients`, until the next release."""

from __future__ import annotations

from spodgt._util.deprecation import renamed_attribute

_DATA = "spodgt.problems.data"
_RENAMED = {
    "Holdings": f"{_DATA}.samples.ClientIndices",
    "Samples": f"{_DATA}.samples.Samples",
    "without_replacement": "spodgt.problems.minibatch_gradients.sample_without_replacement",
}


def __getattr__(name: str) -> object:
    return renamed_attribute(__name__, name, _RENAMED)
