"""Batches of signals with their masks, and shuffled epochs: the order of `random.shuffle`."""

from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data import Captioned, Clip, Corpus, Transcribed
from addnorm.data.batches import batch as order
from addnorm.data.batches.batch import chunks, epoch_random, inputs_of, shuffled
from addnorm.data.batches.buckets import ExamplesConfig, FramesConfig
from addnorm.data.batches.windows import Cuts
from addnorm.data.ids.encoding import IGNORE, EncodedCorpus
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig
from addnorm.runs.encoded_data import encode


def spoken() -> tuple[EncodedCorpus, Tokenizers]:
    texts = {5: "ab", 8: "b", 3: "abab"}
    corpus = Corpus([Transcribed(torch.randn(2, n), text) for n, text in texts.items()])
    tokenizers = Tokenizers.train(CharConfig(), corpus)
    assert tokenizers.source is tokenizers.target
    return encode(corpus, tokenizers), tokenizers


def test_texts_of_clips_are_shifted_after_bos() -> None:
    corpus, tokenizers = spoken()
    [batch] = FramesConfig(frames=100).build(corpus).train.batches()
    assert batch.n_tokens == sum(len(one.targets) for one in corpus.train)
    for row, i in enumerate(batch.indices):
        one = corpus.train[i]
        n = len(one.targets)
        assert batch.targets[row, :n].tolist() == one.targets
        assert set(batch.targets[row, n:].tolist()) <= {IGNORE}
        assert batch.inputs["target"][row, :n].tolist() == [corpus.bos_id, *one.targets[:-1]]
        assert int(batch.inputs["target_valid"][row].sum()) == n
        assert one.signal is not None
        length = one.signal.shape[1]
        assert torch.equal(batch.inputs["source"][row, :, :length], one.signal)
        assert int(batch.inputs["source_valid"][row].sum()) == length
    assert tokenizers.target.decode(corpus.train[0].targets) == "ab"


def test_a_long_text_counts_as_its_tokens() -> None:
    corpus, _ = spoken()
    assert corpus.lengths(corpus.train) == [5, 8, 5]


def test_texts_of_images() -> None:
    corpus = Corpus([Captioned(torch.zeros(1, 2, 2, dtype=torch.uint8), text) for text in "ab"])
    encoded = encode(corpus, Tokenizers.train(CharConfig(), corpus))
    [batch] = ExamplesConfig(size=2).build(encoded).train.batches()
    assert batch.inputs.keys() == {"source", "target"}
    assert batch.inputs["source"].unique().tolist() == [-1.0]
    assert batch.targets.shape == (2, 2)


def test_classes_of_clips_are_numbers() -> None:
    corpus = encode(Corpus([Clip(torch.zeros(2, 3), "a"), Clip(torch.zeros(2, 3), "b")]), None)
    [batch] = FramesConfig().build(corpus).train.batches()
    assert sorted(batch.targets.tolist()) == [0, 1]
    assert batch.inputs.keys() == {"inputs"}


def test_inputs_of_each_medium() -> None:
    assert inputs_of("audio", [torch.zeros(2, 3), torch.zeros(2, 5)])["valid"].sum() == 8
    white = inputs_of("images", [torch.full((1, 2, 2), 255, dtype=torch.uint8)])
    assert white["inputs"].unique().tolist() == [1.0]


BORDERS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 127, 128, 1023, 1024, 1025]


@pytest.mark.parametrize("n", BORDERS)
@pytest.mark.parametrize("block", [7, 2**16])
def test_it_is_the_order_of_random_shuffle(
    n: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "BLOCK", block)
    for seed in range(3):
        expected = list(range(n))
        ours, theirs = Random(seed), Random(seed)
        theirs.shuffle(expected)
        assert shuffled(ours, n).tolist() == expected
        assert ours.getstate() == theirs.getstate()


@pytest.mark.slow
def test_it_is_the_order_of_random_shuffle_for_many() -> None:
    expected = list(range(300_000))
    Random(3).shuffle(expected)
    assert shuffled(Random(3), len(expected)).tolist() == expected


@given(st.integers(1, 80), st.integers(1, 9), st.integers(1, 5), st.sampled_from([None, 0, 7]))
def test_batches_made_on_demand_are_those_made_at_once(
    n: int, seq_len: int, batch_size: int, seed: int | None
) -> None:
    """Cut, shuffle and group, as it reads: what is left over stays last."""
    rng = epoch_random(seed, 3)
    first = rng.randrange(n) if rng else 0
    cuts = [*range(first, first + n, seq_len), first + n]
    windows = [range(i % n, i % n + j - i) for i, j in pairwise(cuts)]
    rest = [windows.pop()] if n % seq_len else []
    if rng:
        rng.shuffle(windows)
    expected = chunks(windows + rest, batch_size)
    again = epoch_random(seed, 3)
    first = again.randrange(n) if again else 0
    found = Cuts(n, first, seq_len, batch_size, shuffled(again, n // seq_len) if again else None)
    assert list(found) == expected
    assert found[1:] == expected[1:]
    assert len(found) == len(expected)
    with pytest.raises(IndexError):
        found[len(expected)]
