"""Quadratics with a known optimum: the test bench.

F_i(x) = ½ (x - c_i)ᵀ H_i (x - c_i),    F = mean_i F_i
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.types import Better, Evaluation, HasIdentity, HasOptimum, Ints, Minibatches, Problem

Numbers = Tensor | ArrayLike


@dataclass(frozen=True, eq=False, init=False)
class Quadratic(Problem, HasOptimum, HasIdentity):
    """One quadratic per client, with gradients that may be noisy."""

    H: Tensor  # (clients, parameters, parameters)
    c: Tensor  # (clients, parameters)
    noise: float

    def __init__(self, H: Numbers, c: Numbers, noise: float = 0.0) -> None:
        """Check and keep the numbers.

        Args:
            H: (clients, parameters, parameters) Hessians, each symmetric and positive semidefinite; a
                tensor, an array or nested lists. Whole numbers become float64.
            c: (clients, parameters) the minimiser of each client.
            noise: standard deviation of independent normal noise on every coordinate of a gradient; 0 by
                default.
        """
        given = (H, c)  # lists keep their digits: torch alone would make them float32
        H, c = (t if isinstance(t, Tensor) else torch.as_tensor(np.asarray(t)) for t in given)
        H, c = (t if t.is_floating_point() else t.double() for t in (H, c))
        if c.ndim != 2 or H.shape != (*c.shape, c.shape[-1]):
            raise InvalidInput(
                "H must be (clients, parameters, parameters) and c (clients, parameters), "
                f"got {tuple(H.shape)} and {tuple(c.shape)}."
            )
        if not torch.isfinite(H).all() or not torch.isfinite(c).all():
            raise InvalidInput("H and c must be finite, got NaN or infinity; check how they were made.")
        lopsided = (H - H.mT).abs().amax((1, 2))
        if lopsided.max() > 1e-6 * H.abs().max():
            client = int(lopsided.argmax())
            raise InvalidInput(f"H must be symmetric, but H[{client}] is not; use (H + H.mT) / 2.")
        if not noise >= 0:
            raise InvalidInput(f"noise must be at least 0, got {noise!r}; use noise=0.0.")
        self.__dict__.update(H=H, c=c, noise=noise)

    @classmethod
    def random(
        cls,
        clients: int,
        parameters: int,
        *,
        seed: int = 0,
        condition: float = 10.0,
        spread: float = 1.0,
        noise: float = 0.0,
    ) -> Quadratic:
        """Random Hessians and centres, in float64.

        Args:
            clients: how many quadratics.
            parameters: length of a model.
            seed: of the draw; 0 by default.
            condition: eigenvalues are drawn between 1/condition and 1, log-uniformly; 10 by default.
            spread: standard deviation of every coordinate of the clients' minimisers; 1 by default.
            noise: as for `Quadratic`.
        """
        draws = rng.generator(seed, "quadratic")
        Q, _ = np.linalg.qr(draws.standard_normal((clients, parameters, parameters)))
        values = condition ** -draws.random((clients, parameters, 1))
        H = Q @ (values * Q.swapaxes(1, 2))
        c = spread * draws.standard_normal((clients, parameters))
        return cls(torch.from_numpy((H + H.swapaxes(1, 2)) / 2), torch.from_numpy(c), noise)

    @property
    def clients(self) -> int:
        return len(self.c)

    @property
    def parameters(self) -> int:
        return int(self.c.shape[1])

    @property
    def work(self) -> float:
        return float(self.H.numel())

    def optimum(self, weights: ArrayLike | None = None) -> Tensor:
        """(parameters,) the minimiser of Σ w_i F_i.

        Args:
            weights: (clients,) w; all one by default. With w = p it is the limit of Spod-GT.
        """
        H, c = self.H.double(), self.c.double()
        w = torch.ones(self.clients) if weights is None else torch.as_tensor(weights)
        w = w.double().to(H.device)
        x: Tensor = torch.linalg.solve(torch.einsum("i,ijk->jk", w, H), torch.einsum("i,ijk,ik->j", w, H, c))
        return x

    def draw(self, seed: int) -> Quadratic:
        return self

    def start(self, seed: int) -> Tensor:
        return torch.zeros(self.clients, self.parameters, dtype=self.c.dtype)

    @property
    def metrics(self) -> Mapping[str, Better]:
        return {}

    @property
    def private(self) -> int:
        return 0

    def statistics(self, seed: int) -> Tensor:
        return torch.empty(self.clients, 0)

    def join(self, others: Sequence[Quadratic]) -> Quadratic:
        problems = [self, *others]
        return replace(self, H=torch.cat([q.H for q in problems]), c=torch.cat([q.c for q in problems]))

    def to(self, device: torch.device, dtype: torch.dtype) -> Quadratic:
        return replace(self, H=self.H.to(device, dtype), c=self.c.to(device, dtype))

    @property
    def identity(self) -> tuple[dict[str, str], list[Tensor | Ints]]:
        return {"noise": str(self.noise)}, [self.H, self.c]

    def grad(self, x: Tensor, batches: Minibatches) -> Tensor:
        _, g = self.full(x, batches.rows)
        if self.noise:  # normal draws by Box and Muller
            draw, count = np.arange(2 * self.parameters)[None], self.parameters
            u = rng.uniform(batches.keys[:, None], batches.k, batches.places[:, None], draw)
            radius, angle = np.sqrt(-2 * np.log1p(-u[:, :count])), 2 * np.pi * u[:, count:]
            g = g + self.noise * torch.from_numpy(radius * np.cos(angle)).to(g)
        return g

    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        everyone = len(rows) == self.clients  # rows are in order, so nothing needs to be gathered
        away = x - (self.c if everyone else self.c[rows])
        g = torch.einsum("ijk,ik->ij", self.H if everyone else self.H[rows], away)
        return (away * g).sum(-1) / 2, g

    def evaluate(self, x: Tensor, rows: Ints | None = None) -> Evaluation:
        away = x[:, None] - self.c
        loss = torch.einsum("nij,ijk,nik->n", away, self.H, away) / (2 * self.clients)
        return Evaluation(loss, {})
