"""Sites in threads of one process, each with its own folder and links on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from spodgt.experiment import Experiment
from spodgt.peer.membership import run_folders
from spodgt.peer.membership.manifest import Manifest
from spodgt.peer.options import Deployment
from spodgt.sites.layout import RowLayout, model_row
from spodgt.sites.run_setup import create_script_run


class Point(nn.Module):
    """A model whose only parameter is a vector."""

    def __init__(self, n: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(n, dtype=dtype))


class Quadratics:
    """F_i(x) = (x - m_i)ᵀ Q_i (x - m_i) / 2 with eigenvalues of Q_i in [0.1, 1]."""

    def __init__(self, sites: int, n: int = 5, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.q = []
        self.m = []
        for _ in range(sites):
            normal = torch.randn(n, n, generator=generator, dtype=torch.float64)
            basis, _ = torch.linalg.qr(normal)
            eigenvalues = 0.1 + 0.9 * torch.rand(n, generator=generator, dtype=torch.float64)
            self.q.append(basis @ torch.diag(eigenvalues) @ basis.T)
            self.m.append(3 * torch.randn(n, generator=generator, dtype=torch.float64))

    def loss(self, site: int, x: Tensor) -> Tensor:
        difference = x - self.m[site]
        value: Tensor = difference @ self.q[site] @ difference / 2
        return value

    @property
    def optimum(self) -> Tensor:
        """The minimiser of the sum."""
        total = torch.stack(self.q).sum(0)
        right = torch.stack([q @ m for q, m in zip(self.q, self.m, strict=True)]).sum(0)
        solution: Tensor = torch.linalg.solve(total, right)
        return solution

    def error(self, x: Tensor) -> float:
        """Distance from the optimum, relative."""
        return float((x - self.optimum).norm() / self.optimum.norm())


def make_run(
    folder: Path,
    layout: RowLayout | nn.Module,
    clients: int,
    *,
    p_hat: float = 1.0,
    compress: bool = False,
) -> Manifest:
    """A run of `clients` sites on a directed exponential graph, with certificates for all."""
    if isinstance(layout, nn.Module):
        layout = model_row(layout).layout
    layers = {"compress": "int8"} if compress else {}
    experiment = Experiment.parse(
        {
            "network": {"kind": "exponential", "clients": clients},
            "participation": {"kind": "bernoulli", "p": 1.0, "p_hat": p_hat},
            "run": {"methods": ["spod-gt-memory"], "seeds": 1, "layers": layers},
        }
    )
    deployment = Deployment(limits_from_config=p_hat < 1)
    manifest = create_script_run(folder, experiment, layout, deployment)
    for name in manifest.names:
        run_folders.issue(folder, name)
    return manifest


def run_sites(names: list[str], train: Callable[[int, str], object], seconds: float = 120) -> None:
    """Call `train(number, name)` for each site in a thread; the first failure is raised."""
    failures: list[BaseException] = []

    def guarded(number: int, name: str) -> None:
        try:
            train(number, name)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=guarded, args=(number, name), daemon=True)
        for number, name in enumerate(names)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    if failures:
        raise failures[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"sites did not end within {seconds} s")
