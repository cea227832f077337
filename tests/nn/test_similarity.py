"""The head of a bi-encoder, against its definition in float64, row by row."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from addnorm.models import EncoderConfig
from addnorm.nn.context import Context
from addnorm.nn.masks import Full
from addnorm.nn.similarity import SimilarityHead, SimilarityHeadConfig

WIDTH, PAIRS, LONGEST = 6, 4, 5


def texts() -> tuple[Tensor, Tensor]:
    """Hidden states of four pairs of texts of unequal lengths, and which tokens are real."""
    torch.manual_seed(0)
    x = torch.randn(2 * PAIRS, LONGEST, WIDTH, dtype=torch.float64)
    lengths = torch.tensor([5, 1, 3, 3, 2, 5, 1, 4])
    return x, torch.arange(LONGEST) < lengths[:, None]


def outputs(head: SimilarityHead, x: Tensor, valid: Tensor) -> Tensor:
    return head.double().eval()(x, Context.over(x, Full(), valid=valid))


POOLED = {
    "mean": lambda rows: rows.mean(0),
    "max": lambda rows: rows.amax(0),
    "first": lambda rows: rows[0],
}


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 5.0), (1.0, -2.0)])
def test_cosine_is_that_of_the_two_means(pooling: str, low: float, high: float) -> None:
    x, valid = texts()
    config = SimilarityHeadConfig(pooling=pooling, range=(low, high))  # type: ignore[arg-type]
    got = outputs(config.build(WIDTH, 1), x, valid)
    for i in range(PAIRS):
        u, v = (POOLED[pooling](x[row][valid[row]]) for row in (2 * i, 2 * i + 1))
        cosine = float(sum(a * b for a, b in zip(u, v, strict=True)) / (u.norm() * v.norm()))
        assert abs(float(got[i, 0]) - (low + (high - low) * cosine)) < 1e-12


def test_classes_are_a_map_of_both_and_their_difference() -> None:
    x, valid = texts()
    head = SimilarityHeadConfig(problem="single_label").build(WIDTH, 3)
    got = outputs(head, x, valid)
    [weight] = (one for name, one in head.named_parameters() if name == "compare.proj.weight")
    for i in range(PAIRS):
        u, v = (x[row][valid[row]].mean(0) for row in (2 * i, 2 * i + 1))
        assert_close(got[i], weight @ torch.cat([u, v, (u - v).abs()]))
    assert [name for name, _ in head.named_parameters()] == ["compare.proj.weight"]


def test_a_pair_does_not_depend_on_its_batch() -> None:
    x, valid = texts()
    head = SimilarityHeadConfig().build(WIDTH, 1)
    whole = outputs(head, x, valid)
    for i in range(PAIRS):
        rows = slice(2 * i, 2 * i + 2)
        assert_close(outputs(head, x[rows], valid[rows])[0], whole[i])


def test_equal_texts_are_as_alike_as_can_be_and_gradients_are_right() -> None:
    x, valid = texts()
    x = x[:1].repeat(2, 1, 1).requires_grad_()
    head = SimilarityHeadConfig(range=(0.0, 5.0)).build(WIDTH, 1)
    assert_close(outputs(head, x, valid[:1].repeat(2, 1)), torch.tensor([[5.0]]).double())
    y = torch.randn(4, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda z: head(z, Context.over(z, Full())), y)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exits": (1,), "n_layers": 2}, "no early exits"),
        ({"input": {"kind": "patches", "size": (4, 4), "patch": 2}}, "compares two texts"),
    ],
)
def test_it_stands_where_there_are_texts_alone(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EncoderConfig(d_model=8, head=SimilarityHeadConfig(), **changes)  # type: ignore[arg-type]


def test_a_range_is_two_numbers() -> None:
    with pytest.raises(ValueError, match="is one number: give two"):
        SimilarityHeadConfig(range=(1.0, 1.0))
