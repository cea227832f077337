"""Whisper's transcription: sound of any length, window by window, with time stamps.

A sound that is longer than the model's input is read in windows of that length. Each begins where
the last whole segment before it ended, by the model's own time stamps: a window that cuts a segment
leaves it to the next one, so no word is lost at a seam and none is written twice (Radford et al.
2022, §4.5, without their fallback to sampling).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from addnorm.convert.core.modules import places_of
from addnorm.convert.preprocessing import Sound
from addnorm.errors import InputError
from addnorm.generate import (
    BeamConfig,
    DecodingConfig,
    Generated,
    TextDecoder,
    Transcription,
    Translation,
    transcribe,
)
from addnorm.generate.generated import Segment
from addnorm.generate.timestamps import FRAMES, SECONDS, TimestampRules, spans_of
from addnorm.models import EncoderDecoderModel
from addnorm.runs.files.speech_prompt import WITHOUT_STAMPS, SpeechPrompt, speech_prompt
from addnorm.runs.inference.decoding import later
from addnorm.runs.options import SpeechOptions
from addnorm.runs.trained_model import TrainedModel

Writer = Callable[[Sequence[int], Sequence[Tensor]], list[Generated]]
"""Writes the texts of windows, of the sounds with these numbers."""


class LongSound(NamedTuple):
    """The log-mel frames of a sound; those after `n_frames` are silence."""

    frames: Float[Tensor, "n_mels frames"]
    n_frames: int

    def window(self, first: int, width: int) -> Float[Tensor, "n_mels width"]:
        """The frames of a window that begins at frame `first`, padded with zeros at the end."""
        frames = self.frames[:, first : first + width]
        return F.pad(frames, (0, width - frames.shape[-1]))


@dataclass
class WindowedText:
    """The text of a sound so far, as its windows are read one after another."""

    first: int = 0
    """The frame at which the next window begins."""
    spans: list[tuple[float, float, Sequence[int]]] = field(
        default_factory=list[tuple[float, float, Sequence[int]]]
    )
    """The ids of each segment, after its times in seconds."""
    score: float = 0.0
    is_cut: bool = False
    """Whether the text of a window reached its limit."""

    def add(self, generated: Generated, rules: TimestampRules, n_frames: int) -> None:
        """Add the text of a window with `n_frames` of sound; move to the next one."""
        spans, position = spans_of(generated.ids, rules, n_frames // FRAMES)
        offset = self.first * SECONDS / FRAMES
        for start, end, ids in spans:
            times = [round(offset + at * SECONDS, 2) for at in (start, end)]
            self.spans.append((times[0], times[1], ids))
        self.first += n_frames if position is None else position * FRAMES
        self.score += generated.score
        self.is_cut = self.is_cut or generated.finished == "length"

    def generated(self, decoder: TextDecoder) -> Generated:
        """The text and its segments so far, without empty segments."""
        ids = [token for _, _, ids in self.spans for token in ids]
        segments = (Segment(start, end, decoder.write(ids)) for start, end, ids in self.spans)
        return Generated(
            text=decoder.write(ids),
            score=self.score,
            finished="length" if self.is_cut else "eos",
            ids=tuple(ids),
            segments=tuple(segment for segment in segments if segment.text.strip()),
        )


def windowed_texts(
    write: Writer, sounds: Sequence[LongSound], rules: TimestampRules, width: int
) -> list[WindowedText]:
    """Transcribe sounds window by window, the windows of all sounds in one batch."""
    texts = [WindowedText() for _ in sounds]
    while left := [i for i, sound in enumerate(sounds) if texts[i].first < sound.n_frames]:
        windows = [sounds[i].window(texts[i].first, width) for i in left]
        for i, generated in zip(left, write(left, windows), strict=True):
            texts[i].add(generated, rules, min(width, sounds[i].n_frames - texts[i].first))
    return texts


@dataclass(frozen=True, kw_only=True)
class Transcriber:
    """A Whisper model with its prompt and its decoding.

    `reads` is how the model's folder reads sound.
    """

    run: TrainedModel
    reads: Sound
    prompt: SpeechPrompt
    decoding: DecodingConfig
    max_new_tokens: int | None = None

    @classmethod
    def of(
        cls,
        run: TrainedModel,
        reads: Sound,
        decoding: DecodingConfig,
        options: SpeechOptions,
        max_new_tokens: int | None,
    ) -> "Transcriber":
        """The transcriber of a run. Raises `InputError` for options that it does not support."""
        assert run.folder is not None
        assert isinstance(run.model, EncoderDecoderModel)
        vocab_size = run.model.target_embed.tokens.num_embeddings
        end_id = min(run.tokenizers.target.eos_ids, default=0)
        prompt = speech_prompt(places_of(run.folder), end_id, vocab_size, **options)
        wanted = prompt.stamped
        if wanted and isinstance(decoding, BeamConfig) and decoding.n_best > 1:
            raise InputError(
                f"`n_best = {decoding.n_best}`: a text with time stamps is written once"
            )
        return cls(
            run=run,
            reads=reads,
            prompt=prompt,
            decoding=decoding,
            max_new_tokens=max_new_tokens,
        )

    def read(self, file: Path, where: str) -> LongSound:
        """Read a sound. Raises `InputError` for a long one if the model writes no time stamps."""
        sound = LongSound(*self.reads.read_whole(file, where))
        if sound.n_frames > self.reads.n_frames:
            too_long = self.reads.too_long(where, sound.n_frames, "cut it into shorter parts")
            if self.prompt.stamps is None:
                raise InputError(f"{too_long}, since {WITHOUT_STAMPS}")
            if isinstance(self.decoding, BeamConfig) and self.decoding.n_best > 1:
                raise InputError(f"{too_long}, or leave out n_best: windows have one text each")
        return sound

    def texts(self, sounds: Sequence[LongSound], first: int) -> list[list[Generated]]:
        """The texts of sounds, best first; `first` is the number of sounds before these."""
        width, stamped = self.reads.n_frames, self.prompt.stamped
        texts: dict[int, list[Generated]] = {}
        timed = [i for i, s in enumerate(sounds) if stamped or s.n_frames > width]
        if timed:
            texts |= zip(timed, self._timed([sounds[i] for i in timed], first), strict=True)
        plain = [i for i in range(len(sounds)) if i not in texts]
        if plain:
            windows = [sounds[i].window(0, width) for i in plain]
            texts |= zip(plain, self._plain(windows, first), strict=True)
        return [texts[i] for i in range(len(sounds))]

    def _plain(self, windows: Sequence[Tensor], first: int) -> list[list[Generated]]:
        """The texts of clips that fit in one window, without time stamps."""
        transcription = self._transcription(windows, stamped=False)
        rules, decoder = self.prompt.stamps, TextDecoder(self.run.tokenizers.target)
        results: list[list[Generated]] = []
        for best, language in zip(
            self._written(transcription, first), transcription.spoken, strict=True
        ):
            code = self.prompt.code_of(language)
            ids = [g.ids if rules is None else tuple(rules.text_of(g.ids)) for g in best]
            results.append(
                [
                    replace(g, ids=own, text=decoder.write(own), language=code)
                    for g, own in zip(best, ids, strict=True)
                ]
            )
        return results

    def _timed(self, sounds: Sequence[LongSound], first: int) -> list[list[Generated]]:
        """The texts of sounds with time stamps, window by window."""
        rules, decoder = self.prompt.stamps, TextDecoder(self.run.tokenizers.target)
        assert rules is not None
        spoken: list[int | None] = [None] * len(sounds)

        def write(which: Sequence[int], windows: Sequence[Tensor]) -> list[Generated]:
            languages = [spoken[i] for i in which]
            transcription = self._transcription(windows, languages, stamped=True)
            written = [best[0] for best in self._written(transcription, first)]
            for i, language in zip(which, transcription.spoken, strict=True):
                spoken[i] = language
            return written

        texts = windowed_texts(write, sounds, rules, self.reads.n_frames)
        return [
            [replace(text.generated(decoder), language=self.prompt.code_of(language))]
            for text, language in zip(texts, spoken, strict=True)
        ]

    def _transcription(
        self,
        windows: Sequence[Tensor],
        spoken: Sequence[int | None] | None = None,
        *,
        stamped: bool,
    ) -> Transcription:
        model, target, prompt = self.run.model, self.run.tokenizers.target, self.prompt
        assert isinstance(model, EncoderDecoderModel)
        return Transcription(
            Translation(model, target.bos_id, never=target.never_ids),
            windows,
            "audio",
            opening=prompt.opening if stamped else prompt.tokens,
            languages=prompt.languages,
            spoken=spoken,
            counted=prompt.counted,
            stamps=prompt.stamps if stamped else None,
        )

    def _written(self, transcription: Transcription, first: int) -> list[list[Generated]]:
        with torch.inference_mode():
            return transcribe(
                transcription,
                later(self.decoding, first),
                max_new_tokens=self.max_new_tokens,
                eos_id=self.run.tokenizers.target.eos_ids,
            )
