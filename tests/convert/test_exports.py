"""No export is wrong without a word: every drawn model is equal, or refused with a reason."""

import pytest
from tests.convert.exports import TARGETS, count, outcome

FEW, MANY = 25, 500


@pytest.mark.parametrize("target", TARGETS)
def test_a_drawn_model_is_equal_or_refused(target: str) -> None:
    pytest.importorskip({"hf": "safetensors"}.get(target, target))
    outcomes, _ = count(target, FEW)
    assert outcomes["equal"] >= 3
    assert outcomes["refused"] >= 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_many_drawn_models_are_equal_or_refused(target: str) -> None:
    pytest.importorskip({"hf": "safetensors"}.get(target, target))
    for number in range(FEW, MANY):
        outcome(target, number)
