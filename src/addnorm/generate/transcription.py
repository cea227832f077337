"""Next-token logits for the texts of images and sound clips."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from addnorm.data.batches.signals import inputs_of
from addnorm.data.examples import Medium
from addnorm.generate.next_token import Ids, Logits, Translation, device_of, maximum_length


class Transcription:
    """Generate the texts of signals: the prompt `[i]` stands for the text of signal `i`.

    The signals are images, or clips in log-mel features; `translation` has the encoder–decoder that
    reads them. Each text begins with the tokens of `opening`, which are no part of it; in place of
    None stands the likeliest of `languages` (Radford et al. 2022, §2.3). `counted` is how many
    tokens before a text its `max_length` counts: the start token, or in Whisper none.
    """

    def __init__(
        self,
        translation: Translation,
        signals: Sequence[Tensor],
        medium: Medium,
        *,
        opening: Sequence[int | None] = (),
        languages: Sequence[int] = (),
        counted: int = 1,
    ) -> None:
        self.translation = translation
        self.bos_id = translation.bos_id
        self.never = translation.never
        self.signals = signals
        self.medium: Medium = medium
        self.opening = tuple(opening)
        self.counted = counted
        self.languages = torch.tensor(languages)

    def together(self) -> list[list[int]]:
        """The signals that can be read together: clips of any length, or images of one size."""
        if self.medium == "audio":
            return [[*range(len(self.signals))]]
        by_size: dict[tuple[int, ...], list[int]] = {}
        for i, signal in enumerate(self.signals):
            by_size.setdefault(tuple(signal.shape), []).append(i)
        return [*by_size.values()]

    @property
    def lengths(self) -> list[int]:
        """The frames of each clip, or the width of each image."""
        return [signal.shape[-1] for signal in self.signals]

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """All positions of the target that its opening leaves."""
        return maximum_length(self.translation.model.target_embed) - len(self.opening)

    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Encode the signals and start each text."""
        inputs = inputs_of(self.medium, [self.signals[i] for [i] in prompts])
        device = device_of(self.translation.model)
        moved = {name: tensor.to(device) for name, tensor in inputs.items()}
        logits = self.translation.begin(moved["inputs"], moved.get("valid"))
        for token in self.opening:
            logits = self.translation.step(self._next(token, logits))
        return logits

    def _next(self, token: int | None, logits: Logits) -> Int[Tensor, " rows"]:
        if token is not None:
            return torch.full((len(logits),), token, device=logits.device)
        languages = self.languages.to(logits.device)
        return languages[logits[:, languages].argmax(-1)]

    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each text."""
        return self.translation.step(tokens)

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows."""
        self.translation.select(rows)
