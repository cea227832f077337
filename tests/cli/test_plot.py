"""`addnorm plot`: plots of runs, and an error if there is nothing to plot."""

from collections.abc import Callable
from pathlib import Path

import pytest

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_runs_over_one_another(
    suffix: str, run_of: RunOf, tmp_path: Path, addnorm: Command
) -> None:
    out = tmp_path / f"both.{suffix}"
    code, said, err = addnorm("plot", run_of("language"), run_of("translation"), "--out", out)
    assert (code, said, err) == (0, "", f"{out}\n")
    head = out.read_bytes()[:300]
    assert head.startswith(b"\x89PNG") if suffix == "png" else b"<svg" in head or b"<?xml" in head


def test_what_cannot_be_drawn(tmp_path: Path, run_of: RunOf, addnorm: Command) -> None:
    for words, expected in [
        ([], "plot needs a run folder"),
        ([tmp_path], "no step in"),
        ([run_of("language"), "--out", tmp_path / "a.txt"], "Valid: .png, .svg, .pdf"),
    ]:
        code, out, err = addnorm("plot", *words)
        assert (code, out) == (2, "")
        assert expected in err
    assert not any(tmp_path.iterdir())
