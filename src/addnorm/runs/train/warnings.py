"""Warnings before training about settings that are probably mistakes, with their remedies."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any, cast, get_args

import torch
import xxhash

from addnorm.data import Corpus
from addnorm.data.batches.buckets import Buckets, Images, Loader, Packed, Windows
from addnorm.data.batches.sharded import ShardRows
from addnorm.data.example import PROPERTIES, Example, has_signals
from addnorm.data.example_columns import source_texts
from addnorm.data.ids.compact import Compact
from addnorm.data.readers.text_files import TextConfig
from addnorm.data.shards.source import ShardedTexts
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.models.layers import LayerPositionConfig
from addnorm.models.transformer import POSITIONED
from addnorm.nn.linear import multiplies_natively
from addnorm.nn.positions import NoPositionConfig
from addnorm.parts import kind_of
from addnorm.runs.encoded_data import EncodedData
from addnorm.runs.recipes.recipe import Recipe
from addnorm.tasks.contract import checked
from addnorm.tasks.eval_config import WRITING, EvalConfig
from addnorm.tasks.task import Task
from addnorm.training.precision import resolve_device
from addnorm.training.settings import TrainConfig

LONG = 2**20
"""Characters of a line or paragraph at which it is more likely several."""


def warnings_for(
    recipe: Recipe, data: EncodedData, train: Loader[Any], learnt: Tokenizers | None
) -> list[str]:
    """Return a sentence for each setting that is probably a mistake.

    `learnt` are the tokenizers, if they were learnt for this run.
    """
    return [
        *_precision(recipe),
        *_r_drop(recipe),
        *_writing(recipe, data.task),
        *_vocabulary(recipe, learnt),
        *_positions(recipe),
        *_batches(recipe, train),
        *_stages(recipe),
        *settings_without_effect(recipe.train, len(train), validates=len(data.encoded.valid) > 0),
        *_of_task(recipe, data),
        *_never_learnt(data.corpus),
        *_in_train_too(data),
        *_single_lines(recipe, data),
    ]


def _precision(recipe: Recipe) -> Iterator[str]:
    """Warn of a floating-point type that this processor only emulates."""
    device = resolve_device(recipe.train.device)
    if recipe.train.precision == "bfloat16" and not multiplies_natively(torch.bfloat16, device):
        yield (
            "train.precision = 'bfloat16': this processor has no instructions for it, and "
            "emulation takes several times as long: 'auto' takes float32 here"
        )


def _writing(recipe: Recipe, task: Task) -> Iterator[str]:
    """Warn of decoding settings if evaluation decodes no text."""
    defaults = EvalConfig()
    unused = [name for name in WRITING if getattr(recipe.eval, name) != getattr(defaults, name)]
    if task.decodes:  # `generate` does
        unused = [name for name in unused if name != "decoding"]
    if unused and not task.written_metrics:
        names = " and ".join(f"eval.{name}" for name in unused)
        what = task.name.replace("_", " ")
        yield f"{names}: for generated texts, and the evaluation of {what} has none: leave it out"


def _r_drop(recipe: Recipe) -> Iterator[str]:
    """Warn of R-Drop without dropout, whose two passes would be equal."""
    if recipe.train.r_drop and not any(_dropped(asdict(recipe.model))):
        yield (
            f"train.r_drop = {recipe.train.r_drop}: this model has no dropout, so both passes are "
            "the same: give model.dropout, or leave train.r_drop out"
        )


def _dropped(settings: Any) -> Iterator[bool]:
    """Yield whether each dropout rate in nested settings is above zero."""
    if isinstance(settings, dict):
        for name, value in cast(dict[str, Any], settings).items():
            yield "drop" in name and bool(value)
            yield from _dropped(value)
    elif isinstance(settings, list | tuple):
        for value in cast(Sequence[Any], settings):
            yield from _dropped(value)


def _vocabulary(recipe: Recipe, learnt: Tokenizers | None) -> Iterator[str]:
    """Warn of a vocabulary that is smaller than an explicit `vocab_size`."""
    size = getattr(recipe.tokenizer, "vocab_size", None)
    if learnt is None or not isinstance(size, int) or size == _usual_size(recipe.tokenizer):
        return
    for side in dict.fromkeys((learnt.source, learnt.target)):
        if side.vocab_size < 0.9 * size:
            frequency = getattr(recipe.tokenizer, "min_frequency", 1)
            lower = ", or tokenizer.min_frequency = 1" if frequency > 1 else ""
            yield (
                f"tokenizer.vocab_size = {size:,}, but the training text gives only "
                f"{side.vocab_size:,}: give more text{lower}, or a smaller vocab_size"
            )


def _usual_size(tokenizer: Any) -> Any:
    return getattr(type(tokenizer), "vocab_size", None)


def _positions(recipe: Recipe) -> Iterator[str]:
    """Warn of a position encoding that acts in attention if no layer has attention."""
    position, stacks = recipe.model.position, recipe.model.stacks.values()
    layers = [layer for stack in stacks for layer in stack]
    acts_in_attention = tuple(get_args(get_args(LayerPositionConfig)[0])[:-1])
    attends = any(isinstance(layer.attention, POSITIONED) for layer in layers)
    if attends or not layers or isinstance(position, NoPositionConfig):
        return
    if isinstance(position, acts_in_attention):
        mixers = " and ".join(dict.fromkeys(kind_of(layer.attention) for layer in layers))
        yield (
            f"model.position = {kind_of(position)} has no effect: it acts in attention, and the "
            f"layers are {mixers}: take 'none', or 'learned' or 'sinusoidal', which act before "
            "the layers"
        )


def _batches(recipe: Recipe, train: Loader[Any]) -> Iterator[str]:
    """Warn of windows and batches that are larger than the data."""
    if problem := _too_large(train):
        yield f"train.batching.{problem}"
    elif recipe.train.accumulate > len(train):
        yield (
            f"train.accumulate = {recipe.train.accumulate}: an epoch has {len(train)} batches, so "
            "each step sees all of the data: lower it, or make batches smaller"
        )


MOST_IDLE = 1 / 3
"""The share of a step in which stages may wait without a warning."""


def _stages(recipe: Recipe) -> Iterator[str]:
    """Warn of a pipeline with few batches in a step, since many processes would wait."""
    plan, n = recipe.parallel, recipe.train.accumulate
    idle = plan.idle(n)
    if idle > MOST_IDLE:
        enough = 4 * plan.pipeline
        yield (
            f"train.accumulate = {n}: each of {plan.pipeline} processes of a pipeline waits for "
            f"{idle:.0%} of a step, while its first batches enter and its last leave: give "
            f"accumulate = {enough}, with smaller batches, to wait for {plan.idle(enough):.0%}"
        )


def _too_large(train: Loader[Any]) -> str | None:
    """Return a message on batches or windows larger than the data; None if there are none."""
    match train:
        case Windows(n_tokens=n, seq_len=length) | ShardRows(n_tokens=n, seq_len=length) if (
            length > n
        ):
            return (
                f"seq_len = {length:,}: the training text has only {n:,} tokens: lower it, or give "
                "more text"
            )
        case (
            Windows(n_tokens=n, seq_len=length, batch_size=size)
            | ShardRows(n_tokens=n, seq_len=length, batch_size=size)
        ) if size * length > n:
            return (
                f"batch_size = {size:,}: a batch of windows of {length:,} tokens is larger than "
                f"the training text of {n:,} tokens, so each step sees all of it: lower it, or "
                "seq_len"
            )
        case Packed(seq_len=length, pieces=pieces) if length > max(pieces.tokens.lengths.sum(), 1):
            return (
                f"seq_len = {length:,}: all documents have {pieces.tokens.lengths.sum():,} tokens, "
                "so one row holds them, and the rest is padding: lower it, or give more text"
            )
        case Packed(batch_size=size) | Images(batch_size=size):
            [first, *more] = train.plan(0)
            if not more and size > len(first):
                what = "rows" if isinstance(train, Packed) else "training examples"
                return (
                    f"batch_size = {size:,}: there are {len(first):,} {what}, so each step sees "
                    "all of them: lower it"
                )
        case Buckets(tokens=tokens, widths=widths):
            if len(train) == 1 and (len(widths) + 1) * widths.max() <= tokens:
                return (
                    f"tokens = {tokens:,}: one batch holds all {len(widths):,} training examples, "
                    f"{widths.sum():,} tokens, so each step sees all of them: lower it"
                )
        case _:
            pass
    return None


def _of_task(recipe: Recipe, data: EncodedData) -> Iterator[str]:
    """Warn of the problems that the task finds in the data, such as labels that are numbers."""
    if data.corpus is not None:
        sentences = data.task.warnings(data.corpus, getattr(recipe.data, "label", None))
        yield from checked(data.task, "warnings", sentences, Iterable, "yield a sentence for each")


def _never_learnt(corpus: Corpus | None) -> Iterator[str]:
    """Warn of labels whose examples were all held out for validation."""
    if corpus is None or not corpus.labels:
        return
    learnt = {label for example in corpus.train for label in example.target_labels()}
    missing = [label for label in corpus.labels if label not in learnt]
    if learnt and missing:  # the names of numbers are in no example
        others = f", nor any of {len(missing) - 1} others" if missing[1:] else ""
        yield (
            f"no training example has the label {missing[0]!r}{others}: all such examples were "
            "held out for validation: give more of them, or lower data.valid_fraction"
        )


def _in_train_too(data: EncodedData) -> Iterator[str]:
    """Warn of validation or test examples that are also in training."""
    encoded = data.encoded
    measured = [split for split in ("valid", "test") if len(encoded.splits[split])]
    if not measured or not (learnt := {*_inputs(data, "train")}):
        return
    what = PROPERTIES[encoded.medium].plural
    for split in measured:
        inputs = _inputs(data, split)
        if same := [i for i, read in enumerate(inputs, 1) if read in learnt]:
            yield (
                f"{split}: {len(same):,} of {len(inputs):,} {what} are in train too, "
                f"such as number {same[0]:,}: scores on them do not hold for new ones"
            )


def _inputs(data: EncodedData, split: str) -> Sequence[Hashable]:
    """Return each example's texts, or the digest of its input; for plain texts, of their ids."""
    corpus, encoded = data.corpus, data.encoded.splits[split]
    if isinstance(encoded, ShardedTexts):  # of any size: `addnorm tokenize` compares documents
        return []
    if corpus is None:
        assert isinstance(encoded, Compact)
        return [*map(xxhash.xxh3_128_hexdigest, map(bytes, encoded.tokens.arrays()))]
    kind = corpus.kind
    if (
        kind.digest is Example.digest
        and kind.words is Example.words
        and not has_signals(corpus.medium)
    ):
        examples = corpus.splits[split]
        if kind.second_text is Example.second_text:
            return source_texts(examples)
        return [(example.source_text(), example.second_text()) for example in examples]
    digests = (example.digest() for example in corpus.splits[split])
    return corpus.pieces.get(split) or [*filter(None, digests)]


def _single_lines(recipe: Recipe, data: EncodedData) -> Iterator[str]:
    """Warn of a large file that was read as a single line or paragraph."""
    unit = recipe.data.unit if isinstance(recipe.data, TextConfig) else "line"
    if unit == "file":
        return
    end = "a line ends with a line feed" if unit == "line" else "an empty line ends a paragraph"
    for split, texts in data.encoded.splits.items():
        if len(texts) == 1 and (n := _characters(data, split)) >= LONG:
            yield f"{split}: the text is a single {unit} of {n:,} characters: {end}"


def _characters(data: EncodedData, split: str) -> int:
    """Return the number of characters of a split's first text; 0 for an image."""
    if data.corpus is None:
        return int(data.encoded.characters[split][0])
    return 0 if data.tokenizers is None else len(data.corpus.splits[split][0].source_text())


def size_of(characters: int, tokens: int) -> str:
    """Describe the size of a side of the data."""
    return f"{characters:,} characters, {tokens:,} tokens"


def settings_without_effect(
    config: TrainConfig, n_batches: int, *, validates: bool
) -> Iterator[str]:
    """Yield a sentence on each setting without effect in a run of so few steps or validations.

    An epoch has `n_batches`.
    """
    per_epoch, steps = config.steps_per_epoch(n_batches), config.total_steps(n_batches)
    n_saved = _times(config.save_every or per_epoch, steps)
    n_validated = _times(config.validate_every or per_epoch, steps) if validates else 0
    warmup = getattr(config.schedule, "warmup", 0)
    if isinstance(warmup, int) and warmup >= max(steps, 2):
        yield (
            f"train.schedule.warmup = {warmup:,}: the run has {steps:,} steps, so the learning "
            "rate is still rising at its end: lower it"
        )
    if config.patience is not None and n_validated and config.patience >= n_validated - 1:
        yield (
            f"train.patience = {config.patience}: the run has {n_validated} validations, so it "
            "never stops early: lower it, or train.validate_every"
        )
    if config.average > n_saved:
        yield (
            f"train.average = {config.average}: the run saves {n_saved} checkpoints, so the mean "
            "is of those: lower it, or train.save_every"
        )
    if config.ema is not None and (1 - config.ema) * steps < 1:
        yield (
            f"train.ema = {config.ema:g}: an average over more steps than the {steps:,} of the "
            f"run, in which its decay rises to {(1 + steps) / (10 + steps):.3g} at most: lower it"
        )
    if config.select == "best" and n_validated == 1:
        yield (
            "train.select = 'best': the run validates once, at its end, so the last weights are "
            "the best: lower train.validate_every"
        )
    yield from _intervals(config, steps, validates=validates)


def _intervals(config: TrainConfig, steps: int, *, validates: bool) -> Iterator[str]:
    """Warn of intervals longer than the run, and of one between validations without data."""
    if config.validate_every is not None and not validates:
        yield (
            f"train.validate_every = {config.validate_every:,}: there are no validation data: "
            "give data.valid or data.valid_fraction, or leave it out"
        )
    for name, what in (("validate_every", "validates"), ("save_every", "saves")):
        every = getattr(config, name)
        if every is not None and every > steps and (validates or name == "save_every"):
            yield (
                f"train.{name} = {every:,}: the run has {steps:,} steps, so it {what} once, at "
                "its end: lower it, or leave it out"
            )


def _times(every: int, steps: int) -> int:
    """Return how often something occurs that is due every `every` steps and at the end."""
    return ceil(steps / every)
