"""`addnorm swap`: a table of weights and scores on standard output."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.convert.swapping import KINDS

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.folder import save
from addnorm.nn.embed import EmbeddingConfig

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("narrow")
def test_what_became_of_each_part_and_what_it_costs(
    run_of: RunOf, tmp_path: Path, addnorm: Command
) -> None:
    out = tmp_path / "out"
    words = ["--set", "attention.n_kv_heads=1", "--set=position=rotary", "--recover", "2"]
    code, said, err = addnorm("swap", run_of("language"), *words, "--out", out, "--train.lr", "0.1")
    assert code == 0, err
    rows = [line.split() for line in said.splitlines()]
    assert ["stack.attention.q_proj", "272", "exact"] in rows
    [keys] = [row for row in rows if row[:1] == ["stack.attention.k_proj"]]
    assert keys[1:3] == ["136", "derived"]
    assert "another function: position: sinusoidal → rotary" in said
    assert "another function: attention.n_kv_heads: 2 → 1" in said
    assert ["before", "after", "recovered"] in rows
    [loss] = [row for row in rows if row[:1] == ["loss"]]
    assert len(loss) == 4
    assert said.endswith("\n")
    assert f"Next: addnorm info {out}" in err
    assert addnorm("evaluate", out, "--split", "valid")[0] == 0
    code, said, _ = addnorm("info", out)
    assert code == 0
    assert "rotary" in said


def test_layers_and_distillation(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    out = tmp_path / "out"
    words = ["--layers", "0", "0", "0", "--recover", "1", "--distill", "--out", out]
    code, said, err = addnorm("swap", run_of("classification"), *words, "--split", "test")
    assert code == 0, err
    assert "n_layers: layers 0 0 0 of 1" in said
    assert "accuracy" in said


def test_without_data_it_says_how_to_name_some(tmp_path: Path, addnorm: Command) -> None:
    folder = tmp_path / "hf"
    config = replace(KINDS["decoder"], embedding=EmbeddingConfig(scale="one"))
    save(folder, ModelSpec(model=config, vocab_size=11), config.build(11), None)
    code, said, err = addnorm("swap", folder, "--set", "max_len=20", "--out", tmp_path / "out")
    assert code == 0, err
    assert "the same function as before" in said
    assert "nothing was measured: this model came without data" in said
    assert "--data.kind text" in said


def test_mistakes(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    run, out = run_of("language"), tmp_path / "out"
    for words, expected in [
        ([run, "--set", "nrom=rmsnorm", "--out", out], "Did you mean 'norm'?"),
        ([run, "--set", "norm=rmsnorm"], "swap: --out is missing"),
        ([run, "--sett", "norm=rmsnorm", "--out", out], "Did you mean '--set'?"),
        ([run, "--set", "norm=rmsnorm", "--out", run], "something is there already"),
        ([run, "--model.norm", "rmsnorm", "--out", out], "changed by --set norm=…"),
        ([run, "--layers", "one", "--out", out], "--layers one: must be an integer"),
        ([tmp_path / "none", "--set", "norm=rmsnorm", "--out", out], "no such folder"),
    ]:
        code, said, err = addnorm("swap", *words)
        assert (code, said) == (2, "")
        assert expected in err
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
