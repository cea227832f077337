"""Runs that are a base and an adapter: kept as the adapter alone, opened as one plain model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.runs.tiny import CLASSIFICATION, LANGUAGE, train_text, write_corpora

from addnorm.cli.main import status
from addnorm.errors import InputError
from addnorm.runs.run import Run

LORA = '{ kind = "lora", rank = 2 }'


ADAPTED = LANGUAGE.replace('[tokenizer]\nkind = "char"\n', "").replace(
    "[train]", '[train]\nstart = "base"\nadapter = { kind = "lora", rank = 2 }\nlr = 1e-2'
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_corpora(tmp_path)
    monkeypatch.chdir(tmp_path)
    train_text(tmp_path, "base", LANGUAGE)
    return tmp_path


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_the_folder_has_the_adapter_alone_and_opens_as_a_plain_model(root: Path, kind: str) -> None:
    trained = train_text(root, "adapted", ADAPTED.replace('kind = "lora"', f'kind = "{kind}"'))
    folder = root / "adapted"
    assert not (folder / "model.safetensors").exists()
    base, whole = Run.open(root / "base"), (root / "base" / "model.safetensors").stat().st_size
    assert (folder / "adapter_model.safetensors").stat().st_size < whole / 2
    opened = Run.open(folder)
    assert opened.weights.keys() == base.weights.keys()
    tokens = torch.tensor([[3, 4, 5, 6]])
    assert torch.equal(opened.model(tokens), trained.model(tokens))
    assert not torch.equal(opened.model(tokens), base.model(tokens))
    assert opened.evaluate() == trained.evaluate()
    assert opened.generate("To be", beams=1) == trained.generate("To be", beams=1)


def test_checkpoints_hold_learned_weights_and_resume_to_the_bit(root: Path) -> None:
    steady = ADAPTED.replace("lr = 1e-2", 'lr = 1e-2\nschedule = "constant"')
    whole = train_text(root, "whole", steady)
    train_text(root, "parts", steady, train__steps="2")
    parts = train_text(root, "parts", steady)
    assert all(torch.equal(w, whole.weights[name]) for name, w in parts.weights.items())
    newest = sorted((root / "whole" / "checkpoints").iterdir())[-1]
    kept = load_file(newest / "model.safetensors")
    assert [name for name in kept if ".lora_" not in name] == []


def test_an_average_and_the_best_are_those_of_the_adapter(root: Path) -> None:
    for extra in (
        "ema = 0.5",
        'select = "best"',
        "average = 2",
        'activation_checkpointing = "block"',
    ):
        run = train_text(
            root, f"with-{extra[:3]}", ADAPTED.replace("lr = 1e-2", f"lr = 1e-2\n{extra}")
        )
        opened = Run.open(run.folder or root)
        assert all(torch.equal(w, run.weights[name]) for name, w in opened.weights.items()), extra


def test_it_is_saved_whole_by_merging(root: Path) -> None:
    train_text(root, "adapted", ADAPTED)
    opened = Run.open(root / "adapted")
    saved = opened.save(root / "merged")
    assert saved.recipe.train.adapter is None
    again = Run.open(root / "merged")
    assert (root / "merged" / "model.safetensors").exists()
    assert all(torch.equal(w, opened.weights[name]) for name, w in again.weights.items())


def test_another_adapter_begins_with_it(root: Path) -> None:
    train_text(root, "adapted", ADAPTED)
    train_text(root, "further", ADAPTED.replace('"base"', '"adapted"'))
    first, second = Run.open(root / "adapted"), Run.open(root / "further")
    changed = [n for n, w in second.weights.items() if not torch.equal(w, first.weights[n])]
    assert changed
    assert all(name.endswith("_proj.weight") for name in changed)


def test_files_of_an_adapter_alone_are_added_to_the_run_that_they_name(root: Path) -> None:
    """Which itself began elsewhere: its recipe still names where."""
    train_text(root, "adapted", ADAPTED)
    Run.open(root / "adapted").save(root / "whole")
    alone = root / "alone"
    alone.mkdir()
    (alone / "adapter_model.safetensors").write_bytes(
        (root / "adapted" / "adapter_model.safetensors").read_bytes()
    )
    settings = json.loads((root / "adapted" / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = str(root / "whole")
    (alone / "adapter_config.json").write_text(json.dumps(settings))
    base, whole, twice = (Run.open(root / name).weights for name in ("base", "whole", "alone"))
    for name, weight in twice.items():
        torch.testing.assert_close(weight - whole[name], whole[name] - base[name])
    assert any(not torch.equal(twice[name], whole[name]) for name in twice)


def test_a_new_head_is_learned_and_kept(root: Path) -> None:
    train_text(root, "good", CLASSIFICATION)
    other = CLASSIFICATION.replace('[tokenizer]\nkind = "word"\n', "").replace(
        "[train]", f'[train]\nstart = "good"\nadapter = {LORA}\nlr = 1e-2'
    )
    lines = (root / "train.txt").read_text().splitlines()
    for name in ("train.txt", "valid.txt"):
        labels = "".join(
            f"{'abcd'[i % 4]} {line.split(' ', 1)[1]}\n" for i, line in enumerate(lines)
        )
        (root / name).write_text(labels)
    run = train_text(root, "other", other)
    opened = Run.open(root / "other")
    assert opened.labels == ("a", "b", "c", "d")
    assert all(torch.equal(w, run.weights[name]) for name, w in opened.weights.items())
    kept = json.loads((root / "other" / "adapter_config.json").read_text())["modules_to_save"]
    assert kept
    assert all("head" in name for name in kept)


def test_the_base_is_checked(root: Path, tmp_path: Path) -> None:
    train_text(root, "adapted", ADAPTED)
    (root / "base").rename(root / "moved")
    with pytest.raises(InputError, match=r"base_model_name_or_path = .* is not a folder"):
        Run.open(root / "adapted")
    file = root / "adapted" / "adapter_config.json"
    file.write_text(file.read_text().replace(str(root / "base"), str(root / "moved")))
    Run.open(root / "adapted")
    train_text(root, "base", LANGUAGE, train__seed="5")
    with pytest.raises(InputError, match="base: its weights differ from those that the adapter in"):
        Run.open(root / "adapted")


def test_a_damaged_adapter_is_named(root: Path) -> None:
    train_text(root, "adapted", ADAPTED)
    file = root / "adapted" / "adapter_model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    with pytest.raises(InputError, match=r"adapter_model\.safetensors: damaged"):
        Run.open(root / "adapted")
    file.write_bytes(whole)
    settings = root / "adapted" / "adapter_config.json"
    settings.write_text(settings.read_text().replace('"r": 2', '"r": 3'))
    with pytest.raises(InputError, match="its rank is 3"):
        Run.open(root / "adapted")


WRONG = {
    "without a start": ('start = "base"\n', "", "give start, its folder"),
    "muon": ("lr = 1e-2", 'optimizer = "muon"', "use the optimizer adamw with adapter"),
    "a typo": ('kind = "lora"', 'kind = "lroa"', "Did you mean 'lora'"),
    "rank 0": ("rank = 2", "rank = 0", "train.adapter.rank = 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named(root: Path, case: str) -> None:
    old, new, expected = WRONG[case]
    text = ADAPTED.replace(old, new)
    if case == "without a start":
        text = text.replace("[model]", '[tokenizer]\nkind = "char"\n\n[model]')
    with pytest.raises(InputError, match="toml") as caught:
        train_text(root, "wrong", text)
    assert expected in str(caught.value)
    assert not (root / "wrong").exists()


def test_a_layer_that_is_not_there_is_named(root: Path) -> None:
    text = ADAPTED.replace("rank = 2", 'rank = 2, targets = ["query"]')
    with pytest.raises(InputError, match=r"train\.adapter\.targets: no layer 'query'"):
        train_text(root, "wrong", text)


def test_it_is_described(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "r.toml").write_text(
        ADAPTED.replace('kind = "text"', f'kind = "text"\nroot = "{root}"')
    )
    assert status(["train", "r.toml", "--out", "out"]) == 0
    assert "parameters are learned" in "".join(capsys.readouterr())
    assert status(["info", "out"]) == 0
    assert "trained" in capsys.readouterr().out
    assert status(["info", "out", "--verify"]) == 0


def test_the_command_merges(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_text(root, "adapted", ADAPTED)
    assert status(["merge", "adapted", "--out", "whole"]) == 0
    assert "whole: the weights of the base" in "".join(capsys.readouterr())
    (root / "base").rename(root / "away")
    assert status(["evaluate", "whole"]) == 0
    assert status(["merge", "whole", "--out", "again"]) == 2
    assert "nothing to merge" in capsys.readouterr().err
    assert not (root / "again").exists()


def test_a_run_resumes_with_the_same_base_alone(root: Path) -> None:
    steady = ADAPTED.replace("lr = 1e-2", 'lr = 1e-2\nschedule = "constant"')
    train_text(root, "parts", steady, train__steps="2")
    train_text(root, "other", LANGUAGE, train__seed="5")
    (root / "base").rename(root / "away")
    (root / "other").rename(root / "base")
    with pytest.raises(InputError, match=r"train\.start has other weights than when the run began"):
        train_text(root, "parts", steady)
