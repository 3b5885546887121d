"""Exceptions and warnings.

```text
SpodgtError
├── InvalidInput          one sentence with the name, the value and the fix (exit code 2)
│   ├── InvalidNetwork    graph or weights
│   ├── InvalidData       files, datasets, partitions
│   ├── InvalidConfig     keys and values of a configuration
│   └── Incompatible      a method that cannot run in this setting
└── Failed                a run that started but could not finish (exit code 1)
```
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "DivergenceWarning",
    "Failed",
    "Incompatible",
    "InvalidConfig",
    "InvalidData",
    "InvalidInput",
    "InvalidNetwork",
    "SpodgtError",
    "StalledWarning",
    "UnusedDataWarning",
]


class SpodgtError(Exception):
    """Base of every error raised on purpose."""


class InvalidInput(SpodgtError, ValueError):
    """Invalid input; the message names the argument, its value and the fix."""


class InvalidNetwork(InvalidInput):
    """A graph that is not strongly connected, or weights that are not stochastic."""


class InvalidData(InvalidInput):
    """An invalid file, dataset or partition."""


class InvalidConfig(InvalidInput):
    """An unknown configuration key or an invalid value."""


class Incompatible(InvalidInput):
    """A method in a setting that its definition excludes."""


class Failed(SpodgtError, RuntimeError):
    """A run that started but could not finish."""


class DivergenceWarning(RuntimeWarning):
    """A run diverged (NaN or infinite models) and was stopped."""


class StalledWarning(RuntimeWarning):
    """No model of a run has changed for many rounds."""


def caller_level() -> int:
    """The `stacklevel` with which a warning shows the calling line outside of this package."""
    package = Path(__file__).parent
    frame = inspect.currentframe()
    level = 0
    while frame is not None and package in Path(frame.f_code.co_filename).parents:
        frame = frame.f_back
        level += 1
    return max(1, level)


class UnusedDataWarning(UserWarning):
    """Samples that no client holds."""


@contextmanager
def no_divergence_warnings() -> Iterator[None]:
    """For callers that report diverged and stalled runs themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        warnings.simplefilter("ignore", StalledWarning)
        yield


def __dir__() -> list[str]:
    return __all__
