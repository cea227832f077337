"""The `[train]` table: contradictory settings are refused."""

import pytest
from pydantic import TypeAdapter, ValidationError
from tests.contracts import check_config

from addnorm.training.optim import MuonConfig
from addnorm.training.schedule import CosineConfig
from addnorm.training.settings import TrainConfig


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(steps=1),
        TrainConfig(epochs=2, optimizer=MuonConfig(), schedule=CosineConfig(), ema=0.9),
        TrainConfig(steps=9, average=3, patience=2, clip=None, precision="bfloat16"),
    ],
)
def test_round_trip(config: TrainConfig) -> None:
    check_config(config, TrainConfig)


def test_the_last_update_of_an_epoch_may_have_fewer_batches() -> None:
    config = TrainConfig(epochs=2, accumulate=3)
    assert [config.steps_per_epoch(n) for n in (0, 1, 3, 4)] == [0, 1, 1, 2]
    assert config.total_steps(4) == 4
    assert TrainConfig(steps=7, accumulate=3).total_steps(4) == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either steps or epochs"),
        ({"steps": 1, "epochs": 1}, "either steps or epochs"),
        ({"steps": 1, "ema": 0.9, "average": 2}, "ema and average"),
        ({"steps": 1, "average": 2, "select": "best"}, "average replaces the best"),
        ({"steps": 0}, "steps"),
        ({"steps": 1, "accumulate": 0}, "accumulate"),
        ({"steps": 1, "keep": 0}, "keep"),
        ({"steps": 1, "lr": -1.0}, "lr"),
        ({"steps": 1, "clip": 0.0}, "clip"),
        ({"steps": 1, "ema": 1.0}, "ema"),
        ({"steps": 1, "precision": "float8"}, "precision"),
        ({"steps": 1, "optimizer": {"kind": "sgd"}}, "optimizer"),
    ],
)
def test_contradictions_and_impossible_values_are_refused(settings, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(TrainConfig).validate_python(settings)
