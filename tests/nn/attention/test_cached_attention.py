"""The operator of paged attention computes the definition, and reads no key of other rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from addnorm.compiler import has_compiler
from addnorm.kernels.build import load_operator
from addnorm.kernels.cached_attention import OPERATOR
from addnorm.models import DecoderConfig
from addnorm.nn.attention import (
    AttentionConfig,
    BilinearConfig,
    DifferentialCoreConfig,
    EagerCoreConfig,
    FlexCoreConfig,
    ScaledDotConfig,
    SinkCoreConfig,
)
from addnorm.nn.attention.cached_attention import (
    cached_attention,
    operator_scores,
    paged_attention,
    self_score,
)
from addnorm.nn.attention.core import EagerCore
from addnorm.nn.attention.kernels import EVERYTHING, allowed_of, shared
from addnorm.nn.attention.multihead import SelfAttention
from addnorm.nn.attention.scores import AdditiveConfig, DotProduct
from addnorm.nn.masks import Dense, Evaluated, Full, Padding, Tiled
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.positions.position import Bias
from addnorm.nn.positions.scaling import DynamicScaling

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


@pytest.fixture(autouse=True)
def _operator() -> None:
    load_operator(OPERATOR)


def definition(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    mask: Evaluated,
    bias: Bias | None,
    score: DotProduct,
    sinks: Tensor | None,
) -> Tensor:
    """Keys and values gathered, in float64, by the eager core, times the factor of the sinks."""
    k, v = (buffer.double()[slots].transpose(1, 2) for buffer in (keys, values))
    weight = None if score.weight is None else score.weight.detach().double()
    wide = DotProduct(score.scale, weight, softcap=score.softcap)
    plain = EagerCore(wide)(q.double(), k, v, mask, bias)
    if sinks is None:
        return plain
    scores = wide(q.double(), shared(k, q.shape[1]))
    scores = scores if bias is None else scores + bias(EVERYTHING, EVERYTHING)
    allowed = allowed_of(mask, q, k)
    scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
    return plain * torch.sigmoid(scores.logsumexp(-1, keepdim=True) - sinks[:, None, None])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor, Evaluated, Bias | None]:
    """Rows of any lengths in pages of any size, heads of any number and width, masks and biases."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    d_head, d_value = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    size = draw(st.integers(1, 32))
    lengths = draw(st.lists(st.integers(0, 70), min_size=1, max_size=5))
    most = max(1, *lengths)
    dtype = draw(st.sampled_from([*TOLERANCE]))
    kept = draw(st.sampled_from([dtype, torch.bfloat16]))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    pages = torch.randperm(sum(-(-n // size) for n in lengths)).tolist()
    padding = len(pages) * size
    slots = torch.full((len(lengths), most), padding)
    for row, n in enumerate(lengths):
        table = torch.tensor([pages.pop() for _ in range(-(-n // size))], dtype=torch.long)
        number = torch.arange(n)
        slots[row, most - n :] = table[number // size] * size + number % size
    heads = kv_heads * group
    q = torch.randn(len(lengths), heads, 1, d_head, dtype=dtype)
    keys = torch.randn(padding + 1, kv_heads, d_head, dtype=kept)
    values = torch.randn(padding + 1, kv_heads, d_value, dtype=kept)
    keys[padding] = values[padding] = torch.nan  # is never read
    valid = torch.arange(most) >= most - torch.tensor(lengths)[:, None]
    others = torch.rand(len(lengths), 1, 1, most) < draw(st.sampled_from([0.5, 1.0]))
    mask: Evaluated = Dense(valid[:, None, None] & others)
    if min(lengths) == most and draw(st.booleans()):
        mask = Full()
    elif draw(st.booleans()):
        mask = Tiled(Padding(valid), torch.tensor([most - 1]), torch.arange(most), len(lengths))
    if not draw(st.booleans()):
        return q, keys, values, slots, mask, None
    table = torch.randn(draw(st.sampled_from([1, len(lengths)])), heads, 1, most)
    return q, keys, values, slots, mask, lambda rows, columns: table[:, :, rows, columns]


@given(
    case=cases(),
    softcap=st.sampled_from([None, 0.5, 30.0]),
    scale=st.floats(0.05, 1.0),
    bilinear=st.booleans(),
    sink=st.sampled_from([None, -3.0, 5.0]),
)
@settings(max_examples=60, deadline=None)
def test_it_computes_the_definition(
    case: tuple[Tensor, Tensor, Tensor, Tensor, Evaluated, Bias | None],
    softcap: float | None,
    scale: float,
    bilinear: bool,
    sink: float | None,
) -> None:
    q, keys, values, slots, mask, bias = case
    heads, width = q.shape[1], q.shape[3]
    weight = torch.randn(heads, width, width) / width if bilinear and q.dtype.itemsize > 2 else None
    score = DotProduct(scale, weight, softcap=softcap)
    clean = [buffer.nan_to_num(0.0) for buffer in (keys, values)]
    sinks = None if sink is None else sink + torch.arange(heads) / heads
    expected = definition(q, clean[0], clean[1], slots, mask, bias, score, sinks)
    got = paged_attention(q, keys, values, slots, mask, bias, score, sinks)
    assert got.dtype is q.dtype
    size = TOLERANCE[q.dtype] * (1 + expected.abs().max().item())
    assert (got.double() - expected).abs().max() <= size * (1 if scale < 0.5 else 2)


@given(
    sizes=st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)),
    columns=st.tuples(st.integers(0, 40), st.integers(0, 9)),
    widths=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    dtypes=st.sampled_from(
        [(torch.float32,) * 2, (torch.float32, torch.bfloat16), (torch.bfloat16,) * 2]
    ),
    by_token=st.booleans(),
    masked=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=100, deadline=None)
def test_several_queries_over_the_buffers_of_their_texts(
    sizes: tuple[int, int, int, int],
    columns: tuple[int, int],
    widths: tuple[int, int],
    dtypes: tuple[torch.dtype, torch.dtype],
    by_token: bool,
    masked: bool,
    biased: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    (dtype, kept), (texts, queries, kv_heads, group) = dtypes, sizes
    heads, n, slots = kv_heads * group, columns[0], sum(columns)
    q = torch.randn(texts, heads, queries, widths[0], dtype=dtype)

    def buffer(width: int) -> Tensor:
        """What lies past the columns is NaN, and is never read."""
        shape = (texts, slots, kv_heads) if by_token else (texts, kv_heads, slots)
        x = torch.randn(*shape, width, dtype=kept)
        x = x.transpose(1, 2) if by_token else x
        x[:, :, n:] = torch.nan
        return x[:, :, :n]

    keys, values = map(buffer, widths)
    mask = Dense(torch.rand(texts, 1, queries, n) < 0.6) if masked else Full()
    table = torch.randn(1, heads, queries, n)
    bias: Bias | None = (lambda rows, cols: table[:, :, rows, cols]) if biased else None
    score = DotProduct(0.3)
    got = cached_attention(q, keys, values, mask, bias, score)
    expected = EagerCore(score)(q.double(), keys.double(), values.double(), mask, bias)
    assert got.shape == expected.shape
    assert got.dtype is dtype
    if expected.numel():
        size = TOLERANCE[dtype] * (1 + expected.abs().max().item())
        assert (got.double() - expected).abs().max() <= size


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("texts", [1, 2, 5])
def test_a_query_is_the_same_alone_and_with_any_number_of_threads(
    texts: int, by_token: bool
) -> None:
    torch.manual_seed(0)
    q, buffers = torch.randn(texts, 10, 3, 33), torch.randn(2, texts, 5, 50, 33)
    if by_token:
        buffers = buffers.transpose(2, 3).contiguous().transpose(2, 3)
    allowed = (torch.rand(texts, 1, 1, 50) < 0.5).expand(-1, -1, 3, -1)
    score = DotProduct(0.2)
    before = torch.get_num_threads()
    alone = [
        cached_attention(
            q[[i], :, j : j + 1],
            buffers[0, [i]],
            buffers[1, [i]],
            Dense(allowed[[i], :, j : j + 1]),
            None,
            score,
        )
        for i in range(texts)
        for j in range(3)
    ]
    expected = torch.cat(alone).view(texts, 3, 10, 33).transpose(1, 2)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            got = cached_attention(q, *buffers, Dense(allowed), None, score)
        finally:
            torch.set_num_threads(before)
        assert torch.equal(got, expected)


def test_a_key_that_only_another_query_may_attend_to_has_no_weight() -> None:
    values = torch.tensor([1.0, 3e38])[None, None, :, None]
    allowed = torch.tensor([[True, False], [True, True], [False, False]])
    q, keys = torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 2, 1)
    mask, sinks = Dense(allowed[None, None]), torch.zeros(1)
    for sink, expected in ((None, [1.0, 1.5e38, 0.0]), (sinks, [0.5, 1e38, 0.0])):
        got = cached_attention(q, keys, values, mask, None, DotProduct(1.0), sink)
        torch.testing.assert_close(got[0, 0, :, 0], torch.tensor(expected))


def test_the_scores_are_those_of_attention_on_a_processor() -> None:
    [mixer, *_] = (
        DecoderConfig(d_model=8, attention=AttentionConfig(n_heads=2)).build(9).stack.mixers
    )
    keys = torch.zeros(1, 2, 3, 4)
    assert isinstance(mixer, SelfAttention)
    assert operator_scores([mixer], [keys]) == [mixer.core.score]
    assert operator_scores([mixer, object()], [None, keys]) == [None, None]
    assert operator_scores([mixer], [keys.double()]) == [None]
    assert operator_scores([mixer], [keys.to("meta")]) == [None]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 19])
def test_a_row_is_the_same_alone_and_with_any_number_of_threads(rows: int, threads: int) -> None:
    torch.manual_seed(0)
    q, buffers = torch.randn(rows, 10, 1, 33), torch.randn(2, 300, 5, 33)
    slots = torch.randint(0, 300, (rows, 50))
    score = DotProduct(0.2)
    before = torch.get_num_threads()
    expected = [
        paged_attention(q[[i]], buffers[0], buffers[1], slots[[i]], Full(), None, score)
        for i in range(rows)
    ]
    torch.set_num_threads(threads)
    try:
        got = paged_attention(q, buffers[0], buffers[1], slots, Full(), None, score)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got, torch.cat(expected))


def test_large_scores_and_nan() -> None:
    """The softmax subtracts the largest score; a NaN comes through, for the caller to see."""
    q, keys = torch.full((1, 1, 1, 4), 50.0), torch.tensor([[[50.0] * 4], [[-50.0] * 4]])
    slots = torch.tensor([[0, 1]])
    got = paged_attention(q, keys, keys, slots, Full(), None, DotProduct(1.0))
    assert torch.equal(got, torch.full((1, 1, 1, 4), 50.0))
    keys[1] = torch.nan
    assert paged_attention(q, keys, keys, slots, Full(), None, DotProduct(1.0)).isnan().all()


def test_no_row_and_no_column() -> None:
    q, keys = torch.randn(0, 2, 1, 4), torch.randn(3, 1, 4)
    slots = torch.zeros(0, 5, dtype=torch.long)
    assert paged_attention(q, keys, keys, slots, Full(), None, DotProduct(1.0)).shape == q.shape
    none = torch.zeros(2, 0, dtype=torch.long)
    q = torch.randn(2, 2, 1, 4)
    got = paged_attention(q, keys, keys, none, Full(), None, DotProduct(1.0))
    assert torch.equal(got, torch.zeros_like(q))


@pytest.mark.parametrize(
    ("attention", "softcap"),
    [
        (AttentionConfig(n_heads=2), None),
        (AttentionConfig(n_heads=2, core=EagerCoreConfig()), None),
        (AttentionConfig(n_heads=2, core=FlexCoreConfig()), None),
        (AttentionConfig(n_heads=2, core=SinkCoreConfig()), None),
        (AttentionConfig(n_heads=2, score=BilinearConfig()), None),
        (AttentionConfig(n_heads=2, score=ScaledDotConfig(softcap=3.0)), 3.0),
    ],
)
def test_the_score_of_attention(attention: AttentionConfig, softcap: float | None) -> None:
    layer = attention.build(8, DecoderConfig(d_model=8).build_position(causal=True), True)
    assert isinstance(layer, SelfAttention)
    score = self_score(layer, 4)
    assert score is layer.core.score
    assert score is not None
    assert score.softcap == softcap


@pytest.mark.parametrize(
    "config",
    [
        DecoderConfig(d_model=8, attention=AttentionConfig(n_heads=2, score=AdditiveConfig())),
        DecoderConfig(
            d_model=8, attention=AttentionConfig(n_heads=2, core=DifferentialCoreConfig())
        ),
        DecoderConfig(
            d_model=8,
            attention=AttentionConfig(n_heads=2),
            position=RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_len=8)),
        ),
    ],
)
def test_other_attention_is_not_for_the_operator(config: DecoderConfig) -> None:
    [layer, *_] = config.build(10).stack.mixers
    assert isinstance(layer, SelfAttention)
    assert self_score(layer, 4) is None


def test_a_core_without_a_score_has_that_of_scaled_dots() -> None:
    layer = AttentionConfig(n_heads=2).build(
        8, DecoderConfig(d_model=8).build_position(causal=True), True
    )
    layer.core = EagerCore()
    score = self_score(layer, 4)
    assert score is not None
    assert score.scale == 0.5
    assert score(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4)) == 2.0


@pytest.mark.parametrize("sharing", [1, 3])
def test_consecutive_rows_share_the_slots_and_the_mask_of_a_text(sharing: int) -> None:
    q = torch.randn(2 * sharing, 4, 1, 6)
    keys, values = torch.randn(9, 2, 6), torch.randn(9, 2, 5)
    slots = torch.tensor([[3, 1, 4, 0], [7, 5, 8, 8]])
    valid = torch.tensor([[True] * 4, [True, True, False, False]])
    sinks = torch.randn(4)
    mask, score = Dense(valid[:, None, None]), DotProduct(0.5)
    ours = paged_attention(q, keys, values, slots, mask, None, score, sinks)
    slots, rows = (x.repeat_interleave(sharing, 0) for x in (slots, valid))
    each = Dense(rows[:, None, None])
    expected = definition(q, keys, values, slots, each, None, score, sinks)
    torch.testing.assert_close(ours.double(), expected, atol=2e-6, rtol=0)
