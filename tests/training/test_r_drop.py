"""R-Drop: the loss and its gradient by their definition in float64, and what it cannot be with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny
from torch.testing import assert_close

from addnorm.data.batches.batch import Batch
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.nn.choices import DEFAULTS
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import ClassificationHeadConfig, TaggingHeadConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.training.objective import Objective
from addnorm.training.settings import TrainConfig

SMALL: dict[str, Any] = {"d_model": 8, "n_layers": 1, "dropout": 0.4}


def by_definition(logits: torch.Tensor, targets: torch.Tensor, weight: float, smoothing: float):
    """One row after the other, each term spelled out."""
    total = torch.zeros((), dtype=torch.float64)
    for p, q, t in zip(*logits.chunk(2), targets.chunk(2)[0], strict=True):
        for a, b, at in zip(
            *(x.reshape(-1, x.shape[-1]) for x in (p, q)), t.flatten(), strict=True
        ):
            if at < 0:
                continue
            a, b = a.log_softmax(-1), b.log_softmax(-1)
            for log_p in (a, b):
                total = total - (1 - smoothing) * log_p[at] / 2 - smoothing * log_p.mean() / 2
            total = total + weight / 4 * ((a.exp() * (a - b)).sum() + (b.exp() * (b - a)).sum())
    return total


@pytest.mark.parametrize("logits_at_once", [1, 30, 2**22])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_tokens_equals_its_definition(
    monkeypatch: pytest.MonkeyPatch, logits_at_once: int, smoothing: float
) -> None:
    monkeypatch.setattr(
        "addnorm.training.r_drop.choices", lambda: replace(DEFAULTS, logits_at_once=logits_at_once)
    )
    model = DecoderConfig(**SMALL).build(11).double()
    tokens = torch.randint(11, (3, 5))
    targets = torch.randint(11, (3, 5)).index_put((torch.tensor([0, 2]),), torch.tensor(-100))
    batch = Batch.of({"tokens": tokens}, targets, [0, 1, 2]).doubled()
    config = TrainConfig(steps=1, r_drop=3.0, label_smoothing=smoothing)
    objective = Objective.of(config, model, [])
    torch.manual_seed(3)
    loss = objective(model, batch.inputs, batch.targets)
    got = torch.autograd.grad(loss, list(model.parameters()))
    torch.manual_seed(3)
    expected = by_definition(model(**batch.inputs), batch.targets, 3.0, smoothing)
    assert_close(loss, expected)
    assert_close(got, torch.autograd.grad(expected, list(model.parameters())))


@pytest.mark.parametrize("head", [ClassificationHeadConfig(), TaggingHeadConfig()])
def test_the_loss_of_classes_equals_its_definition(head: Any) -> None:
    model = EncoderConfig(head=head, **SMALL).build(8, 3).double()
    tagging = isinstance(head, TaggingHeadConfig)
    targets = torch.tensor([[0, 2, -100], [1, 0, 0]]) if tagging else torch.tensor([2, 0])
    batch = Batch.of({"inputs": torch.randint(8, (2, 3))}, targets, [0, 1]).doubled()
    objective = Objective.of(TrainConfig(steps=1, r_drop=1.5), model, [])
    torch.manual_seed(5)
    loss = objective(model, batch.inputs, batch.targets)
    torch.manual_seed(5)
    logits = model(**batch.inputs)
    assert not torch.equal(*logits.chunk(2)), "the two passes have the same dropout"
    assert_close(loss, by_definition(logits, batch.targets, 1.5, 0.0))


def test_the_loss_of_exits_is_their_mean() -> None:
    model = DecoderConfig(**dict(SMALL, n_layers=2), exits=(1,)).build(11).double()
    tokens = torch.randint(11, (2, 5))
    batch = Batch.of({"tokens": tokens}, tokens, [0, 1]).doubled()
    objective = Objective.of(TrainConfig(steps=1, r_drop=2.0), model, [])
    torch.manual_seed(5)
    loss = objective(model, batch.inputs, batch.targets)
    torch.manual_seed(5)
    exits = [
        by_definition(out, batch.targets, 2.0, 0.0)
        for out in model.exit_logits(tokens=batch.inputs["tokens"])
    ]
    assert len(exits) == 2
    assert_close(loss, torch.stack(exits).mean())


def test_pairs_of_texts_stay_together() -> None:
    head = SimilarityHeadConfig(problem="single_label")
    model = EncoderConfig(head=head, **dict(SMALL, dropout=0.0)).build(8, 3).double()
    batch = Batch.of({"inputs": torch.randint(8, (6, 3))}, torch.tensor([2, 0, 1]), [0, 1, 2])
    plain = Objective.of(TrainConfig(steps=1), model, [])(model, batch.inputs, batch.targets)
    doubled = batch.doubled()
    objective = Objective.of(TrainConfig(steps=1, r_drop=2.0), model, [])
    assert_close(objective(model, doubled.inputs, doubled.targets), plain)


def test_without_dropout_it_is_cross_entropy() -> None:
    model = DecoderConfig(**dict(SMALL, dropout=0.0)).build(11).double()
    tokens = torch.randint(11, (3, 5))
    batch = Batch.of({"tokens": tokens}, tokens, [0, 1, 2])
    plain = Objective.of(TrainConfig(steps=1), model, [])(model, batch.inputs, tokens)
    doubled = batch.doubled()
    objective = Objective.of(TrainConfig(steps=1, r_drop=2.0), model, [])
    assert_close(objective(model, doubled.inputs, doubled.targets), plain)


def test_a_doubled_batch_repeats_all_examples() -> None:
    soft = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    batch = Batch({"inputs": torch.tensor([[1], [2]])}, torch.tensor([0, 1]), 2, [7, 9], soft)
    doubled = batch.doubled()
    assert doubled.inputs["inputs"].tolist() == [[1], [2], [1], [2]]
    assert doubled.targets.tolist() == [0, 1, 0, 1]
    assert (doubled.n_tokens, doubled.indices) == (4, [7, 9, 7, 9])
    assert doubled.soft_targets is not None
    assert torch.equal(doubled.soft_targets, soft[[0, 1, 0, 1]])


@pytest.mark.parametrize("targets", [torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)])
def test_numbers_and_several_labels_are_rejected(targets: torch.Tensor) -> None:
    model = EncoderConfig(head=ClassificationHeadConfig(), **SMALL).build(8, 3)
    batch = Batch.of({"inputs": torch.zeros(2, 4, dtype=torch.long)}, targets, [0, 1]).doubled()
    objective = Objective.of(TrainConfig(steps=1, r_drop=1.0), model, [])
    with pytest.raises(InputError, match=r"r_drop = 1\.0 compares probabilities of classes"):
        objective(model, batch.inputs, batch.targets)


def test_experts_with_a_capacity_are_rejected(tmp_path: Path) -> None:
    """The second pass stands behind the first, so full experts would leave out more of it."""
    for capacity in (None, 1.0):
        experts = MixtureOfExpertsConfig(expert=FeedForwardConfig(d_ff=5), capacity_factor=capacity)
        parts = {"feedforward": experts}
        if capacity is None:
            tiny.trainer(tmp_path / "free", "decoder", parts=parts, r_drop=1.0, steps=1).fit()
            continue
        with pytest.raises(InputError, match=r"r_drop = 1\.0 with capacity_factor"):
            tiny.trainer(tmp_path / "full", "decoder", parts=parts, r_drop=1.0)
