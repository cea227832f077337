"""Training a run folder: early errors, allowed changes on resume, equal results, loggers."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.disks import fill
from tests.runs.tiny import quiet, said, train_tiny, write_recipe
from tests.runs.train.fake_logger import SERVER, FakeConfig
from tests.training.tiny import ROOT, contents

from addnorm import errors
from addnorm.data.readers.constructors import text
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.runs.files.folder import read_settings
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train import train_run as training
from addnorm.runs.train.train_function import train
from addnorm.runs.train.train_run import IDS, TrainingSetup, train_run
from addnorm.training import interruptions
from addnorm.training.interruptions import ExhaustedError
from addnorm.training.loggers import read_journal

RunOf = Callable[[str], Path]


def refusal(file: Path, folder: Path, *, resume: bool = False, **overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        train_run(read_recipe(file, overrides), folder, resume=resume, console=quiet())
    return str(caught.value)


def test_what_was_left_out_is_told(tmp_path: Path) -> None:
    console = quiet()
    recipe = read_recipe(write_recipe(tmp_path, "translation"))
    train_run(recipe, tmp_path / "run", resume=False, console=console)
    assert "train: 19 read, 18 used, 1 left out: empty target" in said(console)
    assert f"{tmp_path}/train.de:19" in said(console)


def test_a_path_with_brackets_is_not_markup(tmp_path: Path) -> None:
    console, folder = quiet(), tmp_path / "[bold] [red]x"
    folder.mkdir()
    recipe = read_recipe(write_recipe(folder, "translation"))
    train_run(recipe, folder / "run", resume=False, console=console)
    assert f"{folder}/train.de:19" in said(console)


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "classification")
    assert "holds a run already" in refusal(tmp_path / "classification.toml", run)
    for path in (run / "checkpoints").glob("*/*"):
        path.unlink()
    for path in (run / "checkpoints").iterdir():
        path.rmdir()
    assert "holds a run already" in refusal(tmp_path / "classification.toml", run)


def test_the_folder_may_not_be_a_file(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "language")
    assert "is a file" in refusal(file, file)


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path) -> None:
    """Two steps, then two more: the weights are those of four; what changed is told and kept."""
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    keep = {"train.schedule.warmup": "1", "train.schedule.decay": "0"}
    whole = train_tiny(tmp_path / "whole", "language", **keep)
    parts = train_tiny(tmp_path / "parts", "language", **{"train.steps": "2", **keep})
    console = quiet()
    file = tmp_path / "parts" / "language.toml"
    recipe = read_recipe(file, keep)
    train_run(recipe, parts, resume=True, console=console)
    assert "train.steps: 2 so far, 4 from here on" in said(console)
    assert read_settings(parts).recipe == recipe
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, parts))
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("model.d_model", "32", "model.d_model is 16 there and 32 here"),
        ("tokenizer.vocab_size", "20", "tokenizer.vocab_size is 30000 there and 20 here"),
        ("data.lowercase", "true", "data.lowercase is False there and True here"),
        ("train.lr", "1", "train.lr is 0.001 there and 1.0 here"),
        ("train.ema", "0.9", "train.ema is None there and 0.9 here"),
        ("train.batching.tokens", "99", "train.batching.tokens is 64 there and 99 here"),
    ],
)
def test_another_run_is_not_resumed(field: str, value: str, expected: str, run_of: RunOf) -> None:
    run = run_of("translation")
    before = (run / "config.json").read_bytes()
    file = run.parent / "translation.toml"
    assert expected in refusal(file, run, resume=True, **{field: value})
    assert (run / "config.json").read_bytes() == before


def test_resuming_without_a_run_begins_one_and_reports_it(tmp_path: Path) -> None:
    console = quiet()
    recipe = read_recipe(write_recipe(tmp_path, "classification"))
    train_run(recipe, tmp_path / "new", resume=True, console=console)
    assert "no run to resume" in said(console)
    assert (tmp_path / "new" / "model.safetensors").exists()


def test_resuming_takes_the_tokenizer_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_tiny(tmp_path, "translation")
    before = (run / "tokenizer.json").read_bytes()
    monkeypatch.delattr(Tokenizers, "train")
    recipe = read_recipe(tmp_path / "translation.toml", {"train.steps": "5"})
    train_run(recipe, run, resume=True, console=quiet())
    assert (run / "tokenizer.json").read_bytes() == before


def test_a_damaged_run_is_not_resumed(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "classification")
    (run / "labels.json").write_text("[")
    assert "labels.json: damaged" in refusal(tmp_path / "classification.toml", run, resume=True)


def test_data_of_another_task_and_missing_data(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "translation")
    data = f'{{kind = "text", train = "play.txt", root = "{tmp_path}"}}'
    said = refusal(file, tmp_path / "r", data=data)
    assert "use model.kind = 'decoder'" in said
    (tmp_path / "train.de").unlink()
    assert "train.de does not exist" in refusal(file, tmp_path / "r")
    assert not (tmp_path / "r").exists(), "nothing is written for a recipe that cannot begin"


def test_best_weights_need_validation(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "classification")
    file.write_text(file.read_text().replace('valid = "valid.txt"\n', ""))
    assert "validation" in refusal(file, tmp_path / "r")


def test_precision_is_refused_before_the_data_are_read(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "language")
    recipe = read_recipe(
        file, {"train.precision": "float16", "train.device": "cpu", "data.train": "none"}
    )
    with pytest.raises(InputError, match="float16"):
        TrainingSetup(recipe)


def test_a_full_disk_under_the_last_weights(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with all its steps saved, and going on writes the weights alone."""
    monkeypatch.setattr(interruptions, "WAIT", 0.3)
    save = training.save_model
    monkeypatch.setattr(training, "save_model", lambda *given: (fill(disk), save(*given)))
    recipe = read_recipe(write_recipe(tmp_path, "language"))
    with pytest.raises(ExhaustedError, match=r"^the model cannot be written: No space left"):
        train_run(recipe, disk / "run", resume=False, console=quiet())
    assert not (disk / "run" / "model.safetensors").exists()
    assert not [path for path in (disk / "run").rglob("*") if "partial" in path.name]
    (disk / "ballast").unlink()
    monkeypatch.setattr(training, "save_model", save)
    train_run(recipe, disk / "run", resume=True, console=quiet())
    straight = train_run(recipe, tmp_path / "straight", resume=False, console=quiet())
    assert (disk / "run" / "model.safetensors").read_bytes() == (
        straight.folder / "model.safetensors"
    ).read_bytes()


FAKE = '{kind = "tests.runs.train.fake_logger:FakeConfig"}'
FAILS_AT_5 = FAKE.replace("}", ", fails_at = 5}")


def journal(run: Path) -> list[dict[str, float]]:
    """The figures of a run's own log."""
    return [*read_journal(run / "metrics.jsonl").lines]


def trained(folder: Path, logger: str, resume: bool = False, **more: str) -> Path:
    """Train eight steps, with a checkpoint after each fourth and a validation after each second."""
    given = {"steps": "8", "save_every": "4", "validate_every": "2", "logger": logger, **more}
    overrides = {f"train.{name}": value for name, value in given.items()}
    recipe = read_recipe(write_recipe(folder, "language"), overrides)
    train_run(recipe, folder / "run", resume=resume, console=quiet())
    return folder / "run"


def test_a_run_that_breaks_off_and_resumes_logs_each_step_once(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("without", "straight", "broken")]
    for folder in folders:
        folder.mkdir()
    without, straight = trained(folders[0], "[]"), trained(folders[1], FAKE)
    with pytest.raises(ZeroDivisionError) as raised:
        trained(folders[2], FAILS_AT_5)
    assert raised.value.__notes__ == ["saved is everything up to step 4"]
    broken = trained(folders[2], FAKE, resume=True)

    left: dict[Path, Any] = {straight: [None], broken: [ZeroDivisionError, None]}
    for run in (straight, broken):
        [name] = json.loads((run / IDS).read_text()).values()
        heard = SERVER.pop(name)
        assert heard.lines == journal(run) == journal(without)
        assert heard.left == left[run]
        first = heard.runs[0]
        assert (first.name, first.folder, first.step, first.logged_step) == ("run", run, 0, 0)
        assert first.recipe["train"]["steps"] == 8
        assert first.data["train"].keys() == {"examples", "xxh3_128"}
    resumed = heard.runs[-1]
    assert (resumed.step, resumed.logged_step) == (4, 5)

    files = contents(without)
    for run in (straight, broken):
        ours = contents(run)
        del ours[IDS]
        assert ours.keys() == files.keys()
        changed = {name for name in files if ours[name] != files[name]}
        assert changed == {"config.json", "digests.json"}
    assert Run.open(broken).recipe.train.loggers == (FakeConfig(),)


@pytest.mark.long
def test_a_run_that_begins_again_is_another_one(tmp_path: Path) -> None:
    """It broke off before its first checkpoint, and may have another recipe now."""
    fails_at_3 = FAILS_AT_5.replace("5", "3")
    with pytest.raises(ZeroDivisionError):
        trained(tmp_path, fails_at_3)
    first = json.loads((tmp_path / "run" / IDS).read_text())
    run = trained(tmp_path, FAKE, lr="0.5")
    [name] = json.loads((run / IDS).read_text()).values()
    assert [name] != [*first.values()]
    assert SERVER.pop(name).lines == journal(run)
    SERVER.clear()


@pytest.mark.long
def test_a_logger_that_joins_later_hears_from_there_on(tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, "language"), {"train.save_every": "1"})
    folder = tmp_path / "run"
    train_run(recipe, folder, resume=False, console=quiet(), until=2)
    joined = trained(tmp_path, FAKE, resume=True, save_every="1")
    heard = SERVER.pop(
        json.loads((joined / IDS).read_text())["tests.runs.train.fake_logger:FakeConfig"]
    )
    assert heard.lines == [line for line in journal(joined) if line["step"] > 2]


def test_a_recipe_names_one_or_several(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "language")

    def read(value: str) -> list[str]:
        loggers = read_recipe(file, {"train.logger": value}).train.loggers
        return [type(logger).__name__ for logger in loggers]

    assert read("tensorboard") == ["TensorBoardConfig"]
    assert read('["wandb", {kind = "mlflow", experiment = "x"}]') == ["WandbConfig", "MLflowConfig"]
    with pytest.raises(InputError, match=r"train\.logger.*tensorbord.*Did you mean 'tensorboard'"):
        read("tensorbord")
    with pytest.raises(InputError, match="logger has wandb twice"):
        read('["wandb", "wandb"]')
    with pytest.raises(InputError, match="project is not a field"):
        read('{kind = "mlflow", project = "x"}')
    with pytest.raises(InputError, match="has no Other"):
        read('{kind = "tests.runs.train.fake_logger:Other"}')
    deaf = '{kind = "tests.runs.train.fake_logger:DeafConfig"}'
    with pytest.raises(InputError, match="returns object, which has none of the methods on_step"):
        trained(tmp_path, deaf)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named_before_training(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(module: str) -> None:
        raise ImportError(module)

    monkeypatch.setattr(errors, "import_module", missing)
    message = rf'train.logger = "{name}" needs an extra package: pip install \'addnorm\[{name}\]\''
    with pytest.raises(InputError, match=message):
        trained(tmp_path, name)
    assert not (tmp_path / "run").exists()


def test_a_logger_needs_a_folder() -> None:
    options: Any = {"tokenizer": "char", "steps": 1, "logger": "tensorboard"}
    with pytest.raises(InputError, match="give folder="):
        train(DecoderConfig(d_model=16), text(["abc"]), **options)


def offline(logger: str, tmp_path: Path, *, told: bool = True) -> Path:
    """A run that breaks off amid step 5 and is resumed from step 4, with a real logger.

    Step 5 is in the log, and the logger has been `told` of it, or not yet.
    """
    loggers = [logger, FAILS_AT_5] if told else [FAILS_AT_5, logger]
    with pytest.raises(ZeroDivisionError):
        trained(tmp_path, f"[{', '.join(loggers)}]")
    run = trained(tmp_path, f"[{logger}, {FAKE}]", resume=True)
    SERVER.clear()
    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = offline('"tensorboard"', tmp_path)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    expected = journal(run)
    names = {name for line in expected for name in line if name != "step"}
    assert set(tags["scalars"]) == names
    for name in names:
        ours = [(line["step"], line[name]) for line in expected if name in line]
        theirs = [(event.step, event.value) for event in events.Scalars(name)]
        assert theirs == [(step, pytest.approx(value)) for step, value in ours]
    assert len(events.Tensors("recipe/text_summary")) == 1
    assert b"xxh3_128" in events.Tensors("dataset/text_summary")[0].tensor_proto.string_val[0]


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline file: a LevelDB log of protocol buffers after seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            message = wandb_internal_pb2.Record()
            message.ParseFromString(record)
            yield message
            record = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = offline('"wandb"', tmp_path)
    id_ = json.loads((run / IDS).read_text())["wandb"]
    rows: dict[int, dict[str, float]] = {}
    configs = 0
    for file in sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb")):
        for record in wandb_records(file):
            if record.WhichOneof("record_type") == "run":
                assert record.run.run_id == id_
                assert record.run.display_name == "run"
                configs += any(item.key == "dataset" for item in record.run.config.update)
            elif record.WhichOneof("record_type") == "history":
                items = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                step = int(items.pop("_step"))
                assert step not in rows
                rows[step] = {k: v for k, v in items.items() if not k.startswith("_")}
    expected: dict[int, dict[str, float]] = {}
    for line in journal(run):
        expected.setdefault(int(line["step"]), {}).update(line)
    for figures in expected.values():
        del figures["step"]
    assert rows == expected
    assert configs == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("told", [True, False])
def test_mlflow(told: bool, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = offline(
        f'{{kind = "mlflow", experiment = "e", tracking_uri = "{uri}"}}', tmp_path, told=told
    )
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("e")
    [logged] = client.search_runs([experiment.experiment_id])
    assert logged.info.run_name == "run"
    assert logged.info.status == "FINISHED"
    assert logged.data.params["train.steps"] == "8"
    assert len(logged.data.params["dataset.train.xxh3_128"]) == 32
    expected = journal(run)
    for name in {name for line in expected for name in line if name != "step"}:
        history = client.get_metric_history(logged.info.run_id, name)
        ours = [(line["step"], line[name]) for line in expected if name in line]
        assert sorted((point.step, point.value) for point in history) == ours


@pytest.mark.slow
def test_of_several_processes_the_first_alone_logs(tmp_path: Path) -> None:
    module = tmp_path / "pids.py"
    module.write_text(PIDS)
    recipe = write_recipe(tmp_path, "language")
    words = [str(recipe), "--out", str(tmp_path / "run"), "--import", str(module)]
    words += ["--train.logger", '{kind = "pids:Pids"}', "--processes", "2", "--parallel.data", "2"]
    command = [sys.executable, "-m", "addnorm", "train", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "pids").read_text().split()
    assert len(lines) == 4
    assert len(set(lines)) == 1


PIDS = """
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Pids:
    def build(self, run):
        return Writes(run.folder / "pids")


class Writes:
    def __init__(self, file):
        self.file = file

    def on_step(self, event):
        with self.file.open("a") as stream:
            stream.write(f"{os.getpid()}\\n")
"""
