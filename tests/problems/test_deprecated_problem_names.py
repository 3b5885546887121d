"""Names of `spodgt.problems` that changed in version 0.3 warn and work for one release."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import spodgt
from spodgt.problems.data.samples import ClientIndices
from spodgt.problems.models.transformer import transformer

OLD_PARAMETERS = {
    "token_embedding": "letter",
    "position_embedding": "place",
    "qkv_proj": "asks",
    "out_proj": "answers",
    "attention_norm": "norm",
    "feed_forward_norm": "norm_hidden",
    "feed_forward": "hidden",
}


def test_holdings_is_client_indices() -> None:
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(2)]
    problem = spodgt.Learning(nn.Linear(3, 2), nn.CrossEntropyLoss(), data)
    with pytest.warns(DeprecationWarning, match=r"use Learning\.client_indices"):
        assert problem.holdings is problem.client_indices
    thin = ClientIndices.from_parts([np.array([0]), np.array([4])])
    with pytest.warns(DeprecationWarning, match=r"use Learning\.with_client_indices"):
        assert problem.with_holdings(thin).sizes().tolist() == [1, 1]


def test_the_module_samples_is_data_samples() -> None:
    with pytest.warns(DeprecationWarning, match=r"use spodgt\.problems\.data\.samples\.ClientI"):
        from spodgt.problems.samples import Holdings
    assert Holdings is ClientIndices


def test_a_transformer_loads_models_with_the_old_names_of_parameters() -> None:
    model = transformer(8, 10, width=4, depth=1)
    renamed = {}
    for name, value in model.state_dict().items():
        parts = [OLD_PARAMETERS.get(part, part) for part in name.split(".")]
        renamed[".".join(parts)] = value + 1
    other = transformer(8, 10, width=4, depth=1)
    other.load_state_dict(renamed)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name] + 1)
