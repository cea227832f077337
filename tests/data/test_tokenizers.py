"""Tokenizers: text comes back, special tokens are no text, and streams never break a character."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.data.tokenizers import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    SPECIALS,
    UNK_ID,
    BPEConfig,
    CharConfig,
    Tokenizer,
    WordConfig,
)
from addnorm.errors import InputError

TEXTS = [
    "the cat sat on the mat, the other cat did not",
    "die Katze saß auf der Matte — 猫はマットの上に座った 🐈‍⬛\n\n",
    "  <pad> is text, and so is <eos>\t<|endoftext|>",
] * 3

BPE = BPEConfig(vocab_size=320).train(TEXTS)
CHAR = CharConfig().train(TEXTS)
WORD = WordConfig().train(TEXTS)
ALL = pytest.mark.parametrize("tokenizer", [BPE, CHAR, WORD], ids=["bpe", "char", "word"])

anything = st.text() | st.text("é猫🐈\u200d\ufffd<pad>eos \n", max_size=20)


@settings(max_examples=10_000)
@given(anything)
def test_bytes_come_back_as_they_were(text: str) -> None:
    ids = BPE.encode(text)
    assert BPE.decode(ids) == text
    assert not BPE.special_ids.intersection(ids)


@given(st.text(sorted(set().union(*TEXTS))))
def test_known_characters_come_back(text: str) -> None:
    ids = CHAR.encode(text)
    assert len(ids) == len(text)
    assert CHAR.decode(ids) == text


@given(anything)
def test_unknown_characters_alone_are_lost(text: str) -> None:
    known = set().union(*TEXTS)
    ids = CHAR.encode(text)
    assert [i == UNK_ID for i in ids] == [char not in known for char in text]
    assert CHAR.decode(ids) == "".join(char for char in text if char in known)


@given(st.lists(st.sampled_from(" ".join(TEXTS).split())))
def test_known_words_come_back(words: list[str]) -> None:
    known = [word for word in words if word not in SPECIALS]
    assert WORD.decode(WORD.encode("\n  ".join(words))) == " ".join(known)


@ALL
@pytest.mark.parametrize("special", SPECIALS)
def test_special_tokens_in_a_text_are_text(tokenizer: Tokenizer, special: str) -> None:
    ids = tokenizer.encode(f"a {special}{special} {special} b")
    assert not {PAD_ID, BOS_ID, EOS_ID}.intersection(ids)


@ALL
def test_special_tokens_come_first_and_are_not_decoded(tokenizer: Tokenizer) -> None:
    assert (PAD_ID, UNK_ID, BOS_ID, EOS_ID) == (0, 1, 2, 3)
    assert tokenizer.pieces([0, 1, 2, 3]) == list(SPECIALS)
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([BOS_ID, *ids, EOS_ID, PAD_ID]) == "the cat"


def test_special_tokens_all_over_the_training_text_change_nothing() -> None:
    texts = ["<pad> <eos> <unk> <bos> <pad><pad>"] * 50
    for config in (BPEConfig(vocab_size=400), CharConfig(), WordConfig()):
        tokenizer = config.train(texts)
        assert tokenizer.pieces([0, 1, 2, 3]) == list(SPECIALS)
        assert not {PAD_ID, BOS_ID, EOS_ID}.intersection(tokenizer.encode(texts[0]))


@ALL
def test_half_a_surrogate_pair_is_no_text(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="surrogate"):
        tokenizer.encode("a\ud83d")


@ALL
def test_nothing_is_encoded_as_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode_words([]) == ([], [])


@ALL
@given(words=st.lists(st.text(min_size=0, max_size=5), max_size=6))
def test_each_word_has_a_first_piece(tokenizer: Tokenizer, words: list[str]) -> None:
    ids, first = tokenizer.encode_words(words)
    assert len(first) == len(words)
    assert first == sorted(set(first))
    assert all(i < len(ids) for i in first)
    assert not words or first[0] == 0


def test_words_are_encoded_as_in_running_text() -> None:
    words = TEXTS[0].split()
    ids, first = BPE.encode_words(words)
    assert ids == BPE.encode(TEXTS[0])
    ends = [*first[1:], len(ids)]
    assert [BPE.decode(ids[i:j]).strip() for i, j in zip(first, ends, strict=True)] == words


@ALL
@settings(max_examples=300)
@given(data=st.data())
def test_streamed_pieces_join_to_the_whole(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    stream = tokenizer.stream()
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


@settings(max_examples=500)
@given(st.text() | st.text("aé猫🐈\u200d", max_size=12))
def test_a_stream_shows_whole_characters_as_soon_as_they_are(text: str) -> None:
    stream, ids, shown = BPE.stream(), BPE.encode(text), ""
    for n, i in enumerate(ids, 1):
        shown += stream.push(i)
        assert shown == BPE.decode(ids[:n]).rstrip("\ufffd")
        assert text.startswith(shown)
    assert shown + stream.finish() == text


def test_a_stream_of_broken_bytes_ends_in_replacement_characters() -> None:
    ids = BPE.encode("🐈")
    stream = BPE.stream()
    assert [stream.push(i) for i in ids[:-1]] == [""] * (len(ids) - 1)
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


@ALL
def test_a_saved_tokenizer_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.vocab_size == tokenizer.vocab_size
    for text in (*TEXTS, "new 🐕 <pad>", "<eos>"):
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.decode(tokenizer.encode(text)) == tokenizer.decode(tokenizer.encode(text))


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(InputError, match="is not a tokenizer"):
        Tokenizer.load(path)
    BPE.save(path)
    good = path.read_text(encoding="utf-8")
    other = json.loads(good)
    other["model"]["vocab"] = {f"x{token}": i for token, i in other["model"]["vocab"].items()}
    other["model"]["merges"] = other["added_tokens"] = []
    for bad in ("", "{}", "[]", "[" * 100_000, good[: len(good) // 2], json.dumps(other)):
        path.write_text(bad, encoding="utf-8")
        with pytest.raises(InputError, match="tokenizer"):
            Tokenizer.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not a tokenizer"):
        Tokenizer.load(path)


@settings(max_examples=100)
@given(at=st.integers(0, 10**6), char=st.sampled_from('{}[]",:0x'))
def test_a_changed_character_is_refused_or_harmless(tmp_path_factory, at: int, char: str) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.json"
    WORD.save(path)
    text = path.read_text(encoding="utf-8")
    at %= len(text)
    path.write_text(text[:at] + char + text[at + 1 :], encoding="utf-8")
    try:
        tokenizer = Tokenizer.load(path)
    except InputError as error:
        assert "changed.json" in str(error)  # noqa: PT017
    else:
        assert tokenizer.pieces(range(4)) == list(SPECIALS)


def test_training_is_repeatable() -> None:
    for config in (BPEConfig(vocab_size=320), CharConfig(), WordConfig()):
        first, second = (config.train(TEXTS).inner.to_str() for _ in range(2))
        assert first == second


def test_vocabularies_are_no_larger_than_asked() -> None:
    assert BPE.vocab_size <= 320
    assert BPEConfig(vocab_size=10_000).train(["ab"]).vocab_size == 4 + 256
    assert WordConfig(vocab_size=6).train(["b b c a a c d"]).pieces(range(4, 6)) == ["a", "b"]
    assert WordConfig(min_frequency=2).train(["b b a"]).vocab_size == 5
    assert CharConfig().train(["ba\n"]).pieces(range(4, 7)) == ["\n", "a", "b"]


def test_sizes_that_cannot_be_are_refused() -> None:
    for bad in (
        lambda: BPEConfig(vocab_size=259),
        lambda: WordConfig(vocab_size=4),
        lambda: BPEConfig(min_frequency=0),
    ):
        with pytest.raises(ValueError, match="greater than"):
            bad()


def test_pieces_are_readable() -> None:
    ids = BPE.encode("the 🐕")
    pieces = BPE.pieces(ids)
    assert len(pieces) == len(ids)
    assert pieces[0] == "the"
    assert all(piece and "\ufffd" not in piece for piece in pieces)
    assert BPE.pieces([10**6]) == [""]


def test_a_line_of_ten_megabytes_has_an_encoding() -> None:
    assert len(CHAR.encode("the " * 2_500_000)) == 10_000_000
