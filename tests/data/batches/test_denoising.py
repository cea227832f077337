"""Denoising: spans and sentinels give back the text; infilling keeps what it does not hide."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.batches.test_segments import LETTERS

from addnorm.data.batches.denoising import (
    DenoisingConfig,
    InfillingConfig,
    NoiseConfig,
    SpanCorruption,
    SpanCorruptionConfig,
    TextInfilling,
)
from addnorm.data.examples import Corpus, Text
from addnorm.data.ids.encoding import IGNORE, EncodedCorpus
from addnorm.data.tokenizing.sides import (
    MASK,
    SENTINELS,
    Tokenizers,
    mask_id_of,
    sentinel_ids_of,
    with_special_tokens,
)
from addnorm.data.tokenizing.tokenizers import CharConfig, Tokenizer
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode

FIRST = 1000
"""The first sentinel's id; smaller ids are text."""


def restored(read: list[int], said: list[int], first: int = FIRST) -> list[int]:
    """The text again: each sentinel gives way to the span after it."""
    spans: dict[int, list[int]] = {}
    sentinel = -1
    for i in said:
        if i >= first:
            sentinel = i
            assert i not in spans
            spans[i] = []
        else:
            spans[sentinel].append(i)
    assert spans.popitem() == (sentinel, [])  # the last sentinel ends the answer
    assert [i for i in read if i >= first] == [*spans]
    return [j for i in read for j in (spans[i] if i >= first else [i])]


@given(
    n=st.integers(2, 300),
    share=st.floats(0.01, 0.9),
    mean_span=st.floats(1, 8),
    seed=st.integers(0, 2**32),
)
def test_spans_and_the_rest_make_up_the_text(
    n: int, share: float, mean_span: float, seed: int
) -> None:
    noise = SpanCorruption(share, mean_span, range(FIRST, FIRST + 400))
    rng = np.random.default_rng(seed)
    ids = rng.integers(4, 90, n)
    read, said = (one.tolist() for one in noise.corrupt(ids, rng))
    assert restored(read, said) == ids.tolist()
    hidden, spans = noise.n_spans(n)
    assert sum(i < FIRST for i in said) == hidden == min(max(round(n * share), 1), n)
    assert sum(i >= FIRST for i in read) == spans
    assert [i for i in said if i >= FIRST] == [*range(FIRST, FIRST + spans + 1)]


def test_every_place_is_hidden_in_its_turn() -> None:
    noise = SpanCorruption(0.15, 3.0, range(FIRST, FIRST + 100))
    times = np.zeros(40)
    for seed in range(4000):
        starts, stops = noise.spans(40, np.random.default_rng(seed))
        for start, stop in zip(starts, stops, strict=True):
            times[start:stop] += 1
    assert times.sum() / times.size / 4000 == pytest.approx(0.15)
    assert times[5:-5].min() / 4000 > 0.1
    assert times[[0, -1]].min() / 4000 > 0.03


@given(n=st.integers(1, 200), share=st.floats(0.01, 0.9), seed=st.integers(0, 2**32))
def test_infilling_keeps_what_it_does_not_hide(n: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = np.arange(n)
    read, said = TextInfilling(share, 3.0, FIRST).corrupt(ids, rng)
    assert said.tolist() == ids.tolist()
    left = read[read != FIRST]
    assert (np.diff(left) > 0).all()  # a part of the text, in its order
    assert n - len(left) <= round(share * n)
    places = np.concatenate([[-1], left, [n]])
    gaps = int((np.diff(places) > 1).sum())
    assert (read == FIRST).sum() >= gaps  # a mask at least wherever something is hidden


def test_infilling_hides_the_share() -> None:
    noise, left = TextInfilling(0.3, 3.0, FIRST), 0
    for seed in range(300):
        read, _ = noise.corrupt(np.arange(100), np.random.default_rng(seed))
        left += int((read != FIRST).sum())
    assert left / 30_000 == pytest.approx(0.74, abs=0.03)  # spans that meet hide a token once


def test_sentences_in_another_order() -> None:
    stop = 9
    noise = TextInfilling(0.0, 3.0, FIRST, sentence_ends=np.array([stop]))
    ids = np.array([1, 2, stop, 3, stop, 4, 5, 6])
    orders = {
        tuple(noise.corrupt(ids, np.random.default_rng(seed))[0].tolist()) for seed in range(90)
    }
    assert len(orders) == 6
    assert (1, 2, 9, 4, 5, 6, 3, 9) in orders
    assert all(sorted(one) == sorted(ids.tolist()) for one in orders)


def tokenizer() -> Tokenizer:
    plain = CharConfig().train([LETTERS + "."])
    return with_special_tokens(Tokenizers(plain, plain), (MASK, *SENTINELS)).source


TOKENIZER = tokenizer()


def corpus(*texts: str) -> EncodedCorpus:
    examples = [Text(text) for text in texts]
    return encode(Corpus(examples, valid=examples[:1]), Tokenizers(TOKENIZER, TOKENIZER))


CORPUS = corpus("abc. def gh " * 30, "a", "ab cde")


@pytest.mark.parametrize("noise", [SpanCorruptionConfig(), InfillingConfig(sentences="permuted")])
@given(batch_size=st.integers(1, 9), seq_len=st.integers(3, 60))
@settings(max_examples=20)
def test_batches(noise: NoiseConfig, batch_size: int, seq_len: int) -> None:
    config = DenoisingConfig(batch_size=batch_size, seq_len=seq_len, noise=noise)
    loader = config.build(CORPUS, 1).train
    batches = list(loader.batches(1))
    assert len(batches) == len(loader)
    texts: list[list[int]] = []
    for batch in batches:
        source, target = batch.inputs["source"], batch.inputs["target"]
        assert target.shape == batch.targets.shape
        assert (target[:, 0] == TOKENIZER.bos_id).all()
        real = batch.targets != IGNORE
        assert torch.equal(
            target[:, 1:][real[:, 1:]], batch.targets[:, :-1][real[:, 1:]]
        )  # shifted
        for row, said in zip(source.tolist(), batch.targets.tolist(), strict=True):
            read = row[: row.index(TOKENIZER.eos_id)]
            told = said[: said.index(TOKENIZER.eos_id)]
            spans = isinstance(noise, SpanCorruptionConfig)
            texts.append(restored(read, told, sentinel_ids_of(TOKENIZER)[0]) if spans else told)
    assert sum(map(len, texts)) == sum(len(one.targets) - 1 for one in CORPUS.train)


@pytest.mark.parametrize("noise", [SpanCorruptionConfig(), InfillingConfig()])
def test_any_place_of_an_epoch_is_found_again(noise: NoiseConfig) -> None:
    config = DenoisingConfig(batch_size=2, seq_len=20, noise=noise)
    whole = list(config.build(CORPUS, 5).train.batches(3))
    rest = list(config.build(CORPUS, 5).train.batches(3, start=2))
    for one, other in zip(rest, whole[2:], strict=True):
        assert torch.equal(one.inputs["source"], other.inputs["source"])
        assert torch.equal(one.targets, other.targets)


def test_too_few_sentinels() -> None:
    noise = SpanCorruptionConfig(share=0.5, mean_span=1.0)
    with pytest.raises(InputError, match=r"199 tokens have 100 spans, and .* 100 sentinels"):
        DenoisingConfig(seq_len=200, noise=noise).build(CORPUS)


def test_no_room_for_text() -> None:
    plain = CharConfig().train([LETTERS])
    around = Tokenizer(plain.inner, before=(2, 2), after=(3,))
    more = with_special_tokens(Tokenizers(plain, plain), SENTINELS).source
    around = Tokenizer(more.inner, before=(2, 2), after=(3,))
    encoded = encode(Corpus([Text("abc")]), Tokenizers(around, around))
    with pytest.raises(InputError, match="no room for 2 tokens of text and 3 special"):
        DenoisingConfig(seq_len=4).build(encoded)


def test_a_tokenizer_without_the_tokens() -> None:
    plain = CharConfig().train([LETTERS])
    encoded = encode(Corpus([Text("abc")]), Tokenizers(plain, plain))
    for noise, what in ((SpanCorruptionConfig(), "sentinels"), (InfillingConfig(), "mask token")):
        with pytest.raises(InputError, match=f"the tokenizer has no {what}"):
            DenoisingConfig(noise=noise).build(encoded)


def test_special_tokens_are_those_of_the_noise() -> None:
    assert DenoisingConfig().special_tokens == SENTINELS
    assert DenoisingConfig(noise=InfillingConfig()).special_tokens == (MASK,)
    assert mask_id_of(TOKENIZER) not in sentinel_ids_of(TOKENIZER)
