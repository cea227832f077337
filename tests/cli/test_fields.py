"""Recipe fields among command-line arguments."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.cli.fields import SETTINGS, TABLES, fields_given, settings_of, unknown_field
from addnorm.errors import InputError
from addnorm.tasks.eval_config import EvalConfig
from addnorm.training.settings import TrainConfig


def test_both_ways_to_write_a_value() -> None:
    words = ["--train.lr", "3e-4", "--data.root=a=b", "--train.seed", "-5", "--eval.metric="]
    words += ["--model.y", "--z"]
    assert fields_given(words) == {
        "train.lr": "3e-4",
        "data.root": "a=b",
        "train.seed": "-5",
        "eval.metric": "",
        "model.y": "--z",
    }
    assert fields_given([]) == {}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--train.lr"], "--train.lr needs a value"),
        (["train.lr", "1"], "Unknown option: train.lr"),
        (["--trian.lr", "1"], "Unknown option: --trian.lr"),
        (["--train"], "Unknown option: --train"),
        (["--train."], "Unknown option: --train."),
        (["extra"], "Unknown option: extra"),
        (["--train.lrr", "1"], "--train.lrr: train.lrr is not a field. Did you mean 'lr'? Valid:"),
        (["--eval.metrics", "1"], "eval.metrics is not a field. Did you mean 'metric'?"),
        (["--train.steps", "3", "--resume"], "--resume is for `addnorm train`"),
    ],
)
def test_unknown_fields_are_rejected(words: list[str], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        fields_given(words)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--trian.lr", " Did you mean '--train.lr'?"),
        ("--lr", " Did you mean '--train.lr'?"),
        ("--dryrun", " Did you mean '--dry-run'?"),
        ("--metric", " Did you mean '--eval.metric'?"),
        ("--qqqqq", ""),
    ],
)
def test_the_nearest_option_or_field(word: str, expected: str) -> None:
    said = f"{word!r} is neither an option nor a field such as --train.lr.{expected}"
    assert unknown_field(word, ["--dry-run"]) == said


def test_settings_are_those_of_the_configurations() -> None:
    """They are read from the source, without an import."""
    for table, config in (("train", TrainConfig), ("eval", EvalConfig)):
        assert settings_of(table) == [field.name for field in fields(config)]


NAMES = st.from_regex(r"[a-z_]+", fullmatch=True)


@given(
    st.lists(
        st.tuples(st.sampled_from(TABLES), NAMES, st.text()), unique_by=lambda one: one[:2]
    ).map(lambda rows: [row for row in rows if row[0] not in SETTINGS])
)
def test_every_field_comes_through(given_: list[tuple[str, str, str]]) -> None:
    words = [part for table, name, value in given_ for part in (f"--{table}.{name}", value)]
    assert fields_given(words) == {f"{table}.{name}": value for table, name, value in given_}
