"""Using a trained model on new text: write, translate, classify, tag."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from pydantic import ValidationError
from torch import Tensor

from addnorm.data.encoding import as_read, words_as_read
from addnorm.errors import InputError
from addnorm.generate import (
    BeamConfig,
    CompiledContinuation,
    CompiledTranslation,
    Continuation,
    DecodingConfig,
    Generated,
    GreedyConfig,
    SampleConfig,
    TextDecoder,
    generate,
    stream,
    translate,
)
from addnorm.generate.next_token import positions_for
from addnorm.models import DecoderModel, EncoderDecoderModel, EncoderModel
from addnorm.runs.folder import Run

Compiled = CompiledContinuation | CompiledTranslation

NEW_TOKENS = 256
"""How much a language model writes where nothing else is said."""


@dataclass(frozen=True)
class Written:
    """One text that a model wrote, its log-probability, and why it ended there."""

    text: str
    score: float
    finished: str


def decoding_for(
    run: Run,
    *,
    beams: int | None = None,
    n_best: int = 1,
    seed: int = 0,
    **sampling: float | int | None,
) -> DecodingConfig:
    """The decoding that a few options ask for; without any, the run's own, or sampling for a
    language model.

    Raises `InputError` for an option out of its range, and for beams together with sampling.
    """
    sampled = {name: value for name, value in sampling.items() if value is not None}
    searched = beams is not None or n_best != 1
    if searched and sampled:
        raise InputError(
            f"beam search does not sample: leave out {', '.join(sampled)}, or beams and n_best"
        )
    try:
        if beams == 1 == n_best:
            return GreedyConfig()
        if searched:
            return BeamConfig(beams=max(n_best, 5) if beams is None else beams, n_best=n_best)
        if run.task == "language" or sampled:
            return SampleConfig(seed=seed, **sampled)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"]))
        problem = first["msg"].removeprefix("Value error, ")
        raise InputError(
            f"{option} = {first['input']}: {problem}" if option else problem
        ) from error
    return run.recipe.eval.decoding


def write(
    run: Run,
    texts: Sequence[str],
    decoding: DecodingConfig,
    *,
    max_new_tokens: int | None = None,
    stop: Sequence[str] = (),
    first: int = 0,
    compiled: Compiled | None = None,
) -> list[list[Written]]:
    """Continue or translate each text; for each, the best first.

    The translation of a blank text is empty; a language model begins a text of its own there.
    `first` is the number of texts that came before these: messages and samples count from it.
    `compiled` writes in the model's place. Raises `InputError` where the model cannot write, or a
    text cannot be read.
    """
    target = run.tokenizers.target
    text_decoder = TextDecoder(target, stop)
    match run.model:
        case DecoderModel() as model:
            encoded = as_read("language", run.tokenizers.source, texts)
            check_lengths(model, encoded, first)
            found = generate(
                compiled if isinstance(compiled, CompiledContinuation) else model,
                encoded,
                later(decoding, first),
                max_new_tokens=NEW_TOKENS if max_new_tokens is None else max_new_tokens,
                eos_id=target.eos_ids,
                start_id=target.bos_id,
                text_decoder=text_decoder,
            )
        case EncoderDecoderModel() as model:
            filled = [i for i, text in enumerate(texts) if text.strip()]
            encoded = as_read("translation", run.tokenizers.source, texts)
            check_lengths(model, encoded, first)
            some = translate(
                compiled if isinstance(compiled, CompiledTranslation) else model,
                [encoded[i] for i in filled],
                later(decoding, first),
                max_new_tokens=max_new_tokens,
                bos_id=target.bos_id,
                eos_id=target.eos_ids,
                text_decoder=text_decoder,
            )
            blank = [Generated(ids=(), score=0.0, finished="eos")]
            by_place = dict(zip(filled, some, strict=True))
            found = [by_place.get(i, blank) for i in range(len(texts))]
        case EncoderModel():
            raise InputError(
                f"{run.folder}: a {run.task} model writes no text: use `addnorm classify`"
            )
    return [[Written(g.text, g.score, g.finished) for g in best] for best in found]


def as_lines(best: Sequence[Written], n_best: int) -> list[str]:
    """A line for each text, and empty ones up to `n_best`."""
    return [one_line(one.text) for one in best] + [""] * (n_best - len(best))


def as_json(best: Sequence[Written], number: int) -> list[str]:
    """A line of JSON for each text, with the number of the input that it is for."""
    return [json.dumps({"input": number, **asdict(one)}, ensure_ascii=False) for one in best]


def one_line(text: str) -> str:
    r"""The text with its line breaks written as `\n` and `\r`."""
    return text.replace("\n", "\\n").replace("\r", "\\r")


def later(decoding: DecodingConfig, first: int) -> DecodingConfig:
    """The decoding for texts that others came before: samples do not repeat theirs."""
    if isinstance(decoding, SampleConfig) and first:
        return replace(decoding, seed=decoding.seed + (first << 32))
    return decoding


def write_as_it_comes(
    run: Run,
    text: str,
    decoding: GreedyConfig | SampleConfig,
    *,
    max_new_tokens: int | None = None,
    stop: Sequence[str] = (),
    compiled: Compiled | None = None,
) -> Iterator[str]:
    """The continuation of one text, in pieces as soon as they are certain.

    Raises `InputError` where the model is not a language model, or cannot read the text.
    """
    if not isinstance(run.model, DecoderModel):
        raise InputError(f"{run.folder}: only a language model streams: this one is for {run.task}")
    [prompt] = as_read("language", run.tokenizers.source, [text])
    target = run.tokenizers.target
    return stream(
        compiled if isinstance(compiled, CompiledContinuation) else Continuation(run.model),
        prompt or [target.bos_id],
        decoding,
        max_new_tokens=NEW_TOKENS if max_new_tokens is None else max_new_tokens,
        text_decoder=TextDecoder(target, stop),
        eos_id=target.eos_ids,
    )


def compiled(run: Run, decoding: DecodingConfig, *, several: bool) -> Compiled:
    """The run's model with its step compiled, for one text at a time or for `several`.

    Raises `InputError` where that cannot be.
    """
    beams = decoding.beams if decoding.kind == "beam" else 1
    match run.model:
        case DecoderModel() as model:
            return CompiledContinuation(model, several=several or beams > 1)
        case EncoderDecoderModel() as model:
            target = run.tokenizers.target
            return CompiledTranslation(
                model, target.bos_id, several=several, beams=beams, never=target.never_ids
            )
        case _:
            raise InputError(
                f"{run.folder}: only a model that writes text compiles: this is for {run.task}"
            )


@dataclass(frozen=True)
class Classified:
    """The likeliest class of a text, and the probability of every class."""

    label: str
    probabilities: dict[str, float]


def classify(
    run: Run, texts: Sequence[str], batch_size: int = 64, first: int = 0
) -> list[Classified]:
    """The class of each text; `first` texts came before. Raises `InputError` as `tag` does."""
    check_use(run, "classification", "does not classify texts")
    results: list[Classified] = []
    for start in range(0, len(texts), batch_size):
        ids = as_read(run.task, run.tokenizers.source, texts[start : start + batch_size])
        for row in _logits(run, ids, first + start).softmax(-1).tolist():
            by_label: dict[str, float] = dict(zip(run.labels, row, strict=True))
            results.append(Classified(max(by_label, key=by_label.__getitem__), by_label))
    return results


def tag(
    run: Run, sentences: Sequence[Sequence[str]], batch_size: int = 64, first: int = 0
) -> list[list[str]]:
    """The tag of each word of each sentence; `first` sentences came before.

    Raises `InputError` where the model is for something else, or a sentence is too long for it.
    """
    check_use(run, "tagging", "does not tag words")
    results: list[list[str]] = []
    for start in range(0, len(sentences), batch_size):
        some = sentences[start : start + batch_size]
        read = [words_as_read(run.tokenizers.source, words) for words in some]
        best = _logits(run, [ids for ids, _ in read], first + start).argmax(-1).tolist()
        for row, (_, places) in zip(best, read, strict=True):
            results.append([run.labels[row[place]] for place in places])
    return results


def check_use(run: Run, task: str, cannot: str) -> None:
    """Raise `InputError` unless the run is for the task."""
    if run.task != task:
        use = "addnorm generate" if run.task in ("language", "translation") else "addnorm classify"
        raise InputError(f"{run.folder}: a {run.task} model {cannot}: use `{use}`")


def check_lengths(
    model: DecoderModel | EncoderModel | EncoderDecoderModel,
    encoded: Sequence[Sequence[int]],
    first: int,
) -> None:
    """Raise `InputError` for the first text that has more tokens than the model has positions."""
    embed = model.source_embed if isinstance(model, EncoderDecoderModel) else model.embed
    for number, ids in enumerate(encoded, start=first + 1):
        positions_for(embed, number, ids)


@torch.inference_mode()
def _logits(run: Run, ids: Sequence[list[int]], first: int) -> Tensor:
    model = run.model
    check_lengths(model, ids, first)
    width = max(len(row) for row in ids)
    pad = run.tokenizers.source.pad_id
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in ids])
    lengths = torch.tensor([len(row) for row in ids])
    return model(tokens, torch.arange(width) < lengths[:, None])
