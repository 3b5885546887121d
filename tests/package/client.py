"""A program that uses the installed package, for mypy --strict: types arrive with it (py.typed)."""

from __future__ import annotations

from typing import assert_type

import pandas as pd
import torch
from torch import nn

import spodgt


def main() -> None:
    clients = [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(3)]
    problem = spodgt.Learning(nn.Linear(3, 2), nn.CrossEntropyLoss(), clients, test=clients[0])
    network = spodgt.Network.ring(3)
    result = spodgt.compare(
        ["spod-gt", spodgt.SpodGTMemory(0.1)],
        problem,
        network,
        spodgt.Bernoulli(0.8, 0.8),
        rounds=5,
    )
    assert_type(result, spodgt.Result)
    assert_type(result.frame, pd.DataFrame)
    assert_type(result.model("spod-gt"), nn.Module)
    assert_type(network.clients, int)
    print(result)


if __name__ == "__main__":
    main()
