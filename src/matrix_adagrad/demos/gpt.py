"""A small character-level GPT."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["GPT", "next_character_loss", "windows"]


class GPT(nn.Module):
    """A decoder-only transformer with an untied head.

    Args:
        vocabulary: the number of different characters.
        context: the length of its context window.
    """

    def __init__(self, vocabulary: int, *, context: int = 64, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the next character at every position."""
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        x = self.tokens(text) + self.positions(torch.arange(text.shape[1]))
        logits: Tensor = self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))
        return logits


def windows(text: Tensor, starts: Tensor, context: int) -> Tensor:
    """The windows of the text that begin at ``starts``, each ``context`` characters plus the next one."""
    return text[starts[:, None] + torch.arange(context + 1)]


def next_character_loss(model: nn.Module, texts: Tensor) -> Tensor:
    """The mean cross entropy of every next character in some `windows`."""
    return functional.cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())
