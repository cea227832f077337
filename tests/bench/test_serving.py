"""The serving benchmark at small sizes: everyone writes the same number of tokens."""

from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.bench import prepared, serving
from addnorm.bench.serving import ServingSizes, in_batches, served, served_by_transformers
from addnorm.models.presets import gpt2_small
from addnorm.nn.attention import AttentionConfig

TINY = replace(gpt2_small(), n_layers=1, d_model=32, attention=AttentionConfig(n_heads=2))
SIZES = ServingSizes(requests=3, prompt=(2, 9), answer=(2, 5), vocab_size=320)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(serving, "MEMORY", 2**20)
    monkeypatch.setattr(serving, "cores", lambda: 1)
    prepared.gpt2(tmp_path, config=TINY, vocab_size=320)
    return tmp_path


def test_workload_is_the_same_for_everyone_and_as_ragged_as_asked() -> None:
    workload = ServingSizes().workload()
    assert workload == ServingSizes().workload()
    assert len(workload) == 32
    lengths = [len(prompt) for prompt, _ in workload]
    assert 16 <= min(lengths) < 64 < 200 < max(lengths) <= 256
    assert all(16 <= n <= 128 for _, n in workload)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_rounds_count_the_tokens_of_all_answers(
    folder: Path, precision: serving.ServingPrecision
) -> None:
    expected = sum(n for _, n in SIZES.workload())
    run = served(folder, sizes=SIZES, precision=precision)
    for _ in range(2):
        done = run()
        assert done.units == expected
        assert 0 < done.details["first token s"] < done.seconds
    assert in_batches(folder, sizes=SIZES, precision=precision)().units == expected


@pytest.mark.slow
def test_the_peer_answers_too(folder: Path) -> None:
    pytest.importorskip("transformers")
    done = served_by_transformers(folder, sizes=SIZES)()
    assert done.units == sum(n for _, n in SIZES.workload())
