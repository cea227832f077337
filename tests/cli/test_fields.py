"""Recipe fields among command-line arguments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.cli.fields import TABLES, fields_given
from addnorm.errors import InputError


def test_both_ways_to_write_a_value() -> None:
    words = ["--train.lr", "3e-4", "--data.root=a=b", "--train.seed", "-5", "--eval.x="]
    words += ["--model.y", "--z"]
    assert fields_given(words, []) == {
        "train.lr": "3e-4",
        "data.root": "a=b",
        "train.seed": "-5",
        "eval.x": "",
        "model.y": "--z",
    }
    assert fields_given([], []) == {}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--train.lr"], "--train.lr needs a value"),
        (["train.lr", "1"], "neither an option nor a field"),
        (["--trian.lr", "1"], "Did you mean '--train.lr'?"),
        (["--dryrun"], "Did you mean '--dry-run'?"),
        (["--train"], "neither an option nor a field"),
        (["--train."], "neither an option nor a field"),
        (["extra"], "neither an option nor a field"),
        (["--train.steps", "3", "--resume"], "--resume is for `addnorm train`"),
    ],
)
def test_what_is_no_field(words: list[str], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        fields_given(words, ["--dry-run"])
    assert expected in str(caught.value)


NAMES = st.from_regex(r"[a-z_]+", fullmatch=True)


@given(
    st.lists(st.tuples(st.sampled_from(TABLES), NAMES, st.text()), unique_by=lambda one: one[:2])
)
def test_every_field_comes_through(given_: list[tuple[str, str, str]]) -> None:
    words = [part for table, name, value in given_ for part in (f"--{table}.{name}", value)]
    assert fields_given(words, []) == {f"{table}.{name}": value for table, name, value in given_}
