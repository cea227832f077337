"""Converting sliding-window and full-attention layers from and to the `layer_types` key."""

from collections.abc import Sequence

from addnorm.convert.core.family import attention_of
from addnorm.convert.core.keys import Fields
from addnorm.convert.core.settings import Settings
from addnorm.errors import InputError
from addnorm.models import ModelConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import FullPatternConfig, PatternConfig, WindowPatternConfig
from addnorm.parts import kind_of

FULL, SLIDING = "full_attention", "sliding_attention"


def read_layer_types(settings: Settings, n_layers: int) -> list[str] | None:
    """Read `layer_types`. Raises `InputError` for a wrong length or unknown types."""
    types = settings.string_list("layer_types")
    if types is None:
        return None
    if len(types) != n_layers:
        raise settings.refuse("layer_types", f"the model has {n_layers} layers")
    if unknown := set(types) - {FULL, SLIDING}:
        raise settings.refuse("layer_types", f"{sorted(unknown)[0]} is neither full nor sliding")
    return types


def pattern_for_layer_type(settings: Settings, kind: str, size: int | None) -> PatternConfig:
    """The attention pattern of a layer type."""
    if kind == FULL:
        return FullPatternConfig()
    if size is None:
        raise settings.refuse("layer_types", "there is no sliding_window")
    return WindowPatternConfig(size=size)


def shortest_cycle(layers: Sequence[LayerConfig]) -> tuple[LayerConfig, ...]:
    """The shortest repeating layer pattern that yields these layers."""
    n = len(layers)
    for period in range(1, n):
        if all(layers[i] == layers[i % period] for i in range(n)):
            return tuple(layers[:period])
    return tuple(layers)


def read_windows(settings: Settings, types: Sequence[str], size: int | None) -> Fields:
    """The pattern of all layers, or a repeating layer pattern if they differ."""
    patterns = [pattern_for_layer_type(settings, kind, size) for kind in types]
    if all(pattern == patterns[0] for pattern in patterns):
        return {"attention.pattern": patterns[0]}
    layers = [LayerConfig(pattern=pattern) for pattern in patterns]
    return {"layer_pattern": shortest_cycle(layers)}


def write_windows(model: ModelConfig) -> tuple[list[str], int | None]:
    """Write `layer_types` and `sliding_window`. Raises `InputError` if they cannot express it."""
    types: list[str] = []
    sizes: set[int] = set()
    for layer in model.layers(model.n_layers):
        match attention_of(layer).pattern:
            case FullPatternConfig():
                types.append(FULL)
            case WindowPatternConfig(size=size):
                types.append(SLIDING)
                sizes.add(size)
            case other:
                raise InputError(f"this family has no {kind_of(other)} pattern of attention")
    if len(sizes) > 1:
        raise InputError(f"this family has one sliding window, not {sorted(sizes)}")
    return types, sizes.pop() if sizes else None
