"""The fields of an example from cells of any kind: right, or refused with one message."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from addnorm.data import Corpus, RecordsConfig
from addnorm.data.example import Example, is_needed, value_of, wrong_text
from addnorm.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Odd(Example):
    """A field of every type."""

    task = "odd"
    targets = ("n", "marks")

    text: str
    hint: str | None = None
    n: int | None = None
    weight: float = 1.0
    marks: tuple[int, ...] = ()
    names: tuple[str, ...] | None = None
    right: bool = False
    place: tuple[int, float] = (0, 0.0)

    def source_text(self) -> str:
        return self.text


TYPES: dict[str, Any] = {
    "text": str,
    "hint": str | None,
    "n": int | None,
    "weight": float,
    "right": bool,
}


def fits(value: Odd) -> bool:
    """Whether every value is of the type of its field."""
    right = all(
        type(getattr(value, name)) in (hint, *getattr(hint, "__args__", ()))
        for name, hint in TYPES.items()
    )
    lists = all(type(i) is int for i in value.marks) and isinstance(value.marks, tuple)
    names = value.names is None or all(type(name) is str for name in value.names)
    first, second = value.place
    return right and lists and names and type(first) is int and type(second) is float


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["1", "1.5", " 7 ", "nan", "-inf", "1e999", "true", "\ud800", "\0", "9" * 30])
)
CELLS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
)
NAMES = st.sampled_from([*Odd.__dataclass_fields__, "more"])
ROWS = st.lists(st.dictionaries(NAMES, CELLS, max_size=5), min_size=1, max_size=4)
QUIET = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


def attempt(read: Callable[[], T]) -> tuple[T | None, str]:
    """What is read, or None and the message of the error."""
    try:
        return read(), ""
    except InputError as error:
        return None, str(error)


def loaded(file: Path) -> Corpus | None:
    """The corpus of a file; None where one message of a line says what is wrong."""
    corpus, message = attempt(RecordsConfig(example="Odd", train=file).load)
    if corpus is None:
        assert message.startswith((str(file), "train has no usable row", "some examples"))
        assert "\n" not in message
        return None
    report = corpus.reports["train"]
    assert report.used == len(corpus.train)
    assert all(isinstance(row, Odd) and fits(row) for row in corpus.train)
    return corpus


@QUIET
@given(ROWS)
@example([{"text": "a", "n": 3.0}])
@example([{"text": "a", "n": True}])
@example([{"text": "a", "n": 10**400}])
@example([{"text": "a", "names": "Ada", "n": "3"}])
def test_any_rows_of_json_are_read_right_or_refused(tmp_path: Path, rows: list[Any]) -> None:
    file = tmp_path / "rows.jsonl"
    text = "\n".join(map(json.dumps, rows))
    file.write_text(text, encoding="utf-8")
    corpus = loaded(file)
    if corpus is not None:
        assert corpus.reports["train"].read == len(rows)


@QUIET
@given(st.lists(st.lists(LEAVES, min_size=1, max_size=9), min_size=1, max_size=4))
def test_any_table_is_read_right_or_refused(tmp_path: Path, rows: list[list[Any]]) -> None:
    file, out = tmp_path / "rows.csv", io.StringIO()
    csv.writer(out).writerows([[*Odd.__dataclass_fields__], *rows])
    file.write_bytes(out.getvalue().encode("utf-8", "surrogatepass"))
    loaded(file)


@QUIET
@given(st.binary(max_size=60), st.sampled_from([".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz"]))
@example(b"", ".jsonl")
@example(b"\xff", ".csv")
@example(b'{"text": "a", "n": 1, "n": 2}', ".jsonl")
def test_any_file_is_read_right_or_refused(tmp_path: Path, data: bytes, suffix: str) -> None:
    file = tmp_path / f"rows{suffix}"
    file.write_bytes(data)
    loaded(file)


@given(st.dictionaries(NAMES, CELLS, max_size=5))
def test_any_inputs_to_predict_for_are_right_or_refused(row: dict[str, Any]) -> None:
    read, message = attempt(lambda: Odd.to_predict(row))
    assert message if read is None else fits(read)


@pytest.mark.parametrize(
    ("name", "cell", "value"),
    [
        ("n", "12", 12),
        ("n", 12.0, 12),
        ("n", "", None),
        ("n", float("nan"), None),
        ("weight", 3, 3.0),
        ("weight", "0.5", 0.5),
        ("marks", [1, "2"], (1, 2)),
        ("marks", 4, (4,)),
        ("names", "Ada", ("Ada",)),
        ("names", [], ()),
        ("right", "true", True),
        ("hint", "", ""),
    ],
)
def test_cells_become_values(name: str, cell: object, value: object) -> None:
    assert value_of(Odd, name, cell) == value


@pytest.mark.parametrize(
    ("name", "cell", "message"),
    [
        ("text", 5, "text: expected text, not 5"),
        ("text", ["a"], r"expected text, not \['a'\]"),
        ("n", 3.5, "n: expected an integer, not 3.5"),
        ("n", True, "expected an integer, not True"),
        ("n", 2**63, "an integer of more than 64 bits"),
        ("weight", "inf", "expected a number, not 'inf'"),
        ("marks", ["a"], r"expected a list of integers, not \['a'\]"),
        ("names", ["a", None], "expected a list of texts"),
        ("names", {"a": "b"}, "expected a list of texts"),
        ("place", [1], r"place: expected tuple\[int, float\]"),
    ],
)
def test_other_cells_are_refused(name: str, cell: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        value_of(Odd, name, cell)


def test_a_single_text_in_python_is_refused_for_a_list_of_texts() -> None:
    assert wrong_text(Odd("a")) is None
    assert wrong_text(Odd("a", names=("b", "c"))) is None
    with pytest.raises(InputError, match="example 1: names: expected a list of texts, not 'Ada'"):
        Corpus([Odd("a", names="Ada")])  # pyright: ignore[reportArgumentType]


def test_an_example_without_dataclass_or_of_an_unknown_type_is_refused() -> None:
    class Plain(Example):
        task = "odd"

    with pytest.raises(InputError, match="Plain is not a dataclass"):
        Corpus([Plain()])

    @dataclass(frozen=True)
    class Unknown(Example):
        task = "odd"
        text: "Nowhere"  # pyright: ignore

    with pytest.raises(InputError, match="Unknown: the type of a field: name 'Nowhere'"):
        Corpus([Unknown("a")])
    fields = Odd.__dataclass_fields__
    assert [name for name in fields if is_needed(fields[name])] == ["text"]
