"""Special tokens around a text, and the ids of a text to continue."""

from collections.abc import Sequence

from addnorm.data.tokenizing.tokenizers import Tokenizer


def around(task: str, tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]]:
    """The special tokens before and after each text, as a model of the task reads it."""
    before, after = tokenizer.before, tokenizer.after
    if before is None:
        before = () if task == "translation" else (tokenizer.bos_id,)
    if after is None:
        after = tokenizer.eos_ids[:1]
    return before, () if task == "language" else after


def encode_prompts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts that a language model continues, which begin as the rows that it learnt.

    None is empty: without a text it is the start token, of which a model that learnt from one text
    knows little, or nothing: a line break or a word is a better beginning there.
    """
    before = around("language", tokenizer)[0] if tokenizer.begins is None else tokenizer.begins
    return [[*before, *ids] or [tokenizer.bos_id] for ids in tokenizer.encode_batch(texts)]
