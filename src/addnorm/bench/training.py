"""The training step shared by all peers: forward, backward, clipping, AdamW."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import cycle
from typing import Literal

import torch
from torch import Tensor, nn

from addnorm import compiler
from addnorm.bench.implementation import Run, timed
from addnorm.processor import cores

Precision = Literal["float32", "bfloat16"]


def training(
    model: nn.Module,
    loss_of: Callable[..., Tensor],
    batches: Sequence[tuple[Tensor, ...]],
    tokens: int,
    *,
    precision: Precision = "float32",
    compile: bool = False,
) -> Run:
    """Rounds of training steps with fused AdamW and gradients clipped to norm one.

    `loss_of` is called with the tensors of a batch; bfloat16 means autocast.
    """
    torch.set_num_threads(cores())
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    half = precision == "bfloat16"
    loss_of = compiler.compile(loss_of) if compile else loss_of
    stream = cycle(batches)

    def update() -> None:
        batch = next(stream)
        with torch.autocast("cpu", dtype=torch.bfloat16) if half else nullcontext():
            loss = loss_of(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return timed(update, tokens, steps=3)
