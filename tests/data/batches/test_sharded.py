"""Batches of shards: the rows of texts in memory, in an order that any place can be read from."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.shards.test_index import ONE_TOKEN, stream_of
from tests.data.shards.tiny import TEXTS, TOKENIZER, shards

from addnorm.data.batches.batch import Batch
from addnorm.data.batches.buckets import TokensConfig, build_loaders
from addnorm.data.batches.sharded import ShardRows
from addnorm.data.batches.windows import PackedConfig, Windows, WindowsConfig
from addnorm.data.shards.index import ShardFolder
from addnorm.data.shards.source import ShardedTexts, ShardsConfig
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError


def rows_of(batches: Sequence[Batch]) -> list[tuple[list[int], list[int]]]:
    """The tokens and targets of every row, without padding."""
    rows = list[tuple[list[int], list[int]]]()
    for batch in batches:
        tokens = batch.inputs["tokens"]
        valid = batch.inputs.get("valid", torch.ones_like(tokens, dtype=torch.bool))
        for row, targets, real in zip(tokens, batch.targets, valid, strict=True):
            rows.append((row[real].tolist(), targets[real].tolist()))
            assert (targets[~real] == -100).all()
    return rows


@pytest.mark.parametrize("tokenizer", [TOKENIZER, ONE_TOKEN], ids=["two tokens", "one token"])
@pytest.mark.parametrize("seq_len", [7, 64, 5000])
def test_an_epoch_has_the_rows_of_windows(
    tmp_path: Path, tokenizer: Tokenizer, seq_len: int
) -> None:
    """With a seed the same rows in another order, without one in the same."""
    shards(TEXTS, tmp_path / "s", tokenizer, shard_tokens=500)
    texts = ShardedTexts([ShardFolder.open(tmp_path / "s")])
    stream = torch.from_numpy(stream_of(tokenizer, TEXTS).astype(np.int64))
    bos_id = 2 if tokenizer is TOKENIZER else None
    for seed, epoch in ((None, 0), (5, 0), (5, 1)):
        ours = ShardRows(texts, 4, seq_len, seed=seed)
        theirs = Windows(stream, 4, seq_len, seed=seed, bos_id=bos_id)
        assert len(ours) == len(theirs)
        a, b = rows_of([*ours.batches(epoch)]), rows_of([*theirs.batches(epoch)])
        assert (a == b) if seed is None else (sorted(a) == sorted(b))
        if seed is not None and seq_len < 100:
            assert a != b


def test_each_place_has_its_batch_wherever_reading_begins(tmp_path: Path) -> None:
    shards(TEXTS, tmp_path / "a", shard_tokens=500)
    shards(TEXTS[:40], tmp_path / "b")
    texts = ShardedTexts([ShardFolder.open(tmp_path / name) for name in "ab"], (1.0, 2.0))
    loader = ShardRows(texts, 3, 16, seed=1)
    every = [*loader.batches(2)]
    assert len(every) == len(loader)
    for start in (0, 1, len(loader) // 2, len(loader) - 1):
        for ours, whole in zip(loader.batches(2, start), every[start:], strict=True):
            assert torch.equal(ours.inputs["tokens"], whole.inputs["tokens"])
            assert torch.equal(ours.targets, whole.targets)


def test_a_mixture_has_its_shares(tmp_path: Path) -> None:
    letters = ["a " * 30] * 50, ["b " * 30] * 150
    for name, texts in zip("ab", letters, strict=True):
        shards(texts, tmp_path / name)
    opened = [ShardFolder.open(tmp_path / name) for name in "ab"]
    for weights, share in ((None, 0.25), ((3.0, 1.0), 0.75)):
        loader = ShardRows(ShardedTexts(opened, weights), 5, 10, seed=0)
        folders = [row.folder for batch in loader.plan(0) for row in batch]
        assert folders.count(0) / len(folders) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, ONE_TOKEN], ids=["two tokens", "one token"])
def test_segments_are_the_documents_of_a_row(tmp_path: Path, tokenizer: Tokenizer) -> None:
    shards(TEXTS, tmp_path / "s", tokenizer, shard_tokens=500)
    loader = ShardRows(
        ShardedTexts([ShardFolder.open(tmp_path / "s")]), 4, 50, seed=3, segments=True
    )
    start = 2 if tokenizer is TOKENIZER else 3
    for batch in loader.batches(0):
        for tokens, numbers in zip(batch.inputs["tokens"], batch.inputs["segments"], strict=True):
            real = numbers > 0
            begins = (tokens == start).long()
            begins[0] = 1
            expected = begins.cumsum(0)
            if tokenizer is TOKENIZER:
                assert numbers[real].tolist() == expected[real].tolist()
            else:  # the last end, which is also a start, stands alone where the ring continues
                assert numbers[0] == 1
                assert set(numbers[real].diff().tolist()) <= {0, 1}
            assert (tokens[~real] == 0).all()


def test_the_loaders_of_shards(tmp_path: Path) -> None:
    shards(TEXTS, tmp_path / "s", valid_fraction=0.2)
    data = ShardsConfig(train=tmp_path / "s", valid=tmp_path / "s" / "valid")
    corpus = data.encoded(Tokenizers(TOKENIZER, TOKENIZER))
    loaders = build_loaders(WindowsConfig(batch_size=2, seq_len=8), corpus, 1)
    assert loaders.valid is not None
    assert loaders.test is None
    [first, *_] = loaders.valid.batches()
    assert first.inputs["tokens"].shape == (2, 8)
    assert (
        "segments" in next(build_loaders(PackedConfig(seq_len=8), corpus, 1).train.batches()).inputs
    )
    for batching, message in (
        (TokensConfig(), '"windows" or "packed"'),
        (WindowsConfig(documents="joined"), 'leave batching.documents = "joined" out'),
    ):
        with pytest.raises(InputError, match=message):
            build_loaders(batching, corpus, 1)


def test_a_place_far_ahead_takes_no_longer(tmp_path: Path) -> None:
    """A folder that is read over and over has place 10⁹ in an epoch far ahead."""
    shards(TEXTS, tmp_path / "s", shard_tokens=500)
    loader = ShardRows(ShardedTexts([ShardFolder.open(tmp_path / "s")]), 16, 8, seed=0)
    begun = time.perf_counter()
    next(loader.batches(10**9 // len(loader), 10**9 % len(loader)))
    assert time.perf_counter() - begun < 1
