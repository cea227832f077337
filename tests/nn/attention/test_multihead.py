"""Multi-head attention: the paper's formula in float64, and shared key/value heads."""

import dataclasses
import math

import pytest
import torch
from tests.contracts import (
    CORE_RECORDS,
    POSITION_RECORDS,
    SOFTMAX_CORES,
    build_context,
    check_config,
    check_gradients,
    check_module,
    combined,
    context,
    named,
    started,
)
from torch import Tensor
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.nn.attention import (
    AdditiveConfig,
    AttentionConfig,
    CoreConfig,
    CrossAttention,
    DifferentialCoreConfig,
    FullPatternConfig,
    HeadShape,
    SDPACoreConfig,
    SelfAttention,
    WindowPatternConfig,
)
from addnorm.nn.cache import CrossCache, SelfCache
from addnorm.nn.context import Context
from addnorm.nn.masks import Causal, Padding
from addnorm.nn.norms import BatchNormConfig, LayerNormConfig, RMSNormConfig
from addnorm.nn.positions import (
    BuildContext,
    DynamicScaling,
    NoPosition,
    Position,
    PositionConfig,
    RotaryConfig,
)
from addnorm.nn.positions.position import Bias

VALID = torch.tensor([[True, True, True, False], [False, True, True, True]])
CONFIGS = [
    AttentionConfig(n_heads=2),
    AttentionConfig(n_heads=4, n_kv_heads=2, bias=False),
    AttentionConfig(n_heads=4, n_kv_heads=1, qk_norm=RMSNormConfig()),
    AttentionConfig(
        n_heads=3, d_head=6, qk_norm=LayerNormConfig(), pattern=WindowPatternConfig(size=2)
    ),
]
NAMES = ["mha", "gqa", "mqa", "wide"]
OTHER_NORMS = [
    AttentionConfig(n_heads=4, n_kv_heads=2, qk_norm=RMSNormConfig(), qk_norm_over="heads"),
    AttentionConfig(
        n_heads=2, qk_norm=RMSNormConfig(), qk_norm_after="rotation", v_norm=LayerNormConfig()
    ),
]


def rotary(config: AttentionConfig = CONFIGS[0]) -> Position:
    """Rotary positions for heads of a width of 8 features in all."""
    d_head = config.heads(8).d_head
    return RotaryConfig().build(build_context(d_head, 1))


def paper(m: SelfAttention | CrossAttention, x: Tensor, y: Tensor, allowed: Tensor) -> Tensor:
    """Vaswani et al. 2017, §3.2.2: head by head, then concatenated."""
    q, k, v = m.q_proj(x), m.k_proj(y), m.v_proj(y)
    d = m.d_head
    group = q.shape[-1] // k.shape[-1]
    heads = []
    for h in range(q.shape[-1] // d):
        own, shared = slice(h * d, h * d + d), slice(h // group * d, h // group * d + d)
        scores = m.q_norm(q[..., own]) @ m.k_norm(k[..., shared]).mT / math.sqrt(d)
        weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
        heads.append(weights.masked_fill(~allowed, 0.0) @ v[..., shared])
    return torch.cat(heads, -1) @ m.out_proj.weight.T + (
        0 if m.out_proj.bias is None else m.out_proj.bias
    )


@pytest.mark.parametrize(
    "config", CONFIGS + OTHER_NORMS, ids=[*NAMES, "norm_over_heads", "norm_after_rotation"]
)
def test_contract(config: AttentionConfig) -> None:
    check_config(config, AttentionConfig)
    x, memory = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    check_module(
        lambda: config.build(8, rotary(config), True),
        lambda m, dtype: m(x.to(dtype), context(2, 4, Causal() & config.pattern.build())),
    )
    check_module(
        lambda: config.build_cross(8),
        lambda m, dtype: m(x.to(dtype), context(2, 4).attending(memory.to(dtype))),
    )


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
def test_equals_the_formula(config: AttentionConfig, core: CoreConfig) -> None:
    config = dataclasses.replace(config, core=core)
    x, memory = torch.randn(2, 4, 8).double(), torch.randn(2, 5, 8).double()
    own = started(config.build(8, NoPosition(), True)).double()
    mask = Causal() & Padding(VALID) & config.pattern.build()
    allowed = mask.dense(torch.arange(4), torch.arange(4), 2)[:, 0]
    # A row with nothing to see gives zeros, hence the bias of the output alone.
    assert_close(
        own(x, context(2, 4, mask)), paper(own, x, x, allowed).nan_to_num(), rtol=0, atol=1e-12
    )
    cross = started(config.build_cross(8)).double()
    valid = torch.tensor([[True, True, False, False, False], [False, False, True, True, True]])
    got = cross(x, context(2, 4).attending(memory, valid))
    assert_close(got, paper(cross, x, memory, valid[:, None].expand(2, 4, 5)), rtol=0, atol=1e-12)


def test_first_projection() -> None:
    """`torch.manual_seed(168)`, `torch.rand(3, 3)`: `[0.25, 0.87, 0.66] W`."""
    attention = AttentionConfig(n_heads=1, bias=False).build(3, NoPosition(), True)
    torch.manual_seed(168)
    with torch.no_grad():
        attention.q_proj.weight.copy_(torch.rand(3, 3).T)
    q = attention.queries(torch.tensor([[[0.25, 0.87, 0.66]]]))
    assert_close(q[0, 0], torch.tensor([[0.9990, 0.8667, 0.5560]]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
def test_a_rotation_turns_queries_and_keys_alike(core: CoreConfig) -> None:
    """Moving the whole text changes nothing; moving a part of it does."""
    attention = AttentionConfig(n_heads=2, core=core).build(8, rotary(), True).double()
    x, ctx = torch.randn(1, 5, 8).double(), context(1, 5)
    here = attention(x, ctx)
    moved = attention(x, dataclasses.replace(ctx, kv_positions=ctx.positions + 37))
    torn = attention(
        x, dataclasses.replace(ctx, kv_positions=ctx.positions + torch.tensor([0, 0, 1, 1, 1]))
    )
    assert_close(moved, here, rtol=0, atol=1e-10)
    assert not torch.allclose(torn, here, rtol=0, atol=1e-4)


class Distance(Position):
    """`-|i - j|` added to the scores of every head."""

    def score_bias(self, q: Tensor, ctx: Context) -> Bias:
        def tile(rows: slice, keys: slice) -> Tensor:
            far = (ctx.q_slots[rows, None] - ctx.kv_slots[keys]).abs()
            return -far.to(q.dtype).expand(1, q.shape[1], -1, -1)

        return tile


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
def test_a_score_bias_reaches_the_scores_cached_or_not(core: CoreConfig) -> None:
    config = AttentionConfig(n_heads=2, core=core)
    attention, x, ctx = (
        config.build(8, Distance(), True).double(),
        torch.randn(2, 5, 8).double(),
        context(2, 5),
    )
    q, (k, v) = attention.queries(x), attention.keys_values(x)
    slots = torch.arange(5)
    scores = q @ k.mT / math.sqrt(4) - (slots[:, None] - slots).abs()
    ahead = ~torch.ones(5, 5).tril().bool()
    expected = attention.merge(scores.masked_fill(ahead, -math.inf).softmax(-1) @ v)
    assert_close(attention(x, ctx), expected, rtol=0, atol=1e-12)
    cache = SelfCache()
    parts = [
        attention(x[:, :3], context(2, 3), cache),
        attention(x[:, 3:], context(2, 2, past=3), cache),
    ]
    assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
def test_grouped_heads_equal_repeated_weights(kv_heads: int, core: CoreConfig) -> None:
    grouped = started(
        AttentionConfig(n_heads=4, n_kv_heads=kv_heads, core=core).build(16, rotary(), True)
    )
    full = AttentionConfig(n_heads=4, core=core).build(16, rotary(), True)
    weights = grouped.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        heads = weights[name].unflatten(0, (kv_heads, 4))
        weights[name] = heads.repeat_interleave(4 // kv_heads, dim=0).flatten(0, 1)
    full.load_state_dict(weights, strict=True)
    x, ctx = torch.randn(2, 5, 16), context(2, 5)
    assert_close(grouped(x, ctx), full(x, ctx), rtol=0, atol=1e-5)
    if kv_heads == 4:
        assert torch.equal(grouped(x, ctx), full(x, ctx))


@pytest.mark.parametrize(
    ("position", "config"),
    combined(
        named(POSITION_RECORDS),
        [pytest.param(config, id=name) for config, name in zip(CONFIGS, NAMES, strict=True)],
    ),
)
def test_gradients(config: AttentionConfig, position: PositionConfig) -> None:
    for core in SOFTMAX_CORES:
        config = dataclasses.replace(config, core=core)
        d_model = 4 if config.d_head or config.n_heads == 2 else 8
        if getattr(position, "fraction", 1.0) < 1.0:
            config = dataclasses.replace(config, d_head=4)  # half of a head is a pair
        heads = config.heads(d_model)
        place = BuildContext(
            d_model=d_model,
            max_len=8,
            n_heads=heads.n_heads,
            d_head=heads.d_head,
            causal=True,
            scale=heads.d_head**-0.5,
        )
        attention = config.build(d_model, position.build(place).in_layer(0), True)
        x = torch.randn(1, 3, attention.q_proj.in_features)
        ctx = context(1, 3, Causal() & config.pattern.build())
        check_gradients(attention, lambda m, x, ctx=ctx: m(x, ctx), x, twice=core.kind == "eager")


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
def test_gradients_across(core: CoreConfig) -> None:
    valid = torch.tensor([[True, False], [False, False]])
    check_gradients(
        AttentionConfig(n_heads=2, n_kv_heads=1, core=core).build_cross(4),
        lambda m, x, memory: m(x, context(2, 3).attending(memory, valid)),
        torch.randn(2, 3, 4),
        torch.randn(2, 2, 4),
        twice=core.kind == "eager",
    )


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
def test_a_row_with_nothing_to_see(core: CoreConfig) -> None:
    attention = started(AttentionConfig(n_heads=2, core=core).build(8, rotary(), True))
    x = torch.randn(2, 3, 8, requires_grad=True)
    valid = torch.tensor([[False, True, True], [False, False, False]])
    out = attention(x, context(2, 3, valid=valid))
    assert torch.equal(out[0, 0], attention.out_proj.bias)
    assert torch.equal(out[1], attention.out_proj.bias.expand(3, 8))
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad[1], torch.zeros(3, 8))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in attention.parameters())


@pytest.mark.parametrize("window", [None, 1, 3])
def test_chunks_through_a_cache(window: int | None) -> None:
    pattern = FullPatternConfig() if window is None else WindowPatternConfig(size=window)
    config = AttentionConfig(n_heads=2, pattern=pattern)
    attention, x = config.build(8, rotary(config), True), torch.randn(2, 7, 8)
    cache = attention.new_cache()
    mask = Causal() & config.pattern.build()
    chunks = []
    for start, end in ((0, 3), (3, 4), (4, 7)):
        new = torch.zeros(2, end - start, dtype=torch.long)
        ctx = Context.over(new, Causal(), past=start).restrict(pattern.build())
        chunks.append(attention(x[:, start:end], ctx, cache))
    assert_close(torch.cat(chunks, 1), attention(x, context(2, 7, mask)), rtol=0, atol=1e-6)


def test_cross_attention_reads_the_memory_once() -> None:
    cross, cache = AttentionConfig(n_heads=2).build_cross(8), CrossCache()
    x, ctx = torch.randn(2, 1, 8), context(2, 1).attending(torch.randn(2, 5, 8))
    other = ctx.attending(torch.randn(2, 5, 8))
    first = cross(x, ctx, cache)
    assert torch.equal(cross(x, other, cache), first)
    assert not torch.allclose(cross(x, other), first)


@pytest.mark.parametrize("valid", [None, torch.tensor([[True] * 5, [True, True] + [False] * 3])])
@pytest.mark.parametrize("seq", [1, 3])
def test_rows_that_share_a_memory_see_what_each_would_see_alone(
    seq: int, valid: Tensor | None
) -> None:
    attention = AttentionConfig(n_heads=4, n_kv_heads=2).build_cross(16)
    x, memory = torch.randn(6, seq, 16), torch.randn(2, 5, 16)
    ctx = Context.over(x, Causal())
    shared = attention(x, ctx.attending(memory, valid))
    each = None if valid is None else valid.repeat_interleave(3, dim=0)
    alone = attention(x, ctx.attending(memory.repeat_interleave(3, dim=0), each))
    assert_close(shared, alone)


@pytest.mark.parametrize("valid", [None, torch.ones(0, 5, dtype=torch.bool)])
def test_no_rows_look_at_no_memory(valid: Tensor | None) -> None:
    attention, x = AttentionConfig(n_heads=4).build_cross(16), torch.randn(0, 3, 16)
    ctx = Context.over(x, Causal()).attending(torch.randn(0, 5, 16), valid)
    assert attention(x, ctx).shape == (0, 3, 16)


def test_cross_attention_without_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="memory"):
        AttentionConfig(n_heads=2).build_cross(8)(torch.randn(1, 2, 8), context(1, 2))


def test_heads() -> None:
    assert AttentionConfig(n_heads=8).heads(64) == HeadShape(8, 8, 8)
    assert AttentionConfig(n_heads=8, n_kv_heads=2).heads(64) == HeadShape(8, 2, 8)
    assert AttentionConfig(n_heads=3, d_head=5).heads(64) == HeadShape(3, 3, 5)
    with pytest.raises(ValueError, match=r"d_model = 10 .* n_heads = 4.* \[1, 2, 5, 10\]"):
        AttentionConfig(n_heads=4).heads(10)
    with pytest.raises(ValueError, match=r"n_heads = 4 .* n_kv_heads = 3.* \[1, 2, 4\]"):
        AttentionConfig(n_heads=4, n_kv_heads=3).heads(16)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"additive.*eager"):
        AttentionConfig(score=AdditiveConfig(), core=SDPACoreConfig())
    for name in ("qk_norm", "v_norm"):
        with pytest.raises(ValueError, match=name):
            AttentionConfig(**{name: BatchNormConfig()})
    with pytest.raises(ValueError, match='qk_norm_over = "heads"'):
        AttentionConfig(qk_norm_over="heads", qk_norm_after="rotation")
    longer = RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_len=4))
    config = AttentionConfig(n_heads=2, qk_norm=RMSNormConfig(), qk_norm_after="rotation")
    with pytest.raises(InputError, match="another scaling than dynamic"):
        config.build(8, longer.build(build_context(4, 2)), True)


@pytest.mark.parametrize("field", ["n_heads", "n_kv_heads", "d_head"])
@pytest.mark.parametrize("value", [0, -1])
def test_impossible_values_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=field):
        AttentionConfig(**{field: value})


def test_values_of_keys_have_their_weights_and_a_norm_of_their_own() -> None:
    """Keys and values are one projection; the norm of values has no gain."""
    config = AttentionConfig(
        n_heads=2, values="keys", qk_norm=RMSNormConfig(), v_norm=RMSNormConfig(gain="none")
    )
    module = started(config.build(8, NoPosition(), True)).double()
    names = {name for name, _ in module.named_parameters()}
    assert {"k_proj.weight", "k_proj.bias"} <= names
    assert not {"v_proj.weight", "v_proj.bias"} & names
    y = torch.randn(2, 3, 8).double()
    raw = module.split(module.k_proj(y))
    k, v = module.keys_values(y)
    assert_close(v, raw / (raw.square().mean(-1, keepdim=True) + module.v_norm.eps).sqrt())
    assert_close(k, module.k_norm(raw))
    with pytest.raises(ValueError, match="values changes a layer's own values"):
        dataclasses.replace(config, kv_layers_back=1)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("core", named(CORE_RECORDS))
def test_each_query_head_is_given_its_own_copy_of_the_keys_it_reads(
    core: CoreConfig, kv_heads: int
) -> None:
    if isinstance(core, DifferentialCoreConfig) and kv_heads == 1:
        return  # it pairs the heads of the keys
    config = AttentionConfig(n_heads=4, n_kv_heads=kv_heads, d_head=3, core=core)
    attention = started(config.build_cross(12))
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 5, 3) for n in (4, kv_heads, kv_heads))
    copies = (attention.for_query_heads(y, 4) for y in (k, v))
    mask = context(2, 5).mask
    assert_close(attention.core(q, k, v, mask), attention.core(q, *copies, mask))
