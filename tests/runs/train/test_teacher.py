"""Distillation: the loss that is said, teachers that fit, and sequences that are written once."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.runs.tiny import (
    CLASSIFICATION,
    LANGUAGE,
    TAGGING,
    TRANSLATION,
    quiet,
    train_text,
    write_corpora,
)
from torch.nn import functional as F

from addnorm.cli.main import status
from addnorm.errors import InputError
from addnorm.runs.run import Run
from addnorm.runs.train.teacher import written_sequences
from addnorm.training.distillation import DistillationConfig
from addnorm.training.loss import CrossEntropyConfig
from addnorm.training.objective import Objective
from addnorm.training.settings import TrainConfig

TAUGHT = '[train]\ndistillation = { teacher = "teacher", temperature = 2.0, weight = 0.7 }'


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_corpora(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def student(text: str) -> str:
    """The recipe of a student of other sizes, whose tokens are its teacher's."""
    start, end = text.index("[tokenizer]"), text.index("[model]")
    return (
        (text[:start] + text[end:])
        .replace("d_model = 16", "d_model = 8")
        .replace("[train]", TAUGHT)
    )


@pytest.mark.long
@pytest.mark.parametrize("text", [LANGUAGE, TRANSLATION, CLASSIFICATION], ids=["lm", "mt", "class"])
def test_a_student_of_other_sizes_learns_and_resumes_to_the_bit(root: Path, text: str) -> None:
    train_text(root, "teacher", text)
    steady = student(text).replace("[train]\n", '[train]\nschedule = "constant"\n')
    steady = steady.replace("epochs = 2", "steps = 4\nsave_every = 2").replace(
        'select = "best"\n', ""
    )
    whole = train_text(root, "whole", steady)
    train_text(root, "parts", steady, train__steps="2")
    parts = train_text(root, "parts", steady)
    assert all(torch.equal(w, whole.weights[name]) for name, w in parts.weights.items())
    assert whole.recipe.model.d_model == 8
    alone = train_text(
        root,
        "alone",
        steady.replace(TAUGHT.partition("\n")[2] + "\n", "").replace(
            "[model]", text[text.index("[tokenizer]") : text.index("[model]")] + "[model]"
        ),
    )
    assert any(not torch.equal(w, whole.weights[name]) for name, w in alone.weights.items())
    (root / "teacher").rename(root / "away")  # a student needs it for learning alone
    assert Run.open(root / "whole").task == whole.task


INSIDE = (
    """hidden_states = { weight = 0.5 }, attention_transfer = { kind = "relations", n_heads = 4 }"""
)


@pytest.mark.long
@pytest.mark.parametrize("text", [LANGUAGE, TRANSLATION, CLASSIFICATION], ids=["lm", "mt", "class"])
def test_layers_learn_from_layers_and_resume_to_the_bit(root: Path, text: str) -> None:
    train_text(root, "teacher", text)
    steady = student(text).replace("[train]\n", '[train]\nschedule = "constant"\n')
    steady = steady.replace("epochs = 2", "steps = 4\nsave_every = 2")
    steady = steady.replace('select = "best"\n', "")
    outputs_alone = train_text(root, "outputs", steady)
    inside = steady.replace("weight = 0.7", f"weight = 0.7, {INSIDE}")
    whole = train_text(root, "whole", inside)
    train_text(root, "parts", inside, train__steps="2")
    parts = train_text(root, "parts", inside)
    assert whole.weights.keys() == outputs_alone.weights.keys()  # no maps are left
    assert all(torch.equal(w, whole.weights[name]) for name, w in parts.weights.items())
    assert any(not torch.equal(w, whole.weights[name]) for name, w in outputs_alone.weights.items())
    assert Run.open(root / "whole").weights.keys() == whole.weights.keys()


def test_a_student_begins_with_layers_of_its_teacher(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_text(root, "teacher", CLASSIFICATION.replace("n_layers = 1", "n_layers = 3"))
    begun = student(CLASSIFICATION).replace("d_model = 8", "d_model = 16")
    begun = begun.replace("weight = 0.7", 'weight = 0.7, start = "teacher"')
    (root / "small.toml").write_text(begun)
    assert status(["train", "small.toml", "--train.lr", "1e-12", "--out", "small"]) == 0
    said = capsys.readouterr().err
    assert "teacher: " in said
    assert "weights taken over" in said
    small, teacher = Run.open(root / "small"), Run.open(root / "teacher")
    name = "attention.q_proj.weight"
    ours = small.weights[f"stack.blocks.0.{name}"]
    n, of = (len([k for k in run.weights if k.endswith(name)]) for run in (small, teacher))
    theirs = teacher.weights[f"stack.blocks.{round(of / n) - 1}.{name}"]
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_layers_of_another_width_name_what_mends_it(root: Path) -> None:
    train_text(root, "teacher", CLASSIFICATION)
    begun = student(CLASSIFICATION)
    with pytest.raises(InputError) as caught:
        train_text(root, "small", begun.replace("weight = 0.7", 'weight = 0.7, start = "teacher"'))
    for words in ("model.d_model = 16", 'start = "random"', "train.distillation.hidden_states"):
        assert words in str(caught.value)
    mended = begun.replace("weight = 0.7", "weight = 0.7, hidden_states = {}")
    train_text(root, "mended", mended)
    deeper = mended.replace("n_layers = 1", "n_layers = 2")
    with pytest.raises(
        InputError, match="or leave hidden_states, attention_transfer and start out"
    ):
        train_text(root, "deeper", deeper)


class Fixed(torch.nn.Module):
    """A model that always says the same logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.logits


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_the_loss_is_the_weighted_sum_of_its_definition(weight: float, smoothing: float) -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.randn(2, 5, 7, dtype=torch.float64) for _ in range(2))
    targets = torch.tensor([[1, 2, -100, 4, 6], [0, -100, 3, 3, 5]])
    told = DistillationConfig(teacher=Path("t"), temperature=3.0, weight=weight)
    objective = Objective(
        CrossEntropyConfig(), label_smoothing=smoothing, teacher=Fixed(theirs), distillation=told
    )
    found = objective(Fixed(ours), {"inputs": targets}, targets)
    counted = targets != -100
    p = (theirs[counted] / 3).softmax(-1)
    kl = (p * (p.log() - (ours[counted] / 3).log_softmax(-1))).sum()
    ce = F.cross_entropy(
        ours[counted], targets[counted], reduction="sum", label_smoothing=smoothing
    )
    assert float(found.detach()) == pytest.approx(float(weight * 9 * kl + (1 - weight) * ce))


def test_other_tokens_are_named(root: Path) -> None:
    train_text(root, "teacher", TRANSLATION)
    with_own = TRANSLATION.replace("[train]", TAUGHT).replace('kind = "word"', 'kind = "char"')
    with pytest.raises(
        InputError, match=r"other source tokens: \d+ is '.+' there and '.+' here"
    ) as e:
        train_text(root, "other", with_own)
    assert "more" in str(e.value)
    assert "Leave [tokenizer] out" in str(e.value)
    same = train_text(root, "same", TRANSLATION.replace("[train]", TAUGHT))
    assert same.task == "translation"


def test_a_crf_is_rejected_as_teacher_of_single_tags(root: Path) -> None:
    train_text(root, "teacher", TAGGING.replace('"tagging"', '"crf"'))
    with pytest.raises(InputError, match="teacher: a head such as crf learns its outputs together"):
        train_text(root, "other", student(TAGGING))


@pytest.mark.long
def test_tokens_further_ahead_are_not_taught(root: Path) -> None:
    ahead = LANGUAGE.replace('kind = "decoder"', 'kind = "decoder"\nmtp = { depth = 1 }')
    train_text(root, "teacher", LANGUAGE)
    with pytest.raises(InputError, match=r"the next token alone: leave model\.mtp out"):
        train_text(root, "other", student(ahead))


def test_a_teacher_of_another_kind_is_named(root: Path) -> None:
    train_text(root, "teacher", CLASSIFICATION)
    with pytest.raises(
        InputError, match="teacher has a model of kind encoder, and the student another"
    ):
        train_text(root, "other", LANGUAGE.replace("[train]", TAUGHT))
    lines = (root / "train.txt").read_text().replace("good", "fine")
    (root / "train.txt").write_text(lines)
    (root / "valid.txt").write_text(lines)
    with pytest.raises(InputError, match="other labels: bad, good; the student has bad, fine"):
        train_text(root, "other", student(CLASSIFICATION))


WRONG = {
    "no folder": ('teacher = "teacher"', 'teacher = "nowhere"', "nowhere"),
    "weight 0": ("weight = 0.7", "weight = 0.0", "weight = 0.0"),
    "temperature": ("temperature = 2.0", "temperature = -1.0", "temperature = -1.0"),
    "a typo": ("temperature", "temprature", "Did you mean 'temperature'"),
    "compiled": (
        "weight = 0.7 }",
        "weight = 0.7, hidden_states = {} }\ncompile = true",
        "leave compile and activation_checkpointing out",
    ),
    "another kind": (
        "weight = 0.7 }",
        'weight = 0.7, attention_transfer = { kind = "relation" } }',
        "Did you mean 'relations'?",
    ),
    "another loss": ("[train]", '[train]\nloss = "no_loss_of_ours"', "loss"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named(root: Path, case: str) -> None:
    old, new, expected = WRONG[case]
    with pytest.raises(InputError) as caught:
        train_text(root, "wrong", student(LANGUAGE).replace(old, new))
    assert expected in str(caught.value)


def test_training_begins_in_one_way() -> None:
    told = DistillationConfig(teacher=Path("t"), start="teacher")
    with pytest.raises(ValueError, match="both say what training begins with"):
        TrainConfig(steps=1, start=Path("s"), distillation=told)


# Sequences.

COMMAND = ("distill", "teacher", "student.toml", "--sequences", "--out", "out")


def with_recipes(root: Path) -> None:
    train_text(root, "teacher", TRANSLATION)
    text = student(TRANSLATION).replace(TAUGHT, "[train]")
    text = text.replace('kind = "parallel"', f'kind = "parallel"\nroot = "{root}"')
    (root / "student.toml").write_text(text)


@pytest.mark.long
def test_sequences_are_the_teacher_s_translations(root: Path) -> None:
    with_recipes(root)
    assert status(COMMAND) == 0
    lines = (root / "out" / "sequences.txt").read_text().splitlines()
    sources = (root / "train.en").read_text().splitlines()
    assert lines == Run.open("teacher").translate(sources)
    assert Run.open("out").recipe.data.train[1] == root / "out" / "sequences.txt"  # type: ignore[union-attr]


@pytest.mark.long
def test_half_written_sequences_resume(root: Path) -> None:
    with_recipes(root)
    assert status(COMMAND) == 0
    whole = (root / "out" / "sequences.txt").read_bytes()
    (root / "other").mkdir()
    facts = (root / "out" / "sequences.json").read_text()
    (root / "other" / "sequences.json").write_text(facts)
    (root / "other" / "sequences.partial.txt").write_bytes(whole[: len(whole) // 2])
    assert status([*COMMAND[:-1], "other"]) == 0
    assert (root / "other" / "sequences.txt").read_bytes() == whole


def test_the_command_keeps_what_the_recipe_says(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_text(root, "teacher", LANGUAGE)
    (root / "small.toml").write_text(student(LANGUAGE))
    words = ["distill", "teacher", "small.toml"]
    cases = {
        "as_said": ([], (2.0, 0.7)),
        "option": (["--temperature", "3"], (3.0, 0.7)),
        "field": (["--train.distillation.weight", "0.2"], (2.0, 0.2)),
    }
    for name, (more, expected) in cases.items():
        assert status([*words, *more, "--out", name]) == 0, capsys.readouterr().err
        told = Run.open(root / name).recipe.train.distillation
        assert told is not None
        assert (told.temperature, told.weight) == expected
    both = ["--weight", "0.3", "--train.distillation.weight", "0.2", "--out", "both"]
    assert status([*words, *both]) == 2
    assert "are the same: give one of them" in capsys.readouterr().err
    other = ["--train.distillation.teacher", "another", "--out", "both"]
    assert status([*words, *other]) == 2
    assert "teacher another: the teacher is teacher already" in capsys.readouterr().err


def test_a_quantised_teacher_gives_no_layers(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_text(root, "teacher", LANGUAGE)
    assert status(["quantize", "teacher", "--out", "small"]) == 0
    (root / "small.toml").write_text(student(LANGUAGE))
    words = ["--train.distillation.start", "teacher", "--out", "none"]
    assert status(["distill", "small", "small.toml", *words]) == 2
    assert "gives its layers to a student" in capsys.readouterr().err


def test_those_of_another_teacher_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_recipes(root)
    (root / "out").mkdir()
    (root / "out" / "sequences.json").write_text('{"teacher": "x"}')
    assert status(COMMAND) == 2
    assert "out: holds the sequences of another teacher" in capsys.readouterr().err


@pytest.mark.parametrize("text", [LANGUAGE, CLASSIFICATION], ids=["lm", "class"])
def test_sequences_need_a_translator(
    root: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train_text(root, "teacher", text)
    recipe = student(text).replace(TAUGHT, "[train]").replace("[data]", f'[data]\nroot = "{root}"')
    (root / "student.toml").write_text(recipe)
    assert status(COMMAND) == 2
    assert "--sequences needs data.kind = 'parallel'" in capsys.readouterr().err
    assert not (root / "out").exists()


@pytest.mark.slow
def test_killed_while_writing_it_ends_the_same(root: Path) -> None:
    with_recipes(root)
    for side in ("en", "de"):
        file = root / f"train.{side}"
        file.write_text(file.read_text() * 60)
    command = [sys.executable, "-m", "addnorm", *COMMAND]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    partial = root / "out" / "sequences.partial.txt"
    running = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    while not (partial.exists() and partial.stat().st_size) and running.poll() is None:
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert status(COMMAND) == 0
    first = (root / "out" / "sequences.txt").read_bytes()
    assert status([*COMMAND[:-1], "again"]) == 0
    assert (root / "again" / "sequences.txt").read_bytes() == first


def test_a_run_resumes_with_the_same_teacher_alone(root: Path) -> None:
    train_text(root, "teacher", LANGUAGE)
    steady = student(LANGUAGE).replace("[train]\n", '[train]\nschedule = "constant"\n')
    train_text(root, "parts", steady, train__steps="2")
    train_text(root, "other", LANGUAGE, train__seed="5")
    (root / "teacher").rename(root / "away")
    (root / "other").rename(root / "teacher")
    with pytest.raises(InputError, match=r"distillation\.teacher has other weights"):
        train_text(root, "parts", steady)


@pytest.mark.long
def test_sequences_are_of_the_source_as_it_is(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_recipes(root)
    assert status([*COMMAND]) == 0
    facts = json.loads((root / "out" / "sequences.json").read_text())
    (root / "out" / "sequences.json").write_text(json.dumps(facts | {"text of the source": "x"}))
    capsys.readouterr()
    assert status([*COMMAND]) == 2
    assert "holds the sequences of another text of the source" in capsys.readouterr().err
    teacher, recipe = Run.open(root / "teacher"), Run.open(root / "out").recipe
    written_sequences(teacher, recipe, root / "new", quiet())
    adapter = replace(teacher, bases=(root / "out",))  # whose weights are those of its base too
    with pytest.raises(InputError, match="holds the sequences of another teacher"):
        written_sequences(adapter, recipe, root / "new", quiet())
    for field, value, message in (
        ("encoding", "latin-1", "`sequences` writes UTF-8"),
        ("valid_fraction", "0.5", "hold out the teacher's translations"),
    ):
        assert status([*COMMAND, f"--data.{field}", value]) == 2
        assert message in capsys.readouterr().err.replace("--sequences", "`sequences`")
