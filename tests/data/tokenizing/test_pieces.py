"""Long texts are tokenized in pieces whose ids are those of the whole text."""

import sys
from collections.abc import Callable, Iterator
from unicodedata import category

import numpy as np
import pytest
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from addnorm.data.tokenizing import codecs, pieces
from addnorm.data.tokenizing.codecs import CustomCodec
from addnorm.data.tokenizing.pieces import ids_of
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig, Tokenizer, WordConfig
from addnorm.errors import InputError

BITS = [" ", "  ", "\n", "\n\n", "\r", "\t", "\u2028", "\u00a0", "\x1c", "e\u0301", "\u0301", "'s"]
BITS += [
    "a",
    "Ab",
    "12",
    "3",
    "!",
    "?!",
    "日本",
    "😀",
    "👩\u200d👩",
    "<pad>",
    "<unk>",
    " <eos> ",
    "ü",
]
texts = st.lists(st.sampled_from(BITS), max_size=60).map("".join)
LEARNT = ["a Ab  Ab\n\nAb 12 12 3!? a's\n a  \n  ü e\u0301  日本 日本\n\n\t\ta\u2028Ab \n" * 9]


@pytest.fixture(scope="module", autouse=True)
def _small_pieces() -> Iterator[None]:
    """Pieces so small that every text has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "PIECE", 5)
        patch.setattr(pieces, "BATCH", 40)
        yield


def changed(change: Callable[[library.Tokenizer], object]) -> Tokenizer:
    """A byte-level tokenizer with something that reaches across pieces."""
    inner = library.Tokenizer.from_str(BPE.inner.to_str())
    change(inner)
    return Tokenizer(inner)


BPE = BPEConfig(vocab_size=330).train(LEARNT)
TOKENIZERS = {
    "char": CharConfig().train(LEARNT),
    "bpe": BPE,
    "word": WordConfig().train([*LEARNT, "<pad> a"]),
    "prefix space": changed(
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True))
    ),
    "no words": changed(
        lambda t: setattr(
            t, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        )
    ),
    "normalizer": changed(lambda t: setattr(t, "normalizer", normalizers.Prepend("!"))),
    "added": changed(lambda t: t.add_tokens([AddedToken("a\nAb"), AddedToken("a Ab")])),
    "truncated": changed(lambda t: t.enable_truncation(7)),
}


def whole(tokenizer: Tokenizer, examples: list[str]) -> list[list[int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "PIECE", 10**6)
        return [tokenizer.encode(text) for text in examples]


def in_pieces(
    tokenizer: Tokenizer, examples: list[str], dtype: type = np.uint16
) -> list[list[int]]:
    result: list[list[int]] = []
    for n, ids in ids_of(tokenizer, examples, np.dtype(dtype)):
        if n == len(result):
            result.append([])
        result[n] += ids.tolist()
    return result


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(examples=st.lists(texts, max_size=4))
def test_pieces_have_the_ids_of_the_whole(kind: str, examples: list[str]) -> None:
    assert in_pieces(TOKENIZERS[kind], examples) == whole(TOKENIZERS[kind], examples)


@pytest.mark.parametrize("kind", ["char", "bpe", "word"])
def test_pieces_of_odd_texts_have_the_ids_of_the_whole(kind: str) -> None:
    odd = [
        "",
        "\n",
        "a" * 300,
        "a b " * 80,
        "a\r\nb\r\n" * 40,
        "e\u0301" * 40,
        " " * 50,
        "a\n" * 40,
    ]
    assert in_pieces(TOKENIZERS[kind], odd) == whole(TOKENIZERS[kind], odd)


@pytest.mark.parametrize("where", ["a{}\nx", "x\n{}b", "a{} x", "x {}b"])
def test_no_white_space_is_taken_for_a_letter(where: str) -> None:
    """What the library's words take for white space, and Python does not, would be cut wrongly."""
    odd = [chr(i) for i in range(1, sys.maxunicode) if category(chr(i)) in ("Zs", "Zl", "Zp", "Cc")]
    odd += ["\u180e", "\u200b", "\ufeff"]
    examples = ["aaaaaa" + where.format(character) + "aaaaaa" for character in odd]
    assert in_pieces(BPE, examples) == whole(BPE, examples)


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_most_texts_are_cut(kind: str) -> None:
    """Or else the tests above could not fail."""
    numbers = [n for n, _ in ids_of(TOKENIZERS[kind], LEARNT, np.dtype(np.uint16))]
    assert len(numbers) > 20


def test_a_tokenizer_learns_from_pieces_what_it_learns_from_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for config in (BPEConfig(vocab_size=330), WordConfig()):
        small = config.train(LEARNT).inner.to_str()
        with monkeypatch.context() as patch:
            patch.setattr(codecs, "PIECE", 10**6)
            assert config.train(LEARNT).inner.to_str() == small


def test_progress_is_counted_in_characters() -> None:
    for tokenizer in TOKENIZERS.values():
        counts: list[int] = []
        for _ in ids_of(tokenizer, [*LEARNT, "", "ab"], np.dtype(np.uint16), counts.append):
            pass
        assert sum(counts) == len(LEARNT[0]) + 2


def test_half_a_character_is_refused() -> None:
    for kind in ("char", "bpe"):
        with pytest.raises(InputError, match="half a surrogate pair"):
            in_pieces(TOKENIZERS[kind], ["a\ud83d"])


def test_ids_that_do_not_fit_the_type_are_refused() -> None:
    with pytest.raises(AssertionError):
        in_pieces(BPE, ["Ab"], np.uint8)


def test_a_custom_tokenizer_reads_whole_texts() -> None:
    encoded: list[str] = []

    class Custom:
        vocab_size = 300

        def encode(self, text: str) -> list[int]:
            encoded.append(text)
            return [*text.encode()]

        def decode(self, ids: list[int]) -> str:
            return bytes(ids).decode()

        def save(self, folder: object) -> None: ...

    examples = ["a b c d e f\ng" * 9, "", "x"]
    tokenizer = Tokenizer(CustomCodec(Custom(), CharConfig()))
    assert in_pieces(tokenizer, examples) == [[i + 4 for i in text.encode()] for text in examples]
    assert encoded == examples
