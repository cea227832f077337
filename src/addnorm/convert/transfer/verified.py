"""Verifying a transfer: two models that should be the same function are run on the same inputs."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from addnorm.convert.core.readback import LENGTH, sample_inputs
from addnorm.models import DecoderModel, EncoderDecoderModel, EncoderModel, Model, ModelConfig
from addnorm.nn.embed import HasTable

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""The difference, relative to the largest output, that the rounding of weights to a type may make;
0.05 for narrower types. In float64 only sums in another order are left."""

ROWS = 3


def unequal(old: Model, new: Model, config: ModelConfig) -> str | None:
    """Why the outputs of two models are not the same function of their inputs; None if they are.

    Both run in float64 on random inputs that both can read, of several lengths, padded, whole and
    at every early exit. `config` is the new model's. What its weights' type may round away is
    allowed, so what is to be exact is verified in float64 first. A model that cannot be run is not
    verified.
    """
    inputs = Inputs.of(old, new, config)
    dtype = next(new.parameters()).dtype
    try:
        both = (_outputs(model, inputs) for model in (old, new))
        pairs = list(zip(*both, strict=True))
    except (ValueError, RuntimeError) as error:
        return f"could not be verified: {str(error).splitlines()[0]}"
    largest = max((float(output.abs().max()) for output, _ in pairs if output.numel()), default=0.0)
    apart = max((_apart(*pair) for pair in pairs), default=0.0)
    if apart <= TOLERANCE.get(dtype, 5e-2) * max(largest, 1e-30):
        return None
    return f"the outputs differ by up to {apart / max(largest, 1e-30):.2g} of the largest"


def _apart(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return torch.inf
    return float((one - other).abs().nan_to_num(nan=torch.inf).max()) if one.numel() else 0.0


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Random inputs that two models can read."""

    read: Shaped[Tensor, "batch *input"]
    valid: Bool[Tensor, "batch seq"] | None
    types: Int[Tensor, "batch seq"] | None = None
    target: Int[Tensor, "batch target_seq"] | None = None

    @classmethod
    def of(cls, old: Model, new: Model, config: ModelConfig) -> "Inputs":
        """Inputs within the vocabulary and the length of both."""
        draw = torch.Generator().manual_seed(0)
        embeds = [_read_by(model) for model in (old, new)]
        target = None
        if isinstance(old, EncoderDecoderModel) and isinstance(new, EncoderDecoderModel):
            target = _tokens([old.target_embed, new.target_embed], draw)
        if not all(isinstance(embed, HasTable) for embed in embeds):
            shape = list(sample_inputs(new)[0].shape)
            steps: int | None = getattr(getattr(config, "input", None), "look_back", None)
            shape[-1] = steps or shape[-1]
            read = torch.randn(ROWS, *shape[1:], generator=draw)
            return cls(read=read, valid=None, target=target)
        read = _tokens(embeds, draw)
        lengths = torch.tensor([read.shape[1], 1, 1 + read.shape[1] // 2])
        valid = torch.arange(read.shape[1]) < lengths[:, None]
        kinds = min(_n_types(embed) for embed in embeds)
        types = torch.randint(kinds, read.shape, generator=draw) if kinds else None
        return cls(read=read, valid=valid, types=types, target=target)


def _read_by(model: Model) -> Any:
    return model.source_embed if isinstance(model, EncoderDecoderModel) else model.embed


def _tokens(embeds: list[Any], draw: torch.Generator) -> Int[Tensor, "rows seq"]:
    vocab_size = min(embed.tokens.num_embeddings for embed in embeds)
    length = min(embed.position.max_len or LENGTH for embed in embeds)
    return torch.randint(vocab_size, (ROWS, min(LENGTH, length)), generator=draw)


def _n_types(embed: Any) -> int:
    types = getattr(embed, "types", None)
    return 0 if types is None else types.num_embeddings


@torch.no_grad()
def _outputs(model: Model, inputs: Inputs) -> list[Tensor]:
    """The outputs at real tokens, of a copy in float64."""
    wide = copy.deepcopy(model).cpu().double().eval()
    read = inputs.read.double() if inputs.read.is_floating_point() else inputs.read
    return list(every_output(wide, read, inputs))


def every_output(model: Model, read: Tensor, inputs: Inputs) -> Iterator[Tensor]:
    """Run a model on what it reads; yield its outputs at real tokens, whole and at every exit."""
    match model:
        case EncoderDecoderModel():
            assert inputs.target is not None
            yield model(read, inputs.target, inputs.valid)
        case DecoderModel():
            yield from (
                _real(output, inputs.valid) for output in model.exit_logits(read, inputs.valid)
            )
        case EncoderModel():
            yield _real(model(read, inputs.valid, inputs.types), inputs.valid)
            if model.exits:
                exits = model.exit_logits(read, inputs.valid, inputs.types)
                yield from (_real(output, inputs.valid) for output in exits)


def _real(outputs: Tensor, valid: Tensor | None) -> Tensor:
    return outputs[valid] if valid is not None and outputs.shape[:2] == valid.shape else outputs
