"""Training on shards is training on the texts; tokenizing in Python is that of the command."""

import io
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from rich.console import Console
from tests.data.shards.tiny import TEXTS, TOKENIZER, content, in_this_process, write_jsonl
from tests.training.tiny import journal

from addnorm.data.shards import writing
from addnorm.data.shards.options import ShardOptions
from addnorm.data.shards.source import ShardsConfig
from addnorm.errors import InputError
from addnorm.files import check_recipe_file
from addnorm.models import DecoderConfig
from addnorm.runs.evaluation import evaluate_run
from addnorm.runs.recipes.recipe import Recipe, read_recipe
from addnorm.runs.run import Run
from addnorm.runs.sharding import opened, tokenize_to_shards
from addnorm.runs.train.train_function import train
from addnorm.runs.train.train_run import TrainingSetup, train_run

RECIPE = """
[data]
kind = "{kind}"
train = "{train}"
valid = "{valid}"
{more}
[model]
kind = "decoder"
d_model = 16
n_layers = 1
attention = {{ n_heads = 2 }}
dropout = 0.0
[train]
steps = 6
seed = 3
device = "cpu"
validate_every = 2
batching = {{ kind = "windows", batch_size = {batch_size}, seq_len = 64 }}
"""
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "workers", in_this_process)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with texts, and shards of them by a tokenizer that was learnt from them."""
    (tmp_path / "train.txt").write_text("\n".join(TEXTS))
    (tmp_path / "valid.txt").write_text("\n".join(TEXTS[:20]))
    options = ShardOptions(vocab_size=300, unit="line", shard_tokens=700)
    tokenize_to_shards([tmp_path / "train.txt"], tmp_path / "s", options=options)
    options = replace(options, vocab_size=None)
    valid = tmp_path / "v"
    tokenize_to_shards(tmp_path / "valid.txt", valid, tokenizer=tmp_path / "s", options=options)
    return tmp_path


def recipe(folder: Path, kind: str, batch_size: int) -> Recipe:
    """The recipe of texts, or of their shards."""
    names = {"text": ("train.txt", "valid.txt"), "shards": ("s", "v")}[kind]
    more = 'unit = "line"\n[tokenizer]\nkind = "bpe"\nvocab_size = 300' if kind == "text" else ""
    train, valid = (str(folder / name) for name in names)
    text = RECIPE.format(kind=kind, train=train, valid=valid, more=more, batch_size=batch_size)
    file = folder / f"{kind}.toml"
    file.write_text(text)
    return read_recipe(file)


def test_training_on_shards_is_training_on_their_texts(folder: Path) -> None:
    """A batch of all windows has the same rows whatever their order: equal up to rounding."""
    for kind in ("text", "shards"):
        train_run(recipe(folder, kind, 1000), folder / f"run {kind}", resume=False, console=QUIET)
    ours, theirs = journal(folder / "run shards"), journal(folder / "run text")
    assert len(ours) == len(theirs) == 9
    assert [a.pop("measured_with", None) for a in ours] == [
        b.pop("measured_with", None) for b in theirs
    ]
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, rel=1e-4)


def test_a_run_of_shards_resumes_and_is_used(folder: Path) -> None:
    whole = recipe(folder, "shards", 4)
    train_run(whole, folder / "whole", resume=False, console=QUIET)
    train_run(whole, folder / "parts", resume=False, console=QUIET, until=3)
    run = train_run(whole, folder / "parts", resume=True, console=QUIET)
    assert journal(folder / "parts") == journal(folder / "whole")
    assert isinstance(run.recipe.data, ShardsConfig)
    again = Run.open(folder / "whole")
    scores = evaluate_run(again, "valid")
    assert scores["examples"] == 20
    assert scores["loss"] == pytest.approx(journal(folder / "whole")[-1]["valid_loss"])
    assert again.generate("red cats", max_new_tokens=3)
    shutil.rmtree(folder / "s")
    shutil.copytree(folder / "v", folder / "s")
    with pytest.raises(InputError, match="its training data have changed"):
        train_run(whole, folder / "parts", resume=True, console=QUIET)


def test_training_in_python(folder: Path) -> None:
    data = ShardsConfig(train=folder / "s", valid=folder / "v")
    model = DecoderConfig(d_model=16, n_layers=1, max_len=32)
    run = train(model, data, steps=2, device="cpu", folder=folder / "run", progress=False)
    assert run.evaluate(split="valid")["examples"] == 20
    with pytest.raises(InputError, match="no texts"):
        run.evaluate(data)


def test_rows_that_are_larger_than_the_data_are_reported(folder: Path) -> None:
    text = io.StringIO()
    large = recipe(folder, "shards", 1000)
    setup = TrainingSetup(large)
    setup.report(Console(file=text, width=400))
    assert "batch_size = 1,000: a batch of windows of 64 tokens is larger" in text.getvalue()


@pytest.mark.slow
def test_a_run_of_four_processes_resumes_as_two(folder: Path) -> None:
    """Losses and validation are those of one process."""
    recipe(folder, "shards", 8)

    def trained(out: str, words: str) -> None:
        command = [sys.executable, "-m", "addnorm", "train", *words.split(), "--out", out]
        subprocess.run(command, cwd=folder, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    schedule = "--train.schedule_steps 6"
    trained("one", f"shards.toml {schedule}")
    trained("four", f"shards.toml {schedule} --train.steps 3 --parallel.data 4 --processes 4")
    resumed = f"--resume {folder / 'four'} --train.steps 6 --parallel.data 2 --processes 2"
    subprocess.run(
        [sys.executable, "-m", "addnorm", "train", *resumed.split()], cwd=folder, check=True
    )
    ours, theirs = (
        {
            (line["step"], name): value
            for line in journal(folder / out)
            for name, value in line.items()
        }
        for out in ("four", "one")
    )
    losses = [key for key in theirs if key[1] == "loss"]
    assert len(losses) == 6
    for key in losses:
        assert ours[key] == pytest.approx(theirs[key], rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": "char"}, "leave .tokenizer. out"),
        ({"model.kind": "encoder"}, "model.kind = 'decoder'"),
        ({"train.batching": '{ kind = "tokens" }'}, '"windows" or "packed"'),
        ({"train.batching.documents": "joined"}, "leave batching.documents"),
        ({"data.weights": "[1, 2]"}, "weights has 2 numbers"),
    ],
)
def test_a_recipe_that_shards_cannot_serve_is_refused(
    folder: Path, change: dict[str, str], message: str
) -> None:
    recipe(folder, "shards", 4)
    check_recipe_file(folder / "shards.toml")
    with pytest.raises(InputError, match=message):
        read_recipe(folder / "shards.toml", change)


def test_the_tokenizer_of_a_run_a_folder_or_a_file(folder: Path) -> None:
    train_run(recipe(folder, "text", 4), folder / "run", resume=False, console=QUIET)
    for given in (folder / "run", folder / "run" / "tokenizer.json", folder / "s"):
        assert opened(given).encode("red cats") == opened(str(folder / "s")).encode("red cats")
    file = write_jsonl(folder / "a.jsonl", TEXTS)
    for name, tokenizer in (("a", folder / "run"), ("b", opened(folder / "s"))):
        tokenize_to_shards([file], folder / name, tokenizer=tokenizer)
    assert content(folder / "a") == content(folder / "b")


def test_wrong_arguments(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for name, index in (("model", None), ("page", '{"pages": []}'), ("cut", '{"format": "addn')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text("theirs")
        if index is not None:
            (tmp_path / name / "index.json").write_text(index)
    learn = ShardOptions(vocab_size=300)
    for out, options, message in (
        ("s", {}, "give either `tokenizer`"),
        ("s", {"tokenizer": TOKENIZER, "options": learn}, "or `vocab_size` to learn"),
        ("s", {"tokenizer": TOKENIZER, "workers": 0}, "must be from 1 to"),
        ("s", {"tokenizer": TOKENIZER, "workers": 100_000}, "must be from 1 to"),
        ("s", {"options": ShardOptions(vocab_size=10)}, "vocab_size = 10"),
        ("s", {"tokenizer": tmp_path / "none.json"}, "no such tokenizer"),
        ("s", {"tokenizer": tmp_path / "none"}, "no such folder"),
        ("full", {"tokenizer": TOKENIZER}, "something is there already"),
        ("a.jsonl", {"tokenizer": TOKENIZER}, "is a file"),
        ("model", {"tokenizer": TOKENIZER}, "something is there already"),
        ("page", {"options": learn}, r"page/index\.json: not an index of shards"),
        ("cut", {"options": learn}, r"cut/index\.json: damaged"),
    ):
        with pytest.raises(InputError, match=message):
            tokenize_to_shards([file], tmp_path / out, **options)  # pyright: ignore
    assert not (tmp_path / "s").exists()
    for name in ("model", "page", "cut"):
        assert (tmp_path / name / "tokenizer.json").read_text() == "theirs"


def test_a_call_that_was_killed_at_its_first_write_is_resumed(folder: Path) -> None:
    class KilledError(BaseException): ...

    arguments = ([folder / "train.txt"], folder / "t")
    with (
        patch("os.replace", side_effect=KilledError),
        patch.object(Path, "unlink"),
        pytest.raises(KilledError),
    ):
        tokenize_to_shards(*arguments, tokenizer=TOKENIZER)
    assert [*(folder / "t").iterdir()]
    assert tokenize_to_shards(*arguments, tokenizer=TOKENIZER).documents.kept == 1


def test_a_tokenizer_is_learnt_again_where_no_shard_was_finished(folder: Path) -> None:
    texts, options = [folder / "train.txt"], ShardOptions(vocab_size=300, unit="line")
    with (
        patch.object(writing.SplitWriter, "add", side_effect=InputError("stopped")),
        pytest.raises(InputError, match="stopped"),
    ):
        tokenize_to_shards(texts, folder / "t", options=options)
    tokenize_to_shards(texts, folder / "t", options=replace(options, vocab_size=280))
    assert opened(folder / "t").vocab_size == 280


def test_a_learnt_tokenizer_stays_where_it_resumes(folder: Path) -> None:
    before = content(folder / "s")
    options = ShardOptions(vocab_size=300, unit="line", shard_tokens=700)
    tokenize_to_shards([folder / "train.txt"], folder / "s", options=options)
    assert content(folder / "s") == before
    other = replace(options, vocab_size=280)
    with pytest.raises(InputError, match="differ in vocab_size: 300, and now 280"):
        tokenize_to_shards([folder / "train.txt"], folder / "s", options=other)
