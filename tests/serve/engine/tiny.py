"""Tiny models with everything an engine asks of a run."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig
from addnorm.models import DecoderConfig, EncoderDecoderConfig, Model, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.positions import RotaryConfig
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
