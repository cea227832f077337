"""How the models of the claims are made, trained and measured: small, all in the same way."""

import math
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from addnorm.lab.claims.tasks import IGNORED, Examples, next_tokens, text_of
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.models.decoder import DecoderModel
from addnorm.models.encoder import EncoderModel
from addnorm.nn.cache import KVCache, SelfCache

SMALL: Mapping[str, Any] = {
    "d_model": 64,
    "n_layers": 2,
    "dropout": 0.0,
    "attention": {"kind": "attention", "n_heads": 4},
    "feedforward": {"kind": "mlp", "d_ff": 128},
    "position": {"kind": "rotary"},
    "residual": {"kind": "pre"},
}
"""The model that a claim varies, unless it says otherwise."""

BATCH = 32
"""Sequences a step."""


def decoder(vocab: int, seed: int, **fields: Any) -> DecoderModel:
    """A small decoder with some fields of its configuration replaced, of reproducible weights."""
    torch.manual_seed(seed)
    return TypeAdapter(DecoderConfig).validate_python({**SMALL, **fields}).build(vocab)


def encoder(vocab: int, seed: int, **fields: Any) -> EncoderModel:
    """A small encoder that gives logits over the vocabulary at every place."""
    torch.manual_seed(seed)
    return TypeAdapter(EncoderConfig).validate_python({**SMALL, **fields}).build(vocab)


class Course(NamedTuple):
    """How a model is trained: steps of AdamW, its learning rate and how that begins and ends."""

    steps: int
    lr: float = 3e-3
    warmup: int = 20
    falls: bool = True

    def factor(self, step: int) -> float:
        """Of the learning rate at a step, counted from 0: linear up, then along a cosine."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.5 + 0.5 * math.cos(math.pi * done) if self.falls else 1.0


def learn(
    model: nn.Module,
    draw: Callable[[torch.Generator], Examples],
    course: Course,
    seed: int,
) -> list[float]:
    """Train a model on new examples each step; return the loss of each, in nats.

    It ends before its time where a loss is not finite.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    optimizer = torch.optim.AdamW(model.parameters(), course.lr, betas=(0.9, 0.98), foreach=True)
    losses: list[float] = []
    model.train()
    for step in range(course.steps):
        for group in optimizer.param_groups:
            group["lr"] = course.lr * course.factor(step)
        loss = loss_of(model, draw(generator))
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def learn_text(
    model: nn.Module, task: str, length: int, course: Course, seed: int, n: int = BATCH
) -> list[float]:
    """Train a model on texts of a task, to tell their next tokens."""
    text = text_of(task)
    return learn(model, lambda g: next_tokens(text.draw(g, n, length + 1)), course, seed)


def loss_of(model: nn.Module, examples: Examples) -> Tensor:
    """The mean cross-entropy over all places that are scored."""
    logits = model(examples.tokens, examples.valid)
    return cross_entropy(logits.flatten(0, 1), examples.targets.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def accuracy(model: nn.Module, examples: Examples) -> float:
    """How many of the places that are scored have the right token as their likeliest, in %."""
    model.eval()
    scored = examples.targets != IGNORED
    best = model(examples.tokens, examples.valid).argmax(-1)
    return 100 * (best == examples.targets)[scored].float().mean().item()


@torch.no_grad()
def loss_on_new(
    model: nn.Module, task: str, n: int, length: int, last: int | None = None, seed: int = 7
) -> float:
    """The loss on texts that it never saw, over their `last` tokens, or all."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    tokens = text_of(task).draw(generator, n, length + 1, test=True)
    logits = model(tokens[:, :-1])[:, -(last or length) :]
    targets = tokens[:, -(last or length) :].flatten()
    return cross_entropy(logits.flatten(0, 1).float(), targets).item()


Kind = TypeVar("Kind")


def seconds_in_turn(works: Mapping[Kind, Callable[[], object]], repeats: int) -> dict[Kind, float]:
    """The median time of each piece of work, taken in turn; two first rounds are not counted."""
    times: dict[Kind, list[float]] = {kind: [] for kind in works}
    for _ in range(repeats + 2):
        for kind, work in works.items():
            begun = time.perf_counter()
            work()
            times[kind].append(time.perf_counter() - begun)
    return {kind: median(some[2:]) for kind, some in times.items()}


def seconds_of(work: Callable[[], object], repeats: int) -> float:
    """The median time of a piece of work."""
    return seconds_in_turn({None: work}, repeats)[None]


def cache_bytes(cache: KVCache) -> int:
    """What the keys and values of all cached tokens take."""
    layers = (layer.self_cache for layer in cache)
    kept = (one for layer in layers if isinstance(layer, SelfCache) for one in layer.kept)
    return sum(one.numel() * one.element_size() for one in kept)


@torch.no_grad()
def seconds_a_token(model: DecoderModel, past: int, *, cached: bool) -> float:
    """The seconds that one more token takes after `past` of them."""
    tokens = torch.zeros(1, past, dtype=torch.long)
    if not cached:
        return seconds_of(lambda: model.next_token_logits(tokens), 7)
    cache = model.new_cache()
    model.next_token_logits(tokens, cache=cache)
    return seconds_of(lambda: model.next_token_logits(tokens[:, :1], cache=cache), 15)


def entropy(weights: torch.Tensor) -> float:
    """The entropy of attention over its largest value, `-Σ w log w / log n`."""
    total = -torch.special.xlogy(weights, weights).sum(-1).mean().item()
    return total / math.log(weights.shape[-1])


def jacobian(weights: torch.Tensor) -> float:
    """The mean norm of the softmax's derivative, `‖diag(w) - w wᵀ‖`."""
    square = (weights**2).sum(-1)
    norm = square - 2 * (weights**3).sum(-1) + square**2
    return norm.clamp(min=0).sqrt().mean().item()


def gradient_of(layer: nn.Module) -> float:
    """The norm of the gradient of all weights of a layer."""
    squares = [p.grad.square().sum() for p in layer.parameters() if p.grad is not None]
    return max(torch.stack(squares).sum().sqrt().item(), 1e-30)
