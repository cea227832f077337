"""Self-speculative decoding: multi-token prediction drafts tokens that the model verifies."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.generate.next_token import (
    Ids,
    Logits,
    check_writes,
    checked,
    device_of,
    evaluating,
    maximum_length,
    positions_for,
)
from addnorm.models import DecoderModel
from addnorm.nn.attention import CrossLayerAttention, LatentAttention, SelfAttention
from addnorm.nn.cache import NoCache, SelfCache
from addnorm.nn.context import Context
from addnorm.nn.masks import Causal
from addnorm.nn.no_sublayer import NoMixer
from addnorm.nn.positions.position import Position
from addnorm.nn.token_ahead import TokenAhead


class SelfSpeculation:
    """Continue one prompt; one pass gives the logits of several drafted tokens.

    The modules of multi-token prediction draft the next tokens (DeepSeek-AI 2024 (DeepSeek-V3),
    §2.2), and the model reads the newest token and the draft together (Leviathan et al. 2023). For
    as long as the tokens that are chosen are those of the draft, their logits are there already. So
    a draft changes no text: the tokens are chosen from the logits that the model has without it.
    """

    def __init__(self, model: DecoderModel, *, never: Sequence[int] = ()) -> None:
        check_speculates(model)
        self.model = model
        self.never = tuple(never)
        self.n_drafted = self.n_accepted = 0
        self._max_len = maximum_length(model.embed)

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """All positions after the prompt, plus one, since the last token is never an input."""
        return positions_for(self.model.embed, i, prompt) - len(prompt) + 1

    @torch.inference_mode()
    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Process the only prompt. Raises `InputError` if there are several."""
        if len(prompts) != 1:
            raise InputError(f"speculative decoding writes one text at a time, not {len(prompts)}")
        self._cache = self.model.new_cache()
        self._caches = [ahead.stack.new_cache() for ahead in self._modules]
        self._tokens, self._draft = list(prompts[0]), list[int]()
        self._states = [self._none() for _ in range(len(self._modules) + 1)]
        self._logits = self._read(self._tokens)[-1:]
        return checked(self._logits[:1])

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append a token; the model runs only if the token was not drafted."""
        token = int(tokens)
        self._tokens.append(token)
        if self._draft[:1] == [token]:
            del self._draft[0]
            self._logits = self._logits[1:]
            self.n_accepted += 1
        else:
            self._drop(len(self._tokens) - 1)
            self._draft = self._drafted()
            self.n_drafted += len(self._draft)
            self._logits = self._read([token, *self._draft])[-len(self._draft) - 1 :]
        return checked(self._logits[:1])

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep the only row. Raises `InputError` for several, as beams have."""
        if len(rows) > 1:
            raise InputError("speculative decoding writes one text at a time: leave beams out")

    @property
    def _modules(self) -> list[TokenAhead]:
        return [module for module in self.model.ahead if isinstance(module, TokenAhead)]

    def _none(self) -> Tensor:
        """Hidden states of zero slots."""
        width = self._modules[0].proj.out_features
        return torch.empty(1, 0, width, device=device_of(self.model))

    def _read(self, tokens: Sequence[int]) -> Float[Tensor, "new vocab"]:
        """Process tokens, keep their hidden states, and return the logits after each token."""
        with evaluating(self.model):
            ids = torch.tensor([tokens], device=device_of(self.model))
            x, ctx = self.model.hidden(ids, cache=self._cache)
            self._states[0] = torch.cat([self._states[0].to(x.dtype), x], dim=1)
            last = x[:, -1 - len(self._modules) :]
            return self.model.head(last, ctx)[0]

    def _drafted(self) -> list[int]:
        """Draft one token with each module; slot `i` at depth `k` reads token `i + k`."""
        drafted: list[int] = []
        n = self._states[0].shape[1]  # of the slots that the model has processed
        with evaluating(self.model):
            for k, module in enumerate(self._modules, start=1):
                if len(self._tokens) + len(drafted) >= self._max_len:
                    break
                self._extend(k, module, [*self._tokens, *drafted], n)
                logits = self.model.head(self._states[k][:, -1:], self._context(0, 1))
                drafted.append(int(logits.argmax()))
        return drafted

    def _extend(self, k: int, module: TokenAhead, tokens: list[int], n: int) -> None:
        """Compute the hidden states of depth `k` up to slot `n`."""
        first = self._states[k].shape[1]
        ids = torch.tensor([tokens[first + k : n + k]], device=device_of(self.model))
        embedded = self.model.embed(ids, self._context(first + k, n - first))
        before = self._states[k - 1][:, first:n]
        x = module(before, embedded, self._context(first, n - first), self._caches[k - 1])
        self._states[k] = torch.cat([self._states[k].to(x.dtype), x], dim=1)

    def _context(self, past: int, new: int) -> Context:
        """The context of `n` tokens that follow others."""
        tokens = torch.zeros(1, new, device=device_of(self.model))
        return Context.over(tokens, Causal(), past=past)

    def _drop(self, n: int) -> None:
        """Forget the states of drafted tokens that were rejected.

        The model keeps `n` slots. Depth `k` keeps those whose token `i + k` is one of the first
        `n + 1`, which were all chosen.
        """
        for k, cache in enumerate([self._cache, *self._caches]):
            held = self._states[k].shape[1]
            right = min(max(n + 1 - max(k, 1), 0), held)
            for layer in cache:
                if not isinstance(layer.self_cache, NoCache):
                    assert isinstance(layer.self_cache, SelfCache)
                    layer.self_cache.drop(held - right)
            cache.advance(right - held)
            self._states[k] = self._states[k][:, :right]


def check_speculates(model: nn.Module) -> None:
    """Raise `InputError` unless the model can draft tokens and its caches can forget them."""
    if not isinstance(model, DecoderModel) or not model.ahead:
        raise InputError(
            "this model predicts no tokens further ahead: train one with model.mtp = { depth = 1 }"
        )
    check_writes(model)
    for i, mixer in enumerate(model.stack.mixers):
        if isinstance(mixer, NoMixer):
            continue
        attends = isinstance(mixer, SelfAttention | LatentAttention | CrossLayerAttention)
        if not attends or type(mixer.new_cache()) not in (SelfCache, NoCache):
            raise InputError(
                f"speculative decoding drops tokens, and layer {i}, {type(mixer).__name__}, "
                "keeps a state that cannot forget them"
            )
        if type(mixer.position).rotate_all is not Position.rotate_all:
            raise InputError(
                f"speculative decoding drops tokens, and in layer {i} "
                f"{type(mixer.position).__name__} positions rotate old keys by later positions"
            )
