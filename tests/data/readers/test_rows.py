"""Examples with nothing to learn: left out and counted, in every task and split, or refused."""

import math
from dataclasses import replace
from typing import Any

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
from addnorm.data.readers.rows import NOT_FINITE, Row, assemble, complete, lack
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
from addnorm.runs.evaluation import evaluate_on
from addnorm.runs.run import Run
from addnorm.tasks.encoding import encode
from addnorm.tasks.of_model import task_of_training
from addnorm.tasks.registry import TASKS
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
