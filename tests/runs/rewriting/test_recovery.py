"""Every way into training keeps the same rules, recovery among them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runs.tiny import CLASSIFICATION, TAGGING, quiet, said, train_text, write_corpora

import addnorm
from addnorm.cli.main import status
from addnorm.data import Corpus
from addnorm.data.batches.buckets import TokensConfig
from addnorm.data.examples import Tagged
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.crf import CRFHeadConfig
from addnorm.runs.rewriting.prune import PruneOptions, prune_run
from addnorm.runs.rewriting.recovery import recovery
from addnorm.runs.rewriting.swap import SwapOptions, swap_run
from addnorm.runs.run import Run
from addnorm.training.distillation import DistillationConfig
from addnorm.training.loggers import read_journal
from addnorm.training.settings import TrainConfig

STUDENT = """distillation = { teacher = "teacher", temperature = 3.0, weight = 0.5,
                hidden_states = {}, attention_transfer = "weights" }"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher, a student of its layers, and runs with what a teacher takes the place of."""
    folder = tmp_path_factory.mktemp("recovery")
    write_corpora(folder)
    layers = CLASSIFICATION.replace("n_layers = 1", "n_layers = 2")
    train_text(folder, "teacher", layers)
    student = STUDENT.replace('"teacher"', f'"{folder / "teacher"}"').replace("\n", " ")
    tokens = '[tokenizer]\nkind = "word"\n'
    taught = layers.replace("[train]", f"[train]\n{student}").replace(tokens, "")
    train_text(folder, "student", taught)
    train_text(folder, "plain", layers)
    train_text(folder, "r_drop", layers.replace("[train]", "[train]\nr_drop = 2.0"))
    adjusted = layers.replace("[train]", "[train]\nlogit_adjustment = 1.0")
    train_text(folder, "logit_adjustment", adjusted)
    exits = layers.replace("n_layers = 2", "n_layers = 2\nexits = [1]")
    train_text(folder, "exits", exits)
    train_text(
        folder, "crf", TAGGING.replace('"tagging"', '"crf"').replace("n_layers = 1", "n_layers = 2")
    )
    return folder


def swapped(run: Path, out: Path, *, distill: bool, **fields: str) -> tuple[Run, str]:
    options = SwapOptions(sets=("norm=rmsnorm",), recover=3, distill=distill)
    given = {name.replace("__", "."): value for name, value in fields.items()}
    console = quiet()
    report = swap_run(Run.open(run, given), out, options, given, console)
    return report.run, said(console)


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_journal(run / "metrics.jsonl").lines if "loss" in line]


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["plain", "student", "r_drop", "logit_adjustment", "exits", "crf"])
def test_a_run_of_any_training_recovers_on_its_labels(
    root: Path, tmp_path: Path, name: str
) -> None:
    run, told = swapped(root / name, tmp_path / "swap", distill=False)
    assert len(losses(tmp_path / "swap")) == 3
    assert run.recipe.train.distillation is None
    assert ("recovery leaves out train.distillation" in told) == (name == "student")
    Run.open(tmp_path / "swap").evaluate()
    options = PruneOptions(layers=("0",), recover=2)
    if name != "exits":
        prune_run(Run.open(root / name), tmp_path / "prune", options)
        assert len(losses(tmp_path / "prune")) == 2


def test_recovery_by_the_old_model_is_the_same_whatever_the_run_learnt_before(
    root: Path, tmp_path: Path
) -> None:
    """The first loss is that of the outputs alone: no second pass, no share, no adjustment."""
    wanted: dict[str, float] = {}
    for name in ("r_drop", "logit_adjustment", "student"):
        run, told = swapped(root / name, tmp_path / name, distill=True)
        setting = "distillation" if name == "student" else name
        assert f"recovery leaves out train.{setting}" in told
        assert run.recipe.train.distillation == DistillationConfig(
            teacher=root / name, temperature=1.0, weight=1.0
        )
        old = Run.open(root / name)
        batching, start = old.recipe.train.batching, root / name if name == "student" else None
        train = TrainConfig(steps=1, batching=batching, start=start)
        alone = replace(old.recipe, train=train)
        plain = replace(old, recipe=alone).save(tmp_path / f"{name}-plain")
        assert plain.folder is not None
        fields = {"train__lr": str(old.recipe.train.lr / 10)}
        swapped(plain.folder, tmp_path / f"{name}-again", distill=True, **fields)
        wanted[name] = losses(tmp_path / f"{name}-again")[0]
        assert losses(tmp_path / name)[0] == pytest.approx(wanted[name], rel=1e-6)


RULES: dict[str, tuple[str, dict[str, str], str]] = {
    "crf": ("crf", {}, "`distill`: a crf head learns its outputs together"),
    "exits": ("exits", {}, "leave model.exits out"),
    "r_drop": ("plain", {"train__r_drop": "1.0"}, "^recovery: train: r_drop goes with cross"),
    "adjustment": (
        "plain",
        {"train__logit_adjustment": "1.0"},
        "logit_adjustment is that of cross_entropy",
    ),
    "teacher": (
        "student",
        {"train__distillation__temperature": "2.0"},
        "the teacher is .* already, and learnt from alone",
    ),
    "metric": ("plain", {"eval__metric": "mse"}, "is not measured for classification"),
}


@pytest.mark.parametrize("name", RULES)
def test_what_training_refuses_recovery_refuses_and_writes_nothing(
    root: Path, tmp_path: Path, name: str
) -> None:
    run, fields, message = RULES[name]
    with pytest.raises(InputError, match=message):
        swapped(root / run, tmp_path / "out", distill=True, **fields)
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_teacher_that_is_asked_for_teaches_recovery(root: Path, tmp_path: Path) -> None:
    weight = {"train__distillation__weight": "0.25"}
    run, _ = swapped(root / "student", tmp_path / "out", distill=False, **weight)
    told = run.recipe.train.distillation
    assert told is not None
    assert told.weight == 0.25
    assert told.hidden_states is not None


def test_recovery_keeps_given_settings_and_no_tail_of_a_longer_schedule() -> None:
    train = TrainConfig(steps=100, lr=1.0, schedule_steps=50, patience=None, average=2)
    kept = recovery(train, 10, {})
    assert (kept.steps, kept.lr, kept.schedule_steps, kept.average) == (10, 0.1, None, 0)
    given = recovery(train, 10, {"train.lr": "1.0", "train.schedule_steps": "50"})
    assert (given.lr, given.schedule_steps) == (1.0, 50)


# The same rules by every way.


def crf(**options: Any) -> Any:
    """Train in memory."""
    words = [Tagged(("a", "b"), ("X", "Y"))] * 8
    config = EncoderConfig(d_model=8, n_layers=1, head=CRFHeadConfig())
    corpus = Corpus(words)
    batching = TokensConfig(tokens=64)
    return addnorm.train(
        config, corpus, tokenizer="word", steps=1, batching=batching, progress=False, **options
    )


def test_training_in_memory_keeps_the_rules_of_a_recipe() -> None:
    for options in ({"label_smoothing": 0.1}, {"r_drop": 1.0}):
        with pytest.raises(InputError, match="for labels that are learnt one by one"):
            crf(**options)


def test_resuming_keeps_the_rules_of_a_recipe(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["train", "--resume", str(root / "plain"), "--eval.metric", "mse"]) == 2
    assert "eval.metric = 'mse' is not measured for classification" in capsys.readouterr().err


@pytest.mark.long
def test_a_dry_run_of_a_student_of_layers_is_that_of_its_training(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = root / "student.toml"
    given = ["--data.root", str(root), "--dry-run"]
    assert status(["train", str(file), *given]) == 0
    assert "ms a step" in capsys.readouterr().err
