"""uint8 inputs: images are scaled, tokens are not, and every form of data follows the same rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import spodgt
from spodgt.errors import InvalidInput

DRAWS = torch.Generator().manual_seed(3)
BYTES = torch.randint(0, 30, (8, 6), generator=DRAWS, dtype=torch.uint8)
TARGETS = torch.randint(0, 3, (8,), generator=DRAWS)
ENTROPY = nn.CrossEntropyLoss()


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """The same samples, read one by one."""

    def __len__(self) -> int:
        return len(BYTES)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return BYTES[number], TARGETS[number]


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.table(x.long()).mean(1))
        return y


class Normalised(nn.Module):
    """Computes with bytes and with floats alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer((x - 0.5) / 0.5)
        return y


FORMS: dict[str, Callable[[], object]] = {
    "tensors": lambda: (BYTES, TARGETS),
    "list": lambda: list(zip(BYTES, TARGETS, strict=True)),
    "Dataset": Pairs,
}


def loss_of(module: nn.Module, inputs: Tensor) -> float:
    with torch.no_grad():
        return float(ENTROPY(module(inputs), TARGETS))


@pytest.mark.parametrize("form", FORMS)
def test_bytes_are_scaled_for_models_that_compute_with_floats(form: str) -> None:
    torch.manual_seed(1)
    module = nn.Linear(6, 3)
    problem = spodgt.Learning(module, ENTROPY, [FORMS[form]()], FORMS[form]())  # type: ignore[arg-type, list-item]
    expected = loss_of(module, BYTES / 255)
    assert float(problem.evaluate(problem.start(0)).loss) == pytest.approx(expected, rel=1e-5)
    losses, _ = problem.full(problem.start(0), np.arange(1))
    assert float(losses[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_bytes_that_a_model_reads_as_tokens_stay_as_they_are(form: str) -> None:
    torch.manual_seed(1)
    module = Tokens()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = spodgt.Learning(module, ENTROPY, [FORMS[form]()], FORMS[form]())  # type: ignore[arg-type, list-item]
    expected = loss_of(module, BYTES)
    assert float(problem.evaluate(problem.start(0)).loss) == pytest.approx(expected, rel=1e-5)
    losses, _ = problem.full(problem.start(0), np.arange(1))
    assert float(losses[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_of_model_and_batch_is_given_bytes_as_they_are(form: str) -> None:
    seen: set[torch.dtype] = set()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.add(batch[0].dtype)
        return nn.functional.cross_entropy(model(batch[0] / 100), batch[1])

    torch.manual_seed(1)
    module = nn.Linear(6, 3)
    problem = spodgt.Learning(module, loss, [FORMS[form]()], FORMS[form]())  # type: ignore[arg-type, list-item]
    expected = loss_of(module, BYTES / 100)
    assert float(problem.evaluate(problem.start(0)).loss) == pytest.approx(expected, rel=1e-5)
    assert seen == {torch.uint8}


def test_a_model_that_takes_bytes_and_floats_gets_floats_and_a_warning() -> None:
    torch.manual_seed(1)
    module = Normalised()
    with pytest.warns(
        UserWarning, match=r"uint8 inputs are scaled to \[0, 1\].*give inputs.float\(\)"
    ):
        problem = spodgt.Learning(module, ENTROPY, [(BYTES, TARGETS)], (BYTES, TARGETS))
    expected = loss_of(module, BYTES / 255)
    assert float(problem.evaluate(problem.start(0)).loss) == pytest.approx(expected, rel=1e-5)


def test_black_and_white_images_are_scaled() -> None:
    torch.manual_seed(1)
    images = (BYTES > 15).byte() * 255
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    problem = spodgt.Learning(module, ENTROPY, [(images, TARGETS)], (images, TARGETS))
    assert float(problem.evaluate(problem.start(0)).loss) == pytest.approx(
        loss_of(module, images / 255), rel=1e-5
    )


def test_an_embedding_that_is_called_with_bytes_is_refused() -> None:
    module = nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.Linear(24, 3))
    with pytest.raises(
        InvalidInput, match=r"needs its inputs as int64, got torch.uint8; use inputs.long\(\)"
    ):
        spodgt.Learning(module, ENTROPY, [(BYTES, TARGETS)])
