"""The cost of sliding-window and full attention by length: time and memory.

    python benchmarks/window.py

Trains (forward and backward) and decodes one attention layer with a window of 256 and without one;
medians of alternating runs; memory is the peak that torch's allocator saw on top of the inputs (on
a CPU: the sum of live tensors that the profiler counted at the peak).
"""

from collections.abc import Callable
from functools import partial

import torch
from timing import milliseconds, seconds_in_turn, write_results
from torch.profiler import ProfilerActivity, profile

from addnorm.machine import processor
from addnorm.nn.attention import AttentionConfig, PatternConfig, WindowPatternConfig
from addnorm.nn.attention.patterns import FullPatternConfig
from addnorm.nn.cache import SelfCache
from addnorm.nn.context import Context
from addnorm.nn.masks import Causal
from addnorm.nn.positions import ALiBiConfig, NoPositionConfig, PositionConfig
from addnorm.nn.positions.position import BuildContext

WINDOW, WIDTH, HEADS, REPEATS, STEPS = 256, 128, 4, 3, 256
BUILD_CONTEXT = BuildContext(
    d_model=WIDTH, max_len=1, n_heads=HEADS, d_head=WIDTH // HEADS, causal=True, scale=1.0
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Layer:
    """One attention layer, timed on texts of a length."""

    def __init__(self, pattern: PatternConfig, position: PositionConfig) -> None:
        config = AttentionConfig(n_heads=HEADS, pattern=pattern)
        self.attention = config.build(WIDTH, position.build(BUILD_CONTEXT), True).to(DEVICE)

    def train(self, length: int) -> None:
        """One forward and backward pass."""
        x = torch.randn(1, length, WIDTH, device=DEVICE, requires_grad=True)
        ctx = Context.over(x, Causal()).restrict(self.attention.pattern)
        self.attention(x, ctx).sum().backward()

    @torch.inference_mode()
    def decode(self, length: int, steps: int = STEPS) -> None:
        """Some tokens after a text of that length."""
        cache: SelfCache = self.attention.new_cache()
        x = torch.randn(1, 1, WIDTH, device=DEVICE)
        past = torch.randn(1, HEADS, length, WIDTH // HEADS, device=DEVICE)
        cache.append(past, past)  # the first step forgets tokens out of reach
        for step in range(steps):
            ctx = Context.over(x, Causal(), past=length + step).restrict(self.attention.pattern)
            self.attention(x, ctx, cache)


def timed(work: Callable[[int], None], length: int) -> None:
    """Do a piece of work to its end."""
    work(length)
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def peak_bytes(layer: Layer, length: int) -> int:
    """The most that tensors took at once during a training step."""
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        layer.train(length)
        return torch.cuda.max_memory_allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        layer.train(length)
    live = peak = 0
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def main() -> None:
    """Measure each layer at each length, print and write."""
    layers = {
        "full": Layer(FullPatternConfig(), NoPositionConfig()),
        "full, alibi": Layer(FullPatternConfig(), ALiBiConfig()),
        "window": Layer(WindowPatternConfig(size=WINDOW), NoPositionConfig()),
        "window, alibi": Layer(WindowPatternConfig(size=WINDOW), ALiBiConfig()),
    }
    rows = []
    for length in (1024, 2048, 4096, 8192, 16384):
        for layer in layers.values():
            layer.train(256)
        works = {
            (name, kind): partial(timed, getattr(layer, kind), length)
            for name, layer in layers.items()
            for kind in ("train", "decode")
        }
        times = seconds_in_turn(works, REPEATS, warm_up=0)
        rows += [
            {
                "length": length,
                "layer": name,
                "train_ms": milliseconds(times[name, "train"]),
                "decode_ms_per_token": round(milliseconds(times[name, "decode"], 6) / STEPS, 3),
                "peak_mib": round(peak_bytes(layer, length) / 2**20, 1),
            }
            for name, layer in layers.items()
        ]
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else processor()
    write_results("window", {"device": device, "window": WINDOW, "rows": rows})


if __name__ == "__main__":
    main()
