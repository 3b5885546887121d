"""What can go wrong, and whose mistake it is.

SpodgtError
├── InvalidInput          the caller's: one sentence with the name, the value and the fix (exit code 2)
│   ├── InvalidNetwork    graph or weights
│   ├── InvalidData       files, datasets, partitions
│   ├── InvalidConfig     keys and values of a configuration
│   └── Incompatible      a method that cannot run in this setting
└── Failed                the run's: it started well and could not finish (exit code 1)
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SpodgtError(Exception):
    """Base of every error raised on purpose."""


class InvalidInput(SpodgtError, ValueError):
    """The caller's mistake: the message names the argument, its value and the fix."""


class InvalidNetwork(InvalidInput):
    """A graph that is not strongly connected, or weights that are not stochastic."""


class InvalidData(InvalidInput):
    """A file, dataset or partition that is not what it should be."""


class InvalidConfig(InvalidInput):
    """A configuration key or value that means nothing."""


class Incompatible(InvalidInput):
    """A method asked to run in a setting its definition excludes."""


class Failed(SpodgtError, RuntimeError):
    """A run that began and could not be finished."""


class DivergenceWarning(RuntimeWarning):
    """A run left the finite numbers and was given up."""


class StalledWarning(RuntimeWarning):
    """No model of a run has moved for many rounds."""


def caller_level() -> int:
    """The `stacklevel` with which a warning shows the line outside this package that led to it."""
    package = Path(__file__).parent
    frame = inspect.currentframe()
    level = 0
    while frame is not None and package in Path(frame.f_code.co_filename).parents:
        frame = frame.f_back
        level += 1
    return max(1, level)


class UnusedDataWarning(UserWarning):
    """Samples that were given are held by no client."""


@contextmanager
def no_divergence_warnings() -> Iterator[None]:
    """For callers that report diverged and stalled runs themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        warnings.simplefilter("ignore", StalledWarning)
        yield
