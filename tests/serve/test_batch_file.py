"""Files of requests: answered in order, each as the web server answers it, and resumed."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.serve.servers import FAKE, memory

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
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_many_lines_take_the_memory_of_few(tmp_path: Path) -> None:
    """Of 100,000 lines the last ones find no more memory taken than those after the first 1,000."""
    file = tmp_path / "in.jsonl"
    with file.open("w") as out:
        out.writelines(f"{request_line(str(i), prompt='x', max_tokens=1)}\n" for i in range(10**5))
    opened = Open(run="fake", memory=2**26, chunk=64, max_queue=4, device="cpu")
    n, taken = 0, list[int]()

    def write(_: bytes) -> None:
        nonlocal n
        n += 1
        if n % 1000 == 0:
            taken.append(memory(os.getpid()))

    asyncio.run(answer_file(opened, file, write, worker=FAKE))
    assert n == 10**5
    assert max(taken) < taken[0] + 2**24


@pytest.mark.slow
def test_a_killed_command_is_continued(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    """The answers are those of a file that nobody interrupts, and those written before are kept."""
    bodies: list[Any] = [
        {"prompt": "To be"[: 1 + i % 5], "max_tokens": 30, "seed": i} for i in range(600)
    ]
    texts = [request_line(f"r{i}", **body) for i, body in enumerate(bodies)]
    texts[300] = "{"
    file = write_lines(tmp_path / "in.jsonl", texts)

    def command(out: Path) -> "subprocess.Popen[str]":
        words = ["generate", run_of("language"), "--batch", file, "--out", out]
        line = [sys.executable, "-m", "addnorm", *map(str, words), "--exact", "--device", "cpu"]
        return subprocess.Popen(line, stderr=subprocess.PIPE, text=True)

    def written(out: Path) -> list[Any]:
        rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
        for row in rows:
            if (response := row["response"]) is not None:
                del response["body"]["id"], response["body"]["created"]
        return rows

    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    assert "599 answered, 1 failed" in command(whole).communicate()[1]
    with command(part) as killed:
        while not (part.exists() and part.stat().st_size > 5000):
            time.sleep(0.01)
        killed.kill()
    before = part.read_bytes()
    assert 5 <= (n := before.count(b"\n")) < 600
    err = command(part).communicate()[1]
    assert f", {n} before" in err
    assert part.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    assert written(part) == written(whole)
