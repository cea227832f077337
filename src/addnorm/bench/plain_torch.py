"""Peers in plain torch: models written by hand, and PyTorch's own `nn.Transformer`."""

import math
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.bench.implementation import Run
from addnorm.bench.training import DecoderSizes, TrainingOptions, TranslatorSizes, training


class SelfAttention(nn.Module):
    """Multi-head self-attention with queries, keys and values from one product."""

    def __init__(self, d_model: int, n_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.causal = causal
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each row."""
        q, k, v = (heads(part, self.n_heads) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Multi-head attention of one sequence to another."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(d_model, d_model)
        self.kv = nn.Linear(d_model, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Attend from each row of `x` to the same row of `memory`."""
        k, v = (heads(part, self.n_heads) for part in self.kv(memory).chunk(2, dim=-1))
        y = F.scaled_dot_product_attention(heads(self.q(x), self.n_heads), k, v)
        return self.out(y.transpose(1, 2).flatten(2))


def heads(x: Tensor, n_heads: int) -> Tensor:
    """Split features into heads: `[batch, seq, d_model]` to `[batch, heads, seq, d_head]`."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


class PreNormBlock(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`, as in GPT-2."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.d_model)
        self.attention = SelfAttention(sizes.d_model, sizes.n_heads, causal=True)
        self.norm2 = nn.LayerNorm(sizes.d_model)
        self.up = nn.Linear(sizes.d_model, sizes.d_ff)
        self.down = nn.Linear(sizes.d_ff, sizes.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    """A GPT with learned positions and a tied head."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        if sizes.dropout:
            raise ValueError("the plain decoder has no dropout, as its benchmarks have none")
        self.tokens = nn.Embedding(sizes.vocab_size, sizes.d_model)
        self.positions = nn.Embedding(sizes.length, sizes.d_model)
        self.blocks = nn.Sequential(*(PreNormBlock(sizes) for _ in range(sizes.n_layers)))
        self.norm = nn.LayerNorm(sizes.d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        """The next-token logits at each token."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


class PostNormBlock(nn.Module):
    """`norm(x + attention(x))`, cross-attention in a decoder, `norm(x + mlp(x))`: the original."""

    def __init__(self, sizes: TranslatorSizes, *, decoder: bool) -> None:
        super().__init__()
        d_model, n_heads = sizes.d_model, sizes.n_heads
        self.dropout = nn.Dropout(sizes.dropout)
        self.attention = SelfAttention(d_model, n_heads, causal=decoder)
        self.norm1 = nn.LayerNorm(d_model)
        self.cross = CrossAttention(d_model, n_heads) if decoder else None
        self.norm2 = nn.LayerNorm(d_model) if decoder else None
        self.up = nn.Linear(d_model, sizes.d_ff)
        self.down = nn.Linear(sizes.d_ff, d_model)
        self.norm3 = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Apply the block; a decoder's block also reads the encoder's output."""
        x = self.norm1(x + self.dropout(self.attention(x)))
        if self.cross is not None and self.norm2 is not None:
            x = self.norm2(x + self.dropout(self.cross(x, memory)))
        return self.norm3(x + self.dropout(self.down(F.relu(self.up(x)))))


class Embedding(nn.Module):
    """Scaled embeddings plus sinusoidal positions (Vaswani et al. 2017, §3.4 and §3.5)."""

    def __init__(self, sizes: TranslatorSizes) -> None:
        super().__init__()
        self.table = nn.Embedding(sizes.vocab_size, sizes.d_model)
        self.dropout = nn.Dropout(sizes.dropout)
        rates = 10000.0 ** (-torch.arange(0, sizes.d_model, 2) / sizes.d_model)
        angles = torch.arange(sizes.length)[:, None] * rates
        self.positions: Tensor
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))

    def forward(self, tokens: Tensor) -> Tensor:
        """The vectors of the tokens."""
        scale = math.sqrt(self.table.embedding_dim)
        return self.dropout(self.table(tokens) * scale + self.positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits by the tied head."""
        return F.linear(hidden, self.table.weight)


class Translator(nn.Module):
    """The original encoder–decoder with one shared table and a tied head."""

    def __init__(self, sizes: TranslatorSizes) -> None:
        super().__init__()
        self.embed = Embedding(sizes)
        layers = range(sizes.n_layers)
        self.encoder = nn.ModuleList(PostNormBlock(sizes, decoder=False) for _ in layers)
        self.decoder = nn.ModuleList(PostNormBlock(sizes, decoder=True) for _ in layers)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The next-token logits at each target token."""
        memory, y = self.embed(source), self.embed(target)
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            y = block(y, memory)
        return self.embed.logits(y)


class TorchTransformer(nn.Module):
    """`nn.Transformer` with one shared table and a tied head."""

    def __init__(self, sizes: TranslatorSizes) -> None:
        super().__init__()
        self.embed = Embedding(sizes)
        self.transformer = nn.Transformer(
            sizes.d_model,
            sizes.n_heads,
            sizes.n_layers,
            sizes.n_layers,
            sizes.d_ff,
            sizes.dropout,
            batch_first=True,
        )
        self.causal: Tensor
        mask = nn.Transformer.generate_square_subsequent_mask(sizes.length)
        self.register_buffer("causal", mask)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The next-token logits at each target token."""
        x, y = self.embed(source), self.embed(target)
        hidden = self.transformer(x, y, tgt_mask=self.causal, tgt_is_causal=True)
        return self.embed.logits(hidden)


def train_decoder(_: Path, *, sizes: DecoderSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Return rounds of training a GPT."""
    return training(Decoder(sizes), sizes, **options)


def train_translator(_: Path, *, sizes: TranslatorSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Return rounds of training a translator."""
    return training(Translator(sizes), sizes, **options)


def train_torch_transformer(
    _: Path, *, sizes: TranslatorSizes, **options: Unpack[TrainingOptions]
) -> Run:
    """Return rounds of training a translator made of `nn.Transformer`."""
    return training(TorchTransformer(sizes), sizes, **options)
