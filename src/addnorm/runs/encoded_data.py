"""Reading and encoding the data of a recipe, with its tokenizers and labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from rich.console import Console

from addnorm.data import Corpus
from addnorm.data.batches.buckets import special_tokens_of
from addnorm.data.examples import Series
from addnorm.data.ids.cache import Show, TextFiles, TextStore, can_keep
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.readers.rows import complete, lowered_corpus
from addnorm.data.scaling import Scaling
from addnorm.data.shards.source import ShardsConfig
from addnorm.data.tokenizing.pieces import Advance
from addnorm.data.tokenizing.sides import Tokenizers, with_special_tokens
from addnorm.data.tokenizing.tokenizers import TokenizerConfig
from addnorm.errors import InputError
from addnorm.long_work import long_work
from addnorm.machine import rare_collections
from addnorm.models import EncoderConfig
from addnorm.runs.files.folder import Saved, as_trained, read_settings
from addnorm.runs.recipes.recipe import Recipe, task_of
from addnorm.tasks.forecasting import Forecasting
from addnorm.tasks.registry import check_batching, check_corpus, task_named
from addnorm.tasks.task import Task
from addnorm.tasks.whole_inputs import OfWholeInputs
from addnorm.training.progress import tell, text_progress


@dataclass(frozen=True)
class EncodedData:
    """Encoded data, with the tokenizers and labels that define the ids.

    `corpus` has the examples themselves, which evaluation compares with; a language model's are in
    `encoded` alone. `scaling` is that of a series.
    """

    task: Task
    corpus: Corpus | None
    encoded: EncodedCorpus
    tokenizers: Tokenizers | None
    labels: tuple[str, ...]
    scaling: Scaling | None = None


def encode(
    corpus: Corpus,
    tokenizers: Tokenizers | None,
    labels: Sequence[str] | None = None,
    advance: Advance = lambda _: None,
    *,
    apart: bool = False,
    task: Task | None = None,
) -> EncodedCorpus:
    """Encode every example; `labels` numbers the classes or tags, by default those of the corpus.

    The `task` is by default that of the examples. `advance` gets the encoded characters of a
    language model's texts. Data with text need `tokenizers`. With `apart` two texts are encoded
    separately. Raises `InputError` for an unknown label.
    """
    task = task_named(corpus.task) if task is None else task
    if apart:
        assert isinstance(task, OfWholeInputs)
        task = replace(task, apart=True)
    if tokenizers is None and corpus.has_text:
        raise InputError("the data have texts, but there is no tokenizer: give [tokenizer]")
    if tokenizers is not None and not corpus.has_text:
        raise InputError(
            f"the data are {corpus.medium}, which no tokenizer reads: leave [tokenizer] out"
        )
    names = corpus.labels if labels is None else labels
    numbers = {label: n for n, label in enumerate(names)}
    return task.encode_corpus(corpus, tokenizers, numbers, advance)


@rare_collections()
def read_data(
    recipe: Recipe,
    saved: Saved | None = None,
    corpus: Corpus | None = None,
    console: Console | None = None,
    scaling: Scaling | None = None,
) -> EncodedData:
    """Read and encode the data of a recipe, or a `corpus` instead.

    With `saved`, tokenizers and labels are those of a run, else learnt from the data; so is the
    `scaling` of a series. Of large
    files of text, what was made of them before is taken from the folder of caches. Examples that
    lack something, or have nothing to predict, are left out and counted in the reports. Raises
    `InputError` for data that cannot be read, for such as the model is not for, and for a split of
    which nothing is left.
    """
    task = task_of(recipe)
    check_batching(task, recipe.train.batching)
    tokenizers = _known(recipe, saved)
    if corpus is None and isinstance(recipe.data, ShardsConfig):
        return _read_shards(recipe, recipe.data, task, tokenizers)
    more = special_tokens_of(recipe.train.batching)
    if more and tokenizers is not None and tokenizers.source is not tokenizers.target:
        raise InputError("denoising needs one tokenizer for source and target, not two")
    learnt = None if saved or tokenizers else recipe.tokenizer
    if corpus is None and task.plain_texts and can_keep(recipe.data):
        say, show = _told(console or Console(quiet=True))
        files = cast(TextFiles, recipe.data)
        lowercase = files.lowercase or (tokenizers is not None and tokenizers.lowercase)
        store = TextStore(replace(files, lowercase=lowercase), say=say, show=show)
        if learnt is not None:
            tokenizers = with_special_tokens(store.tokenizers(learnt), more)
        if tokenizers is not None:
            tokenizers = as_trained(recipe, tokenizers.lowercased(lowercase))
            encoded = store.encoded(tokenizers).with_targets()
            return EncodedData(task, None, encoded, tokenizers, ())
    console = console or Console(quiet=True)
    with long_work(console, "reading the data"):
        corpus = complete(corpus or recipe.corpus())
    check_corpus(task, corpus)
    task.check_packages(corpus, recipe.eval)
    if learnt is not None:
        tokenizers = with_special_tokens(_learnt(learnt, corpus, console), more)
    tokenizers, corpus = _read_alike(recipe, tokenizers, corpus)
    labels = saved.labels if saved else corpus.labels
    task.check_data(recipe.model, corpus, labels)
    task, scaling = _scaled(task, corpus, scaling)
    with long_work(console, "encoding the data"):
        encoded = encode(corpus, tokenizers, labels, task=task)
    if isinstance(recipe.model, EncoderConfig):
        encoded = encoded.for_input(recipe.model.input.n_positions)
    encoded = encoded.with_targets()
    counted = bool(encoded.characters)  # of texts for a language model that is all one needs
    return EncodedData(task, None if counted else corpus, encoded, tokenizers, labels, scaling)


def _learnt(config: TokenizerConfig, corpus: Corpus, console: Console) -> Tokenizers:
    """Learn the tokenizers; print a line if they were learnt from a sample of the texts."""
    with long_work(console, "learning the tokenizer"):
        tokenizers = Tokenizers.train(config, corpus)
    if tokenizers.sampled:
        tell(console, tokenizers.sampled)
    return tokenizers


def _scaled(task: Task, corpus: Corpus, scaling: Scaling | None) -> tuple[Task, Scaling | None]:
    """The task with the scaling of its series, and that scaling; by default that of the data."""
    if not isinstance(first := corpus.train[0], Series):
        return task, scaling
    assert isinstance(task, Forecasting)
    scaling = scaling or first.scaling
    return replace(task, scaling=scaling), scaling


def _read_shards(
    recipe: Recipe, data: ShardsConfig, task: Task, tokenizers: Tokenizers | None
) -> EncodedData:
    """Open the shards of a language model, which have ids already."""
    tokenizers = as_trained(recipe, tokenizers or data.tokenizers())
    return EncodedData(task, None, data.encoded(tokenizers), tokenizers, ())


def _read_alike(
    recipe: Recipe, tokenizers: Tokenizers | None, corpus: Corpus
) -> tuple[Tokenizers | None, Corpus]:
    """The tokenizers and the corpus, both in lower case if either of them is."""
    if tokenizers is None:
        return None, corpus
    tokenizers = as_trained(recipe, tokenizers)
    if not (tokenizers.lowercase or corpus.lowercase):
        return tokenizers, corpus
    return tokenizers.lowercased(), lowered_corpus(corpus)


def _told(console: Console) -> tuple[Callable[[str], None], Show]:
    """A function that prints a line on a console, and one that shows a progress bar there."""
    return partial(console.out, highlight=False), partial(text_progress, console)


def _known(recipe: Recipe, saved: Saved | None) -> Tokenizers | None:
    """The tokenizers of the run, of its starting model or of its teacher; None to learn them."""
    if saved is not None:
        return saved.tokenizers
    folder = recipe.train.start
    if folder is None and recipe.train.distillation is not None and recipe.tokenizer is None:
        folder = recipe.train.distillation.teacher
    tokenizers = None if folder is None else read_settings(folder).tokenizers
    return None if tokenizers is None else tokenizers.ending()
