"""The cost of mixers by the length of a text: bytes of cache, and time to read and write a token.

    python benchmarks/mixers.py [LENGTH ...]

A decoder of four layers, with multi-head, grouped-query and latent attention, with the gated delta
rule, and with three layers of it to one of grouped-query attention. Medians of alternating runs;
all mixers of a length are measured in one run. Lengths may be measured one by one: rows of other
lengths stay in the file.
"""

import json
import sys
from functools import partial
from itertools import chain

import torch
from timing import RESULTS, milliseconds, seconds_in_turn, write_results
from torch import Tensor

from addnorm.models import DecoderConfig, DecoderModel
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, LatentAttentionConfig
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.cache import KVCache, SelfCache
from addnorm.nn.delta import GatedDeltaConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.recurrent import StateCaches
from addnorm.nn.residuals import PreNormConfig

WIDTH, HEADS, D_HEAD, VOCABULARY = 256, 8, 32, 256
LENGTHS = (128, 512, 2048, 8192, 32768)
STEPS, ROUNDS = 32, 5
LONG = 8192
"""From this length on, a prompt is read only once."""

GQA = AttentionConfig(n_heads=HEADS, n_kv_heads=2, d_head=D_HEAD, bias=False)
DELTA = GatedDeltaConfig(n_heads=HEADS, d_key=D_HEAD, d_value=D_HEAD)
MIXERS: dict[str, MixerConfig] = {
    "MHA": AttentionConfig(n_heads=HEADS, d_head=D_HEAD, bias=False),
    "GQA, 2 heads": GQA,
    "latent, rank 64": LatentAttentionConfig(
        n_heads=HEADS, rank=64, d_content=D_HEAD, d_position=16, d_value=D_HEAD
    ),
    "delta rule": DELTA,
    "3 delta : 1 GQA": GQA,
}
HYBRID = (LayerConfig(attention=DELTA),) * 3 + (LayerConfig(),)


def model_of(name: str) -> DecoderModel:
    """A decoder of four layers with this mixer."""
    return (
        DecoderConfig(
            d_model=WIDTH,
            n_layers=4,
            attention=MIXERS[name],
            layer_pattern=HYBRID if ":" in name else (),
            position=RotaryConfig(),
            feedforward=GatedFeedForwardConfig(bias=False),
            norm=RMSNormConfig(),
            residual=PreNormConfig(),
            dropout=0.0,
            init="gpt2",
        )
        .build(VOCABULARY)
        .eval()
    )


@torch.inference_mode()
def read(model: DecoderModel, length: int, caches: dict[str, KVCache], name: str) -> None:
    """Read a text, and keep its cache."""
    caches[name] = model.new_cache()
    model.hidden(torch.arange(length)[None] % VOCABULARY, cache=caches[name])


@torch.inference_mode()
def write(model: DecoderModel, cache: KVCache) -> None:
    """Append some tokens, one by one."""
    for _ in range(STEPS):
        model(torch.ones(1, 1, dtype=torch.long), cache=cache)


def bytes_of(cache: KVCache) -> int:
    """The bytes that the cache of a text holds."""
    return sum(t.numel() * t.element_size() for layer in cache for t in tensors(layer.self_cache))


def tensors(cache: object) -> list[Tensor]:
    """The tensors of the cache of a layer, without the room that it has for more tokens."""
    if isinstance(cache, SelfCache):
        return [*cache.kept]
    assert isinstance(cache, StateCaches)
    return [stage.state(torch.empty(1, 1, 1)) for stage in cache.stages]


def rows_of(length: int) -> list[dict[str, object]]:
    """Measure all mixers at a length, in turn."""
    models = {name: model_of(name) for name in MIXERS}
    caches = dict[str, KVCache]()
    for name, model in models.items():
        read(model, 64, caches, name)
    reading = seconds_in_turn(
        {name: partial(read, model, length, caches, name) for name, model in models.items()},
        1 if length >= LONG else ROUNDS,
        warm_up=0,
    )
    sizes = {name: bytes_of(cache) for name, cache in caches.items()}
    writing = seconds_in_turn(
        {name: partial(write, model, caches[name]) for name, model in models.items()},
        3 if length >= LONG else ROUNDS,
    )
    first = next(iter(MIXERS))
    return [
        {
            "length": length,
            "mixer": name,
            "cache_bytes": sizes[name],
            "cache_ratio": round(sizes[name] / sizes[first], 4),
            "read_ms_per_token": round(milliseconds(reading[name], 6) / length, 4),
            "read_ratio": ratio(reading[name], reading[first]),
            "write_ms_per_token": round(milliseconds(writing[name], 6) / STEPS, 4),
            "write_ratio": ratio(writing[name], writing[first]),
        }
        for name in MIXERS
    ]


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios of each round."""
    pairs = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return round(pairs[len(pairs) // 2], 3)


def main() -> None:
    """Measure the lengths of the command line, or all; print and write."""
    lengths = [*map(int, sys.argv[1:])] or [*LENGTHS]
    file = RESULTS / "mixers.json"
    old = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    rows = [row for row in old if row["length"] not in lengths]
    rows += chain.from_iterable(map(rows_of, lengths))
    order = [*MIXERS]
    rows.sort(key=lambda row: (row["length"], order.index(row["mixer"])))
    sizes = {"width": WIDTH, "layers": 4, "heads": HEADS, "head_width": D_HEAD}
    write_results("mixers", {**sizes, "rows": rows})


if __name__ == "__main__":
    main()
