"""A plain PyTorch loop: a module per client, gradients by autograd, mixing in Python."""

from __future__ import annotations

import numpy as np
import torch
from meter import begin, finish
from modules import flat, module, tensors

work, meter = begin()
models = [module(work) for _ in range(work.clients)]
shares = [tensors(work, i) for i in range(work.clients)]
heard = [
    [(j, float(work.weights[i, j])) for j in [i, *work.neighbours(i)]] for i in range(work.clients)
]
loss = torch.nn.CrossEntropyLoss()


def step() -> None:
    """x⁺ = W x - γ g(x), for every client."""
    for model, (inputs, targets) in zip(models, shares, strict=True):
        chosen = torch.randperm(len(targets))[: work.batch]
        model.zero_grad()
        loss(model(inputs[chosen]), targets[chosen]).backward()
    with torch.no_grad():
        old = [[p.clone() for p in model.parameters()] for model in models]
        for model, terms in zip(models, heard, strict=True):
            for n, parameter in enumerate(model.parameters()):
                parameter.copy_(
                    sum(w * old[j][n] for j, w in terms) - work.step_size * parameter.grad
                )


meter.start()
done = 0
while True:
    step()
    done += work.clients
    if meter.tick(done, lambda: np.mean([flat(model) for model in models], 0)):
        break
finish(meter, "torch")
