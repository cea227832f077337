"""Audio: reading .wav files, and Whisper's log-mel features."""

import wave
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.data.text_files import find
from addnorm.errors import InputError

FLOOR = 1e-10
"""The minimum power before taking the logarithm (silence)."""


def read_wav(path: Path, root: Path | None = None) -> tuple[Float[Tensor, "channels samples"], int]:
    """Read a 16-bit PCM .wav file; return the waveform in [-1, 1) and the sample rate.

    Raises `InputError` for a file that is missing, truncated, empty or not 16-bit PCM.
    """
    full = find(path, root)
    try:
        with wave.open(str(full), "rb") as file:
            n_channels, width, rate, n_samples, *_ = file.getparams()
            data = file.readframes(n_samples)
    except (wave.Error, EOFError, OSError) as error:
        raise InputError(f"{full} is not readable as PCM .wav: {error or 'truncated'}") from error
    if width != 2:
        raise InputError(f"{full} has {8 * width} bits a sample: convert it to 16-bit PCM")
    found = len(data) // (n_channels * width)
    if not found or found != n_samples:
        raise InputError(f"{full} is empty or truncated: {found:,} of {n_samples:,} samples")
    samples = torch.frombuffer(bytearray(data), dtype=torch.int16)
    return samples.view(-1, n_channels).T.float() / 2**15, rate


def log_mel(
    waveform: Float[Tensor, "*batch samples"], sample_rate: int = 16_000, n_mels: int = 80
) -> Float[Tensor, "*batch n_mels frames"]:
    """Compute log-mel features in about [-1, 1], with windows of 25 ms and a hop of 10 ms.

    `(max(log10(M |STFT|²), top - 8) + 4) / 4`, where `top` is the maximum over the clip and silence
    counts as -10 (Radford et al. 2022, §2.2, and their code). Hann windows are centred, with
    reflection padding. Raises `InputError` for a clip shorter than half a window.
    """
    window, step = sample_rate // 40, sample_rate // 100
    if waveform.shape[-1] <= window // 2:
        raise InputError(
            f"a clip of {waveform.shape[-1]} samples is too short: "
            f"at {sample_rate:,} a second at least {window // 2 + 1} are needed"
        )
    flat = waveform.reshape(-1, waveform.shape[-1])
    hann = torch.hann_window(window, dtype=waveform.dtype, device=waveform.device)
    spectrum = torch.stft(flat, window, step, window=hann, return_complex=True)[..., :-1]
    filters = mel_filters(n_mels, window, sample_rate).to(waveform)
    power = filters @ spectrum.abs().square()
    loudness = power.clamp(min=FLOOR).log10()
    top = loudness.amax((-2, -1), keepdim=True)
    features = (loudness.maximum(top - 8.0) + 4.0) / 4.0
    return features.view(*waveform.shape[:-1], n_mels, -1)


def mel_filters(n_mels: int, n_fft: int, sample_rate: int) -> Float[Tensor, "n_mels bins"]:
    """A triangular mel filter bank from 0 to half the sample rate, with unit area, in float64.

    Slaney 1998, Auditory Toolbox: neighbours overlap by half, peaks are `2 / (high - low)`.
    """
    bins = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1, dtype=torch.float64)
    top = hertz_to_mel(torch.tensor(sample_rate / 2, dtype=torch.float64))
    edges = mel_to_hertz(torch.linspace(0, float(top), n_mels + 2, dtype=torch.float64))
    low, peak, high = (edges[i : n_mels + i, None] for i in range(3))
    rising, falling = (bins - low) / (peak - low), (high - bins) / (high - peak)
    return rising.minimum(falling).clamp(min=0) * 2 / (high - low)


def hertz_to_mel(hertz: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Slaney's mel scale: `3 f / 200` up to 1 kHz (15 mel), then 27 mel for each factor of 6.4."""
    steps = 27 * torch.log(hertz.clamp(min=1000) / 1000) / torch.log(torch.tensor(6.4).to(hertz))
    return (3 / 200 * hertz.clamp(max=1000)) + steps


def mel_to_hertz(mel: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The inverse of `hertz_to_mel`."""
    return 200 / 3 * mel.clamp(max=15) * 6.4 ** ((mel.clamp(min=15) - 15) / 27)
