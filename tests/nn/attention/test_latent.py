"""Latent attention: a row by hand, absorbed = expanded, and what the cache holds."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import context, started
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import LatentAttention, LatentAttentionConfig, ScaledDotConfig
from addnorm.nn.attention.kernels import MANY_KEYS
from addnorm.nn.attention.patterns import WindowPatternConfig
from addnorm.nn.masks import Causal
from addnorm.nn.positions import DisentangledConfig, NoPosition, RotaryConfig
from addnorm.nn.positions.scaling import DynamicScaling
from addnorm.parts import examples

SMALL = LatentAttentionConfig(n_heads=3, rank=6, d_content=4, d_position=2, d_value=5)
ROTARY = RotaryConfig(layout="interleaved")


def decoder(attention: LatentAttentionConfig, **fields: Any) -> Any:
    """A decoder whose every number is random, in float64."""
    parts: dict[str, Any] = {"d_model": 8, "n_layers": 2, "position": ROTARY, "dropout": 0.0}
    model = DecoderConfig(**parts | fields, attention=attention).build(20)
    return started(model).double().eval()


@pytest.mark.parametrize("cap", [None, 3.0])
def test_a_row_by_hand(cap: float | None) -> None:
    """One head of one feature each: the latent is ±1 by its norm, the shared key is the input.

    The query 2 x meets keys c + x: scores of the second token are 2 · 3 (c₁ + 1, x₁ = 1) and
    2 · 3 (c₂ + 3), capped or not; its output is the average of the latents, which are both one.
    """
    score = ScaledDotConfig(softcap=cap)
    config = LatentAttentionConfig(
        n_heads=1, rank=1, d_content=1, d_position=1, d_value=1, score=score
    )
    module = config.build(1, NoPosition(), True).double()
    for name, weight in module.named_parameters():
        weight.data.fill_(2.0 if name.startswith("q_up") else 1.0)
    module.v_up_proj.weight.data.fill_(5.0)
    x = torch.tensor([[[1.0], [-3.0]]]).double()
    scores = [-6 * (1 + 1) / math.sqrt(2), -6 * (-1 - 3) / math.sqrt(2)]
    weights = [math.exp(s if cap is None else cap * math.tanh(s / cap)) for s in scores]
    second = 5 * (weights[0] - weights[1]) / sum(weights)  # the latents are 1 and -1
    got = module(x, context(1, 2, Causal())).flatten().tolist()
    assert got == pytest.approx([5.0, second], rel=1e-5)


@given(
    heads=st.integers(1, 3),
    widths=st.tuples(*[st.integers(1, 5)] * 3),
    d_position=st.sampled_from([2, 4]),
    query_rank=st.sampled_from([None, 3]),
    softcap=st.sampled_from([None, 2.0]),
    n_new=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_absorbed_equals_expanded(
    heads: int,
    widths: tuple[int, int, int],
    d_position: int,
    query_rank: int | None,
    softcap: float | None,
    n_new: int,
) -> None:
    rank, d_content, d_value = widths
    config = LatentAttentionConfig(
        n_heads=heads,
        rank=rank,
        d_content=d_content,
        d_position=d_position,
        d_value=d_value,
        query_rank=query_rank,
        score=ScaledDotConfig(softcap=softcap),
    )
    model = decoder(config, n_layers=1)
    module: LatentAttention = model.stack.mixers[0]
    x, ctx = torch.randn(2, n_new, 8).double(), context(2, n_new, past=3)
    c, k_r = torch.randn(2, 1, 3 + n_new, rank).double(), torch.randn(2, 1, 3 + n_new, d_position)
    inputs = (*module.queries(x), c, k_r.double(), ctx)
    assert_close(module.absorbed(*inputs), module.expanded(*inputs))


@pytest.mark.parametrize("attention", examples(LatentAttentionConfig).values())
@pytest.mark.parametrize(
    "position", [ROTARY, RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_len=30))]
)
def test_cached_equals_uncached(attention: LatentAttentionConfig, position: RotaryConfig) -> None:
    model = decoder(attention, position=position)
    tokens = torch.randint(20, (2, 12))
    valid = torch.arange(12) >= torch.tensor([[3], [0]])
    with torch.no_grad():
        whole, cache, parts = model(tokens, valid), model.new_cache(), []
        for part in (slice(0, 6), slice(6, 7), slice(7, 9), slice(9, 12)):
            parts.append(model(tokens[:, part], valid[:, : part.stop], cache=cache))
    assert_close(torch.cat(parts, 1)[valid], whole[valid])


def test_the_cache_holds_the_latent_and_the_shared_key() -> None:
    model = decoder(SMALL)
    cache = model.new_cache()
    with torch.no_grad():
        model(torch.randint(20, (2, 7)), cache=cache)
    for layer in cache:
        latents, keys = layer.self_cache.kept
        assert latents.shape == (2, 1, 7, SMALL.rank)
        assert keys.shape == (2, 1, 7, SMALL.d_position)


class Largest(TorchDispatchMode):
    """The most numbers of a tensor that an operation has newly made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        storages = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in storages:
            self.numbers = max(self.numbers, out.numel())
        return out


def test_a_step_copies_nothing_of_the_cache() -> None:
    """Its largest new tensor has a score of each head for each token, and no feature of a token."""
    model = decoder(replace(SMALL, rank=24, d_position=4), n_layers=1).float()
    cache, n = model.new_cache(), MANY_KEYS + 100
    with torch.no_grad():
        model(torch.randint(20, (1, n - 5)), cache=cache)
        model(torch.randint(20, (1, 1)), cache=cache)
        with Largest() as largest:
            model(torch.randint(20, (1, 1)), cache=cache)
    assert largest.numbers <= SMALL.n_heads * n


@pytest.mark.parametrize("d_value", [3, 6, 9])
def test_a_long_text_is_read_by_a_kernel_of_one_width(d_value: int) -> None:
    """Of a text that is expanded, queries, keys and values are as wide as each other."""
    module = replace(SMALL, d_value=d_value).build(8, NoPosition(), True).eval()
    widths = list[int]()

    def record(_: Any, inputs: Any) -> None:
        widths.extend(part.shape[-1] for part in inputs[:3])

    module.core.register_forward_pre_hook(record)
    y = module(torch.randn(1, 9, 8), context(1, 9, Causal()))
    assert y.shape == (1, 9, 8)
    assert widths == [max(6, d_value)] * 3


def test_a_window_leaves_earlier_latents_out() -> None:
    window = replace(SMALL, pattern=WindowPatternConfig(size=2))
    model = decoder(window, n_layers=1)
    tokens = torch.randint(20, (1, 6))
    other = tokens.clone()
    other[0, 3] = (tokens[0, 3] + 1) % 20
    with torch.no_grad():
        changed = (model(tokens) - model(other)).abs().amax(-1)[0] > 1e-9
    assert changed.tolist() == [False, False, False, True, True, False]


def test_a_layer_that_is_not_plain_is_expanded() -> None:
    module = SMALL.build(8, NoPosition(), True)
    assert module.is_few(1)
    module.k_up_proj = torch.nn.Sequential(module.k_up_proj)  # pyright: ignore[reportAttributeAccessIssue]
    assert not module.is_few(1)


def test_positions_that_read_the_projections_are_refused() -> None:
    with pytest.raises(ValueError, match="disentangled positions go through the projections"):
        DecoderConfig(d_model=8, attention=SMALL, position=DisentangledConfig())
    layer = LayerConfig(attention=SMALL)
    with pytest.raises(ValueError, match="layer 1: disentangled positions"):
        DecoderConfig(
            d_model=8, position=DisentangledConfig(), layer_pattern=(LayerConfig(), layer)
        )


def test_custom_positions_that_read_the_projections_are_refused() -> None:
    class Reading(NoPosition):
        def content_bias(self, q: Any, k: Any, ctx: Any, projections: Any) -> None:
            return None

    with pytest.raises(InputError, match="Reading positions read the projections"):
        SMALL.build(8, Reading(), True)


def test_every_parameter_has_a_gradient() -> None:
    for config in examples(LatentAttentionConfig).values():
        model = decoder(config).train()
        model(torch.randint(20, (2, 5))).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
