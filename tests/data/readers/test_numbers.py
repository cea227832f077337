"""Numbers in cells: what is one, what none, and what is too large."""

import math
from decimal import Decimal

import pytest
import torch

from addnorm.data.readers.numbers import LARGEST, number_of


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("1.5", 1.5), (" -2e3 ", -2000.0), (3, 3.0), (Decimal("0.25"), 0.25), ("inf", math.inf),
        (10**400, math.inf), ("1_000", None), ("1,5", None), ("", None), ("two", None),
        (True, None), (None, None), ([1.0], None), ("\u0663", 3.0),
    ],
)  # fmt: skip
def test_what_is_a_number(cell: object, expected: float | None) -> None:
    assert number_of(cell) == expected


def test_the_largest_is_that_of_float32() -> None:
    assert torch.tensor([LARGEST, 1.001 * LARGEST]).isinf().tolist() == [False, True]
