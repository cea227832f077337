"""Tokenizers: text to ids and back, with the `tokenizers` library or a custom codec."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from functools import cached_property
from itertools import chain, islice
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal
from warnings import warn

import tokenizers
from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from addnorm.atomic import atomic_write
from addnorm.config import config, problem_of
from addnorm.data.tokenizing.codecs import (
    SPACED,
    SPECIALS,
    CustomCodec,
    LibraryCodec,
    TokenizerPart,
    cut,
    whole_words,
)
from addnorm.data.tokenizing.word_numbers import count_words
from addnorm.data.tokenizing.word_splitting import (
    WordSplitting,
    lower_case,
    word_splitter,
    words_of,
)
from addnorm.errors import InputError, UnknownCharacters, some_of
from addnorm.files import read_file, read_json
from addnorm.parts import FROM_FILE, Family, dump

PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)


class Tokenizer:
    """Converts text to ids and back, without adding special tokens or reading them from the text.

    An imported tokenizer also has the ids `before` and `after` each text that a model reads; ours
    leave these to the task (None). It may have no unknown token, or no end.

    The ids of generation differ from the special tokens of the tokenizer. Generation begins with
    `bos_id`, which is an end where there is no start, and stops at `eos_ids`, of which `eos_id` is
    the first; it never yields `never_ids`. A training text ends with `end_id`, by default `eos_id`,
    and a chat template reads `names`, such as `eos_token`: None where the tokenizer has no names.
    Missing padding is 0: no model reads it.

    A text to continue begins with `before` too, or with `begins` where it is given: the ids that
    began each row in a language model's training.

    With `lowercase` it first puts every text in lower case, as the model was trained. Nothing else
    changes a text between a file and its ids, so training, use, evaluation and exports agree.

    Raises `InputError` for text that is not Unicode: half a surrogate pair.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer | CustomCodec,
        *,
        pad_id: int | None = PAD_ID,
        unk_id: int | None = UNK_ID,
        bos_id: int | None = BOS_ID,
        eos_ids: tuple[int, ...] = (EOS_ID,),
        never_ids: tuple[int, ...] = (),
        before: tuple[int, ...] | None = None,
        after: tuple[int, ...] | None = None,
    ) -> None:
        self.codec = inner if isinstance(inner, CustomCodec) else LibraryCodec(inner)
        self.pad_id = pad_id or 0
        self.unk_id = unk_id
        self.eos_id = eos_ids[0] if eos_ids else None
        self.end_id = self.eos_id
        self.bos_id = bos_id if bos_id is not None else self.eos_id or 0
        self.names: Mapping[str, str] | None = None
        self.never_ids = never_ids
        self.eos_ids = eos_ids
        self.before = before
        self.after = after
        self.begins: tuple[int, ...] | None = None
        self.lowercase = False
        self.step = 1  # learnt from one of so many texts
        self.spelt: Mapping[int, str] = {}
        self.warned_of = set[str]()  # the unknown characters that a warning has named
        self.special_ids = self.codec.special_ids
        self.byte_ids = self.codec.byte_ids

    @classmethod
    def learnt(cls, inner: tokenizers.Tokenizer, step: int = 1) -> "Tokenizer":
        """Return a tokenizer trained here, from one of so many texts.

        Lower case becomes a setting, not a normalizer.
        """
        lowercase = isinstance(inner.normalizer, normalizers.Lowercase)
        plain = without_lower_case(inner) if lowercase else inner
        return cls(plain).lowercased(lowercase)._with(step=step)

    def lowercased(self, lowercase: bool = True) -> "Tokenizer":
        """Return this tokenizer converting texts to lower case first, or not."""
        return self if self.lowercase == lowercase else self._with(lowercase=lowercase)

    def beginning(self, begins: tuple[int, ...] | None) -> "Tokenizer":
        """Return this tokenizer with these ids before a text to continue."""
        return self if self.begins == begins else self._with(begins=begins)

    def spelling(self, marks: Sequence[str]) -> "Tokenizer":
        """Return this tokenizer, whose streams also write the special tokens in `marks`."""
        ids = {mark: self.id_of(mark) for mark in marks}
        return self._with(spelt={i: mark for mark, i in ids.items() if i in self.special_ids})

    @cached_property
    def inner(self) -> tokenizers.Tokenizer:
        """The library's tokenizer with the same ids; lower case is its first normalizer.

        Raises `InputError` for a custom tokenizer.
        """
        if isinstance(self.codec, CustomCodec):
            raise InputError(
                f"the tokenizer is {self.codec.kind}, which only AddNorm reads: other libraries "
                "need one of the tokenizers library, such as bpe"
            )
        return with_lower_case(self.codec.inner) if self.lowercase else self.codec.inner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.vocab_size:,} tokens>"

    @cached_property
    def vocab_size(self) -> int:
        """The number of ids, including special ones: the largest id plus one."""
        return self.codec.vocab_size

    def named(self, names: Mapping[str, str] | None, end_id: int | None) -> "Tokenizer":
        """Return this tokenizer with names for special tokens, and the end token of a text."""
        return self._with(names=names, end_id=self.eos_id if end_id is None else end_id)

    def ending(self) -> "Tokenizer":
        """Return this tokenizer with `end_id` ending generation too, for a model that learnt it."""
        if self.end_id is None or self.end_id in self.eos_ids:
            return self
        ends = (*self.eos_ids, self.end_id)
        return self._with(eos_ids=ends, eos_id=ends[0])

    def _with(self, **changes: Any) -> "Tokenizer":
        other = copy(self)
        other.__dict__.pop("inner", None)  # a cached property
        other.__dict__.update(changes)
        return other

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts, computed on all cores."""
        texts = [self.prepared(text) for text in texts] if self.lowercase else texts
        rows = self.codec.encode(texts)
        special = [n for n, ids in enumerate(rows) if not self.special_ids.isdisjoint(ids)]
        self.warn_of_unknown(texts[n] for n in special)
        for n in special:
            rows[n] = self._without_special(rows[n])
        return rows

    def encode_marked(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts, reading an imported tokenizer's special tokens in them.

        They are read as transformers reads them. For a tokenizer that was learnt here, the spelling
        of a special token is a text like any other.
        """
        if self.before is None or not isinstance(self.codec, LibraryCodec):
            return self.encode_batch(texts)
        return self.codec.encode_marked([self.prepared(text) for text in texts])

    def prepared(self, text: str) -> str:
        """Return a text as it will be encoded: in lower case, if this tokenizer uses that."""
        return lower_case(text) if self.lowercase else text

    def warn_of_unknown(self, texts: Iterable[str]) -> None:
        """Warn of the characters in prepared texts that a character tokenizer does not know.

        Each is named once. Training has none: all characters of its texts are known.
        """
        if self.codec.unknown_character is None:
            return
        counts = Counter(chain.from_iterable(texts))
        new = {c: n for c, n in counts.items() if c not in self.warned_of and self.id_of(c) is None}
        self.warned_of.update(new)
        if new:
            names = some_of(f"{c!r} ({n:,} times)" if n > 1 else repr(c) for c, n in new.items())
            what = f"{len(new):,} characters" if len(new) > 1 else "a character"
            warn(
                f"the tokenizer does not know {what}, which the model reads as unknown: {names}",
                UnknownCharacters,
                stacklevel=3,
            )

    def count_unknown(self, ids: Sequence[int]) -> int:
        """The number of ids that stand for what the tokenizer does not know.

        GPT-2's unknown token, which nothing is read as, is its end token.
        """
        if self.unk_id is None or self.unk_id in (self.bos_id, *self.eos_ids):
            return 0
        return ids.count(self.unk_id)

    def _without_special(self, ids: Sequence[int]) -> list[int]:
        # A whole word may be spelt like a special token; as text it is an unknown word.
        unknown = [] if self.unk_id is None else [self.unk_id]
        return [j for i in ids for j in (unknown if i in self.special_ids else [i])]

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the ids of a row of words, and the index of each word's first piece.

        All words but the first are encoded with the space before them, as in a text. A word without
        a piece is the unknown token, or padding where there is none.
        """
        nothing = self.pad_id if self.unk_id is None else self.unk_id
        spaced = [word if n == 0 else f" {word}" for n, word in enumerate(words)]
        ids: list[int] = []
        first: list[int] = []
        for word in self.encode_batch(spaced):
            first.append(len(ids))
            ids += word or [nothing]
        return ids, first

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self.codec.decode(ids)

    def is_text(self, i: int) -> bool:
        """Whether an id stands for text: it is in the vocabulary and not special."""
        return i not in self.special_ids and self.codec.name(i) is not None

    says = is_text  # the former name

    def id_of(self, token: str) -> int | None:
        """Return the id of a token; None if it is not in the vocabulary."""
        return self.codec.id_of(token)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return a readable string for each id: its text, or its token for half a character."""
        texts = self.codec.alone(ids)
        return [
            self.codec.name(i) or "" if "\ufffd" in text else text
            for i, text in zip(ids, texts, strict=True)
        ]

    def stream(self, after: Sequence[int] = ()) -> "Stream":
        """Return a decoder that takes one id at a time, for a text that continues `after`."""
        return Stream(self, after)

    def save(self, path: Path) -> None:
        """Write a `tokenizer.json` that the library can read.

        The ids of an imported tokenizer are written next to it, to `tokenizer.ids.json`; of one
        that was learnt from one of several texts, how many, to `tokenizer.sample.json`. A custom
        tokenizer writes itself into the folder `tokenizer`; its `tokenizer.json` has the
        configuration that reads it.
        """
        if isinstance(self.codec, CustomCodec):
            self.codec.save(path.with_suffix(""))
            table = {CUSTOM: dump(self.codec.config)}
            table |= {LOWERCASE: True} if self.lowercase else {}
            atomic_write(path, json.dumps(table, indent=1) + "\n")
            return
        atomic_write(path, self.inner.to_str(pretty=True))
        sample = path.with_suffix(".sample.json")
        if self.step > 1:
            atomic_write(sample, json.dumps({"one_of": self.step}) + "\n")
        else:
            sample.unlink(missing_ok=True)
        ids = path.with_suffix(".ids.json")
        if self.before is None or self.after is None:
            ids.unlink(missing_ok=True)
            return
        values = {field: getattr(self, field) for field in ForeignIds.__annotations__}
        atomic_write(ids, json.dumps(values, indent=2, default=dict) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a saved tokenizer; raise `InputError` if it is missing, damaged or foreign."""
        text = _read(path)
        if (table := _custom_table(text)) is not None:
            return _load_custom(path, table)
        inner = _parsed(text, path)
        ids = path.with_suffix(".ids.json")
        if ids.exists():
            values = asdict(read_json(ids, TypeAdapter(ForeignIds)))
            names, end_id = values.pop("names"), values.pop("end_id")
            lowercase = values.pop("lowercase")
            plain = without_lower_case(inner) if lowercase else inner
            return cls(plain, **values).named(names, end_id).lowercased(lowercase)
        if tuple(inner.id_to_token(i) for i in range(4)) != SPECIALS:
            raise InputError(
                f"{path} does not start with {' '.join(SPECIALS)}: not saved by AddNorm"
            )
        sample = path.with_suffix(".sample.json")
        step = read_json(sample, TypeAdapter(Sample)).one_of if sample.exists() else 1
        return cls.learnt(inner, step)


@config
class Sample:
    """The texts from which a tokenizer was learnt: one of so many."""

    one_of: PositiveInt


SAMPLE = 8_000_000
"""Characters from which byte-pair encoding learns, by default."""

MOST_TOKENS = 2**22
"""The largest vocabulary that is learnt, about ten times the largest published one."""


@config
class ForeignIds:
    """The special ids of an imported tokenizer, under the names used by `Tokenizer`."""

    pad_id: NonNegativeInt
    unk_id: NonNegativeInt | None
    bos_id: NonNegativeInt
    eos_ids: tuple[NonNegativeInt, ...]
    never_ids: tuple[NonNegativeInt, ...]
    before: tuple[NonNegativeInt, ...]
    after: tuple[NonNegativeInt, ...]
    end_id: NonNegativeInt | None = None
    names: dict[str, str] | None = None
    lowercase: bool = False


MOST_ADDED = 50_000
"""Added tokens of a `tokenizer.json`; published ones have some hundreds."""


def read_inner(path: Path) -> tokenizers.Tokenizer:
    """Read a `tokenizer.json`; raise `InputError` if it is missing or damaged."""
    return _parsed(_read(path), path)


def _read(path: Path) -> str:
    try:
        return read_file(path).decode()
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing") from error
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a tokenizer: {error}") from error


def _parsed(text: str, path: Path) -> tokenizers.Tokenizer:
    n = text.count('"single_word"')
    try:
        if n <= MOST_ADDED:
            json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a tokenizer: {error}") from error
    if n > MOST_ADDED:  # each takes the library milliseconds
        raise InputError(f"{path}: {n:,} added tokens: at most {MOST_ADDED:,} are read")
    try:
        return tokenizers.Tokenizer.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # nothing more precise is raised; some damage makes it panic
        raise InputError(f"{path} is not a tokenizer: {error}") from error


CUSTOM, LOWERCASE = "own_tokenizer", "lowercase"
"""The keys in the `tokenizer.json` of a custom tokenizer: its configuration, and lower case."""


def _custom_table(text: str) -> Any:
    """The content of a custom tokenizer's `tokenizer.json`; None for a file of the library."""
    try:
        table = json.loads(text) if CUSTOM in text[:100] else None
    except (ValueError, RecursionError):
        return None  # `_parsed` raises the error
    return table if isinstance(table, dict) and CUSTOM in table else None


def _load_custom(path: Path, table: dict[str, Any]) -> Tokenizer:
    try:
        part = TypeAdapter[Any](TokenizerConfig).validate_python(table[CUSTOM], context=FROM_FILE)
    except ValidationError as error:
        first = problem_of(error.errors(include_url=False)[0])
        raise InputError(f"{path}: {first}") from error
    folder = path.with_suffix("")
    if not isinstance(part, TokenizerPart) or not folder.is_dir():
        raise InputError(f"{path}: damaged: no tokenizer in {folder}")
    tokenizer = Tokenizer(CustomCodec(part.load(folder), part))
    return tokenizer.lowercased(table.get(LOWERCASE) is True)


def with_lower_case(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a copy of a tokenizer that converts text to lower case first."""
    other = tokenizers.Tokenizer.from_str(inner.to_str())
    first, rest = normalizers.Lowercase(), other.normalizer
    other.normalizer = first if rest is None else normalizers.Sequence([first, rest])
    other.encode_special_tokens = inner.encode_special_tokens
    return other


def without_lower_case(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Undo `with_lower_case`: return the tokenizer without that first step."""
    table: dict[str, Any] = json.loads(inner.to_str())
    match table["normalizer"]:
        case {"type": "Lowercase"}:
            table["normalizer"] = None
        case {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *rest]}:
            table["normalizer"] = {"type": "Sequence", "normalizers": rest}
        case _:
            return inner
    return tokenizers.Tokenizer.from_str(json.dumps(table))


def train_tokenizer(config: "TokenizerConfig", texts: Iterable[str]) -> Tokenizer:
    """Train the tokenizer of a built-in or custom configuration on texts."""
    trained = config.train(texts)
    return trained if isinstance(trained, Tokenizer) else Tokenizer(CustomCodec(trained, config))


class Stream:
    """A decoder of single ids; its pieces of text join to the decoding of all ids.

    Text that ends in U+FFFD may be a character whose bytes are not complete: it is held back until
    they are, or until `finish`. Tokens that are single bytes make one text or one error together,
    so they are held back until another token follows.

    `after` are earlier ids of the same text: the decoder yields only the text that new ids add.
    Some decoders drop the space of the first token of a text, so the earlier ids matter.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # Ids from the last place but one where a character was complete: some decoders write a
        # space between tokens, so the text of new ids depends on what stands before them.
        before = [i for i in after if tokenizer.is_text(i)]
        whole = (n for n in range(len(before) - 1, -1, -1) if before[n] not in tokenizer.byte_ids)
        self._ids: list[int] = before[next(whole, 0) :]
        self._complete = len(self._ids)  # how many of these ids are complete
        # How many characters of the text of these ids have been returned.
        self._printed = len(tokenizer.decode(self._ids)) if self._ids else 0

    def push(self, i: int) -> str:
        """Return the text that one more id completes, which is often empty."""
        if (mark := self._tokenizer.spelt.get(i)) is not None:
            rest = self.finish()
            self._ids, self._complete, self._printed = [], 0, 0
            return rest + mark
        if not self._tokenizer.is_text(i):
            return ""
        self._ids.append(i)
        if i in self._tokenizer.byte_ids:
            return ""
        text = self._tokenizer.decode(self._ids)
        certain = text.rstrip("\ufffd")
        new, self._printed = certain[self._printed :], max(self._printed, len(certain))
        if certain == text:
            self._ids = self._ids[self._complete :]
            self._complete = len(self._ids)
            self._printed = len(self._tokenizer.decode(self._ids))
        return new

    @property
    def held(self) -> str:
        """The text held back, with U+FFFD for incomplete characters."""
        return self._tokenizer.decode(self._ids)[self._printed :]

    def finish(self) -> str:
        """Return the text held back, with U+FFFD for incomplete characters."""
        rest = self.held
        self._printed += len(rest)
        return rest


@config
class BPEConfig:
    """Byte-pair encoding (Sennrich et al. 2016, §3.2) of UTF-8 bytes (Radford et al. 2019, §2.2).

    Every string has an encoding, and decodes to itself. `joint` trains one tokenizer on source and
    target together. The vocabulary is smaller than `vocab_size` where the text has fewer pairs that
    occur `min_frequency` times.
    """

    kind: Literal["bpe"] = "bpe"
    vocab_size: Annotated[int, Field(ge=len(SPECIALS) + 256, le=MOST_TOKENS)] = 8000
    """The maximum size of the vocabulary, special tokens and the 256 bytes included."""
    min_frequency: PositiveInt = 2
    """How often a pair must occur in the training text to be merged."""
    sample: PositiveInt | None = None
    """How many characters to learn from: of more, every second text, every third, and so on. By
    default 1,000 for each entry of the vocabulary, and not under 8 million."""
    joint: bool = True
    """Train one tokenizer on source and target together; else one for each."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the merges."""
        texts = list(texts)
        most = self.sample or max(SAMPLE, 1000 * self.vocab_size)
        step = ceil(sum(map(len, texts)) / most) or 1
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
        inner.train_from_iterator(islice(whole_words(texts), 0, None, step), trainer)
        return Tokenizer.learnt(inner, step)


@config
class CharConfig:
    """One id for each character of the training text; others are unknown."""

    kind: Literal["char"] = "char"
    joint: bool = True
    """Use one vocabulary for source and target together; else one for each."""

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
    """One id for each of the most frequent words; others are unknown.

    Words stand between white space, or are split by `words`; decoding puts one space between them.
    """

    kind: Literal["word"] = "word"
    vocab_size: Annotated[int, Field(gt=len(SPECIALS), le=MOST_TOKENS)] = 30_000
    """The maximum size of the vocabulary, special tokens included."""
    min_frequency: PositiveInt = 1
    """How often a word must occur in the training text to be known."""
    words: WordSplitting = "white_space"
    """Where words are split: at `white_space`, or as in Kim 2014 (`kim`): marks and endings such as
    `n't` on their own, other signs left out."""
    joint: bool = True
    """Use one vocabulary for source and target together; else one for each."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Count the words; the most frequent come first, ties in order of code points."""
        counts = Counter[str]()
        for spaced, n in count_words(cut(texts, SPACED)).items():
            for word in words_of(spaced, self.words):
                counts[word] += n
        words = [
            word for word, n in counts.items() if n >= self.min_frequency and word not in SPECIALS
        ]
        words.sort(key=lambda word: (-counts[word], word))
        vocab = _vocab(words[: self.vocab_size - len(SPECIALS)])
        inner = tokenizers.Tokenizer(models.WordLevel(vocab=vocab, unk_token=SPECIALS[UNK_ID]))
        inner.pre_tokenizer = word_splitter(self.words)
        inner.add_special_tokens(list(SPECIALS))
        return Tokenizer(inner)


def _vocab(tokens: Iterable[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate([*SPECIALS, *tokens])}


TokenizerConfig = Annotated[
    BPEConfig | CharConfig | WordConfig | TokenizerPart,
    Family("tokenizer", TokenizerPart, method="train"),
]
"""Every tokenizer there is."""
