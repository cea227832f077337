"""Texts that follow a schema or an expression, on the command line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.tiny import train_tiny

from addnorm.cli.structured import grammar_asked
from addnorm.errors import InputError, Unfinished

Command = Callable[..., tuple[int, str, str]]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["to", "be"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def asked(folder: Path, text: str) -> tuple[str, str]:
    file = folder / "schema.json"
    file.write_text(text)
    return grammar_asked(file, None)


def test_a_schema_and_an_expression_name_their_option(tmp_path: Path) -> None:
    grammar, option = asked(tmp_path, json.dumps(SCHEMA))
    assert '"to"' in grammar.replace("\\", "")
    assert option == f"--json-schema {tmp_path / 'schema.json'}"
    assert grammar_asked(None, "a|b")[1] == "--regex"
    assert grammar_asked(None, "")[1] == "--regex"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[" * 10**5, "not JSON"),
        ('{"const": NaN}', "not JSON"),
        ("[1]", "not a JSON object, as a schema is"),
        ('{"type": "thing"}', "Invalid type: thing"),
        ('{"$ref": "https://example.com/a.json"}', "does not fetch"),
        (json.dumps({"enum": ["x" * 2**17]}), "at most 131,072"),
        (" " * 2**22 + "{}", "too large"),
    ],
    ids=range(8),
)
def test_wrong_schemas_are_refused_with_the_reason(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason) as error:
        asked(tmp_path, text)
    assert "schema.json: " in str(error.value)


def test_other_mistakes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^--regex: .*unclosed group"):
        grammar_asked(None, "(")
    with pytest.raises(InputError, match="either --json-schema or --regex"):
        grammar_asked(tmp_path, "a")
    with pytest.raises(FileNotFoundError):
        grammar_asked(tmp_path / "none", None)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r"^--regex needs .*addnorm\[structured\]"):
        grammar_asked(None, "a")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens = {"tokenizer.kind": "bpe", "tokenizer.vocab_size": "280"}
    return train_tiny(tmp_path_factory.mktemp("bpe"), "language", **tokens)


@pytest.mark.long
def test_texts_follow_the_schema(run: Path, addnorm: Command, tmp_path: Path) -> None:
    schema, lines = tmp_path / "schema.json", tmp_path / "lines"
    schema.write_text(json.dumps(SCHEMA))
    lines.write_text("To\n\nto be or not\n")
    for more in ((), ("--beams", 1), ("--temperature", 2.0, "--seed", 3)):
        words = ("generate", run, lines, "--json-schema", schema, "--json", *more)
        code, out, error = addnorm(*words, "--max-new-tokens", 400)
        assert (code, error) == (0, "")
        answers = [json.loads(line) for line in out.splitlines()]
        assert len(answers) == 3
        for answer in answers:
            value = json.loads(answer["text"])
            assert value["a"] in ("to", "be")
            assert isinstance(value["b"], bool)
            assert answer["finished"] == "stop"
    code, out, _ = addnorm("generate", run, "--prompt", "To", "--regex", "[a-c]{3}")
    assert code == 0
    assert len(out) == 4
    assert set(out) <= set("abc\n")
    words = ("generate", run, "--prompt", "To", "--regex", "[a-c]{3}", "--max-new-tokens", 2)
    with pytest.warns(Unfinished, match="reached max_new_tokens before it was complete"):
        code, out, _ = addnorm(*words)
    assert code == 0
    assert len(out) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--prompt", "a", "--beams", 3), "beam search follows no grammar: choose --beams 1"),
        (("--batch", "x.jsonl"), "leave out --regex"),
    ],
    ids=str,
)
def test_what_follows_no_grammar_says_so(
    words: tuple[object, ...], reason: str, run: Path, addnorm: Command
) -> None:
    code, out, error = addnorm("generate", run, *words, "--regex", "a")
    assert (code, out) == (2, "")
    assert reason in error


def test_models_that_follow_no_grammar_say_so(
    run_of: Callable[[str], Path], addnorm: Command
) -> None:
    code, _, error = addnorm("generate", run_of("translation"), "--prompt", "a", "--regex", "a")
    assert code == 2
    assert "only a language model follows a grammar, and this one is for translation" in error
