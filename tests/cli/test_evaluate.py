"""`addnorm evaluate`: JSON on standard output, everything else on standard error."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.runs.tiny import train_tiny
from tests.test_house import write_gpt2
from torch.nn.functional import cross_entropy

from addnorm import Run
from addnorm import load as addnorm_load

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


def test_figures_and_predictions(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    file = tmp_path / "said.txt"
    code, out, err = addnorm("evaluate", run_of("tagging"), "--predictions", file)
    assert code == 0
    assert json.loads(out)["examples"] == 2
    assert "1 left out: longer than 60 tokens" in err
    assert file.read_text().count("\n") == 3


def test_fields_replace_those_of_the_run(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "other.txt").write_text("good a fine day\n")
    run = run_of("classification")
    code, out, _ = addnorm("evaluate", run, "--data.test", tmp_path / "other.txt")
    assert code == 0
    assert json.loads(out)["examples"] == 1


@pytest.mark.parametrize("split", ["test", "valid"])
def test_the_usual_split_is_that_of_python_and_is_named(
    split: str, run_of: RunOf, addnorm: Command
) -> None:
    folder = run_of("classification")
    data = '{{kind = "lines", train = "train.txt", {} = "valid.txt", root = "{}"}}'
    data = data.format(split, folder.parent)
    code, out, _ = addnorm("evaluate", folder, "--data", data)
    assert code == 0
    figures = json.loads(out)
    assert figures.pop("split") == split
    run = Run.open(folder, {"data": data})
    figures.pop("measured_with", None)
    assert figures == run.evaluate() == run.evaluate(split=split)
    assert run.evaluation().split == split
    assert addnorm("evaluate", folder, "--data", data, "--split", split)[1] == out


@pytest.mark.parametrize("kind", ["language", "classification"])
def test_settings_of_written_text_are_refused_where_none_is_written(
    kind: str, run_of: RunOf, addnorm: Command
) -> None:
    code, out, err = addnorm("evaluate", run_of(kind), "--eval.decoding.beams", "3")
    assert (code, out) == (2, "")
    assert "--eval.decoding.beams: for generated texts, and the evaluation of" in err


def test_weights_in_fewer_bits(run_of: RunOf, addnorm: Command) -> None:
    words = ("evaluate", run_of("language"), "--split", "valid")
    plain, half, int8 = (
        json.loads(addnorm(*words, *more)[1])["loss"]
        for more in ((), ("--weights", "bfloat16"), ("--weights", "int8"))
    )
    assert len({plain, half, int8}) == 3
    assert abs(half - plain) < 0.03 * plain
    assert abs(int8 - plain) < 0.03 * plain


def test_mistakes(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    run = run_of("classification")
    for words, expected in [
        (["--data.tset", "x"], "Did you mean 'test'?"),
        (["--data.test", "none.txt"], "does not exist"),
        (["--model.d_model", "32"], "does not fit this model"),
        (["--splt", "valid"], "Did you mean '--split'?"),
        (["--predictions", tmp_path], "is a folder: give the name of a file in it"),
        (
            ["--confusion", "x.gif"],
            "--confusion x.gif: .gif is not a valid form. Did you mean '.png'?",
        ),
    ]:
        code, out, err = addnorm("evaluate", run, *words)
        assert (code, out) == (2, "")
        assert expected in err


def test_a_file_longer_than_a_model_of_others_reads_at_once(
    tmp_path: Path, addnorm: Command
) -> None:
    """It is read in windows of the model's own length; other batching can be asked for."""
    write_gpt2(tmp_path / "gpt2")
    (tmp_path / "long.txt").write_text("To be, or not to be. " * 300)
    text = ("--data.kind", "text", "--data.train", tmp_path / "long.txt", "--split", "valid")
    data = (*text, "--data.valid", tmp_path / "long.txt")
    run = addnorm_load(tmp_path / "gpt2")
    longest = run.recipe.model.max_len
    ids = run.tokenizers.source.encode("To be, or not to be. " * 300)
    assert len(ids) > 3 * longest
    loss = json.loads(addnorm("evaluate", tmp_path / "gpt2", *data)[1])["loss"]
    row = torch.tensor([[run.tokenizers.source.bos_id, *ids, run.tokenizers.source.eos_ids[0]]])
    inputs, targets = row[:, :-1].split(longest, 1), row[:, 1:].split(longest, 1)
    with torch.no_grad():
        logits = torch.cat([run.model(part) for part in inputs], 1)
    expected = cross_entropy(logits[0], torch.cat([*targets], 1)[0])
    assert loss == pytest.approx(float(expected), rel=1e-5)
    code, _, err = addnorm("evaluate", tmp_path / "gpt2", *data, "--train.batching", "tokens")
    assert code == 2, err


def test_a_language_model_predicts_no_lines(
    run_of: RunOf, tmp_path: Path, addnorm: Command
) -> None:
    file = tmp_path / "said.txt"
    code, out, err = addnorm("evaluate", run_of("language"), "--predictions", file)
    assert (code, out) == (2, "")
    assert "leave --predictions out" in err
    assert not file.exists()


EXITS = {"model.n_layers": "2", "model.exits": "[1]"}


def test_early_exits_say_how_deep_each_example_went(tmp_path: Path, addnorm: Command) -> None:
    run, file = train_tiny(tmp_path, "classification", **EXITS), tmp_path / "said.txt"
    whole = json.loads(addnorm("evaluate", run)[1])
    code, out, err = addnorm("evaluate", run, "--exit", "entropy:0")
    assert code == 0, err
    lines = {name: f"{line}; early exits" for name, line in whole["measured_with"].items()}
    assert json.loads(out) == {**whole, "mean_depth": 2.0, "measured_with": lines}
    words = ["--exit", "entropy:9", "--predictions", file]
    code, out, err = addnorm("evaluate", run, *words)
    assert json.loads(out)["mean_depth"] == 1.0
    assert "exits: mean depth 1.00 layers · layer 1 100.0%" in err
    assert all(line.endswith("\t1") for line in file.read_text().splitlines())


def test_a_model_without_exits_is_one_message(run_of: RunOf, addnorm: Command) -> None:
    for command in ("evaluate", "generate"):
        code, out, err = addnorm(command, run_of("language"), "--exit", "entropy:0.3")
        assert (code, out) == (2, "")
        assert "this model has no early exits: train one with model.exits" in err
    code, _, err = addnorm("evaluate", run_of("language"), "--exit", "entropy")
    assert code == 2
    assert "write entropy:0.3 or confidence:0.9" in err
