"""The cost of low-rank adaptation relative to training all weights: median steps, and memory.

python benchmarks/adapters.py
"""

from functools import partial
from statistics import median

import torch
from timing import milliseconds, seconds_in_turn, write_results
from torch import nn

from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.training.adapters import DoRAConfig, LoRAConfig, adapt
from addnorm.training.loss import loss_sum
from addnorm.training.optim import AdamWConfig, build_optimizers

ROWS, LENGTH, VOCABULARY, ROUNDS = 8, 256, 8192, 7


def model() -> nn.Module:
    """A decoder of 6 × 384."""
    torch.manual_seed(0)
    config = DecoderConfig(
        d_model=384,
        n_layers=6,
        max_len=LENGTH,
        dropout=0.0,
        attention=AttentionConfig(n_heads=6),
        feedforward=FeedForwardConfig(d_ff=1536),
    )
    return config.build(VOCABULARY)


def main() -> None:
    """Measure, print and keep."""
    sides: dict[str, nn.Module] = {"all weights": model()}
    for name, config in (("lora, rank 8", LoRAConfig()), ("dora, rank 8", DoRAConfig())):
        sides[name] = model()
        adapt(sides[name], config)
    optimizers = {
        name: build_optimizers(AdamWConfig(), side, lr=1e-4) for name, side in sides.items()
    }
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1))

    def step(name: str) -> None:
        loss_sum(sides[name](tokens[:, :-1]), tokens[:, 1:]).backward()
        for optimizer in optimizers[name]:
            optimizer.step()
            optimizer.zero_grad()

    times = seconds_in_turn({name: partial(step, name) for name in sides}, ROUNDS)
    whole = median(times["all weights"])
    sizes = {name: sum(p.numel() for p in side.parameters()) for name, side in sides.items()}
    figures = {
        name: {
            "learned": sizes[name],
            "gradient_and_optimizer_bytes": 12 * sizes[name],
            "adapter_or_model_bytes": 4 * sizes[name],
            "ms_per_step": milliseconds(times[name], 1),
            "of_all_weights": round(median(times[name]) / whole, 3),
        }
        for name in sides
    }
    work = f"6 × 384, vocabulary {VOCABULARY:,}, batches of {ROWS} × {LENGTH}"
    write_results("adapters", {"model": work, "found": figures})


if __name__ == "__main__":
    main()
