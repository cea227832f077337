"""Losses against torch's own, in every dtype, for all kinds of targets."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import context
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.data.batches.batch import Batch
from addnorm.data.ids.encoding import IGNORE
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn import cross_entropy
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.crf import CRFHead, CRFHeadConfig, log_likelihood
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)
from addnorm.training.loss import (
    LogitAdjustment,
    cross_entropy_sum,
    exits_cross_entropy_sum,
    head_cross_entropy_sum,
    in_groups,
    loss_sum,
)
from addnorm.training.objective import Objective
from addnorm.training.settings import TrainConfig

TOLERANCE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.bfloat16: {"rtol": 1e-2, "atol": 1e-4},
    torch.float16: {"rtol": 2e-3, "atol": 1e-5},
}


def some(rows: int, vocab: int, dtype: torch.dtype, ignored: float = 0.3) -> tuple[Tensor, Tensor]:
    logits = (torch.randn(rows, vocab) * 3).to(dtype)
    targets = torch.randint(vocab, (rows,))
    return logits, targets.masked_fill(torch.rand(rows) < ignored, IGNORE)


def check(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> None:
    """Loss and gradient against torch in float64 on the same logits."""
    ours = logits.clone().requires_grad_()
    theirs = logits.double().requires_grad_()
    loss = cross_entropy_sum(ours, targets, smoothing)
    expected = F.cross_entropy(
        theirs.flatten(0, -2), targets.flatten(), reduction="sum", label_smoothing=smoothing
    )
    # The loss is kept in float32 at least, so only the gradient is as coarse as the logits.
    wide = logits.dtype if logits.element_size() >= 4 else torch.float32
    assert loss.dtype == wide
    torch.testing.assert_close(loss.double(), expected, **TOLERANCE[wide])
    (0.37 * loss).backward()
    (0.37 * expected).backward()
    assert ours.grad is not None
    assert ours.grad.dtype == logits.dtype
    torch.testing.assert_close(ours.grad.double(), theirs.grad, **TOLERANCE[logits.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_loss_and_gradient_equal_torchs(dtype: torch.dtype, smoothing: float) -> None:
    check(*some(17, 11, dtype), smoothing)


@settings(max_examples=25)
@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    vocab=st.integers(1, 9),
    smoothing=st.sampled_from([0.0, 0.3]),
)
def test_every_shape_is_accepted_even_an_empty_one(
    shape: list[int], vocab: int, smoothing: float
) -> None:
    logits = torch.randn(*shape, vocab, dtype=torch.float64)
    targets = torch.randint(-1, vocab, shape)
    check(logits, targets.where(targets >= 0, IGNORE), smoothing)


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 14, 15])
def test_loss_and_gradient_hold_at_the_edges_of_chunks(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of seven rows; the real size is tested below."""

    def sevens(x: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
        return x.split(7)

    monkeypatch.setattr(cross_entropy, "chunks", sevens)
    check(*some(rows, 5, torch.float64), 0.1)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_loss_and_gradient_hold_at_the_edge_of_a_real_chunk(extra: int) -> None:
    vocab = 2**14
    rows = 2**20 // vocab + extra
    logits = torch.empty(rows, vocab)
    assert len(cross_entropy.chunks(logits, logits)) == (2 if extra == 1 else 1)
    check(*some(rows, vocab, torch.float32), 0.1)


def test_a_vocabulary_may_be_wider_than_a_chunk() -> None:
    check(*some(2, 2**20 + 1, torch.float32, ignored=0.0))


def test_targets_that_are_all_ignored_cost_nothing_and_teach_nothing() -> None:
    logits = torch.randn(3, 4, 5, requires_grad=True)
    loss = cross_entropy_sum(logits, torch.full((3, 4), IGNORE), 0.1)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0.0


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_logits_do_not_overflow(size: float) -> None:
    logits, targets = some(5, 7, torch.float32)
    check(logits * size, targets)
    check((logits * 1e3).to(torch.bfloat16), targets)


def test_logits_at_an_ignored_target_do_not_matter() -> None:
    logits, targets = some(6, 5, torch.float32)
    targets[2] = IGNORE
    wild = logits.clone()
    wild[2] = float("nan")
    assert torch.equal(cross_entropy_sum(logits, targets), cross_entropy_sum(wild, targets))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_gradient_passes_gradcheck(smoothing: float) -> None:
    logits, targets = some(6, 5, torch.float64)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: cross_entropy_sum(x, targets, smoothing), logits, atol=1e-6, rtol=1e-4
    )


def test_a_second_derivative_is_rejected() -> None:
    logits, targets = some(6, 5, torch.float64)
    logits.requires_grad_()
    loss = cross_entropy_sum(logits, targets)
    with pytest.raises(RuntimeError, match="CrossEntropySum has no second derivative"):
        torch.autograd.grad(loss, logits, create_graph=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_soft_targets_equal_the_definition(smoothing: float) -> None:
    """`-Σ y log softmax`, `y` mixed with even probabilities, in float64."""
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    y = torch.rand(6, 4).double().softmax(-1)
    loss = loss_sum(logits, torch.zeros(6, dtype=torch.long), smoothing, y)
    mixed = (1 - smoothing) * y + smoothing / 4
    assert_close(loss, -(mixed * logits.log_softmax(-1)).sum())
    (grad,) = torch.autograd.grad(loss, logits)
    assert_close(grad, logits.softmax(-1) - mixed)
    one_hot, classes = torch.eye(4)[[0, 3, 1, 1, 2, 0]], torch.tensor([0, 3, 1, 1, 2, 0])
    assert_close(
        loss_sum(logits, classes, smoothing, one_hot), cross_entropy_sum(logits, classes, smoothing)
    )
    twice = exits_cross_entropy_sum([logits, logits], classes, smoothing, y)
    assert_close(twice, loss)


def test_micro_batches_add_up() -> None:
    logits, targets = some(20, 9, torch.float64)
    parts = [cross_entropy_sum(logits[s], targets[s]) for s in (slice(0, 3), slice(3, 20))]
    torch.testing.assert_close(sum(parts), cross_entropy_sum(logits, targets), rtol=0, atol=1e-12)


def test_the_dtype_of_the_targets_determines_the_loss() -> None:
    """Sums as torch has them; -100 is a number where the targets are numbers."""
    outputs = torch.randn(5, 3)
    classes, has = torch.tensor([0, 1, 2, 1, -100]), torch.rand(5, 3) > 0.5
    numbers = torch.tensor([[-100.0, 0.0, 2.5]]).expand(5, 3)
    expected = F.cross_entropy(outputs, classes, reduction="sum")
    assert_close(loss_sum(outputs, classes), expected)
    expected = F.binary_cross_entropy(outputs.sigmoid(), has.float(), reduction="sum")
    assert_close(loss_sum(outputs, has), expected)
    assert_close(loss_sum(outputs, numbers), (outputs - numbers).square().sum())
    narrow = loss_sum(outputs.bfloat16(), numbers)
    assert narrow.dtype == torch.float32
    for targets in (has, numbers):
        with pytest.raises(InputError, match=r"label_smoothing = 0\.1 is for classes"):
            loss_sum(outputs, targets, 0.1)


@pytest.mark.parametrize("wrong", [7, 100])
def test_a_target_outside_the_vocabulary_is_rejected(wrong: int) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        cross_entropy_sum(torch.randn(2, 7), torch.tensor([0, wrong]))


# Early exits.


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_exits_have_equal_weights(smoothing: float) -> None:
    exits = [some(6, 5, torch.float64)[0].requires_grad_() for _ in range(3)]
    _, targets = some(6, 5, torch.float64)
    loss = exits_cross_entropy_sum(iter(exits), targets, smoothing)
    alone = [cross_entropy_sum(logits, targets, smoothing) for logits in exits]
    torch.testing.assert_close(loss, sum(alone) / 3, rtol=0, atol=1e-12)
    loss.backward()
    for logits, own in zip(exits, alone, strict=True):
        (expected,) = torch.autograd.grad(own / 3, logits)
        torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-12)


def test_the_loss_of_one_exit_is_the_plain_loss() -> None:
    logits, targets = some(6, 5, torch.float32)
    assert torch.equal(
        exits_cross_entropy_sum([logits], targets), cross_entropy_sum(logits, targets)
    )


def test_no_exits_are_rejected() -> None:
    with pytest.raises(ValueError, match="no exits"):
        exits_cross_entropy_sum([], torch.zeros(2, dtype=torch.long))


# The loss that never holds all logits.

HEADS = [
    TokenHeadConfig(tied=False),
    TokenHeadConfig(tied=False, bias=True, scale="sqrt", softcap=2.0, transform=TransformConfig()),
]


@pytest.mark.parametrize("config", HEADS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logits_at_once", [1, 5 * 11, 14 * 11, 15 * 11])
def test_chunked_logits_give_the_same_loss_and_gradient(
    config: TokenHeadConfig, smoothing: float, logits_at_once: int
) -> None:
    few_at_once = use_choices(KernelChoices(logits_at_once=logits_at_once))
    head = config.build(6, 11).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    targets = some(14, 11, torch.float64)[1].view(2, 7)
    x = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    ctx = context(2, 7)
    whole = cross_entropy_sum(head(x, ctx), targets, smoothing)
    with few_at_once:
        parts = head_cross_entropy_sum(head, x, ctx, targets, smoothing)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    learned = [x, *head.parameters()]
    expected = torch.autograd.grad(0.37 * whole, learned)
    for got, want in zip(torch.autograd.grad(0.37 * parts, learned), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_chunked_logits_work_without_gradients(mode: Callable[[], Any]) -> None:
    head = TokenHeadConfig(tied=False).build(6, 11).double()
    nn.init.normal_(head.weight)
    targets = some(14, 11, torch.float64)[1].view(2, 7)
    with mode(), use_choices(KernelChoices(logits_at_once=3 * 11)):
        x = torch.randn(2, 7, 6, dtype=torch.float64)
        parts = head_cross_entropy_sum(head, x, context(2, 7), targets, 0.1)
        whole = cross_entropy_sum(head(x, context(2, 7)), targets, 0.1)
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    plain = F.cross_entropy(
        head(x.clone(), context(2, 7)).flatten(0, 1),
        targets.flatten(),
        reduction="sum",
        label_smoothing=0.1,
    )
    torch.testing.assert_close(parts.clone(), plain.detach(), rtol=1e-12, atol=1e-12)


def test_frozen_weights_get_no_gradient() -> None:
    head = TokenHeadConfig(tied=False).build(3, 4).requires_grad_(False)
    nn.init.normal_(head.weight)
    x = torch.randn(1, 5, 3, requires_grad=True)
    targets = torch.tensor([[0, 3, IGNORE, 1, 2]])
    with use_choices(KernelChoices(logits_at_once=8)):
        head_cross_entropy_sum(head, x, context(1, 5), targets).backward()
    assert head.weight.grad is None
    assert x.grad is not None
    assert x.grad[0, 2].abs().max() == 0.0
    assert x.grad.abs().max() > 0.0


@dataclass(frozen=True)
class OfAWidth:
    """A part, and no loss: its `build` wants a width."""

    def build(self, d_model: int) -> nn.Module: ...


def test_a_part_of_another_family_is_rejected_as_a_loss() -> None:
    with pytest.raises(InputError, match=r"OfAWidth does not fit as loss: AddNorm calls build\(\)"):
        TrainConfig(steps=1, loss=OfAWidth())  # type: ignore[arg-type]


def test_a_target_outside_the_vocabulary_is_rejected_in_groups() -> None:
    from addnorm.training.loss import loss_and_gradient

    logits = torch.zeros(2, 5)
    for wrong in (-1, 5):
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            loss_and_gradient(logits, torch.tensor([1, wrong]), 0.0)


TAGS = torch.tensor([[0, 0, 2, -100], [0, 1, 0, 0]])
SMALL: dict[str, Any] = {"d_model": 8, "n_layers": 1, "dropout": 0.0}


def batch_of(targets: torch.Tensor) -> Batch:
    return Batch.of({"inputs": torch.arange(8).view(2, 4)}, targets, [0, 1])


def test_the_prior_of_the_adjustment_is_that_of_the_targets() -> None:
    """Of four classes the counts are 5, 1, 1 and 0; each gets one more."""
    adjustment = LogitAdjustment.of(0.5, [batch_of(TAGS[:1]), batch_of(TAGS[1:])])
    assert adjustment is not None
    expected = torch.tensor([0.5 * math.log((n + 1) / 11) for n in (5, 1, 1, 0)])
    assert_close(adjustment(torch.zeros(2, 3, 4)), expected.expand(2, 3, 4))
    assert adjustment(torch.zeros(2, 4, dtype=torch.float64)).dtype == torch.float64
    assert LogitAdjustment.of(0.0, []) is None


@pytest.mark.parametrize("head", [TaggingHeadConfig(), CRFHeadConfig()])
def test_the_loss_is_that_of_adjusted_logits(head: Any) -> None:
    model = EncoderConfig(head=head, **SMALL).build(8, 3).double()
    batch, config = batch_of(TAGS), TrainConfig(steps=1, logit_adjustment=0.7)
    objective = Objective.of(config, model, [batch])
    shares = [math.log(6 / 10), math.log(2 / 10), math.log(2 / 10)]
    z = model(**batch.inputs) + 0.7 * torch.tensor(shares, dtype=torch.float64)
    if isinstance(model.head, CRFHead):
        expected = -log_likelihood(model.head.chain, z, TAGS, TAGS >= 0).sum()
    else:
        rows = z.log_softmax(-1).flatten(0, 1)
        pairs = zip(rows, TAGS.flatten(), strict=True)
        expected = -sum(row[tag] for row, tag in pairs if tag >= 0)
    assert_close(objective(model, batch.inputs, batch.targets), expected)
    plain = Objective.of(TrainConfig(steps=1), model, [batch])
    assert not torch.isclose(plain(model, batch.inputs, batch.targets), expected)


def test_every_exit_is_adjusted() -> None:
    config = EncoderConfig(head=ClassificationHeadConfig(), **SMALL | {"n_layers": 2}, exits=(1,))
    model, targets = config.build(8, 3).double(), torch.tensor([0, 0])
    batch = batch_of(targets)
    objective = Objective.of(TrainConfig(steps=1, logit_adjustment=1.0), model, [batch])
    prior = torch.tensor([3 / 5, 1 / 5, 1 / 5], dtype=torch.float64).log()
    losses = [-(z + prior).log_softmax(-1)[:, 0].sum() for z in model.exit_logits(**batch.inputs)]
    assert_close(objective(model, batch.inputs, targets), torch.stack(losses).mean())


@pytest.mark.parametrize("targets", [torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)])
def test_adjustment_of_numbers_and_several_labels_is_rejected(targets: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"logit_adjustment = 0\.3 is for classes and tags"):
        LogitAdjustment.of(0.3, [batch_of(targets)])


# A loss in groups of rows.


def squares(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`Σ (z - t)²`, and its gradient."""
    apart = logits - targets[:, None]
    return (apart**2).sum(), 2 * apart


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("frozen", [False, True])
def test_groups_of_any_size_equal_all_rows_at_once(size: int, frozen: bool) -> None:
    head = nn.Linear(4, 5).double()
    head.bias.requires_grad_(not frozen)
    rows = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(7.0, dtype=torch.float64)
    learnt = [rows, *(p for p in head.parameters() if p.requires_grad)]
    expected = squares(head(rows), targets)[0]
    grouped = in_groups(head, rows, targets, squares, size, head)
    assert_close(grouped, expected)
    assert_close(
        torch.autograd.grad(3 * grouped, learnt), torch.autograd.grad(3 * expected, learnt)
    )
    with torch.no_grad():
        alone = in_groups(head, rows, targets, squares, size, head)
    assert_close(alone, expected)
    assert not alone.requires_grad
