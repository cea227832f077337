"""What low-rank adaptation costs beside training all weights: steps in turn, medians; and memory.

python benchmarks/adapters.py
"""

import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.processor import processor
from addnorm.training.adapters import DoRAConfig, LoRAConfig, adapt
from addnorm.training.loss import loss_sum
from addnorm.training.optim import AdamWConfig, build_optimizers

RESULTS = Path(__file__).parent / "results" / "adapters.json"
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
        name: build_optimizers(AdamWConfig(), one, lr=1e-4) for name, one in sides.items()
    }
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1))

    def step(name: str) -> float:
        begun = time.perf_counter()
        loss_sum(sides[name](tokens[:, :-1]), tokens[:, 1:]).backward()
        for optimizer in optimizers[name]:
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - begun

    times: dict[str, list[float]] = {name: [] for name in sides}
    for n in range(ROUNDS + 1):
        for name in sides:
            seconds = step(name)
            if n:
                times[name].append(seconds)
    whole = statistics.median(times["all weights"])
    found = {
        name: {
            "learned": sum(p.numel() for p in one.parameters()),
            "gradient_and_optimizer_bytes": 12 * sum(p.numel() for p in one.parameters()),
            "adapter_or_model_bytes": 4 * sum(p.numel() for p in one.parameters()),
            "ms_per_step": round(1e3 * statistics.median(times[name]), 1),
            "of_all_weights": round(statistics.median(times[name]) / whole, 3),
        }
        for name, one in sides.items()
    }
    facts = {
        "command": "python benchmarks/adapters.py",
        "machine": f"{platform.machine()}, {processor()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "model": f"6 × 384, vocabulary {VOCABULARY:,}, batches of {ROWS} × {LENGTH}",
        "found": found,
    }
    RESULTS.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
