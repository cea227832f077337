"""Lower case of texts and examples, and the tokenizer that carries it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from addnorm.data.examples import Corpus, Labelled, Pair, Tagged, Text
from addnorm.data.tokenizing.lower_case import lower_case
from addnorm.data.tokenizing.lowered_examples import lowered, lowered_corpus
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import (
    BPEConfig,
    CharConfig,
    Tokenizer,
    TokenizerConfig,
    WordConfig,
)
from addnorm.tasks.encoding import encode

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
