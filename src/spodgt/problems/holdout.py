"""Samples held out of training, so that methods and step sizes are chosen without the test data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch.utils import data as torch_data

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems.samples import Holdings, Loose, Samples
from spodgt.types import Ints

FRACTION = 0.2  # of each client's samples, in a search over a problem without validation data


@dataclass(frozen=True)
class Holdout:
    """How samples are held out when a seed is drawn.

    Args:
        fraction: of each client's samples; at least one of a client that has two or more.
        by_client: whether a client's model is evaluated on its own held-out samples only.
        most: samples in one evaluation at most, evenly spread over the clients; None: all.
        replaces_test: whether the held-out samples take the place of the test data, or are validation data
            beside them.
    """

    fraction: float
    by_client: bool = False
    most: int | None = None
    replaces_test: bool = False


class HeldOut(NamedTuple):
    """The two parts of all samples."""

    training: Holdings  # what is left to each client
    samples: Samples | Loose  # what was held out, client after client
    ranges: Ints | None  # (clients, 2) the first of client i's, and one past the last; None: all for everyone


def check_fraction(fraction: float) -> float:
    """A number above 0 and below 1."""
    if isinstance(fraction, bool) or not 0 < fraction < 1:
        raise InvalidInput(
            f"validation must be data or a fraction above 0 and below 1, got {fraction!r}; use 0.2."
        )
    return float(fraction)


def hold_out(samples: Samples | Loose, holdings: Holdings, holdout: Holdout, seed: int) -> HeldOut:
    """Split a fraction off what each client holds, as a function of (seed, client)."""
    training: list[Ints] = []
    held: list[Ints] = []
    for client in range(len(holdings)):
        own = holdings[client]
        order = rng.generator(seed, "validation", client).permutation(len(own))
        count = _count(len(own), holdout.fraction)
        held.append(own[np.sort(order[:count])])
        training.append(own[np.sort(order[count:])])
    sizes = [len(part) for part in held]
    if not any(sizes) or (holdout.by_client and not all(sizes)):
        raise InvalidInput(
            f"client {sizes.index(0)} holds {len(holdings[sizes.index(0)])} sample, so none can be held out "
            "to choose by; give validation data, validation=."
        )
    numbers = np.concatenate(held)
    ranges = None
    if holdout.by_client:
        bounds = np.cumsum([0, *sizes])
        ranges = np.stack([bounds[:-1], bounds[1:]], 1)
    if holdout.most is not None and not holdout.by_client and holdout.most < len(numbers):
        numbers = numbers[np.arange(holdout.most) * len(numbers) // holdout.most]
    return HeldOut(Holdings.of(training), select(samples, numbers), ranges)


def _count(size: int, fraction: float) -> int:
    """How many of `size` samples are held out: at least one, and never the last."""
    if size < 2:
        return 0
    return min(max(1, round(fraction * size)), size - 1)


def select(samples: Samples | Loose, numbers: Ints) -> Samples | Loose:
    """The samples with these numbers, in this order."""
    if isinstance(samples, Samples):
        rows = torch.from_numpy(numbers).to(samples.targets.device)
        return Samples(samples.inputs[rows], samples.targets[rows], samples.scales_bytes)
    owners = np.searchsorted(samples.starts, numbers, side="right") - 1
    cuts = np.flatnonzero(np.diff(owners)) + 1  # where another data set begins
    parts = []
    names = []
    for piece, owner in zip(np.split(numbers, cuts), owners[np.r_[0, cuts]].tolist(), strict=True):
        places = (piece - samples.starts[owner]).tolist()
        parts.append(torch_data.Subset(samples.parts[owner], places))
        names.append(samples.names[owner])
    return replace(samples, parts=tuple(parts), names=tuple(names))
