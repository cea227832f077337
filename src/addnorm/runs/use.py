"""Using a trained model on new text: write, translate, classify, tag."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from pydantic import ValidationError

from addnorm.data.encoding import as_read, words_as_read
from addnorm.errors import InputError
from addnorm.generate import (
    BeamConfig,
    Continuation,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
    Writer,
    generate,
    stream,
    translate,
)
from addnorm.models import DecoderModel, EncoderDecoderModel, EncoderModel
from addnorm.runs.folder import Run


@dataclass(frozen=True)
class Written:
    """One text that a model wrote, its log-probability, and why it ended there."""

    text: str
    score: float
    finished: str


def decoding_for(
    run: Run, *, beams: int | None = None, n_best: int = 1, **sampling: float | int | None
) -> DecodingConfig:
    """The decoding that a few options ask for; without any, the run's own, or sampling for a
    language model.

    Raises `InputError` for an option out of its range.
    """
    sampled = {k: v for k, v in sampling.items() if v is not None}
    try:
        if beams is not None or n_best > 1:
            return BeamConfig(beams=beams or max(n_best, 5), n_best=n_best)
        if run.task == "language" or sampled.keys() - {"seed"}:
            return SampleConfig(**sampled)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(key) for key in first["loc"]) or "decoding"
        raise InputError(f"{name} = {first['input']!r}: {first['msg']}") from error
    return run.recipe.eval.decoding


def write(
    run: Run,
    texts: Sequence[str],
    decoding: DecodingConfig,
    *,
    max_new_tokens: int | None = None,
    stop: Sequence[str] = (),
) -> list[list[Written]]:
    """Continue or translate each text; for each, the best first.

    Raises `InputError` where the model cannot write, or a text cannot be read.
    """
    writer = Writer(run.tokenizers.target, stop)
    encoded = as_read(run.task, run.tokenizers.source, texts)
    match run.model:
        case DecoderModel() as model:
            found = generate(
                model, encoded, decoding, max_new_tokens=max_new_tokens or 256, writer=writer
            )
        case EncoderDecoderModel() as model:
            found = translate(
                model, encoded, decoding, max_new_tokens=max_new_tokens, writer=writer
            )
        case EncoderModel():
            raise InputError(f"{run.folder}: a {run.task} model writes no text: use `addnorm classify`")
    return [[Written(g.text, g.score, g.finished) for g in best] for best in found]


def write_as_it_comes(
    run: Run,
    text: str,
    decoding: GreedyConfig | SampleConfig,
    *,
    max_new_tokens: int | None = None,
    stop: Sequence[str] = (),
) -> Iterator[str]:
    """The continuation of one text, in pieces as soon as they are certain."""
    if not isinstance(run.model, DecoderModel):
        raise InputError(f"{run.folder}: only a language model streams: this one is for {run.task}")
    [prompt] = as_read("language", run.tokenizers.source, [text])
    return stream(
        Continuation(run.model),
        prompt,
        decoding,
        max_new_tokens=max_new_tokens or 256,
        writer=Writer(run.tokenizers.target, stop),
    )


@dataclass(frozen=True)
class Classified:
    """The likeliest class of a text, and the probability of every class."""

    label: str
    probabilities: dict[str, float]


def classify(run: Run, texts: Sequence[str], batch_size: int = 64) -> list[Classified]:
    """The class of each text. Raises `InputError` where the model is no classifier."""
    if run.task != "classification":
        raise InputError(f"{run.folder}: a {run.task} model does not classify texts")
    results: list[Classified] = []
    for first in range(0, len(texts), batch_size):
        ids = as_read(run.task, run.tokenizers.source, texts[first : first + batch_size])
        for row in _logits(run, ids).softmax(-1).tolist():
            by_label = dict(zip(run.labels, row, strict=True))
            results.append(Classified(max(by_label, key=by_label.__getitem__), by_label))
    return results


def tag(run: Run, sentences: Sequence[Sequence[str]], batch_size: int = 64) -> list[list[str]]:
    """The tag of each word of each sentence. Raises `InputError` where the model is no tagger."""
    if run.task != "tagging":
        raise InputError(f"{run.folder}: a {run.task} model does not tag words")
    results: list[list[str]] = []
    for start in range(0, len(sentences), batch_size):
        read = [words_as_read(run.tokenizers.source, s) for s in sentences[start : start + batch_size]]
        best = _logits(run, [ids for ids, _ in read]).argmax(-1)
        for row, (_, first) in zip(best, read, strict=True):
            results.append([run.labels[i] for i in row[first].tolist()])
    return results


@torch.inference_mode()
def _logits(run: Run, ids: Sequence[list[int]]) -> torch.Tensor:
    width = max(len(row) for row in ids)
    lengths = torch.tensor([len(row) for row in ids])
    tokens = torch.tensor([row + [run.tokenizers.source.pad_id] * (width - len(row)) for row in ids])
    return run.model(tokens, torch.arange(width) < lengths[:, None])
