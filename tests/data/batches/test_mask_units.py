"""What is chosen to be predicted: single tokens, whole words, spans of words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.batches.mask_units import (
    NONE,
    SpanUnitsConfig,
    TokenUnitsConfig,
    WordBeginnings,
    WordUnitsConfig,
    words_of,
)
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig, WordConfig

BEGINS = st.lists(st.booleans(), min_size=1, max_size=60)
SEEDS = st.integers(0, 2**32)


@given(BEGINS, SEEDS, st.data())
def test_tokens_are_exactly_as_many(begins: list[bool], seed: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(begins)))
    groups = TokenUnitsConfig().groups(np.array(begins), n, np.random.default_rng(seed))
    assert sorted(groups[groups != NONE]) == [*range(n)]


@pytest.mark.parametrize("units", [WordUnitsConfig(), SpanUnitsConfig(p=0.5, longest=3)])
@given(begins=BEGINS, seed=SEEDS, data=st.data())
def test_words_are_whole(
    units: WordUnitsConfig | SpanUnitsConfig,
    begins: list[bool],
    seed: int,
    data: st.DataObject,
) -> None:
    n = data.draw(st.integers(1, len(begins)))
    groups = units.groups(np.array(begins), n, np.random.default_rng(seed))
    chosen = groups != NONE
    starts, stops = words_of(np.array(begins))
    lengths = stops - starts
    assert lengths.sum() == len(begins)
    for start, stop in zip(starts, stops, strict=True):
        assert len({*chosen[start:stop].tolist()}) == 1
    words = sum(bool(chosen[start]) for start in starts)
    assert 1 <= chosen.sum() <= n or words == 1


@given(seed=SEEDS)
def test_spans_are_no_longer_than_said(seed: int) -> None:
    units = SpanUnitsConfig(p=0.2, longest=4)
    groups = units.groups(np.ones(200, bool), 60, np.random.default_rng(seed))
    assert (groups != NONE).sum() == 60
    for group in {*groups[groups != NONE].tolist()}:
        places = np.flatnonzero(groups == group)
        assert len(places) <= 4
        assert (np.diff(places) == 1).all()


def test_the_length_of_spans_is_geometric() -> None:
    rng = np.random.default_rng(0)
    drawn = [SpanUnitsConfig()._length(rng) for _ in range(4000)]
    weights = 0.2 * 0.8 ** np.arange(10)
    expected = (np.arange(1, 11) * weights).sum() / weights.sum()  # SpanBERT says 3.8
    assert np.mean(drawn) == pytest.approx(expected, rel=0.04)
    assert max(drawn) == 10


@pytest.mark.parametrize("config", [CharConfig(), WordConfig(), BPEConfig(vocab_size=300)])
def test_words_of_learnt_tokenizers(config: CharConfig | WordConfig | BPEConfig) -> None:
    text = "the cat, the other cat and\nthe dog"
    tokenizer = config.train([text] * 9)
    ids = np.array(tokenizer.encode(text))
    starts, stops = words_of(WordBeginnings(tokenizer).of(ids))
    spelt = [
        tokenizer.decode(ids[start:stop].tolist()).strip()
        for start, stop in zip(starts, stops, strict=True)
    ]
    words = [word for word in spelt if word]
    if config.kind == "word":
        assert words == text.split()
    else:
        assert words == ["the", "cat", ",", "the", "other", "cat", "and", "the", "dog"]
