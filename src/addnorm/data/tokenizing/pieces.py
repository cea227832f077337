"""Tokenising long texts in pieces: the ids of the whole text, in bounded memory."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.data.tokenizing.codecs import NO_CHARACTER, SPACED, LibraryCodec, pieces_of
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

Ids = NDArray[Any]
"""Ids in any of numpy's types of integers."""

Advance = Callable[[int], None]
"""Called with the number of characters that were read since the last call."""

BATCH = 2**20
"""Characters that are tokenised at once; the library takes a hundred bytes for each."""


def ids_of(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    dtype: "np.dtype[Any]",
    advance: Advance = lambda _: None,
) -> Iterator[tuple[int, Ids]]:
    """The ids of each text, after its number: of a long text in several pieces, at least one.

    They are those of `tokenizer.encode(text)`: a text is cut only where it is known of the
    tokenizer that no token reaches across. That of a character model is a table to look up; others
    work on all cores. Raises `InputError` for text that is no Unicode.
    """
    assert tokenizer.vocab_size <= np.iinfo(dtype).max + 1, "ids would be others"
    how, texts = _Way.of(tokenizer), map(tokenizer.prepared, texts)
    if how.table is not None:
        for n, text in enumerate(texts):
            for piece in pieces_of(text, ANYWHERE):
                points = np.minimum(_code_points(piece), len(how.table) - 1)
                yield n, how.table[points].astype(dtype)
                advance(len(piece))
        return
    for batch in _batches(texts, how.cuts):
        found = tokenizer.encode_batch([piece for _, piece in batch])
        for (n, piece), ids in zip(batch, found, strict=True):
            yield n, np.array(ids, dtype)
            advance(len(piece))


ANYWHERE = re.compile("")


class _Way:
    """How a tokenizer may be used on a part of a text."""

    def __init__(self, cuts: re.Pattern[str] | None = None, table: Ids | None = None) -> None:
        self.cuts = cuts
        self.table = table

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "_Way":
        """The cuts of a tokenizer by its file; none are known for a custom one."""
        if not isinstance(tokenizer.codec, LibraryCodec):
            return cls()
        facts: dict[str, Any] = json.loads(tokenizer.codec.inner.to_str())
        added = any(not token["special"] for token in facts["added_tokens"])
        model: dict[str, Any] = facts["model"]
        if added or model.get("dropout"):
            return cls()
        if any(facts[name] for name in ("normalizer", "truncation", "padding")):
            return cls()
        match facts["pre_tokenizer"]:
            case {"type": "WhitespaceSplit"}:
                return cls(cuts=SPACED)
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
                return cls(cuts=SPACED)
            case None if tokenizer.unk_id is not None and _knows_characters_alone(model):
                return cls(table=_table(tokenizer, model, tokenizer.unk_id))
            case _:
                return cls()


def _knows_characters_alone(model: dict[str, Any]) -> bool:
    """Whether a model of the library gives each character its id, whatever stands beside it."""
    others = ("merges", "fuse_unk", "byte_fallback", "ignore_merges")
    others = (*others, "continuing_subword_prefix", "end_of_word_suffix")
    known = model["type"] == "BPE" and model["unk_token"] in model["vocab"]
    return known and not any(model[name] for name in others)


def _table(tokenizer: Tokenizer, model: dict[str, Any], unk_id: int) -> Ids:
    """The id of every code point to the last that is known, and of all after it.

    A text holds no special token but the unknown one.
    """
    ids = {
        token: unk_id if i in tokenizer.special_ids else i for token, i in model["vocab"].items()
    }
    characters = {ord(token): i for token, i in ids.items() if len(token) == 1}
    table = np.full(max(characters, default=0) + 2, ids[model["unk_token"]], np.uint32)
    table[[*characters]] = [*characters.values()]
    return table


def _code_points(text: str) -> Ids:
    try:
        return np.frombuffer(text.encode("utf-32-le"), "<u4")
    except UnicodeEncodeError as error:
        raise InputError(NO_CHARACTER) from error


def _batches(texts: Iterable[str], cuts: re.Pattern[str] | None) -> Iterator[list[tuple[int, str]]]:
    """Pieces after the numbers of their texts, together a batch or a little more."""
    batch: list[tuple[int, str]] = []
    size = 0
    for n, text in enumerate(texts):
        for piece in pieces_of(text, cuts):
            batch.append((n, piece))
            size += len(piece) + 1
            if size >= BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch
