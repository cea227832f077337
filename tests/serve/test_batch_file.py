"""Files of requests: answered in order, each as the web server answers it, and resumed."""

import asyncio
import json
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.serve.servers import FAKE

from addnorm.errors import InputError
from addnorm.serve.batch_file import AHEAD, LONGEST, Counts, answer_file, n_answered
from addnorm.serve.messages import Open


def request_line(own: str = "a", url: str = "/v1/completions", **body: Any) -> str:
    body = body or {"prompt": "x", "max_tokens": 4}
    return json.dumps({"custom_id": own, "method": "POST", "url": url, "body": body})


def write_lines(file: Path, lines: Sequence[str]) -> Path:
    file.write_text("".join(f"{each}\n" for each in lines), "utf-8")
    return file


def answers_to(file: Path, run: str = "fake", answered: int = 0) -> tuple[list[Any], Counts]:
    """The answers of the fake engine to a file."""
    written: list[bytes] = []
    opened = Open(run=run, memory=2**26, chunk=64, max_queue=4, device="cpu")
    answering = answer_file(opened, file, written.append, answered=answered, worker=FAKE)
    counts = asyncio.run(answering)
    return [json.loads(each) for each in written], counts


def test_lines_are_answered_in_order_and_wrong_ones_say_where(tmp_path: Path) -> None:
    chat = request_line(
        "chat", "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}]
    )
    right = [
        request_line(f"r{i}", prompt="x" * (1 + i % 7), max_tokens=1 + i % 5) for i in range(40)
    ]
    wrong = [
        ("{", "not JSON"),
        ("[1]", "the line"),
        (request_line("", prompt="x"), "custom_id"),
        (request_line("u", "/v1/models"), "url: must be"),
        (request_line("s", prompt="x", stream=True), "body.stream"),
        ('{"custom_id": "m", "method": "POST", "url": "/v1/completions"}', "body"),
        ("[" * 100_000, "not JSON"),
    ]
    refused = request_line("refused", prompt="x", temperature=-1)
    texts = [*right[:20], "", *(text for text, _ in wrong), chat, refused, *right[20:]]
    answers, counts = answers_to(write_lines(tmp_path / "in.jsonl", texts))
    assert (counts.answered, counts.failed) == (41, len(wrong) + 1)
    ids = [answer["custom_id"] for answer in answers]
    expected = [None, None, "", "u", "s", "m", None]
    assert ids == [
        *(f"r{i}" for i in range(20)),
        *expected,
        "chat",
        "refused",
        *(f"r{i}" for i in range(20, 40)),
    ]
    for i, (_, message) in enumerate(wrong):
        answer = answers[20 + i]
        assert answer["response"] is None
        assert answer["error"]["message"].startswith(f"line {22 + i}: ")
        assert message in answer["error"]["message"]
    by_id = {answer["custom_id"]: answer for answer in answers}
    first = by_id["r3"]["response"]
    assert (by_id["r3"]["error"], first["status_code"]) == (None, 200)
    assert first["body"]["object"] == "text_completion"
    assert first["body"]["usage"]["completion_tokens"] == 4
    assert by_id["chat"]["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert by_id["refused"]["response"]["status_code"] == 400
    assert by_id["refused"]["response"]["body"]["error"]["param"] == "temperature"


def test_more_lines_than_are_open_at_once(tmp_path: Path) -> None:
    texts = [request_line(str(i), prompt=["x"] * 3, max_tokens=1) for i in range(AHEAD + 5)]
    answers, counts = answers_to(write_lines(tmp_path / "in.jsonl", texts))
    assert [answer["custom_id"] for answer in answers] == [str(i) for i in range(AHEAD + 5)]
    assert counts.failed == 0


def test_long_lines_are_not_kept(tmp_path: Path) -> None:
    texts = [request_line("long", prompt="x" * 3 * LONGEST), request_line("next")]
    answers, _ = answers_to(write_lines(tmp_path / "in.jsonl", texts))
    assert "line 1: more than" in answers[0]["error"]["message"]
    assert (answers[1]["custom_id"], answers[1]["error"]) == ("next", None)


def test_an_engine_that_ends_once_is_waited_for(tmp_path: Path) -> None:
    """One that ends for the same line again ends the file, which can be continued."""
    good = [request_line(str(i)) for i in range(3)]
    file = write_lines(
        tmp_path / "in.jsonl", [*good, request_line("d", prompt="die", max_tokens=2), *good]
    )
    with pytest.raises(InputError, match="the engine ended twice: run this again to continue"):
        answers_to(file)


def test_an_interrupted_file_is_continued(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", [request_line(f"r{i}") for i in range(9)])
    out = tmp_path / "out.jsonl"
    assert n_answered(out, file) == 0
    whole, _ = answers_to(file)
    rows = [f"{json.dumps(each)}\n" for each in whole]
    out.write_text("".join(rows[:4]) + rows[4][:20])
    assert n_answered(out, file) == 4
    assert out.read_text() == "".join(rows[:4])
    rest, counts = answers_to(file, answered=4)
    assert [each["custom_id"] for each in rest] == [f"r{i}" for i in range(4, 9)]
    assert str(counts) == "5 answered, 0 failed, 4 before"
    write_lines(file, [request_line("other")])
    with pytest.raises(InputError, match=r"out.jsonl:1: not the answer to request 1"):
        n_answered(out, file)


def test_no_engine_for_a_run_that_cannot_be_served(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too small"):
        answers_to(write_lines(tmp_path / "in.jsonl", [request_line()]), "fake?wrong=too+small")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_lines_take_the_memory_of_few(tmp_path: Path) -> None:
    def peak(n: int) -> int:
        file = tmp_path / f"{n}.jsonl"
        with file.open("w") as out:
            out.writelines(f"{request_line(str(i), prompt='x', max_tokens=1)}\n" for i in range(n))
        opened = Open(run="fake", memory=2**26, chunk=64, max_queue=4, device="cpu")
        count = [0]

        def write(_: bytes) -> None:
            count[0] += 1

        asyncio.run(answer_file(opened, file, write, worker=FAKE))
        assert count[0] == n
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    few = peak(1000)
    assert peak(100_000) < few * 1.1
