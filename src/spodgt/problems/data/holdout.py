"""Validation samples that are held out of the training data of each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems.data.evaluation_data import EvaluationData, consecutive_ranges, evenly_spread
from spodgt.problems.data.samples import AnySamples, ClientIndices
from spodgt.types import Ints

DEFAULT_FRACTION = 0.2  # in a search over a problem without validation data


@dataclass(frozen=True)
class Holdout:
    """How samples are held out when a seed is drawn.

    Args:
        fraction: of the samples of each client; at least one sample of a client with two or more.
        by_client: whether the model of a client is evaluated on its own held-out samples only.
        max_samples: samples in one evaluation at most, evenly spread over the clients; None: all.
        replaces_test: whether the held-out samples replace the test data; otherwise they are
            validation data.
    """

    fraction: float
    by_client: bool = False
    max_samples: int | None = None
    replaces_test: bool = False


class HoldoutSplit(NamedTuple):
    """All samples in two parts."""

    training: ClientIndices
    held_out: EvaluationData  # the samples of one client after those of the other


def check_fraction(fraction: float) -> float:
    """Return `fraction` if it is above 0 and below 1; otherwise raise `InvalidInput`."""
    if isinstance(fraction, bool) or not 0 < fraction < 1:
        raise InvalidInput(
            f"validation must be data or a fraction above 0 and below 1, got {fraction!r}; use 0.2."
        )
    return float(fraction)


def hold_out(
    samples: AnySamples, client_indices: ClientIndices, holdout: Holdout, seed: int
) -> HoldoutSplit:
    """Split off a fraction of the samples of each client, as a function of (seed, client).

    Raises:
        InvalidInput: if a client that needs held-out samples has only one sample.
    """
    training: list[Ints] = []
    held_out: list[Ints] = []
    for client in range(len(client_indices)):
        indices = client_indices[client]
        order = rng.generator(seed, "validation", client).permutation(len(indices))
        count = _held_out_count(len(indices), holdout.fraction)
        held_out.append(indices[np.sort(order[:count])])
        training.append(indices[np.sort(order[count:])])
    sizes = [len(part) for part in held_out]
    if not any(sizes) or (holdout.by_client and not all(sizes)):
        client = sizes.index(0)
        raise InvalidInput(
            f"client {client} holds {len(client_indices[client])} sample, so none can be held out "
            "to choose by; give validation data, validation=."
        )
    indices = np.concatenate(held_out)
    ranges = None
    if holdout.by_client:
        ranges = consecutive_ranges(sizes)
    else:
        indices = indices[evenly_spread(len(indices), holdout.max_samples)]
    evaluation = EvaluationData(samples.select(indices), ranges)
    return HoldoutSplit(ClientIndices.from_parts(training), evaluation)


def _held_out_count(size: int, fraction: float) -> int:
    """How many of `size` samples are held out: at least one, and never all."""
    if size < 2:
        return 0
    return min(max(1, round(fraction * size)), size - 1)
