"""Tokens that replace hidden text: the mask of BERT and BART, and T5's sentinels."""

from collections.abc import Sequence

import tokenizers as library

from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

MASK = "<mask>"
"""The mask token of tokenizers that are learnt here."""

MASKS = (MASK, "[MASK]", "<|mask|>")
"""The names of mask tokens, in imported tokenizers too."""

SENTINELS = tuple(f"<extra_id_{n}>" for n in range(100))
"""T5's sentinels, each of which stands for one span (Raffel et al. 2020, §3.1.4)."""


def mask_id_of(tokenizer: Tokenizer) -> int:
    """Return the id of the mask token. Raises `InputError` if the tokenizer has none."""
    for i in map(tokenizer.id_of, MASKS):
        if i is not None and i in tokenizer.special_ids:
            return i
    raise InputError(
        f"the tokenizer has no mask token, such as {' or '.join(MASKS[:2])}: start from a folder "
        "that has one, or learn a tokenizer by [tokenizer]"
    )


def sentinel_ids_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of T5's sentinels, in order. Raises `InputError` if there are none."""
    named = [tokenizer.id_of(name) for name in SENTINELS]
    ids = tuple(i for i in named if i is not None and i in tokenizer.special_ids)
    if not ids or named[: len(ids)] != [*ids]:
        raise InputError(
            f"the tokenizer has no sentinels {SENTINELS[0]}, {SENTINELS[1]} …: start from a folder "
            "that has them, or learn a tokenizer by [tokenizer]"
        )
    return ids


def with_special_tokens(tokenizers: Tokenizers, names: Sequence[str]) -> Tokenizers:
    """Add special tokens to tokenizers that were learnt here; their ids come after all others.

    Raises `InputError` for a custom tokenizer, whose ids are fixed.
    """
    if not names:
        return tokenizers
    source = _with(tokenizers.source, names)
    shared = tokenizers.target is tokenizers.source
    return Tokenizers(source, source if shared else _with(tokenizers.target, names))


def _with(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    inner = library.Tokenizer.from_str(tokenizer.inner.to_str())
    inner.add_special_tokens([*names])
    return Tokenizer.learnt(inner)
