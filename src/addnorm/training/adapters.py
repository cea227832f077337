"""Low-rank adaptation (LoRA, DoRA): a few new weights are trained, and all others are frozen."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from addnorm.config import WORD, Probability, config
from addnorm.errors import InputError, choices
from addnorm.nn.attention.cross_layer import CrossLayerAttention
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.blocks import check_unshared
from addnorm.nn.dropout import Dropout
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.linear import Linear, LowRank, divisors, linear, row_norms

MAPS = (MultiHead, CrossLayerAttention, FeedForward, GatedFeedForward)
"""The modules whose linear layers are adapted."""


class LoRALinear(Linear):
    """`x Wᵀ + b + s (drop(x) Aᵀ) Bᵀ` with `s = α / rank` (Hu et al. 2021, §4.1).

    W and b are those of the adapted layer, and are frozen. A starts uniform as in `nn.Linear` and B
    at zero, so that the layer at first computes the same as before.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight = layer.weight
        self.register_parameter("bias", layer.bias)
        self.lora_A = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)
        self.scale = alpha / rank
        self.dropout = Dropout(dropout)

    def forward(self, input: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        return linear(input, self.weight, self.bias) + self.change(input)

    def change(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """`s (drop(x) Aᵀ) Bᵀ`."""
        return self.scale * linear(linear(self.dropout(x), self.lora_A), self.lora_B)

    def low_rank(self) -> LowRank:
        """The learned change of the weight."""
        return LowRank(self.lora_A.detach(), self.lora_B.detach(), self.scale)


class DoRALinear(LoRALinear):
    """`(m / ‖V‖) (x Wᵀ + s (drop(x) Aᵀ) Bᵀ) + b` with `V = W + s B A` (Liu et al. 2024, eq. 5).

    The magnitude m starts as the norms of the rows of W. In the gradient, `‖V‖` is a constant
    (§4.3).
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        super().__init__(layer, rank, alpha, dropout)
        self.magnitude = nn.Parameter(row_norms(layer.weight.detach()))

    def forward(self, input: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        with torch.no_grad():
            norms = divisors(self.weight + self.scale * (self.lora_B @ self.lora_A))
        y = (self.magnitude / norms) * (linear(input, self.weight) + self.change(input))
        return y if self.bias is None else y + self.bias  # pyright: ignore[reportUnnecessaryComparison]

    def low_rank(self) -> LowRank:
        plain = super().low_rank()
        return LowRank(plain.a, plain.b, plain.scale, self.magnitude.detach())


@config
class LowRankConfig(ABC):
    """The settings that LoRA and DoRA share."""

    rank: PositiveInt = 8
    """The rank of each change: the rows of A, and the columns of B."""
    alpha: PositiveFloat = 16.0
    """The change is multiplied by `alpha / rank`."""
    dropout: Probability = 0.0
    """The rate of dropout on the input of A."""
    targets: tuple[str, ...] = ()
    """Names of the layers to change, such as `q_proj`; by default all linear layers of attention
    and feed-forward (Dettmers et al. 2023, §4).
    """

    @abstractmethod
    def build(self, layer: nn.Linear) -> LoRALinear: ...


@config
class LoRAConfig(LowRankConfig):
    """Low-rank adaptation (Hu et al. 2021): `W + (α / rank) B A`, where A and B are learned."""

    kind: Literal["lora"] = "lora"

    def build(self, layer: nn.Linear) -> LoRALinear:
        return LoRALinear(layer, self.rank, self.alpha, self.dropout)


@config
class DoRAConfig(LowRankConfig):
    """Weight-decomposed low-rank adaptation (Liu et al. 2024): learns the norms of rows separately.

    `m (W + (α / rank) B A) / ‖W + (α / rank) B A‖`, where A, B and m are learned.
    """

    kind: Literal["dora"] = "dora"

    def build(self, layer: nn.Linear) -> DoRALinear:
        return DoRALinear(layer, self.rank, self.alpha, self.dropout)


AdapterConfig = Annotated[LoRAConfig | DoRAConfig, Field(discriminator="kind"), WORD]
"""Any kind of low-rank adaptation."""


@dataclass(frozen=True)
class Adapted:
    """A model changed by `adapt`, and its frozen weights."""

    model: nn.Module
    frozen: Sequence[Sequence[tuple[nn.Module, str]]]
    """The module and attribute of each frozen weight; a tied one has several."""

    def layers(self) -> dict[str, LoRALinear]:
        """The adapted layers by name."""
        modules = self.model.named_modules()
        return {name: layer for name, layer in modules if isinstance(layer, LoRALinear)}

    @property
    def others(self) -> dict[str, str]:
        """The sublayers of other kinds, which stay as they are: the first name of each class."""
        names: dict[str, str] = {}
        for name, module in self.model.named_modules():
            if getattr(module, "output_weights", ()) and not isinstance(module, MAPS):
                names.setdefault(type(module).__name__, name)
        return names

    @torch.no_grad()
    def merge(self) -> None:
        """Add every change to its matrix, in place, so that the model is a plain one again."""
        for places in self.frozen:
            parameter = nn.Parameter(getattr(*places[0]))
            for module, name in places:
                delattr(module, name)
                module.register_parameter(name, parameter)
        for name, layer in self.layers().items():
            plain = Linear(layer.in_features, layer.out_features, bias=False, device="meta")
            plain.weight = nn.Parameter(layer.low_rank().changed(layer.weight))
            plain.register_parameter("bias", layer.bias)
            plain.train(layer.training)
            parent, _, last = name.rpartition(".")
            setattr(self.model.get_submodule(parent), last, plain)


def adapt(model: nn.Module, config: AdapterConfig, new: Collection[str] = ()) -> Adapted:
    """Add learned low-rank changes to the linear layers of a model, and freeze all other weights.

    Weights named in `new`, such as those of a new head, are not adapted and are learned too. Frozen
    weights are no longer parameters, so that optimisers, checkpoints and averages contain only
    learned weights. Raises `InputError` for a target that the model does not have.
    """
    check_unshared(model, "train.adapter")
    chosen = [layer for layer in _chosen(model, config) if f"{layer[0]}.weight" not in new]
    if not chosen:
        raise InputError("train.adapter: all layers that it would change are new: leave it out")
    for _, parent, last, layer in chosen:
        adapted = config.build(layer)
        adapted.train(layer.training)
        setattr(parent, last, adapted)
    of_change = {"lora_A", "lora_B", "magnitude"}
    learned = {id(p) for n, p in model.named_parameters() if n in new}
    frozen: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in learned or (isinstance(module, LoRALinear) and name in of_change):
                continue
            frozen.setdefault(parameter, []).append((module, name))
    for parameter, places in frozen.items():
        for module, name in places:
            delattr(module, name)
            module.register_buffer(name, parameter.data, persistent=False)
    return Adapted(model, [*frozen.values()])


def _chosen(
    model: nn.Module, config: AdapterConfig
) -> Iterator[tuple[str, nn.Module, str, nn.Linear]]:
    """The name, parent, attribute and module of each layer to change."""
    layers = [
        (f"{path}.{last}", module, last, layer)
        for path, module in model.named_modules()
        if isinstance(module, MAPS)
        for last, layer in module.named_children()
        if isinstance(layer, nn.Linear)
    ]
    if not layers:
        raise InputError("train.adapter: this model has no attention or feed-forward to adapt")
    names = sorted({last for _, _, last, _ in layers})
    for target in config.targets:
        if target not in names:
            raise InputError(f"train.adapter.targets: no layer {target!r}.{choices(target, names)}")
    return (layer for layer in layers if not config.targets or layer[2] in config.targets)
