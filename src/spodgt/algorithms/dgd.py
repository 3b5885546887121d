"""DGD, the distributed (sub)gradient method [nedic2009distributed].

    x_i⁺ = Σ_j a_ij x_j - α d_i(x_i)      d_i a (sub)gradient of f_i

The step is DSGD's; the paper's gradients are full, so give the problem a full batch. A decaying α
(`step_size=InverseSqrt(0.1)`) makes the limit exact; a constant one leaves a bias. Its double stochastic
weights are our W.
"""

from dataclasses import dataclass, replace

from spodgt.algorithms.dsgd import DSGD


@dataclass(frozen=True)
class DGD(DSGD):
    name = "dgd"
    traits = replace(DSGD.traits, source="nedic2009distributed")
