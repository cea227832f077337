"""Every writer of a run writes all of it, for every kind of model: opened again, it is the same."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.runs.every_kind import (
    KINDS,
    SAYS_OF_USE,
    answers,
    prepared_as,
    say_of_use,
    started,
    write_as_training,
    write_kind,
)

import addnorm
from addnorm.quantize import Int8Config, WeightsOnlyConfig
from addnorm.runs.files.digests import check_digests
from addnorm.runs.files.layout import AROUND, MODULES, OF_TRAINING, OPENED, WEIGHTS
from addnorm.runs.rewriting import prune as pruning
from addnorm.runs.rewriting import quantize as quantization
from addnorm.runs.rewriting.prune import PruneOptions, prune_run
from addnorm.runs.rewriting.quantize import quantize_run
from addnorm.runs.rewriting.swap import SwapOptions, swap_run
from addnorm.runs.run import Run


@dataclass(frozen=True)
class Made:
    """A run of a kind in the folder `root / "run"`."""

    kind: str
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / "run"


@pytest.fixture(scope="module")
def made_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    made: dict[str, Made] = {}

    def of(kind: str) -> Made:
        if kind not in made:
            made[kind] = Made(kind, tmp_path_factory.mktemp(kind.replace(" ", "-")))
            write_kind(made[kind].root, kind)
            if kind in SAYS_OF_USE:
                say_of_use(made[kind].folder)
        return made[kind]

    return of


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pruning, quantization):
        monkeypatch.setattr(module, "writing_speeds", lambda run, models: {n: {} for n in models})


def saved(made: Made, out: Path) -> Run:
    return Run.open(made.folder).save(out)


def saved_from_memory(made: Made, out: Path) -> Run:
    run = Run.open(made.folder)
    return replace(run, folder=None, bases=run.places).save(out)


def swapped(made: Made, out: Path) -> Run:
    sets = ("dropout=0.3",)
    return swap_run(Run.open(made.folder), out, SwapOptions(sets=sets)).run


def pruned(made: Made, out: Path) -> Run:
    return prune_run(Run.open(made.folder), out, PruneOptions(layers=("0",))).run


def quantized(made: Made, out: Path) -> Run:
    scheme = Int8Config(activations=WeightsOnlyConfig())
    quantize_run(Run.open(made.folder), out, scheme)
    return Run.open(out)


def quantized_and_saved(made: Made, out: Path) -> Run:
    return quantized(made, out.with_name("quantised")).save(out)


def trained_from(made: Made, out: Path) -> Run:
    prepared = prepared_as(made.root, "from", start_of(made))
    write_as_training(prepared, out)
    return prepared.run(out).written_to(out)


def adapted(made: Made, out: Path) -> Run:
    text = start_of(made).replace("start = ", 'adapter = { kind = "lora", rank = 2 }\nstart = ')
    prepared = prepared_as(made.root, "adapted", text)
    write_as_training(prepared, out)
    assert prepared.adapted is not None
    prepared.adapted.merge()
    return prepared.run(out)


def merged(made: Made, out: Path) -> Run:
    adapted(made, out.with_name("adapter"))
    return Run.open(out.with_name("adapter")).save(out)


def start_of(made: Made) -> str:
    return started(made.kind).replace('start = "run"', f'start = "{made.folder}"')


EXACT = (saved, saved_from_memory, swapped)
"""The writers that change no output."""

OFTEN = (saved, swapped, pruned, quantized, trained_from, adapted)
SELDOM = (saved_from_memory, quantized_and_saved, merged)
FEW = ("forecasting", "series", "masked", "chat")
"""The kinds for which the writers that write what another wrote are not slow."""

CELLS = [
    pytest.param(
        writer,
        kind,
        id=f"{writer.__name__}-{kind}",
        marks=pytest.mark.slow if writer in SELDOM and kind not in FEW else pytest.mark.long,
    )
    for writer in (*OFTEN, *SELDOM)
    for kind in KINDS
]


def around(folder: Path) -> dict[str, object]:
    """What is around the weights, except for the recipe and what quantising adds."""
    files = {str(f.relative_to(folder)): f for one in (*AROUND, *MODULES) for f in folder.glob(one)}
    changing = ("config.json", "quantization.json")
    return {
        name: json.loads(file.read_bytes()) if file.suffix == ".json" else file.read_bytes()
        for name, file in files.items()
        if name not in changing
    }


@pytest.mark.parametrize(("writer", "kind"), CELLS)
def test_every_writer_writes_all_of_a_run(
    writer: Callable[[Made, Path], Run],
    kind: str,
    made_of: Callable[[str], Made],
    tmp_path: Path,
) -> None:
    made, out = made_of(kind), tmp_path / "out"
    written = writer(made, out)
    again = Run.open(out)
    found = answers(again, kind, made.root)
    assert found == answers(written, kind, made.root)
    if writer in EXACT:
        assert found == answers(Run.open(made.folder), kind, made.root)
    assert around(out) == around(made.folder)
    check_digests(out)


@pytest.mark.parametrize("kind", ["forecasting", "series", "language"])
def test_a_swapped_run_has_what_the_run_before_had(
    kind: str, made_of: Callable[[str], Made], tmp_path: Path
) -> None:
    made = made_of(kind)
    swapped(made, tmp_path / "out")
    found = answers(Run.open(tmp_path / "out"), kind, made.root)
    assert found == answers(Run.open(made.folder), kind, made.root)
    assert around(tmp_path / "out") == around(made.folder)


@pytest.mark.parametrize("kind", ["forecasting", "series", "language"])
def test_every_file_is_listed(kind: str, made_of: Callable[[str], Made]) -> None:
    """A file that training or use writes is around the weights, weights, or of training alone."""
    made = made_of(kind)
    assert unlisted(made.folder) == set()


@pytest.mark.parametrize("task", ["language", "classification"])
def test_every_file_of_a_trained_run_is_listed(task: str, run_of: Callable[[str], Path]) -> None:
    assert unlisted(run_of(task)) == set()


def test_every_file_that_is_listed_is_written_for_some_kind(
    made_of: Callable[[str], Made], tmp_path: Path
) -> None:
    made = [made_of(kind) for kind in ("forecasting", "series", "language", "classification")]
    quantized(made[-1], tmp_path / "small")
    adapted(made[-1], tmp_path / "adapter")
    folders = (*(one.folder for one in made), tmp_path / "small", tmp_path / "adapter")
    names = {pattern for folder in folders for pattern in OPENED if any(folder.glob(pattern))}
    of_files = {"preprocessor_config.json", "processor_config.json", "generation_config.json"}
    of_other_folders = {"*tokenizer.ids.json", "*tokenizer/*", "[1-9]*_*/*.safetensors"}
    assert names == {*OPENED} - of_files - of_other_folders  # of pictures and sound


def unlisted(folder: Path) -> set[str]:
    listed = {
        file for one in (*AROUND, *MODULES, *WEIGHTS, *OF_TRAINING) for file in folder.glob(one)
    }
    files = {file for file in folder.rglob("*") if file.is_file()}
    return {str(file.relative_to(folder)) for file in files - listed}


def test_what_an_earlier_run_left_is_removed(
    made_of: Callable[[str], Made], tmp_path: Path
) -> None:
    """A run that never finished, of another kind, in the same folder."""
    kinds = [
        prepared_as(made_of(kind).root, "again", KINDS[kind].recipe) for kind in ("series", "chat")
    ]
    first, second = kinds
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "quantization.json").write_text("{}")
    (folder / "mine.json").write_text("{}")
    first.write_settings(folder)
    assert (folder / "variables.json").is_file()
    second.write_settings(folder)
    names = {file.name for file in folder.iterdir()}
    assert names == {"config.json", "tokenizer.json", "data.json", "mine.json"}


@pytest.mark.long
def test_a_run_in_memory_has_what_its_folder_would_have(tmp_path: Path) -> None:
    write_kind(tmp_path, "series")
    recipe = Run.open(tmp_path / "run").recipe
    assert recipe.data is not None
    run = addnorm.train(
        recipe.model, recipe.data, steps=2, batching=recipe.train.batching, progress=False
    )
    saved_as = run.save(tmp_path / "saved")
    assert answers(Run.open(tmp_path / "saved"), "series", tmp_path) == answers(
        run, "series", tmp_path
    )
    assert saved_as.bases == ()
