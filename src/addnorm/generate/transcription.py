"""Next-token logits for the texts of images and sound clips."""

from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

from addnorm.data.examples import Medium
from addnorm.data.signals import inputs_of
from addnorm.generate.next_token import Ids, Logits, Translation, device_of, maximum_length


class Transcription:
    """Generate the texts of signals: the prompt `[i]` stands for the text of signal `i`.

    The signals are images, or clips in log-mel features; `translation` has the encoder–decoder that
    reads them.
    """

    def __init__(self, translation: Translation, signals: Sequence[Tensor], medium: Medium) -> None:
        self.translation = translation
        self.bos_id = translation.bos_id
        self.never = translation.never
        self.signals = signals
        self.medium: Medium = medium

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
        """All positions of the target."""
        return maximum_length(self.translation.model.target_embed)

    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Encode the signals and start each text."""
        inputs = inputs_of(self.medium, [self.signals[i] for [i] in prompts])
        device = device_of(self.translation.model)
        moved = {name: tensor.to(device) for name, tensor in inputs.items()}
        return self.translation.begin(moved["inputs"], moved.get("valid"))

    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each text."""
        return self.translation.step(tokens)

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows."""
        self.translation.select(rows)
