"""Special tokens around a text, and the ids of a text to continue."""

from collections.abc import Sequence

from addnorm.data.tokenizing.tokenizers import Tokenizer


def around(task: str, tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]]:
    """Return the special tokens before and after each text that models of the task expect."""
    before, after = tokenizer.before, tokenizer.after
    if before is None:
        before = () if task == "translation" else (tokenizer.bos_id,)
    if after is None:
        after = tokenizer.eos_ids[:1]
    return before, () if task == "language" else after


def encode_prompts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts to continue, which begin as the texts that the model learnt from.

    Special tokens that are spelt in them are read as `encode_marked` does.

    None is empty: an empty text is the start token. A model that learnt from a single text has
    seen it once at most, and starts better from a line break or a word.
    """
    before = start_of_prompts(tokenizer)
    return [[*before, *ids] or [tokenizer.bos_id] for ids in tokenizer.encode_marked(texts)]


def start_of_prompts(tokenizer: Tokenizer) -> Sequence[int]:
    """The special tokens with which each text to continue begins."""
    return around("language", tokenizer)[0] if tokenizer.begins is None else tokenizer.begins


def loses_space(tokenizer: Tokenizer, text: str, prompt: Sequence[int]) -> bool:
    """Whether a text to continue ends in white space that its ids lack, as those of words do."""
    return text[-1:].isspace() and not tokenizer.decode(prompt)[-1:].isspace()
