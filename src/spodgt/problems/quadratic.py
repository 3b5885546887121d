"""Quadratics with a known optimum.

F_i(x) = ½ (x - c_i)ᵀ H_i (x - c_i),    F = mean_i F_i
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from spodgt import rng
from spodgt._util.text import html_table
from spodgt.errors import InvalidInput
from spodgt.problems.protocols import HasEvaluationWork, HasIdentity, HasOptimum, HasWork
from spodgt.types import Evaluation, Ints, Minibatches, Problem
from spodgt.validation import check_count

Numbers = Tensor | ArrayLike
_ROUNDING = 1e-6  # relative to the largest number: how symmetric and how positive H must be


def _to_tensor(given: Numbers, name: str) -> Tensor:
    """Convert to a tensor of floats; lists become float64, not float32 as in `torch.tensor`."""
    try:
        found = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{name} must be numbers, got {type(given).__name__}; give an array."
        ) from None
    if found.is_complex():
        raise InvalidInput(f"{name} must be real, got complex numbers; use {name}.real.")
    return found.detach() if found.is_floating_point() else found.double()


@dataclass(frozen=True, eq=False, init=False)
class Quadratic(Problem, HasEvaluationWork, HasOptimum, HasIdentity, HasWork):
    """One quadratic per client, with gradients that may be noisy."""

    H: Tensor  # (clients, parameters, parameters)
    c: Tensor  # (clients, parameters)
    noise: float

    def __repr__(self) -> str:
        return (
            f"<Quadratic: {self.clients:,} clients, {self.parameters:,} parameters, "
            f"noise {self.noise:g}>"
        )

    def _repr_html_(self) -> str:
        """The eigenvalues of each client in a notebook."""
        rows = []
        for client, values in enumerate(torch.linalg.eigvalsh(self.H.double().cpu())):
            rows.append((client, f"{values[0]:.4g}", f"{values[-1]:.4g}"))
        header = ("client", "smallest eigenvalue of H", "largest")
        return html_table(repr(self), header, rows)

    def __init__(self, H: Numbers, c: Numbers, noise: float = 0.0) -> None:
        """Check and keep the numbers.

        Args:
            H: (clients, parameters, parameters) Hessians, each symmetric and positive semidefinite;
                a tensor, an array or nested lists. Whole numbers become float64.
            c: (clients, parameters) the minimiser of each client.
            noise: standard deviation of independent normal noise on every coordinate of a gradient;
                0 by default.
        """
        H = _to_tensor(H, "H")
        c = _to_tensor(c, "c")
        if c.ndim != 2 or H.shape != (*c.shape, c.shape[-1]) or not c.numel():
            raise InvalidInput(
                "H must be (clients, parameters, parameters) and c (clients, parameters), "
                f"got {tuple(H.shape)} and {tuple(c.shape)}."
            )
        if not torch.isfinite(H).all() or not torch.isfinite(c).all():
            raise InvalidInput(
                "H and c must be finite, got NaN or infinity; check how they were made."
            )
        _check_hessians(H)
        is_number = isinstance(noise, int | float | np.number) and not isinstance(noise, bool)
        if not is_number or not 0 <= noise < float("inf"):
            raise InvalidInput(
                f"noise must be a number of at least 0, got {noise!r}; use noise=0.0."
            )
        self.__dict__.update(H=H, c=c, noise=float(noise))

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
            condition: eigenvalues are drawn between 1/condition and 1, log-uniformly; 10 by
                default.
            spread: standard deviation of every coordinate of the clients' minimisers; 1 by default.
            noise: as for `Quadratic`.
        """
        check_count("clients", clients, "clients=10")
        check_count("parameters", parameters, "parameters=10")
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

    @property
    def evaluation_work(self) -> float:
        return float(self.clients + 1) * self.H.numel()

    def optimum(self, weights: ArrayLike | None = None) -> Tensor:
        """(parameters,) the minimiser of Σ w_i F_i.

        Args:
            weights: (clients,) w; all one by default. With w = p it is the limit of Spod-GT.
        """
        H = self.H.cpu().double()
        c = self.c.cpu().double()
        w = torch.ones(self.clients) if weights is None else _to_tensor(weights, "weights")
        if w.shape != (self.clients,):
            raise InvalidInput(
                f"weights must be {self.clients} numbers, one per client, "
                f"got shape {tuple(w.shape)}."
            )
        w = w.double().cpu()
        total = torch.einsum("i,ijk->jk", w, H)
        try:
            x: Tensor = torch.linalg.solve(total, torch.einsum("i,ijk,ik->j", w, H, c))
        except RuntimeError:  # a LinAlgError
            raise InvalidInput(
                "the weighted sum of H must be positive definite to have one optimum, "
                "but it is singular; "
                "add curvature to some client."
            ) from None
        return x.to(self.H.device)

    def start(self, seed: int) -> Tensor:
        return torch.zeros(self.clients, self.parameters, dtype=self.c.dtype)

    def join(self, others: Sequence[Quadratic]) -> Quadratic:
        problems = [self, *others]
        return self._with(torch.cat([q.H for q in problems]), torch.cat([q.c for q in problems]))

    def to(self, device: torch.device, dtype: torch.dtype) -> Quadratic:
        return self._with(self.H.to(device, dtype), self.c.to(device, dtype))

    def _with(self, H: Tensor, c: Tensor) -> Quadratic:
        """Other numbers that need no check."""
        other = copy.copy(self)
        other.__dict__.update(H=H, c=c)
        return other

    @property
    def identity(self) -> tuple[dict[str, str], list[Tensor | Ints]]:
        return {"noise": str(self.noise)}, [self.H, self.c]

    def grad(self, x: Tensor, batches: Minibatches) -> Tensor:
        _, g = self.full(x, batches.rows)
        if self.noise:  # normal draws by Box and Muller
            count = self.parameters
            draw = np.arange(2 * count)[None]
            u = rng.uniform(batches.keys[:, None], batches.k, batches.client_index[:, None], draw)
            radius = np.sqrt(-2 * np.log1p(-u[:, :count]))
            angle = 2 * np.pi * u[:, count:]
            g = g + self.noise * torch.from_numpy(radius * np.cos(angle)).to(g)
        return g

    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        H = self.H
        c = self.c
        if len(rows) < self.clients:  # all rows are in order, and need not be gathered
            H = H[rows]
            c = c[rows]
        offset = x - c
        g = torch.einsum("ijk,ik->ij", H, offset)
        return (offset * g).sum(-1) / 2, g

    def evaluate(self, x: Tensor, rows: Ints | None = None) -> Evaluation:
        offset = x[:, None] - self.c
        loss = torch.einsum("nij,ijk,nik->n", offset, self.H, offset) / (2 * self.clients)
        return Evaluation(loss, {})


def _check_hessians(H: Tensor) -> None:
    """Refuse Hessians that are not symmetric or have a negative eigenvalue, up to rounding."""
    size = float(H.abs().max())
    asymmetry = (H - H.mT).abs().amax((1, 2))
    if asymmetry.max() > _ROUNDING * size:
        client = int(asymmetry.argmax())
        raise InvalidInput(f"H must be symmetric, but H[{client}] is not; use (H + H.mT) / 2.")
    lowest = torch.linalg.eigvalsh(H.double().cpu())[:, 0]
    if lowest.min() < -_ROUNDING * size:
        client = int(lowest.argmin())
        raise InvalidInput(
            f"H must be positive semidefinite, but H[{client}] has the eigenvalue "
            f"{lowest[client]:.3g}; a loss without a lower bound has no minimum."
        )
