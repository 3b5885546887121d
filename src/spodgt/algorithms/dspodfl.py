"""DSpodFL: DSGD with sporadic clients and sporadic two-way links [zehtabi2025decentralized].

    θ_i⁺ = θ_i + Σ_j β_ij v̂_ij (θ_j - θ_i) - α v_i g_i

That is x⁺ = Ŵ x - α v⊙g, one draw v̂_ij = v̂_ji for each pair. Clients that compute rarely have a
lower weight in the limit.
"""

from dataclasses import dataclass, replace

from spodgt.algorithms.dsgd import DSGD


@dataclass(frozen=True)
class DSpodFL(DSGD):
    name = "dspodfl"
    traits = replace(DSGD.traits, source="zehtabi2025decentralized", sporadic_clients="yes")
