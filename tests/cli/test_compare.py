"""`addnorm compare`: a table of runs, and one message for what cannot be compared."""

from collections.abc import Callable
from pathlib import Path

import pytest

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.mark.usefixtures("types_unchecked")
def test_a_run_compared_with_its_copy(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    import shutil

    shutil.copytree(run_of("language"), tmp_path / "other")
    out = tmp_path / "comparison"
    code, said, err = addnorm("compare", run_of("language"), tmp_path / "other", "--out", out)
    assert code == 0, err
    for word in ("parameters", "FLOP per token", "tokens seen", "training loss", "best loss"):
        assert word in said
    assert {file.name for file in out.iterdir()} == {
        "comparison.md",
        "comparison.json",
        "comparison.tex",
        "curves.png",
        "curves.svg",
    }
    assert err.splitlines() == [
        str(out / name)
        for name in (
            "comparison.md",
            "comparison.json",
            "comparison.tex",
            "curves.png",
            "curves.svg",
        )
    ]


def test_what_cannot_be_compared(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    here = run_of("language")
    for words, expected in [
        ([], "two runs or more"),
        ([here], "two runs or more"),
        ([here, here], "two runs or more"),
        ([here, tmp_path], "no config.json"),
        ([here, tmp_path / "gone"], "no such folder"),
        ([here, run_of("translation")], "nothing to compare"),
    ]:
        code, out, err = addnorm("compare", *words)
        assert (code, out) == (2, "")
        assert expected in err
        assert err.count("\n") == 1
