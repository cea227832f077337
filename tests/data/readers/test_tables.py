"""Tables: columns by name, one kind of example each, every row used or reported."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data import (
    DatasetConfig,
    Labelled,
    MultiLabelled,
    Pair,
    Scored,
    TableConfig,
    Tagged,
    Text,
)
from addnorm.data.example import Example
from addnorm.data.readers import tables
from addnorm.data.readers.constructors import table
from addnorm.data.readers.rows import Placed, Row
from addnorm.data.readers.tables import Record, Table, row_of
from addnorm.errors import InputError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", 'text\tn\tlabel\nsay "hi\t1\tx\nb, c\t2\ty\n'),
        ("a.tsv.gz", 'text\tn\tlabel\nsay "hi\t1\tx\nb, c\t2\ty'),
        ("a.csv", 'text,n,label\n"say ""hi",1,x\n"b, c",2,y\n'),
        ("a.csv.gz", 'text,n,label\r\n"say ""hi",1,x\r\n"b, c",2,y\r\n'),
        ("a.jsonl", '{"text": "say \\"hi", "label": "x"}\n{"label": "y", "text": "b, c"}\n'),
    ],
)
def test_columns_by_name(put, name: str, text: str) -> None:
    corpus = TableConfig(train=put(name, text), text="text", label="label").load()
    assert corpus.train == [Labelled('say "hi', "x"), Labelled("b, c", "y")]


def test_the_columns_say_what_kind_of_example_it_is(put) -> None:
    path = put("a.tsv", "en\tde\twords\ttags\na b\tc d\te f\tO B\n")
    assert TableConfig(train=path, source="en", target="de").load().train == [Pair("a b", "c d")]
    assert TableConfig(train=path, text="de").load().train == [Text("c d")]
    assert TableConfig(train=path, tokens="words", tags="tags").load().train == [
        Tagged(("e", "f"), ("O", "B"))
    ]


@pytest.mark.parametrize(
    "columns", [{}, {"source": "a"}, {"text": "a", "tags": "b"}, {"label": "x"}]
)
def test_columns_of_no_kind_are_refused(columns: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="source and target; text and label"):
        TableConfig(train=Path("a.tsv"), **columns)


@pytest.mark.parametrize(
    ("name", "text"), [("a.tsv", "txt\nx\n"), ("a.csv", "txt\nx\n"), ("a.jsonl", '{"txt": "x"}')]
)
def test_a_missing_column_is_refused(put, name: str, text: str) -> None:
    with pytest.raises(InputError, match=r"a\.\w+:\d: no column 'text'.*Did you mean 'txt'"):
        TableConfig(train=put(name, text), text="text").load()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "a\tb\nx\ty\nx\n", "a.tsv:3: 1 cells, but 2 columns"),
        ("a.csv", 'a,b\n"x\ny",z\nx,y,z\n', "a.csv:4: 3 cells, but 2 columns"),
        ("a.csv", 'a,b\nx,y\n"x"y,z\n', "a.csv:3: not CSV"),
        ("a.csv", 'a,b\nx,"y', "a.csv:2: not CSV"),
        ("a.jsonl", '{"a": "x"}\n{"a": \n', "a.jsonl:2: not JSON"),
        ("a.jsonl", "[" * 100_000, "a.jsonl:1: not JSON"),
        ("a.jsonl", '["a"]', "a.jsonl:1: expected an object"),
        ("a.jsonl", '{"a": 3}', "a.jsonl:1: expected text, not 3"),
        ("a.jsonl", '{"a": "x\\u0000"}', "a.jsonl:1: a NUL"),
        ("a.jsonl", '{"a": "\\ud800"}', "a.jsonl:1: .*half a surrogate"),
        ("a.xls", "a", "unknown kind of table '.xls'"),
        ("a.parquet", "PAR1 it is not", "not readable as Parquet"),
    ],
)
def test_damaged_tables_are_refused_with_their_place(put, name, text, message) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(InputError, match=message):
        TableConfig(train=put(name, text), text="a").load()


def test_several_labels_and_numbers(put) -> None:
    rows = 'text,topics,stars\nfine,"a, b,a",4\nwet,,-1.5e1\n'
    folder = put("r.csv", rows).parent
    both = {"root": folder, "train": "r.csv", "text": "text"}
    corpus = TableConfig(**both, labels="topics").load()
    assert corpus.train == [MultiLabelled("fine", ("a", "b")), MultiLabelled("wet", ())]
    assert (corpus.task, corpus.labels) == ("multi_label", ("a", "b"))
    corpus = TableConfig(**both, values="stars").load()
    assert corpus.train == [Scored("fine", (4.0,)), Scored("wet", (-15.0,))]
    assert (corpus.task, corpus.labels) == ("regression", ("value",))
    lists = [{"t": "x", "l": ["b", "a,c"], "v": [1, 2.5]}, {"t": "y", "l": [], "v": "3, 4"}]
    assert table(lists, text="t", labels="l").train[0] == MultiLabelled("x", ("b", "a,c"))
    numbers = table(lists, text="t", values="v")
    assert [one.values for one in numbers.train] == [(1.0, 2.5), (3.0, 4.0)]
    assert numbers.labels == ("value_1", "value_2")
    for bad in ("four", "nan", "1e999", True, [1, None], {}):
        with pytest.raises(InputError, match="expected numbers"):
            table([{"t": "x", "v": bad}], text="t", values="v")
    with pytest.raises(InputError, match="as many values; one has 1, another 2"):
        table([{"t": "x", "v": 1}, {"t": "y", "v": [1, 2]}], text="t", values="v")
    with pytest.raises(InputError, match="expected labels"):
        table([{"t": "x", "l": 3}], text="t", labels="l")


def test_empty_cells_are_reported(put) -> None:
    path = put(
        "a.jsonl",
        '{"t": "x", "l": 1}\n\n{"t": " ", "l": 1}\n{"t": "y", "l": null}\n{"t": null, "l": ""}\n',
    )
    corpus = TableConfig(train=path, text="t", label="l").load()
    assert corpus.train == [Labelled("x", "1")]
    assert corpus.reports["train"].left_out == {
        "empty line": [f"{path}:2"],
        "empty text": [f"{path}:3"],
        "empty label": [f"{path}:4"],
        "empty text and label": [f"{path}:5"],
    }


def test_words_and_tags_must_be_as_many(put) -> None:
    path = put("a.jsonl", '{"w": ["a", "b"], "t": ["O", "O"]}\n{"w": ["a"], "t": ["O", "O"]}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2: 1 tokens but 2 tags"):
        TableConfig(train=path, tokens="w", tags="t").load()


def test_an_empty_word_and_an_empty_sentence_are_reported(put) -> None:
    rows = [(["a"], ["O"]), (["a", ""], ["O", "O"]), ([], [])]
    path = put("a.jsonl", "".join(json.dumps({"w": w, "t": t}) + "\n" for w, t in rows))
    corpus = TableConfig(train=path, tokens="w", tags="t").load()
    assert corpus.reports["train"].left_out == {
        "an empty word or tag": [f"{path}:2"],
        "empty tokens and tags": [f"{path}:3"],
    }


def test_dotted_names_reach_into_nested_columns(put) -> None:
    path = put("a.jsonl", '{"translation": {"en": "a", "de": "b"}, "x.y": "c"}')
    config = TableConfig(train=path, source="translation.en", target="translation.de")
    assert config.load().train == [Pair("a", "b")]
    assert TableConfig(train=path, text="x.y").load().train == [Text("c")]
    with pytest.raises(InputError, match=r"no column 'fr'.*Valid: en, de"):
        TableConfig(train=path, source="translation.en", target="translation.fr").load()


cells = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=8))
def test_csv_and_jsonl_hold_any_text(tmp_path_factory, rows: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("tables")
    rows = [("a", "b"), *((a.replace("\r\n", ""), b.replace("\r\n", "")) for a, b in rows)]
    wanted = [Pair(a, b) for a, b in rows if a.strip() and b.strip()]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([("s", "t"), *rows])
    (folder / "a.csv").write_bytes(buffer.getvalue().encode())
    lines = "".join(f"{json.dumps({'s': a, 't': b}, ensure_ascii=False)}\n" for a, b in rows)
    (folder / "a.jsonl").write_bytes(lines.encode())
    for name in ("a.csv", "a.jsonl"):
        corpus = TableConfig(train=folder / name, source="s", target="t").load()
        assert corpus.train == wanted
        assert corpus.reports["train"].read == len(rows)


def test_a_csv_cell_of_ten_megabytes(put) -> None:
    corpus = TableConfig(train=put("a.csv", f"t\n{'x' * 10_000_000}\n"), text="t").load()
    assert len(corpus.train[0].text) == 10_000_000


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"w": [["a", "b"], ["c"], None], "t": [["O", "B"], ["O"], ["O"]]})
    parquet.write_table(table, tmp_path / "a.parquet")
    corpus = TableConfig(root=tmp_path, train="a.parquet", tokens="w", tags="t").load()
    assert corpus.train == [Tagged(("a", "b"), ("O", "B")), Tagged(("c",), ("O",))]
    assert corpus.reports["train"].left_out == {"empty tokens": [f"{tmp_path}/a.parquet, row 3"]}


# Hugging Face datasets


def saved(folder: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["neg", "pos"]),
        words=datasets.List(datasets.Value("string")),
        tags=datasets.List(datasets.ClassLabel(names=["O", "B"])),
    )
    columns = {
        "text": ["a", "b", "c"],
        "label": [1, 0, -1],
        "words": [["x"]] * 3,
        "tags": [[1]] * 3,
    }
    dataset = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(train=dataset, test=dataset.select([0])).save_to_disk(folder / "both")
    dataset.save_to_disk(folder / "one")
    return folder


def test_a_dataset_on_disk(tmp_path: Path) -> None:
    path = str(saved(tmp_path) / "both")
    corpus = DatasetConfig(path=path, text="text", label="label", test="test").load()
    assert corpus.train == [Labelled("a", "pos"), Labelled("b", "neg")]
    assert corpus.test == [Labelled("a", "pos")]
    assert corpus.reports["train"].left_out == {"empty label": [f"{path}, train row 3"]}
    tagged = DatasetConfig(path=path, tokens="words", tags="tags").load()
    assert tagged.train[0] == Tagged(("x",), ("B",))
    with pytest.raises(InputError, match=r"no split 'tset'.*Did you mean 'test'"):
        DatasetConfig(path=path, text="text", test="tset").load()
    single = DatasetConfig(path=str(tmp_path / "one"), text="text").load()
    assert len(single.train) == 3


def test_a_folder_without_a_dataset_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(InputError, match="datasets cannot load"):
        DatasetConfig(path=str(tmp_path), text="text").load()


def test_sentences_make_one_text_and_references_stay_apart(tmp_path: Path) -> None:
    """As in SciTLDR: a list of sentences, and a list of summaries."""
    (tmp_path / "a.jsonl").write_text(
        '{"source": ["One A.", " Two."], "target": ["Short A", "Brief"]}\n'
        '{"source": "Plain.", "target": "P"}\n'
        '{"source": ["Text."], "target": ["x", " "]}\n',
        encoding="utf-8",
    )
    names = {"source": "source", "target": "target"}
    corpus = TableConfig(root=tmp_path, train=Path("a.jsonl"), **names).load()
    assert corpus.train == [Pair("One A. Two.", "Short A", ("Brief",)), Pair("Plain.", "P")]
    assert list(corpus.reports["train"].left_out) == ["an empty source or reference"]
    low = TableConfig(root=tmp_path, train=Path("a.jsonl"), lowercase=True, **names).load()
    assert low.train[0] == Pair("one a. two.", "short a", ("brief",))


def test_a_sentence_of_another_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": ["One.", 2], "target": "x"}\n')
    table = TableConfig(root=tmp_path, train=Path("a.jsonl"), source="source", target="target")
    with pytest.raises(InputError, match=r"a\.jsonl:1: expected text, not 2"):
        table.load()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "text,text,label\na,b,c\n", "a.csv:1: two columns have the name 'text'"),
        ("a.tsv", "text\tlabel\tlabel\na\tb\tc\n", "a.tsv:1: two columns have the name 'label'"),
        ("a.csv", "text;label\na;b\n", "a.csv:1: ';' stands between the names 'text;label'"),
        ("a.csv", "text\tlabel\na\tb\n", "a.csv:1: .* stands between the names"),
        ("a.tsv.gz", "text,label\na,b\n", "a.tsv.gz:1: ',' stands between the names"),
    ],
)
def test_a_wrong_header_is_named(put, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TableConfig(train=put(name, text), text="text", label="label").load()


def test_columns_without_a_name_may_come_twice(put) -> None:
    """As a spreadsheet writes what is empty beside a table."""
    path = put("a.csv", "text,label,,\na,b,,\n")
    assert TableConfig(train=path, text="text", label="label").load().train == [Labelled("a", "b")]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("1e39", "a.jsonl:1: 1e\\+39 is too large: models compute in float32"),
        ("[1, 1e300]", "a.jsonl:1: .* is too large"),
        ('"1_0"', "a.jsonl:1: expected numbers"),
        ("1" + 400 * "0", "a.jsonl:1: expected numbers"),
    ],
)
def test_numbers_that_no_model_holds_are_named(put, cell: str, message: str) -> None:
    path = put("a.jsonl", f'{{"text": "a", "n": {cell}}}\n')
    with pytest.raises(InputError, match=message):
        TableConfig(train=path, text="text", values="n").load()


def test_nan_is_a_missing_label(put) -> None:
    path = put("a.jsonl", '{"text": "a", "label": NaN}\n{"text": "b", "label": "x"}\n')
    report = TableConfig(train=path, text="text", label="label").load().reports["train"]
    assert report.left_out == {"empty label": [f"{path}:1"]}
    path = put("b.jsonl", '{"text": "a", "labels": ["x", null]}\n')
    with pytest.raises(InputError, match=r"b.jsonl:1: an empty label among"):
        TableConfig(train=path, text="text", labels="labels").load()


CELLS = st.one_of(st.sampled_from(["a", " b ", "", " ", "ü\0", "\ud800", 3, None]), st.just("c"))


def outcome(rows: Iterator[Row | Placed]) -> tuple[list[tuple[str, Example]], Any, str]:
    """The examples before the first error with their places, what is left out, and the message."""
    read: list[tuple[str, Example]] = []
    left_out: dict[str, list[str]] = {}
    try:
        for row in rows:
            if isinstance(row, Placed):
                read.extend(zip(*row, strict=True))
            elif isinstance(row.content, str):
                left_out.setdefault(row.content, []).append(row.where)
            else:
                read.append((row.where, row.content))
    except InputError as error:
        return read, None, str(error)
    return read, left_out, ""


@pytest.mark.parametrize("names", [("source", "target"), ("text",), ("text", "label")])
@given(cells=st.lists(st.none() | st.tuples(CELLS, CELLS), max_size=12), stop=st.integers(0, 12))
def test_rows_by_columns_are_those_one_by_one(
    names: tuple[str, ...], cells: list[tuple[Any, Any] | None], stop: int
) -> None:
    def records() -> Iterator[tuple[str, Record | None]]:
        for n, row in enumerate(cells):
            if n == stop:
                raise InputError("damaged")
            yield f"file:{n}", None if row is None else {"one": row[0], "two": row[1]}

    columns = dict(zip(names, ("one", "two"), strict=False))
    one_by_one = (
        Row(where, "empty line") if record is None else row_of(columns, where, record)
        for where, record in records()
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "AT_ONCE", 3)
        assert outcome(tables.rows_of(columns, Table(records()))) == outcome(one_by_one)


def test_only_a_bad_row_is_read_by_itself(
    put: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["source\ttarget", *(f"a {n}\tb" for n in range(5000))]
    lines[4000] = "only one side\t"
    read = list[str]()

    def noted(columns: Mapping[str, str], where: str, record: Record) -> Row:
        read.append(where)
        return row_of(columns, where, record)

    monkeypatch.setattr(tables, "row_of", noted)
    path = put("a.tsv", "\n".join(lines))
    corpus = TableConfig(train=path, source="source", target="target").load()
    assert len(corpus.train) == 4999
    assert corpus.reports["train"].left_out == {"empty target": [f"{path}:4001"]}
    assert read == [f"{path}:4001"]
