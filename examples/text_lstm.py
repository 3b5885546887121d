# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""Ragged text: an LSTM reads sentences of unequal length.

    python examples/text_lstm.py [--small] [--picture FILE]

A sample is (list of word numbers, label). `collate` pads a mini-batch and hands two inputs to the model, so
the model is called as model(tokens, lengths).
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import spodgt

GOOD, BAD, OTHER = (
    ["good", "fine", "lovely"],
    ["bad", "poor", "awful"],
    ["a", "the", "very", "film", "was", "it"],
)
WORDS = {word: i + 1 for i, word in enumerate([*GOOD, *BAD, *OTHER])}  # 0 is padding
Sample = tuple[list[int], int]


class Reader(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS) + 1, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.words(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.lstm(packed)
        scores: Tensor = self.head(last[-1])
        return scores


def collate(samples: list[Sample]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    texts = [torch.tensor(text) for text, _ in samples]
    lengths = torch.tensor([len(text) for text in texts])
    return (pad_sequence(texts, batch_first=True), lengths), torch.tensor(
        [label for _, label in samples]
    )


def reviews(draw: np.random.Generator, count: int) -> list[Sample]:
    """Sentences of 3 to 12 words; the last word that judges decides."""
    found = []
    for _ in range(count):
        words = [
            str(word) for word in draw.choice([*GOOD, *BAD, *OTHER, *OTHER], draw.integers(3, 13))
        ]
        judged = [word in GOOD for word in words if word not in OTHER]
        found.append(([WORDS[word] for word in words], int(bool(judged) and judged[-1])))
    return found


def main(*, small: bool = False, picture: str | None = None) -> dict[str, float]:
    draw = np.random.default_rng(0)
    clients = [reviews(draw, count) for count in (200, 120, 80, 40)]
    torch.manual_seed(0)
    problem = spodgt.Learning(
        Reader(),
        nn.CrossEntropyLoss(),
        clients,
        test=reviews(draw, 300),
        batch_size=16,
        collate=collate,
    )
    method = spodgt.method("spod-gt-memory", step_size=0.2, momentum=0.9)
    network, participation = spodgt.Network.ring(4), spodgt.Bernoulli(0.8, 0.8)
    rounds = 120 if small else 600
    result = spodgt.train(method, problem, network, participation, rounds=rounds, evaluations=40)
    print(result.frame[["round", "loss", "accuracy"]].iloc[::10].to_string(index=False))
    if picture:
        result.plot(picture, against="round")
    return {"accuracy": float(result.frame["accuracy"].iloc[-1])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a few rounds only")
    parser.add_argument("--picture", metavar="FILE", help="draw what came out")
    main(**vars(parser.parse_args()))
