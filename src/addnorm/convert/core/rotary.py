"""Rotary position settings in `config.json`, in current and older keys."""

import math
from collections.abc import Callable

from addnorm.convert.core.settings import Json, Settings
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    PositionConfig,
    RotaryConfig,
    ScalingConfig,
    YaRNScaling,
)
from addnorm.parts import kind_of

THETA = 10000.0


def read_rotary(settings: Settings) -> RotaryConfig:
    """LLaMA's rotary positions, which rotate all features of a head."""
    theta = settings.get("rope_theta", THETA)
    settings.expect("partial_rotary_factor", None, 1.0)
    table = rope_table(settings)
    table.expect("partial_rotary_factor", None, 1.0)
    return rotary_of(table, settings, theta)


def rope_table(settings: Settings) -> Settings:
    """`rope_parameters`, or the older `rope_scaling`, which goes first where both are there."""
    new, old = settings.table("rope_parameters"), settings.table("rope_scaling")
    found = old if old is not None and old.tree else new
    return Settings({}, settings.where) if found is None else found


def rotary_of(
    table: Settings, settings: Settings, theta: float, fraction: float = 1.0
) -> RotaryConfig:
    """Rotary positions from one table of rope parameters; `theta` stands where it has none."""
    # The name was "type" before it was "rope_type".
    key = "rope_type" if table.has("rope_type") else "type"
    scaling = table.choose(key, _SCALINGS, "default")
    max_len = settings.required_int("max_position_embeddings")
    table.get("type", "")
    table.get("finetuned", False)
    rotary = RotaryConfig(
        theta=table.get("rope_theta", theta),
        fraction=fraction,
        scaling=scaling(table, max_len),
    )
    table.check_all_read()
    return rotary


def write_rotary(position: PositionConfig) -> Json:
    """The table of rope parameters of these positions. Raises `InputError` for any other."""
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


def max_position_embeddings_of(model: DecoderConfig) -> int:
    """`max_position_embeddings`, from which transformers begins to scale dynamically."""
    scaling = model.position.scaling if isinstance(model.position, RotaryConfig) else None
    return scaling.original_max_len if isinstance(scaling, DynamicScaling) else model.max_len


def _default(table: Settings, max_len: int) -> None:
    return None


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
    )
    table.expect("truncate", True)
    table.expect("mscale", None)
    table.expect("mscale_all_dim", None)
    temperature = table.optional_float("attention_factor")
    if temperature is not None and not math.isclose(temperature, yarn.temperature):
        raise table.refuse("attention_factor", f"only {yarn.temperature}, which is 0.1 ln(s) + 1")
    return yarn


def _llama3(table: Settings, max_len: int) -> Llama3Scaling:
    return Llama3Scaling(
        factor=_factor(table),
        low_freq_factor=table.get("low_freq_factor", 1.0),
        high_freq_factor=table.get("high_freq_factor", 4.0),
        original_max_len=table.optional_int("original_max_position_embeddings") or max_len,
    )


_SCALINGS: dict[str, Callable[[Settings, int], ScalingConfig | None]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
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
        case YaRNScaling():
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_max_len,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
            }
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_len,
            }
        case other:
            raise InputError(f"no family has {other.kind} scaling of rotary positions")
