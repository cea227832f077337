"""Segments: every token of every document once an epoch, always as many, none across two."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.batches.segments import Segments
from addnorm.data.examples import Corpus, Text
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig, Tokenizer
from addnorm.runs.encoded_data import encode

LETTERS = "abcdefgh "


def encoded(texts: list[str]) -> tuple[EncodedCorpus, Tokenizer]:
    tokenizer = CharConfig().train([LETTERS])
    corpus = Corpus(train=[Text(text) for text in texts])
    return encode(corpus, Tokenizers(tokenizer, tokenizer)), tokenizer


@given(
    texts=st.lists(st.text(LETTERS, min_size=1, max_size=40), min_size=1, max_size=6),
    most=st.integers(1, 12),
    seed=st.one_of(st.none(), st.integers(0, 9)),
)
def test_segments_are_the_documents(texts: list[str], most: int, seed: int | None) -> None:
    corpus, tokenizer = encoded(texts)
    segments = Segments(corpus.train, tokenizer, most)
    fewest = sum(-(-len(text) // most) for text in texts)
    for epoch in range(3):
        found = [one for batch in segments.batches(seed, epoch, 4) for one in batch]
        assert len(found) == fewest
        again = ["" for _ in texts]
        for one in sorted(found, key=lambda one: (one[0], one[1])):
            part = tokenizer.decode(segments.text(one).tolist())
            assert 0 < len(part) <= most
            again[one[0]] += part
        assert again == texts


def test_epochs_differ_in_cuts_and_order() -> None:
    corpus, tokenizer = encoded(["abcdefgh" * 20])
    segments = Segments(corpus.train, tokenizer, 50)
    epochs = [np.concatenate(segments.batches(3, epoch, 2)) for epoch in (0, 1, 0)]
    assert (epochs[0] == epochs[2]).all()
    assert (epochs[0] != epochs[1]).any()
    assert len({*epochs[0][:, 3].tolist()}) == len(epochs[0])  # a seed for each


def test_without_a_seed_all_is_fixed() -> None:
    corpus, tokenizer = encoded(["abcdefgh" * 20, "abc"])
    segments = Segments(corpus.train, tokenizer, 50)
    first, second = (np.concatenate(segments.batches(None, epoch, 2)) for epoch in (0, 7))
    assert (first == second).all()
    assert first[:, 1].tolist() == [0, 50, 100, 150, 0]
