"""Windows cover a stream exactly once; packing cuts no document that fits a row."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data import Corpus, Text
from addnorm.data.batches.buckets import Packed, PackedConfig, Windows, WindowsConfig
from addnorm.data.ids.compact import Compact
from addnorm.data.ids.encoding import Encoded, EncodedCorpus
from addnorm.data.ids.layout import NextToken
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode

sizes = st.integers(1, 7)


def pairs_of(loader: Windows, epoch: int = 0) -> list[tuple[int, int]]:
    """Every (token, target) that counts."""
    return [
        pair
        for batch in loader.batches(epoch)
        for pair in zip(
            batch.inputs["tokens"].flatten().tolist(), batch.targets.flatten().tolist(), strict=True
        )
        if pair[1] != -100
    ]


@given(st.integers(2, 60), sizes, sizes)
def test_validation_counts_every_target_once_in_order(
    n: int, batch_size: int, seq_len: int
) -> None:
    loader = Windows(torch.arange(10, 10 + n), batch_size, seq_len)
    assert pairs_of(loader) == [(10 + i, 11 + i) for i in range(n - 1)]
    assert len(list(loader.batches())) == len(loader)


@given(st.integers(2, 60), sizes, sizes, st.integers(0, 5))
def test_training_counts_every_target_once(
    n: int, batch_size: int, seq_len: int, epoch: int
) -> None:
    loader = Windows(torch.arange(n), batch_size, seq_len, seed=4)
    assert sorted(pairs_of(loader, epoch)) == [(i, (i + 1) % n) for i in range(n)]
    batches = list(loader.batches(epoch))
    assert len(batches) == len(loader)
    assert all("valid" not in batch.inputs for batch in batches[:-1])


@given(st.integers(2, 60), sizes, sizes, st.integers(0, 5))
def test_windows_are_contiguous(n: int, batch_size: int, seq_len: int, epoch: int) -> None:
    loader = Windows(torch.arange(n), batch_size, seq_len, seed=4, pad_id=99)
    for batch in loader.batches(epoch):
        tokens = batch.inputs["tokens"]
        valid = batch.inputs.get("valid", torch.ones_like(tokens, dtype=torch.bool))
        for start, row, mask in zip(batch.indices, tokens, valid, strict=True):
            kept = row[mask].tolist()
            assert kept == [(start + i) % n for i in range(len(kept))]
            assert row[~mask].tolist() == [99] * int((~mask).sum())


def test_epochs_start_in_different_places() -> None:
    loader = Windows(torch.arange(1000), 4, 10, seed=4)
    starts = {min(batch.indices[0] % 10 for batch in loader.batches(e)) for e in range(20)}
    assert len(starts) > 5


def language(*texts: str, valid: tuple[str, ...] = ()) -> EncodedCorpus:
    corpus = Corpus([Text(t) for t in texts], [Text(t) for t in valid])
    return encode(corpus, Tokenizers.train(CharConfig(), corpus))


def test_marked_documents_stand_between_bos_and_eos() -> None:
    corpus = language("ab", "c", valid=("ab", "c"))
    loaders = WindowsConfig(batch_size=9, seq_len=99).build(corpus)
    [batch] = loaders.valid.batches()
    assert batch.inputs["tokens"].tolist() == [[2, 4, 5, 3, 2, 6]]
    # that a document begins is not predicted
    assert batch.targets.tolist() == [[4, 5, 3, -100, 6, 3]]
    # a ring: the first bos follows the last eos, and is no more predicted than the others
    assert sum(b.n_tokens for b in loaders.train.batches()) == 5


def test_joined_documents_are_one_text() -> None:
    corpus = language("ab", "c", valid=("ab", "c"))
    loaders = WindowsConfig(seq_len=99, documents="joined").build(corpus)
    [batch] = loaders.valid.batches()
    assert batch.inputs["tokens"].tolist() == [[4, 5]]
    assert batch.targets.tolist() == [[5, 6]]
    assert sum(b.n_tokens for b in loaders.train.batches()) == 3


def test_a_text_without_two_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="too short"):
        WindowsConfig(documents="joined").build(language("a"))


# Packing


documents = st.lists(st.integers(1, 20), min_size=1, max_size=30)


def of_lengths(lengths: list[int]) -> list[Encoded]:
    return [
        Encoded(
            i, [1000 * (i + 1) + j for j in range(n)], [1000 * (i + 1) + j + 1 for j in range(n)]
        )
        for i, n in enumerate(lengths)
    ]


@given(documents, sizes, st.integers(1, 12), st.integers(0, 3))
def test_packing_loses_and_cuts_nothing(lengths, batch_size, seq_len, epoch) -> None:
    packed = Packed(of_lengths(lengths), batch_size, seq_len, seed=1)
    pieces: Counter[tuple[int, ...]] = Counter()
    for batch in packed.batches(epoch):
        tokens, segments, targets = batch.inputs["tokens"], batch.inputs["segments"], batch.targets
        assert tokens.shape[1] == seq_len
        valid = batch.inputs.get("valid", torch.ones_like(tokens, dtype=torch.bool))
        assert (segments > 0).equal(valid)
        assert (targets != -100).equal(valid)
        assert targets[valid].equal(tokens[valid] + 1)
        for row, numbers in zip(tokens, segments, strict=True):
            ns = numbers[numbers > 0].unique_consecutive()
            assert ns.tolist() == [*range(1, len(ns) + 1)]
            pieces.update(tuple(row[numbers == n].tolist()) for n in ns)
    expected = Counter(
        tuple(e.tokens[i : i + seq_len])
        for e in of_lengths(lengths)
        for i in range(0, len(e.tokens), seq_len)
    )
    assert pieces == expected


@given(documents, st.integers(1, 12))
def test_no_two_rows_would_fit_into_one(lengths: list[int], seq_len: int) -> None:
    packed = Packed(of_lengths(lengths), 1, seq_len, seed=1)
    plans = [packed.plan(epoch) for epoch in range(4)]
    assert len({len(plan) for plan in plans}) == 1
    for plan in plans:
        filled = sorted(sum(len(packed.pieces[i].tokens) for i in row) for [row] in plan)
        assert sum(filled[:2]) > seq_len or len(filled) == 1


def test_packed_documents_keep_their_place() -> None:
    corpus = language("ab", "c", "defg", valid=("abc",))
    loaders = PackedConfig(batch_size=4, seq_len=5).build(corpus)
    [batch] = loaders.train.batches()
    assert sorted(batch.indices) == [0, 1, 2]
    assert sorted(map(sorted, batch.inputs["segments"].tolist())) == [
        [1, 1, 1, 1, 1],
        [1, 1, 1, 2, 2],
    ]
    [batch] = loaders.valid.batches()
    assert batch.targets.tolist() == [[4, 5, 6, 3, -100]]
    assert batch.inputs["valid"].tolist() == [[True] * 4 + [False]]


def test_one_token_that_ends_a_text_and_begins_the_next_stands_once_and_is_learnt() -> None:
    """GPT-2's: as the end of a text it is a target like any other."""
    texts = [Encoded(0, [9, 1, 2], [1, 2, 9]), Encoded(1, [9, 3], [3, 9])]
    corpus = EncodedCorpus("language", bos_id=9, pad_id=0, train=texts, layout=NextToken())
    windows = WindowsConfig(batch_size=1, seq_len=8).windows(corpus, texts)
    assert windows.bos_id is None
    assert windows.stream.tolist() == [9, 1, 2, 9, 3, 9]


QUESTION = [Encoded(0, [1, 5, 6, 7, 8], [-100, -100, -100, 8, 2]), Encoded(1, [1, 6], [7, -100])]
"""Two conversations, of which the answers are learnt: 8 and the end, and 7 in the second."""


def test_packed_conversations_learn_their_answers_alone() -> None:
    """Pieces of a long one in which nothing is answered are left out."""
    corpus = EncodedCorpus(
        "language", bos_id=1, pad_id=0, train=Compact.of(QUESTION), layout=NextToken()
    )
    whole = PackedConfig(batch_size=2, seq_len=7).build(corpus).train
    [batch] = whole.batches()
    [[*row]] = batch.targets.tolist()
    assert row in ([-100, -100, -100, 8, 2, 7, -100], [7, -100, -100, -100, -100, 8, 2])
    cut = PackedConfig(batch_size=2, seq_len=3).build(corpus).train
    [batch] = cut.batches()
    assert sorted(batch.targets.tolist()) == [[7, -100, -100], [8, 2, -100]]
    assert sorted(batch.indices) == [0, 1]


def test_windows_of_conversations_are_refused() -> None:
    """Their stream is learnt token by token, questions among them."""
    for examples in (QUESTION, Compact.of(QUESTION)):
        corpus = EncodedCorpus("language", bos_id=1, pad_id=0, train=examples, layout=NextToken())
        with pytest.raises(InputError, match='conversations are learnt: give kind = "tokens"'):
            WindowsConfig(batch_size=1, seq_len=4).build(corpus)


def test_packed_documents_keep_their_place_after_others_were_left_out() -> None:
    corpus = language("ab", "c", "defg")
    fits = {"train": [True, False, True], "valid": [], "test": []}
    packed = PackedConfig(batch_size=4, seq_len=5).build(corpus.keeping(fits, "short", "is short"))
    [batch] = packed.train.batches()
    assert sorted(batch.indices) == [0, 2]
