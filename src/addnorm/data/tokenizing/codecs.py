"""Codecs: text to ids and back below a `Tokenizer`, with the tokenizers library or custom code."""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import tokenizers
from tokenizers import models, pre_tokenizers

from addnorm.errors import InputError, TextError
from addnorm.parts import kind_of

SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
NO_CHARACTER = "a text holds half a surrogate pair, which is no character"

PIECE = 2**16
"""Characters of a long text encoded at once: the library needs a hundred bytes for each."""
AT_ONCE = 2**18
"""Characters of all texts encoded at once."""
BETWEEN_WORDS = re.compile(r"(?<=[^\W_])(?=[ \n][^\W_]|[^\w\s'])")
"""Where the byte-level expression of GPT-2 always divides: after a letter or a digit, before white
space and another, or before a sign that begins no ending such as 's.
"""
ANYWHERE = re.compile("")


SPACED = re.compile(r"(?<=\S)(?:\n(?=\S)|(?= \S))")
"""Where byte-level BPE and words may be cut: after a line break, or before a space, that stands
alone between what is no white space. No token reaches across, and none is another for it."""


def pieces_of(text: str, cuts: re.Pattern[str] | None) -> Iterator[str]:
    """The text in pieces of `PIECE` characters or more that end where `cuts` do; or else whole."""
    start = 0
    while cuts is not None and len(text) - start > PIECE:
        found = cuts.search(text, start + PIECE)
        if found is None:
            break
        yield text[start : found.end()]
        start = found.end()
    yield text[start:] if start else text


LONGEST_WORD = 2**18
"""Characters that byte-pair encoding learns from without a division: each merge reads them all."""


def whole_words(texts: Iterable[str]) -> Iterator[str]:
    """Texts in pieces that end where words do. Raises `InputError` for a word without an end."""
    for piece in (piece for text in texts for piece in pieces_of(text, BETWEEN_WORDS)):
        if len(piece) > LONGEST_WORD:
            raise InputError(
                f"tokenizer: the text has {len(piece):,} characters without a space between words, "
                'within which bpe looks for pairs: use kind = "char", or divide it'
            )
        yield piece


@runtime_checkable
class TrainedTokenizer(Protocol):
    """A trained custom tokenizer: any object with these four methods.

    Its ids are 0 to `vocab_size - 1`, all of them pieces of text: the special tokens are added
    around it. A text that it cannot read in full it reads as best it can, or refuses by an error.
    """

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ...

    def decode(self, ids: list[int]) -> str:
        """The text of ids, U+FFFD where bytes of a character are still missing."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything that its configuration's `load` needs into an empty folder."""
        ...


@runtime_checkable
class TokenizerPart(Protocol):
    """A configuration of a custom tokenizer.

    With a field `joint = False`, the source and the target of a translation get one each.
    """

    def train(self, texts: Iterable[str]) -> TrainedTokenizer:
        """Learn from the training texts."""
        ...

    def load(self, folder: Path) -> TrainedTokenizer:
        """Read what `save` wrote."""
        ...


class LibraryCodec:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        # "<pad>" in a text is five characters like any other; this setting is not in the file.
        inner.encode_special_tokens = True
        self.inner = inner
        added = inner.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.byte_ids = _byte_ids(inner)

    @property
    def vocab_size(self) -> int:
        """The number of ids with special ones: the largest plus one."""
        return 1 + max(self.inner.get_vocab().values(), default=-1)

    @cached_property
    def division(self) -> re.Pattern[str] | None:
        """Where a text may be cut without changing its ids; None if unknown."""
        added = self.inner.get_added_tokens_decoder()
        if self.inner.normalizer is not None or not all(one.special for one in added.values()):
            return None
        match self.inner.pre_tokenizer:
            case pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True):
                return BETWEEN_WORDS
            case None if isinstance(self.inner.model, models.BPE) and not self.inner.model.fuse_unk:
                vocab = self.inner.get_vocab()
                single = all(len(name) == 1 or i in added for name, i in vocab.items())
                return ANYWHERE if single else None
            case _:
                return None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, encoded in parallel in groups."""
        ids: list[list[int]] = [[] for _ in texts]
        waiting: list[tuple[int, str]] = []
        n = 0
        for i, text in enumerate(texts):
            long = len(text) > PIECE
            for piece in pieces_of(text, self.division) if long else (text,):
                waiting.append((i, piece))
                n += len(piece)
                if n >= AT_ONCE:
                    self._encode(waiting, ids)
                    waiting, n = [], 0
        self._encode(waiting, ids)
        return ids

    def _encode(self, waiting: Sequence[tuple[int, str]], ids: list[list[int]]) -> None:
        """Append the ids of pieces to those of their texts."""
        try:
            found = self.inner.encode_batch_fast(
                [piece for _, piece in waiting], add_special_tokens=False
            )
        except TypeError as error:
            raise TextError(NO_CHARACTER) from error
        for (i, _), one in zip(waiting, found, strict=True):
            ids[i] += one.ids

    def encode_marked(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of whole texts in which a special token that is spelt counts as such."""
        self.inner.encode_special_tokens = False
        try:
            found = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError as error:
            raise TextError(NO_CHARACTER) from error
        finally:
            self.inner.encode_special_tokens = True
        return [one.ids for one in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens are left out."""
        return self.inner.decode(list(ids))

    def alone(self, ids: Sequence[int]) -> list[str]:
        """The text of each id alone; special tokens by name."""
        return self.inner.decode_batch([[i] for i in ids], skip_special_tokens=False)

    def name(self, i: int) -> str | None:
        """The token of an id; None if there is no such id."""
        return self.inner.id_to_token(i)

    def id_of(self, token: str) -> int | None:
        """The id of a token; None if it is not in the vocabulary."""
        return self.inner.token_to_id(token)


class OwnCodec:
    """A custom tokenizer, whose ids come after those of the special tokens."""

    byte_ids: frozenset[int] = frozenset()

    def __init__(self, own: Any, config: Any) -> None:
        self.config = config
        self.kind = kind_of(config)
        missing = [one for one in ("encode", "decode", "save") if not hasattr(own, one)]
        size = getattr(own, "vocab_size", None)
        if missing or not isinstance(size, int) or size < 1:
            lacks = f"no {missing[0]}()" if missing else f"vocab_size = {size!r}"
            raise InputError(
                f"tokenizer: {self.kind} makes a {type(own).__name__} with {lacks}: a tokenizer "
                "has vocab_size, encode(text), decode(ids) and save(folder)"
            )
        self.own: TrainedTokenizer = own
        self.special_ids = frozenset(range(len(SPECIALS)))
        self.vocab_size = len(SPECIALS) + size

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts. Raises `InputError` for ids that the tokenizer does not have."""
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(NO_CHARACTER) from error
        ids = [int(i) + len(SPECIALS) for i in self.own.encode(text)]
        for i in ids:
            if not len(SPECIALS) <= i < self.vocab_size:
                n = self.vocab_size - len(SPECIALS)
                raise InputError(
                    f"tokenizer: {self.kind} gives a text the id {i - len(SPECIALS)}: "
                    f"its ids are 0 to {n - 1}, its vocab_size being {n}"
                )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens are left out."""
        known = range(len(SPECIALS), self.vocab_size)
        return self.own.decode([i - len(SPECIALS) for i in ids if i in known])

    def alone(self, ids: Sequence[int]) -> list[str]:
        """The text of each id alone; special tokens by name."""
        return [SPECIALS[i] if i in self.special_ids else self.decode([i]) for i in ids]

    def name(self, i: int) -> str | None:
        """The readable name of an id; None if there is no such id."""
        return self.alone([i])[0] if 0 <= i < self.vocab_size else None

    def id_of(self, token: str) -> int | None:
        """The first id of this name; None if there is none."""
        return next((i for i in range(self.vocab_size) if self.name(i) == token), None)

    def save(self, folder: Path) -> None:
        """Save the tokenizer into its own folder."""
        if folder.is_dir():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        self.own.save(folder)


def _byte_ids(inner: tokenizers.Tokenizer) -> frozenset[int]:
    """The ids of tokens like `<0xE7>` that decode to that byte."""
    names = (f"<0x{byte:02X}>" for byte in range(256))
    ids = {name: i for name in names if (i := inner.token_to_id(name)) is not None}
    return frozenset(
        i for name, i in ids.items() if inner.decode([i], skip_special_tokens=False) != name
    )
