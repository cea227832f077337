"""Comparisons: tolerances by dtype, and NaN always fails."""

import pytest
import torch

from addnorm.checking.comparison import Comparison, distance, run_comparisons

ONES = torch.ones(3)


def test_distance() -> None:
    assert distance(ONES, ONES) == 0
    assert distance(100 * ONES, 50 * ONES) == 1
    assert distance(ONES * 0.1, ONES * 0.2) == pytest.approx(0.1)
    assert distance(ONES, torch.ones(2)) == float("inf")
    assert not distance(ONES * float("nan"), ONES) <= 1
    assert distance(torch.ones(0), torch.ones(0)) == 0


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [(torch.float64, 1e-10, 1e-8), (torch.float32, 1e-5, 1e-2), (torch.bfloat16, 0.1, 0.5)],
)
def test_a_type_has_its_tolerance(dtype: torch.dtype, near: float, far: float) -> None:
    wide = ONES.double()
    assert Comparison("near", (wide + near).to(dtype), wide).holds
    assert not Comparison("far", (wide + far).to(dtype), wide).holds
    assert not Comparison("exact", (wide + far).to(dtype), wide, 0.0).holds


def test_numbers_of_tokens_are_compared_exactly() -> None:
    assert Comparison("ids", torch.tensor([3]), torch.tensor([3])).holds
    assert not Comparison("ids", torch.tensor([3]), torch.tensor([4])).holds
    assert not Comparison("nan", ONES * float("nan"), ONES).holds


def test_the_first_that_fails_is_named() -> None:
    found = run_comparisons(
        "cell",
        iter([Comparison("a", ONES, ONES), Comparison("b", ONES, 0 * ONES), None]),  # type: ignore[list-item]
    )
    assert (found.compared, found.failed, found.error) == (2, "b", 1.0)
    assert run_comparisons("cell", []).failed is None


def test_an_exception_is_a_failure() -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield Comparison("a", ONES, ONES)
        raise RuntimeError("sizes differ")

    found = run_comparisons("cell", broken())
    assert (found.compared, found.failed) == (1, "RuntimeError: sizes differ")


def test_a_failed_comparison_closes_its_generator() -> None:
    """`no_grad` of a generator that stands still would hold for all that comes after."""

    def without_gradients():  # type: ignore[no-untyped-def]
        with torch.no_grad():
            yield Comparison("a", ONES, 0 * ONES)
            yield Comparison("b", ONES, ONES)

    compared = without_gradients()
    assert run_comparisons("cell", compared).failed == "a"
    assert torch.is_grad_enabled()
