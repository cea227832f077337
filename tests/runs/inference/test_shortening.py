"""Where training shortened texts, use does: `evaluate` equals the answers on whole lines."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import addnorm
from addnorm import (
    ClassificationHeadConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LayerNormConfig,
    LearnedConfig,
    PostNormConfig,
    SimilarityHeadConfig,
    TaggingHeadConfig,
    TokensConfig,
    TransformConfig,
    WordConfig,
)
from addnorm.data import Corpus
from addnorm.data.examples import Example, Labelled, MultiLabelled, Pair, Scored, Tagged
from addnorm.errors import Shortened
from addnorm.generate import GreedyConfig
from addnorm.inspect.prepared_text import prepare_text
from addnorm.runs.evaluation import evaluation_of
from addnorm.runs.export import export_run
from addnorm.runs.run import Run
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.regression import numbers_line

MOST = 8
TEXTS = [" ".join(f"w{(7 * i + k * k) % 23}" for k in range(2 + i % 19)) for i in range(40)]
PAIRS = list(zip(TEXTS, TEXTS[13:] + TEXTS[:13], strict=True))


def each(make: Callable[[int], Example]) -> list[Example]:
    return [make(i) for i in range(len(TEXTS))]


def numbers(run: Run, texts: Any) -> list[str]:
    return [numbers_line(row) for row in run.predict(texts).tolist()]


def encoder(head: Any) -> EncoderConfig:
    return EncoderConfig(d_model=16, n_layers=1, head=head)


CLASSES = ClassificationHeadConfig()
Case = tuple[Any, list[Example], Callable[[Run], Sequence[str]]]
CASES: dict[str, Case] = {
    "classes": (
        encoder(CLASSES),
        each(lambda i: Labelled(TEXTS[i], "ABC"[i % 3])),
        lambda run: [one.label for one in run.classify(TEXTS)],
    ),
    "pairs": (
        encoder(CLASSES),
        each(lambda i: Labelled(PAIRS[i][0], "ABC"[i % 3], PAIRS[i][1])),
        lambda run: [one.label for one in run.classify(PAIRS)],
    ),
    "labels": (
        encoder(replace(CLASSES, problem="multi_label")),
        each(lambda i: MultiLabelled(TEXTS[i], tuple("AB"[: i % 3]))),
        lambda run: [",".join(one.labels) for one in run.classify(TEXTS)],
    ),
    "numbers": (
        encoder(replace(CLASSES, problem="regression")),
        each(lambda i: Scored(TEXTS[i], (i / 40,))),
        lambda run: numbers(run, TEXTS),
    ),
    "similarity": (
        encoder(SimilarityHeadConfig()),
        each(lambda i: Scored(PAIRS[i][0], (i / 40,), PAIRS[i][1])),
        lambda run: numbers(run, PAIRS),
    ),
    "tags": (
        encoder(TaggingHeadConfig()),
        each(lambda i: Tagged(tuple(TEXTS[i].split()), ("O", "B-X") * 99)),
        lambda run: [" ".join(tags) for tags in run.tag([text.split() for text in TEXTS])],
    ),
    "translation": (
        EncoderDecoderConfig(d_model=16, n_layers=1),
        each(lambda i: Pair(*PAIRS[i])),
        lambda run: run.translate(TEXTS, beams=1, max_new_tokens=12),
    ),
}


DISTILBERT = EncoderConfig(
    d_model=16,
    n_layers=1,
    position=LearnedConfig(),
    norm=LayerNormConfig(eps=1e-12),
    residual=PostNormConfig(),
    embedding=EmbeddingConfig(scale="one", norm=LayerNormConfig(eps=1e-12)),
    feedforward=FeedForwardConfig(activation="gelu"),
    head=replace(CLASSES, pooling="first", transform=TransformConfig(activation="relu")),
)


def learnt(name: str, longer: Any = "shorten", config: Any = None) -> Run:
    examples = CASES[name][1]
    examples = [
        replace(one, tags=one.tags[: len(one.tokens)]) if isinstance(one, Tagged) else one
        for one in examples
    ]
    batching = TokensConfig(tokens=400, max_len=MOST, longer=longer)
    rules = replace(GreedyConfig().rules, max_new_tokens=12)
    return addnorm.train(
        config or CASES[name][0],
        Corpus(examples, test=examples),
        tokenizer=WordConfig(),
        batching=batching,
        evaluation=EvalConfig(decoding=GreedyConfig(rules=rules)),
        steps=8,
        lr=0.01,
        progress=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_evaluate_is_what_the_answers_make_of_whole_texts(tmp_path: Path, name: str) -> None:
    answers = CASES[name][2]
    run = learnt(name)
    evaluation = evaluation_of(run, "test")
    run.save(tmp_path / "saved")
    for one in (run, Run.open(tmp_path / "saved")):
        with pytest.warns(Shortened, match=f"more than {MOST} tokens are shortened, as in train"):
            assert answers(one) == list(evaluation.predictions.values())


@pytest.mark.long
def test_vectors_and_inspection_are_of_the_shortened_text(tmp_path: Path) -> None:
    """A long text is its beginning; one that fits is no reason for a warning."""
    long, short = "w1 w2 w3 w4 w5 w6 w7 w8 w9", "w1 w2 w3 w4 w5 w6"
    run = learnt("classes")
    assert run.embed(short).shape == (16,)
    with pytest.warns(Shortened):
        assert run.embed(long).tolist() == run.embed(short).tolist()
    with pytest.warns(Shortened):
        assert prepare_text(run, long).pieces == prepare_text(run, short).pieces
    said = "\n".join(export_run(run, tmp_path / "onnx", to="onnx"))
    assert "longest text" in said


@pytest.mark.long
def test_a_folder_of_hugging_face_says_it(tmp_path: Path) -> None:
    run = learnt("classes", config=DISTILBERT)
    export_run(run, tmp_path / "hf", to="hf")
    settings = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text("utf-8"))
    assert settings["model_max_length"] == MOST


@pytest.mark.long
def test_texts_that_training_left_out_are_read_whole() -> None:
    run = learnt("classes", "leave_out")
    assert run.classify("w1 w2 w3 w4 w5 w6 w7 w8") != run.classify("w1 w2 w3 w4 w5 w6")
