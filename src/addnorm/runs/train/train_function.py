"""`addnorm.train`: train a model from Python, by default without a run folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, Signature, signature
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from rich.console import Console

from addnorm.arguments import LARGEST, check_types, known_keywords
from addnorm.config import hints_of
from addnorm.data import Corpus, DataConfig, Text, medium_of
from addnorm.data.batches.buckets import (
    MaskedConfig,
    WindowsConfig,
    batching_of,
)
from addnorm.data.example import has_signals
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer, TokenizerConfig
from addnorm.errors import InputError, Interrupted, path_of
from addnorm.models import DecoderConfig, EncoderConfig, ModelConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.runs.files.folder import Saved, is_run
from addnorm.runs.files.lock import locked
from addnorm.runs.inference.results import check_data, corpus_of
from addnorm.runs.recipes.recipe import Recipe, check_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import TrainingSetup, fit
from addnorm.tasks.eval_config import EvalConfig
from addnorm.training.callbacks import Callback, check_callbacks
from addnorm.training.loggers import LOG
from addnorm.training.progress import tell
from addnorm.training.settings import TrainConfig

F = TypeVar("F", bound=Callable[..., object])


def _with_fields_of_training(function: F) -> F:
    """Replace a function's `options` in its signature by the fields of `TrainConfig`.

    Without their types, which are unions of whole families.
    """
    *named, _ = signature(function).parameters.values()
    fields = signature(TrainConfig).parameters.values()
    options = [field.replace(annotation=Parameter.empty) for field in fields]
    function.__signature__ = Signature([*named, *options])  # pyright: ignore[reportFunctionMemberAccess]
    return function


@known_keywords
@_with_fields_of_training
def train(
    config: "ModelConfig",
    data: "DataConfig | Corpus",
    *,
    tokenizer: "TokenizerConfig | Tokenizer | Tokenizers | str | None" = None,
    folder: str | PathLike[str] | None = None,
    evaluation: EvalConfig | None = None,
    progress: bool = True,
    callbacks: "Sequence[Callback]" = (),
    **options: Any,
) -> Run:
    """Train a model and return it, ready to use, as `addnorm train` does with a recipe.

    `addnorm.train(addnorm.DecoderConfig(d_model=128), addnorm.text("play.txt"), tokenizer="char",
    steps=500)`.

    Raises `InputError` naming what is wrong and the nearest valid name; `NonFiniteError` if the
    loss is not finite; after Ctrl-C `Interrupted`, or `KeyboardInterrupt` without a folder.

    Parameters
    ----------
    config
        The model: `DecoderConfig` for text, `EncoderDecoderConfig` for pairs, `EncoderConfig` with
        a head for classes or tags.
    data
        From `addnorm.text`, `pairs`, `labelled`, `tagged` or `table`, or any data of a recipe.
    tokenizer
        How to learn a tokenizer from the training data, `"char"`, `"word"` or `"bpe"` or their
        configurations; or one that is there already, such as `run.tokenizers`. Images have none,
        and with `start` it is that of the folder.
    folder
        Where to keep the run, with its checkpoints and its journal. By default nothing is kept:
        what training writes on the way is removed at its end.
    evaluation
        How validation is scored.
    progress
        Whether to show how training goes, on standard error.
    callbacks
        Objects with any of `on_step(event)`, `on_validation(event)` and `on_save(event)`, which get
        a `StepEvent`, a `ValidationEvent` and a `SaveEvent`. An exception in one ends training with
        its own traceback; the checkpoints stay. They change no random number of training.
    options
        Every field of `TrainConfig`: one of `steps` and `epochs`, and `lr`, `batching`, `seed`,
        `device`, `precision`, `start` (a folder whose weights to begin with) … `batching` is by
        default windows of at most 256 tokens for language models, masked segments of at most
        128 for masked ones.
    """
    check_data(data)
    callbacks = check_callbacks(callbacks)
    settings = TrainConfig(**_checked(options, config, data))
    if folder is None and settings.loggers:
        raise InputError("a logger needs a run folder, by which it knows the run: give folder=")
    if isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizers(tokenizer, tokenizer)
    ready = tokenizer if isinstance(tokenizer, Tokenizers) else None
    learnt = {"kind": tokenizer} if isinstance(tokenizer, str) else tokenizer
    # A recipe says how to train a tokenizer, so it cannot contain an existing one or its data.
    corpus = corpus_of(data) if ready else data
    recipe = check_recipe(
        {
            "data": None if isinstance(corpus, Corpus) else corpus,
            "tokenizer": None if ready else learnt,
            "model": config,
            "train": settings,
            "eval": evaluation or EvalConfig(),
        },
        lambda _: "train()",
        from_file=False,
    )
    given = corpus if isinstance(corpus, Corpus) else None
    if given is not None:
        _check_tokenizer(recipe, given, ready)
    saved = Saved(recipe, ready, given.labels) if ready and given else None
    console = Console(stderr=True, highlight=False, quiet=not progress)
    setup = TrainingSetup(recipe, saved, given, console)
    setup.report(console)
    tell(console, setup.parameters)
    if folder is not None:
        run = _kept(setup, path_of(folder), console, callbacks)
    else:
        run = _in_memory(setup, console, callbacks)
    return replace(run, corpus=given)


def _checked(options: Mapping[str, Any], config: ModelConfig, data: object) -> dict[str, Any]:
    """The options as fields of `TrainConfig`, with the task's default batching."""
    fields: dict[str, Any] = dict(options)
    hints = hints_of(TrainConfig)
    check_types(hints, {k: v for k, v in fields.items() if isinstance(v, bool)})
    if "batching" in fields:
        return fields | {"batching": _joined(fields["batching"], data)}
    if isinstance(config, DecoderConfig):
        windows = WindowsConfig(seq_len=min(256, config.max_len))
        fields["batching"] = _joined(windows, data)
    else:
        medium = data.medium if isinstance(data, Corpus) else medium_of(data)
        if isinstance(config, EncoderConfig) and isinstance(config.head, TokenHeadConfig):
            fields["batching"] = MaskedConfig(seq_len=min(128, config.max_len))
        if medium is not None and has_signals(medium):
            fields["batching"] = batching_of(medium)
    return fields


def _joined(batching: Any, data: object) -> Any:
    """The batching, with joined windows if the corpus is one text without boundaries."""
    one_text = isinstance(data, Corpus) and len(data.train) == 1 and isinstance(data.train[0], Text)
    if one_text and isinstance(batching, WindowsConfig):
        return replace(batching, documents="joined")
    return batching


def _check_tokenizer(recipe: Recipe, corpus: Corpus, ready: Tokenizers | None) -> None:
    """Raise `InputError` for text without a tokenizer, and for a tokenizer without text."""
    given = ready is not None or recipe.tokenizer is not None or recipe.train.has_tokens
    if not corpus.has_text and given:
        raise InputError(f"{corpus.medium} have no tokenizer: leave it out")
    if corpus.has_text and not given:
        raise InputError('text needs a tokenizer: give tokenizer="char", "word" or "bpe"')


def _kept(
    setup: TrainingSetup, folder: Path, console: Console, callbacks: Sequence[Callback]
) -> Run:
    """Train in a permanent run folder, which can be opened and resumed."""
    with locked(folder):
        if is_run(folder):
            raise InputError(f"{folder}: is there already: choose another folder")
        setup.write_settings(folder)
        return fit(setup, folder, console, callbacks=callbacks)


def _in_memory(setup: TrainingSetup, console: Console, callbacks: Sequence[Callback]) -> Run:
    """Train in a temporary folder, with as few checkpoints as possible."""
    settings = setup.recipe.train
    if settings.save_every is None and not settings.average:
        only_the_last = replace(settings, save_every=LARGEST - 1)
        setup.recipe = replace(setup.recipe, train=only_the_last)
    try:
        with TemporaryDirectory(prefix="addnorm-") as folder:
            run = fit(setup, Path(folder), console, callbacks=callbacks)
            log = (Path(folder) / LOG).read_bytes()
    except Interrupted as stopped:
        message = f"stopped after step {stopped.step}; nothing is kept without folder="
        raise KeyboardInterrupt(message) from stopped
    recipe = replace(run.recipe, train=settings)
    return replace(run, folder=None, recipe=recipe, bases=setup.bases, log=log)
