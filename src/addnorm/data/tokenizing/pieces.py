"""Tokenizing long texts in pieces: the ids of the whole text in bounded memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.data.tokenizing.codecs import NO_CHARACTER, LibraryCodec, pieces_of
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.data.tokenizing.word_ids import WordIds
from addnorm.errors import InputError

Ids = NDArray[Any]
"""Ids in any of numpy's types of integers."""

Advance = Callable[[int], None]
"""Called with the number of characters that were tokenized since the last call."""

BATCH = 2**20
"""Characters that are tokenized at once; the library takes a hundred bytes for each."""


def ids_of(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    dtype: "np.dtype[Any]",
    advance: Advance = lambda _: None,
) -> Iterator[tuple[int, Ids]]:
    """Yield the ids of each text with its number; a long text comes in several pieces.

    They are those of `tokenizer.encode(text)`: a text is cut only where no token of the tokenizer
    can cross. A character model is a table to look up; others work on all cores. Raises
    `InputError` for text that is not Unicode.
    """
    encode = encoder_of(tokenizer, dtype)
    for batch in piece_batches(map(tokenizer.prepared, texts), tokenizer):
        rows = encode([piece for _, piece in batch])
        for (n, piece), ids in zip(batch, rows, strict=True):
            yield n, ids
            advance(len(piece))


def encoder_of(
    tokenizer: Tokenizer, dtype: "np.dtype[Any]"
) -> Callable[[Sequence[str]], Sequence[Ids]]:
    """Return a function that encodes pieces of prepared texts."""
    assert tokenizer.vocab_size <= np.iinfo(dtype).max + 1, "ids would overflow"
    table = _table(tokenizer)
    if table is None:
        words = WordIds(tokenizer)
        return lambda pieces: _rows(*words.encode(pieces), dtype)
    last, unknown = len(table) - 1, int(table[-1])
    narrow = table.astype(dtype)

    def look_up(pieces: Sequence[str]) -> Sequence[Ids]:
        rows = [narrow[np.minimum(_code_points(piece), last)] for piece in pieces]
        tokenizer.warn_of_unknown(
            piece for piece, ids in zip(pieces, rows, strict=True) if (ids == unknown).any()
        )
        return rows

    return look_up


def _rows(ids: Ids, lengths: Ids, dtype: "np.dtype[Any]") -> Sequence[Ids]:
    return np.split(ids.astype(dtype), np.cumsum(lengths)[:-1])


def _table(tokenizer: Tokenizer) -> Ids | None:
    """A table of the id of each code point; its last entry is the id of all other characters.

    None for a tokenizer whose tokens are not single characters. Special tokens other than the
    unknown one never come from a text.
    """
    codec, unk_id = tokenizer.codec, tokenizer.unk_id
    unknown = codec.unknown_character
    if unknown is None or unk_id is None or not isinstance(codec, LibraryCodec):
        return None
    vocab = codec.inner.get_vocab(with_added_tokens=False)
    if unknown not in vocab:
        return None
    ids = {token: unk_id if i in tokenizer.special_ids else i for token, i in vocab.items()}
    characters = {ord(token): i for token, i in ids.items() if len(token) == 1}
    table = np.full(max(characters, default=0) + 2, ids[unknown], np.uint32)
    table[[*characters]] = [*characters.values()]
    return table


def _code_points(text: str) -> Ids:
    try:
        return np.frombuffer(text.encode("utf-32-le"), "<u4")
    except UnicodeEncodeError as error:
        raise InputError(NO_CHARACTER) from error


def piece_batches(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[tuple[int, str]]]:
    """Yield batches of pieces with their text numbers, each slightly more than `BATCH` long."""
    batch: list[tuple[int, str]] = []
    size = 0
    for n, text in enumerate(texts):
        for piece in pieces_of(text, tokenizer.codec.division):
            batch.append((n, piece))
            size += len(piece) + 1
            if size >= BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch
