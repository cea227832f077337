"""The protocol of a task: what a task of someone else must define is said before data are read."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.tasks.counting import Counted, CountedConfig, CountHead, Counting

import addnorm as an
from addnorm.data import Corpus
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode
from addnorm.tasks.task import Evaluation, Task
from addnorm.tasks.whole_inputs import OfWholeInputs


class Nameless(Task):
    examples = (Counted,)
    metrics = ("loss",)

    def encode(self, examples: Any, tokenizers: Any, numbers: Any) -> Iterator[Any]:
        return iter(())


class WithoutExamples(Nameless):
    name = "counting"


del Nameless.examples


class WithoutEncode(Task):
    name = "counting"
    examples = (Counted,)


class WithoutTarget(OfWholeInputs):
    name = "counting"
    examples = (Counted,)


class WithoutScore(Counting):
    score = Task.score


class WithoutMetrics(Counting):
    metrics = ()


@dataclass(frozen=True)
class WithSettings(Counting):
    unit: str


@dataclass(frozen=True)
class HeadConfig:
    task: Any

    def build(self, d_model: int, n_outputs: int) -> CountHead:
        return CountHead(d_model)


@dataclass(frozen=True)
class Unread:
    def load(self) -> Corpus:
        raise AssertionError("data are read")


def config(task: Any) -> an.EncoderConfig:
    attention = an.AttentionConfig(n_heads=2)
    return an.EncoderConfig(d_model=16, n_layers=1, attention=attention, head=HeadConfig(task))


def train(task: Any, data: Any = None) -> an.Run:
    data = CountedConfig().load() if data is None else data
    options: Any = {"select": "best", "tokenizer": "char", "steps": 1, "progress": False}
    return an.train(config(task), data, **options)


@pytest.mark.parametrize(
    ("task", "missing"),
    [
        (Nameless, "name and examples"),
        (WithoutExamples, "examples"),
        (WithoutEncode, r"encode\(\)"),
        (WithoutTarget, r"with_target\(\)"),
        (WithoutScore, r"score\(\), which gives 'off'"),
        (WithoutMetrics, "metrics"),
    ],
)
def test_a_task_that_lacks_something_is_refused_before_data_are_read(
    task: type[Task], missing: str
) -> None:
    for given in (task, task()):
        expected = f"model.head: .*HeadConfig has the task {task.__name__} lacks {missing}: define"
        with pytest.raises(InputError, match=expected):
            train(given, Unread())


def test_a_task_with_settings_is_given_as_a_value() -> None:
    with pytest.raises(InputError, match=r"unit.*: give the task as a value"):
        train(WithSettings, Unread())
    assert train(WithSettings("words")).task == "counting"


class Skipping(Counting):
    def encode(self, examples: Any, tokenizers: Any, numbers: Any) -> Iterator[Any]:
        yield from list(super().encode(examples, tokenizers, numbers))[:-1]


class Misplacing(Counting):
    def encode(self, examples: Any, tokenizers: Any, numbers: Any) -> Iterator[Any]:
        for example in super().encode(examples, tokenizers, numbers):
            yield replace(example, index=0)


class OtherScores(Counting):
    def score(self, outputs: Any, split: Any, model: Any, n_written: int | None) -> Evaluation:
        return Evaluation({"of": 1.0})


class Unanswering(Counting):
    answers = Task.answers

    def score(self, outputs: Any, split: Any, model: Any, n_written: int | None) -> Evaluation:
        return Evaluation({"off": 1.0})


class AnsweringOne(Counting):
    def answers(self, head: Any, logits: Any, batch: Any, valid: Any) -> Any:
        return dict([*super().answers(head, logits, batch, valid).items()][:1])


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (AnsweringOne, r"AnsweringOne.answers\(\) answers for 1 of the \d+ examples of a batch"),
        (Skipping, r"Skipping.encode\(\) gives 31 of 32 examples"),
        (Misplacing, r"Misplacing.encode\(\) gives example 2 the index 0"),
        (OtherScores, r"eval.metric = 'off': OtherScores.score\(\) gives loss, of"),
    ],
)
def test_a_task_that_leaves_something_out_is_refused(task: type[Task], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        train(task)


def test_a_task_without_answers_predicts_nothing() -> None:
    run = train(Unanswering)
    assert run.evaluate(CountedConfig().load())["off"] == 1.0
    with pytest.raises(
        InputError, match=r"Unanswering lacks answers\(\), which predicts for each example"
    ):
        run.predict({"text": "a b"})


def test_a_direct_call_of_a_missing_method_says_so_too() -> None:
    corpus = Corpus([Counted("a b", 2)])
    tokenizers = train(Counting).tokenizers
    for task in (WithoutEncode(), WithoutTarget()):
        with pytest.raises(InputError, match=f"the task {type(task).__name__} lacks"):
            encode(corpus, tokenizers, task=task)


def test_the_former_name_of_a_call_warns() -> None:
    with pytest.warns(FutureWarning, match=r"Task\.command is now Task\.call"):
        type("Former", (Counting,), {"command": "addnorm predict"})
