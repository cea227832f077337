"""The interface of a custom task, checked where training, evaluation and use call it."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import isfunction, signature
from numbers import Real
from reprlib import repr as short
from typing import Any, TypeVar, get_args, get_type_hints

import torch
from torch import Tensor

from addnorm.arguments import problem_of_type
from addnorm.data.example import Example, check_kind
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.layout import Layout
from addnorm.errors import InputError

T = TypeVar("T")


def returned(task: object, method: str, value: object, due: str) -> InputError:
    """The error for a method of a task that returned something other than the value `due`."""
    name = task.__name__ if isinstance(task, type) else type(task).__name__
    return InputError(f"{name}.{method}() returns {short(value)}: {due}")


def checked(task: object, method: str, value: object, kind: type[T], due: str) -> T:
    """Return what a method of a task returned, checked for its type.

    Raises `InputError` for another type than `kind`.
    """
    if not isinstance(value, kind):
        raise returned(task, method, value, due)
    return value


def check_task(task: object, protocol: type) -> None:
    """Raise `InputError` for an attribute or method whose form differs from that in `protocol`."""
    kind, name = type(task), type(task).__name__
    hints = get_type_hints(protocol)
    for attribute in (name for name in hints if hasattr(kind, name)):
        hint, value = hints[attribute], getattr(task, attribute)
        if problem := _problem_of_attribute(attribute, get_args(hint)[0], value):
            raise InputError(f"{name}.{attribute} = {short(value)}: {problem}")
    for method, ours in vars(protocol).items():
        if not isfunction(ours) or getattr(kind, method) is ours:
            continue
        arguments = [*signature(ours).parameters][1:]
        try:
            signature(getattr(task, method)).bind(*arguments)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name}.{method}: {error}: AddNorm calls {method}({', '.join(arguments)})"
            ) from error


def _problem_of_attribute(name: str, hint: Any, value: Any) -> str:
    if name == "name" and value == "":
        return "must be a word"
    if name == "layout" and not isinstance(value, Layout):
        return "must be a layout, such as Layout() or PerToken()"
    if name != "examples":
        return problem_of_type(hint, value)
    if not isinstance(value, tuple) or not value:
        return "must be a tuple of kinds of examples, such as (MyExample,)"
    for kind in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(kind, type) or not issubclass(kind, Example):
            return f"{short(kind)} is not a subclass of Example"
        check_kind(kind)
    return ""


def checked_encodings(
    task: object, encodings: object, n: int, layout: Layout, vocab_size: int | None
) -> Iterator[Encoded]:
    """Yield the encodings of `n` examples that `encode` returns, checked. Raises `InputError` for
    anything else.

    `vocab_size` is None where no text is read.
    """
    if not isinstance(encodings, Iterable):
        raise returned(task, "encode", encodings, "it must yield an Encoded for each example")
    targets, values, count = list[int](), None, 0
    for count, encoded in enumerate(encodings, 1):  # pyright: ignore[reportUnknownVariableType]
        problem = (
            _problem_of_encoded(encoded, vocab_size)
            or layout.problem(encoded, targets)
            or _problem_of_values(encoded.values, values)
        )
        if problem:
            raise InputError(f"{type(task).__name__}.encode(), example {count}: {problem}")
        if encoded.index != count - 1:
            raise InputError(
                f"{type(task).__name__}.encode() gives example {count} the index {encoded.index}: "
                f"the index of an example is its place from 0, here {count - 1}"
            )
        targets = targets or encoded.targets
        values = encoded.values if values is None else values
        yield encoded
    if count != n:
        raise InputError(
            f"{type(task).__name__}.encode() gives {count} of {n} examples: give those with "
            "nothing to learn no targets, so that they are counted"
        )


def _problem_of_encoded(encoded: object, vocab_size: int | None) -> str:
    """Describe the problem with an example's ids; empty if there is none."""
    if not isinstance(encoded, Encoded):
        return f"{short(encoded)} is not an Encoded"
    for name in ("tokens", "targets", "types", "spans"):
        ids = getattr(encoded, name)
        if problem := _problem_of_ids(ids):
            return f"{name} = {short(ids)}: {problem}"
    if len(encoded.types) not in (0, len(encoded.tokens)):
        return f"{len(encoded.types)} types for {len(encoded.tokens)} tokens"
    if len(encoded.spans) not in (0, 4):
        return f"spans = {short(encoded.spans)}: give the starts and stops of two texts"
    if encoded.signal is not None or vocab_size is None:
        return ""
    return _problem_of_tokens(encoded.tokens, vocab_size)


def _problem_of_tokens(tokens: Sequence[int], vocab_size: int) -> str:
    if not tokens:
        return "no tokens: give the input at least one, such as its end"
    if min(tokens) >= 0 and max(tokens) < vocab_size:
        return ""
    wrong = next(i for i in tokens if not 0 <= i < vocab_size)
    return f"the token {wrong} is not one of the {vocab_size} of the tokenizer"


def _problem_of_ids(ids: object) -> str:
    if isinstance(ids, Tensor | str | bytes) or not isinstance(ids, Sequence):
        return "must be a list of integers"
    try:
        array("q", ids)  # pyright: ignore[reportUnknownArgumentType]
    except TypeError:
        return "must be a list of integers"
    except OverflowError:
        return "an integer of more than 64 bits"
    return ""


def _problem_of_values(values: object, others: Tensor | None) -> str:
    """Describe the problem with an example's numeric targets; empty if there is none."""
    if values is None:
        return ""
    if not isinstance(values, Tensor):
        return f"values = {short(values)}: must be a tensor"
    if not bool(torch.isfinite(values).all()):
        return f"values = {short(values.tolist())}: NaN or infinite"
    if others is not None and values.shape != others.shape:
        shapes = (tuple(values.shape), tuple(others.shape))
        return f"values of shape {shapes[0]}, and of another example {shapes[1]}"
    return ""


def check_answers(task: object, answers: object, indices: Sequence[int]) -> None:
    """Raise `InputError` unless there is an answer for each example of a batch and no other."""
    due = "return the prediction for each example by its index in batch.indices"
    if not isinstance(answers, Mapping):
        raise returned(task, "answers", answers, due)
    if set(answers) != set(indices):  # pyright: ignore[reportUnknownArgumentType]
        n = len(set(answers) & set(indices))  # pyright: ignore[reportUnknownArgumentType]
        raise InputError(
            f"{type(task).__name__}.answers() answers for {n} of the {len(indices)} examples of a "
            f"batch: {due}, and no others"
        )


def check_scores(task: object, scores: object, *, is_finite: bool) -> None:
    """Raise `InputError` unless each score is a number.

    NaN is refused where the loss is finite: an undefined score counts as 0.
    """
    if not isinstance(scores, Mapping):
        raise returned(task, "score", scores, "Evaluation({name: number}, {index: text})")
    for name, value in scores.items():  # pyright: ignore[reportUnknownVariableType]
        shown = f"{name!r} = {short(value)}"
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InputError(
                f"{type(task).__name__}.score() gives {shown}: give a number, such as float(x)"
            )
        if is_finite and math.isnan(value):
            raise InputError(
                f"{type(task).__name__}.score() gives {shown}: a score that is undefined counts "
                "as 0, or is left out"
            )
