"""Every kind of data through every reader: the same examples, whatever the file is."""

import csv
import io
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from addnorm.data import (
    ChatConfig,
    DatasetConfig,
    LabelledSeriesConfig,
    SeriesConfig,
    TableConfig,
)

Rows = list[dict[str, Any]]
TIMES = [datetime(2024, 2, 28) + timedelta(hours=i) for i in range(30)]
TALK = [
    [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": f"{n + 1}."}]
    for n in range(3)
]
LONG = [
    {"id": f"s{n}", "t": time, "x": float(n * i), "y": i - 2.5, "kind": "ab"[n % 2], "n": n / 2}
    for n in range(4)
    for i, time in enumerate(TIMES[: 3 + n])
]
KINDS: dict[str, tuple[Rows, dict[str, Any]]] = {
    "text": ([{"a": 'Say "hi", ä'}, {"a": "b"}], {"text": "a"}),
    "class": ([{"a": "x y", "b": "good"}, {"a": "z", "b": "bad"}], {"text": "a", "label": "b"}),
    "labels": ([{"a": "x", "b": "u,v"}, {"a": "z", "b": "u"}], {"text": "a", "labels": "b"}),
    "number": ([{"a": "x", "b": 1.5}, {"a": "z", "b": -2.0}], {"text": "a", "values": "b"}),
    "pair": (
        [{"a": "x", "c": "w", "b": "yes"}, {"a": "z", "c": "q", "b": "no"}],
        {"text": "a", "text_pair": "c", "label": "b"},
    ),
    "pair score": (
        [{"a": "x", "c": "w", "b": 3.0}, {"a": "z", "c": "q", "b": 0.5}],
        {"text": "a", "text_pair": "c", "values": "b"},
    ),
    "translation": ([{"s": "a b", "t": "c, d"}] * 2, {"source": "s", "target": "t"}),
    "tags": ([{"w": "Anna sings", "t": "B-PER O"}] * 2, {"tokens": "w", "tags": "t"}),
    "summary": (
        [{"s": ["One.", "Two."], "t": ["both", "two"]}] * 2, {"source": "s", "target": "t"},
    ),
    "words": ([{"w": ["Anna", "sings"], "t": ["B-PER", "O"]}] * 2, {"tokens": "w", "tags": "t"}),
    "several labels": ([{"a": "x", "b": ["u", "v"]}, {"a": "z", "b": ["v"]}],
                       {"text": "a", "labels": "b"}),
    "chat": ([{"messages": one} for one in TALK], {}),
    "series": ([{"t": t, "x": i / 4, "y": 7 - i} for i, t in enumerate(TIMES)], {}),
    "series with a class": (LONG, {"label_column": "kind", "columns": ("x", "y")}),
    "series with a number": (
        LONG, {"value_column": "n", "time_column": "t", "columns": ("y",)},
    ),
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "chat": ChatConfig,
    "series": SeriesConfig,
    "series with a class": LabelledSeriesConfig,
    "series with a number": LabelledSeriesConfig,
}
NESTED = {"summary", "words", "several labels", "chat"}
"""Kinds whose cells are lists, which CSV and TSV have none of."""


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as text formats hold it."""
    return {k: str(cell) if isinstance(cell, datetime) else cell for k, cell in row.items()}


def as_csv(rows: Rows, folder: Path, delimiter: str = ",") -> Path:
    out = io.StringIO()
    marks = {"quoting": csv.QUOTE_NONE, "quotechar": None} if delimiter == "\t" else {}
    lines = csv.DictWriter(out, rows[0], delimiter=delimiter, lineterminator="\n", **marks)
    lines.writeheader()
    lines.writerows(map(plain, rows))
    file = folder / ("a.tsv" if delimiter == "\t" else "a.csv")
    file.write_text(out.getvalue(), encoding="utf-8")
    return file


def as_tsv(rows: Rows, folder: Path) -> Path:
    return as_csv(rows, folder, "\t")


def as_jsonl(rows: Rows, folder: Path) -> Path:
    file = folder / "a.jsonl"
    file.write_text("".join(f"{json.dumps(plain(row))}\n" for row in rows), encoding="utf-8")
    return file


def as_parquet(rows: Rows, folder: Path) -> Path:
    parquet.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    return folder / "a.parquet"


def as_dataset(rows: Rows, folder: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(str(folder / "saved"))
    return folder / "saved"


READERS: dict[str, Callable[[Rows, Path], Path]] = {
    "csv": as_csv, "tsv": as_tsv, "jsonl": as_jsonl, "parquet": as_parquet, "dataset": as_dataset,
}  # fmt: skip


def said(example: Any) -> Any:
    """An example in plain values."""
    fields = {name: getattr(example, name) for name in example.__dataclass_fields__}
    fields.pop("places", None)
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in fields.items()}


def corpus_of(kind: str, file: Path) -> Any:
    fields = KINDS[kind][1]
    if kind == "series":
        return SeriesConfig(file=file, **fields).load()
    return CONFIGS.get(kind, TableConfig)(train=file, **fields).load()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_gives_the_same(kind: str, reader: str, tmp_path: Path) -> None:
    if kind in NESTED and reader in ("csv", "tsv"):
        pytest.skip("its cells hold no lists")
    rows, fields = KINDS[kind]
    found = corpus_of(kind, READERS[reader](rows, tmp_path))
    expected = corpus_of(kind, as_jsonl(rows, tmp_path))
    assert [said(one) for one in found.train] == [said(one) for one in expected.train]
    assert [said(one) for one in found.test] == [said(one) for one in expected.test]
    n = {k: (report.read, report.used) for k, report in found.reports.items()}
    assert n == {k: (report.read, report.used) for k, report in expected.reports.items()}
    if kind in CONFIGS or reader != "dataset":
        return
    again = DatasetConfig(path=str(tmp_path / "saved"), **fields).load()
    assert [said(one) for one in again.train] == [said(one) for one in expected.train]


def test_readers_give_the_written_values(tmp_path: Path) -> None:
    """Of the examples that all readers agree on: those of the hardest kinds, by hand."""
    series = corpus_of("series", as_jsonl(KINDS["series"][0], tmp_path)).train[0]
    assert series.values.tolist() == [[i / 4 for i in range(21)], [7.0 - i for i in range(21)]]
    whole = corpus_of("series with a class", as_jsonl(LONG, tmp_path)).train
    assert [(one.label, one.values.shape[1]) for one in whole] == [
        ("a", 3), ("b", 4), ("a", 5), ("b", 6),
    ]  # fmt: skip
    [first, *_] = corpus_of("chat", as_jsonl(KINDS["chat"][0], tmp_path)).train
    assert [part.is_answer for part in first.parts] == [False, True]
