"""Codecs: text to ids and back for a `Tokenizer`, by the tokenizers library or custom code."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import tokenizers
from tokenizers import models, pre_tokenizers

from addnorm.errors import InputError, TextError
from addnorm.parts import kind_of

SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
NO_CHARACTER = "a text holds half a surrogate pair, which is not a character"

PIECE = 2**16
"""Characters of a long text encoded at once: the library needs a hundred bytes for each."""
ROOMY = 256
"""Characters of a token on average that no text exceeds, where tokens may leave characters out."""
FEW = 16
"""Texts that are counted at once, which is several times as fast as one by one."""
AT_ONCE = 2**18
"""Characters of all texts encoded at once."""
BETWEEN_WORDS = re.compile(r"(?<=[^\W_])(?=[ \n][^\W_]|[^\w\s'])")
"""Where the byte-level expression of GPT-2 always splits: after a letter or a digit, before white
space and another, or before a sign that cannot begin an ending such as 's.
"""
SPACED = re.compile(r"(?<=\S)(?:\n(?=\S)|(?= \S))")
"""Where words may be cut: after a line break, or before a space, that is alone between other
characters than white space. No token crosses such a place, and none changes by the cut.
"""
ANYWHERE = re.compile("")
"""Where a tokenizer of single characters may be cut."""


def pieces_of(text: str, cuts: re.Pattern[str] | None) -> Iterator[str]:
    """Yield a text in pieces of at least `PIECE` characters, cut at `cuts`; whole without cuts."""
    start = 0
    while cuts is not None and len(text) - start > PIECE:
        cut = cuts.search(text, start + PIECE)
        if cut is None:
            break
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:] if start else text


def cut(texts: Iterable[str], cuts: re.Pattern[str] | None) -> Iterator[str]:
    """Yield texts, the long ones in pieces (see `pieces_of`)."""
    for text in texts:
        if len(text) <= PIECE:  # as almost all are
            yield text
        else:
            yield from pieces_of(text, cuts)


def together(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Yield texts in groups of at least so many characters; the last may have fewer."""
    group: list[str] = []
    size, left = 0, iter(texts)
    while few := [*islice(left, FEW)]:
        group += few
        size += sum(map(len, few))
        if size >= characters:
            yield group
            group, size = [], 0
    if group:
        yield group


LONGEST_WORD = 2**18
"""The longest piece that byte-pair encoding learns from: each merge reads all its characters."""


def whole_words(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts in pieces that end between words. Raises `InputError` for too long a word."""
    for piece in cut(texts, BETWEEN_WORDS):
        if len(piece) > LONGEST_WORD:
            raise InputError(
                f"tokenizer: the text has {len(piece):,} characters without a space between "
                'words, within which bpe looks for pairs: use kind = "char", or divide it'
            )
        yield piece


@runtime_checkable
class TrainedTokenizer(Protocol):
    """A trained custom tokenizer: any object with these four methods.

    Its ids are 0 to `vocab_size - 1`, all of them pieces of text: AddNorm adds the special tokens.
    A text with unknown parts is encoded as well as possible, or refused with an error.
    """

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ...

    def decode(self, ids: list[int]) -> str:
        """The text of ids, with U+FFFD for incomplete characters."""
        ...

    def save(self, folder: Path) -> None:
        """Write all that its configuration's `load` needs to an empty folder."""
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
        """Read the files that `save` wrote."""
        ...


class LibraryCodec:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        # "<pad>" in a text is five ordinary characters; this setting is not saved in the file.
        inner.encode_special_tokens = True
        self.inner = inner
        added = inner.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.byte_ids = _byte_ids(inner)

    @property
    def vocab_size(self) -> int:
        """The number of ids, including special ones: the largest id plus one."""
        return 1 + max(self.inner.get_vocab().values(), default=-1)

    @cached_property
    def division(self) -> re.Pattern[str] | None:
        """A pattern of places where a text can be cut without changing its ids; None if unknown."""
        inner = self.inner
        added = inner.get_added_tokens_decoder()
        if inner.normalizer is not None or not all(token.special for token in added.values()):
            return None
        if inner.truncation or inner.padding or getattr(inner.model, "dropout", None):
            return None
        match inner.pre_tokenizer:
            case pre_tokenizers.WhitespaceSplit():
                return SPACED
            case pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True):
                return BETWEEN_WORDS
            case None if isinstance(inner.model, models.BPE) and not inner.model.fuse_unk:
                vocab = inner.get_vocab()
                single = all(len(name) == 1 or i in added for name, i in vocab.items())
                return ANYWHERE if single else None
            case _:
                return None

    @cached_property
    def longest(self) -> int:
        """The largest number of characters for which one token can stand.

        Exact where every character is in a token; white space and unknown words may be longer.
        """
        vocab, model = self.inner.get_vocab(), self.inner.model
        if not isinstance(model, models.BPE) or model.fuse_unk or self.division is None:
            return ROOMY
        every = self.division is ANYWHERE and model.unk_token is not None
        every |= self.division is BETWEEN_WORDS and vocab.keys() >= BYTES.keys()
        return max(map(len, vocab)) if every else ROOMY

    @cached_property
    def unknown_character(self) -> str | None:
        """The token for unknown characters; None unless tokens are single characters."""
        model = self.inner.model
        if self.division is not ANYWHERE or not isinstance(model, models.BPE):
            return None
        changes = (model.byte_fallback, model.ignore_merges)
        affixes = (model.continuing_subword_prefix, model.end_of_word_suffix)
        return None if any((*changes, *affixes)) else model.unk_token

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts, encoded in parallel in groups."""
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
            encodings = self.inner.encode_batch_fast(
                [piece for _, piece in waiting], add_special_tokens=False
            )
        except TypeError as error:
            raise TextError(NO_CHARACTER) from error
        for (i, _), encoding in zip(waiting, encodings, strict=True):
            ids[i] = ids[i] + encoding.ids if ids[i] else encoding.ids

    @cached_property
    def _marking(self) -> tokenizers.Tokenizer:
        """A copy of `inner` that reads special tokens; other threads may use `inner` meanwhile."""
        return tokenizers.Tokenizer.from_str(self.inner.to_str())

    def encode_marked(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of whole texts, reading spelled-out special tokens as such."""
        try:
            encodings = self._marking.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError as error:
            raise TextError(NO_CHARACTER) from error
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self.inner.decode(list(ids))

    def alone(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each id by itself; for a special token, its name."""
        return self.inner.decode_batch([[i] for i in ids], skip_special_tokens=False)

    @cached_property
    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(json.loads(self.inner.to_str())["decoder"])

    def bytes_of(self, i: int) -> bytes | None:
        """Return the bytes that an id adds to a text, if its token consists of bytes."""
        name = self.name(i) or ""
        if i in self.byte_ids:
            return bytes([int(name[1:-1], 16)])
        if self._is_byte_level and i not in self.special_ids and BYTES.keys() >= {*name}:
            return bytes(BYTES[sign] for sign in name)
        return None

    def name(self, i: int) -> str | None:
        """Return the token of an id; None if the id does not exist."""
        return self.inner.id_to_token(i)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token; None if it is not in the vocabulary."""
        return self.inner.token_to_id(token)


class CustomCodec:
    """A custom tokenizer, whose ids come after those of the special tokens."""

    byte_ids: frozenset[int] = frozenset()
    division: None = None
    unknown_character: None = None
    longest = ROOMY

    def __init__(self, custom: Any, config: Any) -> None:
        self.config = config
        self.kind = kind_of(config)
        missing = [name for name in ("encode", "decode", "save") if not hasattr(custom, name)]
        size = getattr(custom, "vocab_size", None)
        if missing or not isinstance(size, int) or size < 1:
            lacks = f"no {missing[0]}()" if missing else f"vocab_size = {size!r}"
            raise InputError(
                f"tokenizer: {self.kind} makes a {type(custom).__name__} with {lacks}: a tokenizer "
                "has vocab_size, encode(text), decode(ids) and save(folder)"
            )
        self.custom: TrainedTokenizer = custom
        self.special_ids = frozenset(range(len(SPECIALS)))
        self.vocab_size = len(SPECIALS) + size

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts. Raises `InputError` for ids beyond the vocabulary."""
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(NO_CHARACTER) from error
        ids = [int(i) + len(SPECIALS) for i in self.custom.encode(text)]
        for i in ids:
            if not len(SPECIALS) <= i < self.vocab_size:
                n = self.vocab_size - len(SPECIALS)
                raise InputError(
                    f"tokenizer: {self.kind} gives a text the id {i - len(SPECIALS)}: "
                    f"its ids are 0 to {n - 1}, its vocab_size being {n}"
                )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        pieces = range(len(SPECIALS), self.vocab_size)
        return self.custom.decode([i - len(SPECIALS) for i in ids if i in pieces])

    def alone(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each id by itself; for a special token, its name."""
        return [SPECIALS[i] if i in self.special_ids else self.decode([i]) for i in ids]

    def bytes_of(self, i: int) -> None:
        """Return None: the bytes of a custom token are unknown."""
        return

    def name(self, i: int) -> str | None:
        """Return the readable name of an id; None if the id does not exist."""
        return self.alone([i])[0] if 0 <= i < self.vocab_size else None

    def id_of(self, token: str) -> int | None:
        """Return the first id with this name; None if there is none."""
        return next((i for i in range(self.vocab_size) if self.name(i) == token), None)

    def save(self, folder: Path) -> None:
        """Save the tokenizer into its own folder."""
        if folder.is_dir():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        self.custom.save(folder)


def _signs_of_bytes() -> dict[str, int]:
    """The byte for each character of GPT-2's alphabet: itself if printable, else from U+0100 on."""
    printing = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printing]
    signs = {chr(byte): byte for byte in printing}
    return signs | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTES = _signs_of_bytes()


def _byte_ids(inner: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the ids of tokens such as `<0xE7>`, which decode to that byte."""
    names = (f"<0x{byte:02X}>" for byte in range(256))
    ids = {name: i for name in names if (i := inner.token_to_id(name)) is not None}
    return frozenset(
        i for name, i in ids.items() if inner.decode([i], skip_special_tokens=False) != name
    )
