"""Masked language modelling: units of masking, 15 % of the tokens, 80/10/10, always the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.batches.test_segments import LETTERS

from addnorm.config import ConfigError
from addnorm.data.batches.batch import Batch
from addnorm.data.batches.masked import (
    NONE,
    MaskedConfig,
    Masking,
    SpanUnitsConfig,
    TokenUnitsConfig,
    WordBeginnings,
    WordUnitsConfig,
    word_bounds,
)
from addnorm.data.examples import Corpus, Pair, Text
from addnorm.data.ids.encoding import IGNORE, EncodedCorpus
from addnorm.data.tokenizing.sides import MASK, Tokenizers, mask_id_of, with_special_tokens
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig, Tokenizer, WordConfig
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode

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
    starts, stops = word_bounds(np.array(begins))
    lengths = stops - starts
    assert lengths.sum() == len(begins)
    for start, stop in zip(starts, stops, strict=True):
        assert len({*chosen[start:stop].tolist()}) == 1
    words = sum(bool(chosen[start]) for start in starts)
    assert 1 <= chosen.sum() <= n or words == 1


@given(seed=SEEDS)
def test_spans_are_at_most_the_longest(seed: int) -> None:
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
    starts, stops = word_bounds(WordBeginnings(tokenizer).of(ids))
    spelt = [
        tokenizer.decode(ids[start:stop].tolist()).strip()
        for start, stop in zip(starts, stops, strict=True)
    ]
    words = [word for word in spelt if word]
    if config.kind == "word":
        assert words == text.split()
    else:
        assert words == ["the", "cat", ",", "the", "other", "cat", "and", "the", "dog"]


def tokenizer() -> Tokenizer:
    plain = CharConfig().train([LETTERS])
    return with_special_tokens(Tokenizers(plain, plain), (MASK,)).source


TOKENIZER = tokenizer()
MASK_ID = mask_id_of(TOKENIZER)


def corpus(*texts: str) -> EncodedCorpus:
    examples = [Text(text) for text in texts]
    return encode(Corpus(examples, valid=examples[:1]), Tokenizers(TOKENIZER, TOKENIZER))


CORPUS = corpus("abc def gh " * 30, "ab?c", "a", "??", "bad cafe " * 7)


@pytest.mark.long
@given(
    batch_size=st.integers(1, 9),
    seq_len=st.integers(3, 40),
    share=st.floats(0.01, 0.9),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_batches_are_the_text_but_for_masks(
    batch_size: int, seq_len: int, share: float, seed: int
) -> None:
    config = MaskedConfig(batch_size=batch_size, seq_len=seq_len, share=share)
    loader = config.build(CORPUS, seed).train
    for epoch in range(2):
        seen = 0
        batches = list(loader.batches(epoch))
        assert len(batches) == len(loader)
        for batch in batches:
            inputs, targets = batch.inputs["inputs"], batch.targets
            valid = batch.inputs.get("valid", torch.ones_like(inputs, dtype=torch.bool))
            assert inputs.shape == targets.shape
            assert inputs.shape[1] <= seq_len
            hidden = targets != IGNORE
            assert not (hidden & ~valid).any()
            special = torch.isin(inputs, torch.tensor([*TOKENIZER.special_ids - {MASK_ID}]))
            assert not (hidden & special).any()
            assert not torch.isin(targets, torch.tensor([*TOKENIZER.special_ids])).any()
            assert (inputs[:, 0] == TOKENIZER.bos_id).all()
            whole = torch.where(hidden, targets, inputs)
            assert not (whole == MASK_ID).any()  # what is not to be told is as it was
            seen += int(valid.sum()) - 2 * len(inputs)
            for row, real, mine in zip(whole, valid, hidden, strict=True):
                able = int((~torch.isin(row, torch.tensor([*TOKENIZER.special_ids]))).sum())
                assert int(mine.sum()) == (max(1, round(share * able)) if able else 0)
                assert int(row[real][-1]) == TOKENIZER.eos_id
        known = [text for text in CORPUS.train if {*text.targets} - TOKENIZER.special_ids]
        assert seen == sum(len(text.targets) - 1 for text in known)


def test_of_the_hidden_most_are_masks_some_random_and_some_as_they_were() -> None:
    masking = Masking(MaskedConfig(), TOKENIZER)
    ids = np.array(TOKENIZER.encode("abcdefgh" * 25))
    masked, same, other, times = 0, 0, 0, np.zeros(len(ids))
    for seed in range(400):
        read, targets = masking.hidden(ids, seed)
        hidden = targets != IGNORE
        assert hidden.sum() == 30  # 15 % of 200
        masked += int((read[hidden] == MASK_ID).sum())
        same += int((read[hidden] == ids[hidden]).sum())
        other += int(((read != ids) & (read != MASK_ID))[hidden].sum())
        times += hidden
    n = 400 * 30
    # A random token of nine is the one that was there once in nine.
    assert masked / n == pytest.approx(0.8, abs=0.012)
    assert same / n == pytest.approx(0.1 + 0.1 / 9, abs=0.012)
    assert other / n == pytest.approx(0.1 * 8 / 9, abs=0.012)
    assert times.min() > 30  # every place is hidden in its turn: 60 times on average
    assert times.max() < 100


@pytest.mark.parametrize(
    ("random", "kept", "expected"), [(0.0, 0.0, "mask"), (0.0, 0.99, "kept"), (0.5, 0.5, "neither")]
)
def test_other_shares(random: float, kept: float, expected: str) -> None:
    masking = Masking(MaskedConfig(random=random, kept=kept, share=0.5), TOKENIZER)
    ids = np.array(TOKENIZER.encode("abcdefgh" * 40))
    read, targets = masking.hidden(ids, 0)
    hidden = read[targets != IGNORE]
    if expected == "mask":
        assert (hidden == MASK_ID).all()
    elif expected == "kept":
        assert (hidden == ids[targets != IGNORE]).mean() > 0.9
    else:
        assert not (hidden == MASK_ID).any()


def test_whole_words() -> None:
    masking = Masking(MaskedConfig(units=WordUnitsConfig(), share=0.3, random=0, kept=0), TOKENIZER)
    text = "abc def gh bad cafe a head"
    ids = np.array(TOKENIZER.encode(text))
    for seed in range(40):
        hidden = masking.hidden(ids, seed)[0] == MASK_ID
        at = 0
        for word in text.split():
            assert len({*hidden[at : at + len(word)].tolist()}) == 1
            at += len(word) + 1


def same(one: Batch, other: Batch) -> bool:
    return torch.equal(one.inputs["inputs"], other.inputs["inputs"]) and torch.equal(
        one.targets, other.targets
    )


def test_any_place_of_an_epoch_is_found_again() -> None:
    config = MaskedConfig(batch_size=2, seq_len=20)
    whole = list(config.build(CORPUS, 5).train.batches(3))
    rest = list(config.build(CORPUS, 5).train.batches(3, start=2))
    assert all(same(*two) for two in zip(rest, whole[2:], strict=True))
    other = list(config.build(CORPUS, 5).train.batches(4))
    assert not all(same(*two) for two in zip(whole, other, strict=True))


def test_masks_of_validation_stay() -> None:
    loaders = [MaskedConfig(batch_size=2, seq_len=20).build(CORPUS, seed) for seed in (0, 1)]
    first, second = (loader.valid for loader in loaders)
    assert first is not None
    assert second is not None
    pairs = zip(first.batches(0), second.batches(6), strict=True)
    assert all(same(*two) for two in pairs)


def test_no_room_for_text() -> None:
    with pytest.raises(InputError, match="seq_len = 2 has no room for text and 2 special"):
        MaskedConfig(seq_len=2).build(CORPUS)


def test_more_than_all() -> None:
    with pytest.raises(ConfigError, match=r"random = 0\.6 and kept = 0\.6 are more than all"):
        MaskedConfig(random=0.6, kept=0.6)


def test_other_data() -> None:
    pairs = Corpus([Pair("a", "b")])
    encoded = encode(pairs, Tokenizers(TOKENIZER, TOKENIZER))
    with pytest.raises(InputError, match='"masked" is for plain texts; these data are for tra'):
        MaskedConfig().build(encoded)


def test_a_tokenizer_without_a_mask() -> None:
    plain = CharConfig().train([LETTERS])
    encoded = encode(Corpus([Text("abc")]), Tokenizers(plain, plain))
    with pytest.raises(InputError, match="no mask token"):
        MaskedConfig().build(encoded)
