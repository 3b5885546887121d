"""R-FAST: robust, fully asynchronous stochastic gradient tracking [zhu2023rfast].

    v⁺ = x - γ z;  x⁺ = W v, the last v known of each neighbour
    z½ = z + Σ_j (ρ_ij - ρ̃_ij) + ∇f(x⁺; ζ⁺) - ∇f(x; ζ)
    z⁺ = a_ii z½,  ρ_ji⁺ = ρ_ji + a_ji z½,  ρ̃_ij⁺ = ρ_ij

The recursion of ASY-SONATA with stochastic gradients: the old gradient is kept, not drawn again. The paper
allows other graphs for W and A than for each other, as long as two spanning trees in them share a root; here
both are the network's.
"""

from dataclasses import dataclass, replace

from spodgt.algorithms.asy_sonata import AsySONATA


@dataclass(frozen=True)
class RFAST(AsySONATA):
    name = "r-fast"
    traits = replace(AsySONATA.traits, source="zhu2023rfast")
