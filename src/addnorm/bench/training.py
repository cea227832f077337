"""Shared by the training benchmarks: sizes with FLOP counts, batches, and the peers' step."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm import compiler
from addnorm.bench.implementation import Run, timed
from addnorm.machine import cores

TrainingPrecision = Literal["float32", "bfloat16"]

N_BATCHES = 32
"""The number of batches that training cycles through, enough not to be memorised."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a model and of its batches."""

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
        """The number of target tokens in a batch."""
        return self.batch * self.length


class DecoderSizes(Sizes):
    """The sizes of a decoder with learned positions and a tied head."""

    @property
    def matrices(self) -> int:
        """The number of matrix parameters used per token, including the head."""
        layer = 4 * self.d_model**2 + 2 * self.d_model * self.d_ff
        return self.n_layers * layer + self.vocab_size * self.d_model

    @property
    def training_flop(self) -> float:
        """The FLOP per token, forward and backward: 6 per parameter of `matrices`, and attention.

        Attention takes 12 × layers × d_model × length, halved because attention is causal. Norms,
        activations, the loss and the optimiser are not counted.
        """
        return 6.0 * self.matrices + 6.0 * self.n_layers * self.d_model * self.length

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Return batches of random tokens, with next-token targets."""
        rows = random_tokens(self.vocab_size, N_BATCHES * self.batch, self.length + 1)
        parts = rows.split(self.batch)
        return [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in parts]


class TranslatorSizes(Sizes):
    """The sizes of an encoder–decoder with one embedding table; both sides are equally long."""

    @property
    def decoder_matrices(self) -> int:
        """The number of matrix parameters used per target token in the decoder and the head."""
        layer = 8 * self.d_model**2 + 2 * self.d_model * self.d_ff
        return self.n_layers * layer + self.vocab_size * self.d_model

    @property
    def matrices(self) -> int:
        """The number of matrix parameters used per source token and target token."""
        layer = 4 * self.d_model**2 + 2 * self.d_model * self.d_ff
        return self.n_layers * layer + self.decoder_matrices

    @property
    def training_flop(self) -> float:
        """The FLOP per target token, forward and backward, with one source token in the encoder.

        6 per parameter of `matrices`; and attention: 12 × layers × d_model × length for encoder
        self-attention and for cross-attention each, half of that for decoder self-attention. Norms,
        activations, the loss and the optimiser are not counted.
        """
        return 6.0 * self.matrices + 2.5 * 12.0 * self.n_layers * self.d_model * self.length

    def batches(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return batches of random sources and targets, with next-token targets."""
        rows = random_tokens(self.vocab_size, N_BATCHES * self.batch, 2 * self.length + 1)
        sides = (rows[:, : self.length], rows[:, self.length : -1], rows[:, self.length + 1 :])
        splits = [side.contiguous().split(self.batch) for side in sides]
        return list(zip(*splits, strict=True))


def random_tokens(vocab_size: int, rows: int, length: int) -> Tensor:
    """Return random tokens, the same for all implementations, without special ids."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(4, vocab_size, (rows, length), generator=generator)


CHARACTERS = DecoderSizes(
    n_layers=4, d_model=128, n_heads=4, d_ff=512, vocab_size=65, batch=12, length=64
)
DECODER = DecoderSizes(
    n_layers=6, d_model=384, n_heads=6, d_ff=1536, vocab_size=65, batch=16, length=256
)
_SENTENCES: dict[str, Any] = {"vocab_size": 10_000, "length": 32, "dropout": 0.1}
TINY = TranslatorSizes(n_layers=4, d_model=128, n_heads=4, d_ff=256, batch=128, **_SENTENCES)
BASE = TranslatorSizes(n_layers=6, d_model=512, n_heads=8, d_ff=2048, batch=64, **_SENTENCES)


class TrainingOptions(TypedDict, total=False):
    """Options of training; by default in float32 (bfloat16 means autocast), not compiled."""

    precision: TrainingPrecision
    compile: bool


def training(
    model: nn.Module,
    sizes: DecoderSizes | TranslatorSizes,
    loss_of: Callable[..., Tensor] | None = None,
    groups: list[dict[str, Any]] | None = None,
    **options: Unpack[TrainingOptions],
) -> Run:
    """Return rounds of training steps with fused AdamW and gradients clipped to norm one.

    `loss_of` is called with the tensors of a batch; by default it is the cross-entropy of the
    model's logits with the last of them. `groups` are the optimiser's groups of parameters, by
    default a single one.
    """
    torch.set_num_threads(cores())
    model.train()
    optimizer = torch.optim.AdamW(groups or model.parameters(), lr=1e-3, fused=True)
    half = options.get("precision") == "bfloat16"
    loss_of = loss_of or cross_entropy_of(model)
    loss_of = compiler.compile(loss_of) if options.get("compile") else loss_of
    stream = cycle(sizes.batches())

    def update() -> None:
        batch = next(stream)
        with torch.autocast("cpu", dtype=torch.bfloat16) if half else nullcontext():
            loss = loss_of(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return timed(update, sizes.tokens, steps=3)


def cross_entropy_of(model: nn.Module) -> Callable[..., Tensor]:
    """Return the loss of a model that returns logits, as a function of inputs and targets."""

    def loss_of(*batch: Tensor) -> Tensor:
        *inputs, targets = batch
        return F.cross_entropy(model(*inputs).flatten(0, 1), targets.flatten())

    return loss_of
