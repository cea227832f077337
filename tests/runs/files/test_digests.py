"""Digests: any flipped byte of a finished run is detected, at load and on demand."""

import json
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.tiny import quiet, train_tiny

from addnorm.errors import InputError
from addnorm.runs.files.digests import DIGESTS, check_digest, check_digests, digest, write_digests
from addnorm.runs.files.resuming import resumed_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run

RunOf = Callable[[str], Path]


@pytest.fixture
def run(run_of: RunOf, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_of("translation"), tmp_path / "run"))


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_a_run_is_whole_when_it_is_finished(run: Path) -> None:
    listed = json.loads((run / DIGESTS).read_text())["xxh3_128"]
    assert listed.keys() == {"config.json", "model.safetensors", "tokenizer.json"}
    assert check_digests(run) == 3
    Run.open(run)


def test_a_flipped_byte_anywhere_in_the_weights_is_noticed_at_load(run: Path) -> None:
    file = run / "model.safetensors"
    size, rng = file.stat().st_size, random.Random(0)
    for place in (0, size - 1, *(rng.randrange(size) for _ in range(20))):
        flip(file, place)
        with pytest.raises(InputError, match=r"model\.safetensors: damaged: its digest"):
            Run.open(run)
        flip(file, place)
    Run.open(run)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_every_file_is_compared_on_demand(run: Path, name: str) -> None:
    flip(run / name, 30)
    with pytest.raises(InputError, match=f"{name}: damaged"):
        check_digests(run)
    (run / name).unlink()
    with pytest.raises(InputError, match=f"{name}: missing"):
        check_digests(run)


def test_of_what_is_not_listed_nothing_is_known(run: Path) -> None:
    (run / DIGESTS).write_text("{}")
    with pytest.raises(InputError, match=r"digests\.json: damaged"):
        check_digest(run / "model.safetensors")
    (run / DIGESTS).unlink()
    check_digest(run / "model.safetensors")
    with pytest.raises(InputError, match="not finished, or of an earlier version"):
        check_digests(run)
    (run / "empty").touch()
    assert digest(run / "empty") == digest(run / "empty")
    write_digests(run)
    assert check_digests(run) == 3


def test_a_run_that_goes_on_has_those_of_its_new_end(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "language")
    before = (run / DIGESTS).read_text()

    train_run(resumed_recipe(run, {"train.steps": "6"}), run, resume=True, console=quiet())
    assert (run / DIGESTS).read_text() != before
    assert check_digests(run) == 3


def test_files_have_the_permissions_of_any_other(run_of: RunOf, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    expected = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    for file in run_of("language").rglob("*.*"):
        if file.is_file():
            assert stat.S_IMODE(file.stat().st_mode) == expected, file


def test_what_a_tokenizer_writes_itself_and_its_ids_are_listed(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer.ids.json", "tokenizer/pieces/deep", "tokenizer/own"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    write_digests(tmp_path)
    assert check_digests(tmp_path) == 3
    (tmp_path / "tokenizer.ids.json").write_text("[]")
    with pytest.raises(InputError, match=r"tokenizer\.ids\.json: damaged"):
        check_digests(tmp_path)
