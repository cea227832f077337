"""Batches of clips: each once an epoch, padded with a mask, resumable, and masked in training."""

import pytest
import torch
from torch.testing import assert_close

from addnorm.data.batches.batch import Batch
from addnorm.data.batches.frames import Frames, FramesConfig, SpecAugmentConfig
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.errors import InputError

LENGTHS = [5, 9, 3, 7, 9, 2, 4, 6, 8, 5]


def corpus() -> EncodedCorpus:
    clips = [Encoded(i, [], [i % 3], torch.randn(4, n)) for i, n in enumerate(LENGTHS)]
    return EncodedCorpus("classification", 0, 0, clips, clips[:4], medium="audio")


def test_every_clip_is_in_one_batch_of_an_epoch() -> None:
    loader = FramesConfig(frames=20).build(corpus(), seed=1).train
    for epoch in range(3):
        batches = list(loader.batches(epoch))
        assert sorted(i for batch in batches for i in batch.indices) == list(range(len(LENGTHS)))
        assert all(batch.inputs["inputs"].numel() <= 4 * 20 for batch in batches)
        assert len(batches) == len(loader)


def test_a_batch_has_the_clips_and_the_mask_of_their_frames() -> None:
    held = corpus()
    for batch in FramesConfig(frames=20).build(held, seed=1).train.batches():
        inputs = batch.inputs["inputs"]
        valid = batch.inputs.get("valid", torch.ones(len(inputs), inputs.shape[-1]).bool())
        for row, real, i, target in zip(inputs, valid, batch.indices, batch.targets, strict=True):
            assert int(real.sum()) == LENGTHS[i]
            assert torch.equal(row[:, : LENGTHS[i]], held.train[i].signal)
            assert not row[:, LENGTHS[i] :].any()
            assert int(target) == i % 3


def test_an_epoch_of_clips_resumes_from_any_place() -> None:
    config = FramesConfig(frames=20, augment=SpecAugmentConfig(time_width=3, mel_width=2))
    held = corpus()
    whole = list(config.build(held, seed=1).train.batches(2))
    rest = list(config.build(held, seed=1).train.batches(2, start=1))
    assert_close([values(one) for one in rest], [values(one) for one in whole[1:]])


def values(batch: Batch) -> tuple[object, ...]:
    return (batch.indices, batch.targets, batch.inputs)


def test_masks_are_spans_of_the_mean_within_the_width() -> None:
    config = SpecAugmentConfig(time_masks=1, time_width=6, time_share=0.5, mel_masks=1, mel_width=3)
    clip = torch.randn(8, 20)
    masked_frames, masked_mels = set[int](), set[int]()
    for seed in range(200):
        found = config.masked(clip, seed)
        changed = found != clip
        assert_close(found[changed], clip.mean().expand(int(changed.sum())))
        frames, mels = changed.all(0), changed.all(1)
        assert int(frames.sum()) <= 6
        assert int(mels.sum()) <= 3
        rest = changed.clone()
        rest[:, frames] = False
        rest[mels] = False
        assert not rest.any()
        masked_frames.add(int(frames.sum()))
        masked_mels.add(int(mels.sum()))
    assert masked_frames == set(range(7))
    assert masked_mels == set(range(4))


def test_a_short_clip_loses_a_share_at_most() -> None:
    config = SpecAugmentConfig(time_masks=1, time_width=50, time_share=0.2, mel_masks=0)
    clip = torch.randn(4, 10)
    assert max(int((config.masked(clip, s) != clip).all(0).sum()) for s in range(100)) == 2


def test_validation_is_not_masked() -> None:
    held = corpus()
    loaders = FramesConfig(frames=20, augment=SpecAugmentConfig()).build(held, seed=1)
    assert loaders.valid is not None
    for batch in loaders.valid.batches():
        for row, i in zip(batch.inputs["inputs"], batch.indices, strict=True):
            assert torch.equal(row[:, : LENGTHS[i]], held.valid[i].signal)


def test_a_clip_longer_than_a_batch_is_refused() -> None:
    held = corpus()
    with pytest.raises(InputError, match=r"a clip of 9 frames.*train\.batching\.frames = 8"):
        Frames(held, held.train, 8)
