"""Draw docs/explanation/choosing.png: the methods that reach the optimum, by graph, idle clients and links.

    python docs/explanation/choosing.py

One heterogeneous quadratic, ten clients; the distance of the models from the true optimum against rounds.
"""

from __future__ import annotations

from pathlib import Path

import torch

import spodgt
from spodgt import figures

ROUNDS = 3000
PANELS = {
    "links both ways, all active": (
        spodgt.Network.random_geometric(10, 0.5, seed=2),
        spodgt.Always(),
        ("dsgd", "extra", "diging", "gt-dsgd", "push-pull"),
    ),
    "one-way links, all active": (
        spodgt.Network.directed_geometric(10, seed=2),
        spodgt.Always(),
        ("sgp", "subgradient-push", "push-diging", "push-pull", "spod-gt"),
    ),
    "one-way links, clients and links idle": (
        spodgt.Network.directed_geometric(10, seed=2),
        spodgt.Beta(0.5, 0.5, floor=0.1),
        ("spod-gt", "spod-gt-importance", "spod-gt-memory"),
    ),
}


def main() -> None:
    problem = spodgt.Quadratic.random(10, 5, seed=1, condition=5, spread=1.0)
    figure, panes = figures.new_figure(11, 3.6, len(PANELS))
    for axes, (title, (network, participation, names)) in zip(panes, PANELS.items(), strict=True):
        methods = [spodgt.method(name, step_size=0.02) for name in names]
        result = spodgt.compare(
            methods, problem, network, participation, rounds=ROUNDS, every=20, dtype=torch.float64
        )
        styles = figures.line_styles(names)
        for name, rows in result.frame.groupby("method", sort=False):
            axes.semilogy(
                rows["round"], rows["distance"], **styles[name].line, linewidth=2, label=name
            )
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("round")
        axes.set_ylim(1e-12, 10)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, frameon=False, handlelength=3)
    panes[0].set_ylabel("distance from the true optimum")
    figures.save(figure, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
