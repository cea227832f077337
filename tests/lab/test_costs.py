"""What claims cost: every claim at every size, within what the guide says, by what is left."""

from typing import get_args

import pytest

from addnorm.lab.claims import CLAIMS
from addnorm.lab.claims.claim import Size
from addnorm.lab.costs import HOURS, plan

GUIDE = {"quick": 10 / 60, "full": 2.5, "night": 8.0}
"""The hours on two cores that the guide and the command tell."""


def test_every_claim_has_its_hours() -> None:
    assert tuple(HOURS) == get_args(Size)
    assert all(tuple(hours) == CLAIMS for hours in HOURS.values())


@pytest.mark.parametrize("size", get_args(Size))
def test_two_cores_take_no_longer_than_is_told(size: Size) -> None:
    assert GUIDE[size] / 2 < sum(HOURS[size].values()) / 2 <= GUIDE[size]


def test_what_is_kept_costs_nothing() -> None:
    cells = [("warmup", "chain")] * 4 + [("distance", "chain")] * 5
    assert plan("full", cells, cells, 1) == "9 cells: about 2.3 hours with 1 at once"
    assert plan("full", cells, cells[:2], 2) == (
        "9 cells, 7 of them kept already: about 16 minutes with 2 at once, "
        "32 minutes of one busy core"
    )
    assert plan("full", cells, [], 2).endswith("9 of them kept already: nothing is left to measure")


def test_each_kind_of_data_costs_as_much_again() -> None:
    one = [("heads", "chain")] * 3
    both = [*one, *[("heads", "plays")] * 3]
    assert plan("night", one, one, 1).endswith("38 minutes with 1 at once")
    assert plan("night", both, both, 1).endswith("76 minutes with 1 at once")
