"""Logit adjustment: the prior by a plain count, and the loss with it in float64."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from addnorm.data.batches.batch import Batch
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.crf import CRFHead, CRFHeadConfig, log_likelihood
from addnorm.nn.heads import ClassificationHeadConfig, TaggingHeadConfig
from addnorm.training.logit_adjustment import LogitAdjustment
from addnorm.training.objective import Objective
from addnorm.training.settings import TrainConfig

TAGS = torch.tensor([[0, 0, 2, -100], [0, 1, 0, 0]])
SMALL: dict[str, Any] = {"d_model": 8, "n_layers": 1, "dropout": 0.0}


def batch_of(targets: torch.Tensor) -> Batch:
    return Batch.of({"inputs": torch.arange(8).view(2, 4)}, targets, [0, 1])


def test_the_prior_is_that_of_the_targets() -> None:
    """Of four classes the counts are 5, 1, 1 and 0; each gets one more."""
    found = LogitAdjustment.of(0.5, [batch_of(TAGS[:1]), batch_of(TAGS[1:])])
    assert found is not None
    expected = torch.tensor([0.5 * math.log((n + 1) / 11) for n in (5, 1, 1, 0)])
    assert_close(found(torch.zeros(2, 3, 4)), expected.expand(2, 3, 4))
    assert found(torch.zeros(2, 4, dtype=torch.float64)).dtype == torch.float64
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
    found = Objective.of(TrainConfig(steps=1, logit_adjustment=1.0), model, [batch])
    prior = torch.tensor([3 / 5, 1 / 5, 1 / 5], dtype=torch.float64).log()
    losses = [-(z + prior).log_softmax(-1)[:, 0].sum() for z in model.exit_logits(**batch.inputs)]
    assert_close(found(model, batch.inputs, targets), torch.stack(losses).mean())


@pytest.mark.parametrize("targets", [torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)])
def test_numbers_and_several_labels_have_none(targets: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"logit_adjustment = 0\.3 is for classes and tags"):
        LogitAdjustment.of(0.3, [batch_of(targets)])
