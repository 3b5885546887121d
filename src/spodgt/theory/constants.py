"""All constants of the convergence analysis, from a network, its probabilities and the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from spodgt.network import Network
from spodgt.theory import lemmas
from spodgt.theory.inputs import Data, Inputs, Variant
from spodgt.theory.lemmas import Gradients, Graph, Loss, Mixing, Recursion, Stage, Sums
from spodgt.theory.theorem import (
    PropositionLoss,
    PropositionLr,
    TheoremTerms,
    proposition_loss,
    proposition_lr,
    theorem,
)
from spodgt.types import Floats


@dataclass(frozen=True)
class Infeasible:
    """In place of a number that does not exist, with the condition that fails. Counts as false."""

    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"infeasible: {self.reason}"


Number = float | Infeasible
Vector = Floats | Infeasible


@dataclass(frozen=True, eq=False)
class Given(Stage):
    """Inputs that conditions are checked against."""

    variant: Variant
    p: Floats
    p_hat: Floats
    batch: Floats
    step_size: Floats
    gamma3: float


@dataclass(frozen=True, eq=False)
class Constants(
    TheoremTerms[Number],
    PropositionLoss[Number, Vector],
    PropositionLr[Number],
    Sums[Number, Vector],
    Loss[Number],
    Recursion[Number],
    Gradients,
    Mixing,
    Graph,
    Given,
):
    """Every constant of the analysis for one network, data and step size; fields are those of the bases.

    `variant` is "paper" (printed formulas, index typos repaired) or "corrected" (those for which the
    proofs go through). A field is a number, an array, or `Infeasible` with the reason.
    """

    def __post_init__(self) -> None:
        """Keep what is finite; what always exists may be infinite, anything else is then infeasible."""
        always = {field.name for stage in (Given, Graph, Mixing, Gradients) for field in fields(stage)}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.floating):
                value = float(value)
            if isinstance(value, float | np.ndarray) and not np.isfinite(value).all():
                if field.name not in always:
                    value = Infeasible(f"{field.name} exceeds the range of floating point")
                elif np.isnan(value).any():
                    value = math.inf
            object.__setattr__(self, field.name, value)


def constants(
    network: Network,
    p: ArrayLike,
    p_hat: ArrayLike,
    data: Data,
    step_size: ArrayLike,
    *,
    gamma2: float = 2.0,
    gamma3: float = 2.0,
    variant: Variant = "paper",
) -> Constants:
    """Compute every constant of the analysis; what cannot hold is `Infeasible` with its reason.

    The edge utility K(G) takes links × clients² steps, so this is for up to some hundred clients.

    Args:
        network: the graph and its weights A and B.
        p: probability in (0, 1] that a client computes in a round; one number or (clients,).
        p_hat: probability in (0, 1] that a link works; one number or (links,) in the network's order.
        data: smoothness, noise, dissimilarity and sample counts of the clients.
        step_size: η, positive; one number or (clients,).
        gamma2: Γ₂ > 1 of Proposition loss.
        gamma3: Γ₃ > 1 of Proposition loss: how much the largest step size may exceed the mean.
        variant: "paper" for the printed formulas, "corrected" for those that the proofs support.
    """
    inputs = Inputs.of(network, p, p_hat, data, step_size, gamma2=gamma2, gamma3=gamma3, variant=variant)
    values: dict[str, Any] = {}
    # tiny probabilities may overflow; what is then not a number is reported as infeasible
    with np.errstate(all="ignore"):
        for found in _stages(network, inputs):
            if isinstance(found, Infeasible):
                values = {field.name: found for field in fields(Constants)} | values
            else:
                values |= {field.name: getattr(found, field.name) for field in fields(found)}
        return Constants(**values)


def _stages(network: Network, inputs: Inputs) -> Iterator[Stage | Infeasible]:
    """The constants in the order of the proofs, then why the chain ends where it does."""
    yield Given(inputs.variant, inputs.p, inputs.links.p_hat, inputs.batch, inputs.step_size, inputs.gamma3)
    graph = lemmas.graph_constants(network, inputs)
    mixing = lemmas.mixing_constants(inputs, graph)
    gradients = lemmas.gradient_constants(inputs, graph)
    yield from (graph, mixing, gradients)
    for name, tilde, rho0, gap in (
        ("A", mixing.one_minus_rho_tilde_A, mixing.rho0_A, mixing.one_minus_rho_A),
        ("B", mixing.one_minus_rho_tilde_B, mixing.rho0_B, mixing.one_minus_rho_B),
    ):
        if not tilde > 0:
            yield Infeasible(
                f"1 - rho_tilde_{name} = {tilde:.3g} must be positive; the links' variance rho0_{name} = "
                f"{rho0:.3g} is too large for the gap 1 - rho_{name} = {gap:.3g}"
            )
            return
    r = lemmas.recursion(inputs, graph, mixing, gradients)
    loss = lemmas.loss_constants(inputs, graph, mixing, gradients)
    yield from (r, loss, proposition_lr(inputs, graph, mixing, gradients, r.kappa7))
    if not r.one_minus_rho_Psi > 0:
        yield Infeasible(f"rho_Psi = {r.rho_Psi:.6g} must be below one; the step size is too large")
        return
    yield lemmas.sums(graph, mixing, gradients, r, loss)
    if inputs.variant == "corrected":
        yield Infeasible("the proof of Proposition loss does not go through; use rigorous_bound instead")
        return
    found = proposition_loss(inputs, graph, mixing, gradients, r)
    yield found
    if not found.q > 0:
        yield Infeasible("q = 0: with a single client Gamma1 = 1 leaves no guaranteed descent")
        return
    yield theorem(graph, mixing, gradients, r, found.q)
