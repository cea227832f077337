"""Waveforms and log-mel features: a pure tone, plain float64 sums, Whisper's own, bad files."""

import math
import struct
import wave
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from addnorm.data.audio import hertz_to_mel, log_mel, mel_filters, mel_to_hertz, read_wav
from addnorm.errors import InputError


def write(path: Path, samples: list[list[int]], rate: int = 16_000, width: int = 2) -> Path:
    """A .wav file of samples by channel."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(samples))
        file.setsampwidth(width)
        file.setframerate(rate)
        form = {1: "B", 2: "<h", 4: "<i"}[width]
        file.writeframes(
            b"".join(struct.pack(form, x) for at in zip(*samples, strict=True) for x in at)
        )
    return path


def tone(hertz: float, seconds: float = 0.5, rate: int = 16_000) -> Tensor:
    return torch.sin(2 * math.pi * hertz * torch.arange(int(seconds * rate)).double() / rate)


# Files.


@settings(max_examples=20)
@given(st.lists(st.tuples(*[st.integers(-(2**15), 2**15 - 1)] * 2), min_size=1, max_size=20))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, samples) -> None:
    channels = [list(channel) for channel in zip(*samples, strict=True)]
    path = write(tmp_path_factory.mktemp("wav") / "a.wav", channels, rate=8000)
    found, rate = read_wav(Path("a.wav"), root=path.parent)
    assert rate == 8000
    assert_close(found * 2**15, torch.tensor(channels).float(), rtol=0, atol=0)


@pytest.mark.parametrize("kept", [0, 3, 20, 43, 44, 60, 61])
def test_a_truncated_file_is_refused(kept: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", [list(range(30))])
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"a\.wav"):
        read_wav(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="16-bit"):
        read_wav(write(tmp_path / "wide.wav", [[1, 2]], width=4))
    with pytest.raises(InputError, match="empty or truncated: 0 of 0"):
        read_wav(write(tmp_path / "empty.wav", [[]]))
    (tmp_path / "text.wav").write_text("RIFF or not, this is no sound at all, only words")
    with pytest.raises(InputError, match="not readable"):
        read_wav(tmp_path / "text.wav")
    with pytest.raises(InputError, match=r"Did you mean 'wide\.wav'"):
        read_wav(tmp_path / "wider.wav")


# Frames.


def test_the_scale_of_slaney() -> None:
    hertz = torch.tensor([0.0, 200.0, 1000.0, 6400.0, 40_960.0], dtype=torch.float64)
    expected = torch.tensor([0.0, 3.0, 15.0, 42.0, 69.0], dtype=torch.float64)
    assert_close(hertz_to_mel(hertz), expected, rtol=0, atol=1e-5)
    assert_close(mel_to_hertz(hertz_to_mel(hertz)), hertz, rtol=1e-6, atol=0)


def test_filters_are_triangles_of_area_one() -> None:
    filters = mel_filters(20, 4000, 16_000)
    assert_close(filters.sum(1) * 16_000 / 4000, torch.ones(20).double(), rtol=0, atol=1e-3)
    for row in filters:
        inside = row.nonzero().flatten()
        assert torch.equal(inside, torch.arange(inside[0], inside[-1] + 1))
        rises = row[inside].diff() > 0
        assert not (rises[1:] & ~rises[:-1]).any(), "one peak"


def test_a_pure_tone_is_loudest_in_its_own_band() -> None:
    centres = mel_to_hertz(torch.linspace(0, float(hertz_to_mel(torch.tensor(8000.0))), 82))[1:-1]
    for hertz in (440.0, 1000.0, 3000.0):
        frames = log_mel(tone(hertz))
        assert frames.shape == (80, 50)
        loudest = frames[:, 2:-2].argmax(0)
        nearest = (centres - hertz).abs().argmin()
        assert ((loudest - nearest).abs() <= 1).all()


def test_silence_and_half_the_amplitude() -> None:
    assert_close(log_mel(torch.zeros(1600)), torch.full((80, 10), -1.5))
    loud = log_mel(tone(1000))
    assert loud.max() - loud.min() <= 2 + 1e-9  # eight orders of magnitude, a quarter each
    top = loud.argmax()
    quiet = log_mel(0.5 * tone(1000)).flatten()[top]
    assert_close(loud.flatten()[top] - quiet, torch.tensor(2 * math.log10(2) / 4).double())


def test_equals_plain_sums() -> None:
    """A frame by the definition of the transform: a window around every tenth millisecond."""
    rate, n_mels = 2000, 6
    window, step = 50, 20
    x = torch.randn(130).double()
    mirrored = torch.cat([x[1 : window // 2 + 1].flip(0), x, x[-window // 2 - 1 : -1].flip(0)])
    filters = mel_filters(n_mels, window, rate)
    frames = []
    for at in range(0, 130 - step + 1, step):
        power = []
        for k in range(window // 2 + 1):
            total = 0j
            for n in range(window):
                hann = 0.5 - 0.5 * math.cos(2 * math.pi * n / window)
                turn = complex(
                    math.cos(2 * math.pi * k * n / window), -math.sin(2 * math.pi * k * n / window)
                )
                total += hann * float(mirrored[at + n]) * turn
            power.append(abs(total) ** 2)
        frames.append(filters @ torch.tensor(power, dtype=torch.float64))
    loudness = torch.stack(frames, dim=1).clamp(min=1e-10).log10()
    expected = (loudness.clamp(min=float(loudness.max()) - 8) + 4) / 4
    assert_close(log_mel(x, rate, n_mels), expected, rtol=0, atol=1e-9)


def test_clips_in_a_batch_are_as_if_alone() -> None:
    clips = torch.stack([tone(500), 0.01 * tone(2000)])
    together = log_mel(clips[None])
    assert together.shape == (1, 2, 80, 50)
    for one, clip in zip(together[0], clips, strict=True):
        assert_close(one, log_mel(clip))


def test_a_clip_that_is_too_short() -> None:
    with pytest.raises(InputError, match=r"200 samples is too short: .* 201"):
        log_mel(torch.zeros(200))
    assert log_mel(torch.zeros(201)).shape == (80, 1)


@pytest.mark.parity
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("n_mels", [80, 128])
def test_whispers_own_frames(n_mels: int) -> None:
    transformers = pytest.importorskip("transformers")
    extractor = transformers.WhisperFeatureExtractor(feature_size=n_mels, chunk_length=2)
    clip = torch.zeros(32_000)
    clip[:24_000] = 0.3 * torch.randn(24_000) * tone(3, 1.5).float() + 0.2 * tone(700, 1.5).float()
    theirs = extractor(clip[:24_000].numpy(), sampling_rate=16_000, return_tensors="pt")
    assert_close(log_mel(clip, 16_000, n_mels), theirs.input_features[0], rtol=0, atol=2e-4)
