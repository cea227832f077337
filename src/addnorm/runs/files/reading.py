"""How a run reads texts: its tokenizers as training used them."""

from addnorm.data import ChatConfig, TextConfig, lowercases
from addnorm.data.batches.buckets import BatchingConfig, PackedConfig, WindowsConfig
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.models import DecoderConfig
from addnorm.runs.recipes.recipe import Recipe


def as_trained(recipe: Recipe, tokenizers: Tokenizers) -> Tokenizers:
    """The tokenizers of a run, with what training does to a text that is in no tokenizer's file.

    Texts are put in lower case where the data were, and a prompt begins as training's rows did.
    """
    if lowercases(recipe.data):
        tokenizers = tokenizers.lowercased()
    if not isinstance(recipe.model, DecoderConfig) or isinstance(recipe.data, ChatConfig):
        return tokenizers.beginning(None)
    return tokenizers.beginning(_begins(recipe, tokenizers))


def _begins(recipe: Recipe, tokenizers: Tokenizers) -> tuple[int, ...] | None:
    """What stands before a prompt, where that is other than the tokenizer has it.

    Windows of one text begin anywhere in it, after no start token. Documents each begin with one,
    also where a tokenizer from elsewhere puts none before a text (GPT-2).
    """
    tokenizer = tokenizers.source
    if reads_one_text(recipe):
        return ()
    if recipe.data is not None and tokenizer.before == ():
        return (tokenizer.bos_id,)
    return None


def reads_one_text(recipe: Recipe) -> bool:
    """Whether a language model learns from pieces of one text, whose start is never shown or once.

    Its documents are joined, or are one file.
    """
    batching: BatchingConfig = recipe.train.batching
    if isinstance(batching, WindowsConfig) and batching.documents == "joined":
        return True
    one_file = isinstance(recipe.data, TextConfig) and recipe.data.unit == "file"
    return one_file and isinstance(batching, WindowsConfig | PackedConfig)
