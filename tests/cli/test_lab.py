"""`addnorm lab`: claims from one command; wrong input is one message and leaves nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from addnorm.lab.claims import CLAIMS

Command = Callable[..., tuple[int, str, str]]


def test_the_claims_are_listed_with_their_results(tmp_path: Path, addnorm: Command) -> None:
    code, out, _ = addnorm("lab", "list", "--out", tmp_path)
    assert code == 0
    assert all(name in out for name in CLAIMS)
    assert out.count("not measured") == len(CLAIMS)


WRONG = [
    (["run"], "no claims to run"),
    (["run", "extrapolatoin"], "Did you mean 'extrapolation'?"),
    (["run", "all", "--quick", "--full"], "--quick and --full: give one of them"),
    (["run", "heads", "--data.root", "{folder}"], "tinyshakespeare/input.txt"),
    (["run", "heads", "--processes", "999"], "this machine has"),
    (["report", "--out", "{folder}"], "no figures of claims"),
    (["speedrun", "shakespear", "--data.root", "{folder}"], "Did you mean 'shakespeare'?"),
    (
        ["speedrun", "digits", "--data.root", "{folder}", "--seeds", "0"],
        "--seeds 0: must be at least 1",
    ),
    (["speedrun", "digits", "{folder}/none.toml", "--data.root", "{folder}"], "none.toml"),
    (["speedrun", "digits"], "--data.root"),
    (["rum", "heads"], "rum"),
]


@pytest.mark.parametrize(("words", "expected"), WRONG, ids=lambda one: " ".join(one)[:40])
def test_wrong_input_is_one_message(
    words: list[str], expected: str, tmp_path: Path, addnorm: Command
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    given = [word.format(folder=folder) for word in words]
    code, out, err = addnorm("lab", *given)
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err
    assert not [*folder.iterdir()]


@pytest.mark.slow
@pytest.mark.usefixtures("types_unchecked")
def test_a_claim_is_measured_and_reported(tmp_path: Path, addnorm: Command) -> None:
    words = ("lab", "run", "distance", "--quick", "--out", tmp_path)
    code, out, err = addnorm(*words)
    assert (code, out) == (0, ""), err
    kept = (tmp_path / "distance.jsonl").read_bytes()
    assert "## Generated data" in (tmp_path / "distance.md").read_text("utf-8")
    assert addnorm(*words)[0] == 0
    assert (tmp_path / "distance.jsonl").read_bytes() == kept
    assert "supported" in addnorm("lab", "list", "--out", tmp_path)[1]
