"""PyTorch's own `nn.Transformer`."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.bench.implementation import Run
from addnorm.bench.sizes import TranslatorSizes
from addnorm.bench.training import Precision, training


class Translator(nn.Module):
    """`nn.Transformer` with a shared embedding table and a tied head."""

    def __init__(self, sizes: TranslatorSizes) -> None:
        super().__init__()
        self.table = nn.Embedding(sizes.vocab_size, sizes.d_model)
        self.dropout = nn.Dropout(sizes.dropout)
        self.transformer = nn.Transformer(
            sizes.d_model,
            sizes.n_heads,
            sizes.n_layers,
            sizes.n_layers,
            sizes.d_ff,
            sizes.dropout,
            batch_first=True,
        )
        self.positions: Tensor
        self.register_buffer("positions", sinusoids(sizes.length, sizes.d_model))
        self.causal: Tensor
        mask = nn.Transformer.generate_square_subsequent_mask(sizes.length)
        self.register_buffer("causal", mask)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The next-token logits at each target token."""
        x, y = self.embedded(source), self.embedded(target)
        hidden = self.transformer(x, y, tgt_mask=self.causal, tgt_is_causal=True)
        return F.linear(hidden, self.table.weight)

    def embedded(self, tokens: Tensor) -> Tensor:
        """Scaled embeddings plus position encodings."""
        scale = math.sqrt(self.table.embedding_dim)
        return self.dropout(self.table(tokens) * scale + self.positions)


def sinusoids(length: int, d_model: int) -> Tensor:
    """The sinusoidal position encoding (Vaswani et al. 2017, §3.5)."""
    rates = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def train_translator(
    _: Path, *, sizes: TranslatorSizes, precision: Precision = "float32", compile: bool = False
) -> Run:
    """Training a translator."""
    model = Translator(sizes)

    def loss_of(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return F.cross_entropy(model(x, y).flatten(0, 1), z.flatten())

    return training(
        model,
        loss_of,
        sizes.batches(),
        sizes.tokens,
        precision=precision,
        compile=compile,
    )
