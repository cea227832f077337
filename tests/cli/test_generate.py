"""`addnorm generate`: lines, JSON, prompts, several results, standard input."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.tiny import train_tiny

from addnorm.cli.lines import one_line

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
        (["--prompt", "x", "--temperature", "0"], "--temperature 0.0: must be greater than 0"),
        (["--prompt", "x", "--beams", "2", "--top-k", "2"], "leave out top_k"),
        (["--prompt", "x", "--max-new-tokens", "0"], "at least 1"),
        (["--prompt", "x", "--stop", ""], "stop"),
        (["--prompt", "half \ud83d"], "surrogate"),
        (["--prompt", "x", "--early-stopping", "no"], "Valid: true, false, never."),
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
    done = subprocess.run(
        [sys.executable, "-m", "addnorm", "generate", str(run_of("translation"))],
        input="zwölf\n\ncat\n".encode(),
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (0, b"")
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
    assert len(list((tmp_path / "cache").iterdir())) == 1


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
