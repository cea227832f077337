"""Ids by words are those of whole texts, whatever stands between the words."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.data.ids.compact import Rows
from addnorm.data.ids.framing import encode_for_task, framed_rows, in_groups
from addnorm.data.tokenizing import word_ids
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig, Tokenizer, WordConfig
from addnorm.data.tokenizing.word_ids import WordIds
from addnorm.data.tokenizing.word_splitting import words_of

LEARNT = ["the cat's  house\n isn't", "don't 1,000 \t", "中 is a word\u3000too"] * 3
TEXTS = st.lists(
    st.text(st.sampled_from("ab'sT1,.<>\n \t\xa0\u3000\x1e\u180e中\0\1\2Σ")), max_size=9
)
TOKENIZERS = [
    config.train(LEARNT) for config in (BPEConfig(vocab_size=300), WordConfig(), CharConfig())
]


@pytest.mark.parametrize("tokenizer", [*TOKENIZERS, TOKENIZERS[0].lowercased()])
@settings(max_examples=60)
@given(texts=TEXTS)
def test_ids_are_those_of_each_text(tokenizer: Tokenizer, texts: list[str]) -> None:
    words = WordIds(tokenizer)
    for batch in (texts, [*texts, "<pad> a", "", " a  b "]):
        rows = Rows.side_by_side(*words.encode(batch))
        assert [rows[n] for n in range(len(batch))] == tokenizer.encode_batch(batch)


def test_forgotten_words_are_met_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_ids, "MOST_WORDS", 2)
    words = WordIds(TOKENIZERS[0])
    first = [ids.tolist() for ids in words.encode(["the cat's house is"])]
    assert [ids.tolist() for ids in words.encode(["the cat's house is"])] == first


@pytest.mark.parametrize("task", ["classification", "translation", "language"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_rows_have_the_special_tokens_of_a_task(task: str, tokenizer: Tokenizer) -> None:
    texts = ["the cat", "", " is", "a\n b"]
    rows = framed_rows(task, tokenizer, texts)
    expected = encode_for_task(task, tokenizer, texts)
    assert [rows[n] for n in range(4)] == expected == [*in_groups(task, tokenizer, texts)]
    assert len(framed_rows(task, tokenizer, [])) == 0


def test_each_distinct_word_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, met = WordConfig().train(LEARNT), list[str]()

    def count(self: Tokenizer, texts: list[str]) -> list[list[int]]:
        met.extend(texts)
        return [self.codec.encode([text])[0] for text in texts]

    monkeypatch.setattr(Tokenizer, "encode_batch", count)
    monkeypatch.setattr(word_ids, "AT_ONCE", 20)
    texts = ["the house", "the cat is the house", "don't\u3000too", " the"] * 50
    framed_rows("translation", tokenizer, texts)
    assert sorted(met) == [" cat", " house", " is", " the", " the", "don't\u3000too", "the"]


def test_words_are_counted_as_in_each_text() -> None:
    texts = ["a b", "b ", "", "\u3000b\n", "don't a,b!"] * 40_000
    for rules, first in (("white_space", "b"), ("kim", "b")):
        tokenizer = WordConfig(words=rules).train(texts)
        counts = Counter(word for text in texts for word in words_of(text, rules))
        order = sorted(counts, key=lambda word: (-counts[word], word))
        assert order[0] == first
        assert [tokenizer.id_of(word) for word in order] == [*range(4, 4 + len(order))]
