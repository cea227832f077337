"""Reading and encoding the data of a recipe, with its tokenizers and labels."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from rich.console import Console

from addnorm.data import Corpus
from addnorm.data.encoding import EncodedCorpus, Tokenizers, encode
from addnorm.data.stored import Show, TextFiles, TextStore, can_keep
from addnorm.runs.folder import Saved, read_settings
from addnorm.runs.metrics import entity_scores, transcription_scores
from addnorm.runs.recipe import Recipe, task_of
from addnorm.runs.task import check_corpus
from addnorm.train.progress import text_progress


@dataclass(frozen=True)
class EncodedData:
    """Encoded data, with the tokenizers and labels that define the ids.

    `corpus` has the examples themselves, which evaluation compares with; a language model's are in
    `encoded` alone.
    """

    corpus: Corpus | None
    encoded: EncodedCorpus
    tokenizers: Tokenizers | None
    labels: tuple[str, ...]


def read_data(
    recipe: Recipe,
    saved: Saved | None = None,
    corpus: Corpus | None = None,
    console: Console | None = None,
) -> EncodedData:
    """Read the data of a recipe, or a `corpus` in their place, and encode them.

    With `saved`, tokenizers and labels are those of a run, else learnt from the data. Of large
    files of text, what was made of them before is taken from the folder of caches. Raises
    `InputError` for data that cannot be read, and such as the model is not for.
    """
    tokenizers = _known(recipe, saved)
    learnt = None if saved or tokenizers else recipe.tokenizer
    if corpus is None and task_of(recipe) == "language" and can_keep(recipe.data):
        say, show = _told(console or Console(quiet=True))
        store = TextStore(cast(TextFiles, recipe.data), say=say, show=show)
        if learnt is not None:
            tokenizers = store.tokenizers(learnt)
        if tokenizers is not None:
            return EncodedData(None, store.encoded(tokenizers), tokenizers, ())
    corpus = corpus or recipe.corpus()
    check_corpus(task_of(recipe), corpus)
    if corpus.task == "tagging":
        entity_scores([["O"]], [["O"]])  # says so now if its package is missing
    if corpus.task == "translation" and corpus.medium != "text":
        transcription_scores(["a"], ["a"])
    if learnt is not None:
        tokenizers = Tokenizers.train(learnt, corpus)
    labels = saved.labels if saved else corpus.labels
    encoded = encode(corpus, tokenizers, labels)
    return EncodedData(None if corpus.task == "language" else corpus, encoded, tokenizers, labels)


def _told(console: Console) -> tuple[Callable[[str], None], Show]:
    """Functions that print a line and show a progress bar on a console."""
    return partial(console.out, highlight=False), partial(text_progress, console)


def _known(recipe: Recipe, saved: Saved | None) -> Tokenizers | None:
    """The tokenizers of the run, or of what training begins with or learns from.

    None where they are learnt.
    """
    if saved is not None:
        return saved.tokenizers
    if recipe.train.start is not None:
        return read_settings(recipe.train.start).tokenizers
    if recipe.train.distillation is not None and recipe.tokenizer is None:
        return read_settings(recipe.train.distillation.teacher).tokenizers
    return None
