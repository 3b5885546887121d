"""A character-level transformer [vaswani2017attention], before-norm and causal, and its loss.

It maps codes (…, context) to scores of the next character after each of them, (…, context, characters).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.problems.losses import cross_entropy


def next_character(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over windows and positions of the logistic loss of the character that follows.

    `outputs` is (…, windows, context, characters), `targets` (…, windows, context).
    """
    return cross_entropy(outputs.flatten(-3, -2), targets.flatten(-2))


class Characters(nn.Module):
    """Each character and its place as one vector: (…, context) to (…, context, width)."""

    def __init__(self, context: int, characters: int, width: int) -> None:
        super().__init__()
        self.letter, self.place = (
            nn.Parameter(torch.empty(characters, width)),
            nn.Parameter(torch.empty(context, width)),
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small vectors: what blocks add must count beside them."""
        for part in (self.letter, self.place):
            nn.init.normal_(part, std=part.shape[1] ** -0.5)

    def forward(self, codes: Tensor) -> Tensor:
        return self.letter[codes.long()] + self.place[: codes.shape[-1]]


class Block(nn.Module):
    """Attention to what came before, then a hidden layer, each added to its input."""

    before: Tensor

    def __init__(self, context: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asks, self.answers = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("before", torch.ones(context, context).tril().log(), persistent=False)  # 0 or -∞

    def forward(self, x: Tensor) -> Tensor:
        length, width = x.shape[-2:]
        query, key, value = (
            part.unflatten(-1, (self.heads, width // self.heads)).transpose(-3, -2)
            for part in self.asks(self.norm(x)).chunk(3, -1)
        )  # (…, heads, context, width of a head)
        # Copied before the product: it would copy these views itself, the transposed one number by number.
        query, key = (query * math.sqrt(self.heads / width)).contiguous(), key.contiguous()
        scores = query @ key.transpose(-2, -1)
        seen = (scores + self.before[:length, :length].to(x.dtype)).softmax(-1) @ value
        x = x + self.answers(seen.transpose(-3, -2).flatten(-2))
        return x + self.hidden(self.norm_hidden(x))  # type: ignore[no-any-return]


def transformer(
    context: int, characters: int, width: int = 32, depth: int = 2, heads: int = 2
) -> nn.Sequential:
    """`depth` blocks of `width` numbers a character; `heads` must divide the width."""
    if width % heads:
        raise InvalidInput(f"heads must divide width={width}, got {heads}; use heads=2.")
    return nn.Sequential(
        Characters(context, characters, width),
        *(Block(context, width, heads) for _ in range(depth)),
        nn.LayerNorm(width),
        nn.Linear(width, characters),
    )
