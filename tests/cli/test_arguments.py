"""Numbers of options, and the names of a command's options."""

from dataclasses import dataclass

import pytest

from addnorm.cli.arguments import at_least, check_number, options_of, takes_fields
from addnorm.cli.main import app
from addnorm.errors import InputError


@dataclass
class Group:
    """Two options."""

    share: float = 0.5
    n: int = 1


@pytest.mark.parametrize("value", [0, -5, 2**62 - 1, 1e300, "nan", None, True, (1, 2), Group()])
def test_numbers_that_a_machine_counts_to(value: object) -> None:
    check_number(object, value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "must be a finite number"),
        (-float("inf"), "must be a finite number"),
        (2**62, "must be less than 2⁶²"),
        (-(2**70), "must be more than -2⁶²"),
        ((1, 2**62), "must be less than 2⁶²"),
        (Group(share=float("inf")), "`share = inf`: must be a finite number"),
        (Group(n=2**62), "`n = 4611686018427387904`: must be less than"),
    ],
)
def test_others_are_refused(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        check_number(object, value)
    assert isinstance(caught.value, InputError) == isinstance(value, Group)


def test_a_least_number() -> None:
    at_least(1)(int, 1)
    for value in (0, -3):
        with pytest.raises(ValueError, match="must be at least 1"):
            at_least(1)(int, value)


def test_options_by_the_names_of_parameters() -> None:
    options = options_of(app["evaluate"])
    assert options["earlyexit"] == options["exit"] == "--exit"
    assert options["imports"] == "--import"
    assert options_of(app["prune"])["feedforward"] == "--feed-forward"
    assert takes_fields(app["evaluate"])
    assert not takes_fields(app["generate"])
