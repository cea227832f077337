"""Small models with random weights and their outputs, before and after a swap."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from tests.contracts import started
from torch import Tensor

from addnorm.convert.transfer.model import TransferReport, config_with_folding, transfer_weights
from addnorm.models import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    EncoderModel,
    Model,
    ModelConfig,
)
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PreNormConfig

VOCAB = 11
PARTS: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 2,
    "max_len": 9,
    "position": LearnedConfig(),
    "attention": AttentionConfig(n_heads=4),
    "feedforward": FeedForwardConfig(d_ff=20, activation="gelu"),
    "residual": PreNormConfig(),
    "dropout": 0.0,
}
KINDS: dict[str, ModelConfig] = {
    "decoder": DecoderConfig(**PARTS),
    "encoder": EncoderConfig(**PARTS, embedding=EmbeddingConfig(n_types=2)),
    "encoder_decoder": EncoderDecoderConfig(**PARTS),
}


class Swapped(NamedTuple):
    old: Model
    new: Model
    config: ModelConfig
    report: TransferReport


def built(config: ModelConfig, vocab: int = VOCAB) -> Model:
    labels = {"n_labels": 3} if isinstance(config, EncoderConfig) else {}
    return config.build(vocab, **labels).double().eval()


def random(config: ModelConfig, vocab: int = VOCAB, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    model = started(built(config, vocab))
    assert isinstance(model, Model)
    return model


def swap(
    old_config: ModelConfig,
    *,
    vocab: int = VOCAB,
    layers: Mapping[str, Sequence[int]] | None = None,
    old: Model | None = None,
    dtype: torch.dtype = torch.float64,
    **changes: Any,
) -> Swapped:
    old = random(old_config) if old is None else old
    config = config_with_folding(old, old_config, replace(old_config, **changes))
    new = built(config, vocab).to(dtype)
    return Swapped(old, new, config, transfer_weights(old, old_config, new, config, layers))


@torch.no_grad()
def said(model: Model, seq: int = 7, vocab: int = VOCAB) -> Tensor:
    """The logits of two rows, the second padded where the model reads both ways."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(vocab, (2, seq), generator=generator)
    valid = torch.arange(seq) < torch.tensor([[seq], [seq - 2]])
    match model:
        case EncoderDecoderModel():
            target = torch.randint(vocab, (2, seq - 1), generator=generator)
            return model(tokens, target, valid)
        case EncoderModel():
            types = torch.randint(2, (2, seq), generator=generator)
            types = types if getattr(model.embed, "types", None) is not None else None
            return model(tokens, valid, types=types)[valid]
        case _:
            return model(tokens)


@torch.no_grad()
def said_in_steps(model: Model, seq: int = 7) -> Tensor:
    """The logits of a decoder, token by token with a cache."""
    tokens = torch.randint(VOCAB, (2, seq), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache()
    if isinstance(model, EncoderDecoderModel):
        memory = model.encode(tokens)
        steps = [model.decode(one, memory, cache=cache) for one in tokens.split(1, dim=1)]
    else:
        steps = [model(one, cache=cache) for one in tokens.split(1, dim=1)]
    return torch.cat(steps, dim=1)


def difference(one: Model, other: Model, **how: int) -> float:
    return float((said(one, **how) - said(other, **how)).abs().max())
