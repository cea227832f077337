"""Quantising a whole model, with a scheme of int8 or int4."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from addnorm.config import config
from addnorm.errors import InputError, nearest
from addnorm.models import Model
from addnorm.nn.heads import TokenHead
from addnorm.nn.linear import Linear
from addnorm.quantize.int4 import Int4Matrix, Rounding, round_gptq, round_hqq, round_nearest
from addnorm.quantize.int8 import Int8Matrix
from addnorm.quantize.layers import (
    ActivationsConfig,
    DynamicConfig,
    Matrix,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedRecurrence,
    QuantizedTokenHead,
    StaticConfig,
    WeightsOnlyConfig,
)
from addnorm.quantize.quantizable_layers import (
    QUANTIZED,
    LayerSlot,
    check_replaceable,
    names_matching,
    names_to_include,
    products_of,
    slots_of,
)
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
    """Eight bits a weight, with a scale for each output: a quarter of the size of float32."""

    kind: Literal["int8"] = "int8"
    activations: ActivationsConfig = DynamicConfig()
    """Whether and how the inputs of the products are rounded."""
    smoothing: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """How far outliers of the inputs move into the weights (SmoothQuant's α, such as 0.5); by
    default not at all.
    """

    def __post_init__(self) -> None:
        if self.smoothing is not None and isinstance(self.activations, WeightsOnlyConfig):
            raise ValueError("smoothing eases the rounding of inputs, and weights_only rounds none")


@config
class Int4Config:
    """Four bits a weight, with a scale for each group of a row."""

    kind: Literal["int4"] = "int4"
    group_size: Literal[32, 64, 128, 256] = 32
    """The number of neighbours in a row that share a scale; fewer if a row is not a multiple of
    it.
    """
    rounding: Rounding = "nearest"
    """Round to the nearest, by torchao's HQQ, or by GPTQ, which is calibrated on real data."""
    activations: Annotated[WeightsOnlyConfig | DynamicConfig, Field(discriminator="kind")] = (
        WeightsOnlyConfig()
    )
    """Whether the inputs of the products are rounded to eight bits, in blocks of 32."""


QuantizationConfig = Annotated[Int8Config | Int4Config, Field(discriminator="kind")]
"""The number of bits of the weights, and the rounding of inputs."""


def quantize(
    model: Model,
    scheme: QuantizationConfig,
    batches: Sequence[Inputs] = (),
    *,
    keep: Sequence[str] = (),
    include: Sequence[str] = (),
) -> Model:
    """Quantise the matrices of `model` in place, and return it; it can no longer be trained.

    The linear layers of attention and feed-forward, recurrences, the token embedding, the token
    head and the forecast head are quantised, except for those whose names match one of `keep` (`*`
    stands for anything). Other linear and recurrent layers, such as those of custom modules, are
    quantised if their names match one of `include`. `batches` are inputs of the model to calibrate
    on (`is_calibrated`), without padding. Raises `InputError`, without changing anything, if they
    are missing or do not reach a layer, if a pattern matches nothing, and if a module to replace is
    not exactly a built-in one.
    """
    included = names_to_include(model, include)
    check_replaceable(model, included)
    layers = Chosen(included, names_matching(model, keep, included))
    if not is_calibrated(scheme):
        return _replaced(model, scheme, _Calibration(), layers)
    if not batches:
        raise InputError("this scheme is calibrated: give it examples of the model's data")
    return _replaced(model, scheme, _calibrate(model, scheme, batches, layers), layers)


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
    unquantized: Sequence[str],
    included: Sequence[str] = (),
) -> Model:
    """Replace a model's layers in place as quantising does, ready to load quantised weights.

    Raises `InputError` for an unquantised or included layer that the model does not have.
    """
    names = [slot.name for slot in slots_of(model, included)]
    if strange := [name for name in (*unquantized, *included) if name not in names]:
        raise InputError(f"no layer {strange[0]!r} to keep.{nearest(strange[0], names)}")
    layers = Chosen(tuple(included), frozenset(unquantized))
    plain = replace(scheme, rounding="nearest") if isinstance(scheme, Int4Config) else scheme
    calibration = _Calibration()
    if isinstance(scheme, Int8Config) and scheme.smoothing is not None:
        calibration.smoothing = {
            name: torch.ones(layer.weight.shape[1])
            for name, layer in _smoothed_layers(model, layers).items()
        }
    return _replaced(model, plain, calibration, layers)


@dataclass(frozen=True)
class Chosen:
    """The names of the custom layers to quantise, and of the layers to leave unquantised."""

    included: tuple[str, ...]
    unquantized: frozenset[str]

    def products(self, model: Model) -> dict[str, nn.Module]:
        """The linear layers and heads to quantise, by name."""
        products = products_of(model, self.included)
        return {name: layer for name, layer in products.items() if name not in self.unquantized}


@dataclass
class _Calibration:
    """The results of a calibration for each layer, by name."""

    statistics: dict[str, InputStatistics] = field(default_factory=dict)
    smoothing: dict[str, Tensor] = field(default_factory=dict)
    ranges: dict[str, float] = field(default_factory=dict)


def _calibrate(
    model: Model, scheme: QuantizationConfig, batches: Sequence[Inputs], chosen: Chosen
) -> _Calibration:
    layers = chosen.products(model)
    statistics = observe(model, layers, batches, grams=isinstance(scheme, Int4Config))
    if unseen := layers.keys() - statistics.keys():
        raise InputError(
            f"nothing reached {min(unseen)} in these {len(batches)} examples: calibrate on more, "
            f"or keep it as it is (keep {min(unseen)})"
        )
    calibration = _Calibration(statistics)
    if isinstance(scheme, Int8Config) and scheme.smoothing is not None:
        calibration.smoothing = {
            name: smoothing_of(layer.weight, statistics[name].largest, scheme.smoothing)
            for name, layer in _smoothed_layers(model, chosen).items()
        }
    if isinstance(scheme, Int8Config) and isinstance(scheme.activations, StaticConfig):
        count_sizes(model, layers, batches, statistics, calibration.smoothing)
        calibration.ranges = {
            name: range_of(scheme.activations, of_layer) for name, of_layer in statistics.items()
        }
    return calibration


def _smoothed_layers(model: Model, chosen: Chosen) -> dict[str, nn.Linear]:
    """The linear layers that share no weight with an embedding, so that columns can be scaled."""
    layers = chosen.products(model).items()
    return {name: layer for name, layer in layers if isinstance(layer, nn.Linear)}


# Replacing them.


def _replaced(
    model: Model, scheme: QuantizationConfig, calibration: _Calibration, chosen: Chosen
) -> Model:
    by_weight: dict[int, Matrix] = {}  # tied weights share a matrix
    for slot in slots_of(model, chosen.included):
        if slot.name in chosen.unquantized:
            continue
        smoothing = calibration.smoothing.get(slot.name)
        statistics = calibration.statistics.get(slot.name)
        for weight in slot.matrices.values():
            smoothed = weight if smoothing is None else weight * smoothing
            if id(weight) not in by_weight:
                by_weight[id(weight)] = _matrix(smoothed, scheme, statistics)
        matrices = {name: by_weight[id(weight)] for name, weight in slot.matrices.items()}
        layer = _layer(slot, matrices, scheme.activations, calibration).train(slot.parent.training)
        setattr(slot.parent, slot.attribute, layer)
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
        groups = (round_hqq if scheme.rounding == "hqq" else round_nearest)(weight, size)
    return Int4Matrix(groups, weight.shape[1])


def group_size_for(d_in: int, largest: int) -> int:
    """The largest group size, up to `largest`, that divides a row evenly; 32 if there is none."""
    return next((n for n in (256, 128, 64) if n <= largest and d_in % n == 0), 32)


def _layer(
    slot: LayerSlot,
    matrices: dict[str, Matrix],
    activations: ActivationsConfig,
    calibration: _Calibration,
) -> nn.Module:
    part, name = slot.part, slot.name
    if isinstance(part, nn.RNNBase):
        return QuantizedRecurrence(matrices, part)
    matrix = matrices["weight"]
    if isinstance(part, nn.Embedding):
        return QuantizedEmbedding(matrix)
    inputs = activations.build(calibration.ranges.get(name))
    if isinstance(part, TokenHead):
        return QuantizedTokenHead(matrix, inputs, part)
    assert isinstance(part, nn.Linear)
    return QuantizedLinear(matrix, inputs, part.bias, calibration.smoothing.get(name))


def is_quantized(model: nn.Module) -> bool:
    """Whether any layer of a model is quantised."""
    return any(isinstance(module, QUANTIZED) for module in model.modules())


def dequantize(model: Model) -> Model:
    """Replace quantised layers by plain ones with the same weights, in place; return the model."""
    return _with_plain_layers(model, lambda matrix: matrix.dequantized())


def scales_of(model: Model) -> Model:
    """Replace quantised layers in place by plain ones that hold each weight's scale; return it.

    All other weights become zero. Exporters that keep the integers of a quantised weight divide its
    `dequantize` by these scales.
    """
    for parameter in model.parameters():
        parameter.zero_()
    return _with_plain_layers(model, lambda matrix: matrix.scales())


def _with_plain_layers(model: Model, weight: Callable[[Matrix], Tensor]) -> Model:
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
        table.weight = weight  # the same object, so that a tied head shares it
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
