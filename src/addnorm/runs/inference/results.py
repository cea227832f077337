"""Argument and result types of `Run`, and checks of arguments."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from os import PathLike, fspath
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, TypedDict, cast, overload

from jaxtyping import Float
from torch import Tensor

from addnorm.data import Corpus, DataConfig, DataPart
from addnorm.data.tokenizing.word_splitting import words_between_spaces
from addnorm.errors import InputError, choices
from addnorm.generate import DecodingConfig, Generated

FileName = str | PathLike[str]
"""The name of a file or a folder."""

Texts = list[str] | tuple[str, ...]
"""Several texts; a single string is one text."""

TextPair = tuple[str, str]
"""Two texts that a model reads together, such as a question and an answer."""

Several = Texts | list[TextPair]
"""Several texts, or several pairs of them in a list."""

Sentence = str | Sequence[str]
"""A sentence to tag: its words, or a string with spaces between them."""

Pooling = Literal["mean", "first", "last", "head"]
"""How hidden states are pooled into a text embedding."""


class DecodingOptions(TypedDict, total=False):
    """Decoding options as keyword arguments.

    `beams` searches (1 is greedy), and so do `length_penalty` and `early_stopping`, which say what
    the search ends with and when. `temperature` samples, dividing the logits, and `top_k`, `top_p`
    and `min_p` leave unlikely tokens out; `seed` says which numbers are drawn. In every decoding
    no sequence of `no_repeat_ngram` tokens comes twice, and a translation begins with the token
    `forced_bos`, by name or id. `n_best` is how many results of a beam search `Run.write` returns.
    """

    beams: int
    n_best: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    no_repeat_ngram: int
    forced_bos: str | int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


class ChatOptions(DecodingOptions, total=False):
    """Options of decoding, the most tokens of an answer, and strings before which it ends."""

    max_new_tokens: int | None
    stop: str | Sequence[str]


class TranslateOptions(DecodingOptions, total=False):
    """Options of decoding or a whole `decoding`, and the most tokens of a translation."""

    max_new_tokens: int | None
    decoding: DecodingConfig | None


class ClassifyOptions(TypedDict, total=False):
    """The batch size (default 64), and the probability threshold for labels (default 0.5).

    `first` is the number of texts before these, for messages about one of them.
    """

    batch_size: int
    first: int
    threshold: float


class ForecastOptions(TypedDict, total=False):
    """How many steps, the date that they begin at, and a table with what really came."""

    horizon: int | None
    until: str | None
    truth: Path | None


@dataclass(frozen=True, eq=False)
class Forecast:
    """What a model forecasts after a history, in units, with that history and the truth.

    NaN stands in the truth where it is not known.
    """

    names: tuple[str, ...]
    past_times: tuple[datetime, ...]
    times: tuple[datetime, ...]
    past: Float[Tensor, "variables look_back"]
    values: Float[Tensor, "variables horizon"]
    truth: Float[Tensor, "variables horizon"] | None = None


@dataclass(frozen=True)
class Classified:
    """The most probable class of a text, and the probability of every class.

    `labels` are the predicted labels: just the class or, in multi-label classification, all labels
    with a probability above the threshold.
    """

    label: str
    labels: tuple[str, ...]
    probabilities: dict[str, float]

    @classmethod
    def of(
        cls, labels: Sequence[str], row: Sequence[float], threshold: float | None = None
    ) -> "Classified":
        """From the probability of each label; with a `threshold`, all labels above it are right."""
        probabilities = dict(zip(labels, row, strict=True))
        best = max(probabilities, key=probabilities.__getitem__)
        if threshold is None:
            return cls(best, (best,), probabilities)
        above = tuple(label for label, p in probabilities.items() if p > threshold)
        return cls(best, above, probabilities)


@dataclass(frozen=True)
class Candidate:
    """A token that may stand at a mask, or the span of a denoiser, and its probability there."""

    token: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """A text with the most probable token at each mask, and the candidates for each, best first.

    A denoiser has one for each, its span, and none for a gap that it left out; and no list at all
    where its decoder says the whole text.
    """

    text: str
    masks: list[tuple[Candidate, ...]]


Written = Generated
"""A generated text, by its name in earlier versions."""


@overload
def listed(texts: object, name: str = "texts") -> list[str]: ...
@overload
def listed(
    texts: object, name: str = "texts", *, pairs: Literal[True]
) -> list[str] | list[TextPair]: ...
def listed(
    texts: object, name: str = "texts", *, pairs: bool = False
) -> list[str] | list[TextPair]:
    """A text as a list of one, several as a list; or a list of `pairs`, tuples of two strings.

    Raises `InputError` for what is no text, and for a pair among single texts.
    """
    found = _items(texts, name)
    paired = pairs and isinstance(texts, list) and all(isinstance(one, tuple) for one in found)
    for i, one in enumerate(found):
        if paired and [*map(type, one)] != [str, str]:
            raise InputError(f"{name}[{i}] = {short(one)} is not a pair of strings")
        if not paired and not isinstance(one, str):
            raise InputError(f"{name}[{i}] = {short(one)} is not a string")
    return found


def one_text(text: object) -> str:
    """Return the text. Raises `InputError` for anything but a string."""
    if not isinstance(text, str):
        raise InputError(f"text = {short(text)}: give one text, a string")
    return text


def words_of(sentences: object) -> list[list[str]]:
    """The words of one or several sentences. Raises `InputError` for anything else."""
    return [
        words_between_spaces(one) if isinstance(one, str) else listed(one, f"sentences[{i}]")
        for i, one in enumerate(_items(sentences, "sentences"))
    ]


def path_of(given: object) -> Path:
    """Convert the argument to a path. Raises `InputError` for anything else."""
    if not isinstance(given, str | PathLike):
        raise InputError(f"{short(given)} is not a path: give a string or a Path")
    return Path(fspath(cast(PathLike[str], given)))


def check_data(data: object) -> None:
    """Raise `InputError` for anything but a corpus or a data configuration."""
    if not isinstance(data, Corpus | DataPart):
        raise InputError(
            f"data = {short(data)}: give what addnorm.text, pairs, labelled, tagged or table "
            "return, such as addnorm.text([text])"
        )


def corpus_of(data: Corpus | DataConfig) -> Corpus:
    """Load the corpus. Raises `InputError` as `check_data` does."""
    check_data(data)
    return data if isinstance(data, Corpus) else data.load()


def check_choice(name: str, given: object, valid: Sequence[str]) -> None:
    """Raise `InputError`, suggesting the nearest `valid` word, unless one of them was given."""
    if given not in valid:
        raise InputError(f"{name} = {short(given)} does not exist.{choices(str(given), valid)}")


def _items(given: Any, name: str) -> list[Any]:
    if isinstance(given, str):
        return [given]
    if isinstance(given, bytes | Mapping | Set) or not isinstance(given, Iterable):
        raise InputError(f"{name} = {short(given)}: give a string or a list of strings")
    return list(cast(Iterable[Any], given))
