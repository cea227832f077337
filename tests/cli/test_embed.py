"""`addnorm embed`: one vector for each line, in each output format."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file

from addnorm.runs.run import Run

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


def test_a_vector_for_each_line_in_every_form(
    run_of: RunOf, tmp_path: Path, addnorm: Command
) -> None:
    run, lines = run_of("classification"), ["a fine day", "", "wet"]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    expected = Run.open(run).embed(lines)
    code, out, _ = addnorm("embed", run, tmp_path / "in.txt")
    assert code == 0
    found = torch.tensor([json.loads(line) for line in out.splitlines()])
    torch.testing.assert_close(found, expected)
    for suffix in (".npy", ".safetensors", ".jsonl"):
        file = tmp_path / f"out{suffix}"
        code, out, _ = addnorm("embed", run, tmp_path / "in.txt", "--out", file)
        assert (code, out) == (0, "")
    assert numpy.array_equal(numpy.load(tmp_path / "out.npy"), expected.numpy())
    assert torch.equal(load_file(tmp_path / "out.safetensors")["vectors"], expected)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows == found.tolist()


@pytest.mark.parametrize("pooling", ["first", "last"])
def test_pooling_is_chosen(pooling: str, run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "in.txt").write_text("a fine day\n")
    _, out, _ = addnorm(
        "embed", run_of("classification"), tmp_path / "in.txt", "--pooling", pooling
    )
    expected = Run.open(run_of("classification")).embed("a fine day", pooling=pooling)
    torch.testing.assert_close(torch.tensor(json.loads(out)), expected)


def test_another_form_is_refused(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    code, _, err = addnorm("embed", run_of("classification"), "--out", tmp_path / "x.npz")
    assert code == 2
    assert "is not a valid form. Did you mean '.npy'? Valid: .npy, .safetensors, .jsonl." in err
