"""Reading SentencePiece model files as equivalent tokenizers, without the library.

The file is one protobuf message, defined in `sentencepiece_model.proto`:
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import math
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers

from addnorm.errors import InputError
from addnorm.files import read_file

T = TypeVar("T")

SPACE = "▁"
"""The symbol for a space in pieces."""

ELSEWHERE = "\0"
"""The prefix of pieces that only the other model of a pair has, so that no text matches them."""


class Kind(IntEnum):
    """The type of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Algorithm(IntEnum):
    """The segmentation algorithm; word and character models are not supported."""

    UNIGRAM = 1
    BPE = 2


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary."""

    text: str
    score: float
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class SentencePiece:
    """The content of a SentencePiece file: pieces by id, normalisation and segmentation.

    `charsmap` is applied to the text first. Exactly one piece is of the unknown type.
    """

    pieces: tuple[Piece, ...]
    algorithm: Algorithm
    byte_fallback: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool

    @classmethod
    def read(cls, path: Path) -> "SentencePiece":
        """Read a file. Raises `InputError` if it is damaged."""
        try:
            return _model(read_file(path))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        except ValueError as error:
            raise InputError(f"{path} is not a SentencePiece model: {error}") from error

    def build(self) -> tokenizers.Tokenizer:
        """Build the tokenizer with the file's own ids."""
        return self._build([(piece.text, piece.score) for piece in self.pieces])

    def build_for(self, vocab: Sequence[str], unsplit: Collection[str]) -> tokenizers.Tokenizer:
        """Build the tokenizer with the ids of a vocabulary shared with another model.

        Tokens that only the other model has can be decoded, but not encoded; those in `unsplit` are
        never split. Pieces missing from the vocabulary are encoded as smaller pieces.
        """
        scores = {piece.text: piece.score for piece in self.pieces}
        plain = scores.keys() | set(unsplit)
        names = (name if name in plain else ELSEWHERE + name for name in vocab)
        return self._build([(name, scores.get(name, 0)) for name in names])

    def _build(self, entries: list[tuple[str, float]]) -> tokenizers.Tokenizer:
        [unknown] = self._names(Kind.UNKNOWN)
        ids = {name: i for i, (name, _) in enumerate(entries)}
        if self.algorithm is Algorithm.UNIGRAM:
            model = models.Unigram(entries, ids[unknown], self.byte_fallback)
        else:
            model = models.BPE(
                vocab=ids,
                merges=self._merges(ids),
                unk_token=unknown,
                fuse_unk=True,
                byte_fallback=self.byte_fallback,
            )
        inner = tokenizers.Tokenizer(model)
        inner.normalizer = self._normalizer()
        inner.decoder = self._decoder()
        special = [unknown, *self._names(Kind.CONTROL)]
        inner.add_special_tokens(
            [AddedToken(name, normalized=False) for name in special if name in ids]
        )
        symbols = [name for name in self._names(Kind.USER_DEFINED) if name in ids]
        # Symbols with spaces are matched after normalisation replaced the spaces.
        inner.add_tokens([AddedToken(name, normalized=SPACE in name) for name in symbols])
        return inner

    def _names(self, kind: Kind) -> list[str]:
        return [piece.text for piece in self.pieces if piece.kind is kind]

    def _merges(self, ids: Mapping[str, int]) -> list[tuple[str, str]]:
        """All merges of two pieces into one, ordered by score, then by length of the left piece."""
        scores = {p.text: p.score for p in self.pieces if p.kind is Kind.NORMAL and p.text in ids}
        pairs = [
            (-score, cut, text[:cut], text[cut:])
            for text, score in scores.items()
            for cut in range(1, len(text))
            if text[:cut] in scores and text[cut:] in scores
        ]
        return [(left, right) for _, _, left, right in sorted(pairs)]

    def _normalizer(self) -> normalizers.Normalizer:
        space = SPACE if self.escape_whitespaces else " "
        steps: list[normalizers.Normalizer] = []
        if self.charsmap:
            steps.append(normalizers.Precompiled(self.charsmap))
        if self.remove_extra_whitespaces:
            steps += [_delete(r"\A +"), normalizers.Replace(Regex(" {2,}"), " ")]
        if self.add_dummy_prefix:
            steps.append(normalizers.Prepend(space))
        if self.escape_whitespaces:
            steps.append(normalizers.Replace(" ", SPACE))
        if self.remove_extra_whitespaces:
            steps.append(_delete(rf"{space}+\z"))
        return normalizers.Sequence(steps)

    def _decoder(self) -> decoders.Decoder:
        steps: list[decoders.Decoder] = [decoders.Replace(ELSEWHERE, "")]
        if self.escape_whitespaces:
            steps.append(decoders.Replace(SPACE, " "))
        if self.byte_fallback:
            steps.append(decoders.ByteFallback())
        steps.append(decoders.Fuse())
        if self.add_dummy_prefix or self.remove_extra_whitespaces:
            steps.append(decoders.Strip(" ", 1, 0))
        return decoders.Sequence(steps)


def _delete(pattern: str) -> normalizers.Normalizer:
    return normalizers.Replace(Regex(pattern), "")


def _model(data: bytes) -> SentencePiece:
    model = _fields(data)
    trainer = _message(model, 2)
    normalizer = _message(model, 3)
    pieces = tuple(_piece(i, piece) for i, piece in enumerate(_all(model, 1, bytes)))
    _check_pieces(pieces)
    charsmap = _last(normalizer, 2, b"")
    if charsmap:
        check_charsmap(charsmap)
    if _flag(trainer, 24, False):
        raise ValueError("treat_whitespace_as_suffix is not supported")
    return SentencePiece(
        pieces=pieces,
        algorithm=_choice(Algorithm, _last(trainer, 3, 1), "model_type"),
        byte_fallback=_flag(trainer, 35, False),
        charsmap=charsmap,
        add_dummy_prefix=_flag(normalizer, 3, True),
        remove_extra_whitespaces=_flag(normalizer, 4, True),
        escape_whitespaces=_flag(normalizer, 5, True),
    )


def _piece(i: int, data: bytes) -> Piece:
    fields = _fields(data)
    text = _last(fields, 1, b"").decode()
    score = _last(fields, 2, 0.0)
    if not text or ELSEWHERE in text:
        raise ValueError(f"piece {i} is {text!r}")
    if not math.isfinite(score):
        raise ValueError(f"piece {i}, {text!r}, has the score {score}")
    return Piece(text, score, _choice(Kind, _last(fields, 3, 1), f"the type of piece {i}"))


def _check_pieces(pieces: Sequence[Piece]) -> None:
    seen = set[str]()
    for i, piece in enumerate(pieces):
        if piece.text in seen:
            raise ValueError(f"piece {i}, {piece.text!r}, occurs twice")
        seen.add(piece.text)
    unknown = [i for i, piece in enumerate(pieces) if piece.kind is Kind.UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(f"{len(unknown)} of {len(pieces)} pieces are of type unknown, not 1")


def check_charsmap(data: bytes) -> None:
    """Raise `ValueError` unless every look-up in the character map stays within its table.

    The map consists of the size in bytes (4 bytes), a double-array trie (Aoe 1989) of 32-bit units,
    and the zero-terminated replacements in UTF-8. `tokenizers` does not check it.
    """
    size = int.from_bytes(data[:4], "little")
    texts = data[4 + size :]
    if not size or size % 4 or len(data) < 4 + size:
        raise ValueError(f"a charsmap of {len(data)} bytes cannot have a table of {size}")
    texts.decode()
    units = struct.unpack_from(f"<{size // 4}I", data, 4)
    for i, unit in enumerate(units):
        if unit >> 31:  # a leaf value, not a node
            continue
        base = i ^ (unit >> 10 << (unit >> 6 & 8))
        if base | 255 >= len(units):
            raise ValueError(f"unit {i} of the charsmap leads out of its table")
        if unit >> 8 & 1:
            at = units[base] & 0x7FFF_FFFF
            if at >= len(texts) or texts[at] >> 6 == 0b10:
                raise ValueError(f"unit {i} of the charsmap leads to no text")


# Protobuf's wire format: https://protobuf.dev/programming-guides/encoding/

Value = int | float | bytes | None
Fields = dict[int, list[Value]]


def _fields(data: bytes) -> Fields:
    """The values of a message by field number."""
    values: Fields = {}
    for number, value in _pairs(data):
        values.setdefault(number, []).append(value)
    return values


def _pairs(data: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if not tag >> 3 or (tag & 7) not in _READ:
            raise ValueError(f"byte {at - 1} does not start a field")
        value, at = _READ[tag & 7](data, at)
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for n in range(10):
        if at + n >= len(data):
            raise ValueError("the file ends within a number")
        value |= (data[at + n] & 127) << 7 * n
        if data[at + n] < 128:
            return value, at + n + 1
    raise ValueError(f"the number at byte {at} is longer than 10 bytes")


def _block(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _varint(data, at)
    return _slice(data, at, size), at + size


def _single(data: bytes, at: int) -> tuple[float, int]:
    return struct.unpack("<f", _slice(data, at, 4))[0], at + 4


def _nothing(data: bytes, at: int) -> tuple[None, int]:
    """Skip a 64-bit number; no field of interest has one."""
    _slice(data, at, 8)
    return None, at + 8


def _slice(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError(f"the {size} bytes from byte {at} on are {len(data) - at}")
    return data[at : at + size]


_READ: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    0: _varint,
    1: _nothing,
    2: _block,
    5: _single,
}


def _all(fields: Fields, number: int, kind: type[T]) -> list[T]:
    values = fields.get(number, [])
    for value in values:
        if not isinstance(value, kind):
            raise ValueError(f"field {number} holds {type(value).__name__}, not {kind.__name__}")
    return values  # pyright: ignore[reportReturnType]


def _last(fields: Fields, number: int, default: T) -> T:
    """The value of a field; the last occurrence counts, as usual in protobuf."""
    return (_all(fields, number, type(default)) or [default])[-1]


def _flag(fields: Fields, number: int, default: bool) -> bool:
    return _last(fields, number, int(default)) != 0


def _message(fields: Fields, number: int) -> Fields:
    """A nested message; repeated occurrences are concatenated."""
    return _fields(b"".join(_all(fields, number, bytes)))


Choice = TypeVar("Choice", bound=IntEnum)


def _choice(kind: type[Choice], value: int, name: str) -> Choice:
    valid = [member.value for member in kind]
    if value not in valid:
        raise ValueError(f"{name} is {value}, not one of {valid}")
    return kind(value)
