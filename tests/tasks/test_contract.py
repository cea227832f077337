"""What a custom task returns wrongly is one message: its method, what came, what is due."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from tests.tasks.counting import Counted, CountedConfig, CountHead, Counting
from torch import Tensor, nn

import addnorm as an
from addnorm.data import Corpus, Example
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.layout import Layout, PerToken
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode
from addnorm.runs.inference.predictions import as_json
from addnorm.tasks.registry import task_named
from addnorm.tasks.task import Evaluation, Task

CORPUS = CountedConfig(n=12).load()


@dataclass(frozen=True)
class Config:
    task: Any
    head: type[nn.Module] = CountHead

    def build(self, d_model: int, n_outputs: int) -> nn.Module:
        return self.head(d_model)


@dataclass(frozen=True)
class JointConfig(Config):
    joint_loss: ClassVar[bool] = True


def train(head: Any, corpus: Corpus = CORPUS) -> an.Run:
    attention = an.AttentionConfig(n_heads=2)
    config = an.EncoderConfig(d_model=16, n_layers=1, attention=attention, head=head)
    options: Any = {"tokenizer": "char", "steps": 1, "progress": False}
    return an.train(config, corpus, **options)


def changed(**attributes: Any) -> Task:
    """A task that counts words, apart from these attributes."""
    return type("Mine", (Counting,), attributes)()


@dataclass(frozen=True)
class NoField(Counted):
    targets = ("m",)


@dataclass(frozen=True)
class NoTuple(Counted):
    targets = "n"  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True)
class NoTask(Example):
    text: str


class NoDataclass(Example):
    task = "counting"


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"name": 3}, "Mine.name = 3: must be a string"),
        ({"name": ""}, "Mine.name = '': must be a word"),
        ({"metrics": "off"}, "Mine.metrics = 'off': must be a list or a tuple"),
        ({"metrics": (1,)}, r"Mine.metrics = \(1,\): each must be a string"),
        ({"lower_is_better": "off"}, "Mine.lower_is_better = 'off': must be a list"),
        ({"labels": "yes"}, "Mine.labels = 'yes': must be true or false"),
        ({"layout": "per_token"}, "Mine.layout = 'per_token': must be a layout, such as"),
        ({"layout": PerToken}, "Mine.layout = <class .*: must be a layout, such as Layout"),
        ({"examples": Counted}, "Mine.examples = <class .*: must be a tuple of kinds"),
        ({"examples": [Counted]}, "Mine.examples = .*: must be a tuple of kinds"),
        ({"examples": ()}, "Mine.examples = .*: must be a tuple of kinds"),
        ({"examples": (int,)}, "Mine.examples = .*: <class 'int'> is not a subclass of Example"),
        ({"examples": (NoField,)}, "NoField.targets has 'm', which is not a field"),
        ({"examples": (NoTuple,)}, "NoTuple.targets = 'n': must be a tuple of names of fields"),
        ({"examples": (NoTask,)}, "NoTask names no task: give the class task"),
        ({"examples": (NoDataclass,)}, "NoDataclass is not a dataclass"),
        (
            {"answers": lambda self, logits: {}},
            r"Mine.answers: too many .*: AddNorm calls answers\(head, logits, batch, valid\)",
        ),
        ({"encode": lambda self: ()}, r"Mine.encode: .*calls encode\(examples, tokenizers, numb"),
        ({"correct": 3}, "Mine.correct: 3 is not a callable object"),
    ],
)
def test_a_wrong_attribute_is_refused_where_a_head_names_the_task(
    attributes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        task_named(changed(**attributes))


def changing(**fields: Any) -> Callable[..., Iterator[Encoded]]:
    """The encoding of `Counting` with other fields; a function makes one from its place."""

    def encode(self: Any, *arguments: Any) -> Iterator[Encoded]:
        for n, encoded in enumerate(Counting.encode(self, *arguments)):
            yield replace(encoded, **{k: v(n) if callable(v) else v for k, v in fields.items()})

    return encode


@pytest.mark.parametrize(
    ("encode_", "expected"),
    [
        (lambda *_: None, r"Mine.encode\(\) returns None: it must yield an Encoded for each"),
        (lambda *_: [[1, 2]], r"Mine.encode\(\), example 1: \[1, 2\] is not an Encoded"),
        (changing(targets=3), "example 1: targets = 3: must be a list of integers"),
        (changing(targets=None), "example 1: targets = None: must be a list of integers"),
        (changing(targets=[0.5]), r"example 1: targets = \[0.5\]: must be a list of integers"),
        (changing(targets="a"), "example 1: targets = 'a': must be a list of integers"),
        (changing(targets=[2**63]), r"targets = \[9223372036854775808\]: an integer of more"),
        (changing(targets=torch.tensor([1])), "targets = tensor.*: must be a list of integers"),
        (changing(targets=lambda n: [1] * (1 + n % 2)), "example 2: 2 targets, and another ex.* 1"),
        (changing(tokens=[]), "example 1: no tokens"),
        (changing(tokens=[9999]), r"example 1: the token 9999 is not one of the \d+ of the tok"),
        (changing(tokens=[-1]), "example 1: the token -1 is not one"),
        (changing(types=[0]), r"example 1: 1 types for \d+ tokens"),
        (changing(spans=[0]), "example 1: spans = .*: give the starts and stops of two texts"),
        (changing(values=[1.0]), "example 1: values = .*: must be a tensor"),
        (changing(values=torch.tensor([torch.nan])), "example 1: values = .*: NaN or infinite"),
        (
            changing(values=lambda n: torch.zeros(1 + n % 2)),
            r"example 2: values of shape \(2,\), and of another example \(1,\)",
        ),
    ],
)
def test_a_wrong_encoding_is_refused_with_its_example(
    encode_: Callable[..., Any], expected: str
) -> None:
    tokenizers = Tokenizers.train(CharConfig(), CORPUS)
    with pytest.raises(InputError, match=expected):
        encode(CORPUS, tokenizers, task=changed(encode=encode_))


def test_a_layout_knows_how_many_targets_are_right() -> None:
    two = Encoded(0, [5, 6, 7], [1, 2])
    assert "2 targets for 3 tokens" in PerToken().problem(two, ())
    assert Layout().problem(two, ()) == Layout().problem(two, [3, 4]) == ""
    assert Layout().problem(replace(two, targets=[]), [3]) == ""
    tokenizers = Tokenizers.train(CharConfig(), CORPUS)
    wrong = changed(layout=PerToken(), encode=changing(targets=[1], values=None))
    with pytest.raises(InputError, match=r"example 1: 1 targets for \d+ tokens"):
        encode(CORPUS, tokenizers, task=wrong)


def scoring(value: object) -> dict[str, Any]:
    return {"score": lambda *_: Evaluation({"off": value})}  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"answers": lambda *_: None}, r"Mine.answers\(\) returns None: return the prediction"),
        ({"answers": lambda *_: [1.0]}, r"Mine.answers\(\) returns \[1.0\]"),
        ({"answers": lambda *_: {}}, r"Mine.answers\(\) answers for 0 of the 4 examples"),
        ({"answers": lambda *_: {99: 1}}, r"Mine.answers\(\) answers for 0 of the 4"),
        ({"answers": Task.answers}, r"the task Mine lacks answers\(\), which predicts for each"),
        ({"correct": lambda *_: None}, r"Mine.correct\(\) returns None: return how many"),
        ({"score": lambda *_: None}, r"Mine.score\(\) returns None: return Evaluation"),
        ({"score": lambda *_: {"off": 1.0}}, r"Mine.score\(\) returns {'off': 1.0}"),
        (scoring(torch.tensor(1.0)), r"Mine.score\(\) gives 'off' = tensor\(1.\): give a number"),
        (scoring("good"), r"Mine.score\(\) gives 'off' = 'good': give a number"),
        (scoring(True), r"Mine.score\(\) gives 'off' = True: give a number"),
        (scoring(torch.nan), r"Mine.score\(\) gives 'off' = nan: a score that is undefined"),
        ({"for_model": lambda *_: None}, r"Mine.for_model\(\) returns None: return the task"),
        ({"with_batching": lambda *_: None}, r"Mine.with_batching\(\) returns None"),
        ({"warnings": lambda *_: None}, r"Mine.warnings\(\) returns None: yield a sentence"),
        ({"measured_with": lambda *_: None}, r"Mine.measured_with\(\) returns None"),
    ],
)
def test_a_wrong_result_of_a_method_is_refused(attributes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        train(Config(changed(**attributes)))


def test_a_score_may_be_infinite_and_nan_only_where_the_loss_is_not_finite() -> None:
    run = train(Config(changed(**scoring(torch.inf))))
    assert run.evaluate(CORPUS)["off"] == torch.inf
    nan = train(Config(changed(**scoring(1.0))))
    object.__setattr__(nan.task_value, "score", lambda *_: Evaluation({"off": torch.nan}))
    with pytest.raises(InputError, match="'off' = nan"):
        nan.evaluate(CORPUS)
    with torch.no_grad():
        nan.model.head.proj.bias.fill_(torch.nan)  # pyright: ignore
    assert nan.evaluate(CORPUS)["off"] != nan.evaluate(CORPUS)["off"]


def test_a_result_that_json_cannot_hold_is_refused() -> None:
    for result in (torch.zeros(1), {"n": {1}}, {(1, 2): 3}):
        with pytest.raises(InputError, match="cannot be written as JSON: let result"):
            as_json(result)


def loss_of(loss_sum: Any) -> type[nn.Module]:
    return type("MyHead", (CountHead,), {"loss_sum": loss_sum})


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (loss_of(lambda self, o, t, v: None), r"MyHead.loss_sum\(\) returns None: return the loss"),
        (loss_of(lambda self, o, t, v: 1.0), r"MyHead.loss_sum\(\) returns 1.0: return the loss"),
        (loss_of(lambda self, o, t, v: o), r"loss_sum\(\) returns a tensor of shape \(\d, 1\)"),
        (loss_of(lambda self, o, t, v: o.detach().sum()), "returns a tensor without a gradient"),
        (
            loss_of(lambda self, o, t: o.sum()),
            r"MyHead.loss_sum: too many .*: AddNorm calls loss_sum\(outputs, targets, valid\)",
        ),
        (CountHead, r"JointConfig has joint_loss = True, and CountHead lacks loss_sum\(outputs"),
    ],
)
def test_a_wrong_loss_of_a_head_is_refused(head: type[nn.Module], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        train(JointConfig(Counting, head))


class Wide(CountHead):
    def forward(self, x: Tensor, ctx: Any) -> Tensor:
        return super().forward(x, ctx).repeat(1, 3)

    def loss_sum(self, outputs: Tensor, targets: Tensor, valid: Any) -> Tensor:
        return outputs.sum()


def test_a_forgotten_joint_loss_is_named_where_a_head_has_a_loss() -> None:
    task = changed(labels=True)
    labelled = replace(CORPUS, train=CORPUS.train)
    with pytest.raises(InputError, match=r"must give .*any shape with joint_loss = True in"):
        an.EncoderConfig(d_model=16, n_layers=1, head=Config(task, Wide)).build(9, n_labels=2)
    assert train(JointConfig(Counting, Wide), labelled).task == "counting"


@dataclass(frozen=True)
class Other(Counted):
    pass


def test_other_examples_of_an_equal_task_are_named_by_their_kinds() -> None:
    task = changed(examples=(NoField,))
    with pytest.raises(InputError, match=r"NoField.targets"):
        train(Config(task))
    with pytest.raises(
        InputError, match=r"the data are Counted examples for counting: give .* Othe"
    ):
        train(Config(changed(examples=(Other,))))
