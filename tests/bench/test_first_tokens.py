"""The time to first tokens at small sizes: of requests that arrive at random, and of prefixes."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.bench.conftest import TINY
from tests.bench.test_serving import SIZES

from addnorm.bench import first_tokens
from addnorm.bench.first_tokens import (
    GAP,
    answered,
    answered_by_transformers,
    arrivals,
    at_half_load,
    beginning_alike,
)


def test_arrivals_are_the_same_for_everyone_and_random() -> None:
    seconds = arrivals(1000, 0.5)
    assert seconds == arrivals(1000, 0.5)
    gaps = [b - a for a, b in pairwise(seconds)]
    assert min(gaps) > 0
    assert sum(gaps) / len(gaps) == pytest.approx(0.5, rel=0.1)
    assert max(gaps) > 2  # exponential, and not regular


def test_rounds_are_the_time_to_the_first_token(gpt2_folder: Path) -> None:
    (gpt2_folder / GAP).write_text("0.01")
    run = answered(gpt2_folder, sizes=SIZES)
    for _ in range(2):
        done = run()
        assert 0 < done.details["median ms"] <= 1e3 * done.seconds
        assert done.details["all s"] >= arrivals(SIZES.requests, 0.01)[-1]


@pytest.mark.slow
def test_the_peer_answers_too(gpt2_folder: Path) -> None:
    pytest.importorskip("transformers")
    at_half_load(gpt2_folder, sizes=SIZES, config=TINY, vocab_size=320)
    assert json.loads((gpt2_folder / GAP).read_text()) > 0
    done = answered_by_transformers(gpt2_folder, sizes=SIZES)()
    assert 0 < done.details["median ms"] <= 1e3 * done.seconds


@pytest.mark.parametrize("shared", [True, False])
def test_a_common_beginning_is_computed_once(
    gpt2_folder: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_tokens, "COMMON", 40)
    sizes = replace(SIZES, requests=6)
    run = beginning_alike(gpt2_folder, sizes=sizes, shared=shared)
    assert all(run().units == 6 for _ in range(2))
