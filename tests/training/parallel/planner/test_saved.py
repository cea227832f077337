"""Saved activations are within a tenth of what autograd keeps, for every part that is known."""

import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig, DifferentialCoreConfig
from addnorm.nn.attention.core import EagerCoreConfig
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.choices import DEFAULTS, use_choices
from addnorm.nn.feedforward import ACTIVATIONS, FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.no_sublayer import NoFeedForwardConfig, NoMixerConfig
from addnorm.nn.norms import (
    BatchNormConfig,
    DynamicErfConfig,
    DynamicTanhConfig,
    LayerNormConfig,
    OffsetRMSNormConfig,
    RMSNormConfig,
    ScaleNormConfig,
)
from addnorm.nn.positions import (
    ALiBiConfig,
    KERPLEConfig,
    LearnedConfig,
    RotaryConfig,
    RoundedALiBiConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.residuals import (
    DeepNormConfig,
    LayerScaleConfig,
    ParallelConfig,
    PostNormConfig,
    PreNormConfig,
    SandwichNormConfig,
)
from addnorm.training.loss import head_cross_entropy_sum
from addnorm.training.parallel.planner.memory import activations_of
from addnorm.training.parallel.planner.plan import Plan
from addnorm.training.parallel.planner.sizes import sizes_of
from addnorm.training.parallel.planner.training import OURS, Training
from addnorm.training.precision import autocast

VOCAB = 6000
"""Its logits of a batch are too many to be computed at once, as usual."""


def heads(**settings: Any) -> dict[str, Any]:
    return {"attention": AttentionConfig(n_heads=4, **settings)}


LLAMA = {
    "norm": RMSNormConfig(),
    "position": RotaryConfig(),
    "feedforward": GatedFeedForwardConfig(),
    "attention": AttentionConfig(n_heads=4, n_kv_heads=2, bias=False),
}
GELU = FeedForwardConfig(dropout=0.1, activation="gelu")
PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "llama": LLAMA,
    "post": {"residual": PostNormConfig()},
    "layer_scale": {"residual": LayerScaleConfig()},
    "dropped_layer_scale": {"residual": LayerScaleConfig(), "dropout": 0.1},
    "sandwich": {"residual": SandwichNormConfig()},
    "deepnorm": {"residual": DeepNormConfig()},
    "parallel": {"residual": ParallelConfig()},
    "parallel_each": {"residual": ParallelConfig(norms="each")},
    "rmsnorm": {"norm": RMSNormConfig()},
    "rmsnorm_without_gain": {"norm": RMSNormConfig(gain="none")},
    "layernorm_without_gain": {"norm": LayerNormConfig(gain="none", bias=False)},
    "sandwich_output": {"residual": SandwichNormConfig(norms="output")},
    "offset_rmsnorm": {"norm": OffsetRMSNormConfig()},
    "scalenorm": {"norm": ScaleNormConfig()},
    "dynamic_tanh": {"norm": DynamicTanhConfig()},
    "dynamic_erf": {"norm": DynamicErfConfig()},
    "batchnorm": {"norm": BatchNormConfig()},
    "attention_alone": {"feedforward": NoFeedForwardConfig()},
    "feedforward_alone": {"attention": NoMixerConfig()},
    "learned": {"position": LearnedConfig()},
    "rotary": {"position": RotaryConfig()},
    "alibi": {"position": ALiBiConfig()},
    "rounded_alibi": {"position": RoundedALiBiConfig()},
    "t5": {"position": T5BiasConfig()},
    "kerple": {"position": KERPLEConfig()},
    "transformer_xl": {"position": TransformerXLConfig()},
    "gqa": heads(n_kv_heads=2),
    "mqa": heads(n_kv_heads=1),
    "eager": heads(core=EagerCoreConfig()),
    "dropped_weights": heads(dropout=0.1),
    "qk_norm": heads(qk_norm=RMSNormConfig()),
    "qk_norm_over_heads": heads(qk_norm=RMSNormConfig(), qk_norm_over="heads"),
    "v_norm": heads(v_norm=RMSNormConfig()),
    "gated_output": heads(output=GatedOutputConfig()),
    "dropout": {"dropout": 0.1},
    "dropped_relu": {"feedforward": FeedForwardConfig(dropout=0.1)},
    "dropped_gelu": {"feedforward": GELU},
    "dropped_gate": {"feedforward": GatedFeedForwardConfig(dropout=0.1)},
    "moe": {"feedforward": MixtureOfExpertsConfig(n_experts=4, top_k=2)},
    "moe_shared": {
        "feedforward": MixtureOfExpertsConfig(
            n_experts=4, top_k=2, shared=FeedForwardConfig(), shared_gate=True
        )
    },
    **{f"mlp_{a}": {"feedforward": FeedForwardConfig(activation=a)} for a in ACTIVATIONS},
    **{f"gated_{a}": {"feedforward": GatedFeedForwardConfig(activation=a)} for a in ACTIVATIONS},
}
NARROW = (
    *("plain", "llama", "post", "layer_scale", "sandwich", "parallel", "rotary", "gqa"),
    *("dropout", "moe"),
)


def config(part: str) -> DecoderConfig:
    usual = {
        "d_model": 64,
        "n_layers": 2,
        "residual": PreNormConfig(),
        "head": TokenHeadConfig(tied=False),
        "dropout": 0.0,
        **heads(),
    }
    return DecoderConfig(**usual | PARTS[part])  # pyright: ignore[reportArgumentType]


def kept(part: str, rows: int, seq_len: int, precision: Any, vocab: int) -> int:
    """The bytes that autograd keeps for the backward pass, each storage once, without weights."""
    model = config(part).build(vocab).train()
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    packed = list[tuple[Any, int, int]]()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        packed.append((weakref.ref(tensor), storage.data_ptr(), storage.nbytes()))
        return tensor

    tokens = torch.randint(0, vocab, (rows, seq_len))
    fused = replace(DEFAULTS, short_keys=0)  # as on a GPU: no plain products of short texts
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        autocast(precision, torch.device("cpu")),
        use_choices(fused),
    ):
        x, ctx = model.hidden(tokens)
        loss = head_cross_entropy_sum(model.head, x, ctx, tokens)
    del x, ctx
    assert loss.requires_grad
    live = {place: size for ref, place, size in packed if ref() is not None and place not in own}
    return sum(live.values())


def planned(part: str, rows: int, seq_len: int, precision: str, vocab: int) -> float:
    sizes = sizes_of(config(part).build(vocab), 64)
    training = Training(rows=rows, seq_len=seq_len, precision=precision, on_cpu=True)
    return activations_of(sizes, training, OURS, Plan(rows=rows), 0)


def some(parts: Iterable[str]) -> list[Any]:
    """The parts, of which all but two are tested in the long lane."""
    usual = ("plain", "llama")
    return [pytest.param(p, marks=[] if p in usual else [pytest.mark.long]) for p in parts]


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("part", some(PARTS))
def test_saved_activations_are_those_of_autograd(part: str) -> None:
    shape = (3, 256)
    measured = kept(part, *shape, "float32", VOCAB)
    assert planned(part, *shape, "float32", VOCAB) == pytest.approx(measured, rel=0.02)


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("part", some(NARROW))
def test_narrow_products_save_half_as_much(part: str) -> None:
    """But for copies of the weights, which are counted elsewhere."""
    shape = (4, 384)
    measured = kept(part, *shape, "bfloat16", VOCAB)
    assert planned(part, *shape, "bfloat16", VOCAB) == pytest.approx(measured, rel=0.1)


@pytest.mark.usefixtures("types_unchecked")
def test_few_logits_are_saved_themselves() -> None:
    measured = kept("plain", 2, 64, "float32", 500)
    assert planned("plain", 2, 64, "float32", 500) == pytest.approx(measured, rel=0.05)


def test_a_part_without_figures_is_named() -> None:
    model = DecoderConfig(
        d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2, core=DifferentialCoreConfig())
    ).build(20)
    message = "layer 0: plan has no figures for DifferentialCore: it knows"
    with pytest.raises(InputError, match=message):
        sizes_of(model, 16)
