"""NextToken: the logits of the next token, the same for every model family, cached or not."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import inf
from sys import maxsize
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.models.inputs import Input
from addnorm.nn.cache import KVCache
from addnorm.nn.embed import Embedding

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


class Continuation:
    """A decoder-only model goes on from its prompt; padding stands on the left.

    `cached` reads every token once; without it each step reads the whole row again, which is the
    reference that the cache is compared with.
    """

    def __init__(self, model: DecoderModel, *, cached: bool = True) -> None:
        self.model = model
        self.cached = cached

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """All positions but the prompt's; the last token written is never read."""
        return positions_for(self.model.embed, i, prompt) - len(prompt) + 1

    @torch.inference_mode()
    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Read the prompts, side by side at their ends."""
        self._cache: KVCache | None = self.model.new_cache() if self.cached else None
        self._tokens, self._valid = padded(prompts, _device(self.model), left=True)
        return self._read()

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each row."""
        self._tokens = _appended(self._tokens, tokens)
        if self._valid is not None:
            self._valid = _appended(self._valid, torch.ones_like(self._valid[:, 0]))
        return self._read()

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the tokens and of the cache."""
        self._tokens = self._tokens[rows]
        self._valid = None if self._valid is None else self._valid[rows]
        if self._cache is not None:
            self._cache.select(rows)

    def _read(self) -> Logits:
        return checked(self._next())

    def _next(self) -> Logits:
        new = _unread(self._tokens, self._cache)
        with evaluating(self.model):
            return self.model.next_token_logits(new, valid=self._valid, cache=self._cache)


class Translation:
    """An encoder–decoder model writes a target, from `bos_id` on, for a source encoded once.

    `cached` as in `Continuation`; the keys and values of the source are cached with the rest.
    Tokens of `never` are not written, whatever the model says (Marian's padding).
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
        self.never = torch.tensor(never, dtype=torch.long)
        self.cached = cached

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """All positions of the target, whatever the length of the source."""
        positions_for(self.model.source_embed, i, prompt)
        return positions_for(self.model.target_embed, i, [self.bos_id])

    @torch.inference_mode()
    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Encode the sources and begin each target."""
        source, self._valid = padded(prompts, _device(self.model), left=False)
        self._cache: KVCache | None = self.model.new_cache() if self.cached else None
        self._tokens = source.new_full((len(prompts), 1), self.bos_id)
        with evaluating(self.model):
            self._memory = self.model.encode(source, self._valid)
        return self._read()

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each target."""
        self._tokens = _appended(self._tokens, tokens)
        return self._read()

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the targets and of the cache, and the memories that they look at."""
        memories = _shared(rows // (len(self._tokens) // len(self._memory)))
        self._tokens, self._memory = self._tokens[rows], self._memory[memories]
        self._valid = None if self._valid is None else self._valid[memories]
        if self._cache is not None:
            self._cache.select(rows, memories)

    def _next(self) -> Logits:
        new = _unread(self._tokens, self._cache)
        with evaluating(self.model):
            return self.model.decode(
                new, self._memory, source_valid=self._valid, cache=self._cache
            )[:, -1]

    def _read(self) -> Logits:
        logits = checked(self._next())
        never = self.never.to(logits.device)
        return logits.index_fill(-1, never, -inf) if len(never) else logits


def positions_for(embed: Input, i: int, ids: Ids) -> int:
    """How many positions `embed` knows; a number beyond all need where it knows no bound.

    Raises `InputError` where it cannot embed `ids`, which the message calls prompt number `i`.
    """
    if not isinstance(embed, Embedding):
        raise InputError(f"prompt {i} is text, and this model reads none")
    n_tokens, known = embed.tokens.num_embeddings, embed.position.max_len or maxsize
    if not 0 < len(ids) <= known:
        raise InputError(
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


def _unread(tokens: Int[Tensor, "rows seq"], cache: KVCache | None) -> Int[Tensor, "rows new"]:
    return tokens if cache is None else tokens[:, cache.length :]


def _appended(rows: Tensor, column: Tensor) -> Tensor:
    return torch.cat([rows, column[:, None]], dim=1)


def _shared(memories: Int[Tensor, " rows"]) -> Int[Tensor, " memories"]:
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
