"""Patterns: each builds its mask, and invalid sizes are refused."""

import pytest
from tests.contracts import PATTERN_RECORDS, check_records

from addnorm.nn.attention import BlocksPatternConfig, PatternConfig, WindowPatternConfig
from addnorm.nn.masks import Blocks, Full, Window


def test_every_pattern_has_a_record() -> None:
    check_records(PatternConfig, PATTERN_RECORDS)


def test_each_builds_its_mask() -> None:
    built = [record.build() for record in PATTERN_RECORDS]
    assert built == [Full(), Window(3), Window(1), Blocks(2, 1, 1), Blocks(2, 0)]


@pytest.mark.parametrize("size", [0, -1])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="size"):
        WindowPatternConfig(size=size)
    with pytest.raises(ValueError, match="size"):
        BlocksPatternConfig(size=size)
