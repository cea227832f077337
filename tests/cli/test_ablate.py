"""`addnorm ablate`: a study from one command; wrong input is one message and leaves nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.small import recipe_file

Command = Callable[..., tuple[int, str, str]]

NORMS = ["--vary", "model.norm=layernorm,rmsnorm"]


@pytest.mark.long
@pytest.mark.usefixtures("types_unchecked")
def test_the_same_command_again_changes_nothing(tmp_path: Path, addnorm: Command) -> None:
    words = ["ablate", recipe_file(tmp_path), *NORMS, "--seeds", 2, "--out", tmp_path / "norms"]
    code, out, err = addnorm(*words, "--train.lr", "0.02")
    assert (code, out) == (0, ""), err
    assert err.splitlines()[-5:] == [
        str(tmp_path / "norms" / name)
        for name in ("report.md", "report.zh-CN.md", "report.html", "report.json", "report.tex")
    ]
    results = (tmp_path / "norms" / "results.jsonl").read_text("utf-8")
    assert results.count("\n") == 4
    assert addnorm(*words, "--train.lr", "0.02")[0] == 0
    assert (tmp_path / "norms" / "results.jsonl").read_text("utf-8") == results


WRONG = [
    ([], "nothing varies | --vary model.norm=layernorm,rmsnorm"),
    (["--vary", "model.norm"], "a field and its values"),
    (["--vary", "model.norm=layernorm,rmsnrom"], "nothing is left | Did you mean 'rmsnorm'?"),
    (["--vary", "model.nrom=layernorm,rmsnorm"], "the first variant, is refused | 'norm'"),
    ([*NORMS, "--seeds", "0"], "--seeds 0: must be at least 1"),
    ([*NORMS, "--metric", "acuracy"], "--metric acuracy: not measured for language | loss"),
    ([*NORMS, "--processes", "999"], "this machine has"),
    ([*NORMS, "--threads", "0"], "--threads 0: must be at least 1"),
    ([*NORMS, "--budget", "soon"], "--budget soon: a number with s, m, h or d"),
    ([*NORMS, "--match", "size"], "match"),
    ([*NORMS, "--train.lrr", "3"], "Did you mean 'lr'?"),
    ([*NORMS, "--sceduler", "3"], "neither an option nor a field"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
@pytest.mark.usefixtures("types_unchecked")
def test_wrong_input(words: list[str], said: str, tmp_path: Path, addnorm: Command) -> None:
    recipe, out = recipe_file(tmp_path), tmp_path / "study"
    code, printed, err = addnorm("ablate", recipe, *words, "--out", out)
    assert (code, printed) == (2, ""), err
    assert err.count("addnorm: ") == 1
    assert "Traceback" not in err
    for word in said.split(" | "):
        assert word in err, err
    assert not out.exists()


def test_a_folder_is_not_a_recipe(tmp_path: Path, addnorm: Command) -> None:
    code, _, err = addnorm("ablate", tmp_path, *NORMS)
    assert code == 2
    assert "ablate takes a recipe" in err
    code, _, err = addnorm("ablate", tmp_path / "gone.toml", *NORMS)
    assert code == 2
    assert "no such recipe" in err
