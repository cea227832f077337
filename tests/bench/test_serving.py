"""The serving benchmark at small sizes: everyone writes the same number of tokens."""

from pathlib import Path

import pytest

from addnorm.bench import serving
from addnorm.bench.serving import ServingSizes, in_batches, served, served_by_transformers

SIZES = ServingSizes(requests=3, prompt=(2, 9), answer=(2, 5), vocab_size=320)


def test_workload_is_the_same_for_everyone_and_as_ragged_as_asked() -> None:
    workload = ServingSizes().workload()
    assert workload == ServingSizes().workload()
    assert len(workload) == 32
    lengths = [len(prompt) for prompt, _ in workload]
    assert 16 <= min(lengths) < 64 < 200 < max(lengths) <= 256
    assert all(16 <= n <= 128 for _, n in workload)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_rounds_count_the_tokens_of_all_answers(
    gpt2_folder: Path, precision: serving.ServingPrecision
) -> None:
    expected = sum(n for _, n in SIZES.workload())
    run = served(gpt2_folder, sizes=SIZES, precision=precision)
    for _ in range(2):
        done = run()
        assert done.units == expected
        assert 0 < done.details["first token s"] < done.seconds
    assert in_batches(gpt2_folder, sizes=SIZES, precision=precision)().units == expected


@pytest.mark.slow
def test_the_peer_answers_too(gpt2_folder: Path) -> None:
    pytest.importorskip("transformers")
    done = served_by_transformers(gpt2_folder, sizes=SIZES)()
    assert done.units == sum(n for _, n in SIZES.workload())
