"""`addnorm prune`: one table of sizes, operations, scores and times; the folder opens."""

from collections.abc import Callable
from pathlib import Path

import pytest

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.mark.long
def test_the_table_and_a_run_that_every_command_opens(
    run_of: RunOf, tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "small"
    words = ["--heads", "0.5", "--feed-forward", "0.5", "--recover", "1", "--out", out]
    code, said, err = addnorm("prune", run_of("language"), *words)
    assert code == 0, err
    scored, heads, *_ = said.splitlines()
    assert scored.startswith("scores of the ")
    assert heads.split() == ["before", "pruned", "recovered"]
    for title in (
        "parameters",
        "FLOP a target",
        "µs a token, 1 text",
        "µs a token, 16 texts",
        "perplexity",
    ):
        assert title in said
    assert f"Next: addnorm info {out}" in err
    assert addnorm("generate", out, "--prompt", "a", "--max-new-tokens", "3")[0] == 0
    assert addnorm("evaluate", out, "--split", "valid")[0] == 0
    assert addnorm("info", out)[0] == 0


def test_a_mistake_is_one_message(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    words = ["--model.d_model", "8", "--heads", "0.5", "--out", tmp_path / "x"]
    code, out, err = addnorm("prune", run_of("language"), *words)
    assert (code, out) == (2, "")
    assert "--model.d_model: parts of the model are changed by addnorm swap" in err
    code, out, err = addnorm("prune", run_of("language"), "--heads", "1", "--out", tmp_path / "x")
    assert (code, out) == (2, "")
    assert "--heads 1: give the share to remove" in err
    assert not (tmp_path / "x" / "config.json").exists()
