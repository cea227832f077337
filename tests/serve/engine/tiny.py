"""Tiny models with everything an engine asks of a run."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from addnorm.config import config
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig
from addnorm.models import DecoderConfig, EncoderDecoderConfig, Model, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.context import Context
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.masks import Full, Mask
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.positions.position import Position
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.events import Event
from addnorm.serve.engine.sequence import Ended, Request
from addnorm.training.settings import TrainConfig

TINY = DecoderConfig(
    d_model=16,
    n_layers=2,
    position=RotaryConfig(),
    attention=AttentionConfig(n_heads=4),
    head=TokenHeadConfig(tied=False),
)
"""A decoder over 30 tokens."""


class Sums:
    """The sum of the tokens so far, and their number, of each row."""

    def __init__(self) -> None:
        self.kept: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.kept = None if self.kept is None else self.kept[rows]


class JoinableSums(Sums):
    """Sums to which those of other rows can be added."""

    def join(self, other: "JoinableSums") -> None:
        """Add other rows."""
        assert self.kept is not None
        assert other.kept is not None
        self.kept = torch.cat([self.kept, other.kept])


class Means(nn.Module):
    """Each token is mixed with those before it: by a map of their mean."""

    pattern: Mask = Full()

    def __init__(self, d_model: int, cache: type[Sums]) -> None:
        super().__init__()
        self.out_proj = nn.Linear(d_model, d_model)
        self.new_cache = cache

    def forward(self, x: Tensor, ctx: Context, cache: Sums | None = None) -> Tensor:
        valid = x.new_ones(x.shape[:2]) if ctx.valid is None else ctx.valid.to(x.dtype)
        counted = torch.cat([x, x.new_ones(*x.shape[:2], 1)], dim=2) * valid[..., None]
        sums = counted.cumsum(1)
        if cache is not None:
            sums = sums if cache.kept is None else sums + cache.kept[:, None]
            cache.kept = sums[:, -1]
        return self.out_proj(sums[..., :-1] / sums[..., -1:].clamp(min=1.0))


@config
class MeansConfig:
    """A mixer of one's own, whose cache may have a method `join`."""

    joins: bool = True

    def build(self, d_model: int, position: Position, causal: bool, layer: int) -> Means:
        return Means(d_model, JoinableSums if self.joins else Sums)


def run_of(config: DecoderConfig | EncoderDecoderConfig = TINY, seed: int = 0) -> TrainedModel:
    """An untrained model whose tokens are not all equally likely."""
    torch.manual_seed(seed)
    tokenizer = CharConfig().train(["abcdefghijklmnopqrstuvwxyz"])
    model = config.build(tokenizer.vocab_size).eval()
    with torch.no_grad():
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.4)
    return run_around(model, config)


def run_around(model: Model, config: ModelConfig) -> TrainedModel:
    """A model with a tokenizer of 30 tokens."""
    tokenizer = CharConfig().train(["abcdefghijklmnopqrstuvwxyz"])
    recipe = Recipe(model=config, train=TrainConfig(steps=1))
    return TrainedModel(None, recipe, Tokenizers(tokenizer, tokenizer), (), model)


@dataclass
class Answered:
    """The news of one answer, joined."""

    tokens: list[int] = field(default_factory=list[int])
    log_probs: list[float] = field(default_factory=list[float])
    events: list[Event] = field(default_factory=list[Event])

    def hear(self, event: Event) -> None:
        """Add an event."""
        assert not self.events or self.events[-1].finished is None, "news after the end"
        self.tokens += event.tokens
        self.log_probs += event.log_probs
        self.events.append(event)

    @property
    def finished(self) -> Ended | None:
        """Why it ended."""
        return self.events[-1].finished


def answered(engine: Engine, requests: Iterable[Request] = ()) -> dict[tuple[str, int], Answered]:
    """Add the requests, and compute until none is open: the news of each answer, joined."""
    for request in requests:
        engine.add(request)
    answers: dict[tuple[str, int], Answered] = {}
    while engine.is_busy:
        for event in engine.step():
            answers.setdefault((event.name, event.index), Answered()).hear(event)
    return answers
