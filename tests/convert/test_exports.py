"""No export is silently wrong: every random model is equal, or refused with a reason."""

import pytest
from tests.convert.exports import QUICK, TARGETS, count, outcome

FEW, GRAPHS, MANY, ONNX = 25, 140, 500, 40
"""Drawn models a target; tracing a graph takes ten seconds. Number 133 of the graphs is an
encoder–decoder with token types."""

PACKAGES = {"hf": "safetensors", "graphs": "torch", "onnx": "onnxruntime"}


@pytest.mark.parametrize("target", QUICK)
def test_a_drawn_model_is_equal_or_refused(target: str) -> None:
    pytest.importorskip(PACKAGES.get(target, target))
    outcomes, _ = count(target, GRAPHS if target == "graphs" else FEW)
    assert outcomes["equal"] >= 3
    assert outcomes["refused"] >= 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_many_drawn_models_are_equal_or_refused(target: str) -> None:
    pytest.importorskip(PACKAGES.get(target, target))
    for number in range(ONNX if target == "onnx" else MANY):
        outcome(target, number)
