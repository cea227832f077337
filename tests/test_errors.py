"""The message of a mistake offers the nearest valid name, or none at all."""

import pytest

from addnorm.errors import InputError, Interrupted, nearest


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rotory", " Did you mean 'rotary'?"),
        ("xyz", ""),
        ("", ""),
        ("none", " Did you mean 'none'?"),
    ],
)
def test_nearest(name: str, expected: str) -> None:
    assert nearest(name, ["rotary", "sinusoidal", "none"]) == expected


def test_nothing_is_near_among_nothing() -> None:
    assert nearest("rotary", []) == ""


def test_a_mistake_is_a_value_error_and_an_interruption_is_not() -> None:
    assert issubclass(InputError, ValueError)
    assert not issubclass(Interrupted, ValueError)
    assert Interrupted(7).step == 7
    assert "step 7" in str(Interrupted(7))
