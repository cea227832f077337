"""NextToken: the logits of the next token, the same for every model family, cached or not."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from sys import maxsize
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from addnorm.errors import InputError, TextError
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.models.inputs import Input
from addnorm.models.step import DecoderState, TranslationState, decoder_step, translation_step
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.heads import HiddenHead

Ids = Sequence[int]
Logits = Float[Tensor, "rows vocab"]


@runtime_checkable
class NextToken(Protocol):
    """Rows of tokens that grow by one token at a time.

    Greedy choice, sampling and beam search know a model only through this.
    """

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """The number of tokens that may follow prompt number `i`.

        Raises `InputError` where the model cannot read that prompt.
        """
        ...

    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Forget what was, read the prompts, one row each; return the logits of the next token."""
        ...

    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each row; return the logits of the one after."""
        ...

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows, in this order, repeats allowed."""
        ...


def check_writes(model: DecoderModel) -> None:
    """Raise `InputError` for a decoder without a head."""
    if isinstance(model.head, HiddenHead):
        raise InputError("this decoder has no head: it gives vectors, and writes no text")


class Continuation:
    """A decoder-only model goes on from its prompt; padding stands on the left.

    `cached` reads every token once; without it each step reads the whole row again, which is the
    reference that the cache is compared with.
    """

    def __init__(self, model: DecoderModel, *, cached: bool = True) -> None:
        check_writes(model)
        self.model = model
        self.cached = cached

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """All positions but the prompt's; the last token written is never read."""
        return positions_for(self.model.embed, i, prompt) - len(prompt) + 1

    @torch.inference_mode()
    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Read the prompts, side by side at their ends."""
        self._unread, valid = padded(prompts, _device(self.model), left=True)
        cache = self.model.new_cache() if self.cached else None
        self._state = DecoderState(cache=cache, valid=valid)
        return self._read()

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each row."""
        self._unread = _next(self._unread, tokens, self.cached)
        return self._read()

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the tokens and of the state."""
        self._unread, self._state = self._unread[rows], self._state.select(rows)

    def _read(self) -> Logits:
        return checked(self._step())

    def _step(self) -> Logits:
        with evaluating(self.model):
            logits, self._state = decoder_step(self.model, self._unread, self._state)
        return logits[:, -1]


class Translation:
    """An encoder–decoder model writes a target, from `bos_id` on, for a source encoded once.

    `cached` as in `Continuation`; the keys and values of the source are cached with the rest.
    Tokens of `never` are not to be written, whatever the model says (Marian's padding).
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
        """Encode the sources and begin each target."""
        return self.begin(*padded(prompts, _device(self.model), left=False))

    @torch.inference_mode()
    def begin(
        self,
        source: Shaped[Tensor, "batch *input"],
        valid: Bool[Tensor, "batch source_seq"] | None = None,
    ) -> Logits:
        """Encode inputs of any kind and begin a target for each."""
        with evaluating(self.model):
            self._state = TranslationState.start(self.model, source, valid, cached=self.cached)
        self._unread = torch.full((len(source), 1), self.bos_id, device=source.device)
        return self._read()

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each target."""
        self._unread = _next(self._unread, tokens, self.cached)
        return self._read()

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the targets and of the state, and the memories that they look at."""
        sharing = len(self._unread) // len(self._state.memory)
        self._state = self._selected(rows, sharing)
        self._unread = self._unread[rows]

    def _selected(self, rows: Int[Tensor, " kept"], sharing: int) -> TranslationState:
        return self._state.select(rows, shared_memories(rows // sharing))

    def _read(self) -> Logits:
        return checked(self._step())

    def _step(self) -> Logits:
        with evaluating(self.model):
            logits, self._state = translation_step(self.model, self._unread, self._state)
        return logits[:, -1]


def positions_for(embed: Input, i: int, ids: Ids) -> int:
    """How many positions `embed` knows; a number beyond all need where it knows no bound.

    Raises `InputError` where it cannot embed `ids`, which the message calls prompt number `i`.
    """
    if not isinstance(embed, TokenEmbedding):
        raise InputError(f"prompt {i} is text, and this model reads none")
    n_tokens, known = embed.tokens.num_embeddings, embed.position.max_len or maxsize
    if not 0 < len(ids) <= known:
        raise TextError(
            f"prompt {i} has {len(ids)} tokens: this model reads at least 1"
            + (f" and at most {known}." if known < maxsize else ".")
        )
    if min(ids) < 0 or max(ids) >= n_tokens:
        raise InputError(
            f"prompt {i} holds the token {max(ids) if min(ids) >= 0 else min(ids)}: "
            f"this model knows 0 to {n_tokens - 1}."
        )
    return known


def padded(
    rows: Sequence[Ids], device: torch.device, *, left: bool
) -> tuple[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"] | None]:
    """The rows as one tensor, filled up with 0 on one side, and which of its slots are real.

    None stands for "all of them", which spares the model a mask.
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
    """The model in evaluation mode, and afterwards each of its modules as it was found."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def checked(logits: Float[Tensor, "rows vocab"]) -> Logits:
    """The logits in float32. Raises `InputError` where they hold NaN."""
    logits = logits.float()
    if bool(logits.sum().isnan()):  # one pass, where isnan().any() takes three
        raise InputError(
            "The model's logits hold NaN: its weights are damaged or its training diverged."
        )
    return logits


def _next(
    unread: Int[Tensor, "rows seq"], tokens: Int[Tensor, " rows"], cached: bool
) -> Int[Tensor, "rows new"]:
    """What the next step reads: the new tokens, after all others where nothing keeps those."""
    return tokens[:, None] if cached else torch.cat([unread, tokens[:, None]], dim=1)


def shared_memories(memories: Int[Tensor, " rows"]) -> Int[Tensor, " memories"]:
    """Of one memory a row, each once, where as many rows in a row share each; else all of them."""
    once, rows = memories.unique_consecutive(return_counts=True)
    return once if bool((rows == rows[0]).all()) else memories


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def ints(tensor: Int[Tensor, " n"]) -> list[int]:
    """The numbers of a tensor as Python's own."""
    return tensor.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def floats(tensor: Float[Tensor, " n"]) -> list[float]:
    """The numbers of a tensor as Python's own."""
    return tensor.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
