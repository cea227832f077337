"""Examples with nothing to learn: left out and counted, in every task and split, or refused."""

import json
import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as library
import torch
from tests.tasks.counting import Counted, CountHeadConfig

import addnorm
from addnorm.data.batches.buckets import (
    MaskedConfig,
    SeriesBatchesConfig,
    TokensConfig,
    WindowsConfig,
)
from addnorm.data.batches.denoising import DenoisingConfig, InfillingConfig
from addnorm.data.batches.frames import FramesConfig
from addnorm.data.example import is_missing
from addnorm.data.examples import (
    Captioned,
    Chat,
    ChatPart,
    Clip,
    Corpus,
    Example,
    Image,
    Labelled,
    LabelledSeries,
    MultiLabelled,
    Pair,
    Scored,
    ScoredSeries,
    Tagged,
    Text,
    Transcribed,
)
from addnorm.data.readers.hub import DatasetConfig
from addnorm.data.readers.images import ImageFilesConfig
from addnorm.data.readers.labelled_series import LabelledSeriesConfig
from addnorm.data.readers.rows import (
    LARGEST,
    NOT_FINITE,
    Row,
    assemble,
    class_in,
    complete,
    lack,
    number_of,
)
from addnorm.data.readers.tables import TableConfig
from addnorm.data.tokenizing.sides import MASK, Tokenizers, with_special_tokens
from addnorm.data.tokenizing.tokenizers import CharConfig, Tokenizer
from addnorm.errors import InputError
from addnorm.inspect.look import look
from addnorm.models import DecoderConfig, DualEncoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    CTCHeadConfig,
    SpanHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
)
from addnorm.nn.patches import PatchEmbeddingConfig, SeriesEmbeddingConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.nn.vectors import VectorHeadConfig
from addnorm.runs.encoded_data import encode
from addnorm.runs.evaluation import evaluate_on
from addnorm.runs.run import Run
from addnorm.tasks.registry import TASKS, task_of_training
from addnorm.tasks.span_extraction import QuestionAnswer

SIZES: Any = {"d_model": 8, "n_layers": 1, "attention": AttentionConfig(n_heads=1), "dropout": 0.0}
PIXELS = torch.zeros(1, 4, 4, dtype=torch.uint8)
FRAMES = torch.zeros(8, 12)
SERIES = torch.zeros(1, 8)


def told(*parts: tuple[str, bool]) -> Chat:
    return Chat(tuple(ChatPart(*part) for part in parts), tuple(text for text, _ in parts))


CHAT = told(("User: a b c d e f g h ", False), ("yes", True))
LONG_CHAT = told(("User: " + "a b c d " * 20, False), ("yes", True))

SHORTEN = {"batching": TokensConfig(max_len=40, longer="shorten"), "tokenizer": "char"}
CLASSES = EncoderConfig(**SIZES, head=ClassificationHeadConfig())
NUMBERS = EncoderConfig(**SIZES, head=ClassificationHeadConfig(problem="regression"))
LABELS = EncoderConfig(**SIZES, head=ClassificationHeadConfig(problem="multi_label"))
WRITER = EncoderDecoderConfig(**SIZES)
VISION: Any = {
    "position": NoPositionConfig(),
    "input": PatchEmbeddingConfig(patch=2, channels=1, size=(4, 4)),
}
SOUND: Any = {"input": LogMelEmbeddingConfig(n_mels=8)}
STEPS: Any = {"input": SeriesEmbeddingConfig(channels=1, patch=2)}
NAN_FRAMES = FRAMES.clone().fill_(math.nan)

Case = tuple[Any, list[Example], Example, str, dict[str, Any]]

LETTERS = with_special_tokens(Tokenizers.train(CharConfig(), Corpus([Text("abc ")])), (MASK,))

OF_PICTURES = VectorHeadConfig(pooling="first", width=512)

CASES: dict[str, Case] = {
    "chat": (
        DecoderConfig(**SIZES),
        [CHAT, CHAT],
        LONG_CHAT,
        "nothing to predict within 40 tokens",
        SHORTEN,
    ),
    "chat without an answer": (
        DecoderConfig(**SIZES),
        [CHAT],
        told(("User: a", False)),
        "no answer of the assistant",
        {"batching": TokensConfig()},
    ),
    "language": (
        DecoderConfig(**SIZES),
        [Text("a b c"), Text("b c a")],
        Text(" "),
        "empty text",
        {},
    ),
    "language by examples": (
        DecoderConfig(**SIZES),
        [Text("a b c")],
        Text(""),
        "empty text",
        {"batching": TokensConfig()},
    ),
    "masked": (
        EncoderConfig(**SIZES, head=TokenHeadConfig()),
        [Text("a b c a b c"), Text("c b a b")],
        Text("???"),
        "nothing but special tokens",
        {"batching": MaskedConfig(), "tokenizer": LETTERS},
    ),
    "denoising": (
        WRITER,
        [Text("a b c d e")],
        Text("\n"),
        "empty text",
        {"batching": DenoisingConfig()},
    ),
    "infilling": (
        WRITER,
        [Text("a b c d e")],
        Text(""),
        "empty text",
        {"batching": DenoisingConfig(noise=InfillingConfig())},
    ),
    "translation": (WRITER, [Pair("a b", "c d")] * 2, Pair("a", " "), "empty target", {}),
    "translation without a source": (
        WRITER,
        [Pair("a b", "c d")],
        Pair("", "d"),
        "empty source",
        {},
    ),
    "classification": (
        CLASSES,
        [Labelled("a", "x"), Labelled("b", "y")],
        Labelled("a", " "),
        "no label",
        {},
    ),
    "classification without a text": (
        CLASSES,
        [Labelled("a", "x"), Labelled("b", "y")],
        Labelled("", "x"),
        "empty text",
        {},
    ),
    "pairs": (
        CLASSES,
        [Labelled("a", "x", "b"), Labelled("b", "y", "c")],
        Labelled("a", "", "b"),
        "no label",
        {},
    ),
    "several labels": (
        LABELS,
        [MultiLabelled("a", ("x",)), MultiLabelled("b", ())],
        MultiLabelled("", ("x",)),
        "empty text",
        {},
    ),
    "regression": (
        NUMBERS,
        [Scored("a", (1.0,)), Scored("b", (2.0,))],
        Scored("c", (math.nan,)),
        NOT_FINITE,
        {},
    ),
    "similarity": (
        EncoderConfig(**SIZES, head=SimilarityHeadConfig(problem="regression")),
        [Scored("a", (1.0,), "b"), Scored("b", (0.5,), "a")],
        Scored("c", (math.inf,), "d"),
        NOT_FINITE,
        {},
    ),
    "tagging": (
        EncoderConfig(**SIZES, head=TaggingHeadConfig()),
        [Tagged(("a", "b"), ("B-X", "O"))] * 2,
        Tagged((), ()),
        "no words",
        {},
    ),
    "images": (
        EncoderConfig(**SIZES, **VISION, head=ClassificationHeadConfig()),
        [Image(PIXELS, "x"), Image(PIXELS + 1, "y")],
        Image(PIXELS, ""),
        "no label",
        {"tokenizer": None},
    ),
    "captions": (
        EncoderDecoderConfig(**SIZES, **VISION),
        [Captioned(PIXELS, "a b"), Captioned(PIXELS + 1, "b")],
        Captioned(PIXELS, "\t"),
        "no text",
        {},
    ),
    "pictures and texts": (
        DualEncoderConfig(**SIZES, image=EncoderConfig(**SIZES, **VISION, head=OF_PICTURES)),
        [Captioned(PIXELS, "a b"), Captioned(PIXELS + 1, "b")],
        Captioned(PIXELS, " "),
        "no text",
        {},
    ),
    "clips": (
        EncoderConfig(**SIZES, **SOUND, head=ClassificationHeadConfig()),
        [Clip(FRAMES, "x"), Clip(FRAMES + 1, "y")],
        Clip(NAN_FRAMES, "x"),
        NOT_FINITE,
        {"tokenizer": None},
    ),
    "transcription": (
        EncoderDecoderConfig(**SIZES, **SOUND),
        [Transcribed(FRAMES, "a b")] * 2,
        Transcribed(FRAMES, ""),
        "no text",
        {},
    ),
    "transcription by frames": (
        EncoderConfig(**SIZES, **SOUND, head=CTCHeadConfig()),
        [Transcribed(FRAMES, "aab"), Transcribed(FRAMES + 1, "abcabc")],
        Transcribed(FRAMES, "aabba"),  # five letters and two blanks in six frames
        "more tokens to write than the model has outputs",
        {"tokenizer": LETTERS},
    ),
    "transcription of images": (
        EncoderConfig(**SIZES, **VISION, head=CTCHeadConfig()),
        [Captioned(PIXELS, "abcab"), Captioned(PIXELS + 1, "aa")],
        Captioned(PIXELS, "aabb"),  # four letters and two blanks in a class token and four patches
        "more tokens to write than the model has outputs",
        {"tokenizer": LETTERS},
    ),
    "an answer cut off": (
        EncoderConfig(**SIZES, head=SpanHeadConfig()),
        [QuestionAnswer("a", "a b", ("b",)), QuestionAnswer("b", "a b " * 20, ("a",))],
        QuestionAnswer("a", "a b " * 20 + "c", ("c",)),
        "nothing to predict within 40 tokens",
        SHORTEN,
    ),
    "a question without a right answer": (
        EncoderConfig(**SIZES, head=SpanHeadConfig()),
        [QuestionAnswer("a", "a b", ("b",)), QuestionAnswer("b", "a b", ())],
        QuestionAnswer("b", "a b"),
        "nothing to predict",
        {},
    ),
    "a question without a text": (
        EncoderConfig(**SIZES, head=SpanHeadConfig()),
        [QuestionAnswer("a", "a b", ("b",))],
        QuestionAnswer("b", " ", ()),
        "empty context",
        {},
    ),
    "a custom task": (
        EncoderConfig(**SIZES, head=CountHeadConfig()),
        [Counted("a b", 2), Counted("a", 1)],
        Counted("a b"),
        "nothing to predict",
        {},
    ),
    "series with classes": (
        EncoderConfig(**SIZES, **STEPS, head=ClassificationHeadConfig()),
        [LabelledSeries(SERIES, "x"), LabelledSeries(SERIES + 1, "y")],
        LabelledSeries(SERIES / 0, "x"),
        NOT_FINITE,
        {"tokenizer": None, "batching": SeriesBatchesConfig()},
    ),
    "series with numbers": (
        EncoderConfig(**SIZES, **STEPS, head=ClassificationHeadConfig(problem="regression")),
        [ScoredSeries(SERIES, (1.0,)), ScoredSeries(SERIES + 1, (2.0,))],
        ScoredSeries(SERIES, (math.nan,)),
        NOT_FINITE,
        {"tokenizer": None, "batching": SeriesBatchesConfig()},
    ),
}
"""Of each task a model, examples, one without a target, why it is left out, and options."""


def test_every_task_has_a_case() -> None:
    """But forecasting: it learns from windows (see `data/ids/test_forecast_windows.py`)."""
    batching = {
        name: options.get("batching", TokensConfig()) for name, (*_, options) in CASES.items()
    }
    tasks = {task_of_training(case[0], batching[name]).name for name, case in CASES.items()}
    assert tasks == {*TASKS, "counting"} - {"forecasting"}


REFUSED = r"no example that is complete|every .* example has (nothing|more)"


def trained(model: Any, corpus: Corpus, options: dict[str, Any], **more: Any) -> Run:
    given = {"tokenizer": "word", "steps": 1, "progress": False, "device": "cpu"} | options | more
    return addnorm.train(model, corpus, **given)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_examples_without_a_target_are_left_out_counted_and_refused_alone(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, good, bad, reason, options = CASES[case]
    mixed = Corpus([bad, *good], valid=[*good, bad], test=[good[0], bad, *good])
    run = trained(model, mixed, options, progress=True)
    said = capsys.readouterr().err
    n = len(good)
    for split, used, place in (("train", n, 1), ("valid", n, n + 1), ("test", n + 1, 2)):
        assert f"{split}: {used + 1} read, {used} used, 1 left out: " in said
        assert f"({split} example {place})" in said
    assert reason in said
    scores = evaluate_on(run, mixed)
    assert scores == evaluate_on(run, replace(mixed, train=good, valid=good, test=[good[0], *good]))
    assert scores["examples"] == n + 1
    for split in ("train", "valid", "test"):
        alone: Any = {"train": good, "valid": good, "test": good, split: [bad]}
        with pytest.raises(InputError, match=REFUSED):
            trained(model, Corpus(**alone), options)
    with pytest.raises(InputError, match=REFUSED):
        evaluate_on(run, Corpus([bad]))


def test_a_clip_with_too_much_text_is_named_by_its_file_and_looked_at_by_none() -> None:
    model, good, bad, reason, options = CASES["transcription by frames"]
    rows = [Row(f"{n}.wav", clip) for n, clip in enumerate([good[0], Transcribed(FRAMES, ""), bad])]
    corpus = assemble({"train": rows, "valid": rows[:1]})
    assert corpus.places == {"train": ["0.wav", "2.wav"], "valid": ["0.wav"]}
    encoded = encode(corpus, LETTERS, task=task_of_training(model, FramesConfig()))
    encoded = encoded.for_input(model.input.n_positions).with_targets()
    assert encoded.reports["train"].left_out == {
        "no text": ["1.wav"],
        f"{reason} for its input": ["2.wav"],
    }
    alone = encode(
        replace(corpus, train=[bad, bad]), LETTERS, task=task_of_training(model, FramesConfig())
    )
    with pytest.raises(InputError, match=r"every training example has more tokens .*: 0.wav …"):
        alone.for_input(model.input.n_positions).with_targets()
    run = trained(model, Corpus(good), options)
    with pytest.raises(InputError, match="this model reads audio, not text"):
        look(run, "a text")


def test_a_target_without_a_token_is_none() -> None:
    """As of a tokenizer that takes characters away."""
    letters = LETTERS.source
    inner = library.Tokenizer.from_str(letters.inner.to_str())
    inner.normalizer = library.normalizers.Replace("-", "")
    text = Tokenizers(Tokenizer(inner), Tokenizer(inner))
    corpus = Corpus([Pair("a", "b"), Pair("a", "--"), Pair("a", "-c")])
    found = encode(corpus, text).with_targets()
    assert [one.index for one in found.train] == [0, 2]
    assert found.reports["train"].left_out == {"nothing to predict": ["train example 2"]}
    plain = encode(Corpus([Text("--"), Text("ab"), Text("-")]), text).with_targets()
    assert [one.index for one in plain.train] == [1]
    batches = WindowsConfig(seq_len=8, batch_size=4).build(plain).train.batches()
    [[row]] = [batch.inputs["tokens"].tolist() for batch in batches]
    assert len(row) == 4  # a ring of the start, two letters and the end


def test_tags_that_are_cut_off_all() -> None:
    corpus = Corpus([Tagged(("abcabc",) * 9, ("O",) * 9), Tagged(("a",), ("O",))])
    encoded = encode(corpus, LETTERS)
    with pytest.raises(
        InputError, match="max_len = 2 has no room for text in addition to 2 special"
    ):
        encoded.within(2, "shorten")
    short = encoded.within(3, "shorten")
    assert [one.index for one in short.train] == [0, 1]


def test_what_was_shortened_to_nothing_is_not_counted_as_shortened() -> None:
    corpus = Corpus([LONG_CHAT, CHAT, told(("a" * 30, False), ("b" * 30, True))])
    found = encode(corpus, LETTERS).within(40, "shorten")
    assert [one.index for one in found.train] == [1, 2]
    report = found.reports["train"]
    assert (report.read, report.used, list(report.shortened)) == (3, 2, ["train example 3"])


def test_one_rule_for_rows_of_files_and_for_a_corpus() -> None:
    for _, good, bad, *_ in CASES.values():
        assert all(lack(example) is None for example in good)
        if why := lack(bad):
            rows = [Row(f"row {n}", example) for n, example in enumerate([bad, *good])]
            assert assemble({"train": rows}).reports["train"].left_out == {why: ["row 0"]}
            left = complete(Corpus([bad, *good]))
            assert list(left.train) == good
            assert left.reports["train"].left_out == {why: ["train example 1"]}
            assert complete(left) is left


Read = Callable[[Path, list[Any]], Corpus]


def rows_of(cells: list[Any]) -> list[dict[str, Any]]:
    return [{"text": f"text {n}", "label": cell} for n, cell in enumerate(cells)]


def jsonl(folder: Path, cells: list[Any]) -> Corpus:
    file = folder / "a.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows_of(cells)))
    return TableConfig(train=file, text="text", label="label").load()


def parquet(folder: Path, cells: list[Any]) -> Corpus:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    try:
        table = pa.Table.from_pylist(rows_of(cells))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        pytest.skip("a column of Parquet has one type")
    pq.write_table(table, folder / "a.parquet")
    return TableConfig(train=folder / "a.parquet", text="text", label="label").load()


def dataset(folder: Path, cells: list[Any]) -> Corpus:
    datasets = pytest.importorskip("datasets")
    pa = pytest.importorskip("pyarrow")
    try:
        datasets.Dataset.from_list(rows_of(cells)).save_to_disk(folder / "saved")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        pytest.skip("a column of a dataset has one type")
    return DatasetConfig(path=str(folder / "saved"), text="text", label="label").load()


def in_python(folder: Path, cells: list[Any]) -> Corpus:
    found = addnorm.table(rows_of(cells), text="text", label="label")
    assert isinstance(found, Corpus)
    return found


def several(folder: Path, cells: list[Any]) -> Corpus:
    rows = [{"text": "a", "labels": [] if cell is None else [cell]} for cell in cells]
    found = addnorm.table(rows, text="text", labels="labels")
    assert isinstance(found, Corpus)
    return found


def images(folder: Path, cells: list[Any]) -> Corpus:
    from PIL import Image as Picture

    for n in range(len(cells)):
        Picture.new("L", (2, 2), n).save(folder / f"{n}.png")
    rows = [{"file_name": f"{n}.png", "label": cell} for n, cell in enumerate(cells)]
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return ImageFilesConfig(root=folder, train="a.jsonl", image_size=(2, 2)).load()


def series(folder: Path, cells: list[Any]) -> Corpus:
    rows = [
        {"id": f"s{n}", "label": cell, "x": step}
        for n, cell in enumerate(cells)
        for step in range(2)
    ]
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return LabelledSeriesConfig(train=folder / "a.jsonl", label_column="label").load()


READERS: tuple[Read, ...] = (jsonl, parquet, dataset, in_python, several, images, series)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("cell", [["a"], {"a": 1}, [1, 2]], ids=["list", "object", "numbers"])
def test_lists_and_objects_are_refused(read: Read, cell: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a class, which is a text, a number or a truth"):
        read(tmp_path, [cell, cell])


@pytest.mark.parametrize("read", [one for one in READERS if one not in (parquet, dataset)])
@pytest.mark.parametrize("cells", [[1, 1.0], [True, 1], [1.0, False]], ids=str)
def test_one_column_has_one_type(read: Read, cells: list[Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="write the classes of a column in one type"):
        read(tmp_path, cells)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["b", "a"], ("a", "b")),
        ([2, 1, 1], ("1", "2")),
        ([2.5, 1.0], ("1.0", "2.5")),
        ([True, False], ("False", "True")),
        (["1", 2], ("1", "2")),
        (["1", 1], ("1",)),
    ],
)
def test_names_are_as_they_were(
    read: Read, cells: list[Any], names: tuple[str, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, cells).labels == names


@pytest.mark.parametrize("read", [one for one in READERS if one is not several])
def test_a_missing_class_is_counted(read: Read, tmp_path: Path) -> None:
    corpus = read(tmp_path, ["a", None])
    assert corpus.labels == ("a",)
    [(reason, places)] = corpus.reports["train"].left_out.items()
    assert reason in ("empty label", "no label")
    assert len(places) == 1


def test_text_of_a_csv_file_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,1\nb,1.0\nc,true\nd,\n")
    corpus = TableConfig(train=tmp_path / "a.csv", text="text", label="label").load()
    assert corpus.labels == ("1", "1.0", "true")


def test_cells_of_numpy_and_others() -> None:
    assert class_in(np.int64(3), "") == "3"
    assert type(class_in(np.int64(3), "")) is type(class_in(3, ""))
    assert class_in(np.float32(0.5), "") == "0.5"
    assert class_in(Decimal("1.50"), "") == "1.50"
    assert all(map(is_missing, (None, float("nan"), " ")))
    assert not any(map(is_missing, (0, False, "0", 0.0)))
    with pytest.raises(InputError, match="surrogate"):
        class_in("\ud800", "here")
    with pytest.raises(InputError, match="here: expected a class"):
        class_in(b"a", "here")


TWO_BY_TWO = torch.zeros(1, 2, 2, dtype=torch.uint8)


GOOD: tuple[Any, ...] = (
    Labelled("a", "x"),
    MultiLabelled("a", ("x",)),
    Text("a"),
    Tagged(("a",), ("x",)),
    Scored("a", (1.0,)),
    Image(TWO_BY_TWO, "x"),
    LabelledSeries(torch.zeros(1, 2), "x"),
)


@pytest.mark.parametrize(
    ("n", "field", "value", "message"),
    [
        (0, "label", 1, "train example 2: label: expected text, not 1"),
        (0, "label", ["x"], r"expected text, not \['x'\]"),
        (0, "text", 3, "expected text, not 3"),
        (1, "labels", (1,), "expected text, not 1"),
        (2, "text", None, "expected text, not None"),
        (3, "tags", (1,), "expected text, not 1"),
        (3, "tokens", ("a", "b"), "2 words but 1 tags"),
        (4, "values", ("1",), "expected a number, not '1'"),
        (4, "values", (True,), "expected a number, not True"),
        (5, "label", 1, "expected text, not 1"),
        (6, "label", None, "expected text, not None"),
    ],
)
def test_examples_made_in_python(n: int, field: str, value: Any, message: str) -> None:
    broken = copy(GOOD[n])
    object.__setattr__(broken, field, value)  # as without the checks of types under pytest
    with pytest.raises(InputError, match=message):
        Corpus([GOOD[n], broken])


def test_ids_of_series(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    for ids, message in (([["a"]], "expected a class"), ([1, 1.0], "in one type")):
        rows = [{"id": one, "label": "x", "v": 1} for one in ids]
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        with pytest.raises(InputError, match=message):
            LabelledSeriesConfig(train=file, label_column="label").load()


def test_cells_of_numpy_are_read_as_those_of_python() -> None:
    """As rows of a data set in numpy's format hold them."""
    cells = [np.int64(2), np.int64(1), np.int64(2)]
    rows = [{"text": np.str_("a"), "label": cell} for cell in cells]
    assert addnorm.table(rows, text="text", label="label").labels == ("1", "2")
    lists = [{"text": "a", "labels": np.array(["b", "c"])}, {"text": "b", "labels": np.array([])}]
    read = addnorm.table(lists, text="text", labels="labels")
    assert read.labels == ("b", "c")
    assert len(read.train) == 2
    numbers = [{"text": "a", "score": np.array([1.5, 2.0])}, {"text": "b", "score": [0.5, 1]}]
    first = addnorm.table(numbers, text="text", values="score").train[0]
    assert isinstance(first, Scored)
    assert first.values == (1.5, 2.0)


@pytest.mark.parametrize(
    "nothing", [np.float32("nan"), Decimal("NaN"), np.datetime64("NaT"), float("nan"), None, " "]
)
def test_an_empty_cell_of_any_type_has_no_class(nothing: object) -> None:
    assert is_missing(nothing)
    rows = [{"text": "a", "label": nothing}, {"text": "b", "label": 1}]
    read = addnorm.table(rows, text="text", label="label")
    assert read.labels == ("1",)
    assert read.reports["train"].used == 1


def test_zero_is_one_class_and_a_decimal_number_no_other_number() -> None:
    zeros = [{"text": "a", "label": 0.0}, {"text": "b", "label": -0.0}]
    assert addnorm.table(zeros, text="text", label="label").labels == ("0.0",)
    mixed = [{"text": "a", "label": Decimal("1.0")}, {"text": "b", "label": 1}]
    with pytest.raises(InputError, match=r"1 is an integer, and 1\.0 at .* is a decimal number"):
        addnorm.table(mixed, text="text", label="label")


def test_an_invalid_class_is_refused_in_a_list_of_pairs() -> None:
    with pytest.raises(InputError, match=r"train\[1\]: this row: half a surrogate pair"):
        addnorm.labelled([("a", "b"), ("c", "\ud800")])


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("1.5", 1.5), (" -2e3 ", -2000.0), (3, 3.0), (Decimal("0.25"), 0.25), ("inf", math.inf),
        (10**400, math.inf), ("1_000", None), ("1,5", None), ("", None), ("two", None),
        (True, None), (None, None), ([1.0], None), ("\u0663", 3.0),
    ],
)  # fmt: skip
def test_only_numbers_are_numbers(cell: object, expected: float | None) -> None:
    assert number_of(cell) == expected


def test_the_largest_is_that_of_float32() -> None:
    assert torch.tensor([LARGEST, 1.001 * LARGEST]).isinf().tolist() == [False, True]
