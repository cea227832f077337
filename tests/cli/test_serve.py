"""`addnorm serve`: what is wrong is said before anything starts; a run behind an address."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.serve.servers import command

from addnorm.cli.serve import bytes_of
from addnorm.errors import InputError

Command = Callable[..., tuple[int, str, str]]
RunOf = Callable[[str], Path]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("2GiB", 2**31),
        ("500MB", 5 * 10**8),
        ("1.5 gi", 3 * 2**29),
        ("4096", 4096),
        ("64kib", 2**16),
    ],
)
def test_sizes(size: str, expected: int) -> None:
    assert bytes_of(size) == expected


@pytest.mark.parametrize("size", ["", "much", "2TiB", "-1GiB", "1e9", "2 GiB of it"])
def test_other_sizes_are_refused(size: str) -> None:
    with pytest.raises(InputError, match="give a size such as 2GiB"):
        bytes_of(size)


def test_wrong_options_name_the_option(addnorm: Command, run_of: RunOf, tmp_path: Path) -> None:
    run = run_of("language")
    key = tmp_path / "key"
    key.write_text("two words")
    for words, message in [
        ([], "name the run folders"),
        ([tmp_path / "none"], "no such folder"),
        ([run, "--memory", "much"], "--memory much: give a size"),
        ([run, "--host", "0.0.0.0"], "--host 0.0.0.0: others would reach it without a key"),
        ([run, "--chunk", "0"], "--chunk 0: must be at least 1"),
        ([run, "--api-key-file", key], "a key is one word"),
        ([run, "--api-key-file", tmp_path / "none"], "no such file"),
    ]:
        code, _, error = addnorm("serve", *words)
        assert code == 2
        assert message in error


def test_without_the_extra_it_is_named(
    addnorm: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    (tmp_path / "config.json").touch()
    code, _, error = addnorm("serve", tmp_path)
    assert code == 2
    assert "addnorm serve needs an extra package: pip install 'addnorm[serve]'" in error


@pytest.mark.long
def test_a_run_behind_an_address(run_of: RunOf) -> None:
    """From the command to an answer, and to the end by SIGTERM with status 0."""
    words = ("serve", run_of("language"), "--port", 0, "--device", "cpu")
    with command(*words) as (address, _), httpx.Client(base_url=address) as client:
        body = {"prompt": "To be", "max_tokens": 9, "seed": 3}
        whole = client.post("/v1/completions", json=body).json()
        streamed = client.post("/v1/completions", json={**body, "stream": True})
        pieces = re.findall(r'"text":"((?:[^"\\]|\\.)*)"', streamed.text)
        joined = "".join(pieces).encode().decode("unicode_escape")
        assert joined == whole["choices"][0]["text"]
