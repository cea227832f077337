"""What a figure was measured with is kept with it, and moves with whatever moves its scale."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.runs.tiny import RECIPES, said, train_tiny

from addnorm.cli.main import status
from addnorm.generate import BeamConfig, GreedyConfig, RulesConfig
from addnorm.lab.comparison import compare, rows
from addnorm.metrics.scores import translation_scores
from addnorm.runs.description import describe
from addnorm.runs.measured_with import measured_with
from addnorm.runs.recipes.recipe import Recipe, read_recipe
from addnorm.tasks.registry import TASKS
from addnorm.training.loggers import read_journal


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
