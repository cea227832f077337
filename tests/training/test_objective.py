"""The objective: custom losses accumulate over micro-batches, invalid ones are refused."""

from dataclasses import dataclass, field

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from addnorm.data.batches.augmentation import FlipConfig, MixupConfig
from addnorm.data.batches.images import ExamplesConfig
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.training.loss import CrossEntropyConfig, LossConfig, cross_entropy_sum
from addnorm.training.objective import Objective
from addnorm.training.settings import TrainConfig

MODEL = DecoderConfig(
    d_model=8, n_layers=2, attention=AttentionConfig(n_heads=2), dropout=0.0, exits=(1,)
)
TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])
TARGETS = torch.tensor([[2, 3, 4, 5], [6, 7, -100, -100]])


class Own(nn.Module):
    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), reduction="sum"
        )


@dataclass(frozen=True)
class OwnLossConfig:
    weight: float = 1.0

    def build(self) -> Own:
        return Own()


class Mean(nn.Module):
    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits.mean(-1)


@dataclass(frozen=True)
class MeanConfig:
    def build(self) -> Mean:
        return Mean()


@dataclass(frozen=True)
class LearnedConfig:
    names: tuple[str, ...] = field(default=())

    def build(self) -> nn.Module:
        return nn.Linear(2, 2)


@pytest.mark.parametrize("exits", [(), (1,)])
def test_a_custom_cross_entropy_equals_the_built_in_one(exits: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = MODEL.__class__(**{**vars(MODEL), "exits": exits}).build(9).double()
    inputs = {"tokens": TOKENS, "valid": TOKENS > 0}
    ours, own = (
        Objective(loss)(model, inputs, TARGETS) for loss in (CrossEntropyConfig(), OwnLossConfig())
    )
    torch.testing.assert_close(own, ours)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (ours, own)]
    torch.testing.assert_close(*gradients)


def test_micro_batches_add_up() -> None:
    torch.manual_seed(0)
    model = MODEL.build(9).double()
    objective = Objective(OwnLossConfig())
    whole = objective(model, {"tokens": TOKENS}, TARGETS)
    parts = [objective(model, {"tokens": TOKENS[i : i + 1]}, TARGETS[i : i + 1]) for i in (0, 1)]
    torch.testing.assert_close(sum(parts), whole)


def test_invalid_losses_are_rejected() -> None:
    model = MODEL.build(9)
    with pytest.raises(InputError, match=r"MeanConfig returns \[2, 4\]: a loss is a scalar"):
        Objective(MeanConfig())(model, {"tokens": TOKENS}, TARGETS)
    with pytest.raises(InputError, match="LearnedConfig has parameters"):
        Objective(LearnedConfig())


def test_smoothing_is_rejected_for_a_custom_loss() -> None:
    assert TrainConfig(steps=1, loss=CrossEntropyConfig(), label_smoothing=0.1).label_smoothing
    with pytest.raises(ValidationError, match="label_smoothing is that of cross_entropy"):
        TrainConfig(steps=1, loss=OwnLossConfig(), label_smoothing=0.1)


def test_mixed_images_are_rejected_for_a_custom_loss() -> None:
    mixed = ExamplesConfig(augment=(FlipConfig(), MixupConfig()))
    assert TrainConfig(steps=1, batching=mixed).batching == mixed
    TrainConfig(steps=1, loss=OwnLossConfig(), batching=ExamplesConfig(augment=(FlipConfig(),)))
    with pytest.raises(ValidationError, match="mixup and cutmix give probabilities"):
        TrainConfig(steps=1, loss=OwnLossConfig(), batching=mixed)


def test_the_module_of_cross_entropy_returns_the_sum() -> None:
    logits = torch.randn(2, 4, 9, dtype=torch.float64)
    built = TypeAdapter(LossConfig).validate_python("cross_entropy").build()
    torch.testing.assert_close(built(logits, TARGETS), cross_entropy_sum(logits, TARGETS))
