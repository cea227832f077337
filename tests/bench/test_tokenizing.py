"""The benchmarks of shards at a small size; opening very many takes seconds and little memory."""

import resource
from pathlib import Path

import pytest

from addnorm.bench.tokenizing import (
    MANY,
    PLACE,
    encoded,
    first_batch,
    many_shards,
    prepare,
    tokenized,
)


@pytest.mark.slow
def test_ours_and_the_library_encode_the_same_texts(tmp_path: Path) -> None:
    prepare(tmp_path, characters=5_500_000, vocab_size=400)
    ours, theirs = tokenized(tmp_path, workers=2)(), encoded(tmp_path, threads=2)()
    assert 0 < ours.units < theirs.units < 6
    assert ours.seconds > 0 < theirs.seconds


def test_a_batch_of_many_shards(tmp_path: Path) -> None:
    many_shards(tmp_path / MANY, 40, 2**15)
    done = first_batch(tmp_path, place=320)()
    assert done.details["open ms"] > 0
    assert done.seconds < 5


@pytest.mark.slow
@pytest.mark.usefixtures("types_unchecked")
def test_a_hundred_thousand_shards_open_in_seconds_and_little_memory(tmp_path: Path) -> None:
    many_shards(tmp_path / MANY)
    run = first_batch(tmp_path, place=PLACE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = run()
    assert done.details["open ms"] < 5000
    assert done.seconds < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
