"""All position encodings: state, order, tiles, caches, padding, dtypes, lengths."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import POSITION_RECORDS, build_context, check_records, context, named, started
from tests.devices import NothingFromTheCPU
from tests.nn.positions.places import EVERYTHING, PROJECTIONS, at, scores
from torch import Tensor
from torch.testing import assert_close

from addnorm.checking.stand_in import THERE, moved, stand_in_device
from addnorm.nn.context import Context
from addnorm.nn.masks import Causal, Full
from addnorm.nn.positions import (
    AxialRotaryConfig,
    DynamicScaling,
    LearnedConfig,
    LearnedT5Config,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NoPosition,
    NoPositionConfig,
    NTKScaling,
    Position,
    PositionConfig,
    RotaryConfig,
    RoundedALiBiConfig,
    T5BiasConfig,
    YaRNScaling,
)
from addnorm.nn.positions.position import PairBias, on_device_of
from addnorm.nn.positions.scaling import LengthScaling

SCHEMES = [
    *named(POSITION_RECORDS),
    *(
        pytest.param(RotaryConfig(scaling=scaling), id=f"rotary-{scaling.kind}")
        for scaling in (
            LinearScaling(factor=2.0),
            NTKScaling(factor=2.0),
            DynamicScaling(factor=2.0, original_max_len=4),
            YaRNScaling(factor=2.0, original_max_len=4),
            Llama3Scaling(original_max_len=4),
            LongRoPEScaling(short=(1.0,), long=(2.0,), original_max_len=4),
        )
    ),
    pytest.param(RotaryConfig(layout="interleaved", fraction=0.5), id="rotary-interleaved-half"),
    pytest.param(T5BiasConfig(buckets=4, max_distance=5), id="t5-4"),
]
CONFIGS: list[Any] = [parameter.values[0] for parameter in SCHEMES]


class Model(torch.nn.Module):
    """Embeddings and one layer's scores: what a scheme can act on, and nothing else."""

    def __init__(self, config: PositionConfig, *, causal: bool = True, max_len: int = 16) -> None:
        super().__init__()
        self.position = config.build(build_context(8, 2, causal=causal, max_len=max_len))
        self.layer = self.position.in_layer(0)
        started(self).double()

    def heads(self, x: Tensor, ctx: Context) -> Tensor:
        return self.position.embed(x, ctx).unflatten(-1, (2, 4)).transpose(1, 2)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        heads = self.heads(x, ctx)
        return scores(self.layer, heads, heads, ctx)


def test_every_position_has_a_record() -> None:
    tested_alone = [AxialRotaryConfig(), RoundedALiBiConfig()]  # each in a file of its own
    check_records(PositionConfig, [*POSITION_RECORDS, *tested_alone])
    check_records(PositionConfig, [*CONFIGS, *tested_alone])


@pytest.mark.parametrize("config", SCHEMES)
def test_only_no_position_is_blind_to_order(config: PositionConfig) -> None:
    """science.md §1: without positions `Attn(P x) = P Attn(x)`, pooled the same; else neither."""
    model, ctx = Model(config, causal=False), context(1, 6)
    x, order = torch.randn(1, 6, 8).double(), torch.tensor([3, 0, 5, 1, 4, 2])

    def read(x: Tensor) -> Tensor:
        return model(x, ctx).softmax(-1) @ x[:, None]

    blind = torch.allclose(read(x[:, order]), read(x)[:, :, order], rtol=0, atol=1e-10)
    assert blind == isinstance(config, NoPositionConfig)
    pooled = torch.allclose(read(x[:, order]).mean(2), read(x).mean(2), rtol=0, atol=1e-10)
    assert pooled == blind


@given(
    config=st.sampled_from(CONFIGS),
    split=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    pad=st.integers(0, 3),
)
@settings(max_examples=60)
def test_pieces_after_a_cache_are_the_rows_of_the_whole(
    config: PositionConfig, split: list[int], pad: int
) -> None:
    """Keys are rotated when they come and kept; a piece's scores are its rows of the whole's."""
    model, seq = Model(config), sum(split)
    grows = isinstance(config, RotaryConfig) and isinstance(config.scaling, LengthScaling)
    x = torch.randn(2, seq, 8).double()
    valid = torch.ones(2, seq).bool()
    valid[0, : min(pad, seq - 1)] = False
    whole = model(x, context(2, seq, valid=valid))
    kept, past = torch.zeros(2, 2, 0, 4).double(), 0
    for new in split:
        end = past + new
        ctx = context(2, new, valid=valid[:, :end], past=past)
        heads = model.heads(x[:, past:end], ctx)
        q, k = model.layer.rotate(heads, heads, ctx)
        kept, rows = torch.cat((kept, k), dim=2), slice(past, end)
        past = end
        if grows and end < seq:  # shorter than the whole, so at other frequencies
            continue
        q, k = model.layer.rotate_all(q, kept, ctx)
        bias, got = model.layer.content_bias(q, k, ctx, PROJECTIONS), q @ k.mT / 2
        got = got if bias is None else got + bias(EVERYTHING, EVERYTHING)
        assert_close(got, whole[:, :, rows, :end], rtol=0, atol=1e-10)


@pytest.mark.parametrize("config", SCHEMES)
def test_padding_and_other_rows_change_nothing(config: PositionConfig) -> None:
    """A text of 3 is the same alone, padded on the left, on the right, and beside a longer one."""
    model, real = Model(config), torch.randn(1, 3, 8).double()
    x = torch.randn(3, 6, 8).double()
    valid = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()
    x[0, 3:] = x[1, :3] = real[0]
    alone = model(real, context(1, 3))
    among = model(x, context(3, 6, valid=valid))
    assert_close(among[:1, :, 3:, 3:], alone, rtol=0, atol=1e-10)
    assert_close(among[1:2, :, :3, :3], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("config", SCHEMES)
def test_packed_texts_are_as_if_alone(config: PositionConfig) -> None:
    model, x = Model(config), torch.randn(1, 4, 8).double()
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    packed = model(x.repeat(1, 2, 1), context(1, 8, segments=segments))
    alone = model(x, context(1, 4))
    assert_close(packed[:, :, :4, :4], alone, rtol=0, atol=1e-10)
    assert_close(packed[:, :, 4:, 4:], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("config", SCHEMES)
def test_tiles_are_parts_of_the_whole(config: PositionConfig) -> None:
    model = Model(config)
    ctx = context(
        2, 5, valid=torch.tensor([[0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]).bool(), past=2
    )
    q = torch.randn(2, 2, 5, 4).double()
    bias = model.layer.content_bias(q, torch.randn(2, 2, 7, 4).double(), ctx, PROJECTIONS)
    if bias is None:
        return
    whole = bias(EVERYTHING, EVERYTHING)
    assert whole.shape[1:] == (2, 5, 7)
    for rows, keys in (
        (slice(0, 2), slice(3, 7)),
        (slice(4, 5), slice(0, 1)),
        (slice(1, 9), slice(2, 3)),
    ):
        assert_close(bias(rows, keys), whole[:, :, rows, keys], rtol=0, atol=1e-12)
    if isinstance(bias, PairBias):
        row, head, i, j = torch.meshgrid(*(torch.arange(n) for n in (2, 2, 5, 7)), indexing="ij")
        assert_close(bias.at(row, head, i, j), whole.expand(2, -1, -1, -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", SCHEMES)
def test_positions_follow_the_type_of_the_model(config: PositionConfig) -> None:
    """A bias alone may be wider than the queries."""
    model, ctx = Model(config).to(torch.bfloat16), context(1, 3)
    x, q = torch.randn(1, 3, 8).bfloat16(), torch.randn(1, 2, 3, 4).bfloat16()
    assert model.position.embed(x, ctx).dtype == torch.bfloat16
    assert [y.dtype for y in model.layer.rotate(q, q, ctx)] == [torch.bfloat16] * 2
    assert [y.dtype for y in model.layer.rotate_all(q, q, ctx)] == [torch.bfloat16] * 2
    bias = model.layer.content_bias(q, q, ctx, PROJECTIONS)
    assert bias is None or bias(EVERYTHING, EVERYTHING).dtype in (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("config", SCHEMES)
def test_any_length_or_a_clear_error(config: PositionConfig) -> None:
    """science.md §1: all but learned run at any length; learned past `max_len` is refused."""
    model, x = Model(config), torch.randn(1, 2, 8).double()
    if isinstance(config, LearnedConfig | LearnedT5Config):
        assert model.position.max_len == 16
        with pytest.raises(ValueError, match="position 16 is past the learned table"):
            model(torch.zeros(1, 17, 8).double(), context(1, 17))
        return
    assert model.position.max_len is model.layer.max_len is None
    assert model(x, at([131_070, 131_071])).isfinite().all()


@pytest.mark.parametrize("config", SCHEMES)
def test_constants_outlive_the_meta_device(config: PositionConfig) -> None:
    """A model may be laid out on `meta` and filled later; what is no weight is right at once."""
    with torch.device("meta"):
        later = config.build(build_context(8, 2)).in_layer(0)
    later = later.to_empty(device="cpu").double()
    now: Position = Model(config).layer
    later.load_state_dict(now.state_dict())
    q, ctx = torch.randn(1, 2, 3, 4).double(), context(1, 3)
    assert torch.equal(scores(later, q, q, ctx), scores(now, q, q, ctx))


@pytest.mark.gpu
@pytest.mark.parametrize("config", SCHEMES)
def test_a_gpu_gives_the_same(config: PositionConfig) -> None:
    model, x, ctx = Model(config), torch.randn(2, 3, 8).double(), context(2, 3)
    expected = model(x, ctx)
    there = replace(ctx, kv_positions=ctx.kv_positions.cuda())
    assert_close(model.cuda()(x.cuda(), there).cpu(), expected, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("config", SCHEMES)
def test_constants_are_where_the_module_is(config: PositionConfig) -> None:
    """They are copied once, when the module is moved, not in each step."""
    with stand_in_device():
        model = moved(Model(config))
        tokens = torch.zeros(2, 3, dtype=torch.long, device=THERE)
        ctx = Context.over(tokens, Causal()).restrict(Full())
        x = torch.zeros(2, 3, 8, device=THERE, dtype=torch.float64)
        with NothingFromTheCPU():
            assert model(x, ctx).device == THERE


@pytest.mark.parametrize("config", SCHEMES)
def test_constants_keep_their_type(config: PositionConfig) -> None:
    model = Model(config)
    before = [vars(module).copy() for module in model.modules()]
    model.to("meta", torch.bfloat16)
    for module, attributes in zip(model.modules(), before, strict=True):
        for name, value in attributes.items():
            if isinstance(value, Tensor):
                assert getattr(module, name).dtype == torch.float64
                assert torch.equal(getattr(module, name), value)


def test_constants_follow_to_a_device() -> None:
    constant = torch.ones(2, dtype=torch.float64)
    assert on_device_of(lambda x: x.bfloat16(), constant) is constant
    assert on_device_of(lambda x: x.to("meta"), constant) is constant


def test_acts_nowhere() -> None:
    position, ctx = NoPositionConfig().build(build_context(4, 2)), context(1, 3)
    x, q, k = torch.randn(1, 3, 4), torch.randn(1, 2, 3, 2), torch.randn(1, 2, 3, 2)
    assert isinstance(position, NoPosition)
    assert position.embed(x, ctx) is x
    assert position.rotate(q, k, ctx) == (q, k)
    assert position.rotate_all(q, k, ctx) == (q, k)
    assert position.score_bias(q, ctx) is None
    assert position.in_layer(0) is position
    assert position.max_len is None
