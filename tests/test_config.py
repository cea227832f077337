"""Every configuration is frozen, takes keywords only, and refuses what it does not know."""

from dataclasses import FrozenInstanceError

import pytest
from pydantic import ValidationError

from addnorm.config import Probability, config


@config
class Drop:
    """An example."""

    p: Probability = 0.5


def test_it_is_frozen_and_keyword_only() -> None:
    drop = Drop(p=0.25)
    with pytest.raises(FrozenInstanceError):
        drop.p = 0.5  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises((TypeError, ValidationError)):
        Drop(0.25)  # pyright: ignore[reportCallIssue]


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="rate"):
        Drop(rate=0.5)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan"), "much"])
def test_impossible_values_are_refused(p: object) -> None:
    with pytest.raises(ValidationError):
        Drop(p=p)  # pyright: ignore[reportArgumentType]


def test_equal_values_are_equal_configurations() -> None:
    assert Drop(p=0.5) == Drop()
    assert hash(Drop(p=0.5)) == hash(Drop())
