"""`addnorm generate`: lines, JSON, prompts, several results, standard input."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.commands import messages
from tests.runs.inference.test_media import SOUND, write
from tests.runs.tiny import quiet, train_tiny

from addnorm.cli.generate import as_json, as_lines, depth_of
from addnorm.cli.lines import one_line
from addnorm.cli.main import status
from addnorm.errors import InputError
from addnorm.runs.evaluation import evaluation_of
from addnorm.runs.inference.results import Written
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.mark.long
def test_a_line_for_each_line(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "a.txt").write_bytes(b"a red cat\r\n\nno cat")
    (tmp_path / "b.txt").write_text("\n")
    files = (tmp_path / "a.txt", tmp_path / "b.txt")
    code, out, _ = addnorm("generate", run_of("translation"), *files)
    lines = out.split("\n")
    assert (code, len(lines)) == (0, 5)
    assert lines[1] == lines[3] == lines[4] == ""
    assert lines[0]
    code, out, _ = addnorm("generate", run_of("translation"), *files, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["input"] for row in rows] == [1, 2, 3, 4]
    assert [row["text"] for row in rows] == lines[:4]
    assert set(rows[0]) == {"input", "text", "score", "finished"}


@pytest.mark.long
def test_line_breaks_do_not_break_lines(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "in.txt").write_text("To be\n" * 300)  # more than one group
    words = ("generate", run_of("language"), tmp_path / "in.txt", "--max-new-tokens", 30)
    code, out, _ = addnorm(*words)
    lines = out.split("\n")
    assert (code, len(lines)) == (0, 301)
    code, out, _ = addnorm(*words, "--json")
    texts = [json.loads(line)["text"] for line in out.split("\n")[:-1]]
    assert any("\n" in text for text in texts)
    assert [text.replace("\n", "\\n") for text in texts] == lines[:-1]
    assert len(set(texts)) > 250, "every line draws numbers of its own"


def test_several_results_stand_together(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "in.txt").write_text("a red cat\n\nno cat\n")
    words = ("generate", run_of("translation"), tmp_path / "in.txt", "--n-best", 3)
    code, out, _ = addnorm(*words)
    assert (code, out.count("\n")) == (0, 9)
    assert out.split("\n")[3:6] == ["", "", ""]
    code, out, _ = addnorm(*words, "--json")
    inputs = [json.loads(line)["input"] for line in out.splitlines()]
    assert inputs == [1, 1, 1, 2, 3, 3, 3]


def test_a_prompt_is_streamed(run_of: RunOf, addnorm: Command) -> None:
    words = ("generate", run_of("language"), "--prompt", "To be", "--max-new-tokens", 30)
    words += ("--seed", 1)
    code, out, _ = addnorm(*words)
    assert code == 0
    code, line, _ = addnorm(*words, "--json")
    assert json.loads(line)["text"] + "\n" == out
    assert len(out) > 1
    code, stopped, _ = addnorm(*words, "--stop", out[0])
    assert stopped == "\n", "the text ends before the stop string"
    assert addnorm("generate", run_of("translation"), "--prompt", "a red cat")[0] == 0


def test_nothing_in_nothing_out(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "empty.txt").write_text("")
    assert addnorm("generate", run_of("language"), tmp_path / "empty.txt") == (0, "", "")


def test_mistakes(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine\nnot \xff fine\n")
    run = run_of("language")
    for words, expected in [
        ([tmp_path / "none.txt"], "none.txt: No such file"),
        ([tmp_path], "Is a directory"),
        ([tmp_path / "bad.txt"], "bad.txt:2: not UTF-8 at byte 5"),
        (["--prompt", "x", tmp_path / "bad.txt"], "not both"),
        (["--prompt", "x", "--temperature", "-1"], "--temperature -1: must be greater than 0"),
        (["--prompt", "x", "--beams", "2", "--top-k", "2"], "leave out --top-k"),
        (["--prompt", "x", "--max-new-tokens", "0"], "at least 1"),
        (["--prompt", "x", "--stop", ""], "stop"),
        (["--prompt", "half \ud83d"], "surrogate"),
        (["--prompt", "x", "--early-stopping", "maybe"], "Valid: true, false, never."),
    ]:
        code, out, err = addnorm("generate", run, *words)
        assert code == 2
        assert out.count("\n") == expected.count("bad.txt:2")  # what came before is answered
        assert expected in err
    code, _, err = addnorm("generate", run_of("tagging"), "--prompt", "x")
    assert (code, "use `addnorm classify`" in err) == (2, True)


def test_only_a_line_is_skipped(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    """With `--errors skip` too, a mistake that is about no line ends the command."""
    (tmp_path / "in.txt").write_bytes(b"cat\nnot \xff\ndog\n")
    words = ("generate", run_of("language"), tmp_path / "in.txt", "--errors", "skip")
    code, out, err = addnorm(*words, "--max-new-tokens", 3)
    assert (code, out.count("\n")) == (0, 2)
    assert err.endswith("in.txt:2: not UTF-8 at byte 5: skipped\naddnorm: 1 line skipped\n")
    for mistake in (("--max-new-tokens", 0), ("--stop", ""), ("--beams", 2, "--stop", "x")):
        code, out, err = addnorm(*words, *mistake)
        assert (code, out, err.count("\n")) == (2, "", 1), err


@pytest.mark.long
def test_options_of_a_search(run_of: RunOf, addnorm: Command) -> None:
    words = ("generate", run_of("translation"), "--prompt", "no cat", "--json")
    written = {  # the length penalty is in the score
        addnorm(*words, *options)[:2]
        for options in (
            ("--length-penalty", -10),
            ("--length-penalty", 10),
            ("--no-repeat-ngram", 1),
            ("--forced-bos", "katze"),
        )
    }
    assert len(written) == 4
    assert all(code == 0 for code, _ in written)
    assert addnorm(*words, "--early-stopping", "false")[0] == 0


@pytest.mark.long
def test_standard_input_is_utf_8_whatever_the_locale(run_of: RunOf) -> None:
    around = {name: os.environ[name] for name in ("PATH", "ADDNORM_CACHE") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "addnorm", "generate", str(run_of("translation"))],
        input="zwölf\n\ncat\n".encode(),
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path), **around},
    )
    assert (done.returncode, messages(done.stderr.decode())) == (0, [])
    assert done.stdout.count(b"\n") == 3


@pytest.mark.long
def test_compiled_it_writes_the_same(
    run_of: RunOf, addnorm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    words = ("generate", run_of("language"), "--prompt", "To be", "--max-new-tokens", 30)
    words += ("--beams", 1)
    _, plain, _ = addnorm(*words)
    code, out, _ = addnorm(*words, "--compile")
    assert (code, out) == (0, plain)
    assert len(list(tmp_path.glob("*.pt2"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("task", ["language", "translation"])
def test_compiled_it_writes_the_same_of_many_lines(
    task: str, run_of: RunOf, addnorm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path / "cache"))
    texts = tmp_path / "texts"
    texts.write_text("cat\n\nthe old house\na\n")
    words = ("generate", run_of(task), texts, "--max-new-tokens", 12, "--beams", 2, "--json")
    _, plain, _ = addnorm(*words)
    code, out, _ = addnorm(*words, "--compile")
    assert code == 0
    [plain, out] = [[json.loads(line) for line in said.splitlines()] for said in (plain, out)]
    assert [line["text"] for line in out] == [line["text"] for line in plain]
    assert len(list((tmp_path / "cache").glob("*.pt2"))) == 1


@pytest.mark.long
def test_keys_and_values_in_fewer_bits(run_of: RunOf, addnorm: Command) -> None:
    words = ("generate", run_of("language"), "--prompt", "To be", "--beams", 1, "--json")
    narrow = ("--cache-dtype", "bfloat16")
    scores = [json.loads(addnorm(*words, "--compile", *more)[1])["score"] for more in ((), narrow)]
    assert scores[0] != scores[1]
    assert scores[0] == pytest.approx(scores[1], rel=1e-2)
    code, out, err = addnorm(*words, *narrow)
    assert (code, out) == (2, "")
    assert "--cache-dtype is for compiled graphs: give --compile too" in err
    words = ("generate", run_of("translation"), "--prompt", "ab", "--compile", *narrow)
    code, out, err = addnorm(*words)
    assert (code, out) == (2, "")
    assert "only decoder-only models keep keys and values in bfloat16" in err


@pytest.mark.long
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_weights_in_fewer_bits(weights: str, run_of: RunOf, addnorm: Command) -> None:
    words = ("generate", run_of("language"), "--prompt", "To be", "--beams", 1, "--json")
    scores = [
        json.loads(addnorm(*words, *more)[1])["score"] for more in ((), ("--weights", weights))
    ]
    assert scores[0] != scores[1]
    assert scores[1] == pytest.approx(scores[0], rel=0.1)


def test_what_does_not_compile_says_so(run_of: RunOf, addnorm: Command) -> None:
    code, out, err = addnorm("generate", run_of("tagging"), "--prompt", "a", "--compile")
    assert (code, out) == (2, "")
    assert "only a model that writes" in err
    code, _, err = addnorm("generate", run_of("language"), "--weights", "int4")
    assert code == 2
    assert "Valid: bfloat16, int8." in err


def test_early_exits_of_a_language_model(tmp_path: Path, addnorm: Command) -> None:
    fields = {"model.n_layers": "2", "model.exits": "[1]"}
    run = train_tiny(tmp_path, "language", **fields)
    words = ["generate", run, "--prompt", "a", "--max-new-tokens", "6", "--beams", "1"]
    _, whole, _ = addnorm(*words)
    code, out, err = addnorm(*words, "--exit", "confidence:1")
    assert (code, out) == (0, whole)
    assert "exits: mean depth 2.00 layers" in err
    code, _, err = addnorm(*words, "--exit", "confidence:0", "--json")
    assert code == 0
    assert "exits: mean depth 1.00 layers · layer 1 100.0%" in err
    file = tmp_path / "texts"
    file.write_text("ab\n\nb\n")
    words[2:4] = [file]
    _, whole, _ = addnorm(*words)
    code, out, err = addnorm(*words, "--exit", "confidence:0")
    assert (code, len(out.splitlines())) == (0, 3)
    assert [line for line in err.splitlines() if line.startswith("text ")] == [
        f"text {i}: mean depth 1.00 layers" for i in (1, 2, 3)
    ]
    code, out, err = addnorm(*words, "--exit", "confidence:1", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [one_line(one["text"]) for one in found] == whole.splitlines()
    assert [one["depth"] for one in found] == [2.0, 2.0, 2.0]
    assert "text 1" not in err
    words[words.index("6")] = "1"
    code, out, err = addnorm(*words, "--exit", "confidence:0")
    assert (code, err.count("its one token took every layer")) == (0, 3)
    code, _, err = addnorm("evaluate", run, "--exit", "confidence:0", "--split", "valid")
    assert code == 0
    assert "mean depth 1.00" in err
    code, _, err = addnorm(*words, "--exit", "confidence:0", "--compile")
    assert code == 2
    assert "leave --exit or --compile out" in err


HEAD = 'head = { kind = "classification", pooling = "mean" }\n'
EVAL = '\n[eval]\nmetric = "wer"\nvalid_examples = 5\ndecoding = { kind = "greedy" }\n'


def test_lines_hold_no_line_breaks() -> None:
    assert as_lines([Written("a\nb", 0.0, "eos")], 3) == ["a\\nb", "", ""]


def test_json_holds_the_text_exactly() -> None:
    [first, second] = as_json([Written("a\n日", -0.5, "eos"), Written("", -1.0, "length")], 7)
    assert json.loads(first) == {"input": 7, "text": "a\n日", "score": -0.5, "finished": "eos"}
    assert "日" in first
    assert json.loads(second)["finished"] == "length"


def test_the_depth_stands_where_it_is_asked_for() -> None:
    texts = [Written("a", -0.5, "eos", 1.25), Written("", -1.0, "eos")]
    first, second = as_json(texts, 7, deep=True)
    assert json.loads(first)["depth"] == 1.25
    assert json.loads(second)["depth"] is None
    assert depth_of(texts, 7) == "text 7: mean depth 1.25 layers"
    assert depth_of(texts[1:], 8) == "text 8: its one token took every layer"


def recipe_in(folder: Path) -> Path:
    """Strings of tones, whose pitches are the text."""
    file = write(folder)
    text = file.read_text().replace('kind = "encoder"', 'kind = "encoder_decoder"')
    strings = "strings = { shortest = 1, longest = 2 }\n"
    text = text.replace("\n[model]", f'{strings}\n[tokenizer]\nkind = "word"\n\n[model]')
    text = text.replace(HEAD, "").replace("frames = 200", "frames = 400") + EVAL
    file.write_text(text.replace("epochs = 15", "epochs = 2"))
    assert SOUND not in text
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strings")
    train_run(read_recipe(recipe_in(folder)), folder / "run", resume=True, console=quiet())
    return folder


def test_it_is_evaluated_by_error_rates(folder: Path) -> None:
    run = Run.open(folder / "run")
    assert run.task == "translation"
    found = evaluation_of(run, "test")
    assert {"wer", "cer", "bleu", "exact", "loss"} <= found.scores.keys()
    assert len(found.predictions) == found.scores["examples"]


def test_each_file_has_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(folder / "tones" / f"{name}_13.wav") for name in ("low", "high")]
    run = Run.open(folder / "run")
    texts = run.generate(files)
    assert [run.translate(file) for file in files] == texts
    assert status(["generate", str(folder / "run"), *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{text}\t{file}" for text, file in zip(texts, files, strict=True)]
    assert status(["generate", str(folder / "run"), *files, "--json", "--beams", "2"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["input"] for one in found] == files


def test_a_bad_file_is_named_or_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = str(folder / "tones" / "low_13.wav"), str(tmp_path / "none.wav")
    (tmp_path / "text.wav").write_text("no sound")
    command = ["generate", str(folder / "run"), good, bad, str(tmp_path / "text.wav")]
    assert status(command) == 2
    assert "none.wav: does not exist" in capsys.readouterr().err
    assert status([*command, "--errors", "skip"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("\t")[1] for line in out.splitlines()] == [good]
    assert "text.wav is not readable as sound" in err
    assert "2 of 3 files skipped" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name the image or sound files"),
        (["a.wav", "--errors", "replace"], "is for text"),
        (["--prompt", "a"], "leave out --prompt"),
        (["a.wav", "--stop", "a"], "leave out --stop"),
        (["a.wav", "--compile"], "leave out --compile"),
        (["a.wav", "--regex", "a"], "leave out --regex"),
    ],
)
def test_options_for_text_are_rejected_for_sound(
    folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["generate", str(folder / "run"), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_classifier_is_named_and_classes_are_refused(folder: Path) -> None:
    file = folder / "tones" / "low_13.wav"
    with pytest.raises(InputError, match="takes no stop"):
        Run.open(folder / "run").generate(str(file), stop="a")
    assert status(["classify", str(folder / "run"), str(file)]) == 2


@pytest.mark.long
def test_resumed_training_equals_uninterrupted_training(folder: Path, tmp_path: Path) -> None:
    recipe = read_recipe(folder / "tones.toml")
    train_run(recipe, tmp_path / "run", resume=True, console=quiet(), until=3)
    train_run(recipe, tmp_path / "run", resume=True, console=quiet())
    ends = [load_file(one / "run" / "model.safetensors") for one in (folder, tmp_path)]
    for name, weight in ends[0].items():
        torch.testing.assert_close(ends[1][name], weight, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('[tokenizer]\nkind = "word"\n', "", "tokenizer is missing"),
        ('kind = "audio"', 'kind = "audio"\nlabels = "words"', "data.labels"),
    ],
)
def test_recipes_that_do_not_fit(
    folder: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text((folder / "tones.toml").read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        read_recipe(file)
