"""`addnorm generate --batch`: a run answers a file of requests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.serve.test_batch_file import request_line, write_lines

Command = Callable[..., tuple[int, str, str]]
RunOf = Callable[[str], Path]


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_run_answers_a_file(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    run = run_of("language")
    seeded = {"max_tokens": 12, "temperature": 0.8, "seed": 5}
    texts = [request_line(str(i), prompt="To be", **seeded) for i in range(4)]
    file = write_lines(tmp_path / "in.jsonl", [*texts, "{"])
    out = tmp_path / "out.jsonl"
    command = ("generate", run, "--batch", file, "--out", out, "--device", "cpu", "--exact")
    code, _, err = addnorm(*command)
    assert code == 0
    assert "4 answered, 1 failed" in err
    rows = [json.loads(row) for row in out.read_text().splitlines()]
    written = [row["response"]["body"]["choices"][0]["text"] for row in rows[:4]]
    options = ("--temperature", 0.8, "--seed", 5, "--max-new-tokens", 12, "--prompt", "To be")
    code, alone, _ = addnorm("generate", run, *options)
    assert set(written) == {alone.removesuffix("\n")}
    code, _, err = addnorm(*command)
    assert "0 answered, 0 failed, 5 before" in err


def test_options_that_the_lines_have_are_refused(
    run_of: RunOf, tmp_path: Path, addnorm: Command
) -> None:
    file, run = write_lines(tmp_path / "in.jsonl", [request_line()]), run_of("language")
    for words, message in (
        (("--batch", file, "--prompt", "x", "--seed", 1), "leave out seed, --prompt"),
        (("--batch", file, file), "leave out files"),
        (("--out", file), "give both"),
        (("--exact", file), "give both, or leave it out"),
        (("--batch", tmp_path / "none.jsonl"), "no such file"),
    ):
        code, _, err = addnorm("generate", run, *words)
        assert code == 2
        assert message in " ".join(err.split())
