"""Custom parts: correct ones pass with every partner, and each fault is reported."""

from typing import Any

import pytest
from tests.checking import my_parts

from addnorm.checking.own import PartReport, check_part, partners


def checked(part: type, definition: Any = None, n: int = 1) -> PartReport:
    return check_part(part, definition=definition, compile=False, partners=n)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "definition"),
    [
        (my_parts.DyTConfig, my_parts.dyt_float64),
        (my_parts.DyTConfig, None),
        (my_parts.CosineConfig, my_parts.cosine_float64),
        (my_parts.NearConfig, my_parts.near_float64),
    ],
)
def test_a_right_part_holds(part: type, definition: Any) -> None:
    found = checked(part, definition)
    assert found.report.failed == []
    assert found.report.checked >= 4  # the contract in three architectures, and a partner
    assert found.report.compared > 60
    assert ("definition" in found.checked) == (definition is not None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "definition", "failure"),
    [
        (my_parts.DyTConfig, my_parts.dyt_without_bias, "logits"),
        pytest.param(my_parts.LeakingConfig, None, "logits", marks=pytest.mark.slow),
        (my_parts.WideningConfig, None, "dtype"),
        pytest.param(my_parts.UnusedConfig, None, "a gradient reaches", marks=pytest.mark.slow),
    ],
)
def test_a_fault_is_named(part: type, definition: Any, failure: str) -> None:
    failed = [result.failed for result in checked(part, definition, 1).report.failed]
    assert [name for name in failed if name and failure in name]


@pytest.mark.slow
def test_partners_that_it_refuses_are_counted() -> None:
    found = checked(my_parts.CosineConfig, None, 1).report
    assert [reason for reason in found.refused if "no fused kernel computes" in reason]


def test_a_norm_meets_every_other_part() -> None:
    there = {part for cell in partners("norm") for part in cell.parts}
    assert {axis for axis, _ in there} > {"position", "core", "output"}
    assert len({name for axis, name in there if axis == "norm"}) == 1


def test_a_loss_has_a_contract_of_its_own() -> None:
    assert checked(my_parts.BrierConfig).report.failed == []
    [failed] = checked(my_parts.MeanConfig).report.failed
    assert failed.failed == "the loss of a batch is the sum of its rows'"


@pytest.mark.slow
def test_the_contract_is_held_in_the_nearest_cell_that_is_allowed() -> None:
    found = checked(my_parts.ChoosyConfig, my_parts.cosine_float64).report
    assert found.failed == []
    assert found.checked == 7  # contract and long texts in three architectures, and a partner
