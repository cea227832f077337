"""Codecs: what turns text into ids and back below a `Tokenizer`, the library's or anyone's own."""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import tokenizers

from addnorm.errors import InputError
from addnorm.parts import kind_of

SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
NO_CHARACTER = "a text holds half a surrogate pair, which is no character"

PIECE = 2**16
"""Characters that a piece of a text has at least, where another follows."""
SPACED = re.compile(r"(?<=\S)(?:\n(?=\S)|(?= \S))")
"""Where byte-level BPE and words may be cut: after a line break, or before a space, that stands
alone between what is no white space. No token reaches across, and none is another for it."""


def pieces_of(text: str, cuts: re.Pattern[str] | None) -> Iterator[str]:
    """The text in pieces that end where `cuts` do; whole where there are none."""
    start = 0
    while cuts is not None and len(text) - start > PIECE:
        found = cuts.search(text, start + PIECE)
        if found is None:
            break
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


@runtime_checkable
class TrainedTokenizer(Protocol):
    """A tokenizer of someone's own, trained: any object with these four.

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
        """Write all that `load` of its configuration needs into an empty folder."""
        ...


@runtime_checkable
class TokenizerPart(Protocol):
    """A configuration of a tokenizer of someone's own.

    With a field `joint = False`, the source and the target of a translation get one each.
    """

    def train(self, texts: Iterable[str]) -> TrainedTokenizer:
        """Learn from the training texts."""
        ...

    def load(self, folder: Path) -> TrainedTokenizer:
        """Read what `save` of a trained one wrote."""
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
        """The number of ids, special ones too: one more than the largest."""
        return 1 + max(self.inner.get_vocab().values(), default=-1)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        try:
            found = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError as error:
            raise InputError(NO_CHARACTER) from error
        return [one.ids for one in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens are left out."""
        return self.inner.decode(list(ids))

    def alone(self, ids: Sequence[int]) -> list[str]:
        """The text of each id by itself, special ones by their names."""
        return self.inner.decode_batch([[i] for i in ids], skip_special_tokens=False)

    def name(self, i: int) -> str | None:
        """What the vocabulary calls an id; None where there is no such id."""
        return self.inner.id_to_token(i)


class OwnCodec:
    """A tokenizer of someone's own, its ids after those of the special tokens."""

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
            raise InputError(NO_CHARACTER) from error
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
        """The text of each id by itself, special ones by their names."""
        return [SPECIALS[i] if i in self.special_ids else self.decode([i]) for i in ids]

    def name(self, i: int) -> str | None:
        """What people call an id; None where there is no such id."""
        return self.alone([i])[0] if 0 <= i < self.vocab_size else None

    def save(self, folder: Path) -> None:
        """Let the tokenizer write itself into a folder of its own."""
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
