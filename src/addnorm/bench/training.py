"""The training step shared by all peers: forward, backward, clipping, AdamW."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import cycle
from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm import compiler
from addnorm.bench.implementation import Run, timed
from addnorm.bench.sizes import DecoderSizes, TranslatorSizes
from addnorm.processor import cores

Precision = Literal["float32", "bfloat16"]


class TrainingOptions(TypedDict, total=False):
    """By default float32 (bfloat16 means autocast), not compiled."""

    precision: Precision
    compile: bool


def training(
    model: nn.Module,
    sizes: DecoderSizes | TranslatorSizes,
    loss_of: Callable[..., Tensor] | None = None,
    **options: Unpack[TrainingOptions],
) -> Run:
    """Rounds of training steps with fused AdamW and gradients clipped to norm one.

    `loss_of` is called with the tensors of a batch; by default it is the cross-entropy of the
    model's logits with the last of them.
    """
    torch.set_num_threads(cores())
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
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
    """The loss of a model that returns logits: of its inputs, and the targets after them."""

    def loss_of(*batch: Tensor) -> Tensor:
        *inputs, targets = batch
        return F.cross_entropy(model(*inputs).flatten(0, 1), targets.flatten())

    return loss_of
