"""The benchmark of sentences that arrive, at small sizes: everyone writes as many tokens."""

from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.bench import prepared, translating
from addnorm.bench.training import TINY
from addnorm.bench.translating import Sentences, ctranslate2, offline, served

SIZES = replace(TINY, n_layers=1, d_model=32, n_heads=2, d_ff=32, vocab_size=320)
SENTENCES = Sentences(n=5, length=(2, 6), beams=2, gap=0.001)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(translating, "cores", lambda: 1)
    prepared.translator(tmp_path, sizes=SIZES)
    return tmp_path


def test_sentences_arrive_in_their_order() -> None:
    arrivals = Sentences().arrivals()
    assert arrivals == sorted(arrivals) == Sentences().arrivals()
    assert 1.0 < arrivals[-1] < 3.0


def test_rounds_count_the_tokens_of_all_translations(folder: Path) -> None:
    expected = sum(map(len, SENTENCES.sources(320)))
    run = served(folder, sizes=SIZES, sentences=SENTENCES)
    for _ in range(2):
        done = run()
        assert done.units == expected
        assert 0 < done.details["median wait s"] < done.seconds
    assert offline(folder, sizes=SIZES, sentences=SENTENCES)().units == expected


@pytest.mark.slow
def test_the_peer_translates_too(folder: Path) -> None:
    pytest.importorskip("ctranslate2")
    done = ctranslate2(folder, sizes=SIZES, sentences=SENTENCES)()
    assert done.units == sum(map(len, SENTENCES.sources(320)))
