"""Heads: one output row per token or per text."""

import math

import pytest
import torch

from addnorm.checking.definition.heads import HEADS
from addnorm.checking.definition.texts import Texts
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)

X = torch.tensor([[1.0, 2.0], [3.0, 0.0], [5.0, 5.0]]).double()
TEXTS = Texts.of([2, 1])
EYE = {"proj.weight": torch.eye(2).double(), "proj.bias": torch.ones(2).double()}


def head(config: object, weights: dict[str, torch.Tensor]) -> list[list[float]]:
    return HEADS.of(config)(config, weights, X, TEXTS).tolist()


@pytest.mark.parametrize(
    ("pooling", "first"), [("mean", [3, 2]), ("max", [4, 3]), ("first", [2, 3])]
)
def test_texts_are_pooled(pooling: str, first: list[float]) -> None:
    config = ClassificationHeadConfig(pooling=pooling)  # type: ignore[arg-type]
    assert head(config, EYE) == [first, [6, 6]]


def test_texts_are_pooled_by_learned_weights() -> None:
    """Scores of 0 and log 3: a quarter of the first token and three of the second."""
    a, b = X[0].tolist(), X[1].tolist()
    apart = math.log(3) / (b[0] - a[0])
    score = {"weight": torch.tensor([[apart, 0.0]]).double(), "bias": torch.ones(1).double()}
    weights = EYE | {f"pool.score.{name}": w for name, w in score.items()}
    found = head(ClassificationHeadConfig(pooling="seqpool"), weights)
    assert found[0] == pytest.approx([(x + 3 * y) / 4 + 1 for x, y in zip(a, b, strict=True)])
    assert found[1] == [6, 6]


def test_tokens_have_tags_and_logits() -> None:
    assert head(TaggingHeadConfig(), EYE) == (X + 1).tolist()
    assert head(HiddenHeadConfig(), {}) == X.tolist()
    weights = {"weight": 2 * torch.eye(2).double(), "bias": torch.ones(2).double()}
    assert head(TokenHeadConfig(), weights) == (2 * X + 1).tolist()
    found = head(TokenHeadConfig(scale="sqrt", softcap=3.0), weights)
    assert found[0][0] == pytest.approx(3 * math.tanh((2 / math.sqrt(2) + 1) / 3))
    transformed = {f"transform.{name}": w for name, w in EYE.items()} | weights
    found = head(TokenHeadConfig(transform=TransformConfig(activation="relu")), transformed)
    assert found[0] == [2 * 2 + 1, 2 * 3 + 1]


def test_the_pooler_reads_the_first_token() -> None:
    assert head(PoolerHeadConfig(), EYE)[1] == pytest.approx([math.tanh(6)] * 2)
