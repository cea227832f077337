"""Evaluation: independently computed scores, skipped examples, predictions, equal settings."""

import io
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.runs.tiny import RECIPES, quiet, said, train_tiny

from addnorm.cli.main import status
from addnorm.data import Corpus, Labelled, MultiLabelled, Pair, Scored, Tagged
from addnorm.data.ids.framing import encode_words
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, RulesConfig
from addnorm.lab.comparison import compare, rows
from addnorm.metrics import scores as metrics
from addnorm.metrics.scores import translation_scores
from addnorm.nn.crf import CRFHead, best_tags, log_likelihood
from addnorm.runs.description import describe
from addnorm.runs.evaluation import evaluate_run, evaluation_of, measured_with
from addnorm.runs.inference.text import classify, predict, tag, write
from addnorm.runs.recipes.recipe import Recipe, read_recipe
from addnorm.runs.run import Run
from addnorm.tasks.registry import TASKS
from addnorm.training.loggers import read_journal

RunOf = Callable[[str], Path]


def test_a_language_model(run_of: RunOf) -> None:
    """The loss of the held-out text, token by token; its characters are all that is predicted."""
    run = Run.open(run_of("language"))
    scores = evaluate_run(run, "valid")
    [document] = run.recipe.data.load().valid
    tokenizer = run.tokenizers.source
    ids = [tokenizer.bos_id, *tokenizer.encode(document.text), tokenizer.eos_id]
    total, n = 0.0, len(ids) - 1
    with torch.no_grad():
        for start in range(0, n, 16):
            window = torch.tensor(ids[start : min(start + 16, n)])
            log_p = run.model(window[None])[0].log_softmax(-1)
            gold = ids[start + 1 : start + 1 + len(window)]
            total -= sum(float(row[i]) for row, i in zip(log_p, gold, strict=True))
    assert scores["loss"] == pytest.approx(total / n, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(total / n), rel=1e-4)
    bits = total / math.log(2) / len(document.text)
    assert scores["bits_per_character"] == pytest.approx(bits, rel=1e-5)


def test_characters_of_shortened_and_left_out_texts_do_not_count(run_of: RunOf) -> None:
    lines = {"data.unit": "line", "data.valid_fraction": "0.3"}
    batching = '{{kind = "tokens", tokens = 128, max_len = {}, longer = "{}"}}'
    for max_len, longer, n in ((100, "leave_out", None), (8, "shorten", 8)):
        fields = {**lines, "train.batching": batching.format(max_len, longer)}
        run = Run.open(run_of("language"), fields)
        scores = evaluate_run(run, "valid")
        texts = [example.text for example in run.recipe.data.load().valid]
        predicted = sum(min(len(text) + 1, n or 10**9) for text in texts)
        characters = sum(min(len(text), n or 10**9) for text in texts)
        bits = scores["loss"] * predicted / math.log(2) / characters
        assert scores["bits_per_character"] == pytest.approx(bits, rel=1e-5)


def test_a_translator(run_of: RunOf) -> None:
    run = Run.open(run_of("translation"))
    evaluation = evaluation_of(run, "test")
    scores = evaluation.scores
    pairs = [pair for pair in run.recipe.data.load().test if isinstance(pair, Pair)]
    found = [
        best[0].text for best in write(run, [p.source for p in pairs], run.recipe.eval.decoding)
    ]
    assert list(evaluation.predictions.values()) == found
    expected = metrics.translation_scores(found, [pair.target for pair in pairs], "13a")
    assert expected.items() <= scores.items()
    assert scores["examples"] == 3


def test_a_summary_and_the_lead_are_scored_against_the_best_reference(run_of: RunOf) -> None:
    pytest.importorskip("rouge_score", exc_type=ImportError)
    run = Run.open(run_of("translation"))
    pairs = [pair for pair in run.recipe.data.load().test if isinstance(pair, Pair)]
    corpus = Corpus(
        train=pairs, test=[replace(pair, other_targets=(pair.source,)) for pair in pairs]
    )
    with pytest.raises(InputError, match="one reference, and there are several"):
        evaluation_of(run, "test", corpus=corpus)
    summary = replace(run.recipe.eval, text_metrics="summary", metric=None)
    object.__setattr__(run, "recipe", replace(run.recipe, eval=summary))
    scores = evaluation_of(run, "test", corpus=corpus).scores
    assert {"rouge1", "rouge2", "rougeL", "lead_rouge2"} <= scores.keys()
    assert "bleu" not in scores


def test_a_classifier(run_of: RunOf) -> None:
    run = Run.open(run_of("classification"))
    evaluation = evaluation_of(run, "test")
    scores = evaluation.scores
    examples = [e for e in run.recipe.data.load().test if isinstance(e, Labelled)]
    labels = [one.label for one in classify(run, [e.text for e in examples])]
    assert list(evaluation.predictions.values()) == labels
    assert scores["accuracy"] == metrics.accuracy(labels, [e.label for e in examples])
    assert scores["f1"] == metrics.macro_f1(labels, [e.label for e in examples])


def test_several_labels(run_of: RunOf) -> None:
    run = Run.open(run_of("multi_label"))
    assert run.labels == ("joy", "weather")
    evaluation = evaluation_of(run, "test")
    examples = [e for e in run.recipe.data.load().test if isinstance(e, MultiLabelled)]
    found = [one.labels for one in classify(run, [e.text for e in examples])]
    assert list(evaluation.predictions.values()) == [",".join(labels) for labels in found]
    expected = metrics.label_scores(found, [e.labels for e in examples], run.labels)
    assert expected.items() <= evaluation.scores.items()
    has = torch.tensor([[label in e.labels for label in run.labels] for e in examples])
    odds = [one.probabilities.values() for one in classify(run, [e.text for e in examples])]
    p = torch.tensor([list(row) for row in odds], dtype=torch.float64)
    loss = -torch.where(has, p.log(), (1 - p).log()).mean()
    assert evaluation.scores["loss"] == pytest.approx(float(loss), rel=1e-5)


def test_numbers(run_of: RunOf) -> None:
    """-100 is a number like any other here, and no mark of what does not count."""
    run = Run.open(run_of("regression"))
    evaluation = evaluation_of(run, "test")
    examples = [e for e in run.recipe.data.load().test if isinstance(e, Scored)]
    found = predict(run, [e.text for e in examples]).tolist()
    assert [float(line) for line in evaluation.predictions.values()] == pytest.approx(
        [row[0] for row in found], rel=1e-4
    )
    errors = [(row[0] - e.values[0]) ** 2 for row, e in zip(found, examples, strict=True)]
    assert evaluation.scores["mse"] == pytest.approx(sum(errors) / len(errors), rel=1e-5)
    assert evaluation.scores["mse"] == pytest.approx(evaluation.scores["loss"], rel=1e-5)
    assert evaluation.scores["mse"] > 1000


@pytest.mark.parametrize(
    ("task", "metric"),
    [("classification", "accuracy"), ("multi_label", "exact"), ("regression", "mse")],
)
def test_the_values_of_examples_average_to_their_score(
    run_of: RunOf, task: str, metric: str
) -> None:
    run = Run.open(run_of(task))
    for fields in ({}, {"train.batching": '{kind = "tokens", tokens = 64, max_len = 5}'}):
        some = Run.open(run_of(task), fields) if fields else run
        found = evaluation_of(some, "test")
        [(name, values)] = found.values.items()
        assert name == metric
        assert len(values) == found.scores["examples"]
        mean = math.fsum(values.values()) / len(values)
        assert mean == pytest.approx(found.scores[metric], rel=1e-12)


def test_a_tagger_and_a_sentence_too_long(run_of: RunOf) -> None:
    """The third sentence is left out: it is told, not counted, and its line is empty."""
    run, console = Run.open(run_of("tagging")), quiet()
    evaluation = evaluation_of(run, "test", console)
    scores = evaluation.scores
    examples = [e for e in run.recipe.data.load().test if isinstance(e, Tagged)]
    tags = tag(run, [e.tokens for e in examples[:2]])
    assert evaluation.predictions == dict(enumerate([*(" ".join(one) for one in tags), ""]))
    assert "3 read, 2 used, 1 left out: longer than 60 tokens" in said(console)
    assert scores["examples"] == 2
    gold = [list(e.tags) for e in examples[:2]]
    assert metrics.entity_scores(tags, gold).items() <= scores.items()
    words = [e.tokens for e in examples[:2]]
    assert metrics.surface_scores(tags, gold, words).items() <= scores.items()


def test_words_cut_off_are_outside(run_of: RunOf) -> None:
    fields = {"train.batching.longer": "shorten"}
    run = Run.open(run_of("tagging"), fields)
    evaluation = evaluation_of(run, "test")
    assert evaluation.scores["examples"] == 3
    last = evaluation.predictions[2].split()
    assert len(last) == 60
    assert last[-1] == "O"


def test_what_cannot_be_evaluated(run_of: RunOf, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("awful a day\n")
    run = Run.open(run_of("classification"), {"data.test": str(tmp_path / "other.txt")})
    with pytest.raises(InputError, match="'awful' never occurs"):
        evaluate_run(run, "test")
    data = f'{{kind = "lines", train = "train.txt", root = "{run_of("classification").parent}"}}'
    run = Run.open(run_of("classification"), {"data": data})
    for split in ("valid", "test"):
        with pytest.raises(InputError, match=f"no {split} split"):
            evaluate_run(run, split)
    run = Run.open(run_of("translation"), {"data": data})
    with pytest.raises(InputError, match="the data are for classification"):
        evaluate_run(run, "test")


def test_a_split_given_as_data_is_named(run_of: RunOf) -> None:
    with pytest.raises(InputError, match="`data = valid`: that is a split: give `split = valid`"):
        Run.open(run_of("classification")).evaluate("valid")  # pyright: ignore


def test_a_tagger_with_a_crf(run_of: RunOf) -> None:
    """Its loss is that of whole texts, its tags are the best path, in evaluation as in use."""
    run = Run.open(run_of("crf"))
    examples = [e for e in run.recipe.data.load().test if isinstance(e, Tagged)][:2]
    head = run.model.head
    assert isinstance(head, CRFHead)
    draw = torch.Generator().manual_seed(1)
    torch.nn.init.normal_(head.chain.transitions, std=3.0, generator=draw)  # other best paths
    evaluation = evaluation_of(run, "test")
    total, tags = 0.0, list[list[str]]()
    for example in examples:
        ids, places = encode_words(run.tokenizers.source, example.tokens)
        with torch.no_grad():
            scores = run.model(torch.tensor([ids]))[:, places].double()
        gold = torch.tensor([[run.labels.index(one) for one in example.tags]])
        every = torch.ones_like(gold, dtype=torch.bool)
        total -= log_likelihood(head.chain.double(), scores, gold, every).item()
        tags.append([run.labels[i] for i in best_tags(head.chain, scores, every)[0]])
        head.chain.float()
    assert evaluation.predictions == dict(enumerate([*(" ".join(one) for one in tags), ""]))
    assert evaluation.scores["loss"] == pytest.approx(
        total / sum(len(e.tokens) for e in examples), rel=1e-5
    )
    assert tag(run, [e.tokens for e in examples]) == tags
    best = [run.labels[i] for i in run.model(torch.tensor([ids]))[0, places].argmax(-1)]
    assert best != tags[-1]


def recipe_of(task: str, folder: Path) -> Recipe:
    file = folder / "recipe.toml"
    file.write_text(RECIPES[task], encoding="utf-8")
    return read_recipe(file)


def test_bleu_has_the_signature_of_sacrebleu(tmp_path: Path) -> None:
    recipe = recipe_of("translation", tmp_path)
    line = measured_with(recipe, "bleu")
    assert line.startswith("sacrebleu nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "; written by beam(beams=2, length_penalty=0.6, n_best=1, " in line
    assert measured_with(recipe, "bleu", validation=True) == f"{line}; first 2 examples"


@pytest.mark.parametrize(
    ("metric", "changes"),
    [
        ("bleu", {"bleu_tokenize": "zh"}),
        ("bleu", {"decoding": BeamConfig(beams=3)}),
        ("bleu", {"decoding": GreedyConfig()}),
        ("chrf", {"decoding": BeamConfig(beams=2, rules=RulesConfig(max_new_tokens=9))}),
        ("exact", {"decoding": BeamConfig(beams=2, length_penalty=1.0)}),
        ("wer", {"decoding": BeamConfig(beams=2, early_stopping=True)}),
        ("rouge1", {"valid_examples": 7}),
    ],
)
def test_whatever_moves_the_scale_moves_the_line(
    tmp_path: Path, metric: str, changes: dict[str, Any]
) -> None:
    recipe = recipe_of("translation", tmp_path)
    other = replace(recipe, eval=replace(recipe.eval, **changes))
    lines = [measured_with(one, metric, validation=True) for one in (recipe, other, recipe)]
    assert lines[0] == lines[2] != lines[1]


def test_what_does_not_move_the_scale_leaves_the_line(tmp_path: Path) -> None:
    recipe = recipe_of("translation", tmp_path)
    other = replace(recipe, eval=replace(recipe.eval, batch_size=3, metric="chrf"))
    for metric in ("bleu", "loss", "perplexity"):
        assert measured_with(recipe, metric) == measured_with(other, metric)
    assert measured_with(recipe, "loss") == ""


@pytest.mark.parametrize("task", RECIPES)
def test_lower_case_is_part_of_every_line(tmp_path: Path, task: str) -> None:
    recipe = recipe_of(task, tmp_path)
    if not hasattr(recipe.data, "lowercase"):
        pytest.skip("the data are no texts")
    lower = replace(recipe, data=replace(recipe.data, lowercase=True))  # pyright: ignore
    for metric in TASKS[task].metrics:  # pyright: ignore[reportArgumentType]
        line = measured_with(recipe, metric)
        assert measured_with(lower, metric) == (line and f"{line}; texts in lower case")


def test_bleu_has_the_signature_of_its_computation() -> None:
    texts = ["The cat sat on the mat .", "A dog"], ["the cat sat on a mat.", "a dog"]
    from sacrebleu.metrics import BLEU  # pyright: ignore[reportPrivateImportUsage]

    scores = translation_scores(*texts, "intl")
    bleu = BLEU(tokenize="intl", force=True)
    assert scores["bleu"] == bleu.corpus_score(texts[0], [texts[1]]).score


@pytest.mark.long
def test_validations_keep_it_in_the_journal(tmp_path: Path) -> None:
    journal = train_tiny(tmp_path, "translation") / "metrics.jsonl"
    logged = read_journal(journal)
    bleu = measured_with(recipe_of("translation", tmp_path), "bleu", validation=True)
    assert not logged.n_damaged
    assert [*logged.measured_with] == [2, 4]
    assert all(one["bleu"] == bleu for one in logged.measured_with.values())
    [line, *_] = [json.loads(x) for x in journal.read_text().splitlines() if "valid_bleu" in x]
    assert line["measured_with"]["bleu"] == bleu


@pytest.mark.long
def test_it_is_shown_next_to_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `evaluate`, `info` and `compare`: its best is among figures that compare with the last."""
    one = train_tiny(tmp_path, "translation")
    other = tmp_path / "other"
    shutil.copytree(one, other)
    journal = other / "metrics.jsonl"
    lines = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    for line in lines:
        if line["step"] == 2 and "valid_bleu" in line:
            line["valid_bleu"] = 99.0
            line["measured_with"]["bleu"] = "sacrebleu nrefs:1|tok:char"
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    status(["evaluate", str(one), "--split", "valid"])
    shown = json.loads(capsys.readouterr().out)["measured_with"]
    recipe = recipe_of("translation", tmp_path)
    assert shown["bleu"] == measured_with(recipe, "bleu")
    console = Console(file=io.StringIO(), width=600)
    console.print(describe(one))
    assert measured_with(recipe, "bleu", validation=True) in said(console)
    mine, theirs = compare([one, other]).runs
    assert theirs.best_step == 4 or theirs.best != 99.0
    assert mine.measured_with["bleu"] == measured_with(recipe, "bleu", validation=True)
    assert any(name == "bleu is measured with" for name, _ in rows(compare([one, other])))
