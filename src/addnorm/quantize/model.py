"""Quantising a whole model, and the schemes for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from addnorm.config import config
from addnorm.errors import InputError, nearest
from addnorm.models import Model
from addnorm.nn.heads import TokenHead
from addnorm.nn.linear import Linear
from addnorm.quantize.activations import (
    ActivationsConfig,
    DynamicConfig,
    Matrix,
    StaticConfig,
    WeightsOnlyConfig,
)
from addnorm.quantize.int4 import Int4Matrix
from addnorm.quantize.int8 import Int8Matrix
from addnorm.quantize.layers import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedRecurrence,
    QuantizedTokenHead,
)
from addnorm.quantize.places import (
    QUANTIZED,
    Place,
    check_replaceable,
    names_matching,
    names_to_include,
    places_of,
    products_of,
)
from addnorm.quantize.rounding import Groups, Rounding, round_gptq, round_hqq, round_nearest
from addnorm.quantize.statistics import (
    Inputs,
    InputStatistics,
    count_sizes,
    observe,
    range_of,
    smoothing_of,
)


@config
class Int8Config:
    """Eight bits a weight, with a scale for each output: a quarter of float32."""

    kind: Literal["int8"] = "int8"
    activations: ActivationsConfig = DynamicConfig()
    """What happens to the inputs of the products."""
    smoothing: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """How much of the inputs' outliers moves into the weights (SmoothQuant's α, such as 0.5); by
    default nothing.
    """

    def __post_init__(self) -> None:
        if self.smoothing is not None and isinstance(self.activations, WeightsOnlyConfig):
            raise ValueError("smoothing eases the rounding of inputs, and weights_only rounds none")


@config
class Int4Config:
    """Four bits a weight, with a scale for each group of neighbours; inputs are not rounded."""

    kind: Literal["int4"] = "int4"
    group_size: Literal[32, 64, 128, 256] = 32
    """How many neighbours in a row share a scale; fewer where a row is no multiple of it."""
    rounding: Rounding = "nearest"
    """To the nearest, by torchao's HQQ, or by GPTQ, which is calibrated on real data."""


QuantizationConfig = Annotated[Int8Config | Int4Config, Field(discriminator="kind")]
"""How many bits weights have, and what happens to inputs."""


def quantize(
    model: Model,
    scheme: QuantizationConfig,
    batches: Sequence[Inputs] = (),
    *,
    keep: Sequence[str] = (),
    include: Sequence[str] = (),
) -> Model:
    """Quantise the matrices of `model` in place, and return it; it can no longer be trained.

    Quantised are the linear layers of attention and feed-forward, recurrences, the token embedding,
    the head of tokens and that of a forecast. Those whose names match one of `keep` (`*` stands for
    anything) stay as they are, as do all other modules but the linear and recurrent layers that
    match one of `include`, such as those of modules of your own. `batches` are the model's inputs
    to calibrate on (`is_calibrated`), without padding. Raises `InputError`, without changing
    anything, where they are missing or reach no layer, for a pattern that matches nothing, and
    where a module to replace is not exactly a built-in one.
    """
    included = names_to_include(model, include)
    check_replaceable(model, included)
    layers = Chosen(included, names_matching(model, keep, included))
    if not is_calibrated(scheme):
        return _replaced(model, scheme, _Facts(), layers)
    if not batches:
        raise InputError("this scheme is calibrated: give it examples of the model's data")
    return _replaced(model, scheme, _calibrated(model, scheme, batches, layers), layers)


def quantize_int8(model: Model) -> Model:
    """Quantise the matrices of `model` to int8, in place, for a quarter of the memory; return it.

    `quantize(model, Int8Config())`: inputs are rounded row by row while the model runs.
    """
    return quantize(model, Int8Config())


def is_calibrated(scheme: QuantizationConfig) -> bool:
    """Whether a scheme depends on the inputs of layers."""
    if isinstance(scheme, Int4Config):
        return scheme.rounding == "gptq"
    return isinstance(scheme.activations, StaticConfig) or scheme.smoothing is not None


def laid_out(
    model: Model,
    scheme: QuantizationConfig,
    kept: Sequence[str],
    included: Sequence[str] = (),
) -> Model:
    """Give a model the layers that quantising gives it, in place, to load their numbers into.

    Raises `InputError` for a kept or an included layer that the model lacks.
    """
    names = [place.name for place in places_of(model, included)]
    if strange := [name for name in (*kept, *included) if name not in names]:
        raise InputError(f"no layer {strange[0]!r} to keep.{nearest(strange[0], names)}")
    layers = Chosen(tuple(included), frozenset(kept))
    plain = Int4Config(group_size=scheme.group_size) if isinstance(scheme, Int4Config) else scheme
    facts = _Facts()
    if isinstance(scheme, Int8Config) and scheme.smoothing is not None:
        smoothed = _smoothed_layers(model, layers)
        facts.smoothing = {name: torch.ones(one.weight.shape[1]) for name, one in smoothed.items()}
    return _replaced(model, plain, facts, layers)


@dataclass(frozen=True)
class Chosen:
    """The names of the layers that are quantised besides those built in, and of those that stay."""

    included: tuple[str, ...]
    kept: frozenset[str]

    def products(self, model: Model) -> dict[str, nn.Module]:
        """The linear layers and heads to quantise, by name."""
        found = products_of(model, self.included)
        return {name: one for name, one in found.items() if name not in self.kept}


@dataclass
class _Facts:
    """What a calibration found of each layer, by name."""

    statistics: dict[str, InputStatistics] = field(default_factory=dict)
    smoothing: dict[str, Tensor] = field(default_factory=dict)
    ranges: dict[str, float] = field(default_factory=dict)


def _calibrated(
    model: Model, scheme: QuantizationConfig, batches: Sequence[Inputs], chosen: Chosen
) -> _Facts:
    layers = chosen.products(model)
    facts = _Facts()
    facts.statistics = observe(model, layers, batches, grams=isinstance(scheme, Int4Config))
    if unseen := layers.keys() - facts.statistics.keys():
        raise InputError(
            f"nothing reached {min(unseen)} in these {len(batches)} examples: calibrate on more, "
            f"or keep it as it is (keep {min(unseen)})"
        )
    if isinstance(scheme, Int8Config) and scheme.smoothing is not None:
        facts.smoothing = {
            name: smoothing_of(one.weight, facts.statistics[name].largest, scheme.smoothing)
            for name, one in _smoothed_layers(model, chosen).items()
        }
    if isinstance(scheme, Int8Config) and isinstance(scheme.activations, StaticConfig):
        count_sizes(model, layers, batches, facts.statistics, facts.smoothing)
        static = scheme.activations
        facts.ranges = {name: range_of(static, one) for name, one in facts.statistics.items()}
    return facts


def _smoothed_layers(model: Model, chosen: Chosen) -> dict[str, nn.Linear]:
    """The layers whose weight is their own, so that its columns may be changed."""
    found = chosen.products(model).items()
    return {name: one for name, one in found if isinstance(one, nn.Linear)}


# Replacing them.


def _replaced(model: Model, scheme: QuantizationConfig, facts: _Facts, chosen: Chosen) -> Model:
    made: dict[int, Matrix] = {}  # tied weights share a matrix
    activations = scheme.activations if isinstance(scheme, Int8Config) else WeightsOnlyConfig()
    for place in places_of(model, chosen.included):
        if place.name in chosen.kept:
            continue
        smoothing = facts.smoothing.get(place.name)
        for weight in place.matrices.values():
            wanted = weight if smoothing is None else weight * smoothing
            if id(weight) not in made:
                made[id(weight)] = _matrix(wanted, scheme, facts.statistics.get(place.name))
        matrices = {name: made[id(weight)] for name, weight in place.matrices.items()}
        setattr(place.parent, place.attribute, _layer(place, matrices, activations, facts))
    return model.requires_grad_(False)


def _matrix(
    weight: Tensor, scheme: QuantizationConfig, statistics: InputStatistics | None
) -> Matrix:
    if isinstance(scheme, Int8Config):
        return Int8Matrix(weight)
    size = group_size_for(weight.shape[1], scheme.group_size)
    if scheme.rounding == "gptq" and statistics is not None:
        assert statistics.gram is not None
        groups = round_gptq(weight, statistics.gram, size)
    else:
        by: Callable[..., Groups] = round_hqq if scheme.rounding == "hqq" else round_nearest
        groups = by(weight, size)
    return Int4Matrix(groups, weight.shape[1])


def group_size_for(d_in: int, wanted: int) -> int:
    """The largest group up to `wanted` of which a row is a whole number; 32 where none is."""
    return next((n for n in (256, 128, 64) if n <= wanted and d_in % n == 0), 32)


def _layer(
    place: Place, matrices: dict[str, Matrix], activations: ActivationsConfig, facts: _Facts
) -> nn.Module:
    part, name = place.part, place.name
    if isinstance(part, nn.RNNBase):
        return QuantizedRecurrence(matrices, part)
    matrix = matrices["weight"]
    if isinstance(part, nn.Embedding):
        return QuantizedEmbedding(matrix)
    inputs = activations.build(facts.ranges.get(name))
    if isinstance(part, TokenHead):
        return QuantizedTokenHead(matrix, inputs, part)
    assert isinstance(part, nn.Linear)
    return QuantizedLinear(matrix, inputs, part.bias, facts.smoothing.get(name))


def is_quantized(model: nn.Module) -> bool:
    """Whether any layer of a model is quantised."""
    return any(isinstance(module, QUANTIZED) for module in model.modules())


def dequantize(model: Model) -> Model:
    """Replace quantised layers by plain ones with the same numbers, in place; return the model."""
    return _made_plain(model, lambda matrix: matrix.dequantized())


def scales_of(model: Model) -> Model:
    """Replace quantised layers by plain ones whose weights are the scale of each number.

    In place; returns the model. Layers that are not quantised are zero, for writers that keep the
    whole numbers: those of a quantised weight are `dequantize` divided by this.
    """
    for parameter in model.parameters():
        parameter.zero_()
    return _made_plain(model, lambda matrix: matrix.scales())


def _made_plain(model: Model, weight: Callable[[Matrix], Tensor]) -> Model:
    weights: dict[int, nn.Parameter] = {}  # a shared matrix becomes a tied weight

    def weight_of(matrix: Matrix) -> nn.Parameter:
        return weights.setdefault(id(matrix), nn.Parameter(weight(matrix), False))

    for module in list(model.modules()):
        for name, part in module.named_children():
            if isinstance(part, QuantizedRecurrence):
                setattr(module, name, part.with_weights(weight_of))
            elif isinstance(part, QuantizedLinear | QuantizedEmbedding | QuantizedTokenHead):
                setattr(module, name, _plain(part, weight_of(part.matrix)))
    return model


def _plain(part: nn.Module, weight: nn.Parameter) -> nn.Module:
    d_out, d_in = weight.shape
    if isinstance(part, QuantizedEmbedding):
        table = nn.Embedding(d_out, d_in, _weight=weight)
        table.weight = weight  # itself, so that a tied head has the same
        return table
    if isinstance(part, QuantizedTokenHead):
        head = TokenHead(
            d_in, d_out, transform=part.transform, scale=part.scale, softcap=part.softcap
        )
        head.weight, head.bias = weight, part.bias
        return head
    assert isinstance(part, QuantizedLinear)
    linear = Linear(d_in, d_out, bias=False)
    smoothed = weight if part.smoothing is None else nn.Parameter(weight / part.smoothing, False)
    linear.weight = smoothed
    linear.register_parameter("bias", part.bias)
    return linear
