"""Building, training and measuring the claims' small models, all in the same way."""

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
"""The model that a claim varies by default."""

BATCH = 32
"""The number of sequences in a step."""


def decoder(vocab: int, seed: int, **fields: Any) -> DecoderModel:
    """Build a small decoder with some fields replaced; the seed determines its weights."""
    torch.manual_seed(seed)
    return TypeAdapter(DecoderConfig).validate_python({**SMALL, **fields}).build(vocab)


def encoder(vocab: int, seed: int, **fields: Any) -> EncoderModel:
    """Build a small encoder with logits over the vocabulary at every position."""
    torch.manual_seed(seed)
    return TypeAdapter(EncoderConfig).validate_python({**SMALL, **fields}).build(vocab)


class Course(NamedTuple):
    """The number of AdamW steps for training a model, and the learning-rate schedule."""

    steps: int
    lr: float = 3e-3
    warmup: int = 20
    falls: bool = True

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate at a step from 0: warm-up, then half a cosine."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.5 + 0.5 * math.cos(math.pi * done) if self.falls else 1.0


def learn(
    model: nn.Module, draw: Callable[[torch.Generator], Examples], course: Course, seed: int
) -> list[float]:
    """Train a model on new examples at each step; return each step's loss in nats.

    Training stops at a loss that is NaN or infinite.
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
    """Train a model to predict the next tokens of a task's texts."""
    text = text_of(task)
    return learn(model, lambda g: next_tokens(text.draw(g, n, length + 1)), course, seed)


def loss_of(model: nn.Module, examples: Examples) -> Tensor:
    """Return the mean cross-entropy over all scored positions."""
    logits = model(examples.tokens, examples.valid)
    return cross_entropy(logits.flatten(0, 1), examples.targets.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def accuracy(model: nn.Module, examples: Examples) -> float:
    """Return the percentage of scored positions predicted correctly."""
    model.eval()
    scored = examples.targets != IGNORED
    best = model(examples.tokens, examples.valid).argmax(-1)
    return 100 * (best == examples.targets)[scored].float().mean().item()


@torch.no_grad()
def loss_on_new(
    model: nn.Module, task: str, n: int, length: int, last: int | None = None, seed: int = 7
) -> float:
    """Return the loss on unseen texts, over all tokens or the `last` ones."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    tokens = text_of(task).draw(generator, n, length + 1, test=True)
    logits = model(tokens[:, :-1])[:, -(last or length) :]
    targets = tokens[:, -(last or length) :].flatten()
    return cross_entropy(logits.flatten(0, 1).float(), targets).item()


Kind = TypeVar("Kind")


def seconds_in_turn(works: Mapping[Kind, Callable[[], object]], repeats: int) -> dict[Kind, float]:
    """Return each function's median time, run in turn after two warm-up rounds."""
    times: dict[Kind, list[float]] = {kind: [] for kind in works}
    for _ in range(repeats + 2):
        for kind, work in works.items():
            begun = time.perf_counter()
            work()
            times[kind].append(time.perf_counter() - begun)
    return {kind: median(seconds[2:]) for kind, seconds in times.items()}


def seconds_of(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of a function."""
    return seconds_in_turn({None: work}, repeats)[None]


def cache_bytes(cache: KVCache) -> int:
    """Return the bytes of all cached keys and values."""
    layers = (layer.self_cache for layer in cache)
    return sum(t.nbytes for layer in layers if isinstance(layer, SelfCache) for t in layer.kept)


@torch.no_grad()
def seconds_a_token(model: DecoderModel, past: int, *, cached: bool) -> float:
    """Return the seconds for the next token after `past` tokens."""
    tokens = torch.zeros(1, past, dtype=torch.long)
    if not cached:
        return seconds_of(lambda: model.next_token_logits(tokens), 7)
    cache = model.new_cache()
    model.next_token_logits(tokens, cache=cache)
    return seconds_of(lambda: model.next_token_logits(tokens[:, :1], cache=cache), 15)


def entropy(weights: torch.Tensor) -> float:
    """Return the entropy of attention as a fraction of its maximum, `-Σ w log w / log n`."""
    total = -torch.special.xlogy(weights, weights).sum(-1).mean().item()
    return total / math.log(weights.shape[-1])


def jacobian(weights: torch.Tensor) -> float:
    """Return the mean norm of the softmax's derivative, `‖diag(w) - w wᵀ‖`."""
    square = (weights**2).sum(-1)
    norm = square - 2 * (weights**3).sum(-1) + square**2
    return norm.clamp(min=0).sqrt().mean().item()


def gradient_of(layer: nn.Module) -> float:
    """Return the norm of the gradient over all weights of a layer."""
    squares = [p.grad.square().sum() for p in layer.parameters() if p.grad is not None]
    return max(torch.stack(squares).sum().sqrt().item(), 1e-30)
