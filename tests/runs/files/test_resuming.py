"""Resuming a run from its folder alone, and settings that may not change."""

import shlex
import shutil
from pathlib import Path

import pytest
from tests.runs.tiny import quiet, said, train_tiny
from tests.training.tiny import save_whole

from addnorm.errors import InputError
from addnorm.runs.files.resuming import resume_command, resumed_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run
from addnorm.training.checkpoint import checkpoints_in, load_checkpoint
from addnorm.training.trainer import Trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("resuming"), "language")


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [("train.steps", "9", 9), ("train.save_every", "3", 3), ("train.device", "cpu", "cpu")],
)
def test_what_may_change(run: Path, name: str, value: str, changed: object) -> None:
    recipe = resumed_recipe(run, {name: value})
    assert getattr(recipe.train, name.removeprefix("train.")) == changed


@pytest.mark.parametrize("name", ["model.d_model", "train.lr", "data.train", "tokenizer.kind"])
def test_what_may_not_change_is_named(run: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"^`{name}`: a resumed run keeps it.* May change: "):
        resumed_recipe(run, {name: "7"})


@pytest.mark.parametrize(
    ("name", "hint"), [("train.lr", None), ("train.step", "train.steps"), ("train.sav", None)]
)
def test_a_hint_is_at_a_field_of_a_like_name(run: Path, name: str, hint: str | None) -> None:
    with pytest.raises(InputError) as caught:
        resumed_recipe(run, {name: "7"})
    assert ("Did you mean" in str(caught.value)) == (hint is not None)
    assert hint is None or f"Did you mean '{hint}'" in str(caught.value)


def test_the_command_of_a_folder_with_a_blank(run: Path) -> None:
    recipe = Run.open(run).recipe
    words = shlex.split(resume_command(Path("my runs/r"), recipe))
    assert words == ["addnorm", "train", "--resume", "my runs/r"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("translator")
    return train_tiny(root, "translation", **{"train.patience": "1", "train.select": "best"})


MEASURES = {
    "metric": ({"eval.metric": "loss"}, True),
    "tokenisation": ({"eval.bleu_tokenize": "char"}, True),
    "examples": ({"eval.valid_examples": "3"}, True),
    "decoding": ({"eval.decoding": "{ kind = 'beam', beams = 3 }"}, True),
    "batch size": ({"eval.batch_size": "3"}, False),
    "nothing": ({}, False),
}


@pytest.mark.parametrize("name", [*MEASURES, "data"])
def test_the_best_so_far_is_measured_as_it_will_be(
    translator: Path, tmp_path: Path, name: str
) -> None:
    changes, again = MEASURES.get(name, ({}, True))
    folder = Path(shutil.copytree(translator, tmp_path / "run"))
    (folder / "model.safetensors").unlink()
    root = Path(shutil.copytree(translator.parent, tmp_path / "data", ignore=lambda *_: ["run"]))
    if name == "data":
        lines = (root / "valid.de").read_text().splitlines()
        (root / "valid.de").write_text("\n".join(["eine katze", *lines[1:]]) + "\n")
    given = {"data.root": f"'{root}'", **changes}
    console = quiet()
    train_run(resumed_recipe(folder, given), folder, resume=True, console=console)
    assert ("the best weights so far, of step" in said(console)) == again
    assert said(console).count("were chosen by bleu") == int(again)


def test_a_run_of_before_is_assumed_to_be_measured_by_its_recipe(
    translator: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(translator, tmp_path / "run"))
    for checkpoint in (folder / "checkpoints").iterdir():
        stored, facts = load_checkpoint(checkpoint)
        tensors = {name: dict(group) for name, group in stored.items()}  # before it is removed
        del facts["best_by"]
        shutil.rmtree(checkpoint)
        save_whole(checkpoint.parent, facts["standing"]["step"], tensors, facts)
    for changes, again in (MEASURES["nothing"], MEASURES["metric"]):
        console = quiet()
        train_run(resumed_recipe(folder, changes), folder, resume=True, console=console)
        assert ("the best weights so far, of step" in said(console)) == again


@pytest.mark.parametrize("moment", ["compare_best", "fit"])
def test_a_run_of_before_that_ends_before_its_next_save_keeps_what_it_was_measured_by(
    translator: Path, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(translator, tmp_path / "run"))
    for checkpoint in (folder / "checkpoints").iterdir():
        stored, facts = load_checkpoint(checkpoint)
        tensors = {name: dict(group) for name, group in stored.items()}  # before it is removed
        del facts["best_by"], facts["schedule_steps"]
        shutil.rmtree(checkpoint)
        save_whole(checkpoint.parent, facts["standing"]["step"], tensors, facts)

    def killed(*_: object) -> None:
        raise SystemExit

    changes = {"eval.metric": "loss"}
    whole = getattr(Trainer, moment)
    monkeypatch.setattr(Trainer, moment, killed)
    with pytest.raises(SystemExit):
        train_run(resumed_recipe(folder, changes), folder, resume=True, console=quiet())
    monkeypatch.setattr(Trainer, moment, whole)
    assert (resumed_recipe(folder, {}).eval.metric == "loss") == (moment == "fit")
    run = train_run(resumed_recipe(folder, changes), folder, resume=True, console=quiet())
    _, facts = load_checkpoint(checkpoints_in(folder / "checkpoints")[-1])
    assert facts["best_by"].startswith("loss")
    assert facts["standing"]["best"] == pytest.approx(run.evaluate(split="valid")["loss"])
