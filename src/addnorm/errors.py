"""Exceptions: user errors, diverging training, and interruption.

`import addnorm` reads this file, so what only a message needs is imported with the message.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_args

P = ParamSpec("P")
T = TypeVar("T")


class InputError(ValueError):
    """Invalid input; the message says what is wrong, where, and what would be valid.

    The command line prints only the message and exits with status 2; any exception not defined in
    this file is a bug in AddNorm and keeps its traceback.
    """


class TextError(InputError):
    """A text that a model cannot read: other texts, and the rest of what was asked, may be fine."""


class NotFollowed(UserWarning):
    """Settings in a file are ignored; the message names the file and the keys."""


class NonFiniteError(ArithmeticError):
    """A loss or gradient is not finite; the update was not applied."""


class Interrupted(Exception):
    """Training was interrupted after `step`; everything up to `saved` is on disk."""

    def __init__(self, step: int, saved: int | None = None) -> None:
        self.step, self.saved = step, step if saved is None else saved
        first = self.saved + 1
        lost = f"steps {first} to {step} are lost" if step > first else f"step {step} is lost"
        super().__init__(
            f"stopped at once: {lost}, saved is everything up to step {self.saved}"
            if step > self.saved
            else f"stopped after step {step}, which is saved"
        )

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[int, int]]:
        """Be the same in another process, where the message alone would make no error."""
        return Interrupted, (self.step, self.saved)


_FUNCTIONS = """
    celu elu gelu_10 gelu_accurate gelu_fast glu hardshrink hardsigmoid hardswish hardtanh laplace
    leaky_relu linear logsigmoid mish prelu quick_gelu relu6 rrelu selu sin softmax softplus
    softsign tanh xielu
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""Activation functions of other libraries, for which no similar name is suggested."""


OTHER_NAMES = {
    "rope": "rotary",
    "prenorm": "pre",
    "pre_norm": "pre",
    "pre_ln": "pre",
    "postnorm": "post",
    "post_norm": "post",
    "post_ln": "post",
    "rnn": "recurrent",
    "lstm": "recurrent",
    "gru": "recurrent",
    "cnn": "convolution",
    "swiglu": "gated",
    "geglu": "gated",
    "gpt": "decoder",
    "bert": "encoder",
    "seq2seq": "encoder_decoder",
    "gate": "output",
}
"""What people also call what has another name here."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """The hint `Did you mean ...?` with the valid name closest to `name`, or an empty string."""
    from difflib import get_close_matches

    valid = list(valid)
    if name.lower() in FUNCTIONS:
        return ""
    if (other := OTHER_NAMES.get(name.lower())) in valid and name not in valid:
        return f" Did you mean {other!r}?"
    matches = get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def known_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap `function` to raise `InputError`, with the nearest name, for an unknown keyword."""

    @wraps(function)
    def call(*args: P.args, **values: P.kwargs) -> T:
        valid = _keywords(function) if values else []
        for name in values:
            if name not in valid:
                raise InputError(
                    f"{function.__name__}() has no argument {name}.{nearest(name, valid)} "
                    f"Valid: {', '.join(valid)}."
                )
        return function(*args, **values)

    return call


def _keywords(function: Callable[..., Any]) -> list[str]:
    """The argument names of a function, including those of `**options: Unpack[...]`."""
    from inspect import Parameter, signature

    found: list[str] = []
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            [options] = get_args(parameter.annotation)
            found += options.__annotations__
        elif name not in ("self", "cls"):
            found.append(name)
    return found
