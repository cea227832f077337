"""The check from Python: the cells that the command would draw, and their report."""

import pytest

from addnorm.check.quick import check
from addnorm.errors import InputError


def test_a_few_combinations_hold() -> None:
    report = check("decoder/rotary/*", sample=2, seed=1)
    assert report.checked + report.refused.total() == 2
    assert not report.failed
    assert "combinations checked" in report.text()


def test_a_part_that_there_is_not() -> None:
    with pytest.raises(InputError, match="rotray"):
        check("decoder/rotray/*")
