"""Losses, schedules and optimisers: built-in ones fulfil the contracts, faults are detected."""

from typing import Any

import pytest
from tests.checking import my_parts

from addnorm.checking.comparison import run_comparisons
from addnorm.checking.other_families import OTHER_CONTRACTS
from addnorm.data.batches.buckets import ExamplesConfig, PackedConfig, TokensConfig, WindowsConfig
from addnorm.errors import InputError
from addnorm.training.optim import AdamWConfig, MuonConfig
from addnorm.training.schedule import CosineConfig, LinearConfig


def failed(family: str, config: Any) -> str | None:
    return run_comparisons(family, OTHER_CONTRACTS[family](config)).failed


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("schedule", CosineConfig()),
        ("schedule", LinearConfig(warmup=3)),
        ("schedule", my_parts.HalvingConfig()),
        ("optimizer", AdamWConfig()),
        ("optimizer", MuonConfig()),
        ("optimizer", my_parts.MomentumConfig()),
        ("loss", my_parts.BrierConfig()),
        ("tokenizer", my_parts.LettersConfig()),
        ("batching", TokensConfig(tokens=300)),
        ("batching", WindowsConfig()),
        ("batching", PackedConfig()),
        ("batching", ExamplesConfig()),
    ],
)
def test_right_ones_hold(family: str, config: Any) -> None:
    assert failed(family, config) is None


@pytest.mark.parametrize(
    ("family", "config", "failure"),
    [
        ("schedule", my_parts.NegativeConfig(), "every factor of 10 steps"),
        ("optimizer", my_parts.ForgetfulConfig(), "it has every parameter; missing:"),
        ("loss", my_parts.MeanConfig(), "the loss of a batch is the sum"),
        ("tokenizer", my_parts.LettersConfig(lower=True), "'ein zweiter Text' is decoded to"),
        ("batching", my_parts.DrawnConfig(), "the batches of train are always the same"),
        ("batching", my_parts.GrowingConfig(), "every epoch of train has the same number"),
    ],
)
def test_a_fault_is_named(family: str, config: Any, failure: str) -> None:
    assert str(failed(family, config)).startswith(failure)


def test_data_loads() -> None:
    class Loads:
        def load(self) -> list[int]:
            return [1]

    class Empty:
        def load(self) -> None:
            return None

    assert failed("data", Loads()) is None
    assert failed("data", Empty()) == "it loads something"


def test_a_way_to_make_batches_for_no_task_says_why() -> None:
    class Refuses:
        def build(self, corpus: Any, seed: int = 0) -> Any:
            raise InputError("not for this")

    class Nothing:
        def build(self, corpus: Any, seed: int = 0) -> Any:
            return None

    assert "not for this" in str(failed("batching", Refuses()))
    assert "Nothing builds None: batching must give Loaders" in str(failed("batching", Nothing()))
