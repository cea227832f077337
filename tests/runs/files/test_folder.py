"""The run folder: round trips, and one message for each kind of damage."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
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
from tests.runs.inference.test_forecast import write
from tests.runs.recipes.test_starting_model import GPT2_PARTS
from tests.runs.tiny import RECIPES, train_text, write_recipe

import addnorm
from addnorm.data import Corpus, LabelledSeries, Text
from addnorm.data.batches.buckets import build_loaders
from addnorm.data.scaling import Scaling
from addnorm.data.times import Interval
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.inspect.prepared_text import prepare_text
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import WindowPatternConfig
from addnorm.quantize import Int8Config, WeightsOnlyConfig
from addnorm.runs.evaluation import data_of
from addnorm.runs.export import export_run
from addnorm.runs.files.digests import check_digests
from addnorm.runs.files.folder import (
    AROUND,
    MODULES,
    OF_TRAINING,
    OPENED,
    WEIGHTS,
    read_scaling,
    read_settings,
    read_variables,
    variables_of,
    write_scaling,
    write_settings,
    write_variables,
)
from addnorm.runs.inference.text import classify, prompts
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.rewriting import prune as pruning
from addnorm.runs.rewriting import quantize as quantization
from addnorm.runs.rewriting.prune import PruneOptions, prune_run
from addnorm.runs.rewriting.quantize import quantize_run
from addnorm.runs.rewriting.swap import SwapOptions, swap_run
from addnorm.runs.run import Run
from addnorm.runs.saving import write_around

RunOf = Callable[[str], Path]


@pytest.fixture
def copied(run_of: RunOf, tmp_path: Path) -> Path:
    """A run of a classifier that may be damaged."""
    return Path(shutil.copytree(run_of("classification"), tmp_path / "copied"))


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        Run.open(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("task", RECIPES)
def test_a_run_opens_as_it_was_saved(task: str, run_of: RunOf) -> None:
    run = Run.open(run_of(task))
    assert run.task == task
    assert bool(run.labels) == (task not in ("language", "translation"))
    assert not any(module.training for module in run.model.modules())
    saved = load_file(run.folder / "model.safetensors")
    assert all(torch.equal(saved[n], p) for n, p in run.model.named_parameters())


def test_separate_tokenizers_and_stale_files(run_of: RunOf, tmp_path: Path) -> None:
    recipe = read_recipe(
        write_recipe(tmp_path, "translation"),
        {"tokenizer.joint": "false", "model.share_embeddings": "false"},
    )
    corpus = recipe.data.load()
    folder = tmp_path / "r"
    trained = Run.open(run_of("translation"))
    for joint in (recipe, trained.recipe, recipe):
        tokenizers = Tokenizers.train(joint.tokenizer, corpus)
        run = Run(folder, joint, tokenizers, ("stale",), trained.model, variables=("stale",))
        write_around(folder, run)
        write_around(folder, replace(run, labels=(), variables=()))
        names = {path.name for path in folder.iterdir()}
        both = {"source.tokenizer.json", "target.tokenizer.json"}
        assert names == {"config.json"} | (both if joint is recipe else {"tokenizer.json"})
        back = read_settings(folder)
        assert back.recipe == joint
        assert (back.tokenizers.source is back.tokenizers.target) == (joint is not recipe)


def test_a_run_of_the_first_version_opens(copied: Path) -> None:
    file = copied / "config.json"
    facts = json.loads(file.read_text())
    layers = [{"pattern": {"kind": "window", "size": 3}, "position": None}]
    del facts["recipe"]["model"]["layer_pattern"]
    facts["recipe"]["model"]["cycle"] = layers
    file.write_text(json.dumps(facts))
    run = Run.open(copied)
    assert [layer.pattern for layer in run.recipe.model.layer_pattern] == [
        WindowPatternConfig(size=3)
    ]
    assert run.model.stack.patterns[0].reach == (2, 2)
    override = {"model.layer_pattern": "[{}]"}
    assert Run.open(copied, override).recipe.model.layer_pattern == (LayerConfig(),)


def test_other_folders_are_rejected(tmp_path: Path, copied: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "nothing" / "here")
    assert "a file, not a run folder" in refusal(copied / "config.json")
    assert refusal(tmp_path / "copide").endswith("Did you mean 'copied'?")


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "labels.json", "model.safetensors"]
)
@pytest.mark.parametrize("damage", ["truncated", "empty", "bytes", "missing", "other"])
def test_every_damaged_file_is_named(name: str, damage: str, copied: Path) -> None:
    file = copied / name
    content = file.read_bytes()
    match damage:
        case "truncated":
            file.write_bytes(content[: len(content) // 2])
        case "empty":
            file.write_bytes(b"")
        case "bytes":
            file.write_bytes(b"\xff\x00" * 50)
        case "missing":
            file.unlink()
        case _:
            file.write_text("{}")
    if damage == "missing" and name == "model.safetensors":
        shutil.rmtree(copied / "checkpoints")
        assert f"{copied}: training has not finished" in refusal(copied)
        return
    said = refusal(copied)
    assert str(copied) in said
    assert name in said


@pytest.mark.parametrize("labels", ['{"good": 1}', "[1, 2]", "[]", "null", '["good", ["bad"]]'])
def test_labels_of_a_wrong_type(labels: str, copied: Path) -> None:
    (copied / "labels.json").write_text(labels)
    assert "not a list of names" in refusal(copied)


@pytest.mark.parametrize("config", ['{"format": 2, "recipe": {}}', '{"format": 1, "recipe": []}'])
def test_config_of_a_wrong_type(config: str, copied: Path) -> None:
    (copied / "config.json").write_text(config)
    assert "not a run of this version" in refusal(copied)


@pytest.mark.parametrize("config", ["[]", '"x"'])
def test_a_list_or_a_text_in_place_of_an_object(config: str, copied: Path) -> None:
    (copied / "config.json").write_text(config)
    assert f"{copied}/config.json: damaged: expected a JSON object" in refusal(copied)


def test_a_field_of_a_wrong_type(copied: Path) -> None:
    facts = json.loads((copied / "config.json").read_text())
    facts["recipe"]["model"]["d_model"] = "wide"
    (copied / "config.json").write_text(json.dumps(facts))
    assert refusal(copied).startswith(f"{copied}/config.json: model.d_model = 'wide'")


def test_weights_of_another_model_are_named(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    first, second, *_ = sorted(weights)
    weights["extra"] = weights.pop(first)
    weights[second] = torch.zeros(2, 3, 4)
    save_file(weights, copied / "model.safetensors")
    (copied / "digests.json").unlink()  # changed on purpose
    said = refusal(copied)
    assert f"missing {first}" in said
    assert "unexpected extra" in said
    assert f"{second} has shape (2, 3, 4), expected" in said
    assert "(3 problems)" in said


def test_overrides_are_blamed(copied: Path) -> None:
    assert Run.open(copied, {"eval.batch_size": "3"}).recipe.eval.batch_size == 3
    with pytest.raises(InputError, match=r"^`eval\.batch_sze`: eval\.batch_sze is not a field"):
        Run.open(copied, {"eval.batch_sze": "3"})


def test_a_run_needs_nothing_but_its_folder(copied: Path) -> None:
    assert classify(Run.open(copied), ["a fine day"])[0].label in ("good", "bad")


@pytest.mark.parametrize("value", ["1e300", "1e-300", "0.1"])
def test_every_number_survives_the_folder(value: str, tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, "language"), {"train.clip": value})
    tokenizers = Tokenizers.train(recipe.tokenizer, recipe.data.load())
    write_settings(tmp_path / "r", recipe, tokenizers, ())
    assert read_settings(tmp_path / "r").recipe == recipe


INTERVALS = (None, Interval(months=3), Interval(fixed=timedelta(days=7, microseconds=1)))


@pytest.mark.parametrize("interval", INTERVALS, ids=str)
def test_it_is_read_as_it_was(interval: Interval | None, tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path))
    scaling = Scaling((0.1, -1e30), (1 / 3, 2.0), interval)
    write_scaling(tmp_path / "run", scaling)
    assert read_scaling(tmp_path / "run", recipe) == scaling
    write_scaling(tmp_path / "other", None)
    assert not (tmp_path / "other").exists()


def test_missing_or_damaged_files_are_named(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path))
    with pytest.raises(InputError, match=r"scaling.json: missing: the folder is damaged"):
        read_scaling(tmp_path, recipe)
    for text in ("{}", "[", '{"mean": [1], "deviation": ["x"]}'):
        (tmp_path / "scaling.json").write_text(text)
        with pytest.raises(InputError, match=r"scaling.json: damaged"):
            read_scaling(tmp_path, recipe)


def test_names_are_kept(tmp_path: Path) -> None:
    names = ("up", "d\u00f6wn")
    assert variables_of(Corpus(train=[LabelledSeries(torch.zeros(2, 3), "x", names)])) == names
    write_variables(tmp_path / "a", names)
    assert read_variables(tmp_path / "a") == names


def test_other_runs_have_none(tmp_path: Path) -> None:
    write_variables(tmp_path / "a", variables_of(Corpus(train=[Text("a")])))
    assert read_variables(tmp_path / "a") == ()
    assert not (tmp_path / "a").exists()
    assert variables_of(None) == ()


@pytest.mark.parametrize("text", ["", "[]", "[1]", "{}", "[[["])
def test_damage_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "variables.json").write_text(text)
    with pytest.raises(InputError, match=r"variables.json: damaged"):
        read_variables(tmp_path)


BOS = 2
TEXT = "To be, or not to be:\nthat is the question.\n" * 8
WINDOWS = 'kind = "windows", batch_size = 4, seq_len = 16'
BATCHINGS = {
    "windows": WINDOWS,
    "joined": f'{WINDOWS}, documents = "joined"',
    "packed": 'kind = "packed", batch_size = 4, seq_len = 64',
    "tokens": 'kind = "tokens", tokens = 2000',
}
BEGINS = {
    ("file", "windows"): [],
    ("file", "joined"): [],
    ("file", "packed"): [],
    ("file", "tokens"): [BOS],
    ("line", "windows"): [BOS],
    ("line", "joined"): [],
    ("line", "packed"): [BOS],
    ("line", "tokens"): [BOS],
}


def learnt(folder: Path, unit: str, batching: str, **more: str) -> Run:
    (folder / "play.txt").write_text(TEXT, encoding="utf-8")
    text = RECIPES["language"].replace(WINDOWS, BATCHINGS[batching])
    return train_text(folder, "run", text, data__unit=unit, train__steps="1", **more)


@pytest.mark.long
@pytest.mark.parametrize(("unit", "batching"), BEGINS)
def test_prompts_begin_as_rows_did(tmp_path: Path, unit: str, batching: str) -> None:
    run = learnt(tmp_path, unit, batching)
    expected = BEGINS[unit, batching]
    train = build_loaders(run.recipe.train.batching, data_of(run).encoded, 1).train
    rows = [row for batch in train.batches() for row in batch.inputs["tokens"].tolist()]
    began = sum(row[:1] == [BOS] for row in rows) / len(rows)
    if batching in ("packed", "tokens") and unit == "line":
        assert began == 1
    if unit == "file" and batching != "tokens":
        assert began < 0.5  # once an epoch at the most
    if batching == "joined":
        assert not any(BOS in row for row in rows)
    ids = run.tokenizers.source.encode("To be")
    for one in (run, Run.open(tmp_path / "run"), run.save(tmp_path / "saved")):
        assert prompts(one, ["To be"]) == [[*expected, *ids]]
        assert prepare_text(one, "To be").inputs[0].tolist() == [[*expected, *ids]]
        tokens = torch.tensor([[*expected, *ids]])
        hidden = one.model.hidden(tokens, tokens >= 0)[0][0]  # pyright: ignore
        torch.testing.assert_close(one.hidden_states("To be"), hidden.detach())


@pytest.mark.long
def test_one_text_in_python_is_joined(tmp_path: Path) -> None:
    """An empty prompt begins with the start token everywhere, as there has to be something."""
    model = learnt(tmp_path, "file", "windows").recipe.model
    cases: list[tuple[list[str], list[int]]] = [([TEXT], []), ([*TEXT.splitlines()], [BOS])]
    for texts, before in cases:
        run = addnorm.train(model, addnorm.text(texts), tokenizer="char", steps=1, progress=False)
        run.save(tmp_path / f"{len(texts)}")
        for one in (run, Run.open(tmp_path / f"{len(texts)}")):
            assert prompts(one, ["", "T"]) == [[BOS], [*before, *run.tokenizers.source.encode("T")]]
        assert "".join(run.stream("", max_new_tokens=9)) == run.generate("", max_new_tokens=9)


@pytest.mark.long
@pytest.mark.parametrize("unit", ["file", "line"])
def test_exports_begin_alike(tmp_path: Path, unit: str) -> None:
    more = {key.replace(".", "__"): value for key, value in GPT2_PARTS.items()}
    more["model__feedforward__activation"] = "gelu_tanh"
    run = learnt(tmp_path, unit, "windows", **more)
    export_run(run, tmp_path / "hf", to="hf")
    theirs: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    opened = Run.open(tmp_path / "hf")
    [ids] = prompts(run, ["To be"])
    assert theirs("To be")["input_ids"] == ids == prompts(opened, ["To be"])[0]
    gguf = pytest.importorskip("gguf")
    export_run(run, tmp_path / "model.gguf", to="gguf")
    field = gguf.GGUFReader(tmp_path / "model.gguf").get_field("tokenizer.ggml.add_bos_token")
    assert bool(field.contents()) == (unit == "line")


@pytest.mark.long
def test_a_folder_follows_its_tokenizer_until_it_learns_documents(tmp_path: Path) -> None:
    """GPT-2 puts nothing before a text, and learnt here from lines each begins with a token."""
    more = {key.replace(".", "__"): value for key, value in GPT2_PARTS.items()}
    run = learnt(tmp_path, "file", "windows", **more)
    export_run(run, tmp_path / "hf", to="hf")
    file = tmp_path / "hf" / "tokenizer.json"
    assert not json.loads(file.read_text("utf-8"))["post_processor"]["special_tokens"]
    folder = Run.open(tmp_path / "hf")
    ids = folder.tokenizers.source.encode("To be")
    assert prompts(folder, ["To be"]) == [ids]
    assert prompts(folder.save(tmp_path / "saved"), ["To be"]) == [ids]
    assert prompts(Run.open(tmp_path / "saved"), ["To be"]) == [ids]
    for unit, before in (("line", [folder.tokenizers.source.bos_id]), ("file", [])):
        text = (
            f'[data]\nkind = "text"\ntrain = "play.txt"\nunit = "{unit}"\n[train]\nsteps = 1\n'
            f'start = "{tmp_path / "hf"}"\nbatching = {{ {WINDOWS} }}\n'
        )
        assert prompts(train_text(tmp_path, unit, text), ["To be"]) == [[*before, *ids]]


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


@pytest.mark.sampled(2)
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
    of_other_folders = {
        *("*tokenizer.ids.json", "*tokenizer.sample.json", "*tokenizer/*"),
        "[1-9]*_*/*.safetensors",
    }
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
