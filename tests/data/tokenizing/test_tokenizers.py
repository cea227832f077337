"""Tokenizers: text comes back, special tokens are no text, and streams never break a character."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from addnorm.data.examples import Corpus, Labelled, Pair, Text
from addnorm.data.ids.framing import encode_for_task, encode_words
from addnorm.data.tokenizing.pieces import encoder_of
from addnorm.data.tokenizing.sides import Tokenizers, with_special_tokens
from addnorm.data.tokenizing.tokenizers import (
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
from addnorm.runs.encoded_data import encode

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


@settings(max_examples=1_000)
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
def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
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
    with pytest.raises(InputError, match=r"tokenizer\.json: missing"):
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


def test_vocabularies_respect_the_size_limit() -> None:
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
        with pytest.raises(ValueError, match=r"must be (at least|greater than)"):
            bad()


def test_pieces_are_readable() -> None:
    ids = BPE.encode("the 🐕")
    pieces = BPE.pieces(ids)
    assert len(pieces) == len(ids)
    assert pieces[0] == "the"
    assert all(piece and "\ufffd" not in piece for piece in pieces)
    assert BPE.pieces([10**6]) == [""]


@pytest.mark.long
def test_a_line_of_ten_megabytes_has_an_encoding() -> None:
    assert len(CHAR.encode("the " * 2_500_000)) == 10_000_000


# Tokenizers from elsewhere.

ENDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_pieces() -> tokenizers.Tokenizer:
    """As BERT's: pieces within words begin with ##; decoding takes spaces before commas away."""
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    special = {"special_tokens": ENDS, "show_progress": False}
    inner.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=120, **special))
    return inner


def unigram() -> tokenizers.Tokenizer:
    """As T5's: a space is the beginning of a piece."""
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=100, special_tokens=ENDS, unk_token="[UNK]", show_progress=False
    )
    inner.train_from_iterator(TEXTS, trainer)
    return inner


def bytes_for_unknown() -> tokenizers.Tokenizer:
    """As LLaMA's: what the vocabulary lacks is written in bytes."""
    names = [*ENDS, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdeth猫\ufffd", "▁t", "th"]
    model = models.BPE(
        vocab={name: i for i, name in enumerate(names)},
        merges=[("▁", "t"), ("t", "h")],
        unk_token="[UNK]",
        fuse_unk=True,
        byte_fallback=True,
    )
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens(ENDS)
    return inner


def ends_of_words() -> tokenizers.Tokenizer:
    """As the first GPT's: the last piece of a word is marked."""
    inner = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=ENDS, end_of_word_suffix="</w>", show_progress=False
    )
    inner.train_from_iterator(TEXTS, trainer)
    return inner


def foreign(inner: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(inner, pad_id=0, unk_id=1, bos_id=2, eos_ids=(3,), before=(2,), after=(3,))


FOREIGN = {
    make.__name__: foreign(make())
    for make in (word_pieces, unigram, bytes_for_unknown, ends_of_words)
}
OTHERS = pytest.mark.parametrize("name", FOREIGN)


@pytest.mark.long
@OTHERS
@settings(max_examples=300)
@given(data=st.data())
def test_streamed_pieces_of_others_join_to_the_whole(name: str, data: st.DataObject) -> None:
    """With special ids among them, and ids that only a larger model knows."""
    tokenizer = FOREIGN[name]
    n = tokenizer.vocab_size
    usual = st.integers(0, n + 2)
    ids = data.draw(st.lists(usual | st.integers(n - 14, n - 1), max_size=30))
    stream = tokenizer.stream()
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


@OTHERS
@settings(max_examples=300)
@given(text=anything)
def test_text_of_others_is_shown_as_it_is(name: str, text: str) -> None:
    tokenizer = FOREIGN[name]
    ids = tokenizer.encode(text)
    assert not {0, 2, 3, 4}.intersection(ids)
    stream, shown = tokenizer.stream(), ""
    for i in ids:
        shown += stream.push(i)
        assert tokenizer.decode(ids).startswith(shown)
    assert shown + stream.finish() == tokenizer.decode(ids)


@given(st.text().map(lambda text: text.replace("▁", "_")))
def test_bytes_for_unknown_characters_come_back(text: str) -> None:
    tokenizer = FOREIGN["bytes_for_unknown"]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_wait_for_what_follows() -> None:
    """For what follows may make an error of all of them."""
    tokenizer = FOREIGN["bytes_for_unknown"]
    one = {byte: tokenizer.inner.token_to_id(f"<0x{byte:02X}>") or 0 for byte in "é".encode()}
    [a] = tokenizer.encode("a")[1:]
    stream = tokenizer.stream()
    assert [stream.push(i) for i in one.values()] == ["", ""]
    assert stream.push(a) == "éa"
    assert [stream.push(i) for i in (*one.values(), one[0xC3])] == ["", "", ""]
    assert stream.finish() == "\ufffd" * 3


@OTHERS
@pytest.mark.parametrize("special", ENDS)
def test_special_tokens_of_others_are_text(name: str, special: str) -> None:
    tokenizer = FOREIGN[name]
    assert tokenizer.special_ids == {0, 1, 2, 3, 4}
    assert not {0, 2, 3, 4}.intersection(tokenizer.encode(f"a {special}{special} {special} b"))
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([2, *ids[:1], 4, *ids[1:], 3, 0]) == tokenizer.decode(ids)


def test_an_added_token_that_is_not_special_comes_back() -> None:
    inner = bytes_for_unknown()
    inner.add_tokens([AddedToken("[INST]", normalized=False), AddedToken("猫 é", normalized=False)])
    tokenizer = foreign(inner)
    ids = tokenizer.encode("the [INST]cat猫 é")
    n = tokenizer.vocab_size
    assert [i for i in ids if i >= n - 2] == [n - 2, n - 1]
    assert tokenizer.decode(ids) == "the [INST] cat猫 é"


def test_special_ids_in_a_text_are_left_out_where_nothing_is_unknown() -> None:
    model = models.BPE({"a": 0, "<end>": 1, "<": 2, "e": 3, "n": 4, "d": 5, ">": 6}, [])
    model.ignore_merges = True
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(["<end>"])
    tokenizer = Tokenizer(
        inner, pad_id=None, unk_id=None, bos_id=None, eos_ids=(1,), before=(), after=()
    )
    assert tokenizer.encode("a <end> a") == [0, 0]
    assert tokenizer.encode_words(["a", "", "a"]) == ([0, 0, 0], [0, 1, 2])
    assert (tokenizer.pad_id, tokenizer.bos_id) == (0, 1)


def test_the_vocabulary_ends_with_its_last_id() -> None:
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 40}, []))
    assert foreign(inner).vocab_size == 41
    assert foreign(tokenizers.Tokenizer(models.BPE())).vocab_size == 0


@OTHERS
def test_another_one_is_saved_with_its_ids(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    made = Tokenizer(
        FOREIGN[name].inner,
        pad_id=None,
        unk_id=None,
        bos_id=2,
        eos_ids=(3, 4),
        never_ids=(0,),
        before=(2, 2),
        after=(),
    )
    made.save(path)
    loaded = Tokenizer.load(path)
    for key in (
        "pad_id",
        "unk_id",
        "bos_id",
        "eos_id",
        "eos_ids",
        "never_ids",
        "before",
        "after",
        "vocab_size",
    ):
        assert getattr(loaded, key) == getattr(made, key)
    assert loaded.eos_ids == (3, 4)
    assert loaded.encode(TEXTS[0]) == made.encode(TEXTS[0])
    BPE.save(path)
    assert Tokenizer.load(path).before is None


@pytest.mark.parametrize("bad", ["", "{}", '{"pad_id": -1}', "[]", "\xff", '{"extra": 1}'])
def test_damaged_ids_are_refused(bad: str, tmp_path: Path) -> None:
    FOREIGN["unigram"].save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.ids.json").write_text(bad, encoding="latin-1")
    with pytest.raises(InputError, match=r"tokenizer\.ids\.json: damaged: "):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_others_say_what_goes_around_a_text() -> None:
    inner = word_pieces()
    ids = Tokenizer(inner).encode("the cat")
    both = Tokenizer(inner, before=(2,), after=(3,))
    none = Tokenizer(inner, before=(), after=())
    assert encode_for_task("classification", both, ["the cat"]) == [[2, *ids, 3]]
    assert encode_for_task("translation", both, ["the cat"]) == [[2, *ids, 3]]
    assert encode_for_task("language", both, ["the cat"]) == [[2, *ids]]
    assert encode_for_task("classification", none, ["the cat"]) == [ids]
    assert encode_words(both, ["the", "cat"])[0] == [2, *ids, 3]
    assert encode_words(both, ["the"])[1] == [1]
    assert encode_words(none, ["the"])[1] == [0]


def test_others_read_each_task() -> None:
    inner = word_pieces()
    ids = Tokenizer(inner).encode("the cat")
    none = Tokenizer(inner, before=(), after=())
    ends = Tokenizer(inner, bos_id=0, before=(), after=(3,))
    [learnt] = encode(Corpus([Text("the cat")]), Tokenizers(none, none)).train
    # A text to learn from has a beginning, though a text to continue has none.
    assert (learnt.tokens, learnt.targets) == ([2, *ids], [*ids, 3])
    corpus = encode(Corpus([Pair("the cat", "the cat")]), Tokenizers(ends, ends))
    assert corpus.bos_id == 0
    assert (corpus.train[0].tokens, corpus.train[0].targets) == ([*ids, 3], [*ids, 3])
    [read] = encode(Corpus([Labelled("the cat", "x")]), Tokenizers(ends, ends)).train
    assert read.tokens == [*ids, 3]


def test_a_language_is_not_learnt_without_an_end() -> None:
    endless = Tokenizer(word_pieces(), eos_ids=(), before=(), after=())
    assert endless.eos_ids == ()
    with pytest.raises(InputError, match="no end token"):
        encode(Corpus([Text("the cat")]), Tokenizers(endless, endless))


def test_pairs_are_learnt_from_every_nth_text_of_many_characters() -> None:
    texts = [word * 10 for word in ("ab ", "cd ", "ef ", "gh ", "ij ")]
    tokenizer = BPEConfig(vocab_size=300, sample=61).train(texts)  # of 150 characters
    assert tokenizer.step == 3
    whole = BPEConfig(vocab_size=300, sample=150).train(texts)
    assert whole.step == 1
    assert tokenizer.inner.to_str() == BPEConfig(vocab_size=300).train(texts[::3]).inner.to_str()
    assert tokenizer.vocab_size < whole.vocab_size
    assert Tokenizers(whole, tokenizer).sampled.startswith("tokenizer: learnt from one of 3 texts")
    assert not Tokenizers(whole, whole).sampled


def test_a_saved_tokenizer_knows_that_it_was_learnt_from_a_sample(tmp_path: Path) -> None:
    texts = [word * 10 for word in ("ab ", "cd ", "ef ", "gh ", "ij ")]
    third = BPEConfig(vocab_size=300, sample=61).train(texts)
    both = with_special_tokens(Tokenizers(third, third), ["<mask>"])
    both.save(tmp_path)
    assert Tokenizers.load(tmp_path).sampled == both.sampled != ""
    Tokenizers(CHAR, CHAR).save(tmp_path)
    assert not Tokenizers.load(tmp_path).sampled
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_unknown_characters_are_named_once_with_their_number(
    recwarn: pytest.WarningsRecorder,
) -> None:
    tokenizer = CharConfig().train(["to be"])
    before, pieces = (
        tokenizer.encode_batch(["to", "Xé X", "be é"]),
        encoder_of(tokenizer, np.dtype(np.uint16)),
    )
    tokenizer.lowercased().encode_words(["X", "To"])
    pieces(["X z", "be"])
    assert [ids.count(UNK_ID) for ids in before] == [0, 3, 1]
    messages = [str(warning.message) for warning in recwarn]
    names = [message.rpartition("unknown: ")[2] for message in messages]
    assert names == ["'X' (2 times), 'é' (2 times)", "'x'", "'z'"]
    assert messages[0].startswith("the tokenizer does not know 2 characters, which")
    assert messages[2].startswith("the tokenizer does not know a character, which")
    WORD.encode("Xylophon")
    BPE.encode("Xé")
    assert len(recwarn) == 3, "other tokenizers learn what an unknown word is, or have none"
