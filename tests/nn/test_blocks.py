"""Blocks and stacks: the equations, gradients to all parts, and the reach of windows."""

from dataclasses import replace

import pytest
import torch
from tests.contracts import (
    CORE_RECORDS,
    FEEDFORWARD_RECORDS,
    NORM_RECORDS,
    POSITION_RECORDS,
    RESIDUAL_RECORDS,
    SOFTMAX_CORES,
    check_gradients,
    check_module,
    combined,
    context,
    named,
)
from torch import nn
from torch.testing import assert_close

from addnorm.models import DecoderConfig
from addnorm.models.transformer import TransformerConfig
from addnorm.nn.attention import AttentionConfig, WindowPatternConfig
from addnorm.nn.blocks import Block, CrossBlock, Stack
from addnorm.nn.context import Context
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.masks import Causal, Full, Window
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import NoNorm, RMSNormConfig
from addnorm.nn.positions import NoPositionConfig, PositionConfig
from addnorm.nn.residuals import Depth, PreNormConfig, ResidualConfig

SMOOTH = FeedForwardConfig(activation="gelu", d_ff=5)


def config_with(**parts: object) -> TransformerConfig:
    parts = {"attention": AttentionConfig(n_heads=2), "feedforward": SMOOTH, **parts}
    return DecoderConfig(d_model=4, n_layers=1, dropout=0.0, **parts)  # type: ignore[arg-type]


def stack(config: TransformerConfig, *, cross: bool) -> Stack:
    position = config.build_position(causal=True)
    depth = Depth(decoder=config.n_layers, causal=True)
    return (
        config.build_cross_stack(position, depth) if cross else config.build_stack(position, depth)
    )


def test_a_block_has_each_of_its_sublayers_in_their_order() -> None:
    class Mine(Block):
        """Inherits them."""

    parts = {name: nn.Identity() for name in reversed(Block.__annotations__)}
    assert [*dict(Mine(**parts).named_children())] == [*Block.__annotations__]
    for wrong in (parts | {"norm": nn.Identity()}, {"attention": nn.Identity()}):
        with pytest.raises(TypeError, match="takes attention, attention_residual, feedforward"):
            Mine(**wrong)


FEEDFORWARDS = [  # every expert has tokens
    replace(one, top_k=one.n_experts) if isinstance(one, MixtureOfExpertsConfig) else one
    for one in FEEDFORWARD_RECORDS
]
POSITIONS = [one for one in POSITION_RECORDS if getattr(one, "fraction", 1.0) == 1.0]
"""Those that heads of two features can have."""
GROUPED = [AttentionConfig(n_heads=2, n_kv_heads=1, core=core) for core in SOFTMAX_CORES]
PARTS = [
    pytest.param({field: part}, id=f"{field}-{getattr(part, 'kind', i)}")
    for field, parts in (
        ("norm", NORM_RECORDS),
        ("feedforward", FEEDFORWARDS),
        ("position", POSITIONS),
        ("attention", GROUPED),
    )
    for i, part in enumerate(parts)
]


@pytest.mark.parametrize(("residual", "part"), combined(named(RESIDUAL_RECORDS), PARTS))
def test_contract_of_each_part_in_each_placement(
    residual: ResidualConfig, part: dict[str, object]
) -> None:
    config, x, memory = (
        config_with(residual=residual, **part),
        torch.randn(2, 3, 4),
        torch.randn(2, 2, 4),
    )
    check_module(
        lambda: stack(config, cross=True),
        lambda m, dtype: m(x.to(dtype), context(2, 3).attending(memory.to(dtype))),
    )


@pytest.mark.parametrize(
    ("residual", "position", "core"),
    combined(named(RESIDUAL_RECORDS), named(POSITIONS), named(CORE_RECORDS)),
)
def test_gradients(residual: ResidualConfig, position: PositionConfig, core: object) -> None:
    attention = AttentionConfig(n_heads=2, core=core)  # type: ignore[arg-type]
    config = config_with(residual=residual, position=position, attention=attention)
    x, memory, ctx = torch.randn(1, 2, 4), torch.randn(1, 2, 4), context(1, 2)
    smooth = attention.core.kind == "eager"
    check_gradients(stack(config, cross=False), lambda m, x: m(x, ctx), x, twice=smooth)
    check_gradients(
        stack(config, cross=True), lambda m, x, y: m(x, ctx.attending(y)), x, memory, twice=smooth
    )


@pytest.mark.parametrize("pre", [False, True])
def test_blocks_are_the_equations(pre: bool) -> None:
    config = config_with(residual=PreNormConfig()) if pre else config_with()
    ctx = context(2, 3).attending(torch.randn(2, 5, 4))
    x = torch.randn(2, 3, 4)
    layers = stack(config, cross=True)
    block = layers.blocks[0]
    assert isinstance(block, CrossBlock)
    expected = x
    for residual, f in (
        (block.attention_residual, lambda h: block.attention(h, ctx)),
        (block.cross_attention_residual, lambda h: block.cross_attention(h, ctx)),
        (block.feedforward_residual, block.feedforward),
    ):
        expected = (
            expected + f(residual.norm(expected)) if pre else residual.norm(expected + f(expected))
        )
    assert_close(block(x, ctx), expected)
    assert_close(layers(x, ctx), layers.norm(expected) if pre else expected)


def test_no_norm_is_shared() -> None:
    blocks = DecoderConfig(d_model=8, n_layers=3).build(5).stack.blocks
    norms = [
        m
        for block in blocks
        for m in block.modules()
        if isinstance(m, nn.LayerNorm) or hasattr(m, "eps")
    ]
    assert len({id(norm) for norm in norms}) == 6


@pytest.mark.parametrize(("n_layers", "window"), [(1, 1), (1, 3), (2, 3), (3, 2), (3, 4)])
@pytest.mark.parametrize("residual", named(RESIDUAL_RECORDS))
def test_reach_of_a_window(n_layers: int, window: int, residual: ResidualConfig) -> None:
    """After L layers a token has seen exactly the last `L (w - 1) + 1`."""
    attention = AttentionConfig(n_heads=2, pattern=WindowPatternConfig(size=window))
    config = DecoderConfig(
        d_model=8,
        n_layers=n_layers,
        position=NoPositionConfig(),
        attention=attention,
        residual=residual,
        dropout=0.0,
    )
    layers = stack(config, cross=False).double()
    x = torch.randn(1, 14, 8, dtype=torch.float64, requires_grad=True)
    layers(x, Context.over(torch.zeros(1, 14, dtype=torch.long), Causal()))[
        0, -1
    ].square().sum().backward()
    assert x.grad is not None
    reached = x.grad[0].abs().sum(-1) > 0
    assert int(reached.sum()) == n_layers * (window - 1) + 1
    assert bool(reached[14 - int(reached.sum()) :].all())


def test_layers_may_differ_in_their_pattern() -> None:
    """Each pattern is evaluated for its own layers: a window in one, everything in the other."""
    wide = AttentionConfig(n_heads=2)
    narrow = AttentionConfig(n_heads=2, pattern=WindowPatternConfig(size=2))
    blocks = []
    for attention in (narrow, wide):
        config = DecoderConfig(
            d_model=4,
            n_layers=1,
            position=NoPositionConfig(),
            attention=attention,
            norm=RMSNormConfig(),
            dropout=0.0,
        )
        blocks.append(stack(config, cross=False).blocks[0])
    assert all(isinstance(block, Block) for block in blocks)
    layers = Stack([*blocks], NoNorm())
    x = torch.randn(1, 6, 4, requires_grad=True)
    ctx = Context.over(torch.zeros(1, 6, dtype=torch.long), Full())
    expected = blocks[1](blocks[0](x, ctx.restrict(Window(2))), ctx.restrict(Full()))
    assert_close(layers(x, ctx), expected)
