"""The check from Python draws the same cells as the command, and returns their report."""

import pytest

from addnorm.checking.quick import check
from addnorm.errors import InputError


def test_a_few_combinations_hold() -> None:
    report = check("decoder/rotary/*", sample=2, seed=1)
    assert report.checked + report.refused.total() == 2
    assert not report.failed
    assert "combinations checked" in report.text()


def test_arguments_out_of_their_range() -> None:
    with pytest.raises(InputError, match="`sample = -1`: must be at least 0"):
        check(sample=-1)
    with pytest.raises(InputError, match=r"no argument sampel\. Did you mean 'sample'"):
        check(sampel=3)  # pyright: ignore[reportCallIssue]


def test_an_unknown_part_is_rejected() -> None:
    with pytest.raises(InputError, match="rotray"):
        check("decoder/rotray/*")
