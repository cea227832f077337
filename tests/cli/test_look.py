"""`addnorm look`: a picture or numbers of every kind of model, and one message for a mistake."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.test_house import write_gpt2

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture(suffix: str, run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    out = tmp_path / f"new/a.{suffix}"
    code, said, err = addnorm("look", run_of("language"), "日 To be", "--out", out)
    assert (code, said, err) == (0, "", f"{out}\n")
    assert out.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_numbers_of_a_hugging_face_folder(tmp_path: Path, addnorm: Command) -> None:
    write_gpt2(tmp_path / "gpt2")
    words = ["look", tmp_path / "gpt2", "To be", "--json", "--device", "cpu"]
    code, said, err = addnorm(*words, "--heads", "1")
    assert (code, err) == (0, "")
    numbers = json.loads(said)
    [layer] = numbers["attention"]
    assert layer["module"] == "stack.blocks.0.attention"
    [(head, weights)] = layer["heads"].items()
    assert head == "1"
    assert [sum(row) for row in weights] == [pytest.approx(1, abs=1e-5)] * len(layer["rows"])
    assert len(numbers["gradients"]["stack"]["stream"]) == 2
    _, wide, _ = addnorm(*words, "--dtype", "float64", "--only", "depth")
    wide = json.loads(wide)
    assert wide["depth"]["stack"] == {
        name: pytest.approx(values, rel=1e-5) for name, values in numbers["depth"]["stack"].items()
    }
    assert wide["attention"] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--layers", "0,x"], "--layers 0,x: numbers from 0 with commas between, such as 0,2"),
        (["--layers", "3"], "there is no layer 3: this model has 0 to 0"),
        (["--heads", "0,7"], "there is no head 7: this model has 0 to 1"),
        (["--out", "a.txt"], "Valid: .png, .svg, .pdf"),
        (["--target", "Sein"], "only an encoder–decoder reads a target"),
        (["--only", "deepth"], "Did you mean 'depth'?"),
    ],
)
def test_a_mistake_is_one_message(
    words: list[str], expected: str, run_of: RunOf, addnorm: Command
) -> None:
    code, said, err = addnorm("look", run_of("language"), "To be", *words)
    assert (code, said) == (2, "")
    assert expected in err
    assert err.count("\n") == 1
