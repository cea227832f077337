"""Entities in texts: neighbouring tokens or words of one tag, as `transformers` aggregates them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.data.ids.framing import around
from addnorm.errors import InputError, check_choice
from addnorm.nn.crf import CRFHead
from addnorm.nn.functional import at_least_float32
from addnorm.runs.inference.results import LineAnswer, TextPair
from addnorm.runs.inference.shortening import ids_as_shortened
from addnorm.runs.inference.text import batch_logits, check_use, classify_lines
from addnorm.runs.options import Aggregation, LabelOptions
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.span_extraction import offsets_of
from addnorm.tasks.tagging import Tagging

OUTSIDE = "O"


@dataclass(frozen=True)
class Entity:
    """The text of an entity, its place in characters, its label, and the mean probability."""

    label: str
    score: float
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class _Tagged:
    """The probability of each tag for a token or a word, and its place in the text."""

    probabilities: Float[Tensor, " tags"]
    start: int
    end: int


def entities(
    run: TrainedModel,
    texts: Sequence[str],
    aggregation: Aggregation,
    batch_size: int = 64,
    first: int = 0,
) -> list[list[Entity]]:
    """The entities of each text; `first` is the number of texts before these, for messages.

    Raises `InputError` for a model that tags no words, and for a CRF, which has no probability for
    a single token.
    """
    check_choice("aggregation", aggregation, get_args(Aggregation))
    check_use(run, Tagging, "finds no entities")
    if isinstance(run.model.head, CRFHead):
        raise InputError(f"{run.name}: a CRF tags whole words: leave `aggregation` out")
    return [
        entity
        for start in range(0, len(texts), batch_size)
        for entity in _of_batch(run, texts[start : start + batch_size], aggregation, first + start)
    ]


def answer_lines(
    run: TrainedModel,
    texts: Sequence[str] | Sequence[TextPair],
    first: int = 0,
    *,
    aggregation: Aggregation | None = None,
    **options: Unpack[LabelOptions],
) -> list[LineAnswer]:
    """Answer as `classify_lines` does, or with `aggregation` by entities, as `label: text`.

    Raises `InputError` as both do, and for options of labels where entities are named.
    """
    if aggregation is None:
        return classify_lines(run, texts, first, **options)
    if options:
        names = ", ".join(f"`{name}`" for name in options)
        raise InputError(f"`aggregation` is for the tags of words: leave out {names}")
    sentences = [text for text in texts if isinstance(text, str)]
    if len(sentences) < len(texts):
        raise InputError(f"{run.name}: a tagging model reads one sentence: give no pairs")
    return [
        LineAnswer(
            ", ".join(f"{entity.label}: {entity.text}" for entity in row),
            {"entities": [asdict(entity) for entity in row]},
        )
        for row in entities(run, sentences, aggregation, first=first)
    ]


@torch.inference_mode()
def _of_batch(
    run: TrainedModel, texts: Sequence[str], aggregation: Aggregation, first: int
) -> Iterator[list[Entity]]:
    before, after = around("tagging", run.tokenizers.source)
    read = [_read(run, text) for text in texts]
    rows = ids_as_shortened(run, [[*before, *ids, *after] for ids, _ in read])
    logits = at_least_float32(batch_logits(run, rows, first)).softmax(-1).cpu()
    for text, (ids, places), row, probabilities in zip(texts, read, rows, logits, strict=True):
        n = len(row) - len(before) - len(after)
        tokens = [
            _Tagged(probabilities[len(before) + i], *place) for i, place in enumerate(places[:n])
        ]
        if aggregation != "simple":
            begins = [
                _begins_word(run, id, text, *place) for id, place in zip(ids, places, strict=True)
            ]
            tokens = [_word(word, aggregation) for word in _words(tokens, begins)]
        yield [*_joined(text, tokens, run.labels)]


def _read(run: TrainedModel, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The ids of a text, and the character range of each."""
    ids, places = run.tokenizers.source.encode(text), offsets_of(run.tokenizers, text)
    if len(ids) != len(places):
        raise InputError(f"{run.name}: a text has the characters of a special token: {text!r:.80}")
    return ids, places


def _begins_word(run: TrainedModel, id: int, text: str, start: int, end: int) -> bool:
    """Whether a token begins a word: it has no prefix of continuation, or white space before it."""
    tokenizer = run.tokenizers.source
    if id == tokenizer.unk_id:
        return True
    if getattr(tokenizer.inner.model, "continuing_subword_prefix", None):
        return len(tokenizer.codec.name(id) or "") == end - start
    return start == 0 or any(map(str.isspace, text[start - 1 : start + 1]))


def _words(tokens: Sequence[_Tagged], begins: Sequence[bool]) -> list[list[_Tagged]]:
    words: list[list[_Tagged]] = []
    for token, is_first in zip(tokens, begins, strict=False):
        if is_first or not words:
            words.append([])
        words[-1].append(token)
    return words


def _word(tokens: Sequence[_Tagged], aggregation: Aggregation) -> _Tagged:
    match aggregation:
        case "average":
            probabilities = torch.stack([token.probabilities for token in tokens]).mean(0)
        case "max":
            probabilities = max(tokens, key=_certainty).probabilities
        case _:
            probabilities = tokens[0].probabilities
    return _Tagged(probabilities, tokens[0].start, tokens[-1].end)


def _certainty(token: _Tagged) -> float:
    return float(token.probabilities.max())


def _joined(text: str, tokens: Iterable[_Tagged], labels: Sequence[str]) -> Iterator[Entity]:
    """Merge neighbouring tokens of one label into entities; a tag with B- begins a new one."""
    groups: list[tuple[str, list[_Tagged]]] = []
    for token in tokens:
        tag = labels[int(token.probabilities.argmax())]
        label = tag[2:] if tag.startswith(("B-", "I-")) else tag
        if not groups or groups[-1][0] != label or tag.startswith("B-"):
            groups.append((label, []))
        groups[-1][1].append(token)
    for label, group in groups:
        if label != OUTSIDE:
            part = text[group[0].start : group[-1].end]
            start = group[0].start + len(part) - len(part.lstrip())
            score = sum(map(_certainty, group)) / len(group)
            yield Entity(label, score, part.strip(), start, start + len(part.strip()))
