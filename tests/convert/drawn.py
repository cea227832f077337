"""Random models over all parts, some with replaced modules, for tests of exporters."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from tests.checking.my_parts import Sine, SineConfig
from tests.convert import own_parts as own
from torch import nn

from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, Model, ModelConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import (
    AdditiveConfig,
    AttentionConfig,
    BilinearConfig,
    BlocksPatternConfig,
    DotConfig,
    EagerCore,
    EagerCoreConfig,
    ScaledDotConfig,
    SDPACoreConfig,
    WindowPatternConfig,
)
from addnorm.nn.attention.differential import DifferentialCoreConfig
from addnorm.nn.attention.flex import FlexCoreConfig
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.blocks import Block, CrossBlock, ParallelBlock, ParallelCrossBlock
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.dropout import Dropout
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import Activation, FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig, TransformConfig
from addnorm.nn.masks import Window
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import (
    BatchNormConfig,
    DynamicErfConfig,
    DynamicTanhConfig,
    LayerNorm,
    LayerNormConfig,
    NoNorm,
    OffsetRMSNorm,
    OffsetRMSNormConfig,
    RMSNorm,
    RMSNormConfig,
    ScaleNormConfig,
)
from addnorm.nn.positions import (
    ALiBi,
    ALiBiConfig,
    DynamicScaling,
    KERPLEConfig,
    LearnedConfig,
    LinearScaling,
    Llama3Scaling,
    NoPositionConfig,
    NTKScaling,
    Rotary,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
    TransformerXLConfig,
    YaRNScaling,
)
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import (
    DeepNormConfig,
    ParallelConfig,
    PostNormConfig,
    PreNormConfig,
    SandwichNormConfig,
)

BLOCKS = (Block, CrossBlock, ParallelBlock, ParallelCrossBlock)
ROTATIONS = [
    RotaryConfig(),
    RotaryConfig(theta=500.0, layout="interleaved"),
    RotaryConfig(fraction=0.5),
    *(
        RotaryConfig(scaling=scaling)
        for scaling in (
            LinearScaling(factor=3.0),
            NTKScaling(factor=2.0),
            DynamicScaling(factor=2.0, original_max_len=8),
            YaRNScaling(factor=4.0, original_max_len=16),
            Llama3Scaling(factor=4.0, original_max_len=16),
        )
    ),
]
POSITIONS: list[Any] = [
    *ROTATIONS,
    SinusoidalConfig(),
    SinusoidalConfig(theta=77.0, layout="halves"),
    LearnedConfig(),
    ALiBiConfig(),
    T5BiasConfig(buckets=8, max_distance=20),
    TransformerXLConfig(),
    KERPLEConfig(),
    NoPositionConfig(),
    own.RampConfig(),
]
NORMS: list[Any] = [
    LayerNormConfig(),
    LayerNormConfig(bias=False, eps=1e-3),
    RMSNormConfig(),
    RMSNormConfig(eps=1e-2),
    OffsetRMSNormConfig(),
    ScaleNormConfig(),
    BatchNormConfig(),
    DynamicTanhConfig(),
    DynamicErfConfig(),
    own.HalvedNormConfig(),
]
PLACEMENTS: list[Any] = [
    PostNormConfig(),
    PreNormConfig(),
    PreNormConfig(first=False),
    SandwichNormConfig(),
    DeepNormConfig(),
    ParallelConfig(),
    ParallelConfig(norms="each"),
    own.HalfResidualConfig(),
]
ATTENTION: dict[str, list[Any]] = {
    "n_heads": [1, 2, 4],
    "n_kv_heads": [None, 1, 2],
    "d_head": [None, 12],
    "bias": [True, False],
    "out_bias": [None, True, False],
    "qk_norm": [
        None,
        RMSNormConfig(),
        LayerNormConfig(),
        OffsetRMSNormConfig(),
        DynamicTanhConfig(),
    ],
    "score": [
        ScaledDotConfig(),
        ScaledDotConfig(factor=0.5),
        ScaledDotConfig(softcap=2.0),
        DotConfig(),
        BilinearConfig(),
        AdditiveConfig(),
        own.NegatedDistanceConfig(),
    ],
    "pattern": [WindowPatternConfig(size=3), BlocksPatternConfig(size=4, n_global=1)],
    "core": [
        SDPACoreConfig(),
        FlexCoreConfig(),
        EagerCoreConfig(),
        DifferentialCoreConfig(),
        own.DoubledCoreConfig(),
    ],
    "output": [GatedOutputConfig(), GatedOutputConfig(per="head"), own.DoubledConfig()],
    "dropout": [0.1],
}
MIXERS: list[Any] = [RecurrentConfig(), ConvolutionConfig(), own.MeanConfig()]
FEEDFORWARDS: list[Any] = [
    *(
        FeedForwardConfig(d_ff=48, activation=activation, bias=bias)
        for activation in get_args(Activation)
        for bias in (True, False)
    ),
    *(
        GatedFeedForwardConfig(d_ff=48, activation=activation, bias=bias)
        for activation in ("silu", "gelu_tanh", "sigmoid")
        for bias in (True, False)
    ),
    MixtureOfExpertsConfig(n_experts=2, top_k=1),
    SineConfig(),
]
EMBEDDINGS: list[Any] = [
    EmbeddingConfig(),
    EmbeddingConfig(scale="one"),
    EmbeddingConfig(scale="one", norm=LayerNormConfig()),
    EmbeddingConfig(n_types=2),
    EmbeddingConfig(word_dropout=0.1),
    own.NegatedEmbeddingConfig(),
]
HEADS: list[Any] = [
    TokenHeadConfig(),
    TokenHeadConfig(tied=False),
    TokenHeadConfig(bias=True),
    TokenHeadConfig(scale="sqrt"),
    TokenHeadConfig(softcap=3.0),
    TokenHeadConfig(transform=TransformConfig(norm=LayerNormConfig())),
    own.NegatedHeadConfig(),
]
LAYERS: list[Any] = [
    (
        LayerConfig(position=RotaryConfig(theta=100.0)),
        LayerConfig(position=RotaryConfig(theta=1e6)),
    ),
    (LayerConfig(pattern=WindowPatternConfig(size=3)), LayerConfig()),
    (LayerConfig(position=NoPositionConfig()),),
    (LayerConfig(position=RotaryConfig(theta=50.0)),),
]

SMALL: dict[str, Any] = {"d_model": 32, "n_layers": 2, "max_len": 40}
LLAMA: dict[str, Any] = SMALL | {
    "position": RotaryConfig(),
    "attention": AttentionConfig(n_heads=4, n_kv_heads=2, bias=False),
    "feedforward": GatedFeedForwardConfig(d_ff=48),
    "norm": RMSNormConfig(),
    "residual": PreNormConfig(),
    "embedding": EmbeddingConfig(scale="one"),
}
GPT2: dict[str, Any] = SMALL | {
    "position": LearnedConfig(),
    "attention": AttentionConfig(n_heads=4),
    "feedforward": FeedForwardConfig(activation="gelu_tanh"),
    "residual": PreNormConfig(),
    "embedding": EmbeddingConfig(scale="one"),
}
GEMMA: dict[str, Any] = LLAMA | {
    "feedforward": GatedFeedForwardConfig(d_ff=48, activation="gelu_tanh"),
    "norm": OffsetRMSNormConfig(),
    "embedding": EmbeddingConfig(),
}
GEMMA2: dict[str, Any] = GEMMA | {
    "residual": SandwichNormConfig(),
    "attention": AttentionConfig(n_heads=4, bias=False, score=ScaledDotConfig(softcap=5.0)),
    "head": TokenHeadConfig(softcap=4.0),
}
NEOX: dict[str, Any] = GPT2 | {
    "position": RotaryConfig(fraction=0.5),
    "residual": ParallelConfig(norms="each"),
    "head": TokenHeadConfig(tied=False),
}
T5: dict[str, Any] = SMALL | {
    "position": T5BiasConfig(buckets=8, max_distance=20),
    "attention": AttentionConfig(n_heads=4, bias=False, score=DotConfig()),
    "feedforward": FeedForwardConfig(bias=False),
    "norm": RMSNormConfig(),
    "residual": PreNormConfig(),
    "embedding": EmbeddingConfig(scale="one"),
    "head": TokenHeadConfig(scale="sqrt"),
}
ORIGINAL: dict[str, Any] = SMALL | {"attention": AttentionConfig(n_heads=4)}
MARIAN: dict[str, Any] = ORIGINAL | {
    "position": SinusoidalConfig(layout="halves"),
    "feedforward": FeedForwardConfig(activation="silu"),
    "head": TokenHeadConfig(bias=True),
    "dropout": 0.0,
}
BART: dict[str, Any] = GPT2 | {
    "residual": PostNormConfig(),
    "feedforward": FeedForwardConfig(activation="gelu"),
    "embedding": EmbeddingConfig(scale="one", norm=LayerNormConfig()),
}
BERT: dict[str, Any] = GPT2 | {
    "residual": PostNormConfig(),
    "feedforward": FeedForwardConfig(activation="gelu"),
    "embedding": EmbeddingConfig(scale="one", norm=LayerNormConfig(), n_types=2),
    "head": TokenHeadConfig(bias=True, transform=TransformConfig(norm=LayerNormConfig())),
}

BASES: dict[str, list[tuple[type, dict[str, Any]]]] = {
    "decoder": [(DecoderConfig, base) for base in (LLAMA, GPT2, GEMMA, GEMMA2, NEOX, ORIGINAL)],
    "encoder_decoder": [(EncoderDecoderConfig, base) for base in (MARIAN, T5, BART, LLAMA)],
    "encoder": [(EncoderConfig, base) for base in (BERT, ORIGINAL, LLAMA)],
}


def draw(rng: random.Random, kinds: Sequence[str], vocab_size: int) -> tuple[ModelConfig, Model]:
    """A model of one of these kinds with its parameters away from where they start."""
    config = draw_config(rng, kinds)
    model: Any = config.build(vocab_size)
    if rng.random() < 0.3:
        rng.choice(SWAPS)(model, rng)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return config, model.eval()


def draw_config(rng: random.Random, kinds: Sequence[str]) -> ModelConfig:
    """A well-known model with up to three of its parts drawn anew; what clashes is redrawn."""
    while True:
        kind, base = rng.choice(BASES[rng.choice(kinds)])
        changes = dict(base)
        for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
            axis, values = rng.choice(_axes(kind))
            if axis in ATTENTION:
                if isinstance(changes["attention"], AttentionConfig):
                    value = rng.choice(values)
                    changes["attention"] = _replaced(changes["attention"], axis, value)
            else:
                changes[axis] = rng.choice(values)
        try:
            return kind(**{k: v for k, v in changes.items() if v is not None})
        except ValueError:
            continue


def _replaced(attention: AttentionConfig, axis: str, value: Any) -> AttentionConfig:
    try:
        return replace(attention, **{axis: value})
    except ValueError:
        return attention


def _axes(kind: type) -> list[tuple[str, list[Any]]]:
    axes: list[tuple[str, list[Any]]] = [
        ("position", POSITIONS),
        ("norm", NORMS),
        ("residual", PLACEMENTS),
        ("feedforward", FEEDFORWARDS),
        ("embedding", EMBEDDINGS),
        ("head", HEADS),
        ("attention", MIXERS),
        ("layer_pattern", LAYERS),
        *ATTENTION.items(),
    ]
    if kind is EncoderDecoderConfig:
        crosses = [AttentionConfig(n_heads=2), AttentionConfig(n_heads=4, qk_norm=RMSNormConfig())]
        axes += [("share_embeddings", [False]), ("decoder_position", POSITIONS)]
        axes += [("n_decoder_layers", [1]), ("cross_attention", crosses)]
    elif kind is DecoderConfig:
        axes.append(("exits", [(1,)]))
    return axes


# What may happen to a model after it was built.


def _some(model: nn.Module, rng: random.Random, *kinds: type) -> Any:
    found = [module for module in model.modules() if isinstance(module, kinds)]
    return rng.choice(found) if found else None


def _attention_of_another(model: Any, rng: random.Random) -> None:
    other: Any = draw_config(rng, ["decoder"]).build(9)
    block = _some(model, rng, *BLOCKS)
    block.attention = other.stack.blocks[0].attention


def _set(name: str, value: Any, *kinds: type) -> Callable[[Any, random.Random], None]:
    def change(model: Any, rng: random.Random) -> None:
        if (module := _some(model, rng, *kinds)) is not None:
            setattr(module, name, value)

    return change


def _turn_faster(model: Any, rng: random.Random) -> None:
    if (rotary := _some(model, rng, Rotary)) is not None:
        for attention in model.modules():
            if isinstance(attention, MultiHead) and getattr(attention, "position", 0) is rotary:
                attention.position = Rotary(rotary.frequencies * 1.5)
                return


def _hook(model: Any, rng: random.Random) -> None:
    _some(model, rng, LayerNorm, RMSNorm, OffsetRMSNorm, nn.Linear).register_forward_hook(
        lambda _, __, out: out * 1.5
    )


def _another_norm(model: Any, rng: random.Random) -> None:
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, LayerNorm | RMSNorm | OffsetRMSNorm | NoNorm) and "k_" not in name
    ]
    parent, name = rng.choice(places)
    width = 32 if name != "q_norm" else parent.d_head
    setattr(parent, name, rng.choice(NORMS).build(width))


def _untie(model: Any, rng: random.Random) -> None:
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


def _bias_of_one(model: Any, rng: random.Random) -> None:
    linear = _some(model, rng, nn.Linear)
    linear.bias = nn.Parameter(torch.ones(linear.out_features)) if linear.bias is None else None


def _drop_block(model: Any, rng: random.Random) -> None:
    del (model.decoder if hasattr(model, "decoder") else model.stack).blocks[1:]


def _eager(model: Any, rng: random.Random) -> None:
    attention = _some(model, rng, MultiHead)
    if attention is not None and not isinstance(attention.core, own.DoubledCore):
        attention.core = EagerCore(getattr(attention.core, "score", None))


def _wrapped(model: Any, rng: random.Random) -> None:
    module = _some(model, rng, LayerNorm, RMSNorm, nn.Linear)
    before = module.forward
    module.forward = lambda *args: before(*args) * 1.5


def _extra(model: Any, rng: random.Random) -> None:
    rng.choice(list(model.modules())).extra_scale = 1.5


SWAPS: list[Callable[[Any, random.Random], None]] = [
    _attention_of_another,
    _attention_of_another,
    _set("eps", 0.1, LayerNorm, RMSNorm, OffsetRMSNorm),
    _set("pattern", Window(2), MultiHead),
    _set("output", own.Doubled(), MultiHead),
    _set("feedforward", Sine(32), *BLOCKS),
    _set("p", 0.5, Dropout),
    _set("temperature", 1.2, Rotary),
    _set("slopes", torch.ones(4, dtype=torch.float64), ALiBi),
    _turn_faster,
    _hook,
    _another_norm,
    _another_norm,
    _untie,
    _bias_of_one,
    _drop_block,
    _eager,
    _wrapped,
    _extra,
]
