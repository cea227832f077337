"""The encoder-only model: three heads, and outputs independent of padding."""

import dataclasses
import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import HEAD_RECORDS, check_config, check_gradients, check_module, named
from torch import Tensor
from torch.testing import assert_close

from addnorm.models import EncoderConfig, EncoderModel, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    SpanHeadConfig,
    TokenHeadConfig,
    predicts_tokens,
)
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig, NoPositionConfig
from addnorm.nn.vectors import VectorHeadConfig

VOCAB, LABELS = 13, 5
SMALL = EncoderConfig(d_model=16, n_layers=2, attention=AttentionConfig(n_heads=2), dropout=0.0)
VALID = torch.tensor(
    [[True, True, True, True], [True, True, False, False], [False, True, True, True]]
)
TOKENS = torch.randint(1, VOCAB, (3, 4), generator=torch.Generator().manual_seed(0)) * VALID
every_head = pytest.mark.parametrize("head", named(HEAD_RECORDS))


@cache
def shared(head: HeadConfig) -> EncoderModel:
    """A model that its test does not change."""
    return build(head)


def build(head: HeadConfig, **changes: object) -> EncoderModel:
    torch.manual_seed(7)
    config = dataclasses.replace(SMALL, head=head, **changes)  # type: ignore[arg-type]
    return config.build(VOCAB, None if predicts_tokens(head) else LABELS).eval()


@every_head
def test_contract(head: HeadConfig) -> None:
    check_config(dataclasses.replace(SMALL, head=head), ModelConfig)
    check_module(lambda: build(head), lambda model, _: model(TOKENS, VALID))


@every_head
def test_gradients(head: HeadConfig) -> None:
    model = build(head, d_model=8, n_layers=1)
    check_gradients(model, lambda m, x: m(TOKENS, VALID) * x, torch.ones(1), twice=False)


@every_head
def test_shape_of_the_logits(head: HeadConfig) -> None:
    vectors = isinstance(head, PoolerHeadConfig | HiddenHeadConfig)
    labels = SMALL.d_model if vectors else LABELS
    outputs = VOCAB if predicts_tokens(head) else 2 if isinstance(head, SpanHeadConfig) else labels
    of_texts = ClassificationHeadConfig | PoolerHeadConfig | VectorHeadConfig
    rows = (3,) if isinstance(head, of_texts) else (3, 4)
    if isinstance(head, VectorHeadConfig):
        outputs = head.width_of(SMALL.d_model)
    assert build(head)(TOKENS, VALID).shape == (*rows, outputs)


def real(logits: Tensor, row: int, valid: Tensor) -> Tensor:
    return logits[row] if logits.ndim == 2 else logits[row][valid]


@settings(max_examples=8)
@every_head
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    side=st.sampled_from(["left", "right"]),
)
def test_batch_mates_and_padding_change_nothing(
    head: HeadConfig, lengths: list[int], side: str
) -> None:
    model, slots = shared(head), torch.arange(max(lengths))
    sizes = torch.tensor(lengths)[:, None]
    valid = slots >= max(lengths) - sizes if side == "left" else slots < sizes
    tokens = torch.randint(1, VOCAB, valid.shape) * valid
    with torch.no_grad():
        together = model(tokens, valid)
        for i in range(len(lengths)):
            alone = model(tokens[i : i + 1, valid[i]])[0]
            assert_close(real(together, i, valid[i]), alone, rtol=0, atol=1e-5)


@every_head
@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_values_at_padding_change_no_bit(head: HeadConfig, garbage: float) -> None:
    model = build(head)
    clean = model(TOKENS, VALID)
    with torch.no_grad():
        model.embed.tokens.weight[0] = garbage
    dirty = model(TOKENS, VALID)
    for i in range(3):
        assert torch.equal(real(dirty, i, VALID[i]), real(clean, i, VALID[i]))


@every_head
def test_a_row_of_padding_is_finite(head: HeadConfig) -> None:
    model, valid = build(head), VALID & torch.tensor([[True], [False], [True]])
    out = model(TOKENS, valid)
    assert out.isfinite().all()
    assert torch.equal(out[0], model(TOKENS, VALID)[0])
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_later_tokens_are_seen() -> None:
    model, other = build(TokenHeadConfig(tied=False)), TOKENS.clone()
    other[0, -1] = (other[0, -1] + 1) % VOCAB
    assert not torch.allclose(model(TOKENS)[0, 0], model(other)[0, 0])


def test_word_order() -> None:
    """Without positions a pooled sentence is a bag of words; with them it is not."""
    head, order = ClassificationHeadConfig(), torch.tensor([3, 1, 0, 2])
    blind, seeing = build(head, position=NoPositionConfig()), build(head)
    assert_close(blind(TOKENS[:1, order]), blind(TOKENS[:1]), rtol=0, atol=1e-5)
    assert not torch.allclose(seeing(TOKENS[:1, order]), seeing(TOKENS[:1]), atol=1e-4)


def test_labels_are_needed() -> None:
    with pytest.raises(ValueError, match="classification head needs n_labels"):
        dataclasses.replace(SMALL, head=ClassificationHeadConfig()).build(VOCAB)


def test_tied() -> None:
    assert (model := build(TokenHeadConfig())).head.weight is model.embed.tokens.weight


def test_distilbert_base() -> None:
    """Sanh et al. 2019: six layers of BERT, without token types and pooler."""
    config = EncoderConfig(
        d_model=768,
        n_layers=6,
        max_len=512,
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=12),
        embedding=EmbeddingConfig(scale="one", norm=LayerNormConfig(eps=1e-12)),
    )
    with torch.device("meta"):
        assert sum(p.numel() for p in config.build(30_522).parameters()) == 66_362_880
