"""A task of someone else enters as a norm does: everything works with it."""

import json
from pathlib import Path

import pytest
import torch
from tests.commands import run_all
from tests.runs.own_parts import forgotten
from tests.runs.tiny import quiet, write_recipe

from addnorm.errors import InputError

RECIPE = """
[data]
kind = "counting:CountedConfig"

[tokenizer]
kind = "char"

[model]
kind = "encoder"
d_model = 16
n_layers = 1
attention = { n_heads = 2 }
head = { kind = "counting:CountHeadConfig" }

[train]
steps = 6
lr = 0.01
batching = { kind = "tokens", tokens = 128 }
validate_every = 3
save_every = 3
select = "best"

[eval]
metric = "off"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text = (Path(__file__).parent / "counting.py").read_text(encoding="utf-8")
    (tmp_path / "counting.py").write_text(text, encoding="utf-8")
    (tmp_path / "count.toml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"text": "a b c"}\n{"text": "a"}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
def test_it_is_trained_resumed_evaluated_and_used_from_the_command_line(folder: Path) -> None:
    imports = ("--import", "counting.py")
    used = run_all(
        [
            ["train", "count.toml", "--out", "run", *imports],
            ["train", "--resume", "run", "--train.steps", "9", *imports],
            ["info", "run", *imports],
            ["evaluate", "run", "--predictions", "said.txt", *imports],
            ["predict", "run", "rows.jsonl", *imports],
        ],
        folder,
    )
    assert used.returncode == 0, used.stderr
    assert "counting" in used.stdout
    assert '"off": ' in used.stdout
    counts = [json.loads(line)["words"] for line in used.stdout.splitlines()[-2:]]
    assert all(isinstance(count, float) for count in counts)
    lines = (folder / "said.txt").read_text(encoding="utf-8").splitlines()
    assert len([float(line) for line in lines]) == 4
    unnamed = run_all([["predict", "run", "rows.jsonl"]], folder)
    assert unnamed.returncode == 2
    assert "--import counting.py" in unnamed.stderr


def test_it_is_used_from_python_saved_and_not_exported(folder: Path) -> None:
    from addnorm.runs.recipes.custom_parts import import_parts

    with forgotten("counting"):
        import_parts(["counting.py"], folder)
        import counting  # pyright: ignore[reportMissingImports]

        import addnorm as an

        head, data = counting.CountHeadConfig(), counting.CountedConfig().load()
        config = an.EncoderConfig(d_model=16, n_layers=1, head=head)
        run = an.train(config, data, tokenizer="char", steps=60, lr=0.01, progress=False)
        assert run.task == "counting"
        assert run.evaluate(data)["off"] < 1.0
        [three, one] = run.predict([{"text": "a b c"}, {"text": "a"}])
        assert isinstance(three, counting.Count)
        assert three.words > one.words
        assert run.save(folder / "saved").predict({"text": "a b c"}) == three
        assert an.load(folder / "saved").predict({"text": "a b c"}) == three
        with pytest.raises(InputError, match=r"row 1: txt is not a field .* Did you mean 'text'"):
            run.predict({"txt": "a"})
        with pytest.raises(InputError, match="row 1: text missing"):
            run.predict({})
        for form in ("hf", "onnx", "ctranslate2", "gguf"):
            with pytest.raises(InputError, match="counting is a custom task"):
                run.export(folder / form, to=form)
        with pytest.raises(InputError, match=r"counting model .* use `run.predict\(rows\)`"):
            run.classify("a")
        with pytest.raises(InputError, match="for language, the model is for counting"):
            run.evaluate(an.text(["a"]))


def test_a_data_part_is_enough_to_name_the_missing_fields(folder: Path) -> None:
    recipe = (folder / "count.toml").read_text(encoding="utf-8")
    other = recipe.replace('{ kind = "counting:CountHeadConfig" }', '"classification"')
    other = other.replace('metric = "off"', "")
    (folder / "other.toml").write_text(other, encoding="utf-8")
    done = run_all([["train", "other.toml", "--out", "run", "--import", "counting.py"]], folder)
    assert done.returncode == 2
    assert "the data are for counting, the model is for classification" in done.stderr


UPSIDE = """
\"\"\"Classes of texts that are read from their end, and numbers of marks that are not read.\"\"\"

from dataclasses import dataclass, replace

from addnorm.data import Encoded, Example
from addnorm.nn.heads import ClassificationHead
from addnorm.tasks.classification import Classification
from counting import CountHead, Counting


class Backwards(Classification):
    name = "backwards"

    def encode(self, examples, tokenizers, numbers):
        for read in super().encode(examples, tokenizers, numbers):
            yield replace(read, tokens=[*read.tokens][::-1])


@dataclass(frozen=True)
class BackwardsHeadConfig:
    task = Backwards

    def build(self, d_model, n_outputs):
        return ClassificationHead(d_model, n_outputs)


class Unframed(Counting):
    name = "unframed"

    def encode(self, examples, tokenizers, numbers):
        for read in super().encode(examples, tokenizers, numbers):
            yield replace(read, tokens=[*read.tokens][1:-1])


@dataclass(frozen=True)
class UnframedHeadConfig:
    task = Unframed

    def build(self, d_model, n_outputs):
        return CountHead(d_model)
"""


def test_a_text_is_read_as_a_custom_task_encodes_it_or_refused(folder: Path) -> None:
    """Where its own `encode` makes the ids, no other may: not to classify, and not to look."""
    from addnorm.inspect.look import look
    from addnorm.runs.recipes.custom_parts import import_parts
    from addnorm.runs.recipes.recipe import read_recipe
    from addnorm.runs.train.train_run import train_run

    (folder / "upside.py").write_text(UPSIDE, encoding="utf-8")
    with forgotten("counting"), forgotten("upside"):
        import_parts(["counting.py", "upside.py"], folder)
        file = write_recipe(folder, "classification")
        recipe = read_recipe(file, {"model.head": '{kind = "upside:BackwardsHeadConfig"}'})
        run = train_run(recipe, folder / "classes", resume=False, console=quiet())
        with pytest.raises(InputError, match=r"Backwards\.encode\(\) reads examples in its own"):
            run.classify("a fine day")
        recipe = read_recipe(folder / "count.toml", {"model.head": "upside:UnframedHeadConfig"})
        run = train_run(recipe, folder / "counts", resume=False, console=quiet())
        pieces = look(run, "a b", views=["depth"]).prepared.pieces["stack"]
        assert "".join(pieces).strip() == "a b"
        ids = run.tokenizers.source.encode("a b")
        states, _ = run.model.hidden(torch.tensor([ids]))  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        torch.testing.assert_close(run.embed("a b"), states[0].mean(0))
        assert run.embed([]).shape == (0, 16)
        with pytest.raises(InputError, match="an unframed model does not classify"):
            run.classify("a b")
