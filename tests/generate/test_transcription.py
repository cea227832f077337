"""Texts of signals: the cache, the other clips of a batch and the order change nothing."""

import pytest
import torch
from torch import Tensor

from addnorm.data.examples import Medium
from addnorm.errors import InputError
from addnorm.generate import (
    BeamConfig,
    GreedyConfig,
    RulesConfig,
    Transcription,
    Translation,
    transcribe,
)
from addnorm.generate.timestamps import TimestampRules
from addnorm.models import EncoderDecoderConfig, EncoderDecoderModel
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.patches import PatchEmbeddingConfig

BOS = 2
DECODINGS = [GreedyConfig(), BeamConfig(beams=3, n_best=2)]


def built(medium: Medium) -> EncoderDecoderModel:
    torch.manual_seed(1)
    reads = LogMelEmbeddingConfig(n_mels=4)
    if medium == "images":
        reads = PatchEmbeddingConfig(size=(4, 8), channels=1, patch=2)
    config = EncoderDecoderConfig(
        d_model=16, n_layers=2, input=reads, attention=AttentionConfig(n_heads=2), init="kaiming"
    )
    return config.build(11).double().eval()


def signals_of(medium: Medium) -> list[Tensor]:
    if medium == "images":
        return list(torch.randint(0, 256, (5, 1, 4, 8), dtype=torch.uint8))
    return [torch.randn(4, n) for n in (9, 30, 12, 9, 21)]


def texts(
    medium: Medium, signals: list[Tensor], decoding: GreedyConfig | BeamConfig, **options: bool
) -> list[list[tuple[tuple[int, ...], float]]]:
    writer = Translation(built(medium), BOS, **options)
    transcription = Transcription(writer, signals, medium)
    results = transcribe(transcription, decoding, max_new_tokens=8, batch_size=3)
    return [[(g.ids, pytest.approx(g.score, abs=1e-5)) for g in best] for best in results]


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("medium", ["audio", "images"])
def test_the_cache_changes_nothing(medium: Medium, decoding: GreedyConfig | BeamConfig) -> None:
    signals = signals_of(medium)
    cached = texts(medium, signals, decoding)
    assert cached == texts(medium, signals, decoding, cached=False)


@pytest.mark.long
@pytest.mark.parametrize("decoding", DECODINGS)
def test_a_clip_does_not_depend_on_others_of_other_lengths(
    decoding: GreedyConfig | BeamConfig,
) -> None:
    signals = signals_of("audio")
    alone = [best for signal in signals for best in texts("audio", [signal], decoding)]
    assert texts("audio", signals, decoding) == alone


@pytest.mark.long
@pytest.mark.parametrize("decoding", DECODINGS)
def test_an_image_does_not_depend_on_others_of_other_sizes(
    decoding: GreedyConfig | BeamConfig,
) -> None:
    sizes = [(4, 8), (6, 8), (4, 8), (8, 6), (4, 10), (6, 8)]
    images = [torch.randint(0, 256, (1, *size), dtype=torch.uint8) for size in sizes]
    alone = [best for image in images for best in texts("images", [image], decoding)]
    assert texts("images", images, decoding) == alone


def test_padding_changes_no_logits() -> None:
    signals = signals_of("audio")
    together = Transcription(Translation(built("audio"), BOS), signals, "audio")
    logits = together.start([[i] for i in range(5)])
    for i, row in enumerate(logits):
        torch.testing.assert_close(together.start([[i]])[0], row)


def test_the_default_limit_follows_the_length_of_a_clip() -> None:
    signals = signals_of("audio")
    transcription = Transcription(Translation(built("audio"), BOS), signals, "audio")
    results = transcribe(transcription, GreedyConfig(), eos_id=None)
    assert [len(best.ids) for [best] in results] == [n // 4 + 50 for n in transcription.lengths]
    rules = RulesConfig(max_new_tokens=3)
    results = transcribe(transcription, GreedyConfig(rules=rules), eos_id=None)
    assert {len(best.ids) for [best] in results} == {3}


def test_texts_with_time_stamps_follow_their_rules() -> None:
    """A text begins with a stamp, and no stamp is before an earlier one."""
    rules = TimestampRules(first=7, end=5)
    writer = Translation(built("audio"), BOS)
    transcription = Transcription(writer, signals_of("audio"), "audio", stamps=rules)
    for [best] in transcribe(transcription, GreedyConfig(), eos_id=5):
        stamps = [token for token in best.ids if token >= rules.first]
        assert best.ids[0] == stamps[0]
        assert stamps == sorted(stamps)


def test_a_limit_of_zero_tokens_is_rejected() -> None:
    transcription = Transcription(Translation(built("audio"), BOS), signals_of("audio"), "audio")
    with pytest.raises(InputError, match=r"`max_new_tokens = .*must be at least 1"):
        transcribe(transcription, GreedyConfig(), max_new_tokens=0)
