# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""A dict-in, dict-out transformer in the style of Hugging Face: frozen body, LoRA adapters that travel.

    python examples/lora.py [--small] [--picture FILE]

`loss(model, batch)` gets the batch as it was collated and calls the model itself. The body does not require
gradients, so it is not part of any message: the script prints the numbers per message of full fine-tuning and
of the adapters.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn

import spodgt

WORDS, WIDTH, LENGTH = 40, 32, 12
Batch = dict[str, Tensor]


class LoRA(nn.Module):
    """A linear layer, frozen, plus a product of two thin matrices that are trained."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + x @ self.down.T @ self.up.T
        return y


class Classifier(nn.Module):
    """Called as model(input_ids=…, attention_mask=…, labels=…); gives a dict with logits and loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None
    ) -> Batch:
        x = self.words(input_ids) + self.places(
            torch.arange(input_ids.shape[1], device=input_ids.device)
        )
        scores = self.query(x) @ self.key(x).mT / WIDTH**0.5
        scores = scores.masked_fill(attention_mask[:, None] == 0, -1e9)
        x = self.norm(x + scores.softmax(-1) @ self.value(x))
        x = x + self.outer(torch.relu(self.inner(x)))
        weight = attention_mask[..., None] / attention_mask.sum(1)[:, None, None]
        logits = self.head((weight * x).sum(1))
        found = {"logits": logits}
        return (
            found
            if labels is None
            else found | {"loss": nn.functional.cross_entropy(logits, labels)}
        )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    value: Tensor = model(**batch)["loss"]
    return value


def accuracy(model: nn.Module, batch: Batch) -> float:
    logits = model(**batch)["logits"]
    return float((logits.argmax(-1) == batch["labels"]).float().mean())


def collate(samples: list[tuple[list[int], int]]) -> Batch:
    """Pad to the longest text of the batch, as a tokenizer does."""
    longest = max(len(text) for text, _ in samples)
    ids = torch.tensor([text + [0] * (longest - len(text)) for text, _ in samples])
    lengths = torch.tensor([len(text) for text, _ in samples])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.tensor([label for _, label in samples]),
    }


def texts(draw: np.random.Generator, count: int, low: int) -> list[tuple[list[int], int]]:
    """Whether a text has more words above `low` than below."""
    found = [draw.integers(1, WORDS, draw.integers(4, LENGTH + 1)).tolist() for _ in range(count)]
    return [(text, int(np.mean(text) > low)) for text in found]


def pretrained(draw: np.random.Generator, rounds: int) -> Classifier:
    """A body that has learnt a related task centrally."""
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    for _ in range(rounds):
        optimizer.zero_grad()
        loss(model, collate(texts(draw, 64, 14))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def adapted(model: Classifier) -> Classifier:
    """Freeze the body; adapters at query and value, and the head, are trained."""
    model.requires_grad_(False)
    model.query, model.value = LoRA(model.query), LoRA(model.value)  # type: ignore[assignment]
    model.head.requires_grad_(True)
    return model


def main(*, small: bool = False, picture: str | None = None) -> dict[str, float]:
    draw = np.random.default_rng(0)
    model = pretrained(draw, 60 if small else 300)
    clients = [texts(draw, 120, 24) for _ in range(4)]
    settings = {
        "test": texts(draw, 300, 24),
        "batch_size": 16,
        "collate": collate,
        "metrics": {"accuracy": accuracy},
    }
    before = spodgt.Learning(model, loss, clients, **settings).parameters
    problem = spodgt.Learning(adapted(model), loss, clients, **settings)
    print(
        f"numbers per message: {before} for the whole model, {problem.parameters} for adapters and head"
    )
    result = spodgt.train(
        spodgt.method("spod-gt-memory", step_size=0.1, momentum=0.9),
        problem,
        spodgt.Network.ring(4),
        spodgt.Bernoulli(0.8, 0.8),
        rounds=60 if small else 400,
        evaluations=40,
    )
    print(result.frame[["round", "loss", "accuracy"]].iloc[::10].to_string(index=False))
    if picture:
        result.plot(picture, against="round")
    curve = result.frame["accuracy"]
    return {
        "before": before,
        "after": problem.parameters,
        "first": float(curve.iloc[0]),
        "last": float(curve.iloc[-1]),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a few rounds only")
    parser.add_argument("--picture", metavar="FILE", help="draw what came out")
    main(**vars(parser.parse_args()))
