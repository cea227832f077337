"""NextToken: a common interface to next-token logits, for every architecture, cached or not."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import inf
from sys import maxsize
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from addnorm.data.batches.batch import inputs_of
from addnorm.data.example import PROPERTIES
from addnorm.data.examples import Medium
from addnorm.errors import InputError, TextError
from addnorm.generate.early_exit import EarlyExit
from addnorm.generate.sampling import maxima
from addnorm.generate.timestamps import TimestampRules
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.models.inputs import Input
from addnorm.models.step import DecoderState, TranslationState, decoder_step, translation_step
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.heads import HiddenHead

Ids = Sequence[int]
Logits = Float[Tensor, "rows vocab"]

NOT_A_NUMBER = (
    "the model's logits hold NaN or infinity: its weights are damaged or its training diverged"
)


@runtime_checkable
class NextToken(Protocol):
    """Next-token logits for rows of tokens that grow by one token at a time.

    Greedy search, sampling and beam search use models only through this interface.
    """

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """The maximum number of tokens that may follow prompt number `i`.

        Raises `InputError` if the model cannot process that prompt.
        """
        ...

    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Discard the old state and process the prompts, one per row; return next-token logits."""
        ...

    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each row; return the logits of the next one."""
        ...

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows, in this order; rows may repeat."""
        ...


def check_writes(model: DecoderModel) -> None:
    """Raise `InputError` for a decoder without a head."""
    if isinstance(model.head, HiddenHead):
        raise InputError("this decoder has no head: it returns vectors, and generates no text")


class _Rows(ABC):
    """Rows of tokens; the model has not yet processed those in `_unread`."""

    cached: bool
    _unread: Int[Tensor, "rows new"]

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each row."""
        new = tokens[:, None]
        self._unread = new if self.cached else torch.cat([self._unread, new], dim=1)
        return checked(self._step())

    @abstractmethod
    def _step(self) -> Logits:
        """Process the unread tokens."""


class Continuation(_Rows):
    """Continue prompts by a decoder-only model, with padding on the left.

    With `cached`, every token is processed once; without it, each step processes the whole row
    again, as a reference for testing the cache. With `early`, tokens leave at early exits. The
    tokens in `never` are never generated.
    """

    def __init__(
        self,
        model: DecoderModel,
        *,
        cached: bool = True,
        early: EarlyExit | None = None,
        never: Sequence[int] = (),
    ) -> None:
        check_writes(model)
        self.model = model
        self.never = tuple(never)
        self.cached = cached
        self.early = early

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """All positions after the prompt, plus one, since the last token is never an input."""
        return positions_for(self.model.embed, i, prompt) - len(prompt) + 1

    @torch.inference_mode()
    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Process the prompts, padded on the left."""
        self._unread, valid = padded(prompts, device_of(self.model), left=True)
        cache = self.model.new_cache() if self.cached else None
        self._state = DecoderState(cache=cache, valid=valid)
        return checked(self._step())

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the tokens and the state."""
        self._unread, self._state = self._unread[rows], self._state.select(rows)

    def _step(self) -> Logits:
        with evaluating(self.model):
            step = decoder_step if self.early is None else self.early.step
            logits, self._state = step(self.model, self._unread, self._state)
        return logits[:, -1]


class Translation(_Rows):
    """Generate targets by an encoder–decoder model, starting from `bos_id`.

    `cached` as in `Continuation`; the cross-attention keys and values are cached too. The tokens in
    `never` are never generated (Marian's padding).
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        bos_id: int,
        *,
        cached: bool = True,
        never: Sequence[int] = (),
    ) -> None:
        self.model = model
        self.bos_id = bos_id
        self.never = tuple(never)
        self.cached = cached

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """All positions of the target, whatever the length of the source."""
        positions_for(self.model.source_embed, i, prompt)
        return positions_for(self.model.target_embed, i, [self.bos_id])

    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Encode the sources and start each target."""
        return self.begin(*padded(prompts, device_of(self.model), left=False))

    @torch.inference_mode()
    def begin(
        self,
        source: Shaped[Tensor, "batch *input"],
        valid: Bool[Tensor, "batch source_seq"] | None = None,
    ) -> Logits:
        """Encode inputs of any kind and start a target for each."""
        with evaluating(self.model):
            self._state = TranslationState.start(self.model, source, valid, cached=self.cached)
        self._unread = torch.full((len(source), 1), self.bos_id, device=source.device)
        return checked(self._step())

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the targets and of the state, and the memories they attend to."""
        sharing = len(self._unread) // len(self._state.memory)
        self._state = self._selected(rows, sharing)
        self._unread = self._unread[rows]

    def _selected(self, rows: Int[Tensor, " kept"], sharing: int) -> TranslationState:
        return self._state.select(rows, shared_memories(rows // sharing))

    def _step(self) -> Logits:
        with evaluating(self.model):
            logits, self._state = translation_step(self.model, self._unread, self._state)
        return logits[:, -1]


class Transcription:
    """Generate the texts of images or clips; the prompt `[i]` stands for the text of signal `i`.

    The signals are images, or clips in log-mel features; `translation` has the encoder–decoder that
    reads them. The tokens of `opening` come before each text and are not part of it; None in it
    stands for the most probable of `languages` (Radford et al. 2022, §2.3), or for the one in
    `spoken`, where those of all signals are kept. `counted` is the number of tokens before a text
    that count towards `max_length`: the start token, or none in Whisper. `stamps` are the rules of
    a text with time stamps.
    """

    def __init__(
        self,
        translation: Translation,
        signals: Sequence[Tensor],
        medium: Medium,
        *,
        opening: Sequence[int | None] = (),
        languages: Sequence[int] = (),
        spoken: Sequence[int | None] | None = None,
        counted: int = 1,
        stamps: TimestampRules | None = None,
    ) -> None:
        self.translation = translation
        self.bos_id = translation.bos_id
        self.never = translation.never
        self.signals = signals
        self.medium: Medium = medium
        self.opening = tuple(opening)
        self.counted = counted
        self.stamps = stamps
        self.languages = torch.tensor(languages)
        self.spoken: list[int | None] = [*(spoken or [None] * len(signals))]

    def together(self) -> list[list[int]]:
        """Group the signals that fit in a batch: clips of any length, or images of one size."""
        if PROPERTIES[self.medium].padded:
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
        """All positions of the target after the first tokens of a transcript."""
        return maximum_length(self.translation.model.target_embed) - len(self.opening)

    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Encode the signals and start each text."""
        inputs = inputs_of(self.medium, [self.signals[i] for [i] in prompts])
        device = device_of(self.translation.model)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        logits = self.translation.begin(inputs["inputs"], inputs.get("valid"))
        for token in self.opening:
            tokens = self._spoken(prompts, logits) if token is None else [token] * len(logits)
            logits = self.translation.step(torch.tensor(tokens, device=logits.device))
        return logits

    def _spoken(self, prompts: Sequence[Ids], logits: Logits) -> list[int | None]:
        """The languages of the signals; unknown ones are detected."""
        likeliest = ints(self.languages[logits[:, self.languages].argmax(-1).cpu()])
        for [i], language in zip(prompts, likeliest, strict=True):
            if self.spoken[i] is None:
                self.spoken[i] = language
        return [self.spoken[i] for [i] in prompts]

    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each text."""
        return self.translation.step(tokens)

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows."""
        self.translation.select(rows)


def positions_for(embed: Input, i: int, ids: Ids) -> int:
    """The maximum number of positions of `embed`; `sys.maxsize` if unbounded.

    Raises `InputError` if it cannot embed `ids`; the message calls them prompt `i`.
    """
    if not isinstance(embed, TokenEmbedding):
        raise InputError(f"prompt {i} is text, and this model reads none")
    n_tokens, longest = embed.tokens.num_embeddings, maximum_length(embed)
    if not 0 < len(ids) <= longest:
        raise TextError(
            f"prompt {i} has {len(ids)} tokens: this model reads at least 1"
            + (f" and at most {longest}." if longest < maxsize else ".")
        )
    if min(ids) < 0 or max(ids) >= n_tokens:
        raise InputError(
            f"prompt {i} holds the token {max(ids) if min(ids) >= 0 else min(ids)}: "
            f"this model knows 0 to {n_tokens - 1}."
        )
    return longest


def maximum_length(embed: Input) -> int:
    """The maximum number of positions of an embedding; `sys.maxsize` if unbounded."""
    return embed.position.max_len or maxsize


def padded(
    rows: Sequence[Ids], device: torch.device, *, left: bool
) -> tuple[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"] | None]:
    """Pad the rows with 0 on one side; return the tensor and the mask of real tokens.

    The mask is None if there is no padding, so that the model needs none.
    """
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    width = int(lengths.max())
    slots = torch.arange(width)
    valid = slots >= width - lengths if left else slots < lengths
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    ids[valid] = torch.tensor([i for row in rows for i in row])
    return ids.to(device), None if bool(valid.all()) else valid.to(device)


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Set the model to evaluation mode, and restore the mode of each module afterwards."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def checked(logits: Float[Tensor, "rows vocab"]) -> Logits:
    """Convert the logits to float32, and check them. Raises `InputError` for NaN and infinity."""
    logits = logits.float()
    if not all(largest < inf for largest in maxima(logits)):
        raise InputError(NOT_A_NUMBER)
    return logits


def shared_memories(memories: Int[Tensor, " rows"]) -> Int[Tensor, " memories"]:
    """Deduplicate consecutive memories, if each is shared by equally many rows."""
    once, rows = memories.unique_consecutive(return_counts=True)
    return once if bool((rows == rows[0]).all()) else memories


def device_of(model: nn.Module) -> torch.device:
    """The device of a model."""
    return next(model.parameters()).device


def ints(tensor: Int[Tensor, " n"]) -> list[int]:
    """Convert a tensor to a list."""
    return tensor.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def floats(tensor: Float[Tensor, " n"]) -> list[float]:
    """Convert a tensor to a list."""
    return tensor.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
