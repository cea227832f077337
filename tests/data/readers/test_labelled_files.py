"""Files with a class each: folders, patterns and tables find the same, or name what lacks."""

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
import torch
from PIL import Image as pillow
from pyarrow import parquet

from addnorm.data import AudioConfig, Captioned, Image, ImageFilesConfig
from addnorm.data.examples import signal_of
from addnorm.data.readers.strings import StringsConfig
from addnorm.errors import InputError

CLASSES = {"cat": (0, 1), "dog": (2, 3)}


def picture(number: int) -> bytes:
    """A PNG of one grey."""
    out = BytesIO()
    pillow.fromarray(np.full((4, 4), 40 * number, np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The same four pictures in folders, side by side, and in tables."""
    rows: list[dict[str, Any]] = []
    (tmp_path / "flat").mkdir()
    for label, numbers in CLASSES.items():
        (tmp_path / "folders" / label / "deeper").mkdir(parents=True)
        for n in numbers:
            (tmp_path / "folders" / label / "deeper" / f"{n}.png").write_bytes(picture(n))
            (tmp_path / "flat" / f"{label}_{n}.png").write_bytes(picture(n))
            rows.append({"file_name": f"flat/{label}_{n}.png", "label": label})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "table.jsonl").write_text(lines)
    cells = "".join(f"{row['file_name']},{row['label']}\n" for row in rows)
    (tmp_path / "table.csv").write_text(f"file_name,label\n{cells}")
    contents = [(tmp_path / row["file_name"]).read_bytes() for row in rows]
    labels = [row["label"] for row in rows]
    theirs = [{"bytes": content, "path": None} for content in contents]
    parquet.write_table(pa.table({"image": theirs, "label": labels}), tmp_path / "a.parquet")
    parquet.write_table(pa.table({"image": contents, "label": labels}), tmp_path / "b.parquet")
    return tmp_path


def config(root: Path, train: Any, **options: Any) -> ImageFilesConfig:
    return ImageFilesConfig(root=root, train=train, image_size=(4, 4), channels=1, **options)


def found(config: ImageFilesConfig) -> list[tuple[str, int]]:
    examples = [one for one in config.load().train if isinstance(one, Image)]
    return sorted((one.label, int(one.pixels[0, 0, 0]) // 40) for one in examples)


EXPECTED = [("cat", 0), ("cat", 1), ("dog", 2), ("dog", 3)]
BY_NAME = {"label_pattern": "^([a-z]+)_"}


@pytest.mark.parametrize(
    ("train", "options"),
    [
        ("folders", {}),
        ("flat", BY_NAME),
        ("flat/*.png", BY_NAME),
        (("flat/cat*", "flat/dog*", "flat/*_0.png"), BY_NAME),
        ("table.jsonl", {}),
        ("table.csv", {}),
        ("a.parquet", {}),
        ("b.parquet", {}),
        ("b.parquet", {"file_column": "image"}),
    ],
    ids=str,
)
def test_the_same_files_are_found(root: Path, train: Any, options: dict[str, Any]) -> None:
    assert found(config(root, train, **options)) == EXPECTED


def test_a_pattern_may_be_absolute(root: Path) -> None:
    assert found(config(Path("elsewhere"), f"{root}/flat/*.png", **BY_NAME)) == EXPECTED


def test_splits_have_their_own_files(root: Path) -> None:
    corpus = config(root, "flat/*_[02].png", test="flat/*_[13].png", **BY_NAME).load()
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (2, 0, 2)


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        ("nowhere", {}, "nowhere does not exist"),
        ("flat/*.jpg", {}, r"flat/\*\.jpg: no file is found"),
        (("flat", "flat"), BY_NAME, "flat is a folder: a folder or a table is named alone"),
        ("flat", {}, r"cat_0\.png: it is in no folder of a class: give data\.label_pattern"),
        (
            "table.csv",
            BY_NAME,
            r"a table has them in data\.label_column: leave data\.label_pattern out",
        ),
        ("flat", {"file_column": "f", **BY_NAME}, r"data\.file_column names a column of a table"),
        ("flat", {"label_column": "f", **BY_NAME}, r"data\.label_column names a column of a table"),
        ("flat", {"labels": "text_beside", **BY_NAME}, r"'text_beside' .*: give one of the two"),
        (
            "flat",
            {"label_pattern": "^([0-9]+)_"},
            r"cat_0\.png: data\.label_pattern = .* finds no class in 'cat_0'",
        ),
        ("table.csv", {"label_column": "lable"}, r"table\.csv:2: no column 'lable'.*'label'"),
        ("table.csv", {"file_column": "file"}, r"no column 'file'.*'file_name'"),
        ("a.parquet", {"file_column": "picture"}, "no column 'picture'.*Valid: image, label"),
    ],
    ids=str,
)
def test_missing_files_and_columns_are_named(
    root: Path, train: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        config(root, train, **options).load()


def test_a_row_of_a_table_is_checked(root: Path) -> None:
    (root / "table.csv").write_text("file_name,label\nflat/cat_0.png,cat\nflat/cat_9.png,cat\n")
    with pytest.raises(InputError, match=r"table\.csv:3: .*cat_9\.png does not exist"):
        config(root, "table.csv").load()
    (root / "table.csv").write_text("file_name,label\nflat/cat_0.png,cat\nflat/dog_2.png,\n")
    report = config(root, "table.csv").load().reports["train"]
    assert str(report).startswith("2 read, 1 used, 1 left out: no label")
    text = base64.b64encode(b"x").decode()
    parquet.write_table(pa.table({"image": [3], "label": [text]}), root / "a.parquet")
    with pytest.raises(InputError, match="row 1: expected a file or the path of one, not 3"):
        config(root, "a.parquet").load()


def test_of_saved_splits_one_is_to_be_named(root: Path) -> None:
    files = [f"{root}/flat/cat_0.png", f"{root}/flat/dog_2.png"]
    (root / "both").mkdir()
    (root / "both" / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    for split in ("train", "test"):
        saved(root / "both" / split, "image", files, ["cat", "dog"])
    with pytest.raises(InputError, match="saved splits: name the folder of one: test, train"):
        config(root, "both").load()
    assert found(config(root, "both/test")) == [("cat", 0), ("dog", 2)]


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no files of a supported kind"):
        config(tmp_path, ".").load()


@pytest.mark.parametrize(
    ("label", "message"), [("(", "not a regular"), ("a", "0 groups"), ("(a)(b)", "2")]
)
def test_a_label_is_an_expression_with_one_group(label: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        config(tmp_path, "a", label_pattern=label)


# Texts in place of classes.


def texts(config: ImageFilesConfig) -> list[str]:
    return [one.text for one in config.load().train if isinstance(one, Captioned)]


def test_a_text_is_found_where_a_class_would_be(root: Path) -> None:
    rows = [{"file_name": f"flat/cat_{n}.png", "words": text} for n, text in enumerate(["a b", ""])]
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = config(root, "t.jsonl", labels="text", label_column="words").load()
    assert corpus.task == "translation"
    assert [one.text for one in corpus.train if isinstance(one, Captioned)] == ["a b"]
    assert corpus.reports["train"].left_out == {"no text": [f"{root / 't.jsonl'}:2"]}
    named = config(root, "flat/*.png", labels="text", label_pattern="^(.*)$")
    assert texts(named) == ["cat_0", "cat_1", "dog_2", "dog_3"]
    with pytest.raises(InputError, match=r"no column 'word'.*Valid: file_name, words"):
        config(root, "t.jsonl", labels="text", label_column="word").load()


def test_texts_are_read_from_txt_files(root: Path) -> None:
    for n, text in enumerate(["a cat\n", "two\nlines", "", " \n"]):
        (root / "flat" / f"{['cat', 'dog'][n // 2]}_{n}.txt").write_text(text)
    beside = config(root, "flat", labels="text_beside")
    assert texts(beside) == ["a cat", "two lines"]
    assert texts(config(root, "flat/*.png", labels="text_beside")) == ["a cat", "two lines"]
    assert [*beside.load().reports["train"].left_out] == ["no text"]
    (root / "flat" / "cat_1.txt").unlink()
    with pytest.raises(InputError, match=r"cat_1\.txt does not exist"):
        beside.load()
    with pytest.raises(InputError, match="a table has texts in a column"):
        config(root, "table.csv", labels="text_beside").load()


def test_strings_of_files(root: Path) -> None:
    strings = StringsConfig(shortest=2, longest=2)
    found = config(root, "flat/*.png", label_pattern="_([0-9])$", strings=strings)
    assert sorted(" ".join(texts(found)).split()) == ["0", "1", "2", "3"]
    with pytest.raises(InputError, match=r"class each: leave out data\.labels"):
        config(root, "flat", labels="text_beside", strings=strings).load()
    with pytest.raises(InputError, match=r"name data\.valid instead of data\.valid_fraction"):
        config(root, "table.csv", valid_fraction=0.5, strings=strings).load()


def test_strings_keep_the_groups_of_files_that_a_table_lists(root: Path) -> None:
    """The names of the files tell them, whatever the table is called."""
    (root / "flat_all_9.csv").write_text((root / "table.csv").read_text("utf-8"), "utf-8")
    by_name = StringsConfig(shortest=2, longest=2, group_pattern="^([a-z]+)_", separator="+")
    found = config(root, "flat_all_9.csv", test="flat_all_9.csv", strings=by_name)
    assert sorted(texts(found)) == ["cat+cat", "dog+dog"]
    pieces = found.load().pieces
    assert len({*pieces["train"]}) == 4
    assert sorted(pieces["test"]) == sorted(pieces["train"])
    odd = StringsConfig(shortest=2, longest=2, group_pattern="(x)")
    with pytest.raises(InputError, match=r"csv:2: data\.strings\.group_pattern .* in 'cat_0'"):
        config(root, "table.csv", strings=odd).load()
    with pytest.raises(InputError, match=r"a\.parquet, row 1: .* this one has no name"):
        config(root, "a.parquet", strings=by_name).load()


# Every medium by every reader, with a class and with a text.

READERS = (
    "folder", "pattern", "csv", "tsv", "jsonl", "dataset", "parquet of bytes", "parquet of paths",
)  # fmt: skip
MEDIA: dict[str, dict[str, Any]] = {
    "images": {
        "suffix": ".png",
        "column": "image",
        "config": ImageFilesConfig,
        "image_size": (4, 4),
    },
    "audio": {"suffix": ".wav", "column": "audio", "config": AudioConfig, "n_mels": 20},
}


def tone(number: int) -> bytes:
    """A WAV of one pitch."""
    out = BytesIO()
    soundfile.write(out, np.sin(np.arange(1600) * (number + 1) / 9) / 2, 16_000, format="WAV")
    return out.getvalue()


def saved(folder: Path, column: str, files: list[str], labels: list[str]) -> str:
    """A split as Hugging Face's library saves it, with the files in it, and classes by number."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    names = sorted(set(labels))
    medium = datasets.Image() if column == "image" else datasets.Audio()
    held = [{"bytes": Path(file).read_bytes(), "path": None} for file in files]
    split = datasets.Dataset.from_dict({column: held, "label": labels}).cast_column(column, medium)
    split.cast_column("label", datasets.ClassLabel(names=names)).save_to_disk(str(folder))
    return folder.name


def written(root: Path, medium: str, reader: str) -> Any:
    """The four files where a reader finds them; what `train` names."""
    facts = MEDIA[medium]
    rows: list[tuple[str, str]] = []
    for label, numbers in CLASSES.items():
        for n in numbers:
            name = f"{label}/{label}_{n}{facts['suffix']}"
            (root / "files" / label).mkdir(parents=True, exist_ok=True)
            content = picture(n) if medium == "images" else tone(n)
            (root / "files" / name).write_bytes(content)
            rows.append((f"files/{name}", label))
    match reader:
        case "folder":
            return "files"
        case "pattern":
            return f"files/*/*{facts['suffix']}"
        case "csv" | "tsv":
            mark = "," if reader == "csv" else "\t"
            lines = [("file_name", "label"), *rows]
            (root / f"t.{reader}").write_text("".join(f"{mark.join(row)}\n" for row in lines))
            return f"t.{reader}"
        case "jsonl":
            cells = ({"file_name": file, "label": label} for file, label in rows)
            (root / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in cells))
            return "t.jsonl"
        case "dataset":
            files = [str(root / file) for file, _ in rows]
            return saved(root / "t", facts["column"], files, [label for _, label in rows])
        case _:
            paths, labels = zip(*rows, strict=True)
            contents = [{"bytes": (root / path).read_bytes(), "path": None} for path in paths]
            held = {facts["column"]: contents} if reader.endswith("bytes") else {"file_name": paths}
            parquet.write_table(pa.table({**held, "label": labels}), root / "t.parquet")
            return "t.parquet"


@pytest.mark.parametrize("labels", ["class", "text"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("medium", MEDIA)
def test_every_medium_by_every_reader(
    medium: str, reader: str, labels: str, tmp_path: Path
) -> None:
    facts = dict(MEDIA[medium])
    kind = facts.pop("config")
    train = written(tmp_path, medium, reader)
    options = {key: facts[key] for key in facts.keys() - {"suffix", "column"}}
    if labels == "text" and reader == "folder":
        options["label_pattern"] = "^([a-z]+)_"
    config = kind(root=tmp_path, train=train, labels=labels, **options)
    corpus = config.load()
    assert (corpus.medium, corpus.task) == (
        medium,
        "classification" if labels == "class" else "translation",
    )
    files = sorted((tmp_path / "files").rglob("*.*"))
    expected = [(file.parent.name, config.read(file, "")) for file in files]
    said = [getattr(one, "label", None) or getattr(one, "text", None) for one in corpus.train]
    assert said == [label for label, _ in expected]
    for example, (_, signal) in zip(corpus.train, expected, strict=True):
        assert torch.equal(signal_of(example), signal)
