"""OSGP, overlap SGP: messages are in flight while gradients are computed [assran2019stochastic].

    x½ = x - γ ∇F(z)                        x is the paper's, here u; its z is our model x
    x⁺ = p_ii x½ + Σ_j p_ij x½_j            over the messages received so far, also old ones
    w⁺ = p_ii w + Σ_j p_ij w_j              sent with them, here s
    z⁺ = x⁺ / w⁺

A client waits if a neighbour's last message is more than τ of its iterations old. In rounds,
messages arrive at once, no client waits, and it is `sgp`.
"""

from dataclasses import dataclass, replace

from spodgt.algorithms.base import Count
from spodgt.algorithms.sgp import SGP


@dataclass(frozen=True)
class OSGP(SGP):
    name = "osgp"
    traits = replace(SGP.traits, asynchronous=True)
    overlap: Count = 1  # τ
