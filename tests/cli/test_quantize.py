"""`addnorm quantize`: a table of what it costs, a folder that opens, and mistakes in one line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.own_parts import forgotten, own_recipe, write_parts

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")


def test_a_table_and_a_folder(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    out = tmp_path / "small"
    words = ["--to", "int8", "--static", "--range", "mse", "--calibrate", "4", "--keep-worst", "1"]
    code, said, err = addnorm("quantize", run_of("language"), *words, "--out", out)
    assert code == 0, err
    rows = [line.split() for line in said.splitlines()]
    [before] = [row for row in rows if row[:1] == ["float32"]]
    [after] = [row for row in rows if row[:1] == ["int8"]]
    assert before[2] == "1.000"
    assert 0.2 < float(after[2]) < 0.8
    assert len(before) == len(after)
    assert "rise of the loss if that layer alone is rounded" in said
    assert "kept as before: " in said
    assert re.search(r"not quantised: [\d,]+ weights: .*; \d+ % of the new size", said)
    code, said, err = addnorm("info", out)
    assert code == 0, err
    assert re.search(r"weights +int8 static", said)
    assert "calibrated on" in said
    code, said, err = addnorm("generate", out, "--prompt", "To be", "--max-new-tokens", "5")
    assert code == 0, err
    code, said, err = addnorm("evaluate", out, "--split", "valid")
    assert code == 0, err
    assert '"loss"' in said


@pytest.mark.long
def test_layers_of_own_modules_are_named(
    tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_parts(tmp_path)
    own = '{ kind = "own_norms:WideConfig" }'
    recipe = own_recipe(tmp_path, "model.feedforward", own, imports='import = ["own_norms.py"]')
    text = recipe.read_text().replace('feedforward = { kind = "mlp", d_ff = 32 }\n', "")
    recipe.write_text(text)
    with forgotten("own_norms"):
        code, _, err = addnorm("train", recipe, "--out", "run")
        assert code == 0, err
        words = ["quantize", "run", "--import", "own_norms.py"]
        code, plain, err = addnorm(*words, "--out", "plain")
        assert code == 0, err
        names = [f"stack.blocks.0.feedforward.{one}" for one in ("inner", "outer")]
        assert f"--include quantises these too: {', '.join(names)}" in plain
        code, said, err = addnorm(*words, "--include", "*.inner", names[1], "--out", "small")
        assert code == 0, err
        assert "--include" not in said
        shares = [float(re.findall(r"^int8 +\S+ +(\S+)", one, re.M)[0]) for one in (plain, said)]
        assert shares[1] < shares[0]
        code, said, err = addnorm("info", "small", "--import", "own_norms.py")
        assert code == 0, err
        assert f"quantised by name  {', '.join(names)}" in re.sub(r" {2,}", "  ", said)
        code, said, err = addnorm(
            "evaluate", "small", "--split", "valid", "--import", "own_norms.py"
        )
        assert code == 0, err
        changed = text.replace('WideConfig"', 'WideConfig", reads_weights = true')
        recipe.write_text(changed)
        code, _, err = addnorm("train", recipe, "--out", "reads")
        assert code == 0, err
        words[1] = "reads"
        code, said, err = addnorm(*words, "--include", "*.inner", "--out", "none")
        assert (code, said) == (2, "")
        assert "reads a layer's weight itself" in err
        assert not (tmp_path / "none" / "config.json").exists()


@pytest.mark.long
def test_no_figure_is_cut_off(
    run_of: RunOf, tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    code, said, err = addnorm("quantize", run_of("translation"), "--out", tmp_path / "small")
    assert code == 0, err
    assert "…" not in said
    assert re.search(r"^float32 +\d+\.\d+ +1\.000 +\d+\.\d{4} ", said, re.M)


@pytest.mark.long
def test_a_sweep_with_a_picture(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    pytest.importorskip("matplotlib")
    words = ["--sweep", "--calibrate", "2", "--plot", tmp_path / "sweep.svg"]
    code, said, err = addnorm("quantize", run_of("classification"), *words)
    assert code == 0, err
    for name in ("float32", "int8 weights only", "int8 static, mse, smoothed", "int4 GPTQ"):
        assert f"\n{name} " in said
    assert (tmp_path / "sweep.svg").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "--out is missing"),
        (["--sweep", "--out", "x"], "a sweep writes no folder"),
        (["--sweep", "--to", "int4"], "a sweep measures every scheme"),
        (["--sweep", "--keep-worst", "1"], "a sweep measures every scheme"),
        (["--out", "x", "--static", "--dynamic"], "--dynamic and --static are alternatives"),
        (["--out", "x", "--range", "mse"], "--range mse is that of --static"),
        (["--out", "x", "--rounding", "gptq"], "--rounding is for --to int4"),
        (["--out", "x", "--to", "int4", "--static"], "--static is for --to int8"),
        (["--out", "x", "--to", "int4", "--dynamic", "--weights-only"], "are alternatives"),
        (["--out", "x", "--to", "int5"], "--to"),
        (["--out", "x", "--static", "--calibrate", "0"], "--calibrate 0: must be at least 1"),
        (["--out", "x", "--keep-worst", "-1"], "--keep-worst -1"),
        (["--out", "x", "--keep", "nothing"], "--keep nothing: matches no layer"),
        (["--out", "x", "--smoothing", "2"], "--smoothing 2: give a number between 0 and 1"),
        (["--out", "x", "--smoothing", "0"], "--smoothing 0: give a number between 0 and 1"),
        (["--out", "x", "--resume"], "--resume is for `addnorm train`"),
        (["--out", "x", "--weights-only", "--smoothing", "0.5"], "weights_only rounds none"),
        (["--out", "x", "--plot", "x.gif"], "Valid: .png"),
        (["--out", "x", "--keep", "*"], "nothing to quantise: all"),
        (
            ["--out", "x", "--keep-worst", "1000"],
            "keeps all 7 layers that would be quantised: give 6",
        ),
        (["--out", "x", "--calibrat", "3"], "--calibrate"),
    ],
)
def test_a_mistake_is_one_message(
    words: list[str],
    expected: str,
    run_of: RunOf,
    tmp_path: Path,
    addnorm: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = addnorm("quantize", run_of("language"), *words)
    assert code == 2
    assert out == ""
    assert expected in err
    assert err.startswith("addnorm: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "x" / "config.json").exists()


def test_quantised_twice(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    code, _, err = addnorm("quantize", run_of("tagging"), "--out", tmp_path / "one")
    assert code == 0, err
    code, _, err = addnorm("quantize", tmp_path / "one", "--out", tmp_path / "two")
    assert code == 2
    assert "take the model before quantisation" in err
    code, _, err = addnorm("evaluate", tmp_path / "one", "--split", "valid", "--weights", "int8")
    assert code == 2
    assert "quantised already" in err
