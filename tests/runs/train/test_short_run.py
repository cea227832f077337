"""Settings that cannot act in so short a run: each is named once, and none that acts."""

from typing import Any

import pytest

from addnorm.runs.train.short_run import settings_without_effect
from addnorm.training.schedule import ConstantConfig, CosineConfig, InverseSquareRootConfig
from addnorm.training.settings import TrainConfig

QUIET: list[dict[str, Any]] = [
    {"steps": 100},
    {"steps": 100, "schedule": CosineConfig(warmup=99)},
    {"epochs": 4, "patience": 2},
    {"steps": 40, "patience": 2, "validate_every": 10},
    {"epochs": 3, "average": 3},
    {"steps": 25, "average": 3, "save_every": 10},
    {"steps": 1000, "ema": 0.999},
    {"epochs": 2, "select": "best"},
    {"steps": 100, "validate_every": 100, "save_every": 100},
]

TOLD: list[tuple[dict[str, Any], str]] = [
    ({"steps": 100, "schedule": CosineConfig(warmup=100)}, "warmup = 100: the run has 100 steps"),
    ({"epochs": 5, "schedule": InverseSquareRootConfig()}, "warmup = 4,000: the run has 50 steps"),
    ({"steps": 9, "schedule": ConstantConfig(warmup=10)}, "warmup = 10"),
    ({"epochs": 3, "patience": 2}, "patience = 2: the run has 3 validations"),
    ({"steps": 30, "patience": 2, "validate_every": 10}, "patience = 2: the run has 3 validations"),
    ({"epochs": 2, "average": 3}, "average = 3: the run saves 2 checkpoints"),
    ({"steps": 20, "average": 3, "save_every": 10}, "average = 3: the run saves 2 checkpoints"),
    ({"steps": 500, "ema": 0.9999}, "ema = 0.9999: an average over more steps than the 500"),
    ({"epochs": 1, "select": "best"}, "select = 'best': the run validates once"),
    ({"steps": 50, "validate_every": 51}, "validate_every = 51: the run has 50 steps"),
    ({"steps": 50, "save_every": 51}, "save_every = 51: the run has 50 steps"),
]


@pytest.mark.parametrize("settings", QUIET, ids=str)
def test_no_warning_for_settings_that_act(settings: dict[str, Any]) -> None:
    assert [*settings_without_effect(TrainConfig(**settings), 10, validates=True)] == []


@pytest.mark.parametrize(("settings", "message"), TOLD, ids=str)
def test_settings_that_cannot_act_give_one_warning(settings: dict[str, Any], message: str) -> None:
    [found] = settings_without_effect(TrainConfig(**settings), 10, validates=True)
    assert found.startswith("train.")
    assert message in found
    assert ": lower" in found


def test_an_interval_between_validations_of_nothing() -> None:
    config = TrainConfig(steps=50, validate_every=10)
    [found] = settings_without_effect(config, 10, validates=False)
    assert "validate_every = 10: there are no validation data" in found


def test_an_epoch_is_of_steps_and_not_of_batches() -> None:
    config = TrainConfig(epochs=2, accumulate=4, schedule=CosineConfig(warmup=6))
    [found] = settings_without_effect(config, 10, validates=True)
    assert "the run has 6 steps" in found
