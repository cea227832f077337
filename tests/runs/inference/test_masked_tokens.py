"""A masked language model and denoisers as runs: trained, resumed, evaluated, and asked to fill."""

import json
import math
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file
from tests.runs.tiny import LANGUAGE, quiet, train_text, write_corpora

from addnorm.cli.main import status
from addnorm.data.batches.buckets import build_loaders
from addnorm.data.ids.encoding import IGNORE
from addnorm.errors import InputError
from addnorm.models import Model
from addnorm.runs.evaluation import data_of, evaluation_of
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run

MASKED = LANGUAGE.replace('"decoder"', '"encoder"').replace(
    'kind = "windows", batch_size = 4, seq_len = 16',
    'kind = "masked", batch_size = 3, seq_len = 16',
)
DENOISING = LANGUAGE.replace('"decoder"', '"encoder_decoder"').replace(
    'kind = "windows", batch_size = 4, seq_len = 16',
    'kind = "denoising", batch_size = 3, seq_len = 16, noise = "spans"',
)
RECIPES = {
    "masked": MASKED,
    "spans": DENOISING,
    "infilling": DENOISING.replace('"spans"', '"infilling"'),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hidden")
    write_corpora(folder)
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Run]:
    return {name: train_text(folder, name, text) for name, text in RECIPES.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_scores_are_those_of_a_plain_loop(runs: dict[str, Run], name: str) -> None:
    run = Run.open(str(runs[name].folder))
    assert run.task == ("masked_language" if name == "masked" else "denoising")
    found = evaluation_of(run, "valid").scores
    run.model.double()
    loader = build_loaders(run.recipe.train.batching, data_of(run).encoded).valid
    assert loader is not None
    total, right, n = 0.0, 0, 0
    for batch in loader.batches():
        with torch.no_grad():
            logits = run.model(**batch.inputs)
        for row, targets in zip(logits.tolist(), batch.targets.tolist(), strict=True):
            for scores, target in zip(row, targets, strict=True):
                if target == IGNORE:
                    continue
                total += math.log(sum(math.exp(one) for one in scores)) - scores[target]
                right += scores.index(max(scores)) == target
                n += 1
    assert found["loss"] == pytest.approx(total / n, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(total / n), rel=1e-5)
    assert found["accuracy"] == pytest.approx(100 * right / n)


@pytest.mark.parametrize("name", RECIPES)
def test_resumed_training_equals_uninterrupted_training(
    runs: dict[str, Run], folder: Path, name: str
) -> None:
    recipe = read_recipe(folder / f"{name}.toml", {"data.root": f'"{folder}"'})
    broken = folder / f"{name}-broken"
    train_run(recipe, broken, resume=False, console=quiet(), until=2)
    run = train_run(recipe, broken, resume=True, console=quiet())
    assert run.folder is not None
    whole = load_file(str(runs[name].folder) + "/model.safetensors")
    again = load_file(run.folder / "model.safetensors")
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[key], again[key]) for key in whole)


def logits_of(model: Model, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]))[0]


def test_masks_are_filled(runs: dict[str, Run]) -> None:
    run = runs["masked"]
    found = run.fill("to [MASK]e, or not t<mask>", top_k=3)
    assert [len(mask) for mask in found.masks] == [3, 3]
    best = [mask[0].token for mask in found.masks]
    assert found.text == f"to {best[0]}e, or not t{best[1]}"
    tokenizer = run.tokenizers.source
    mask_id = tokenizer.vocab_size - 1
    head, middle, tail = (tokenizer.encode(part) for part in ("to ", "e, or not t", ""))
    ids = [tokenizer.bos_id, *head, mask_id, *middle, mask_id, *tail, *tokenizer.eos_ids]
    able = [tokenizer.is_text(i) for i in range(tokenizer.vocab_size)]
    shares = logits_of(run.model, ids)[1 + len(head)][able].softmax(-1)
    for one in found.masks[0]:
        [i] = tokenizer.encode(one.token)
        assert one.probability == pytest.approx(float(shares[sum(able[:i])]), rel=1e-4)


def test_what_cannot_be_filled(runs: dict[str, Run]) -> None:
    with pytest.raises(InputError, match=r"text 1: no \[MASK\] to fill"):
        runs["masked"].fill("to be")
    with pytest.raises(InputError, match="top_k = 0"):
        runs["masked"].fill("to [MASK]", top_k=0)
    for name in ("spans", "infilling"):
        with pytest.raises(InputError, match=r"text 1: .*<mask>"):
            runs[name].fill("to be")
    with pytest.raises(InputError, match=r"masked language model writes no text: .*run.fill"):
        runs["masked"].generate("to")
    with pytest.raises(InputError, match=r"does not classify texts: use `run.fill\(text\)`"):
        runs["masked"].classify("to")


def test_the_command(runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["masked"].folder)
    assert status(["fill", run, "--text", "to [MASK]e", "--top-k", "2"]) == 0
    text, candidates = capsys.readouterr().out.splitlines()
    assert text.startswith("to ")
    assert len(candidates.split(" · ")) == 2
    assert status(["fill", run, "--text", "to [MASK]e", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["masks"][0]) == 5
    assert status(["fill", run, "--text", "to be"]) == 2
    assert status(["fill", run, "a.txt", "--text", "to [MASK]"]) == 2


def test_a_model_of_another_task_says_so_before_any_file_is_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_text(folder, "language", LANGUAGE)
    (tmp_path / "0.png").write_bytes(b"\x89PNG\xff")
    assert status(["fill", str(run.folder), str(tmp_path / "0.png")]) == 2
    assert "a language model fills no masks" in capsys.readouterr().err


def test_another_way_to_choose(folder: Path) -> None:
    text = MASKED.replace("seq_len = 16", 'seq_len = 16, units = { kind = "spans", longest = 3 }')
    run = train_text(folder, "masked-spans", text)
    assert evaluation_of(run, "test").scores["accuracy"] >= 0


def test_a_start_without_a_mask_is_refused(folder: Path, runs: dict[str, Run]) -> None:
    copytree(str(runs["masked"].folder), folder / "copy")
    language = train_text(folder, "language", LANGUAGE)
    text = MASKED.replace('[tokenizer]\nkind = "char"\n', "")
    again = train_text(folder, "again", text, train__start=f'"{folder / "copy"}"')
    assert again.task == "masked_language"
    with pytest.raises(InputError, match="the tokenizer has no mask token"):
        train_text(
            folder, "refused", text, train__start=f'"{language.folder}"', model__kind="encoder"
        )
