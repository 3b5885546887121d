"""Three spirals, classified by a small network; each client holds some of the points.

Change this file into your own problem: it needs a function that returns a
`spodgt.Learning`. Its parameters are keys of [problem.arguments] in experiment.toml; `clients` is
given by the network. Every process builds the problem for itself, from the same random state: all
get the same one.
"""

import torch

import spodgt

CLASSES = 3


def points(samples: int, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (samples, 2) and classes (samples,)."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % CLASSES
    radius = torch.rand(samples, generator=draws).sqrt()
    angle = 4 * radius + labels * (2 * torch.pi / CLASSES)
    inputs = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return inputs + noise * torch.randn(samples, 2, generator=draws), labels


def build(
    clients: int, hidden: int = 32, samples: int = 100, noise: float = 0.05, skew: float = 0.5
) -> spodgt.Learning:
    """The problem.

    Args:
        clients: how many clients the network has; given by spodgt.
        hidden: units of the hidden layer.
        samples: points that each client holds on average.
        noise: how far points lie from their spiral.
        skew: how different the clients are, from 0 (alike) to 1 (each holds classes of its own).
    """
    # Any torch.nn.Module, and any loss of (outputs, targets).
    model = torch.nn.Sequential(
        torch.nn.Linear(2, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, CLASSES)
    )
    loss = torch.nn.CrossEntropyLoss()

    # One data set per client: a torch Dataset, or a pair of tensors. Here a part of the points is
    # sorted by class, so that neighbours hold different classes, and the rest is dealt out evenly.
    inputs, labels = points(clients * samples, noise, seed=1)
    sorted_part = int(skew * len(labels))
    order = torch.cat(
        [labels[:sorted_part].argsort(stable=True), torch.arange(sorted_part, len(labels))]
    )
    shares = [part.tensor_split(clients) for part in (order[:sorted_part], order[sorted_part:])]
    own = [torch.cat([part[i] for part in shares]) for i in range(clients)]
    data = [(inputs[rows], labels[rows]) for rows in own]

    # Points that no client holds: models are evaluated on them.
    return spodgt.Learning(model, loss, data, test=points(600, noise, seed=2), batch_size=16)
