"""A peer: a model and a step of training with the arithmetic of nanoGPT."""

from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.bench.implementation import Run
from addnorm.bench.plain_torch import heads
from addnorm.bench.training import DecoderSizes, TrainingOptions, training


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`, without biases and with GELU by erf."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.n_heads = sizes.n_heads
        self.norm1 = nn.LayerNorm(sizes.d_model, bias=False)
        self.qkv = nn.Linear(sizes.d_model, 3 * sizes.d_model, bias=False)
        self.out = nn.Linear(sizes.d_model, sizes.d_model, bias=False)
        self.norm2 = nn.LayerNorm(sizes.d_model, bias=False)
        self.up = nn.Linear(sizes.d_model, sizes.d_ff, bias=False)
        self.down = nn.Linear(sizes.d_ff, sizes.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        parts = self.qkv(self.norm1(x)).split(x.shape[-1], dim=-1)
        q, k, v = (heads(part, self.n_heads) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Learned positions, blocks, a last norm and a tied head."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        if sizes.dropout:
            raise ValueError("nanoGPT's decoder has no dropout here, as its benchmarks have none")
        self.tokens = nn.Embedding(sizes.vocab_size, sizes.d_model)
        self.positions = nn.Embedding(sizes.length, sizes.d_model)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.n_layers))
        self.norm = nn.LayerNorm(sizes.d_model, bias=False)
        self.head = nn.Linear(sizes.d_model, sizes.vocab_size, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """The next-token logits at each token."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def groups(self) -> list[dict[str, Any]]:
        """The parameters for AdamW: matrices and tables decay, gains do not."""
        matrices = [p for p in self.parameters() if p.ndim > 1]
        gains = [p for p in self.parameters() if p.ndim == 1]
        return [
            {"params": matrices, "weight_decay": 0.1},
            {"params": gains, "weight_decay": 0.0},
        ]


def train(_: Path, *, sizes: DecoderSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Return rounds of training nanoGPT's model."""
    model = GPT(sizes)
    return training(model, sizes, groups=model.groups(), **options)
