"""Warnings before training: each where it is due, and none of them without a cause."""

from pathlib import Path
from typing import Any

import pytest
from tests.runs.tiny import RECIPES, quiet, said, write_recipe

from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.train import warnings
from addnorm.runs.train.train_run import TrainingSetup
from addnorm.runs.train.warnings import settings_without_effect
from addnorm.training.schedule import ConstantConfig, CosineConfig, InverseSquareRootConfig
from addnorm.training.settings import TrainConfig

CLASSES = """
[data]
kind = "table"
train = "stars.jsonl"
text = "text"
label = "stars"

[tokenizer]
kind = "word"

[model]
kind = "encoder"
d_model = 16
n_layers = 1
head = { kind = "classification" }
attention = { n_heads = 2 }

[train]
epochs = 1
batching = { kind = "tokens", tokens = 32 }
"""


LATENT = '{kind = "latent", n_heads = 2, rank = 4, d_content = 4, d_position = 4, d_value = 4}'


def told(recipe: Path, **fields: str) -> str:
    """What is said before training."""
    console = quiet()
    overrides = {name.replace("__", "."): value for name, value in fields.items()}
    TrainingSetup(read_recipe(recipe, overrides)).report(console)
    return said(console)


def warned(recipe: Path, **fields: str) -> list[str]:
    """The warnings alone, but for that on texts in train too, which tiny corpora have."""
    lines = told(recipe, **fields).splitlines()
    return [line for line in lines if line.startswith("warning: ") and REPEATED not in line]


REPEATED = "are in train too"


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("translation", ["valid: 3 of 3 texts", "test: 3 of 3 texts"]),
        ("classification", ["valid: 4 of 4 texts", "test: 4 of 4 texts"]),
        ("multi_label", ["valid: 16 of 16 texts", "test: 16 of 16 texts"]),
        ("regression", ["valid: 12 of 12 texts", "test: 12 of 12 texts"]),
        ("tagging", ["valid: 2 of 3 texts", "test: 2 of 3 texts"]),
        ("language", []),
    ],
)
def test_texts_in_train_too_are_counted(task: str, expected: list[str], tmp_path: Path) -> None:
    lines = told(write_recipe(tmp_path, task)).splitlines()
    found = [line for line in lines if REPEATED in line]
    assert len(found) == len(expected)
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(f"warning: {start} are in train too, such as number 1: scores on")


def test_lines_of_a_language_model_in_train_too(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "language")
    lines = told(recipe, data__unit="line").splitlines()
    assert [line for line in lines if REPEATED in line] == [
        "warning: valid: 8 of 8 texts are in train too, such as number 1: scores on them "
        "do not hold for new ones",
        "warning: test: 4 of 4 texts are in train too, such as number 1: scores on them "
        "do not hold for new ones",
    ]


@pytest.mark.parametrize("task", RECIPES)
def test_no_warning_without_a_cause(task: str, tmp_path: Path) -> None:
    smaller = {"train__batching__tokens": "61"} if task == "tagging" else {}
    assert warned(write_recipe(tmp_path, task), **smaller) == []


@pytest.mark.parametrize(
    ("task", "fields", "expected"),
    [
        (
            "classification",
            {"eval__valid_examples": "3", "eval__decoding": "{ kind = 'greedy' }"},
            "eval.decoding and eval.valid_examples: for generated texts, and the evaluation of",
        ),
        (
            "translation",
            {"train__r_drop": "2", "model__dropout": "0"},
            "train.r_drop = 2.0: this model has no dropout, so both passes are the same",
        ),
        (
            "language",
            {"train__batching__seq_len": "703"},
            "train.batching.seq_len = 703: the training text has only 702 tokens",
        ),
        (
            "language",
            {"train__batching__batch_size": "44"},
            "train.batching.batch_size = 44: a batch of windows of 16 tokens is larger than",
        ),
        (
            "language",
            {"train__batching": "packed", "train__batching__batch_size": "4"},
            "train.batching.batch_size = 4: there are 3 rows",
        ),
        (
            "language",
            {"train__batching": "packed", "train__batching__seq_len": "703"},
            "train.batching.seq_len = 703: all documents have 701 tokens, so one row holds",
        ),
        (
            "classification",
            {"train__batching__tokens": "85"},
            "train.batching.tokens = 85: one batch holds all 16 training examples, 80 tokens",
        ),
        (
            "classification",
            {"train__accumulate": "3"},
            "train.accumulate = 3: an epoch has 2 batches",
        ),
        (
            "tagging",
            {"tokenizer__vocab_size": "400", "train__batching__tokens": "61"},
            "tokenizer.vocab_size = 400, but the training text gives only ",
        ),
        (
            "classification",
            {"model__attention": "recurrent", "model__position": "rotary"},
            "model.position = rotary has no effect: it acts in attention",
        ),
        (
            "language",
            {"parallel__pipeline": "2", "model__n_layers": "2", "train__device": "cpu"},
            "train.accumulate = 1: each of 2 processes of a pipeline waits for 50% of a step",
        ),
    ],
)
def test_a_probable_mistake_gives_one_warning(
    task: str, fields: dict[str, str], expected: str, tmp_path: Path
) -> None:
    [found] = warned(write_recipe(tmp_path, task), **fields)
    assert found.startswith(f"warning: {expected}")
    assert any(hint in found for hint in (": lower", ": give ", ": leave ", "'sinusoidal'"))


@pytest.mark.parametrize(
    ("task", "fields"),
    [
        ("language", {"train__batching__seq_len": "175"}),  # four windows of 175: all of it, just
        ("classification", {"train__batching__tokens": "80"}),  # asked for, as large as the data
        ("classification", {"train__accumulate": "2"}),
        (
            "classification",
            {
                "parallel__pipeline": "2",
                "model__n_layers": "2",
                "train__device": "cpu",
                "train__accumulate": "2",
            },
        ),
        ("tagging", {"tokenizer__vocab_size": "8000", "train__batching__tokens": "61"}),  # usual
        ("classification", {"model__attention": "recurrent", "model__position": "none"}),
        ("classification", {"model__attention": "recurrent"}),  # sinusoidal: acts on the embeddings
        ("language", {"model__attention": LATENT, "model__position": "rotary"}),
        (
            "translation",  # whose decoder attends
            {
                "model__position": "rotary",
                "model__layer_pattern": '[{attention = "recurrent"}]',
                "model__decoder_layer_pattern": "[{}]",
            },
        ),
    ],
)
def test_no_warning_for_data_that_just_fit(
    task: str, fields: dict[str, str], tmp_path: Path
) -> None:
    assert warned(write_recipe(tmp_path, task), **fields) == []


def test_a_label_that_is_held_out_whole_is_never_learnt(tmp_path: Path) -> None:
    recipe = write_labels(tmp_path, ["good"] * 4 + ["bad"] * 4 + ["odd"])
    said = [warned(recipe, data__valid_fraction="0.2", train__seed=str(n)) for n in range(1, 12)]
    told = {line for lines in said for line in lines if "no training example" in line}
    expected = "warning: no training example has the label 'odd': all such examples were held out"
    assert {line[: len(expected)] for line in told} <= {expected}
    only = write_labels(tmp_path, ["a", "b", "c", "d"])
    [found] = [one for one in warned(only, data__valid_fraction="0.5") if "held out" in one]
    assert ", nor any of 1 others: all such examples were held out" in found


def write_labels(folder: Path, labels: list[str]) -> Path:
    rows = "".join(f'{{"text": "a day {i}", "stars": "{one}"}}\n' for i, one in enumerate(labels))
    (folder / "stars.jsonl").write_text(rows)
    (folder / "r.toml").write_text(CLASSES.replace("[data]", f'[data]\nroot = "{folder}"'))
    return folder / "r.toml"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["good"] * 30, "all training texts have the label 'good': there is nothing to learn"),
        (
            [f"text {i}" for i in range(30)],
            "30 training texts have 30 different labels, such as 'text 0': is the column of labels",
        ),
        ([f"text {i % 15}" for i in range(30)], None),
    ],
)
def test_labels_that_teach_nothing(labels: list[str], expected: str | None, tmp_path: Path) -> None:
    found = [line for line in warned(write_labels(tmp_path, labels)) if "label" in line]
    assert len(found) == (expected is not None)
    assert expected is None or found[0].startswith(f"warning: {expected}")


@pytest.mark.parametrize(
    ("labels", "is_warned"),
    [
        (["4.5", "3", "-1"] * 9, True),
        ([str(i) for i in range(60)], True),
        ([str(i % 50) for i in range(500)], False),  # classes that have numbers as names
        (["0", "1"] * 12, False),
        (["1.0", "0.0"] * 12, False),
        (["4.5", "nan", "?"] * 9, False),
        ([f"{i}.5" for i in range(20)] + ["unknown"], True),
        ([f"{i},5" for i in range(20)], True),
        ([f"{i}.5 %" for i in range(20)], True),
        ([f"${i}.50" for i in range(20)], True),
    ],
)
def test_numbers_as_classes(labels: list[str], is_warned: bool, tmp_path: Path) -> None:
    found = warned(write_labels(tmp_path, labels))
    assert len(found) == is_warned
    if is_warned:
        n = len({label for label in labels if label != "unknown"})
        assert f"the column 'stars' holds {n} different numbers such as" in found[0]
        assert "read it as values = 'stars' of a table" in found[0]


@pytest.mark.parametrize(
    ("unit", "text", "is_warned"),
    [
        ("line", "ab" * 600, True),
        ("line", "ab" * 600 + "\nab", False),
        ("line", "ab" * 400, False),
        ("paragraph", "ab\n" * 400, True),
        ("file", "ab" * 600, False),
    ],
)
def test_one_line_of_a_large_file(
    unit: str, text: str, is_warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "LONG", 1000)
    recipe = write_recipe(tmp_path, "language")
    recipe.write_text(recipe.read_text().replace("validate_every = 2\n", ""))
    (tmp_path / "play.txt").write_text(text)
    none = {"data__valid_fraction": "0", "data__test_fraction": "0"}
    found = warned(recipe, data__unit=unit, **none)
    assert len(found) == is_warned
    assert not found or f"train: the text is a single {unit} of 1," in found[0]


def test_how_large_the_data_are(tmp_path: Path) -> None:
    said = told(write_recipe(tmp_path, "language"))
    assert "train: 1 read, 1 used; 700 characters, 701 tokens\n" in said
    said = told(write_recipe(tmp_path, "translation"))
    assert "valid: 3 read, 3 used; source 24 characters, 10 tokens; target 33 char" in said
    said = told(write_recipe(tmp_path, "tagging"))  # without what was left out
    assert "(valid example 3); 36 characters, 16 tokens" in said


@pytest.mark.parametrize("native", [False, True])
def test_a_type_that_the_processor_has_to_emulate(tmp_path, monkeypatch, native: bool) -> None:
    monkeypatch.setattr(warnings, "multiplies_natively", lambda *_: native)
    recipe = write_recipe(tmp_path, "language")
    expected = "warning: train.precision = 'bfloat16': this processor has no instructions for it"
    found = warned(recipe, train__precision="bfloat16")
    assert [line[: len(expected)] for line in found] == ([] if native else [expected])
    assert warned(recipe, train__precision="auto") == []


QUIET: list[dict[str, Any]] = [
    {"steps": 100},
    {"steps": 100, "schedule": CosineConfig(warmup=99)},
    {"epochs": 4, "patience": 2},
    {"steps": 40, "patience": 2, "validate_every": 10},
    {"epochs": 3, "average": 3},
    {"steps": 25, "average": 3, "save_every": 10},
    {"steps": 1000, "ema": 0.999},
    {"epochs": 2, "select": "best"},
    {"steps": 100, "validate_every": 100, "save_every": 100},
]

TOLD: list[tuple[dict[str, Any], str]] = [
    ({"steps": 100, "schedule": CosineConfig(warmup=100)}, "warmup = 100: the run has 100 steps"),
    ({"epochs": 5, "schedule": InverseSquareRootConfig()}, "warmup = 4,000: the run has 50 steps"),
    ({"steps": 9, "schedule": ConstantConfig(warmup=10)}, "warmup = 10"),
    ({"epochs": 3, "patience": 2}, "patience = 2: the run has 3 validations"),
    ({"steps": 30, "patience": 2, "validate_every": 10}, "patience = 2: the run has 3 validations"),
    ({"epochs": 2, "average": 3}, "average = 3: the run saves 2 checkpoints"),
    ({"steps": 20, "average": 3, "save_every": 10}, "average = 3: the run saves 2 checkpoints"),
    ({"steps": 500, "ema": 0.9999}, "ema = 0.9999: an average over more steps than the 500"),
    ({"epochs": 1, "select": "best"}, "select = 'best': the run validates once"),
    ({"steps": 50, "validate_every": 51}, "validate_every = 51: the run has 50 steps"),
    ({"steps": 50, "save_every": 51}, "save_every = 51: the run has 50 steps"),
]


@pytest.mark.parametrize("settings", QUIET, ids=str)
def test_no_warning_for_settings_that_act(settings: dict[str, Any]) -> None:
    assert [*settings_without_effect(TrainConfig(**settings), 10, validates=True)] == []


@pytest.mark.parametrize(("settings", "message"), TOLD, ids=str)
def test_settings_that_cannot_act_give_one_warning(settings: dict[str, Any], message: str) -> None:
    [found] = settings_without_effect(TrainConfig(**settings), 10, validates=True)
    assert found.startswith("train.")
    assert message in found
    assert ": lower" in found


def test_an_interval_between_validations_of_nothing() -> None:
    config = TrainConfig(steps=50, validate_every=10)
    [found] = settings_without_effect(config, 10, validates=False)
    assert "validate_every = 10: there are no validation data" in found


def test_an_epoch_is_of_steps_and_not_of_batches() -> None:
    config = TrainConfig(epochs=2, accumulate=4, schedule=CosineConfig(warmup=6))
    [found] = settings_without_effect(config, 10, validates=True)
    assert "the run has 6 steps" in found
