"""Model and batch sizes of the benchmarks, and their FLOP counts."""

from dataclasses import dataclass

import torch
from torch import Tensor

N_BATCHES = 32
"""The number of batches that training cycles through, enough not to be memorised."""


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """Sizes of a decoder with learned positions and a tied head, and of its batches."""

    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    vocab_size: int
    batch: int
    length: int
    dropout: float = 0.0

    @property
    def tokens(self) -> int:
        """The number of tokens in a batch."""
        return self.batch * self.length

    @property
    def matrices(self) -> int:
        """The number of matrix parameters used per token, including the head."""
        layer = 4 * self.d_model**2 + 2 * self.d_model * self.d_ff
        return self.n_layers * layer + self.vocab_size * self.d_model

    @property
    def training_flop(self) -> float:
        """FLOP per token, forward and backward: 6 per parameter of `matrices`, and attention.

        Attention takes 12 × layers × d_model × length, halved because attention is causal. Norms,
        activations, the loss and the optimiser are not counted.
        """
        return 6.0 * self.matrices + 6.0 * self.n_layers * self.d_model * self.length

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Batches of random tokens, with next-token targets."""
        rows = random_tokens(self.vocab_size, N_BATCHES * self.batch, self.length + 1)
        parts = rows.split(self.batch)
        return [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in parts]


@dataclass(frozen=True, kw_only=True)
class TranslatorSizes:
    """Sizes of an encoder–decoder with one shared embedding table, and of its batches."""

    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    vocab_size: int
    batch: int
    length: int
    dropout: float = 0.0

    @property
    def tokens(self) -> int:
        """The number of target tokens in a batch; the source has as many."""
        return self.batch * self.length

    @property
    def training_flop(self) -> float:
        """FLOP per target token, forward and backward, including one source token in the encoder.

        6 per matrix parameter; and attention: 12 × layers × d_model × length for encoder
        self-attention and for cross-attention each, half of that for decoder self-attention. Norms,
        activations, the loss and the optimiser are not counted.
        """
        encoder = 4 * self.d_model**2 + 2 * self.d_model * self.d_ff
        layers = self.n_layers * (2 * encoder + 4 * self.d_model**2)
        attention = 2.5 * 12.0 * self.n_layers * self.d_model * self.length
        return 6.0 * (layers + self.vocab_size * self.d_model) + attention

    def batches(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Batches of random sources and targets, with next-token targets."""
        rows = random_tokens(self.vocab_size, N_BATCHES * self.batch, 2 * self.length + 1)
        sides = (rows[:, : self.length], rows[:, self.length : -1], rows[:, self.length + 1 :])
        splits = [side.contiguous().split(self.batch) for side in sides]
        return list(zip(*splits, strict=True))


def random_tokens(vocab_size: int, rows: int, length: int) -> Tensor:
    """Random tokens, the same for all implementations, without the first four (special) ids."""
    made = torch.Generator().manual_seed(1)
    return torch.randint(4, vocab_size, (rows, length), generator=made)


CHARACTERS = DecoderSizes(
    n_layers=4, d_model=128, n_heads=4, d_ff=512, vocab_size=65, batch=12, length=64
)
DECODER = DecoderSizes(
    n_layers=6, d_model=384, n_heads=6, d_ff=1536, vocab_size=65, batch=16, length=256
)
TINY = TranslatorSizes(
    n_layers=4,
    d_model=128,
    n_heads=4,
    d_ff=256,
    vocab_size=10_000,
    batch=128,
    length=32,
    dropout=0.1,
)
BASE = TranslatorSizes(
    n_layers=6,
    d_model=512,
    n_heads=8,
    d_ff=2048,
    vocab_size=10_000,
    batch=64,
    length=32,
    dropout=0.1,
)
