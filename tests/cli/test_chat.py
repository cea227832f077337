"""`addnorm chat`: lines in, answers out; an interrupt stops an answer and keeps its beginning."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.serve.servers import serving

from addnorm.cli.chat import talk

Command = Callable[..., tuple[int, str, str]]
RunOf = Callable[[str], Path]


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_conversation_has_all_messages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[str]] = []

    def answer(messages: Sequence[Mapping[str, str]]) -> Iterator[str]:
        seen.append([message["content"] for message in messages])
        yield from ("one ", "two")

    typed(monkeypatch, "a\n\n  \nb\n")
    talk(answer, [{"role": "system", "content": "s"}])
    assert seen == [["s", "a"], ["s", "a", "one two", "b"]]
    assert capsys.readouterr().out == "one two\none two\n"


def test_an_interrupt_stops_the_answer_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[bool] = []
    seen: list[int] = []

    def answer(messages: Sequence[Mapping[str, str]]) -> Iterator[str]:
        seen.append(len(messages))
        try:
            yield "begun"
            if len(seen) == 1:
                raise KeyboardInterrupt
            yield " and done"
        finally:
            closed.append(True)

    typed(monkeypatch, "a\nb\n")
    talk(answer, [])
    assert capsys.readouterr().out == "begun\nbegun and done\n"
    assert seen == [1, 3]
    assert closed == [True, True]


@pytest.mark.long
def test_a_server_is_talked_with(addnorm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("fake?text=Gut und dir?", "other") as url:
        typed(monkeypatch, "Hallo\nWie geht es?\n")
        code, out, _ = addnorm("chat", url, "--temperature", "0", "--max-new-tokens", "20")
        assert (code, out) == (0, "Gut und dir?\nGut und dir?\n")
        code, _, error = addnorm("chat", url, "--model", "fale")
        assert code == 2
        assert "Did you mean 'fake'?" in error


def test_a_run_without_a_template_says_so(addnorm: Command, run_of: RunOf) -> None:
    code, _, error = addnorm("chat", run_of("language"))
    assert code == 2
    assert "no chat template" in error


def test_calls_are_shown_and_the_next_lines_are_their_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.data.chat_templates import CALL

    seen: list[list[Mapping[str, object]]] = []
    called = {"role": "assistant", "content": "Hm.", "tool_calls": [CALL, {**CALL, "id": "2"}]}

    def answer(messages: Sequence[Mapping[str, object]]) -> Iterator[str | Mapping[str, object]]:
        seen.append([*messages])
        yield "Hm."
        if len(seen) == 1:
            yield called

    typed(monkeypatch, "rain\nsun\nthanks\n")
    talk(answer, [{"role": "user", "content": "Rain?"}])
    results = [
        {"role": "tool", "tool_call_id": i, "name": "weather", "content": text}
        for i, text in (("abcdefghi", "rain"), ("2", "sun"))
    ]
    assert seen[1] == [seen[0][0], called, *results]
    assert seen[2][4:] == [
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": "thanks"},
    ]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "Hm."
    assert shown[1:3] == [json.dumps(CALL["function"], ensure_ascii=False)] * 2


@pytest.mark.long
def test_a_server_calls_tools(
    addnorm: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tests.data.chat_templates import HERMES, TALK, TOOLS, written_call

    said = quote(written_call("hermes", "tide", {"city": "Cork"}))
    (tmp_path / "talk.json").write_text(json.dumps({"messages": TALK[:1], "tools": TOOLS}))
    with serving(f"fake?max_len=4096&template={quote(HERMES)}&text={said}") as url:
        typed(monkeypatch, "low\n")
        code, out, err = addnorm("chat", url, "--messages", tmp_path / "talk.json")
        assert code == 0, err
        call = json.dumps({"name": "tide", "arguments": {"city": "Cork"}})
        assert [line for line in out.splitlines() if line] == [call, call]
