"""An engine that dies is restarted once; its requests, and those that are cancelled, end."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.serve.servers import FAKE

from addnorm.errors import InputError
from addnorm.serve.engine.events import Event
from addnorm.serve.messages import Apply, Generate, Open
from addnorm.serve.supervisor import EngineDown, EngineError, Supervisor


def supervisor(folder: Path, run: str = "fake", max_queue: int = 99) -> Supervisor:
    texts = folder / "texts"
    texts.mkdir()
    opened = Open(run=run, texts=str(texts), memory=0, chunk=1, max_queue=max_queue)
    return Supervisor(opened, FAKE)


def request(name: str, **facts: Any) -> Generate:
    return Generate(**{"name": name, "prompt": (4, 5), "limit": 5, **facts})


async def events(engine: Supervisor, asked: Generate) -> list[Event]:
    return [event async for event in engine.generate(asked)]


async def until(engine: Supervisor, state: str) -> None:
    start = monotonic()
    while engine.state != state:
        assert monotonic() - start < 10
        await asyncio.sleep(0.01)


def test_answers_go_to_their_requests(tmp_path: Path) -> None:
    async def run() -> None:
        engine = supervisor(tmp_path)
        ready = await engine.start()
        assert ready.endpoint == "/v1/completions"
        answers = await asyncio.gather(
            *(events(engine, request(str(i), limit=i + 1, n=2)) for i in range(5))
        )
        for i, answer in enumerate(answers):
            assert {event.name for event in answer} == {str(i)}
            assert len(answer) == 2 * (i + 1)
        result = await engine.apply(Apply(name="a", endpoint="/x", inputs=("abc",)))
        assert result.outputs == ([3.0, 0.5],)
        assert not engine.open_requests
        await engine.stop()
        assert engine.state == "stopped"

    asyncio.run(run())


def test_a_dead_engine_ends_its_requests_and_is_restarted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        engine = supervisor(tmp_path, "fake?delay=0.05")
        await engine.start()
        open_request = asyncio.create_task(events(engine, request("long", limit=200)))
        await asyncio.sleep(0.1)
        assert engine._process is not None
        start = monotonic()
        engine._process.kill()
        with pytest.raises(EngineDown):
            await open_request
        assert monotonic() - start < 2
        with pytest.raises(EngineDown, match="restarting") as down:
            await events(engine, request("b"))
        assert not down.value.final
        await until(engine, "ready")
        assert len(await events(engine, request("c"))) == 5
        engine._process.kill()
        await until(engine, "dead")
        with pytest.raises(EngineDown, match="dead until") as down:
            await events(engine, request("d"))
        assert down.value.final
        await engine.stop()

    asyncio.run(run())
    first, ready, last = capsys.readouterr().err.splitlines()
    assert first == "fake: its engine ended by SIGKILL: it is started again"
    assert ready == "fake: its engine is ready again"
    assert last.startswith("fake: its engine ended by SIGKILL, ")
    assert last.endswith(": it stays dead until the server is restarted")


def test_an_engine_that_is_starting_again_is_stopped(tmp_path: Path) -> None:
    async def run() -> None:
        engine = supervisor(tmp_path)
        await engine.start()
        assert engine._process is not None
        engine._process.kill()
        await until(engine, "restarting")
        async with asyncio.timeout(20):
            await engine.stop()
        assert engine.state == "stopped"
        assert engine._process.returncode is not None

    asyncio.run(run())


@pytest.mark.long
def test_an_answer_that_is_not_read_is_cancelled(tmp_path: Path) -> None:
    async def run() -> None:
        engine = supervisor(tmp_path, "fake?delay=0.01")
        await engine.start()
        answer = engine.generate(request("a", limit=200))
        await anext(answer)
        await answer.aclose()
        await asyncio.sleep(0.2)
        assert engine.stats is not None
        assert engine.stats.running == 0
        await engine.stop()

    asyncio.run(run())


@pytest.mark.long
def test_one_answer_is_cancelled_alone(tmp_path: Path) -> None:
    async def run() -> None:
        engine = supervisor(tmp_path, "fake?delay=0.01")
        await engine.start()
        seen: list[Event] = []
        async for event in engine.generate(request("a", limit=20, n=2)):
            seen.append(event)
            if len(seen) == 4:
                engine.cancel("a", 1)
        of_each = [[e for e in seen if e.index == i] for i in range(2)]
        assert len(of_each[0]) == 20
        assert of_each[1][-1].finished == "stop"
        assert len(of_each[1]) < 10
        await engine.stop()

    asyncio.run(run())


@pytest.mark.long
def test_errors_of_the_engine(tmp_path: Path) -> None:
    async def run() -> None:
        engine = supervisor(tmp_path, max_queue=0)
        await engine.start()
        with pytest.raises(EngineError) as caught:
            await events(engine, request("a"))
        assert caught.value.error.kind == "full"
        assert caught.value.error.retry_after == 2.5
        await engine.stop()

    asyncio.run(run())


def test_a_run_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(InputError, match="reads images"):
            await supervisor(tmp_path, "fake?wrong=it reads images").start()

    asyncio.run(run())
