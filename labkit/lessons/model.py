"""A small GPT over bytes: large enough to learn English spelling in seconds, small enough to read.

Embedding, blocks of attention and MLP (each normalised before, added to its input after), a last
norm, and a linear head over the 256 bytes. Cost of a step: about 6 FLOPs a parameter a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a `GPT`.

    Parameters
    ----------
    context : longest sequence, in tokens
    width : size of a token's vector; a multiple of `heads`
    dropout : share of activations set to zero while training
    tied : use the token embedding's weight as the head's as well
    """

    vocab: int = 256
    context: int = 32
    width: int = 192
    layers: int = 3
    heads: int = 6
    dropout: float = 0.0
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "width", "layers", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1")
        if self.width % self.heads:
            raise ValueError(f"width={self.width} does not divide into heads={self.heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: give a share from 0 up to, not with, 1")

    @classmethod
    def tiny(cls, **changes: int | float | bool) -> GPTConfig:
        """A GPT of 20 thousand parameters, for tests."""
        shape = {"context": 16, "width": 24, "layers": 1, "heads": 3}
        return cls(**{**shape, **changes})  # type: ignore[arg-type]


class Attention(nn.Module):
    """Causal self-attention; queries, keys and values come from one matrix."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [b, heads, t, d/heads]
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        out: Tensor = self.out(y.transpose(1, 2).reshape(b, t, d))
        return out


class Block(nn.Module):
    """Attention, then an MLP four times as wide; each adds to what passes through."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:  # [b, t, d] -> [b, t, d]
        x = x + self.drop(self.attention(self.norm1(x)))
        out: Tensor = x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))
        return out


class GPT(nn.Module):
    """A GPT whose starting weights depend on `seed` alone, not on the rank that builds it."""

    def __init__(self, config: GPTConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = config = config or GPTConfig()
        with torch.random.fork_rng(devices=[]):  # leave the rank's own random state as it was
            torch.manual_seed(seed)
            self.tokens = nn.Embedding(config.vocab, config.width)
            self.positions = nn.Embedding(config.context, config.width)
            self.drop = nn.Dropout(config.dropout)
            self.blocks = nn.Sequential(*[Block(config) for _ in range(config.layers)])
            self.norm = nn.LayerNorm(config.width)
            self.head = nn.Linear(config.width, config.vocab, bias=False)
            for module in self.modules():
                if isinstance(module, nn.Embedding):  # large: letter pairs are learnt at once
                    nn.init.normal_(module.weight, std=0.5)
                elif isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=0.02)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)
        if config.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:  # [b, t] -> logits [b, t, vocab]
        t = tokens.shape[1]
        if t > self.config.context:
            raise ValueError(f"{t} tokens in a row: this GPT reads at most {self.config.context}")
        x = self.drop(self.tokens(tokens) + self.positions.weight[:t])
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of `targets` [b, t] given `tokens` [b, t], in nats a token."""
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())
