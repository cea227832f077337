"""Blocks and stacks: the equations, gradients to all parts, and the reach of windows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from tests.contracts import (
    CORE_RECORDS,
    FEEDFORWARD_RECORDS,
    NORM_RECORDS,
    POSITION_RECORDS,
    RESIDUAL_RECORDS,
    SOFTMAX_CORES,
    check_config,
    check_gradients,
    check_module,
    combined,
    context,
    named,
    started,
)
from tests.nn import (
    test_convolution,
    test_delta,
    test_mamba,
    test_recurrent,
    test_short_convolution,
)
from tests.nn.slots import FEW, PADDING, SLOTS, TOKEN, TWO_ROWS, passing
from torch import nn
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.models.transformer import TransformerConfig
from addnorm.nn.attention import AttentionConfig, WindowPatternConfig
from addnorm.nn.blocks import (
    Block,
    CrossBlock,
    MixerConfig,
    Stack,
    check_unshared,
    first_layer,
    shared_layer,
)
from addnorm.nn.context import Context
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.delta import GatedDeltaConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.hyper_connections import HyperConnectionsConfig
from addnorm.nn.mamba import Mamba2Config
from addnorm.nn.masks import Causal, Full, Window
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import DynamicErfConfig, DynamicTanhConfig, NoNorm, RMSNormConfig
from addnorm.nn.positions import NoPosition, NoPositionConfig, PositionConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import (
    DeepNormConfig,
    Depth,
    PostNormConfig,
    PreNormConfig,
    ResidualConfig,
)
from addnorm.nn.routers import SoftmaxRouterConfig
from addnorm.nn.short_convolution import GatedConvolutionConfig
from addnorm.parts import kind_of, members

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
    replace(part, top_k=part.n_experts, router=SoftmaxRouterConfig())
    if isinstance(part, MixtureOfExpertsConfig)
    else part
    for part in FEEDFORWARD_RECORDS
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
    flat = isinstance(part.get("norm"), DynamicTanhConfig | DynamicErfConfig)
    if residual == HyperConnectionsConfig() and flat:
        pytest.skip("with weights drawn at random the streams grow to where the norm is flat")
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


AnyMixer = (
    RecurrentConfig | ConvolutionConfig | GatedDeltaConfig | Mamba2Config | GatedConvolutionConfig
)
ADAPTER = TypeAdapter[object](MixerConfig)
MODULES = (test_recurrent, test_convolution, test_delta, test_mamba, test_short_convolution)
RECORDS: list[Any] = [config for module in MODULES for config in module.RECORDS]
NAMES = [name for module in MODULES for name in module.NAMES]
EACH = pytest.mark.parametrize("config", RECORDS, ids=NAMES)
DIRECTIONS = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])


def build(config: AnyMixer, *, causal: bool) -> nn.Module:
    return started(config.build(4, NoPosition(), causal)).double()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"n_heads": 2}, AttentionConfig(n_heads=2)),
        ({"kind": "attention"}, AttentionConfig()),
        ({"kind": "recurrent", "cell": "lstm"}, RecurrentConfig(cell="lstm")),
        ({"kind": "convolution", "kernel_size": [3, 5]}, ConvolutionConfig(kernel_size=(3, 5))),
        ({"kind": "gated_delta", "decay": "channel"}, GatedDeltaConfig(decay="channel")),
        ({"kind": "gated_convolution"}, GatedConvolutionConfig()),
    ],
)
def test_attention_unless_another_kind_is_written(
    written: dict[str, object], expected: object
) -> None:
    assert ADAPTER.validate_python(written) == expected
    assert ADAPTER.validate_json(ADAPTER.dump_json(expected)) == expected


def test_the_union_lists_each_mixer_once() -> None:
    kinds = [kind_of(one) for one in members(MixerConfig)]
    assert sorted(kinds) == [
        "attention",
        "convolution",
        "gated_convolution",
        "gated_delta",
        "latent",
        "mamba2",
        "none",
        "recurrent",
    ]


def test_a_kind_that_does_not_exist() -> None:
    with pytest.raises(ValidationError, match="mamba"):
        DecoderConfig(attention={"kind": "mamba"})  # type: ignore[arg-type]


@EACH
@DIRECTIONS
def test_contract(config: AnyMixer, causal: bool) -> None:
    check_config(config, MixerConfig)
    x = torch.randn(2, 5, 4)
    valid = torch.tensor([[False, True, True, True, True], [True, True, True, False, False]])
    for ctx in (context(2, 5), context(2, 5, valid=valid)):
        check_module(
            lambda: config.build(4, NoPosition(), causal),
            lambda m, dtype, ctx=ctx: m(x.to(dtype), ctx),
        )
    assert config.build(4, NoPosition(), causal).pattern == Full()


@EACH
@given(data=st.data())
@settings(max_examples=20)
def test_no_token_looks_ahead(config: AnyMixer, data: st.DataObject) -> None:
    """Exactly, in float32, and with padding or without."""
    t = data.draw(st.integers(1, 6))
    mixer, x = build(config, causal=True).float(), torch.randn(2, 7, 4)
    ctx = passing(torch.tensor(data.draw(st.just([[TOKEN] * 7] * 2) | TWO_ROWS)))
    changed = x.clone()
    changed[:, t:] = torch.randn(2, 7 - t, 4)
    assert torch.equal(mixer(x, ctx)[:, :t], mixer(changed, ctx)[:, :t])


@EACH
@FEW
@given(slots=SLOTS, cuts=st.sets(st.integers(1, 6)))
def test_a_cache_changes_nothing(config: AnyMixer, slots: list[list[int]], cuts: set[int]) -> None:
    """In whatever parts the tokens come, padding and new texts among them."""
    mixer, held = build(config, causal=True), torch.tensor(slots)
    x, cache = torch.randn(*held.shape, 4).double(), mixer.new_cache()
    ends = [*sorted(cuts), 7]
    parts = [
        mixer(x[:, start:end], passing(held, start, end), cache)
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    assert_close(torch.cat(parts, 1), mixer(x, passing(held)), rtol=0, atol=1e-12)


@EACH
@FEW
@given(
    slots=SLOTS, pick=st.lists(st.integers(0, 2), min_size=1, max_size=4), first=st.integers(0, 6)
)
def test_select_follows_the_rows(
    config: AnyMixer, slots: list[list[int]], pick: list[int], first: int
) -> None:
    mixer, held = build(config, causal=True), torch.tensor(slots)
    x, cache = torch.randn(*held.shape, 4).double(), mixer.new_cache()
    rows = torch.tensor(pick) % len(held)
    if first:
        mixer(x[:, :first], passing(held, 0, first), cache)
    cache.select(rows)
    y = mixer(x[rows, first:], passing(held[rows], first), cache)
    assert_close(y, mixer(x, passing(held))[rows, first:], rtol=0, atol=1e-12)


@EACH
@DIRECTIONS
def test_what_stands_at_padding_is_never_read(config: AnyMixer, causal: bool) -> None:
    mixer, x = build(config, causal=causal), torch.randn(2, 5, 4).double()
    slots = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    y, real = mixer(x, passing(slots)), slots != PADDING
    foul = torch.where(real[..., None], x, torch.nan).requires_grad_()
    again = mixer(foul, passing(slots))
    assert torch.equal(again, y)
    assert torch.equal(y[~real], torch.zeros(8, 4).double())
    again.sum().backward()
    assert torch.equal(foul.grad[~real], torch.zeros(8, 4).double())
    assert all(p.grad.isfinite().all() for p in mixer.parameters())
    nothing = passing(torch.zeros_like(slots))
    assert torch.equal(mixer(foul, nothing), torch.zeros_like(x))


@EACH
@DIRECTIONS
def test_gradients_of_mixers(config: AnyMixer, causal: bool) -> None:
    mixer = config.build(4, NoPosition(), causal)
    slots = torch.tensor([[0, 1, 1], [1, 2, 1]])
    for ctx in (context(2, 3), passing(slots)):
        check_gradients(mixer, lambda m, x, ctx=ctx: m(x, ctx), torch.randn(2, 3, 4), twice=True)


@EACH
@pytest.mark.parametrize("padded", [False, True])
def test_mixed_precision(config: AnyMixer, padded: bool) -> None:
    """Under autocast a state may come back narrower than the inputs; it serves all the same."""
    mixer = config.build(8, NoPosition(), True)
    x, cache = torch.randn(2, 4, 8), mixer.new_cache()
    slots = torch.full((2, 4), TOKEN)
    slots[0, 0] = PADDING if padded else TOKEN
    with torch.autocast("cpu", torch.bfloat16):
        parts = [mixer(x[:, n : n + 1], passing(slots, n, n + 1), cache) for n in range(4)]
    expected = mixer(x, passing(slots))
    assert_close(torch.cat(parts, 1).float(), expected, rtol=0, atol=2e-2)


@EACH
def test_no_tokens_at_all(config: AnyMixer) -> None:
    mixer, x = build(config, causal=True), torch.randn(2, 3, 4).double()
    cache = mixer.new_cache()
    parts = [
        mixer(x[:, start:end], context(2, end - start, past=start), cache)
        for start, end in ((0, 0), (0, 2), (2, 2), (2, 3))
    ]
    assert_close(torch.cat(parts, 1), mixer(x, context(2, 3)), rtol=0, atol=1e-12)
    assert mixer(x[:0], context(0, 3)).shape == (0, 3, 4)


@pytest.mark.parametrize(("n", "groups"), [(1, 1), (5, 1), (5, 2), (6, 3), (7, 7), (14, 6)])
def test_consecutive_layers_are_in_groups(n: int, groups: int) -> None:
    first = [shared_layer(i, n, groups) for i in range(n)]
    assert first == sorted(first)
    assert [*dict.fromkeys(first)] == [first_layer(group, n, groups) for group in range(groups)]
    assert all(first[i] == i for i in first)


@pytest.mark.parametrize("residual", [PostNormConfig(), DeepNormConfig()])
def test_layers_that_share_weights_count_and_start_once(residual: Any) -> None:
    def model(n_layers: int, n_distinct: int | None) -> Any:
        torch.manual_seed(0)
        return EncoderConfig(
            d_model=8,
            n_layers=n_layers,
            n_distinct_layers=n_distinct,
            attention=AttentionConfig(n_heads=2),
            residual=residual,
        ).build(11)

    shared, plain = model(5, 2), model(2, None)
    assert [p.shape for p in shared.parameters()] == [p.shape for p in plain.parameters()]
    [weight] = {block.feedforward.up_proj.weight for block in shared.stack.blocks[3:]}
    assert weight is not shared.stack.blocks[2].feedforward.up_proj.weight
    spread = float(shared.stack.blocks[0].attention.out_proj.weight.detach().std())
    deep = model(5, None).stack.blocks[0].attention.out_proj.weight.detach()
    assert spread == pytest.approx(float(deep.std()), rel=0.3)
    with pytest.raises(InputError, match=r"train\.adapter changes single layers"):
        check_unshared(shared, "train.adapter")
    check_unshared(plain, "train.adapter")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"n_distinct_layers": 4}, "n_distinct_layers = 4 is more than the 3 layers"),
        ({"residual": PreNormConfig(first=False)}, "the first lacks a norm"),
        (
            {"layer_pattern": (LayerConfig(), LayerConfig(norm=RMSNormConfig()))},
            "layer 1 of the stack shares the weights of layer 0",
        ),
    ],
)
def test_layers_of_different_parts_cannot_share(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        EncoderConfig(**{"d_model": 8, "n_layers": 3, "n_distinct_layers": 1, **changes})
