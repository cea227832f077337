"""`addnorm lab`: claims from one command; wrong input is one message and leaves nothing."""

import subprocess
import sys
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


def test_the_list_needs_no_extra_and_a_measurement_asks_for_all_at_once(
    tmp_path: Path,
) -> None:
    script = """
import sys
sys.modules |= dict.fromkeys(["matplotlib", "markdown_it", "scipy"])
from addnorm.cli.main import status
assert status(["lab", "list"]) == 0
for words in (["lab", "run", "heads"], ["lab", "report"]):
    assert status(words) == 2
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    for command, line in zip(("run", "report"), done.stderr.decode().splitlines(), strict=True):
        extra = "needs an extra package: pip install 'addnorm[lab]'"
        assert line == f"addnorm: `addnorm lab {command}` {extra}"


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
