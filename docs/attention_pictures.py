"""The pictures of attention cores and mixers, drawn by the code that they show."""

import math
from dataclasses import replace

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, LatentAttentionConfig
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.attention.sinks import SinkCore
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.cache import SelfCache
from addnorm.nn.canon import Canon
from addnorm.nn.context import Context
from addnorm.nn.masks import Causal
from addnorm.nn.positions import RotaryConfig


def sinks() -> Figure:
    """The weights of one head of a causal decoder, without a sink and with two."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
    q, k = torch.randn(2, 1, 1, 12, 8)
    image = None
    for axis, sink in zip(axes, (-math.inf, 1.0, 3.0), strict=True):
        core = SinkCore(DotProduct(8**-0.5), 1)
        core.sinks.data.fill_(sink)
        weights = core.weights(q, k, Causal())[0, 0].detach()
        image = axis.imshow(weights, vmin=0, vmax=1, cmap="Blues")
        name = "without a sink" if sink == -math.inf else f"sink s = {sink:g}"
        axis.set(title=f"{name}: {weights.sum(-1).mean():.2f} a row", xlabel="key")
    assert image is not None
    axes[0].set_ylabel("query")
    figure.colorbar(image, ax=axes)
    return figure


def canon() -> Figure:
    """What a sublayer behind a Canon layer reads, of a row with two documents."""
    layer, begins = Canon(1, 4, bias=False), torch.arange(12) >= 7
    layer.short.conv.weight.data = torch.tensor([[[0.2, 0.35, 0.5, 0.3]]])
    ctx = Context.over(torch.zeros(1, 12), Causal(), segments=begins.long()[None])
    reads = torch.stack([layer(row[None, :, None], ctx)[0, :, 0] for row in torch.eye(12)], dim=1)
    figure, axis = plt.subplots(figsize=(4.4, 3.6), layout="constrained")
    image = axis.imshow(reads.detach(), vmin=0, cmap="Blues")
    axis.set(xlabel="token", ylabel="read at", title="two documents of 7 and 5 tokens")
    figure.colorbar(image, ax=axis)
    return figure


def latent() -> Figure:
    """How many numbers the cache holds of a token and layer, with 16 heads of 128 features."""
    gqa = AttentionConfig(n_heads=16, n_kv_heads=4, d_head=128)
    mixers: dict[str, MixerConfig] = {
        "MHA": AttentionConfig(n_heads=16, d_head=128),
        "GQA, 4 heads": gqa,
        "GQA, shared by two layers": replace(gqa, kv_layers_back=1),
        "MQA": AttentionConfig(n_heads=16, n_kv_heads=1, d_head=128),
        "latent, rank 512": LatentAttentionConfig(
            n_heads=16, rank=512, d_content=128, d_position=64, d_value=128
        ),
    }
    figure, axis = plt.subplots(figsize=(6, 2.4))
    sizes = [_numbers_in_cache(mixer) for mixer in mixers.values()]
    bars = axis.barh([*mixers], sizes)
    axis.bar_label(bars, [f"{size:,}" for size in sizes], padding=3)
    axis.invert_yaxis()
    axis.set(xlabel="numbers in the cache, a token and layer", xlim=(0, 1.2 * max(sizes)))
    return figure


def _numbers_in_cache(mixer: MixerConfig) -> int:
    """The numbers that a cache holds of a token and layer; the first has keys in any case."""
    first = replace(mixer, kv_layers_back=None) if isinstance(mixer, AttentionConfig) else mixer
    config = DecoderConfig(
        d_model=64,
        n_layers=2,
        attention=mixer,
        layer_pattern=(LayerConfig(attention=first), LayerConfig()),
        position=RotaryConfig(),
    )
    model = config.build(4)
    cache = model.new_cache()
    with torch.no_grad():
        model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
    caches = [layer.self_cache for layer in cache]
    parts = [part for each in caches if isinstance(each, SelfCache) for part in each.kept]
    return sum(part.numel() for part in parts) // len(caches)
