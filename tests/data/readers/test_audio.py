"""Waveforms and log-mel features: a pure tone, plain float64 sums, Whisper's own, bad files."""

import math
import struct
import wave
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from addnorm.data import AudioConfig, Clip
from addnorm.data.readers.audio import hertz_to_mel, log_mel, mel_filters, mel_to_hertz, read_audio
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
def test_sound_files_round_trip(tmp_path_factory: pytest.TempPathFactory, samples) -> None:
    channels = [list(channel) for channel in zip(*samples, strict=True)]
    path = write(tmp_path_factory.mktemp("wav") / "a.wav", channels, rate=8000)
    found, rate = read_audio(path)
    assert rate == 8000
    assert_close(found * 2**15, torch.tensor(channels).float(), rtol=0, atol=0)


def test_every_width_is_the_same_sound(tmp_path: Path) -> None:
    wave_of = tone(440.0).numpy() / 2
    kinds = [("wav", "PCM_16"), ("wav", "PCM_24"), ("wav", "FLOAT"), ("flac", "PCM_24")]
    for suffix, kind in kinds:
        path = tmp_path / f"{kind}.{suffix}"
        soundfile.write(path, wave_of, 16_000, subtype=kind)
        found, _ = read_audio(path)
        assert_close(found[0].double(), torch.from_numpy(wave_of), rtol=0, atol=2**-15)


def test_another_rate_is_resampled_and_channels_are_averaged(tmp_path: Path) -> None:
    left, right = tone(440.0, rate=8000).float() / 2, torch.zeros(4000)
    soundfile.write(tmp_path / "a.wav", torch.stack([left, right], 1).numpy(), 8000)
    found, rate = read_audio(tmp_path / "a.wav", sample_rate=16_000, mix=True)
    assert (rate, found.shape) == (16_000, (1, 8000))
    expected = tone(440.0).float() / 4
    assert_close(found[0, 1000:-1000], expected[1000:-1000], rtol=0, atol=2e-3)


@pytest.mark.parametrize("kept", [0, 3, 20, 43, 44, 60, 61])
def test_a_truncated_file_is_refused(kept: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", [list(range(30))])
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"a\.wav"):
        read_audio(path)


def test_a_truncated_flac_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, torch.randn(8000).numpy() / 8, 8000)
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(InputError, match=r"a\.flac"):
        read_audio(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="empty or truncated: 0 samples"):
        read_audio(write(tmp_path / "empty.wav", [[]]))
    (tmp_path / "text.wav").write_text("RIFF or not, this is no sound at all, only words")
    with pytest.raises(InputError, match="not readable"):
        read_audio(tmp_path / "text.wav")
    with pytest.raises(InputError, match=r"Did you mean 'text\.wav'"):
        read_audio(tmp_path / "tex.wav")
    soundfile.write(
        tmp_path / "nan.wav", torch.tensor([0.0, math.nan] * 200).numpy(), 8000, "FLOAT"
    )
    with pytest.raises(InputError, match="NaN"):
        read_audio(tmp_path / "nan.wav")


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.99])
def test_a_truncated_aiff_is_refused(kept: float, tmp_path: Path) -> None:
    path = tmp_path / "a.aiff"
    soundfile.write(path, torch.randn(4000).numpy() / 8, 8000)
    assert read_audio(path)[0].shape == (1, 4000)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(InputError, match=r"truncated: .* bytes are missing"):
        read_audio(path)


@pytest.mark.parametrize("codec", ["GSM610", "G721_32", "ULAW", "IMA_ADPCM"])
def test_codecs_that_cannot_seek_are_read(codec: str, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", (tone(440.0, rate=8000) / 2).numpy(), 8000, codec)
    found, _ = read_audio(tmp_path / "a.wav")
    assert found.shape[1] >= 4000
    assert 0.2 < float(found.square().mean().sqrt()) < 0.5


def test_a_header_that_promises_more_than_memory_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "a.wav", [[0] * 100]).read_bytes()
    wrong = data[:40] + struct.pack("<I", 2**31 - 2**13) + data[44:]
    (tmp_path / "a.wav").write_bytes(wrong)
    with pytest.raises(InputError, match=r"a\.wav is empty or truncated"):
        read_audio(tmp_path / "a.wav")


def test_a_clip_of_numbers_beyond_sound_is_named(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", (tone(440.0) * 1e30).numpy(), 16_000, "FLOAT")
    with pytest.raises(InputError, match=r"a\.wav is too loud: its samples reach 1e\+30"):
        config(tmp_path).load()


# Clips.


def config(folder: Path, **options: Any) -> AudioConfig:
    return AudioConfig(
        **{"root": folder, "train": "*.wav", "label_pattern": "^(.)", "n_mels": 20, **options}
    )


def test_a_clip_has_the_features_of_its_waveform(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", [[(37 * i) % 2000 for i in range(4000)]])
    [clip] = config(tmp_path).load().train
    assert isinstance(clip, Clip)
    waveform, _ = read_audio(tmp_path / "a.wav")
    assert clip.label == "a"
    assert_close(clip.frames, log_mel(waveform[0], n_mels=20), rtol=0, atol=0)


def test_speeds_add_copies_to_train_alone(tmp_path: Path) -> None:
    for name in ("a1", "b1", "a2"):
        write(tmp_path / f"{name}.wav", [[(int(name[1]) * 37 * i) % 2000 for i in range(8000)]])
    found = config(tmp_path, train="?1.wav", valid="?2.wav", speeds=(0.5, 2.0)).load()
    lengths = [clip.frames.shape[1] for clip in found.train if isinstance(clip, Clip)]
    assert lengths == [50, 100, 25] * 2
    assert len(found.valid) == 1
    slow = config(tmp_path).features(tone(440.0, seconds=1.0).float(), "", speed=0.5)
    expected = config(tmp_path).features(tone(220.0, seconds=2.0).float(), "")
    assert slow.shape == expected.shape
    assert_close(slow[:, 5:-5].argmax(0), expected[:, 5:-5].argmax(0), rtol=0, atol=0)


def test_several_channels_are_named_or_averaged(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", [[100, 300] * 500, [300, 100] * 500])
    with pytest.raises(InputError, match=r"a\.wav has 2 channels.*'averaged'"):
        config(tmp_path).load()
    assert len(config(tmp_path, channels="averaged").load().train) == 1


def test_a_damaged_clip_is_named_or_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", [list(range(4000))])
    path = write(tmp_path / "b.wav", [list(range(4000))])
    path.write_bytes(path.read_bytes()[:-100])
    write(tmp_path / "c.wav", [[0] * 20])
    with pytest.raises(InputError, match=r"b\.wav is empty or truncated.*100 bytes are missing"):
        config(tmp_path).load()
    report = config(tmp_path, damaged="leave_out").load().reports["train"]
    assert (report.read, report.used) == (3, 1)
    assert [*report.left_out.values()] == [[str(path)], [str(tmp_path / "c.wav")]]


def test_options_that_do_not_go_together() -> None:
    with pytest.raises(InputError, match="copies of clips"):
        AudioConfig(train="a", speeds=(0.9,), valid_fraction=0.1)
    with pytest.raises(InputError, match="of the filters are empty"):
        AudioConfig(train="a", sample_rate=8000, n_mels=200)
    with pytest.raises(InputError, match="speeds"):
        AudioConfig(train="a", speeds=(0.0,))


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


def by_definition(n_mels: int, n_fft: int, rate: int) -> Tensor:
    """Slaney's triangles bin by bin, each bin `rate / n_fft` from the next, in Python's floats."""

    def hertz(mel: float) -> float:
        return 200 * mel / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)

    top = 15 + 27 * math.log(rate / 2 / 1000) / math.log(6.4) if rate > 2000 else 3 * rate / 400
    edges = [hertz(top * i / (n_mels + 1)) for i in range(n_mels + 2)]
    rows = []
    for low, peak, high in zip(edges, edges[1:], edges[2:], strict=False):
        row = []
        for k in range(n_fft // 2 + 1):
            f = k * rate / n_fft
            height = (f - low) / (peak - low) if f < peak else (high - f) / (high - peak)
            row.append(max(0.0, height) * 2 / (high - low))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("rate", [1000, 8000, 11_025, 16_000, 22_050, 44_100, 48_000])
def test_filters_are_those_of_the_definition(rate: int) -> None:
    """At 11,025 and 22,050 a second the window is odd: no bin is at half the rate."""
    window = rate // 40
    found = mel_filters(20, window, rate)
    assert_close(found, by_definition(20, window, rate), rtol=0, atol=1e-15)


# Of librosa 0.11 in float64: `stft` with `center` and "reflect", `filters.mel`, and the equation.
LIBROSA = {
    8000: (1.290515346, -0.658465712, -0.658465712, -0.25611773, -77.475373),
    11_025: (1.373985813, -0.313787883, 0.185085711, -0.472260176, -18.2982521),
    22_050: (1.524678747, -0.021761565, 1.161740718, -0.35398121, 22.8929205),
}


@pytest.mark.parametrize("rate", LIBROSA)
def test_features_are_those_of_librosa(rate: int) -> None:
    n = torch.arange(rate // 4, dtype=torch.float64)
    clip = torch.sin(2 * math.pi * 0.01 * n + 0.3) + 0.5 * torch.sin(2 * math.pi * 0.13 * n)
    found = log_mel(clip, rate, 20)
    assert found.shape == (20, 25)
    some = [*found[[0, 3, 11, 19], [0, 12, 7, 24]].tolist(), float(found.sum())]
    assert some == pytest.approx(LIBROSA[rate], abs=1e-7)


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
