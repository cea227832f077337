"""Untrained runs of every kind, written as training writes them: what there is to open and copy."""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.runs import test_images, test_pairs
from tests.runs.inference import test_chat, test_media, test_sentence_vectors
from tests.runs.inference import test_forecast as test_forecasting
from tests.runs.inference import test_masked_tokens as test_fill
from tests.runs.inference import test_series as test_series_files
from tests.runs.tiny import RECIPES, VARIANTS, quiet, write_corpora

from addnorm.convert.core.readback import model_logits, sample_inputs
from addnorm.models.weights import weights_of
from addnorm.runs.inference.forecast import forecast
from addnorm.runs.inference.series import answer_series
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import TrainingSetup


@dataclass(frozen=True)
class Kind:
    """What a model is for: the files of its data, its recipe, and what it is asked."""

    data: Callable[[Path], object]
    recipe: str
    asked: Callable[[Run, Path], object] = lambda run, folder: None


def _write_rows(rows: Callable[[], list], *names: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        with (folder / "pairs.csv").open("w", newline="") as out:
            csv.writer(out).writerows([names, *rows()])

    return write


def _texts(run: Run, folder: Path) -> object:
    return run.embed(["a fine day", "two dogs"]).tolist()


def _chats(run: Run, folder: Path) -> object:
    asked = [{"role": "user", "content": "3 and 3?"}]
    return run.chat(asked, beams=1, max_new_tokens=4)


def _forecasts(run: Run, folder: Path) -> object:
    return forecast(run, folder / "waves.csv").values.tolist()


def _of_series(run: Run, folder: Path) -> object:
    found = [*answer_series(run, [folder / "waves.csv"])][:3]
    return [(one.series, one.classified, one.numbers) for one in found]


def _of_files(run: Run, folder: Path) -> object:
    file = min((folder / "tones").iterdir())
    return run.embed([str(file)]).tolist()


def _pairs(run: Run, folder: Path) -> object:
    pair = [("cat dog", "dog")]
    return run.predict(pair).tolist() if run.task == "regression" else run.classify(pair)


SERIES = test_series_files.RECIPE
SCORED = SERIES.replace('label_column = "class"', 'value_column = "height"').replace(
    'pooling = "mean"', 'problem = "regression"'
)
KINDS = {
    **{name: Kind(write_corpora, text, _texts) for name, text in (RECIPES | VARIANTS).items()},
    **{name: Kind(write_corpora, text, _texts) for name, text in test_fill.RECIPES.items()},
    "pairs": Kind(_write_rows(test_pairs.rows, "one", "two", "label"), test_pairs.RECIPE, _pairs),
    "similarity": Kind(
        _write_rows(lambda: test_sentence_vectors.rows(40), "one", "two", "score", "class"),
        test_sentence_vectors.RECIPE,
        _pairs,
    ),
    "chat": Kind(test_chat.write_talk, test_chat.RECIPE, _chats),
    "forecasting": Kind(test_forecasting.write, test_forecasting.RECIPE, _forecasts),
    "series": Kind(lambda folder: test_series_files.write(folder, SERIES), SERIES, _of_series),
    "scored series": Kind(
        lambda folder: test_series_files.write(folder, SCORED), SCORED, _of_series
    ),
    "images": Kind(test_images.write, test_images.RECIPE_TEXT),
    "sound": Kind(test_media.write, test_media.SOUND, _of_files),
    "pictures": Kind(
        test_media.write_shades, test_media.SHAPES.replace("{{", "{").replace("}}", "}")
    ),
}


def write_kind(folder: Path, kind: str) -> Run:
    """The data of a kind in `folder`, and its run in `folder/run`."""
    KINDS[kind].data(folder)
    written = write_untrained(folder, "run", KINDS[kind].recipe, model__n_layers="2")
    return Run.open(written)


def prepared_as(folder: Path, name: str, recipe: str, **overrides: str) -> TrainingSetup:
    """A recipe whose data are in `folder`, before its first step, with other weights."""
    file = folder / f"{name}.toml"
    file.write_text(recipe, encoding="utf-8")
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    prepared = TrainingSetup(
        read_recipe(file, {**given, "data.root": f'"{folder}"'}), console=quiet()
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in prepared.model.parameters():
            if weight.requires_grad:
                weight.add_(0.05 * torch.randn_like(weight))
    prepared.model.eval()
    return prepared


def write_untrained(folder: Path, name: str, recipe: str, **overrides: str) -> Path:
    """Write a run as training does: at its beginning, and at its end."""
    write_as_training(prepared_as(folder, name, recipe, **overrides), folder / name)
    return folder / name


def write_as_training(prepared: TrainingSetup, folder: Path) -> None:
    """Write what training writes before its first step and after its last."""
    folder.mkdir()
    prepared.write_settings(folder)
    prepared.save(folder, weights_of(prepared.model))


def started(kind: str) -> str:
    """The recipe of a kind that begins with its run, whose tokenizer it has."""
    tables = KINDS[kind].recipe.replace("[train]", '[train]\nstart = "run"').split("\n[")
    return "\n[".join(table for table in tables if not table.startswith("tokenizer]"))


def answers(run: Run, kind: str, folder: Path) -> object:
    """What a run answers, and what its model computes."""
    asked = KINDS[kind].asked(run, folder)
    if run.task == "forecasting":  # a flat head reads as many steps as its recipe says
        return asked, run.labels
    return asked, model_logits(run.model, sample_inputs(run.model)).tolist(), run.labels


SAYS_OF_USE = ("language", "masked", "classification", "tagging", "crf")
"""The kinds whose folder says in files how it is used (see `say_of_use`)."""


def say_of_use(folder: Path) -> None:
    """Let the folder of a run say how texts become vectors, and how it chats."""
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(
            [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        )
    ]
    (folder / "1_Pooling").mkdir()
    trees = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode": "cls"},
        "sentence_bert_config.json": {"max_seq_length": 3, "do_lower_case": True},
        "config_sentence_transformers.json": {
            "prompts": {"q": "a day "},
            "default_prompt_name": "q",
        },
        "tokenizer_config.json": {"model_max_length": 3},
    }
    for name, tree in trees.items():
        (folder / name).write_text(json.dumps(tree))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
