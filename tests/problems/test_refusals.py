"""Models and losses that cannot be trained as they are meant: one sentence before the first round."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

import spodgt
from spodgt.errors import InvalidData, InvalidInput
from spodgt.problems.models.engine_selection import select_engine

DRAWS = torch.Generator().manual_seed(3)
INPUTS = torch.randn(3, 8, 5, generator=DRAWS)
TARGETS = torch.randint(0, 3, (3, 8), generator=DRAWS)
DATA = list(zip(INPUTS, TARGETS, strict=True))
ENTROPY = nn.CrossEntropyLoss()


# --- losses ---------------------------------------------------------------------------------------------
class Prototypes(nn.Module):
    """Compares outputs with one trainable vector per class."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(3, 4, generator=DRAWS))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs @ self.centres.T, targets)


def test_a_loss_with_trainable_parameters_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"it uses 'centres', which would never be trained; make it part"
    ):
        spodgt.Learning(nn.Linear(5, 4), Prototypes(), DATA)
    frozen = Prototypes().requires_grad_(False)
    assert spodgt.Learning(nn.Linear(5, 4), frozen, DATA).parameters == 24


def test_a_loss_function_around_trainable_parameters_is_refused() -> None:
    model = nn.Linear(5, 3)

    def penalised(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets) + model.weight.square().sum()

    with pytest.raises(
        InvalidInput, match=r"it uses a parameter of shape \(3, 5\).*loss\(model, batch\)"
    ):
        spodgt.Learning(model, penalised, DATA)
    assert model.weight.grad is None


class HiddenLayers(nn.Module):
    """Layers in a plain list, which torch does not register."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(5, 4)]
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.layers[0](x))
        return y


def test_layers_that_the_model_does_not_register_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"no trainable parameters but the model's"):
        spodgt.Learning(HiddenLayers(), ENTROPY, DATA)


def test_the_repaired_loss_is_trained() -> None:
    class WithPrototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)
            self.prototypes = Prototypes()

    def loss(model: WithPrototypes, batch: tuple[Tensor, Tensor]) -> Tensor:
        value: Tensor = model.prototypes(model.layer(batch[0]), batch[1])
        return value

    problem = spodgt.Learning(WithPrototypes(), loss, DATA)
    assert problem.parameters == 24 + 12
    result = spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=3)
    before = problem.start(0)[0]
    assert (result.models["spod-gt", 0][:, -12:] != before[-12:]).any()


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


def summed_batch(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return summed(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            nn.CrossEntropyLoss(reduction="sum"),
            r"got CrossEntropyLoss with reduction='sum'; use reduction='mean'",
        ),
        (nn.MultiMarginLoss(reduction="sum"), r"got MultiMarginLoss with reduction='sum'"),
        (summed, r"is their sum: .* divide it by the number of samples"),
        (summed_batch, r"is their sum: .* divide it by the number of samples"),
    ],
)
def test_losses_that_add_up_are_refused(loss: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        spodgt.Learning(nn.Linear(5, 3), loss, DATA)


@dataclass
class UnhashableModule(nn.Module):
    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__init__()

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.weight * nn.functional.cross_entropy(outputs, targets)


def test_a_loss_module_that_cannot_be_hashed_is_refused_in_a_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"UnhashableModule defines __eq__ without __hash__"):
        spodgt.Learning(nn.Linear(5, 3), UnhashableModule(), DATA)


# --- models ---------------------------------------------------------------------------------------------
class TiedPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 5)
        self.b = nn.Linear(5, 5)
        self.b.weight = self.a.weight
        self.c = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.c(self.b(self.a(x)))
        return y


def test_personal_patterns_that_divide_tied_weights_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"personal has a pattern for 'b.weight', which is tied to 'a.weight'"
    ):
        spodgt.Learning(TiedPair(), ENTROPY, DATA, personal="b.*")
    with pytest.raises(
        InvalidInput, match=r"shared has a pattern for 'b.weight', which is tied to 'a.weight'"
    ):
        spodgt.Learning(TiedPair(), ENTROPY, DATA, shared=["b.*", "c.*"])
    both = spodgt.Learning(TiedPair(), ENTROPY, DATA, personal=["a.*", "b.*"])
    assert both.model.columns.personal.names == ("a.weight", "a.bias", "b.bias")
    only = spodgt.Learning(TiedPair(), ENTROPY, DATA, personal="b.bias")
    assert only.model.columns.personal.names == ("b.bias",)


class GradientsOn(nn.Module):
    """Switches gradients on even in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y: Tensor = self.layer(x)
        return y


def test_no_warning_of_torch_reaches_the_user() -> None:
    trained = spodgt.Learning(GradientsOn(), ENTROPY, DATA).model
    assert trained.probe_batch is not None
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            select_engine(trained.plain, *trained.probe_batch, device="cuda")
    finally:
        torch.set_warn_always(always)


class Checkpointed(nn.Module):
    """Computes its layers again in the backward pass, in the way that supports backward() alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if torch.is_grad_enabled():
            hidden = checkpoint(torch.tanh, hidden, use_reentrant=True)
        else:
            hidden = torch.tanh(hidden)
        y: Tensor = self.last(hidden)
        return y


def test_reentrant_checkpoints_are_trained() -> None:
    problem = spodgt.Learning(Checkpointed(), ENTROPY, DATA, batch_size=4)
    result = spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=3)
    assert np.isfinite(result.frame["train_loss"]).all()


def test_frozen_layers_and_constants_keep_double_precision() -> None:
    class Frozen(nn.Module):
        scale: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(5, 4).requires_grad_(False)
            self.last = nn.Linear(4, 3)
            self.register_buffer("scale", torch.tensor(1 / 3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(torch.tanh(self.first(x)) * self.scale)
            return y

    torch.manual_seed(2)
    module = Frozen().double()
    with torch.no_grad():
        module.first.weight.copy_(torch.randn(4, 5, dtype=torch.float64))
    data = [(inputs.double(), targets) for inputs, targets in DATA]
    problem = spodgt.Learning(module, ENTROPY, data).to(torch.device("cpu"), torch.float64)
    x = problem.start(0).double()
    losses, gradients = problem.full(x, np.arange(3))
    own = copy.deepcopy(module)
    loss = ENTROPY(own(data[0][0]), data[0][1])
    loss.backward()
    parts = [p.grad.flatten() for p in own.parameters() if p.grad is not None]
    assert_close(losses[0], loss.detach(), rtol=1e-14, atol=1e-14)
    assert_close(gradients[0], torch.cat(parts), rtol=1e-13, atol=1e-14)


# --- gradients in evaluation mode -----------------------------------------------------------------------
class PaddedEncoder(nn.Module):
    """A transformer with a padding mask, whose embedding and lower layer are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8, padding_idx=0).requires_grad_(False)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.layers.layers[0].requires_grad_(False)
        self.last = nn.Linear(8, 3)

    def forward(self, codes: Tensor) -> Tensor:
        hidden = self.layers(self.table(codes), src_key_padding_mask=codes == 0)
        y: Tensor = self.last(hidden.mean(1))
        return y


def test_a_partly_frozen_transformer_has_a_gradient_norm() -> None:
    torch.manual_seed(1)
    codes = torch.randint(1, 9, (8, 6), generator=DRAWS)
    codes[::2, 4:] = 0
    data = [(codes, TARGETS[client]) for client in range(3)]
    module = PaddedEncoder()
    problem = spodgt.Learning(module, ENTROPY, data, data[0], batch_size=4)
    fast = torch.backends.mha.get_fastpath_enabled()
    result = spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=2)
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert result.frame["gradient_norm"].notna().all()
    _, gradients = problem.full(problem.start(0), np.arange(3))
    own = copy.deepcopy(module).train()  # without dropout, training mode computes the same
    ENTROPY(own(codes), TARGETS[0]).backward()
    parts = [p.grad.flatten() for p in own.parameters() if p.grad is not None]
    assert_close(gradients[0], torch.cat(parts), rtol=1e-4, atol=1e-5)


class NoGradientInEvaluation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            y: Tensor = self.layer(x)
        return y


def test_a_model_without_gradient_in_evaluation_mode_is_trained_without_gradient_norm() -> None:
    with pytest.warns(
        UserWarning, match=r"gradient_norm and train_loss are left out.*evaluation mode: element 0"
    ):
        problem = spodgt.Learning(NoGradientInEvaluation(), ENTROPY, DATA, DATA[0])
    network = spodgt.Network.ring(3)
    result = spodgt.train("spod-gt", problem, network, rounds=3)
    assert np.isfinite(result.frame["loss"]).all()
    assert "gradient_norm" not in result.frame or result.frame["gradient_norm"].isna().all()
    with pytest.raises(
        InvalidInput, match=r"gradient in evaluation mode failed.*use gradient_norm=False"
    ):
        spodgt.train("spod-gt", problem, network, rounds=3, gradient_norm=True)


# --- samples that are read when needed ------------------------------------------------------------------
class WithHole(Dataset[tuple[Tensor, Tensor]]):
    """One sample is NaN."""

    def __init__(self, client: int, hole: int | None) -> None:
        self.client = client
        self.hole = hole

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        inputs = INPUTS[self.client, number]
        return inputs * torch.nan if number == self.hole else inputs, TARGETS[self.client, number]


def pair_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("loss", [ENTROPY, pair_loss], ids=["outputs", "model"])
@pytest.mark.parametrize("gradient_norm", [False, True])
def test_a_sample_that_is_no_number_is_named(
    loss: Callable[..., Tensor], gradient_norm: bool
) -> None:
    clients = {"north": WithHole(0, None), "south": WithHole(1, 6), "west": WithHole(2, None)}
    problem = spodgt.Learning(nn.Linear(5, 3), loss, clients, batch_size=2)
    with pytest.raises(
        InvalidData, match=r"client 'south' has NaN or infinite numbers in sample 6; clean"
    ):
        spodgt.train(
            "spod-gt", problem, spodgt.Network.ring(3), rounds=60, gradient_norm=gradient_norm
        )


def test_a_test_sample_that_is_no_number_is_named() -> None:
    problem = spodgt.Learning(nn.Linear(5, 3), ENTROPY, DATA, WithHole(0, 5))
    with pytest.raises(InvalidData, match=r"test has NaN or infinite numbers in sample 5; clean"):
        spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=3)


def test_numbers_that_are_not_finite_are_refused_with_their_sample() -> None:
    inputs = torch.zeros(5, 2)
    inputs[3, 1] = torch.nan
    clients = [(torch.zeros(5, 2), torch.zeros(5).long()), (inputs, torch.zeros(5).long())]
    with pytest.raises(InvalidData, match=r"client 1 has inputs .* first in sample 3; clean"):
        spodgt.Learning(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), clients)
