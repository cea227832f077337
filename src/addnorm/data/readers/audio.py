"""Audio: sound files with a class or a text each, and Whisper's log-mel features."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from io import SEEK_CUR, SEEK_END, BytesIO
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor

from addnorm.config import config
from addnorm.data.examples import Clip, Example
from addnorm.data.readers.labelled_files import LabelledFiles, Readable
from addnorm.data.readers.text_files import find
from addnorm.errors import InputError, optional

Speed = Annotated[float, Field(ge=0.5, le=2.0)]

FLOOR = 1e-10
"""The least power before taking the logarithm (silence)."""


@config
class AudioConfig(LabelledFiles):
    """Sound files with a class or text each (WAV, FLAC, Ogg, MP3), as features (see `log_mel`).

    A file of another rate than `sample_rate` is resampled; one of several channels is refused, or
    its channels are averaged. Each of the `speeds` adds a copy of every training clip that is
    played so much faster, higher in pitch too (Ko et al. 2015).
    """

    suffixes: ClassVar[tuple[str, ...]] = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff")
    column: ClassVar[str] = "audio"

    kind: Literal["audio"] = "audio"
    sample_rate: PositiveInt = 16_000
    """Samples a second; a file of another rate is resampled."""
    channels: Literal["one", "averaged"] = "one"
    """Whether a file of several channels is refused, or its channels are averaged."""
    form: Literal["log_mel", "waveform"] = "log_mel"
    """Whether a clip is read as log-mel features, or as its samples, with mean zero and variance
    one, as wav2vec 2.0 reads them; lengths are then in samples.
    """
    n_mels: PositiveInt = 80
    """Mel features of a frame, as many as `model.input` has."""
    speeds: tuple[Speed, ...] = ()
    """Further copies of every training clip, at these speeds."""

    def __post_init__(self) -> None:
        if self.speeds and self.valid_fraction:
            raise ValueError(
                "speeds make copies of clips, of which valid_fraction would hold some out: name "
                "the files of valid instead"
            )
        if self.form == "waveform":
            return
        filters = mel_filters(self.n_mels, self.sample_rate // 40, self.sample_rate)
        if empty := int((filters.sum(1) == 0).sum()):
            raise ValueError(
                f"n_mels = {self.n_mels} is too many at {self.sample_rate:,} samples a second: "
                f"{empty} of the filters are empty; take {self.n_mels // 2} or so"
            )

    def examples(self, file: Readable, where: str, label: str, *, train: bool) -> list[Example]:
        """Read a clip; for training also at other speeds, as further examples."""
        waveform = self.waveform(file, where)
        speeds = (1.0, *self.speeds) if train else (1.0,)
        return [Clip(self.features(waveform, where, speed), label) for speed in speeds]

    def read(self, file: Readable, where: str) -> Float[Tensor, "n_mels frames"]:
        """Return the features of a clip, or its samples, depending on `form`."""
        return self.features(self.waveform(file, where), where)

    def waveform(self, file: Readable, where: str) -> Float[Tensor, " samples"]:
        """Return the samples of a clip. Raises `InputError` for several channels."""
        mix = self.channels == "averaged"
        waveform, _ = read_audio(file, where, sample_rate=self.sample_rate, mix=mix)
        if len(waveform) > 1:
            raise InputError(
                f"{where} has {len(waveform)} channels: data.channels = 'averaged' averages them"
            )
        return waveform[0]

    def features(
        self, waveform: Float[Tensor, " samples"], where: str, speed: float = 1.0
    ) -> Float[Tensor, "n_mels frames"]:
        """Return the log-mel features of a clip played at a speed, or its samples."""
        if speed != 1.0:
            resampled = _library("soxr").resample(waveform.numpy(), speed, 1.0)
            waveform = torch.from_numpy(resampled)
        if self.form == "waveform":
            return standardised(waveform)[None]
        return log_mel_of(waveform, where, self.sample_rate, self.n_mels)


def standardised(waveform: Float[Tensor, " samples"]) -> Float[Tensor, " samples"]:
    """`(x - mean) / √(var + 1e-7)`, as wav2vec 2.0 reads a clip."""
    wide = waveform.double()
    normal = (wide - wide.mean()) / (wide.var(correction=0) + 1e-7).sqrt()
    return normal.to(waveform.dtype)


def read_audio(
    file: Readable, where: str = "", *, sample_rate: int | None = None, mix: bool = False
) -> tuple[Float[Tensor, "channels samples"], int]:
    """Read a sound file of any kind that libsndfile supports; return the waveform and its rate.

    Integers of any width become numbers in [-1, 1). `sample_rate` resamples by the SoX resampler,
    and `mix` averages the channels. Raises `InputError`, beginning with `where`, for a file that is
    damaged, truncated or empty, or holds NaN or infinite numbers.
    """
    if isinstance(file, Path):
        file = find(file, Path())
    where = where or str(file)
    soundfile = _library("soundfile")
    try:
        with soundfile.SoundFile(file) as sound:
            n, rate = sound.frames, sound.samplerate
            # libsndfile cannot seek in some codecs, and must be given the number of samples.
            samples = sound.read(n, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError, RuntimeError, ValueError, MemoryError) as error:
        reason = getattr(error, "error_string", str(error))
        if "does not exist" in reason:  # libsndfile's words for a file that only begins like an MP3
            reason = "of no known kind"
        raise InputError(f"{where} is not readable as sound: {reason}") from error
    missing = _missing_bytes(file)
    if not n or len(samples) != n or missing:
        lost = f", {missing:,} bytes are missing" if missing else ""
        raise InputError(f"{where} is empty or truncated: {len(samples):,} samples{lost}")
    if not np.isfinite(samples).all():
        raise InputError(f"{where} holds numbers that are NaN or infinite")
    if mix:
        samples = samples.mean(1, keepdims=True)
    if sample_rate is not None and sample_rate != rate:
        samples, rate = _library("soxr").resample(samples, rate, sample_rate), sample_rate
    return torch.from_numpy(np.ascontiguousarray(samples.T)), rate


def _library(name: str) -> Any:
    return optional(name, "audio", "a sound file")


STREAMED = 0x7FFFF000
"""From this size on, the header of a streamed file means: all samples to the end."""

SAMPLES: Mapping[bytes, tuple[bytes, Literal["little", "big"]]] = {
    b"RIFF": (b"data", "little"),
    b"FORM": (b"SSND", "big"),
}
"""How a .wav and an .aiff file begin, the chunk of their samples, and how its size is written."""


def _missing_bytes(file: Readable) -> int:
    """Return how many bytes of samples a .wav or .aiff file lacks; 0 for other files."""
    with nullcontext(file) if isinstance(file, BytesIO) else file.open("rb") as data:
        end = data.seek(0, SEEK_END)
        data.seek(0)
        name, order = SAMPLES.get(data.read(4), (b"", "little"))
        data.seek(12)
        while name and len(head := data.read(8)) == 8:
            size = int.from_bytes(head[4:], order)
            if head[:4] == name:
                return 0 if size >= STREAMED else max(0, data.tell() + size - end)
            data.seek(size + size % 2, SEEK_CUR)
    return 0


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


def log_mel_of(
    waveform: Float[Tensor, " samples"], where: str, sample_rate: int, n_mels: int
) -> Float[Tensor, "n_mels frames"]:
    """The log-mel features of a file's clip.

    Raises `InputError`, beginning with `where`, for a clip that is too short, and for one so loud
    that its features are not finite.
    """
    try:
        features = log_mel(waveform, sample_rate, n_mels)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if not features.isfinite().all():
        peak = float(waveform.abs().max())
        raise InputError(f"{where} is too loud: its samples reach {peak:.2g}, more than 1")
    return features


def mel_filters(n_mels: int, n_fft: int, sample_rate: int) -> Float[Tensor, "n_mels bins"]:
    """A triangular mel filter bank from 0 to half the sample rate, with unit area, in float64.

    Slaney 1998, Auditory Toolbox: neighbours overlap by half, peaks are `2 / (high - low)`.
    """
    # An odd n_fft has no bin at half the sample rate: 551 at 22,050 a second.
    bins = torch.arange(n_fft // 2 + 1, dtype=torch.float64) * sample_rate / n_fft
    top = hertz_to_mel(torch.tensor(sample_rate / 2, dtype=torch.float64))
    edges = mel_to_hertz(torch.linspace(0, float(top), n_mels + 2, dtype=torch.float64))
    low, peak, high = (edges[i : n_mels + i, None] for i in range(3))
    rising, falling = (bins - low) / (peak - low), (high - bins) / (high - peak)
    return rising.minimum(falling).clamp(min=0) * 2 / (high - low)


def hertz_to_mel(hertz: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Slaney's mel scale: `3 f / 200` up to 1 kHz (15 mel), then 27 mel for each factor of 6.4."""
    steps = 27 * torch.log(hertz.clamp(min=1000) / 1000) / math.log(6.4)
    return (3 / 200 * hertz.clamp(max=1000)) + steps


def mel_to_hertz(mel: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The inverse of `hertz_to_mel`."""
    return 200 / 3 * mel.clamp(max=15) * 6.4 ** ((mel.clamp(min=15) - 15) / 27)
