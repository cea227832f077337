"""Whole inputs of many requests: computed together, a few tokens a step, each as alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from addnorm.runs.run import Run
from addnorm.serve.engine.interruption import Interrupted
from addnorm.serve.input_queue import InputQueue
from addnorm.serve.messages import Apply, Error, Result
from addnorm.serve.whole_inputs import outputs_for

RunOf = Callable[[str], Path]
TEXTS = ("one dog", "the cat sees a dog", "a cat", "two dogs see one cat", "dog")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The inputs that are computed together."""
    calls = list[list[Any]]()

    def seen(run: Run, endpoint: str, inputs: Sequence[Any], options: Any) -> tuple[list[Any], int]:
        calls.append([*inputs])
        return outputs_for(run, endpoint, inputs, options)

    monkeypatch.setattr("addnorm.serve.input_queue.outputs_for", seen)
    return calls


def emptied(queue: InputQueue, budget: int) -> dict[str | None, Result | Error]:
    """Compute all requests."""
    ended: dict[str | None, Result | Error] = {}
    while queue:
        ended |= {event.name: event for event in queue.step(budget, lambda: None)}
    return ended


@pytest.mark.parametrize("budget", [1, 7, 1000])
def test_results_are_those_of_each_request_alone(
    run_of: RunOf, calls: list[list[Any]], budget: int
) -> None:
    run = Run.open(run_of("classification"))
    queue = InputQueue(run)
    requests = [
        Apply(name="a", endpoint="/classify", inputs=TEXTS),
        Apply(name="none", endpoint="/classify", inputs=()),
        Apply(name="b", endpoint="/v1/embeddings", inputs=TEXTS[1:3]),
        Apply(name="c", endpoint="/classify", inputs=TEXTS[2:], options={"threshold": 0.3}),
        Apply(name="d", endpoint="/classify", inputs=TEXTS[:2]),
    ]
    for request in requests:
        queue.add(request)
    ended = emptied(queue, budget)
    assert sum(map(len, calls)) == 12
    assert len(calls) == {1: 12, 1000: 3}.get(budget, len(calls))
    for request in requests:
        result = ended[request.name]
        assert isinstance(result, Result)
        outputs, n_tokens = outputs_for(run, request.endpoint, request.inputs, request.options)
        assert result.n_tokens == n_tokens
        for ours, expected in zip(result.outputs, outputs, strict=True):
            if request.endpoint == "/classify":
                assert ours["label"] == expected["label"]
                ours, expected = (list(each["probabilities"].values()) for each in (ours, expected))
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(expected))


def test_an_input_that_cannot_be_read_fails_its_request_alone(run_of: RunOf) -> None:
    queue = InputQueue(Run.open(run_of("classification")))
    queue.add(Apply(name="good", endpoint="/v1/embeddings", inputs=TEXTS))
    queue.add(Apply(name="bad", endpoint="/v1/embeddings", inputs=("a dog", [99999])))
    ended = emptied(queue, 1000)
    good, bad = ended["good"], ended["bad"]
    assert isinstance(good, Result)
    assert len(good.outputs) == len(TEXTS)
    assert isinstance(bad, Error)
    assert "99999" in bad.message


def test_a_request_at_which_the_task_fails_fails_alone(
    run_of: RunOf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def outputs(run: Run, endpoint: str, inputs: Sequence[Any], options: Any) -> tuple[Any, int]:
        return [{"dog": 1}[each] for each in inputs], 0

    monkeypatch.setattr("addnorm.serve.input_queue.outputs_for", outputs)
    queue = InputQueue(Run.open(run_of("classification")))
    queue.add(Apply(name="good", endpoint="/classify", inputs=("dog", "dog")))
    queue.add(Apply(name="bad", endpoint="/classify", inputs=("dog", "cat"), field="rows"))
    ended = emptied(queue, 1000)
    assert isinstance(ended["good"], Result)
    assert ended["good"].outputs == (1, 1)
    assert ended["bad"] == Error(name="bad", message="rows: KeyError: 'cat'", kind="failed")
    assert "KeyError" in capsys.readouterr().err


def test_a_request_is_cancelled_between_steps_and_within(run_of: RunOf) -> None:
    queue = InputQueue(Run.open(run_of("classification")))
    for name in "abc":
        queue.add(Apply(name=name, endpoint="/classify", inputs=TEXTS))
    assert queue.step(6, lambda: None) == []
    queue.cancel("a")
    assert len(queue) == 2

    def cancel() -> None:
        assert queue.n_running > 0
        queue.cancel("b")

    assert [event.name for event in queue.step(1000, cancel)] == ["c"]
    assert not queue
    queue.add(Apply(name="d", endpoint="/classify", inputs=TEXTS))
    assert queue.step(1000, lambda: queue.cancel("d")) == []
    assert not queue


def test_the_end_of_the_engine_ends_a_step(run_of: RunOf) -> None:
    queue = InputQueue(Run.open(run_of("classification")))
    queue.add(Apply(name="a", endpoint="/classify", inputs=TEXTS))

    def end() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        queue.step(1000, end)


def test_requests_for_which_memory_lacks_are_dropped(
    run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("addnorm.serve.input_queue.outputs_for", too_large)
    queue = InputQueue(Run.open(run_of("classification")))
    for name in "ab":
        queue.add(Apply(name=name, endpoint="/classify", inputs=TEXTS))
    with pytest.raises(MemoryError):
        queue.step(1000, lambda: None)
    assert queue.drop_running() == ["a", "b"]
    assert not queue
