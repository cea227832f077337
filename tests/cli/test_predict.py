"""`addnorm predict`: rows of lines of JSON and of tables, each answered or refused by its place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import addnorm as an
from addnorm.data import Corpus, RecordsConfig
from addnorm.nn.heads import SpanHeadConfig
from addnorm.tasks.span_extraction import QuestionAnswer

Command = Callable[..., tuple[int, str, str]]
ROW = {"question": "Who?", "context": "Ada did."}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = Corpus([QuestionAnswer("Who?", "Ada did.", ("Ada",))])
    attention = an.AttentionConfig(n_heads=2)
    config = an.EncoderConfig(d_model=16, n_layers=1, attention=attention, head=SpanHeadConfig())
    folder = tmp_path_factory.mktemp("runs") / "answers"
    an.train(config, corpus, tokenizer="char", steps=1, progress=False).save(folder)
    return folder


def answers(out: str) -> list[Any]:
    return [json.loads(line)["answer"] for line in out.splitlines()]


def test_lines_and_tables_give_the_same_answers(
    run: Path, tmp_path: Path, addnorm: Command
) -> None:
    from pyarrow import Table, parquet

    rows = [ROW, {"question": "When?", "context": "Ada was 27."}]
    files = [tmp_path / f"rows{suffix}" for suffix in (".jsonl", ".csv", ".tsv", ".parquet")]
    lines = "\n".join(map(json.dumps, rows))
    files[0].write_text(f"\ufeff{lines}\n", encoding="utf-8")
    for file, mark in ((files[1], ","), (files[2], "\t")):
        table = [["id", *ROW], *(["7", *row.values()] for row in rows)]
        file.write_text("\n".join(map(mark.join, table)), encoding="utf-8")
    parquet.write_table(Table.from_pylist([{"id": 7, **row} for row in rows]), files[3])
    given = [addnorm("predict", run, file) for file in files]
    assert [code for code, *_ in given] == [0, 0, 0, 0]
    first, *others = [answers(out) for _, out, _ in given]
    assert len(first) == 2
    assert all(other == first for other in others)
    code, out, _ = addnorm("predict", run, files[1], files[0])
    assert (code, answers(out)) == (0, [*first, *first])


@pytest.mark.parametrize("columns", [{}, {"context": "text", "answers": "replies.text"}])
def test_a_file_of_training_is_read_by_its_columns_alone(
    columns: dict[str, str], tmp_path: Path, addnorm: Command
) -> None:
    row = {"id": 1, "question": "Who?", "context": "Ada did.", "answers": ["Ada"]}
    if columns:
        row |= {"text": row.pop("context"), "replies": {"text": row.pop("answers")}}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    config = an.EncoderConfig(d_model=16, n_layers=1, head=SpanHeadConfig())
    data = RecordsConfig(example="QuestionAnswer", train=file, columns=columns)
    run = an.train(config, data, tokenizer="char", steps=1, progress=False).save(tmp_path / "run")
    code, out, err = addnorm("predict", tmp_path / "run", file)
    assert (code, err) == (0, "")
    assert answers(out) == [run.predict({"question": "Who?", "context": "Ada did."}).answer]


WRONG: dict[str, tuple[str, bytes, str]] = {
    "a misspelt field": (".jsonl", b'{"question": "a", "contxt": "b"}', "Did you mean 'contxt'"),
    "null": (".jsonl", b'{"question": null, "context": "b"}', "rows.jsonl:1: question missing"),
    "a number": (".jsonl", b'{"question": 1, "context": "b"}', "question: expected text, not 1"),
    "a list": (".jsonl", b'{"question": ["a"], "context": "b"}', "question: expected text"),
    "no object": (".jsonl", b"[1]", "rows.jsonl:1: expected an object"),
    "no JSON": (".jsonl", b"Who?", "rows.jsonl:1: not JSON"),
    "an empty line": (".jsonl", b"\n", "rows.jsonl:1: not JSON"),
    "NaN": (".jsonl", b'{"question": NaN, "context": "b"}', "question: expected text, not nan"),
    "two of a key": (".jsonl", b'{"question": "a", "question": "b", "context": "c"}', "two values"),
    "half a character": (".jsonl", b'{"question": "\\ud800", "context": "c"}', "half a surrogate"),
    "bytes": (".jsonl", b'{"question": "\xff", "context": "c"}', "not UTF-8 at byte"),
    "a column too few": (".csv", b"question\nWho?\n", "rows.csv:2: no column 'context'"),
    "a ragged row": (".csv", b"question,context\nWho?\n", "rows.csv:2: 1 cells, but 2 columns"),
    "two columns alike": (".csv", b"question,question\na,b\n", "two columns have the name"),
    "an empty table": (".csv", b"", "is empty"),
    "no Parquet": (".parquet", b"question", "not readable as Parquet"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_is_refused_with_one_message(
    case: str, run: Path, tmp_path: Path, addnorm: Command
) -> None:
    suffix, data, message = WRONG[case]
    file = tmp_path / f"rows{suffix}"
    file.write_bytes(data)
    code, out, err = addnorm("predict", run, file)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert "row 1" not in err


def test_wrong_rows_are_skipped_and_counted(run: Path, tmp_path: Path, addnorm: Command) -> None:
    good, file = json.dumps(ROW), tmp_path / "rows.jsonl"
    file.write_text(f'{good}\n{{"question": 1, "context": "b"}}\n{good}\n', encoding="utf-8")
    code, out, err = addnorm("predict", run, file, "--errors", "skip")
    assert (code, len(answers(out))) == (0, 2)
    assert f"{file}:2: question: expected text, not 1: skipped" in err
    assert "1 line skipped" in err
