"""Verifying a transfer: runs two models that should be equivalent on the same inputs."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from addnorm.convert.core.readback import LENGTH, sample_inputs
from addnorm.models import (
    DecoderModel,
    DualEncoderModel,
    EncoderDecoderModel,
    EncoderModel,
    Model,
    ModelConfig,
)
from addnorm.nn.embed import HasTable

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""The difference, relative to the largest output, that the rounding of weights to a type may make;
0.05 for narrower types. In float64 only sums in another order are left."""

ROWS = 3


def unequal(old: Model, new: Model, config: ModelConfig) -> str | None:
    """The reason why two models do not compute the same function; None if they do.

    Both run in float64 on the same random inputs, of several lengths and padded; the outputs of all
    early exits are compared too. `config` is the new model's. Differences by the rounding of its
    weights are allowed, so exact transfers are verified before the rounding too. If a model does
    not run, the reason is that nothing could be verified.
    """
    inputs = Inputs.of(old, new, config)
    dtype = next(new.parameters()).dtype
    try:
        pairs = list(zip(_outputs(old, inputs), _outputs(new, inputs), strict=True))
    except (ValueError, RuntimeError) as error:
        return f"could not be verified: {str(error).splitlines()[0]}"
    largest = max((float(output.abs().max()) for output, _ in pairs if output.numel()), default=0.0)
    difference = max((_difference(*pair) for pair in pairs), default=0.0)
    if difference <= TOLERANCE.get(dtype, 5e-2) * max(largest, 1e-30):
        return None
    return f"the outputs differ by up to {difference / max(largest, 1e-30):.2g} of the largest"


def _difference(old: Tensor, new: Tensor) -> float:
    if old.shape != new.shape:
        return torch.inf
    return float((old - new).abs().nan_to_num(nan=torch.inf).max()) if old.numel() else 0.0


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Random inputs that two models can read."""

    source: Shaped[Tensor, "batch *input"]
    valid: Bool[Tensor, "batch seq"] | None
    types: Int[Tensor, "batch seq"] | None = None
    target: Int[Tensor, "batch target_seq"] | None = None

    @classmethod
    def of(cls, old: Model, new: Model, config: ModelConfig) -> "Inputs":
        """Random inputs that both models can read, given their vocabularies and lengths."""
        generator = torch.Generator().manual_seed(0)
        embeds = [_source_embed(model) for model in (old, new)]
        target = None
        if isinstance(old, EncoderDecoderModel) and isinstance(new, EncoderDecoderModel):
            target = _tokens([old.target_embed, new.target_embed], generator)
        if not all(isinstance(embed, HasTable) for embed in embeds):
            shape = list(sample_inputs(new)[0].shape)
            steps: int | None = getattr(getattr(config, "input", None), "look_back", None)
            shape[-1] = steps or shape[-1]
            source = torch.randn(ROWS, *shape[1:], generator=generator).double()
            return cls(source=source, valid=None, target=target)
        source = _tokens(embeds, generator)
        lengths = torch.tensor([source.shape[1], 1, 1 + source.shape[1] // 2])
        valid = torch.arange(source.shape[1]) < lengths[:, None]
        kinds = min(_n_types(embed) for embed in embeds)
        types = torch.randint(kinds, source.shape, generator=generator) if kinds else None
        return cls(source=source, valid=valid, types=types, target=target)


def _source_embed(model: Model) -> Any:
    return model.source_embed if isinstance(model, EncoderDecoderModel) else model.embed


def _tokens(embeds: list[Any], generator: torch.Generator) -> Int[Tensor, "rows seq"]:
    vocab_size = min(embed.tokens.num_embeddings for embed in embeds)
    length = min(embed.position.max_len or LENGTH for embed in embeds)
    return torch.randint(vocab_size, (ROWS, min(LENGTH, length)), generator=generator)


def _n_types(embed: Any) -> int:
    types = getattr(embed, "types", None)
    return 0 if types is None else types.num_embeddings


@torch.no_grad()
def _outputs(model: Model, inputs: Inputs) -> list[Tensor]:
    """The outputs at real tokens of a copy in float64."""
    return list(every_output(copy.deepcopy(model).cpu().double().eval(), inputs))


def every_output(model: Model, inputs: Inputs) -> Iterator[Tensor]:
    """Run a float64 model; yield its outputs at real tokens, of the last layer and each exit."""
    source = inputs.source
    match model:
        case EncoderDecoderModel():
            assert inputs.target is not None
            yield model(source, inputs.target, inputs.valid)
        case DecoderModel():
            yield from (
                _real(output, inputs.valid) for output in model.exit_logits(source, inputs.valid)
            )
        case EncoderModel():
            yield _real(model(source, inputs.valid, inputs.types), inputs.valid)
            if model.exits:
                exits = model.exit_logits(source, inputs.valid, inputs.types)
                yield from (_real(output, inputs.valid) for output in exits)
        case DualEncoderModel():
            raise AssertionError("a dual encoder is not given other parts")


def _real(outputs: Tensor, valid: Tensor | None) -> Tensor:
    return outputs[valid] if valid is not None and outputs.shape[:2] == valid.shape else outputs
