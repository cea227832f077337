"""SeqPool: the weighted mean against the formula in float64; padding takes no part."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import check_gradients, context
from torch.testing import assert_close

from addnorm.config import ConfigError
from addnorm.models.encoder import EncoderConfig
from addnorm.nn.heads import ClassificationHead, ClassificationHeadConfig
from addnorm.nn.pooling import ConvolutionPooling, ConvolutionPoolingConfig, SequencePooling

VALID = torch.tensor([[True, True, False], [False, True, True], [False, False, False]])


def test_seqpool_is_the_mean_weighted_by_the_softmax_of_its_scores() -> None:
    pool, x = SequencePooling(4).double(), torch.randn(3, 3, 4).double()
    found = pool(x, VALID[..., None])
    weight, bias = pool.score.weight[0].tolist(), pool.score.bias.item()
    for row in range(2):
        real = [x[row, t].tolist() for t in range(3) if VALID[row, t]]
        scores = [math.exp(sum(w * v for w, v in zip(weight, t, strict=True)) + bias) for t in real]
        expected = [
            sum(s * t[i] for s, t in zip(scores, real, strict=True)) / sum(scores) for i in range(4)
        ]
        assert_close(found[row].tolist(), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(found[2], torch.zeros(4).double())


def test_seqpool_with_equal_scores_is_the_mean() -> None:
    pool, x = SequencePooling(4), torch.randn(3, 3, 4)
    torch.nn.init.zeros_(pool.score.weight)
    assert_close(pool(x, torch.ones(3, 3, 1, dtype=torch.bool)), x.mean(1))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_seqpool_ignores_padding(garbage: float) -> None:
    head, x = ClassificationHead(4, 2, pooling=SequencePooling(4)), torch.randn(3, 3, 4)
    dirty = x.masked_fill(~VALID[..., None], garbage)
    ctx = context(3, 3, valid=VALID)
    found = head(dirty, ctx)
    assert torch.equal(found, head(x, ctx))
    found.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_seqpool_is_finite_in_narrow_types_and_for_rows_of_padding(dtype: torch.dtype) -> None:
    head = ClassificationHeadConfig(pooling="seqpool").build(4, 5).to(dtype)
    found = head(torch.randn(3, 3, 4).to(dtype), context(3, 3, valid=VALID))
    assert found.isfinite().all()
    assert torch.equal(found[2], head.proj.bias)
    with torch.autocast("cpu", torch.bfloat16):
        wide = ClassificationHeadConfig(pooling="seqpool").build(4, 5)
        assert wide(torch.randn(3, 3, 4), context(3, 3, valid=VALID)).isfinite().all()


def test_gradients_of_seqpool() -> None:
    head = ClassificationHeadConfig(pooling="seqpool").build(4, 2)
    ctx = context(3, 3, valid=VALID)
    check_gradients(head, lambda m, x: m(x, ctx), torch.randn(3, 3, 4), twice=True)


def test_convolution_pooling_is_the_largest_answer_of_each_filter() -> None:
    pool, x = ConvolutionPooling(4, (2, 5), 3, activation="tanh").double(), torch.randn(2, 3, 4)
    found = pool(x.double(), torch.ones(2, 3, 1, dtype=torch.bool))
    for row in range(2):
        expected: list[float] = []
        for conv, k in zip(pool.conv, (2, 5), strict=True):
            weight, bias = conv.weight.tolist(), conv.bias.tolist()
            text = [[0.0] * 4] * (k - 1) + x[row].tolist() + [[0.0] * 4] * (k - 1)
            for w, b in zip(weight, bias, strict=True):
                answers = [
                    b + sum(w[i][o] * text[t + o][i] for i in range(4) for o in range(k))
                    for t in range(3 + k - 1)
                ]
                expected.append(math.tanh(max(answers)))
        assert_close(found[row].tolist(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_convolution_pooling_ignores_padding(garbage: float) -> None:
    head, x = (
        ClassificationHead(6, 2, pooling=ConvolutionPooling(4, (2, 3), 3)),
        torch.randn(3, 3, 4),
    )
    dirty = x.masked_fill(~VALID[..., None], garbage)
    ctx = context(3, 3, valid=VALID)
    found = head(dirty, ctx)
    assert torch.equal(found, head(x, ctx))
    assert torch.equal(found[2], head.proj.bias)
    found.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@given(st.integers(1, 4), st.integers(0, 5))
def test_batch_mates_do_not_change_convolution_pooling(size: int, more: int) -> None:
    """Answers below zero too: a window of padding alone would answer with the bias."""
    pool = ConvolutionPooling(4, (1, 4), 3, activation="tanh").double()
    x = torch.randn(1, size, 4).double()
    alone = pool(x, torch.ones(1, size, 1, dtype=torch.bool))
    padded = torch.cat([x, torch.ones(1, more, 4).double()], dim=1)
    valid = (torch.arange(size + more) < size)[None, :, None]
    assert_close(pool(padded, valid), alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_convolution_pooling_keeps_narrow_types(dtype: torch.dtype) -> None:
    head = ClassificationHeadConfig(pooling=ConvolutionPoolingConfig(channels=5)).build(4, 5)
    x, ctx = torch.randn(3, 3, 4), context(3, 3, valid=VALID)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(x, ctx).isfinite().all()
    assert head.to(dtype)(x.to(dtype), ctx).isfinite().all()


def test_gradients_of_convolution_pooling() -> None:
    pooling = ConvolutionPoolingConfig(kernel_size=2, channels=3, activation="silu")
    head, ctx = ClassificationHeadConfig(pooling=pooling).build(4, 2), context(3, 3, valid=VALID)
    check_gradients(head, lambda m, x: m(x, ctx), torch.randn(3, 3, 4), twice=True)


def test_kims_classifier_has_no_blocks() -> None:
    head = ClassificationHeadConfig(
        pooling=ConvolutionPoolingConfig(kernel_size=(2, 3), channels=5)
    )
    model = EncoderConfig(
        d_model=16, n_layers=0, position={"kind": "none"}, head=head, init="kim", dropout=0.0
    ).build(50, 4)  # type: ignore[arg-type]
    assert model(torch.randint(4, 50, (2, 7))).shape == (2, 4)
    table = model.embed.tokens.weight
    assert 0.2 < table.abs().max() <= 0.25
    names = [name for name, _ in model.named_parameters() if "conv" not in name]
    assert names == ["embed.tokens.weight", "head.proj.weight", "head.proj.bias"]


def test_convolution_pooling_rejects_wrong_sizes() -> None:
    with pytest.raises(ConfigError, match="kernel_size"):
        ConvolutionPoolingConfig(kernel_size=())
    with pytest.raises(ConfigError, match="channels"):
        ConvolutionPoolingConfig(channels=0)
