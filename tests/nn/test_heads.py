"""Heads: pooling that ignores padding, empty rows, and one logit per output."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tests.contracts import (
    HEAD_RECORDS,
    check_gradients,
    check_module,
    check_records,
    context,
    named,
    started,
)
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.context import Context
from addnorm.nn.crf import CRFHeadConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.heads import (
    ClassificationHead,
    ClassificationHeadConfig,
    HeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    SpanHeadConfig,
    TaggingHead,
    TaggingHeadConfig,
    TokenHead,
    TokenHeadConfig,
    TransformConfig,
    build_head,
)
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.nn.vectors import VectorHeadConfig

VALID = torch.tensor([[True, True, False], [False, True, True], [False, False, False]])
POOLINGS = ("mean", "max", "first")


def test_every_head_has_a_record() -> None:
    """Three are tried in files of their own: they read series or rows in twos, or have a loss."""
    others = [ForecastHeadConfig(), SimilarityHeadConfig(), CRFHeadConfig()]
    check_records(HeadConfig, [*HEAD_RECORDS, *others])


@pytest.mark.parametrize("config", named(HEAD_RECORDS))
@pytest.mark.parametrize("valid", [None, VALID], ids=["whole", "padded"])
def test_contract(config: HeadConfig, valid: Tensor | None) -> None:
    x, ctx = torch.randn(3, 3, 4), context(3, 3, valid=valid)
    check_module(
        lambda: config.build(4, 5), lambda head, dtype: head(x.to(dtype).requires_grad_(), ctx)
    )
    whole = isinstance(config, ClassificationHeadConfig | PoolerHeadConfig | VectorHeadConfig)
    width = 4 if isinstance(config, HiddenHeadConfig | PoolerHeadConfig) else 5
    if isinstance(config, VectorHeadConfig):
        width = config.width_of(4)
    width = 2 if isinstance(config, SpanHeadConfig) else width
    assert config.build(4, 5)(x, ctx).shape == ((3, width) if whole else (3, 3, width))


@pytest.mark.parametrize("config", named(HEAD_RECORDS))
def test_gradients(config: HeadConfig) -> None:
    ctx = context(3, 3, valid=VALID)
    check_gradients(config.build(4, 2), lambda m, x: m(x, ctx), torch.randn(3, 3, 4), twice=True)


def pooled(head: ClassificationHead, x: Tensor, valid: Tensor | None) -> Tensor:
    with torch.no_grad():
        head.proj.weight.copy_(torch.eye(x.shape[-1]))
        head.proj.bias.zero_()
    return head.eval()(x, context(*x.shape[:2], valid=valid))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_pool_is_that_of_the_real_tokens(pooling: str) -> None:
    x = torch.randn(3, 3, 4)
    got = pooled(ClassificationHead(4, 4, pooling=pooling), x, VALID)  # type: ignore[arg-type]
    for row, real in ((0, x[0, :2]), (1, x[1, 1:])):
        expected = {"mean": real.mean(0), "max": real.amax(0), "first": real[0]}[pooling]
        assert_close(got[row], expected)
    whole = pooled(ClassificationHead(4, 4, pooling=pooling), x, None)  # type: ignore[arg-type]
    assert_close(whole, {"mean": x.mean(1), "max": x.amax(1), "first": x[:, 0]}[pooling])


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_padding_pools_to_zero(pooling: str, dtype: torch.dtype) -> None:
    head = ClassificationHeadConfig(pooling=pooling).build(4, 5).to(dtype)  # type: ignore[arg-type]
    x = torch.randn(3, 3, 4).to(dtype).requires_grad_()
    out = head(x, context(3, 3, valid=VALID))
    assert torch.equal(out[2], head.proj.bias)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert torch.equal(x.grad[~VALID], torch.zeros(5, 4, dtype=dtype))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_padding_never_enters_the_pool(pooling: str, garbage: float) -> None:
    head, x = ClassificationHead(4, 2, pooling=pooling), torch.randn(2, 3, 4)  # type: ignore[arg-type]
    ctx = context(2, 3, valid=VALID[:2])
    dirty = x.masked_fill(~VALID[:2, :, None], garbage)
    assert torch.equal(head(dirty, ctx), head(x, ctx))


def test_token_and_tag_logits() -> None:
    x, ctx = torch.randn(2, 3, 4), context(2, 3)
    token, tag = TokenHeadConfig().build(4, 7), TaggingHeadConfig().build(4, 5).double()
    with torch.no_grad():
        token.weight.normal_()
    assert_close(token(x, ctx), x @ token.weight.T)
    assert_close(tag(x.double(), ctx), x.double() @ tag.proj.weight.T + tag.proj.bias)


def test_a_map_to_another_width_comes_before_the_logits() -> None:
    transform = TransformConfig(activation="identity", bias=False, d_out=3)
    x, ctx = torch.randn(2, 3, 4), context(2, 3)
    for config in (TokenHeadConfig(transform=transform), TaggingHeadConfig(transform=transform)):
        head = started(config.build(4, 7))
        assert isinstance(head, TokenHead | TaggingHead)
        last = head.weight if isinstance(head, TokenHead) else head.proj.weight
        assert last.shape == (7, 3)
        bias = 0.0 if isinstance(head, TokenHead) else head.proj.bias
        assert head.transform is not None
        assert_close(head(x, ctx), x @ head.transform.proj.weight.T @ last.T + bias)


def test_a_tied_head_has_the_width_of_the_table() -> None:
    narrow = EmbeddingConfig(d_embed=3)
    with pytest.raises(ValueError, match=r"table of width 3, and reads vectors of width 8: set "):
        DecoderConfig(d_model=8, attention=AttentionConfig(n_heads=2), embedding=narrow)
    to_it = TransformConfig(activation="identity", d_out=3)
    for head in (TokenHeadConfig(transform=to_it), TokenHeadConfig(tied=False)):
        parts = {"d_model": 8, "n_layers": 1, "attention": AttentionConfig(n_heads=2)}
        model = DecoderConfig(**parts, embedding=narrow, head=head).build(5)
        assert model.head.weight.shape[1] == (3 if head.tied else 8)


def test_an_unknown_pooling_is_refused() -> None:
    with pytest.raises(ValueError, match="pooling"):
        ClassificationHeadConfig(pooling="median")  # type: ignore[arg-type]


def test_the_loss_of_a_span_by_hand() -> None:
    """Over the real tokens of each text; one without an answer, marked -100, counts nothing."""
    outputs = torch.randn(3, 4, 2).double()
    valid = torch.tensor([[False, True, True, True], [True, True, False, False], [True] * 4])
    targets = torch.tensor([[1, 3], [0, 1], [-100, -100]])
    expected = 0.0
    for text, real, places in zip(outputs[:2], valid, targets, strict=False):
        for column, place in enumerate(places):
            scores = [math.exp(text[t, column]) for t in range(4) if real[t]]
            expected -= math.log(math.exp(text[place, column]) / sum(scores))
    loss = SpanHeadConfig().build(4, 2).loss_sum(outputs, targets, valid)
    assert float(loss) == pytest.approx(expected, rel=1e-12)


@dataclass(frozen=True)
class Narrow:
    """A head from outside with one output too few."""

    task: ClassVar[str] = "tagging"

    def build(self, d_model: int, n_outputs: int) -> nn.Module:
        return PerToken(d_model, n_outputs - 1)


class PerToken(nn.Linear):
    def forward(self, x: Tensor, ctx: Context) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x)


def test_a_head_from_outside_has_an_output_for_each_label() -> None:
    with pytest.raises(InputError, match=r"gives \(2, 3, 4\), and must give \(2, 3, 5\)"):
        build_head(Narrow(), 8, 5)
