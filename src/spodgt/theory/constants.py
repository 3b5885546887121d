"""All constants of the convergence analysis, from a network, its probabilities and the data."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from spodgt.network import Network
from spodgt.theory import lemmas
from spodgt.theory.lemmas import Values
from spodgt.theory.record import Constants, Infeasible, Variant
from spodgt.theory.setting import Setting
from spodgt.theory.theorem import proposition_loss, proposition_lr, theorem

ALWAYS = {field.name for field in fields(Constants) if field.type == "float"}


def constants(
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
    gamma2: float = 2.0,
    gamma3: float = 2.0,
    variant: Variant = "paper",
) -> Constants:
    """Every constant of the analysis; what cannot hold is `Infeasible` with its reason.

    `p` and the data constants are one number or one per client, `p_hat` one number or one per link in the
    network's order. `samples` and `batch` are D_i and B_i; `gamma2`, `gamma3` > 1 are Γ₂, Γ₃.
    K(G) needs |E| m² work, so this is for up to some hundred clients.
    """
    data = {"L": L, "sigma0": sigma0, "sigma1": sigma1, "delta0": delta0, "delta1": delta1}
    data |= {"samples": samples, "batch": batch, "step_size": step_size}
    setting = Setting.of(network, p, p_hat, data, gamma2=gamma2, gamma3=gamma3, variant=variant)
    # tiny probabilities may overflow; what is then not a number is reported as infeasible below
    with np.errstate(all="ignore"):
        values, reason = _compute(network, setting)
    record: Values = {field.name: reason for field in fields(Constants)}
    record |= {name: _finite(name, value) for name, value in values.items()}
    return Constants(**record)


def _compute(network: Network, setting: Setting) -> tuple[Values, Infeasible]:
    """The constants in the order of the proofs, and why the chain ends where it does."""
    v: Values = {"variant": setting.variant, "p": setting.p, "p_hat": setting.links.p_hat}
    v |= {"batch": setting.batch, "step_size": setting.step_size, "gamma3": setting.gamma3}
    v |= lemmas.network_values(network, setting)
    v |= lemmas.contraction(setting, v)
    v |= lemmas.data(setting, v)
    for matrix in "AB":
        gap = v[f"one_minus_rho_tilde_{matrix}"]
        if not gap > 0:
            return v, Infeasible(
                f"1 - rho_tilde_{matrix} = {gap:.3g} must be positive; the links' variance rho0_{matrix} = "
                f"{v[f'rho0_{matrix}']:.3g} is too large for the gap 1 - rho_{matrix} = "
                f"{v[f'one_minus_rho_{matrix}']:.3g}"
            )
    v |= lemmas.recursion(setting, v)
    v |= proposition_lr(setting, v)
    if not v["one_minus_rho_Psi"] > 0:
        return v, Infeasible(f"rho_Psi = {v['rho_Psi']:.6g} must be below one; the step size is too large")
    v |= lemmas.sums(v)
    if setting.variant == "corrected":
        return v, Infeasible("the proof of Proposition loss does not go through; use rigorous_bound instead")
    v |= proposition_loss(setting, v)
    if not v["q"] > 0:
        return v, Infeasible("q = 0: with a single client Gamma1 = 1 leaves no guaranteed descent")
    return v | theorem(v), Infeasible("not part of this variant")


def _finite(name: str, value: Any) -> Any:
    """Keep what is finite; say so where the floats end. What always exists is then infinite."""
    if isinstance(value, np.floating):
        value = float(value)
    if not isinstance(value, float | np.ndarray) or np.isfinite(value).all():
        return value
    if name in ALWAYS:
        return math.inf if np.isnan(value).any() else value
    return Infeasible(f"{name} exceeds the range of floating point")
