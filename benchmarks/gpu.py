"""One GPU: GPT-2 small compared with nanoGPT's loop, `core = "flex"`, float16, and serving.

    .venv/bin/python benchmarks/gpu.py train float16 flex serve --out benchmarks/results/gpu.json

Rounds of both sides alternate on the same batches; medians and their ratio are kept.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from addnorm.bench.ours import Repeated, decoder_config
from addnorm.bench.plain_torch import Decoder
from addnorm.bench.training import DecoderSizes
from addnorm.data.batches.buckets import Batch
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.core import SDPACoreConfig
from addnorm.nn.attention.flex import FlexCoreConfig
from addnorm.nn.attention.patterns import FullPatternConfig, WindowPatternConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import ALiBiConfig, LearnedConfig, RotaryConfig, T5BiasConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.sequence import Request
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer

SMALL = DecoderSizes(
    n_layers=12, d_model=768, n_heads=12, d_ff=3072, vocab_size=50304, batch=32, length=1024
)
PEAK = 989e12
"""bfloat16 products a second of an H100 SXM or H200, by NVIDIA's data sheet, without sparsity."""

Update = Callable[[], float]
"""Makes one optimiser step and returns its loss, or 0 where it is not read."""


def mfu_flop(sizes: DecoderSizes, parameters: int) -> float:
    """The FLOP of a token by nanoGPT's count: 6 per parameter, positions left out, and
    12 × layers × width × length of attention.
    """
    return 6.0 * parameters + 12.0 * sizes.n_layers * sizes.d_model * sizes.length


def ours(sizes: DecoderSizes, precision: str, *, compile: bool, device: str) -> Update:
    """A step of our trainer."""
    torch.manual_seed(1)
    batches = [Batch.of({"tokens": x}, y, []) for x, y in sizes.batches()]
    options: Any = {"precision": precision, "compile": compile, "device": device}
    config = TrainConfig(steps=10**9, lr=6e-4, **options)
    model = decoder_config(sizes).build(sizes.vocab_size)
    trainer = Trainer(model, Repeated(batches), config, Path(tempfile.mkdtemp()))
    losses: list[float] = []
    report = trainer.report

    def keep(loss: float, norm: float, n_tokens: int) -> None:
        losses.append(loss / n_tokens if loss > 100 else loss)
        report(loss, norm, n_tokens)

    trainer.report = keep

    def update() -> float:
        trainer.update(trainer.next_group())
        return losses[-1]

    return update


def nano_gpt(sizes: DecoderSizes, *, device: str) -> Update:
    """nanoGPT's step: compiled, bfloat16, fused AdamW, clipping, the next batch sent ahead."""
    torch.manual_seed(1)
    model = Decoder(sizes).to(device)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(model)
    stream = cycle(sizes.batches())

    def sent() -> list[torch.Tensor]:
        pinned = [x.pin_memory() if device == "cuda" else x for x in next(stream)]
        return [x.to(device, non_blocking=True) for x in pinned]

    following = sent()

    def update() -> float:
        nonlocal following
        x, y = following
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(compiled(x).flatten(0, 1), y.flatten())
        following = sent()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return 0.0

    return update


def wait(device: str) -> None:
    """Wait for all work on a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def alternating(sides: dict[str, Update], device: str, rounds: int, steps: int) -> dict[str, float]:
    """The median seconds of a step of each side."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for name, update in sides.items():
        start = time.perf_counter()
        for _ in range(4):
            update()
        wait(device)
        print(f"{name}: the first 4 steps took {time.perf_counter() - start:.1f} s", flush=True)
    for _ in range(rounds):
        for name, update in sides.items():
            wait(device)
            start = time.perf_counter()
            for _ in range(steps):
                update()
            wait(device)
            seconds[name].append((time.perf_counter() - start) / steps)
    return {name: statistics.median(times) for name, times in seconds.items()}


def train(device: str, tiny: bool) -> dict[str, Any]:
    """GPT-2 small: tokens a second and the share of the GPU's peak, and those of nanoGPT's loop."""
    sizes = small(tiny)
    sides = {
        "nanoGPT's loop, compiled": nano_gpt(sizes, device=device),
        "ours, compiled": ours(sizes, "bfloat16", compile=True, device=device),
        "ours, not compiled": ours(sizes, "bfloat16", compile=False, device=device),
    }
    seconds = alternating(sides, device, rounds=1 if tiny else 5, steps=1 if tiny else 5)
    flop = mfu_flop(sizes, sizes.matrices)
    rates = {name: sizes.tokens / s for name, s in seconds.items()}
    peer = rates["nanoGPT's loop, compiled"]
    return {
        name: {"tokens/s": round(r), "ratio": round(r / peer, 3), "MFU": round(r * flop / PEAK, 3)}
        for name, r in rates.items()
    }


def float16(device: str, tiny: bool) -> dict[str, Any]:
    """Losses of the same steps in three precisions; float16 scales the loss."""
    sizes = small(tiny)
    names = ("float32", "bfloat16") if tiny else ("float32", "bfloat16", "float16")
    return {
        name: [round(update(), 4) for _ in range(12)]
        for name in names
        for update in [ours(sizes, name, compile=False, device=device)]
    }


def flex(device: str, tiny: bool) -> dict[str, Any]:
    """Seconds and peak memory of a step with `core = "flex"` and with the default core."""
    positions: dict[str, Any] = {
        "learned": LearnedConfig(),
        "rotary": RotaryConfig(),
        "alibi": ALiBiConfig(),
        "t5_bias": T5BiasConfig(),
    }
    length, width = (64, 32) if tiny else (4096, 512)
    results: dict[str, Any] = {}
    for (name, position), window in product(positions.items(), (None, length // 16)):
        pattern = FullPatternConfig() if window is None else WindowPatternConfig(size=window)
        costs: dict[str, Any] = {}
        for core in (SDPACoreConfig(), FlexCoreConfig()):
            config = DecoderConfig(
                d_model=width,
                n_layers=2,
                max_len=length,
                position=position,
                attention=AttentionConfig(n_heads=8, core=core, pattern=pattern),
            )
            costs[core.kind] = cost_of_step(config, length, device)
        label = f"{name}, window {window}" if window else name
        results[label] = {"speed": round(costs["sdpa"]["ms"] / costs["flex"]["ms"], 2), **costs}
        print(label, results[label], flush=True)
    return results


def cost_of_step(config: DecoderConfig, length: int, device: str) -> dict[str, float]:
    """The first loss, the milliseconds of a step forward and backward, and its peak memory."""
    torch.manual_seed(1)
    model = config.build(512).to(device).train()
    tokens = torch.randint(4, 512, (4, length)).to(device)

    def step() -> float:
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss.item()

    losses = [step() for _ in range(3)]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(5):
        step()
    cost = {"loss": losses[0], "ms": round(200 * (time.perf_counter() - start), 2)}
    if device == "cuda":
        cost["peak MiB"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return cost


def serve(device: str, tiny: bool) -> dict[str, Any]:
    """Qwen3-0.6B's shape with random weights: 200 requests of 512 tokens, 128 new ones each."""
    requests, prompt, answer = (8, 24, 8) if tiny else (200, 512, 128)
    layers, width, heads, keys, d_ff = (2, 32, 4, 2, 64) if tiny else (28, 1024, 16, 8, 3072)
    vocabulary = 300 if tiny else 151_936
    attention = AttentionConfig(
        n_heads=heads, n_kv_heads=keys, d_head=8 if tiny else 128, qk_norm=RMSNormConfig()
    )
    config = DecoderConfig(
        d_model=width,
        n_layers=layers,
        max_len=1024,
        position=RotaryConfig(),
        attention=attention,
        norm=RMSNormConfig(),
        feedforward=GatedFeedForwardConfig(d_ff=d_ff),
        residual=PreNormConfig(),
    )
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
        model = config.build(vocabulary).eval()
        torch.set_default_dtype(torch.float32)
    draw = random.Random(1)
    prompts = [[draw.randrange(4, vocabulary) for _ in range(prompt)] for _ in range(requests)]
    tokenizer = CharConfig().train(["letters"])
    recipe = Recipe(model=config, train=TrainConfig(steps=1))
    run = TrainedModel(None, recipe, Tokenizers(tokenizer, tokenizer), (), model)
    results: dict[str, Any] = {}
    for kernels in ("compiled", "in_place"):
        memory = 2**24 if tiny else 20 * 2**30
        engine = Engine(run, memory=memory, page_size=16, kernels=kernels)
        for salt in ("warm", "measured"):
            start, first = time.perf_counter(), dict[str, float]()
            for i, ids in enumerate(prompts[: 70 if salt == "warm" else None]):
                options = Options(decoding="greedy", seed=i, ignore_eos=True)
                engine.add(
                    Request(
                        name=str(i), prompt=tuple(ids), limit=answer, salt=salt, options=options
                    )
                )
            while engine.is_busy:
                for event in engine.step():
                    first.setdefault(event.name, time.perf_counter() - start)
            wait(device)
            taken = time.perf_counter() - start
            n = len(first)
            print(kernels, salt, f"{n} requests in {taken:.1f} s", flush=True)
        results[kernels] = {
            "requests/s": round(n / taken, 2),
            "new tokens/s": round(n * answer / taken),
            "median first token s": round(statistics.median(first.values()), 2),
        }
    return results


def small(tiny: bool) -> DecoderSizes:
    """GPT-2 small's sizes, or tiny ones."""
    if not tiny:
        return SMALL
    return DecoderSizes(
        n_layers=2, d_model=32, n_heads=2, d_ff=64, vocab_size=64, batch=2, length=16
    )


PARTS = {"train": train, "float16": float16, "flex": flex, "serve": serve}


def main() -> None:
    """Measure the parts that the command names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="on the CPU, to see that it runs")
    options = parser.parse_args()
    device = "cpu" if options.tiny else "cuda"
    results: dict[str, Any] = {"torch": torch.__version__, "device": device}
    if device == "cuda":
        results["device"] = torch.cuda.get_device_name()
    for part in options.parts:
        start = time.perf_counter()
        results[part] = PARTS[part](device, options.tiny)
        print(part, json.dumps(results[part]), f"{time.perf_counter() - start:.0f} s", flush=True)
        if options.out:
            options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
