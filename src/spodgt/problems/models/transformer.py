"""A causal character-level transformer [vaswani2017attention] with pre-norm blocks, and its loss.

It maps codes (…, context) to scores (…, context, characters) of the character that follows each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.problems.losses import cross_entropy

_OLD_NAMES = {  # of parameters in models that were saved by version 0.2
    "letter": "token_embedding",
    "place": "position_embedding",
    "asks": "qkv_proj",
    "answers": "out_proj",
    "hidden": "feed_forward",
    "norm": "attention_norm",
    "norm_hidden": "feed_forward_norm",
}


def next_character(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next character, over windows and positions.

    Args:
        outputs: (…, windows, context, characters).
        targets: (…, windows, context).

    Returns:
        (…).
    """
    return cross_entropy(outputs.flatten(-3, -2), targets.flatten(-2))


class CharacterEmbedding(nn.Module):
    """The sum of token and position embeddings: (…, context) to (…, context, width)."""

    def __init__(self, context: int, characters: int, width: int) -> None:
        super().__init__()
        self.token_embedding = nn.Parameter(torch.empty(characters, width))
        self.position_embedding = nn.Parameter(torch.empty(context, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw small vectors, so that the outputs of blocks are not negligible next to them."""
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding, std=embedding.shape[1] ** -0.5)

    def forward(self, codes: Tensor) -> Tensor:
        """Embed codes (…, context)."""
        positions = self.position_embedding[: codes.shape[-1]]
        return self.token_embedding[codes.long()] + positions


class TransformerBlock(nn.Module):
    """Causal self-attention and a feed-forward layer, each with a residual connection."""

    causal_mask: Tensor  # (context, context) 0 for earlier positions, -∞ for later ones

    def __init__(self, context: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.qkv_proj = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        mask = torch.ones(context, context).tril().log()
        self.register_buffer("causal_mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (…, context, width)."""
        x = x + self._attend(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]

    def _attend(self, x: Tensor) -> Tensor:
        length, width = x.shape[-2:]
        query, key, value = (self._split_heads(part) for part in self.qkv_proj(x).chunk(3, -1))
        # Contiguous copies: the product would copy a transposed view element by element.
        query = (query * math.sqrt(self.heads / width)).contiguous()
        key = key.contiguous()
        scores = query @ key.transpose(-2, -1)
        mask = self.causal_mask[:length, :length].to(x.dtype)
        attended = (scores + mask).softmax(-1) @ value
        return self.out_proj(attended.transpose(-3, -2).flatten(-2))  # type: ignore[no-any-return]

    def _split_heads(self, x: Tensor) -> Tensor:
        """(…, context, width) to (…, heads, context, width / heads)."""
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-3, -2)


class CharacterTransformer(nn.Sequential):
    """Embedding, blocks, a final norm and a linear layer; made by `transformer`."""

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False
    ) -> object:
        """As `torch.nn.Module.load_state_dict`; also reads models saved by version 0.2."""
        renamed = {}
        for name, value in state_dict.items():
            parts = [_OLD_NAMES.get(part, part) for part in name.split(".")]
            renamed[".".join(parts)] = value
        return super().load_state_dict(renamed, strict, assign)


def transformer(
    context: int, characters: int, width: int = 32, depth: int = 2, heads: int = 2
) -> CharacterTransformer:
    """A character-level transformer.

    Args:
        context: characters that the model reads at most.
        characters: size of the alphabet.
        width: size of the vector of a character; 32 by default.
        depth: number of blocks; 2 by default.
        heads: attention heads; they must divide the width. 2 by default.

    Raises:
        InvalidInput: if `heads` does not divide `width`.
    """
    if width % heads:
        raise InvalidInput(f"heads must divide width={width}, got {heads}; use heads=2.")
    blocks = [TransformerBlock(context, width, heads) for _ in range(depth)]
    return CharacterTransformer(
        CharacterEmbedding(context, characters, width),
        *blocks,
        nn.LayerNorm(width),
        nn.Linear(width, characters),
    )
