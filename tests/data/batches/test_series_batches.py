"""Batches of series: windows with what follows them, padded series with a class, other media."""

import pytest
import torch
from tests.data.ids.test_forecast_windows import corpus

from addnorm.data import Corpus, LabelledSeries, ScoredSeries
from addnorm.data.batches.series_batches import SeriesBatches, SeriesBatchesConfig
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.ids.forecast_windows import encode_series
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode


def test_batches_hold_windows_and_what_follows() -> None:
    encoded = encode_series(corpus(torch.randn(2, 60).double(), (40, 50)), 8, 4)
    loaders = SeriesBatchesConfig(size=5).build(encoded, seed=1)
    batches = list(loaders.train.batches(epoch=0))
    assert sorted(i for batch in batches for i in batch.indices) == list(range(len(encoded.train)))
    for batch in batches:
        windows = [encoded.train[i] for i in batch.indices]
        inputs = torch.stack([one.signal for one in windows if one.signal is not None])
        assert batch.inputs["inputs"].equal(inputs)
        assert batch.targets.shape == (len(windows), 2, 4)
        assert batch.n_tokens == batch.targets.numel()
    orders = [[i for b in loaders.train.batches(epoch=e) for i in b.indices] for e in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert loaders.valid is not None
    assert [i for b in loaders.valid.batches() for i in b.indices] == list(range(7))


def test_series_of_several_lengths_are_padded() -> None:
    series = [torch.randn(2, n) for n in (3, 5)]
    labelled = encode(
        Corpus([LabelledSeries(series[0], "a"), LabelledSeries(series[1], "b")]), None
    )
    [batch] = SeriesBatches(labelled, labelled.train, 4).batches()
    assert batch.inputs["valid"].tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert batch.inputs["inputs"][0, :, :3].equal(series[0])
    assert batch.targets.tolist() == [0, 1]
    scored = encode(Corpus([ScoredSeries(one, (n, 2.0)) for n, one in enumerate(series)]), None)
    [batch] = SeriesBatches(scored, scored.train, 4).batches()
    assert batch.targets.tolist() == [[0, 2], [1, 2]]


def test_other_media_are_refused() -> None:
    with pytest.raises(InputError, match='"series" is for series; text needs kind = "tokens"'):
        SeriesBatchesConfig().build(EncodedCorpus("language", 0, 0, []))
