"""A task of someone else enters as a norm does: everything works with it."""

import json
from pathlib import Path

import pytest
from tests.commands import run_all
from tests.runs.own_parts import forgotten

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
