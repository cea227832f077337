"""Exceptions (user errors, diverging training, interruption), and checks of arguments.

`import addnorm` reads this file, so what only a message needs is imported with the message.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from importlib import import_module
from os import PathLike, fsencode, fspath
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, cast, overload


class InputError(ValueError):
    """Invalid input; the message says what is wrong, where, and what would be valid.

    The command line prints only the message and exits with status 2; any exception not defined in
    this file is a bug in AddNorm and keeps its traceback.
    """


class TextError(InputError):
    """A text that a model cannot read; other texts of the same call may be valid."""


def refuse(error: InputError) -> None:
    """Raise the error: the default way to handle a bad file or line, unless it is skipped."""
    raise error


class IgnoredSettings(UserWarning):
    """Settings in a file are ignored; the message names the file and the keys."""


class Shortened(UserWarning):
    """A text is longer than training allowed; the message names the model and the length."""


class UnknownCharacters(UserWarning):
    """Characters of texts are read as the unknown token; the message names and counts them."""


class MissingOperator(UserWarning):
    """One of our operators cannot be built; the message has the reason and the fallback."""


class Unfinished(UserWarning):
    """A text that follows a grammar reached its length limit before it was complete."""


class Stopped(UserWarning):
    """A run is used although unfinished; the message names the step and how to resume."""


def print_warnings() -> None:
    """Print our warnings on standard error as plain lines, without code locations."""
    show = warnings.showwarning
    warnings.showwarning = lambda message, category, *place: (
        print(f"addnorm: {message}", file=sys.stderr)
        if issubclass(
            category,
            IgnoredSettings
            | MissingOperator
            | Shortened
            | Stopped
            | Unfinished
            | UnknownCharacters,
        )
        else show(message, category, *place)
    )


class NonFiniteError(ArithmeticError):
    """A loss or gradient is not finite; the update was not applied."""


class RankLostError(Exception):
    """One of the processes that train together has ended; the message says which, and when.

    If it was `seen` by the launcher that started all, that says so, and how it ended; `reported` is
    whether this process has printed the message.
    """

    def __init__(self, message: str, *, seen: bool = False, reported: bool = False) -> None:
        super().__init__(message)
        self.seen, self.reported = seen, reported


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
        """Return the constructor's arguments, so that other processes can unpickle it."""
        return Interrupted, (self.step, self.saved)


def optional(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional dependency.

    Raises `InputError` if it is not installed, with `what` needs it and the extra to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"{what} needs an extra package: pip install 'addnorm[{extra}]'"
        ) from error


_FUNCTIONS = """
    celu elu gelu_10 gelu_accurate gelu_fast glu hardshrink hardsigmoid hardswish hardtanh laplace
    leaky_relu linear logsigmoid mish prelu quick_gelu relu6 rrelu selu sin softmax softplus
    softsign tanh xielu
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""Activation functions of other libraries, for which no similar name is suggested."""


ALIASES: dict[str, tuple[str, ...]] = {
    # parts of models
    "rope": ("rotary",),
    "prenorm": ("pre",),
    "pre_norm": ("pre",),
    "pre_ln": ("pre",),
    "postnorm": ("post",),
    "post_norm": ("post",),
    "post_ln": ("post",),
    "rnn": ("recurrent",),
    "lstm": ("recurrent",),
    "gru": ("recurrent",),
    "cnn": ("convolution",),
    "deltanet": ("gated_delta",),
    "gated_deltanet": ("gated_delta",),
    "kda": ("gated_delta",),
    "lfm2": ("gated_convolution",),
    "mamba": ("mamba2",),
    "ssm": ("mamba2",),
    "swiglu": ("gated",),
    "geglu": ("gated",),
    "gpt": ("decoder",),
    "bert": ("encoder",),
    "seq2seq": ("encoder_decoder",),
    "gate": ("output",),
    # devices and types of numbers
    "gpu": ("cuda",),
    "nvidia": ("cuda",),
    "metal": ("mps",),
    "apple": ("mps",),
    "fp32": ("float32",),
    "float": ("float32",),
    "single": ("float32",),
    "fp16": ("float16",),
    "half": ("float16",),
    "bf16": ("bfloat16",),
    "fp64": ("float64",),
    "double": ("float64",),
    "8": ("int8",),
    "8bit": ("int8",),
    "4": ("int4",),
    "4bit": ("int4",),
    "nf4": ("int4",),
    # forms of files
    "pytorch": ("hf",),
    "torch": ("hf",),
    "pt": ("hf",),
    "safetensors": ("hf",),
    "transformers": ("hf",),
    "huggingface": ("hf",),
    "hugging_face": ("hf",),
    "onnxruntime": ("onnx",),
    "ort": ("onnx",),
    "ct2": ("ctranslate2",),
    "ggml": ("gguf",),
    "llamacpp": ("gguf",),
    "llama.cpp": ("gguf",),
    ".txt": (".jsonl", ".csv", ".svg"),
    ".json": (".jsonl",),
    ".csv": (".jsonl",),
    ".tsv": (".jsonl", ".csv"),
    ".npz": (".npy",),
    ".pt": (".safetensors",),
    ".pth": (".safetensors",),
    ".bin": (".safetensors",),
    ".jpg": (".png",),
    ".jpeg": (".png",),
    ".gif": (".png",),
    ".webp": (".png",),
    ".eps": (".pdf",),
    ".ps": (".pdf",),
    ".html": (".svg",),
    # choices
    "max": ("minmax", "mean"),
    "avg": ("mean",),
    "average": ("mean",),
    "cls": ("first",),
    "bos": ("first",),
    "eos": ("last",),
    "pooler": ("head",),
    "val": ("valid",),
    "dev": ("valid",),
    "validation": ("valid",),
    "eval": ("valid",),
    "strict": ("stop",),
    "raise": ("stop",),
    "ignore": ("skip",),
    "flop": ("flops",),
    "compute": ("flops",),
    "params": ("parameters",),
    "size": ("parameters",),
    "grad": ("gradients",),
    "rtn": ("nearest",),
    "round": ("nearest",),
    "yes": ("true",),
    "no": ("false",),
    # fields
    "learning_rate": ("lr", "train.lr"),
    "hidden_size": ("d_model", "model.d_model"),
    "num_hidden_layers": ("n_layers", "model.n_layers"),
    "num_beams": ("beams", "eval.decoding.beams"),
    "max_length": ("max_new_tokens", "model.max_len"),
    "output": ("out",),
}
"""Other libraries' names, and common words, for names of ours; the likeliest meaning first."""


def with_article(words: str) -> str:
    """The words with `a` or `an` before them."""
    return f"{'an' if words[:1].lower() in 'aeiou' else 'a'} {words}"


def nearest(name: str, valid: Iterable[str], spell: Callable[[str], str] = repr) -> str:
    """The hint `Did you mean ...?` with the valid name closest to `name`, or an empty string.

    A name is close if it differs in at most a third of its letters, shares its beginning, or has
    the same words among others. Parts that both names share at an end do not count.
    """
    match = closest(name, valid)
    return "" if match is None else f" Did you mean {spell(match)}?"


def choices(name: str, valid: Iterable[str], spell: Callable[[str], str] = repr) -> str:
    """The hint of `nearest`, followed by the valid names; only the first ones if there are many."""
    valid = list(valid)
    return f"{nearest(name, valid, spell)} Valid: {some_of(valid)}."


def some_of(names: Iterable[str], most: int = 24) -> str:
    """Comma-separated names; of more than `most`, the first ones and the number of others."""
    names = list(names)
    few = names if len(names) <= most else names[: most - 4]
    more = len(names) - len(few)
    return ", ".join(few) + (f" and {more} more" if more else "")


def closest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name closest to `name`; None if none is close (see `nearest`)."""
    from difflib import get_close_matches

    valid = list(valid)
    key = _key(name)
    if not key or key in FUNCTIONS:
        return None
    keys = {_key(name): name for name in reversed(valid)}
    for other in ALIASES.get(key, ()) if name not in valid else ():
        if other in keys:
            return keys[other]
    if "." not in key:
        keys |= {_key(name).rpartition(".")[2]: name for name in reversed(valid)} | keys
    matches = get_close_matches(key, keys, n=20, cutoff=0.5)
    return next((keys[match] for match in matches if _is_close(key, match)), None)


def _key(name: str) -> str:
    """A name in lower case, with hyphens as underscores and without an option's dashes."""
    return name.lower().lstrip("-").replace("-", "_")


def _is_close(name: str, other: str) -> bool:
    """Whether two names are close enough to be confused, apart from the parts that they share."""
    if min(len(name), len(other)) >= 3 and (name.startswith(other) or other.startswith(name)):
        return True
    ours, theirs = name.split("."), other.split(".")
    for end in (-1, 0):
        while min(len(ours), len(theirs)) > 1 and ours[end] == theirs[end]:
            del ours[end], theirs[end]
    name, other = ".".join(ours), ".".join(theirs)
    short, long = sorted((name, other), key=len)
    same = next(
        (i for i, pair in enumerate(zip(short, long, strict=False)) if len({*pair}) > 1), len(short)
    )
    begins = same >= 4 and 3 * same >= 2 * len(short)
    words = {*short.split("_")} <= {*long.split("_")} and len(short) > 1
    return begins or words or _edits(name, other) <= (len(long) + 1) // 3


def _edits(name: str, other: str) -> int:
    """The number of letters inserted, deleted, replaced, or swapped with the next one."""
    before, row = [], [*range(len(other) + 1)]
    for i, a in enumerate(name, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and (a, b) == (other[j - 2], name[i - 2]):
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


@overload
def listed(texts: object, name: str = "texts") -> list[str]: ...
@overload
def listed(
    texts: object, name: str = "texts", *, pairs: Literal[True]
) -> list[str] | list[tuple[str, str]]: ...
def listed(
    texts: object, name: str = "texts", *, pairs: bool = False
) -> list[str] | list[tuple[str, str]]:
    """Return a list: of one text, of several texts, or of `pairs`, tuples of two strings.

    Raises `InputError` for anything but texts, and for a pair among single texts.
    """
    items = items_of(texts, name)
    paired = pairs and isinstance(texts, list) and all(isinstance(item, tuple) for item in items)
    for i, item in enumerate(items):
        if paired and [*map(type, item)] != [str, str]:
            raise InputError(f"{name}[{i}] = {short(item)} is not a pair of strings")
        if not paired and not isinstance(item, str):
            raise InputError(f"{name}[{i}] = {short(item)} is not a string")
    return items


def one_text(text: object) -> str:
    """Return the argument, which must be one text.

    Raises `InputError` for anything but a string.
    """
    if not isinstance(text, str):
        raise InputError(f"text = {short(text)}: give one text, a string")
    return text


def path_of(given: object) -> Path:
    """Convert the argument to a path. Raises `InputError` for anything else."""
    if not isinstance(given, str | PathLike):
        raise InputError(f"{short(given)} is not a path: give a string or a Path")
    text: str | bytes = fspath(cast(PathLike[Any], given))
    try:
        is_path = isinstance(text, str) and text != "" and b"\0" not in fsencode(text)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise InputError(f"{short(given)} is not a path: no file has this name")
    return Path(cast(str, text))


def in_json(value: object, most: int = 100) -> str:
    """A value as JSON spells it: `true`, `null`, strings in double quotes; its first characters."""
    from json import dumps

    return dumps(value, ensure_ascii=False, default=repr, skipkeys=True)[:most]


def check_choice(name: str, given: object, valid: Sequence[str]) -> None:
    """Raise `InputError`, suggesting the nearest, unless the word is among the `valid` ones."""
    if given not in valid:
        raise InputError(f"{name} = {short(given)} does not exist.{choices(str(given), valid)}")


def items_of(given: Any, name: str) -> list[Any]:
    """Return a list: a string becomes a list of one. Raises `InputError` otherwise."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, bytes | Mapping | Set) or not isinstance(given, Iterable):
        raise InputError(f"{name} = {short(given)}: give a string or a list of strings")
    return list(cast(Iterable[Any], given))
