"""A prompt begins as the rows of training did, whatever the texts were and whoever reads it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.runs.recipes.test_starting_model import GPT2_PARTS
from tests.runs.tiny import RECIPES, train_text

import addnorm
from addnorm.data.batches.buckets import build_loaders
from addnorm.inspect.prepared_text import prepare_text
from addnorm.runs.evaluation import data_of
from addnorm.runs.export import export_run
from addnorm.runs.inference.chat import prompts
from addnorm.runs.run import Run

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
