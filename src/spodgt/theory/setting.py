"""The inputs of the analysis, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from spodgt.errors import InvalidInput
from spodgt.graphs import Floats
from spodgt.network import Network
from spodgt.theory.graph import Links, probabilities
from spodgt.theory.record import Variant


@dataclass(frozen=True, eq=False)
class Setting:
    """What the formulas read, one array per client, and the links."""

    links: Links
    p: Floats
    L: Floats
    sigma0: Floats
    sigma1: Floats
    delta0: Floats
    delta1: Floats
    D: Floats
    B: Floats
    eta: Floats
    gamma2: float
    gamma3: float
    variant: Variant

    @property
    def s(self) -> Floats:
        """(1 - B/D)/B: variance of a mini-batch drawn without replacement, Assumption sgd."""
        return (1 - self.B / self.D) / self.B


def check(
    network: Network,
    p: ArrayLike,
    p_hat: ArrayLike,
    L: ArrayLike,
    sigma0: ArrayLike,
    sigma1: ArrayLike,
    delta0: ArrayLike,
    delta1: ArrayLike,
    samples: ArrayLike,
    batch: ArrayLike,
    step_size: ArrayLike,
    gamma2: float,
    gamma3: float,
    variant: Variant,
) -> Setting:
    """The inputs as arrays, or a sentence that names the one that is wrong."""
    if variant not in get_args(Variant):
        raise InvalidInput(f"variant is {variant!r}; choose 'paper' or 'corrected'.")
    for name, gamma in {"gamma2": gamma2, "gamma3": gamma3}.items():
        if not (gamma > 1 and math.isfinite(gamma)):
            raise InvalidInput(f"{name} is {gamma}, but must be a number above one.")
    positive: Mapping[str, ArrayLike] = {"L": L, "samples": samples, "batch": batch, "step_size": step_size}
    non_negative: Mapping[str, ArrayLike] = {
        "sigma0": sigma0,
        "sigma1": sigma1,
        "delta0": delta0,
        "delta1": delta1,
    }
    arrays = {}
    for name, value in (positive | non_negative).items():
        array = np.asarray(value, dtype=np.float64)
        if array.shape not in ((), (1,), (network.clients,)):
            raise InvalidInput(f"{name} has shape {array.shape}, but one number or {network.clients} are needed.")
        array = np.broadcast_to(array, (network.clients,))
        bad = ~np.isfinite(array) | (array < 0) | ((array == 0) & (name in positive))
        if bad.any():
            sign = "positive" if name in positive else "zero or positive"
            worst = int(np.argmax(bad))
            raise InvalidInput(f"{name}[{worst}] is {array[worst]}, but must be {sign} and finite.")
        arrays[name] = array
    D, B = arrays["samples"], arrays["batch"]
    if (B > D).any() or (B < 1).any():
        worst = int(np.argmax((B > D) | (B < 1)))
        raise InvalidInput(
            f"batch[{worst}] is {B[worst]:g}, but must lie between 1 and the client's {D[worst]:g} samples."
        )
    return Setting(
        Links.of(network, p_hat),
        probabilities("p", p, network.clients),
        arrays["L"],
        arrays["sigma0"],
        arrays["sigma1"],
        arrays["delta0"],
        arrays["delta1"],
        D,
        B,
        arrays["step_size"],
        float(gamma2),
        float(gamma3),
        variant,
    )
