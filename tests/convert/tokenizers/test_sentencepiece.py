"""SentencePiece files: the same ids as the library, and damaged files are refused."""

import io
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.convert.tokenizers.sentencepiece import Algorithm, Kind, SentencePiece
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

TEXTS = [
    "the cat sat on the mat, the other cat did not",
    "die Katze saß auf der Matte",
    "猫はマットの上に座った",
    "to be or not to be that is the question",
    "a rose is a rose is a rose 1234567890",
    "quizzical wizards vex my big sphinx of quartz, judge",
] * 6

TRAINED: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram", "vocab_size": 130},
    "unigram, bytes": {"model_type": "unigram", "vocab_size": 400, "byte_fallback": True},
    "bpe": {"model_type": "bpe", "vocab_size": 200},
    "bpe, bytes, as it is": {
        "model_type": "bpe",
        "vocab_size": 500,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "no prefix, a symbol": {
        "model_type": "unigram",
        "vocab_size": 130,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["<sep>"],
    },
    "spaces and lines are symbols": {
        "model_type": "bpe",
        "vocab_size": 500,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["▁▁", "▁▁▁", "\n", "\n\n"],
    },
}

words = st.lists(
    st.sampled_from(["the", "cat", " ", "\n", "é", "猫", "🐈", "▁", "123", "ros", "q"])
)
anything = st.text() | words.map("".join) | words.map(" ".join)


@cache
def trained(name: str) -> bytes:
    """A model file that the library itself trained."""
    spm = pytest.importorskip("sentencepiece")
    file = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=file,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **TRAINED[name],
    )
    return file.getvalue()


# A writer of the wire format, to make files by hand.


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def single(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", value)


def varint(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def piece(text: str | bytes, score: float = 0.0, kind: int = 1) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return block(1, block(1, raw) + single(2, score) + number(3, kind))


UNK = piece("<unk>", kind=2)
SPACE_A = piece("▁", -1.0) + piece("a", -2.0)


def charsmap(offset: int = 256, leaf: int = 300, value: int = 0, texts: bytes = b" \0") -> bytes:
    """A table of 512 units that replaces a tab; the arguments of a true one are the defaults."""
    units = [0] * 512
    units[0] = offset << 10
    units[256 ^ 9] = 9 | 1 << 8 | (256 ^ 9 ^ leaf) << 10
    units[leaf % 512] = value | 1 << 31
    return struct.pack("<I512I", 4 * 512, *units) + texts


def read(folder: Path, data: bytes) -> SentencePiece:
    (folder / "made.model").write_bytes(data)
    return SentencePiece.read(folder / "made.model")


def test_every_field_is_read(tmp_path: Path) -> None:
    trainer = number(3, 2) + number(35, 1) + number(40, 0) + block(45, b"<unk>")
    normalizer = block(1, b"mine") + block(2, charsmap()) + number(3, 0) + number(4, 0)
    pieces = UNK + piece("</s>", kind=3) + piece("<sep>", kind=4) + piece("a", -1.5)
    found = read(tmp_path, pieces + block(2, trainer) + block(3, normalizer + number(5, 0)))
    assert [p.text for p in found.pieces] == ["<unk>", "</s>", "<sep>", "a"]
    assert [p.kind for p in found.pieces] == [
        Kind.UNKNOWN,
        Kind.CONTROL,
        Kind.USER_DEFINED,
        Kind.NORMAL,
    ]
    assert found.pieces[3].score == -1.5
    assert found.algorithm is Algorithm.BPE
    assert found.byte_fallback
    assert found.charsmap == charsmap()
    assert not found.add_dummy_prefix
    assert not found.remove_extra_whitespaces
    assert not found.escape_whitespaces


def test_missing_fields_have_their_defaults(tmp_path: Path) -> None:
    found = read(tmp_path, UNK + block(1, block(1, b"a")))
    assert found.pieces[1].score == 0.0
    assert found.pieces[1].kind is Kind.NORMAL
    assert found.algorithm is Algorithm.UNIGRAM
    assert not found.byte_fallback
    assert found.add_dummy_prefix
    assert found.remove_extra_whitespaces
    assert found.escape_whitespaces


def test_unknown_fields_and_parts_are_read_as_protobuf_says(tmp_path: Path) -> None:
    other = number(99, 7) + block(98, b"\xff") + single(97, 1.0) + varint(96 << 3 | 1) + bytes(8)
    twice = block(2, number(35, 1)) + block(2, number(35, 0) + number(3, 2))
    found = read(tmp_path, other + UNK + twice + piece("a"))
    assert not found.byte_fallback
    assert found.algorithm is Algorithm.BPE
    assert len(found.pieces) == 2


def test_a_replaced_character_and_spaces(tmp_path: Path) -> None:
    found = read(tmp_path, UNK + SPACE_A + block(3, block(2, charsmap())))
    ours = Tokenizer(found.build(), unk_id=0)
    assert ours.encode(" \ta  a\t") == [1, 2, 1, 2]
    assert ours.decode([1, 2, 1, 2]) == "a a"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 of 0 pieces are of type unknown"),
        (piece("a"), "0 of 1 pieces"),
        (UNK + piece("<x>", kind=2), "2 of 2 pieces"),
        (UNK + piece("a") + piece("a"), "'a', occurs twice"),
        (UNK + piece(""), "piece 1 is ''"),
        (UNK + piece("a\0"), r"piece 1 is 'a\\x00'"),
        (UNK + piece(b"\xff"), "utf-8"),
        (UNK + piece("a", float("nan")), "score nan"),
        (UNK + piece("a", kind=9), "type of piece 1 is 9"),
        (UNK + block(2, number(3, 3)), "model_type is 3, not one of"),
        (UNK + block(2, number(24, 1)), "treat_whitespace_as_suffix"),
        (UNK + number(2, 1), "field 2 holds int, not bytes"),
        (UNK + block(1, number(1, 1)), "field 1 holds int, not bytes"),
        (UNK + block(1, block(1, b"a") + number(2, 1)), "field 2 holds int, not float"),
        (UNK + block(1, block(1, b"a") + varint(2 << 3 | 1) + bytes(8)), "field 2 holds NoneType"),
        (UNK[:-1], "ends|are"),
        (b"\x80", "ends within a number"),
        (b"\x0a\x05ab", "the 5 bytes from byte 2 on are 2"),
        (b"\xff" * 11, "longer than 10 bytes"),
        (b"\x03", "byte 0 does not start a field"),
        (b"\x00", "byte 0 does not start a field"),
        (b"\x0e\x01", "byte 0 does not start a field"),
        (UNK + block(3, block(2, b"abc")), "charsmap of 3 bytes"),
        (UNK + block(3, block(2, bytes(8))), "charsmap of 8 bytes cannot have a table of 0"),
        (UNK + block(3, block(2, charsmap()[:-100])), "charsmap"),
        (UNK + block(3, block(2, charsmap(offset=1 << 20))), "unit 0 .*out of its table"),
        (UNK + block(3, block(2, charsmap(leaf=700))), "unit 265 .*out of its table"),
        (UNK + block(3, block(2, charsmap(value=9))), "unit 265 .*no text"),
        (UNK + block(3, block(2, charsmap(value=1, texts="é\0".encode()))), "no text"),
        (UNK + block(3, block(2, charsmap(texts=b"\xff\0"))), "utf-8"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=f"made.model is not a SentencePiece model: .*{says}"):
        read(tmp_path, data)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.model cannot be read"):
        SentencePiece.read(tmp_path / "none.model")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path_factory: Any, data: bytes) -> None:
    with pytest.raises(InputError):
        read(tmp_path_factory.getbasetemp(), data)


@pytest.mark.long
@pytest.mark.parity
@settings(max_examples=150)
@given(st.data())
def test_a_changed_byte_is_refused_or_harmless(tmp_path_factory: Any, data: st.DataObject) -> None:
    file = bytearray(trained("unigram"))
    at = data.draw(st.integers(0, 200_000) | st.integers(0, 8000).map(lambda n: len(file) - 1 - n))
    file[at % len(file)] = data.draw(st.integers(0, 255))
    try:
        ours = Tokenizer(read(tmp_path_factory.getbasetemp(), bytes(file)).build(), unk_id=0)
    except InputError:
        return
    ours.encode("a ｶﾞ é \t ﬁ 猫 ½" + data.draw(st.text()))


@pytest.mark.parity
@pytest.mark.parametrize("name", TRAINED)
def test_ids_and_texts_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    spm = pytest.importorskip("sentencepiece")
    file = trained(name)
    theirs = spm.SentencePieceProcessor(model_proto=file)
    ours = Tokenizer(read(tmp_path, file).build(), unk_id=theirs.unk_id())
    assert ours.vocab_size == theirs.get_piece_size()
    spelt = {theirs.id_to_piece(i) for i in range(ours.vocab_size) if not is_normal(theirs, i)}

    @settings(max_examples=400)
    @given(anything)
    def check(text: str) -> None:
        # `tokenizers` replaces characters one by one where the library looks further ahead, so they
        # are compared on what needs no replacement.
        text = theirs.normalize(text).replace("▁", " ")
        if "\0" in text or any(one in text for one in spelt):
            return
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        if ours.unk_id not in ids:
            assert ours.decode(ids) == theirs.decode(ids)

    check()


def is_normal(model: Any, i: int) -> bool:
    return not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))


@pytest.mark.parity
def test_a_user_defined_symbol_is_never_split(tmp_path: Path) -> None:
    spm = pytest.importorskip("sentencepiece")
    file = trained("no prefix, a symbol")
    ours = Tokenizer(read(tmp_path, file).build(), unk_id=0)
    theirs = spm.SentencePieceProcessor(model_proto=file)
    for text in ("the<sep>cat", "<sep>", "<sep><sep>a"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parity
@pytest.mark.parametrize("name", TRAINED)
def test_text_that_looks_like_a_control_piece_is_encoded_as_text(name: str, tmp_path: Path) -> None:
    ours = Tokenizer(read(tmp_path, trained(name)).build(), unk_id=0)
    assert ours.special_ids == {0, 1, 2}
    assert not {1, 2}.intersection(ours.encode("<s> the </s></s> cat<s>"))


@pytest.mark.parity
@pytest.mark.parametrize("name", ["unigram", "bpe"])
def test_ids_of_a_shared_vocabulary(name: str, tmp_path: Path) -> None:
    spm = pytest.importorskip("sentencepiece")
    file = trained(name)
    theirs = spm.SentencePieceProcessor(model_proto=file)
    pieces = [theirs.id_to_piece(i) for i in range(theirs.get_piece_size())]
    vocab = ["</s>", "<unk>", "▁Hund", *sorted(pieces[3:], reverse=True), "ü", "<pad>"]
    inner = read(tmp_path, file).build_for(vocab, {"</s>", "<unk>", "<pad>"})
    ours = Tokenizer(inner, unk_id=1)
    for text in (*TEXTS[:6], "Hund ü", "ü"):
        expected = theirs.encode(text, out_type=str)
        assert ours.encode(text) == [vocab.index(p) if p in pieces else 1 for p in expected]
    assert ours.decode([2, vocab.index("ü"), vocab.index("a"), 0]) == "Hundüa"
