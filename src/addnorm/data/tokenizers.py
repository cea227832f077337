"""Tokenizers: text to ids and back, trained by and saved with the `tokenizers` library."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import tokenizers
from pydantic import Field, PositiveInt
from tokenizers import decoders, models, pre_tokenizers, trainers

from addnorm.config import config
from addnorm.errors import InputError

SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)


class Tokenizer:
    """Turns text into ids and back; never adds a special token, nor reads one out of a text.

    Raises `InputError` for text that is no Unicode: half a surrogate pair.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        pad_id: int = PAD_ID,
        unk_id: int = UNK_ID,
        bos_id: int = BOS_ID,
        eos_id: int = EOS_ID,
    ) -> None:
        # "<pad>" in a text is five characters like any other; this setting is not in the file.
        inner.encode_special_tokens = True
        self.inner = inner
        self.pad_id = pad_id
        self.unk_id = unk_id
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.special_ids = frozenset((pad_id, unk_id, bos_id, eos_id))

    @property
    def vocab_size(self) -> int:
        """The number of ids, special ones too."""
        return self.inner.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        try:
            found = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError as error:
            raise InputError("a text holds half a surrogate pair, which is no character") from error
        # A whole word may be spelt like a special token; as text it is a word nobody knows.
        unknown = dict.fromkeys(self.special_ids, self.unk_id)
        return [[unknown.get(i, i) for i in one.ids] for one in found]

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """The ids of words in a row, and for each word the index of its first piece.

        All words but the first are encoded with the space before them, as they stand in a text. A
        word without a piece counts as unknown.
        """
        spaced = [word if n == 0 else f" {word}" for n, word in enumerate(words)]
        ids: list[int] = []
        first: list[int] = []
        for pieces in self.encode_batch(spaced):
            first.append(len(ids))
            ids += pieces or [self.unk_id]
        return ids, first

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens are left out."""
        return self.inner.decode(list(ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable string for each id: its text; the vocabulary's, where it is a part of one."""
        texts = self.inner.decode_batch([[i] for i in ids], skip_special_tokens=False)
        return [
            self._name(i) if "\ufffd" in text else text for i, text in zip(ids, texts, strict=True)
        ]

    def _name(self, i: int) -> str:
        return self.inner.id_to_token(i) or ""

    def stream(self) -> "Stream":
        """A decoder that takes one id at a time."""
        return Stream(self)

    def save(self, path: Path) -> None:
        """Write a `tokenizer.json` as the library reads it."""
        path.write_text(self.inner.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read what `save` wrote; raise `InputError` where it is missing, damaged or another's."""
        try:
            text = path.read_text(encoding="utf-8")
            json.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path} is not a tokenizer: {error}") from error
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing more precise
            raise InputError(f"{path} is not a tokenizer: {error}") from error
        if tuple(inner.id_to_token(i) for i in range(4)) != SPECIALS:
            raise InputError(
                f"{path} does not start with {' '.join(SPECIALS)}: not saved by AddNorm"
            )
        return cls(inner)


class Stream:
    """Decodes ids as they come: the pieces of text join to the decoding of all ids.

    What ends in U+FFFD may be a character of which bytes are still to come: it is held back until
    they have, or until `finish`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Ids from the last place but one where a character was complete: some decoders write a
        # space between tokens, so the text of new ids depends on what stands before them.
        self._ids: list[int] = []
        self._complete = 0  # how many of these ids are complete
        self._printed = 0  # how much of the text of these ids has been handed out

    def push(self, i: int) -> str:
        """The text that one more id makes certain, often none."""
        if i in self._tokenizer.special_ids:
            return ""
        self._ids.append(i)
        text = self._tokenizer.decode(self._ids)
        certain = text.rstrip("\ufffd")
        new, self._printed = certain[self._printed :], max(self._printed, len(certain))
        if certain == text:
            self._ids = self._ids[self._complete :]
            self._complete = len(self._ids)
            self._printed = len(self._tokenizer.decode(self._ids))
        return new

    def finish(self) -> str:
        """The text held back, with U+FFFD for bytes that make no character."""
        text = self._tokenizer.decode(self._ids)
        rest, self._printed = text[self._printed :], len(text)
        return rest


@config
class BPEConfig:
    """Byte-pair encoding (Sennrich et al. 2016, §3.2) of UTF-8 bytes (Radford et al. 2019, §2.2).

    Every string has an encoding, and decodes to itself. `joint` trains one tokenizer on source and
    target together. The vocabulary is smaller than `vocab_size` where the text has fewer pairs that
    occur `min_frequency` times.
    """

    kind: Literal["bpe"] = "bpe"
    vocab_size: Annotated[int, Field(ge=len(SPECIALS) + 256)] = 8000
    min_frequency: PositiveInt = 2
    joint: bool = True

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the merges."""
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            min_frequency=self.min_frequency,
            special_tokens=list(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(texts, trainer)
        return Tokenizer(inner)


@config
class CharConfig:
    """One id for each character of the training text; others are unknown."""

    kind: Literal["char"] = "char"
    joint: bool = True

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Collect the characters, in order of code point."""
        chars = sorted(set[str]().union(*texts))
        # BPE without merges: the library's fastest way to look up character by character.
        model = models.BPE(vocab=_vocab(chars), merges=[], unk_token=SPECIALS[UNK_ID])
        inner = tokenizers.Tokenizer(model)
        inner.decoder = decoders.Fuse()
        inner.add_special_tokens(list(SPECIALS))
        return Tokenizer(inner)


@config
class WordConfig:
    """One id for each of the most frequent words between white space; others are unknown.

    For text that has been split into words already; decoding puts one space between words.
    """

    kind: Literal["word"] = "word"
    vocab_size: Annotated[int, Field(gt=len(SPECIALS))] = 30_000
    min_frequency: PositiveInt = 1
    joint: bool = True

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Count the words; the most frequent come first, those that tie in order of code points."""
        counts = Counter(word for text in texts for word in text.split())
        words = [
            word for word, n in counts.items() if n >= self.min_frequency and word not in SPECIALS
        ]
        words.sort(key=lambda word: (-counts[word], word))
        vocab = _vocab(words[: self.vocab_size - len(SPECIALS)])
        inner = tokenizers.Tokenizer(models.WordLevel(vocab=vocab, unk_token=SPECIALS[UNK_ID]))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        inner.add_special_tokens(list(SPECIALS))
        return Tokenizer(inner)


def _vocab(tokens: Iterable[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate([*SPECIALS, *tokens])}


TokenizerConfig = Annotated[BPEConfig | CharConfig | WordConfig, Field(discriminator="kind")]
