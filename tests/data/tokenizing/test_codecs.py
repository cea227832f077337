"""Custom tokenizers: ids after the special ones, saved and loaded by themselves."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data import Corpus, Pair
from addnorm.data.examples import Image, Text
from addnorm.data.tokenizing import codecs
from addnorm.data.tokenizing.codecs import (
    BETWEEN_WORDS,
    SPECIALS,
    CustomCodec,
    LibraryCodec,
    pieces_of,
)
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import (
    BPEConfig,
    CharConfig,
    Tokenizer,
    TokenizerConfig,
    WordConfig,
    train_tokenizer,
)
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode


class Bytes:
    """UTF-8, one id a byte, shifted by a number so that there is something to save."""

    vocab_size = 256

    def __init__(self, shift: int) -> None:
        self.shift = shift

    def encode(self, text: str) -> list[int]:
        return [(byte + self.shift) % 256 for byte in text.encode()]

    def decode(self, ids: list[int]) -> str:
        return bytes((i - self.shift) % 256 for i in ids).decode(errors="replace")

    def save(self, folder: Path) -> None:
        (folder / "shift.json").write_text(json.dumps(self.shift))


@dataclass(frozen=True)
class BytesConfig:
    shift: int = 3
    joint: bool = True

    def train(self, texts: Iterable[str]) -> Bytes:
        return Bytes(self.shift + sum(1 for _ in texts))

    def load(self, folder: Path) -> Bytes:
        return Bytes(json.loads((folder / "shift.json").read_text()))


TEXTS = ["Grüße!", "", "<pad> is text", "漢字 and 🎈"]


def test_every_text_comes_back(tmp_path: Path) -> None:
    made = train_tokenizer(BytesConfig(), TEXTS)
    assert made.vocab_size == 260
    for text in TEXTS:
        ids = made.encode(text)
        assert all(4 <= i < 260 for i in ids)
        assert made.decode([2, *ids, 3]) == text
        stream = made.stream()
        assert "".join(stream.push(i) for i in [2, *ids, 3]) + stream.finish() == text
    assert made.pieces([0, made.encode("a")[0]]) == ["<pad>", "a"]
    assert not made.is_text(0)
    assert made.is_text(4)
    assert not made.is_text(260)
    assert made.encode_words(["ab", "c"]) == (made.encode("ab c"), [0, 2])
    made.save(tmp_path / "tokenizer.json")
    read = Tokenizer.load(tmp_path / "tokenizer.json")
    assert [read.encode(text) for text in TEXTS] == [made.encode(text) for text in TEXTS]


@pytest.mark.parametrize("joint", [True, False])
def test_both_sides_of_a_translation_are_saved(joint: bool, tmp_path: Path) -> None:
    corpus = Corpus(train=[Pair("a", "b"), Pair("c", "d")])
    made = Tokenizers.train(BytesConfig(joint=joint), corpus)
    assert (made.source is made.target) == joint
    made.save(tmp_path)
    read = Tokenizers.load(tmp_path)
    assert encode(corpus, read) == encode(corpus, made)


def test_other_libraries_are_told_its_name() -> None:
    with pytest.raises(InputError, match="BytesConfig, which only AddNorm reads"):
        _ = train_tokenizer(BytesConfig(), TEXTS).inner


class Wrong(Bytes):
    def encode(self, text: str) -> list[int]:
        return [256]


class Empty(Bytes):
    vocab_size = 0


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (Empty(0), "vocab_size = 0"),
        (object(), r"no encode\(\)"),
        (Wrong(0), "its ids are 0 to 255"),
    ],
)
def test_an_incomplete_tokenizer_is_refused(own: Any, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        Tokenizer(CustomCodec(own, BytesConfig())).encode("a")


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InputError, match="surrogate"):
        train_tokenizer(BytesConfig(), TEXTS).encode("\ud800")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"own_tokenizer": {"kind": "not_there:Config"}}', "needs the module not_there"),
        ('{"own_tokenizer": 3}', "tokenizer.json"),
        ('{"own_tokenizer": {"kind": "bpe"}}', "damaged"),
        ("[]", "is not a tokenizer"),
    ],
)
def test_a_damaged_file_is_named(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(InputError, match=expected) as caught:
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert str(tmp_path) in str(caught.value)


def test_texts_need_a_tokenizer_and_images_have_none() -> None:
    import torch

    with pytest.raises(InputError, match="no tokenizer"):
        encode(Corpus(train=[Text("a")]), None)
    image = Image(torch.zeros(1, 2, 2, dtype=torch.uint8), "a")
    made = train_tokenizer(BytesConfig(), TEXTS)
    with pytest.raises(InputError, match="images"):
        encode(Corpus(train=[image]), Tokenizers(made, made))
    with pytest.raises(InputError, match="examples of one kind"):
        Corpus(train=[image, Text("a")])
    assert len(SPECIALS) == 4


SAMPLE = (
    "It's 3.5°: don't  stop\n\n'tis l'été_x 漢字，漢 字。¿sí? 'll a\u0301b \u00a0x\x1cy\r\nz 12ab "
    * 3
)


@pytest.mark.parametrize("config", [CharConfig(), BPEConfig(vocab_size=300), WordConfig()])
def test_a_long_text_has_the_same_ids_in_pieces(
    config: TokenizerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = train_tokenizer(config, [SAMPLE])
    assert isinstance(made.codec, LibraryCodec)
    whole = made.encode_batch([SAMPLE, "", "a b"])
    monkeypatch.setattr(codecs, "AT_ONCE", 40)
    for n in range(1, 30):  # so that each place is one where a piece may end
        monkeypatch.setattr(codecs, "PIECE", n)
        assert len([*pieces_of(SAMPLE, made.codec.division)]) > 2
        assert made.encode_batch([SAMPLE, "", "a b"]) == whole


def test_a_text_whose_division_is_unknown_stays_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codecs, "PIECE", 4)
    made = train_tokenizer(WordConfig(words="kim"), ["a,b a , b"])
    assert isinstance(made.codec, LibraryCodec)
    assert made.codec.division is None
    assert [*pieces_of("abcdefgh ij", None)] == ["abcdefgh ij"]
    assert [*pieces_of("abcdefgh ij", BETWEEN_WORDS)] == ["abcdefgh", " ij"]


def test_bpe_learns_the_same_from_pieces_and_refuses_a_word_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = train_tokenizer(BPEConfig(vocab_size=300), [SAMPLE]).inner.to_str()
    monkeypatch.setattr(codecs, "PIECE", 7)
    assert train_tokenizer(BPEConfig(vocab_size=300), [SAMPLE]).inner.to_str() == whole
    monkeypatch.setattr(codecs, "LONGEST_WORD", 30)
    with pytest.raises(InputError, match=r'\d\d characters without a space.* use kind = "char"'):
        train_tokenizer(BPEConfig(), ["a b " + "x" * 40])


def test_a_conversation_changes_no_text_that_another_thread_encodes() -> None:
    tokenizer = BPEConfig(vocab_size=270).train(["to be or not to be"])
    codec = tokenizer.codec
    assert isinstance(codec, LibraryCodec)
    text = "<eos> to be" * 2000
    expected = codec.encode([text])
    with ThreadPoolExecutor(1) as other:
        marking = other.submit(lambda: [codec.encode_marked([text]) for _ in range(10)])
        while not marking.done():
            assert codec.encode([text]) == expected
        assert marking.result()[0] != expected


@given(st.text(min_size=1))
def test_no_text_has_more_characters_than_its_tokens_may_have(text: str) -> None:
    for kind in (BPEConfig(vocab_size=270), CharConfig()):
        tokenizer = kind.train(["to be or not to be, to be"])
        assert len(text) <= tokenizer.codec.longest * len(tokenizer.encode(text))
