"""Generated texts as one line each, whatever they contain; those of files, bad ones by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.runs.inference.test_media import SOUND, write
from tests.runs.tiny import quiet

from addnorm.cli.generated import as_json, as_lines, depth_of
from addnorm.cli.main import status
from addnorm.errors import InputError
from addnorm.runs.evaluation import evaluation_of
from addnorm.runs.inference.results import Written
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run

HEAD = 'head = { kind = "classification", pooling = "mean" }\n'
EVAL = '\n[eval]\nmetric = "wer"\nvalid_examples = 5\ndecoding = { kind = "greedy" }\n'


def test_lines_hold_no_line_breaks() -> None:
    assert as_lines([Written("a\nb", 0.0, "eos")], 3) == ["a\\nb", "", ""]


def test_json_holds_the_text_exactly() -> None:
    [first, second] = as_json([Written("a\n日", -0.5, "eos"), Written("", -1.0, "length")], 7)
    assert json.loads(first) == {"input": 7, "text": "a\n日", "score": -0.5, "finished": "eos"}
    assert "日" in first
    assert json.loads(second)["finished"] == "length"


def test_the_depth_stands_where_it_is_asked_for() -> None:
    texts = [Written("a", -0.5, "eos", 1.25), Written("", -1.0, "eos")]
    first, second = as_json(texts, 7, deep=True)
    assert json.loads(first)["depth"] == 1.25
    assert json.loads(second)["depth"] is None
    assert depth_of(texts, 7) == "text 7: mean depth 1.25 layers"
    assert depth_of(texts[1:], 8) == "text 8: its one token took every layer"


def recipe_in(folder: Path) -> Path:
    """Strings of tones, whose pitches are the text."""
    file = write(folder)
    text = file.read_text().replace('kind = "encoder"', 'kind = "encoder_decoder"')
    strings = "strings = { shortest = 1, longest = 2 }\n"
    text = text.replace("\n[model]", f'{strings}\n[tokenizer]\nkind = "word"\n\n[model]')
    text = text.replace(HEAD, "").replace("frames = 200", "frames = 400") + EVAL
    file.write_text(text.replace("epochs = 15", "epochs = 2"))
    assert SOUND not in text
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strings")
    train_run(read_recipe(recipe_in(folder)), folder / "run", resume=True, console=quiet())
    return folder


def test_it_is_evaluated_by_error_rates(folder: Path) -> None:
    run = Run.open(folder / "run")
    assert run.task == "translation"
    found = evaluation_of(run, "test")
    assert {"wer", "cer", "bleu", "exact", "loss"} <= found.scores.keys()
    assert len(found.predictions) == found.scores["examples"]


def test_each_file_has_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(folder / "tones" / f"{name}_13.wav") for name in ("low", "high")]
    run = Run.open(folder / "run")
    texts = run.generate(files)
    assert [run.translate(file) for file in files] == texts
    assert status(["generate", str(folder / "run"), *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{text}\t{file}" for text, file in zip(texts, files, strict=True)]
    assert status(["generate", str(folder / "run"), *files, "--json", "--beams", "2"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["input"] for one in found] == files


def test_a_bad_file_is_named_or_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = str(folder / "tones" / "low_13.wav"), str(tmp_path / "none.wav")
    (tmp_path / "text.wav").write_text("no sound")
    command = ["generate", str(folder / "run"), good, bad, str(tmp_path / "text.wav")]
    assert status(command) == 2
    assert "none.wav: does not exist" in capsys.readouterr().err
    assert status([*command, "--errors", "skip"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("\t")[1] for line in out.splitlines()] == [good]
    assert "text.wav is not readable as sound" in err
    assert "2 of 3 files skipped" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name the image or sound files"),
        (["a.wav", "--errors", "replace"], "is for text"),
        (["--prompt", "a"], "leave out --prompt"),
        (["a.wav", "--stop", "a"], "leave out --stop"),
        (["a.wav", "--compile"], "leave out --compile"),
    ],
)
def test_what_is_only_for_text(
    folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["generate", str(folder / "run"), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_classifier_is_named_and_classes_are_refused(folder: Path) -> None:
    file = folder / "tones" / "low_13.wav"
    with pytest.raises(InputError, match="takes no stop"):
        Run.open(folder / "run").generate(str(file), stop="a")
    assert status(["classify", str(folder / "run"), str(file)]) == 2


@pytest.mark.long
def test_going_on_ends_where_one_go_would(folder: Path, tmp_path: Path) -> None:
    recipe = read_recipe(folder / "tones.toml")
    train_run(recipe, tmp_path / "run", resume=True, console=quiet(), until=3)
    train_run(recipe, tmp_path / "run", resume=True, console=quiet())
    ends = [load_file(one / "run" / "model.safetensors") for one in (folder, tmp_path)]
    for name, weight in ends[0].items():
        torch.testing.assert_close(ends[1][name], weight, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('[tokenizer]\nkind = "word"\n', "", "tokenizer is missing"),
        ('kind = "audio"', 'kind = "audio"\nlabels = "words"', "data.labels"),
    ],
)
def test_recipes_that_do_not_fit(
    folder: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text((folder / "tones.toml").read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        read_recipe(file)
