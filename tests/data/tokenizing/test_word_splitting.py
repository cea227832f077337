"""Words by the rules of Kim's classifier, against his substitutions one after another."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import normalizers

from addnorm.data.examples import Corpus, Labelled, Pair, Tagged, Text
from addnorm.data.readers.rows import lowered, lowered_corpus
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import (
    BPEConfig,
    CharConfig,
    Tokenizer,
    TokenizerConfig,
    WordConfig,
)
from addnorm.data.tokenizing.word_splitting import (
    WordSplitting,
    lower_case,
    word_splitter,
    words_between_spaces,
    words_of,
)
from addnorm.runs.encoded_data import encode

TEXT = "I can't say (yet) it's O'Hara's 'dog', don't we'll; they've .com x-ray café `ok`?!"
WORDS = "I ca n't say ( yet ) it 's O'Hara 's 'dog' , do n't we 'll they 've com x ray caf `ok` ? !"


def one_after_another(text: str) -> list[str]:
    """Blank what is left out, put a space before endings and around marks, and divide."""
    text = re.sub(r"[^A-Za-z0-9(),!?'`]", " ", text)
    for ending in ("'s", "'ve", "n't", "'re", "'d", "'ll"):
        text = text.replace(ending, f" {ending}")
    for mark in ",!()?":
        text = text.replace(mark, f" {mark} ")
    return text.split()


def test_endings_and_marks_are_words() -> None:
    assert words_of(TEXT, "kim") == one_after_another(TEXT) == WORDS.split(" ")


@given(st.text() | st.text("ntsvelrdA9',!?()` -é\n", max_size=16))
@example("'s've'n't'lln't")
def test_the_rules_are_kims(text: str) -> None:
    assert words_of(text, "kim") == one_after_another(text)
    found = word_splitter("kim").pre_tokenize_str(text)
    assert [word for word, _ in found] == one_after_another(text)


@pytest.mark.parametrize(
    ("rules", "known"), [("white_space", ["can't", "go,"]), ("kim", ["ca", "n't", "go", ","])]
)
def test_a_tokenizer_keeps_its_rules(
    rules: WordSplitting, known: list[str], tmp_path: Path
) -> None:
    tokenizer = WordConfig(words=rules).train(["can't go,"])
    assert tokenizer.pieces(tokenizer.encode("can't go,")) == known
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.encode("go, can't stay") == tokenizer.encode("go, can't stay")
    assert again.encode("stay") == [tokenizer.unk_id]


def test_words_to_tag_stand_between_spaces_tabs_and_line_breaks() -> None:
    assert words_between_spaces(" a  b\tc\u00a0d\u2028 ") == ["a", "b", "c\u00a0d\u2028"]
    assert words_between_spaces("a\nb\r\n") == ["a", "b"]
    assert words_between_spaces(" \t") == words_between_spaces("") == []


TEXTS = ["Ein HUND sieht İzmir", "ΟΔΟΣ, ΟΔΟΣ STRAẞE", "ǅ und ÉTÉ", "  <PAD> <bos>", ""]
CONFIGS = [BPEConfig(vocab_size=280), CharConfig(), WordConfig(), WordConfig(words="kim")]
AGES = [0x1C89, *range(0xA7CB, 0xA7DD), *range(0x10D50, 0x10D66), *range(0x16EA0, 0x16EB9)]
"""Capitals that are newer than Python's tables, or may be."""


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[*map(chr, AGES)])))
def test_as_other_libraries_have_it(text: str) -> None:
    assert lower_case(text) == normalizers.Lowercase().normalize_str(text)
    assert lower_case(lower_case(text)) == lower_case(text)
    assert lower_case(text) == "".join(map(lower_case, text))


def test_labels_and_tags_keep_theirs() -> None:
    assert lowered(Labelled("A B", "Good", "C")) == Labelled("a b", "Good", "c")
    assert lowered(Tagged(("A", "İ"), ("B-X", "O"))) == Tagged(("a", "i̇"), ("B-X", "O"))
    assert lowered(Pair("A", "B", ("C",))) == Pair("a", "b", ("c",))


def tokenizer_of(config: TokenizerConfig) -> Tokenizer:
    corpus = lowered_corpus(Corpus([Text(text) for text in TEXTS if text]))
    return Tokenizers.train(config, corpus).source


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_library_gives_the_same_ids(tmp_path: Path, config: TokenizerConfig) -> None:
    """So does a file, opened here and by others, and a long text that is encoded in pieces."""
    plain = tokenizer_of(config)
    lower = plain.lowercased()
    assert lower.lowercased(False).encode_batch(TEXTS) == plain.encode_batch(TEXTS)
    expected = plain.encode_batch([lower_case(text) for text in TEXTS])
    assert lower.encode_batch(TEXTS) == expected != plain.encode_batch(TEXTS)
    lower.save(tmp_path / "tokenizer.json")
    opened = Tokenizer.load(tmp_path / "tokenizer.json")
    assert opened.lowercase
    for one in (lower, opened):
        assert one.encode_batch(TEXTS) == expected
        theirs = one.inner.encode_batch(TEXTS, add_special_tokens=False)
        assert [found.ids for found in theirs[:3]] == expected[:3]
    both = Tokenizers(opened, opened)
    [text] = encode(Corpus([Text(TEXTS[1])]), both).train
    assert [*text.tokens, *text.targets[-1:]] == [2, *expected[1], 3]


@pytest.mark.parametrize(
    "own", [None, normalizers.NFKD(), normalizers.Sequence([normalizers.NFC()])], ids=str
)
def test_one_from_elsewhere_keeps_its_normaliser(tmp_path: Path, own: object) -> None:
    inner = tokenizer_of(BPEConfig(vocab_size=280)).inner
    if own is not None:
        inner.normalizer = own  # pyright: ignore[reportAttributeAccessIssue]
    foreign = Tokenizer(inner, before=(), after=()).lowercased()
    foreign.save(tmp_path / "tokenizer.json")
    opened = Tokenizer.load(tmp_path / "tokenizer.json")
    assert opened.lowercase
    assert opened.encode_batch(TEXTS) == foreign.encode_batch(TEXTS)
    plain = Tokenizer(inner, before=(), after=())
    assert opened.lowercased(False).encode_batch(TEXTS) == plain.encode_batch(TEXTS)
