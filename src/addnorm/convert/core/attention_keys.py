"""Keys for rotary positions and sliding windows in `config.json`, current and older ones."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from warnings import warn

from addnorm.convert.core.family import ModelSpec, attention_of
from addnorm.convert.core.keys import Computed, Fields
from addnorm.convert.core.settings import Json, Settings
from addnorm.errors import IgnoredSettings, InputError
from addnorm.models import ModelConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import FullPatternConfig, PatternConfig, WindowPatternConfig
from addnorm.nn.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    PositionConfig,
    ProportionalScaling,
    RotaryConfig,
    ScalingConfig,
    YaRNScaling,
)
from addnorm.nn.positions.rotary import Layout
from addnorm.parts import kind_of

THETA = 10000.0
PARTIAL = "partial_rotary_factor"


def rope_table(settings: Settings) -> Settings:
    """`rope_parameters`, or the older `rope_scaling`, which takes precedence."""
    new, old = settings.table("rope_parameters"), settings.table("rope_scaling")
    table = old if old is not None and old.tree else new
    return Settings({}, settings.where) if table is None else table


def rotary_of(
    table: Settings, settings: Settings, theta: float, fraction: float | None = None
) -> RotaryConfig:
    """Rotary positions from a table of rope parameters; `theta` is the default base.

    Families without a `fraction` rotate whole heads.
    """
    # The name was "type" before it was "rope_type".
    key = "rope_type" if table.has("rope_type") else "type"
    scaling = table.choose(key, _SCALINGS, "default")
    table.get("type", "")
    table.get("finetuned", False)
    rotary = RotaryConfig(
        theta=table.get("rope_theta", theta),
        fraction=1.0 if fraction is None else fraction,
        scaling=None if scaling is None else scaling(table, _max_len(settings)),
    )
    if fraction is None:
        own_share = isinstance(rotary.scaling, ProportionalScaling)
        for where in (settings,) if own_share else (table, settings):
            _check_whole(where, rotary.scaling)
    table.check_all_read()
    return rotary


def _max_len(settings: Settings) -> int:
    return settings.required_int("max_position_embeddings")


def _check_whole(where: Settings, scaling: ScalingConfig | None) -> None:
    """Warn that a `partial_rotary_factor` is ignored, as transformers does for this model type.

    Raises `InputError` together with a scaling, for which transformers has frequencies for a part
    of the head and multiplies the whole head by them.
    """
    fraction = where.get("partial_rotary_factor", 1.0)
    if fraction == 1.0:
        return
    if scaling is not None:
        raise where.refuse(
            "partial_rotary_factor",
            "models of this type rotate whole heads, and scaled frequencies for a part do not fit",
        )
    warn(
        f"{where.where}: not followed: partial_rotary_factor = {fraction:g}: models of this "
        "type rotate whole heads (in transformers too)",
        IgnoredSettings,
        stacklevel=2,
    )


def write_rotary(position: PositionConfig) -> Json:
    """The rope parameters for rotary positions. Raises `InputError` for other positions."""
    if not isinstance(position, RotaryConfig):
        raise InputError(f"this family has rotary positions, not {kind_of(position)}")
    return {**_written(position.scaling), "rope_theta": position.theta}


def rope_keys(table: Json) -> Json:
    """The rope settings under both the current and the older keys."""
    old = {key: value for key, value in table.items() if key != "rope_theta"}
    return {
        "rope_parameters": table,
        "rope_theta": table["rope_theta"],
        "rope_scaling": None if old == {"rope_type": "default"} else old,
    }


@dataclass(frozen=True)
class RotaryKeys:
    """The keys for rotary positions.

    `theta` and `fraction` stand for absent keys; families without a `fraction` rotate whole heads.
    """

    theta: float = THETA
    fraction: float | None = None
    layout: Layout = "half"
    ignored: tuple[str, ...] = ()
    """Keys of the table without an effect on text."""

    def read(self, settings: Settings) -> Fields:
        table, fraction = rope_table(settings), self.fraction
        table.ignore(*self.ignored)
        theta = settings.get("rope_theta", self.theta)
        if fraction is not None:
            fraction = settings.get(PARTIAL, fraction)
            fraction = table.get(PARTIAL, fraction)
        rotary = rotary_of(table, settings, theta, fraction)
        return {"position": replace(rotary, layout=self.layout)}

    def write(self, spec: ModelSpec) -> Json:
        position = spec.model.position
        table = write_rotary(position)
        if self.fraction is None or not isinstance(position, RotaryConfig):
            return rope_keys(table)
        part = {PARTIAL: position.fraction}
        return {**rope_keys(table), "rope_parameters": table | part, **part}


ROTARY = RotaryKeys()
"""LLaMA's rotary positions, which rotate all features of a head."""

MAX_LEN = Computed(
    lambda settings: {"max_len": settings.required_int("max_position_embeddings")},
    lambda spec: {"max_position_embeddings": _max_position_embeddings(spec.model)},
)
"""The longest input, beyond which transformers scales dynamic positions."""


def _max_position_embeddings(model: ModelConfig) -> int:
    scaling = model.position.scaling if isinstance(model.position, RotaryConfig) else None
    return scaling.original_max_len if isinstance(scaling, DynamicScaling) else model.max_len


def _linear(table: Settings, max_len: int) -> LinearScaling:
    return LinearScaling(factor=_factor(table))


def _dynamic(table: Settings, max_len: int) -> DynamicScaling:
    table.expect("original_max_position_embeddings", None, max_len)
    return DynamicScaling(factor=_factor(table), original_max_len=max_len)


def _yarn(table: Settings, max_len: int) -> YaRNScaling:
    original = table.optional_int("original_max_position_embeddings") or max_len
    yarn = YaRNScaling(
        factor=table.optional_float("factor") or max_len / original,
        original_max_len=original,
        beta_fast=table.optional_float("beta_fast") or 32.0,
        beta_slow=table.optional_float("beta_slow") or 1.0,
        truncate=table.get("truncate", True),
    )
    given = _attention_factor(table, yarn.factor)
    if given is None or math.isclose(given, yarn.temperature):
        return yarn
    return replace(yarn, attention_factor=given)


def _attention_factor(table: Settings, factor: float) -> float | None:
    """The given factor, or DeepSeek-V2's ratio of two scales: `f(mscale) / f(all_dim)`.

    `f(m) = 0.1 m ln(s) + 1`; one scale without the other has no effect.
    """
    given = table.optional_float("attention_factor")
    mscale, all_dim = table.optional_float("mscale"), table.optional_float("mscale_all_dim")
    if given is not None or not (mscale and all_dim):
        return given
    scaled = 0.1 * math.log(factor)
    return (scaled * mscale + 1) / (scaled * all_dim + 1)


def _llama3(table: Settings, max_len: int) -> Llama3Scaling:
    return Llama3Scaling(
        factor=_factor(table),
        low_freq_factor=table.get("low_freq_factor", 1.0),
        high_freq_factor=table.get("high_freq_factor", 4.0),
        original_max_len=table.optional_int("original_max_position_embeddings") or max_len,
    )


def _longrope(table: Settings, max_len: int) -> LongRoPEScaling:
    original = table.optional_int("original_max_position_embeddings") or max_len
    factor = table.optional_float("factor") or max_len / original
    longer = factor > 1 and original > 1
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if longer else 1.0
    return LongRoPEScaling(
        short=table.numbers("short_factor"),
        long=table.numbers("long_factor"),
        original_max_len=original,
        attention_factor=table.optional_float("attention_factor") or default,
    )


def _proportional(table: Settings, max_len: int) -> ProportionalScaling:
    table.expect("factor", 1.0, 1)
    return ProportionalScaling(share=table.get(PARTIAL, 1.0))


_SCALINGS: dict[str, Callable[[Settings, int], ScalingConfig] | None] = {
    "default": None,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
}


def _factor(table: Settings) -> float:
    factor = table.optional_float("factor")
    if factor is None:
        raise InputError(f"{table.where}: factor is missing")
    return factor


def _written(scaling: ScalingConfig | None) -> Json:
    match scaling:
        case None:
            return {"rope_type": "default"}
        case LinearScaling() | DynamicScaling():
            return {"rope_type": scaling.kind, "factor": scaling.factor}
        case ProportionalScaling():
            return {"rope_type": "proportional", PARTIAL: scaling.share}
        case _:
            return _written_by_lengths(scaling)


def _written_by_lengths(scaling: ScalingConfig) -> Json:
    """The rope parameters for a scaling that depends on the text length."""
    match scaling:
        case YaRNScaling():
            written: Json = {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_max_len,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
            }
            if not scaling.truncate:
                written["truncate"] = False
            if scaling.attention_factor is not None:
                written["attention_factor"] = scaling.attention_factor
            return written
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_len,
            }
        case LongRoPEScaling():
            return {
                "rope_type": "longrope",
                "short_factor": list(scaling.short),
                "long_factor": list(scaling.long),
                "original_max_position_embeddings": scaling.original_max_len,
                "attention_factor": scaling.attention_factor,
            }
        case other:
            raise InputError(f"no family has {other.kind} scaling of rotary positions")


# Layers with windows and with full attention: the key `layer_types`.

FULL, SLIDING = "full_attention", "sliding_attention"


def read_layer_types(
    settings: Settings, n_layers: int, kinds: tuple[str, str] = (FULL, SLIDING)
) -> list[str] | None:
    """Read `layer_types`. Raises `InputError` for a wrong length or unknown types."""
    types = settings.string_list("layer_types")
    if types is None:
        return None
    if len(types) != n_layers:
        raise settings.refuse("layer_types", f"the model has {n_layers} layers")
    if unknown := set(types) - {*kinds}:
        wrong = f"{sorted(unknown)[0]} is neither {' nor '.join(kinds)}"
        raise settings.refuse("layer_types", wrong)
    return types


def pattern_for_layer_type(settings: Settings, kind: str, size: int | None) -> PatternConfig:
    """The attention pattern for a layer type."""
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


def cycle_of(layers: Iterable[LayerConfig]) -> Fields:
    """The repeating pattern of layers that may differ in any part; empty if all are equal."""
    cycle = shortest_cycle([*layers])
    return {"layer_pattern": () if cycle == (LayerConfig(),) else cycle}


def layers_of(layers: Iterable[LayerConfig]) -> Fields:
    """The repeating layer pattern of these layers; a pattern shared by all is set on the model."""
    cycle = shortest_cycle([*layers])
    if len(cycle) == 1 and cycle[0].position is None:
        return {"attention.pattern": cycle[0].pattern}
    return {"layer_pattern": cycle}


def read_windows(settings: Settings, types: Sequence[str], size: int | None) -> Fields:
    """The pattern of all layers, or a repeating layer pattern if they differ."""
    return layers_of(
        LayerConfig(pattern=pattern_for_layer_type(settings, kind, size)) for kind in types
    )


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


def rotary_by_type(
    settings: Settings, theta: float, local: float
) -> tuple[RotaryConfig, RotaryConfig]:
    """The positions for full-attention layers and for sliding-window layers.

    `theta` and `local` are their bases where the tables have none; an older `rope_scaling` is of
    the former alone.
    """
    tables, old = settings.table("rope_parameters"), settings.table("rope_scaling")
    full, sliding = (None if tables is None else tables.table(kind) for kind in (FULL, SLIDING))
    if tables is not None:
        tables.check_all_read()
    if old is not None and old.tree:
        if "rope_type" not in old.tree and "type" in old.tree:  # followed by some versions alone
            raise old.refuse("type", "for layers of two types, name it rope_type")
        full = Settings((full.tree if full else {}) | old.tree, old.where)
    nothing = Settings({}, settings.where)
    for table in filter(None, (full, sliding)):
        table.expect("truncate", True)  # which transformers reads outside of the tables alone
    return rotary_of(full or nothing, settings, theta), rotary_of(
        sliding or nothing, settings, local
    )


def layers_by_type(
    settings: Settings,
    types: Sequence[str],
    size: int | None,
    positions: tuple[RotaryConfig, RotaryConfig],
) -> Fields:
    """The layer pattern for full and sliding-window layers, each type with its positions."""
    rotary, local = positions
    layers = [
        LayerConfig(
            pattern=pattern_for_layer_type(settings, kind, size),
            position=local if kind == SLIDING else rotary,
        )
        for kind in types
    ]
    return {"position": rotary, "layer_pattern": shortest_cycle(layers)}


def write_rotary_by_type(model: ModelConfig, types: Sequence[str], local: float) -> dict[str, Json]:
    """The rope parameters for both types of layers; `local` is the base if no layer has one."""
    by_type: dict[str, Json] = {
        kind: write_rotary(layer.position)
        for kind, layer in zip(types, model.layers(model.n_layers), strict=True)
    }
    by_type.setdefault(FULL, write_rotary(model.position))
    by_type.setdefault(SLIDING, {"rope_type": "default", "rope_theta": local})
    return by_type


def one_window(missing: int | None = None) -> Computed:
    """The key for one window in all layers; `missing` is its value if absent."""

    def read(settings: Settings) -> Fields:
        return _one_window(settings, settings.optional_int("sliding_window", missing=missing))

    return Computed(read, lambda spec: {"sliding_window": write_windows(spec.model)[1]})


def _one_window(settings: Settings, size: int | None) -> Fields:
    kind = FULL if size is None else SLIDING
    return {"attention.pattern": pattern_for_layer_type(settings, kind, size)}


def _read_window_if_used(settings: Settings) -> Fields:
    size = settings.optional_int("sliding_window", missing=4096)
    return _one_window(settings, size if settings.get("use_sliding_window", False) else None)


def _write_window_if_used(spec: ModelSpec) -> Json:
    size = write_windows(spec.model)[1]
    return {"use_sliding_window": size is not None, "sliding_window": size}


WINDOW_IF_USED = Computed(_read_window_if_used, _write_window_if_used)
"""A window that all layers have where `use_sliding_window` says so."""
