"""Adapter folders in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from addnorm.atomic import atomic_file, atomic_write, write_tensors
from addnorm.convert.weights.mapped import check_readable
from addnorm.errors import InputError
from addnorm.files import download_hint, read_json
from addnorm.nn.linear import LowRank

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
WHOLE_MODEL = ("model.safetensors", "model.safetensors.index.json")
PREFIX = "base_model.model."

# fmt: off
WITHOUT_EFFECT = {
    "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "task_type",
    "peft_version", "target_modules", "exclude_modules", "layers_to_transform",
    "layers_pattern", "modules_to_save", "bias", "lora_dropout", "fan_in_fan_out",
    "runtime_config", "megatron_config", "megatron_core", "eva_config", "corda_config",
    "loftq_config", "lora_ga_config", "qalora_group_size",
}
"""Ignored keys: about which tensors exist, which the file shows, and how training began."""

READ = {
    "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora",
    "init_lora_weights", "ensure_weight_tying",
}
"""Keys that decide what the tensors mean."""
# fmt: on

OF_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that also change the weights of the base, which are not in the file."""


@dataclass(frozen=True)
class PeftAdapter:
    """The low-rank changes of layers, and the tensors that replace those of the base, by name."""

    base: str
    layers: Mapping[str, LowRank]
    saved: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    stays_tied: bool = True
    """Whether a replacement of a tied tensor replaces both."""


def is_peft_folder(folder: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (folder / CONFIG).is_file()


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter but not its base model."""
    return is_peft_folder(folder) and not any((folder / name).is_file() for name in WHOLE_MODEL)


def name_of_base(folder: Path) -> str:
    """The name of the base model in an adapter's `adapter_config.json`."""
    return str(_settings(folder).get("base_model_name_or_path") or "")


def base_of(folder: Path) -> Path:
    """The folder of the base model. Raises `InputError` where it is not there."""
    named = name_of_base(folder)
    if not named or not Path(named).is_dir():
        raise InputError(
            f"{folder / CONFIG}: base_model_name_or_path = {named!r} is not a folder: write the "
            f"one of the model that the adapter was trained on.{download_hint(named)}"
        )
    return Path(named)


def read_peft(folder: Path) -> PeftAdapter:
    """Read an adapter.

    Raises `InputError` for a missing or damaged file, and for a key or a tensor that is not
    supported and would change the result.
    """
    settings = _settings(folder)
    _check(folder / CONFIG, settings)
    file = folder / TENSORS
    if not file.is_file():
        raise InputError(f"{file}: missing")
    try:
        tensors = load_file(file)
    except Exception as error:
        raise InputError(f"{file}: damaged or truncated: {error}") from error
    parts: dict[str, dict[str, Tensor]] = {}
    saved: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        check_readable(file, key, tensor.dtype)
        name = key.removeprefix(PREFIX)
        module, mark, part = name.partition(".lora_")
        if not mark:
            saved[name.replace(".base_layer.", ".")] = tensor
            continue
        part = part.removesuffix(".weight")
        if part not in ("A", "B", "magnitude_vector"):
            raise InputError(f"{file}: {key} is not supported: no tensor of LoRA or DoRA")
        parts.setdefault(module, {})[part] = tensor
    layers = {name: _low_rank(file, name, factors, settings) for name, factors in parts.items()}
    base, tied = settings.get("base_model_name_or_path"), settings.get("ensure_weight_tying")
    return PeftAdapter(str(base or ""), layers, saved, stays_tied=bool(tied))


def write_peft(folder: Path, adapter: PeftAdapter, *, transposed: bool = False) -> None:
    """Write an adapter; `transposed` if the base stores matrices as (in, out), like GPT-2."""
    tensors: dict[str, Tensor] = {}
    for name, change in adapter.layers.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = change.a
        tensors[f"{PREFIX}{name}.lora_B.weight"] = change.b
        if change.magnitude is not None:
            tensors[f"{PREFIX}{name}.lora_magnitude_vector"] = change.magnitude
    tensors |= {f"{PREFIX}{name}": tensor for name, tensor in adapter.saved.items()}
    ranks = {name: change.a.shape[0] for name, change in adapter.layers.items()}
    alphas = {name: change.scale * ranks[name] for name, change in adapter.layers.items()}
    rank, alpha = min(ranks.values()), min(alphas.values())
    modules = sorted({name.rpartition(".")[0] for name in adapter.saved})
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": adapter.base,
        "r": rank,
        "lora_alpha": _as_integer(alpha),
        "rank_pattern": {name: n for name, n in ranks.items() if n != rank},
        "alpha_pattern": {name: _as_integer(x) for name, x in alphas.items() if x != alpha},
        "target_modules": sorted(adapter.layers),
        "modules_to_save": modules or None,
        "ensure_weight_tying": bool(modules) and adapter.stays_tied,
        "use_dora": any(change.magnitude is not None for change in adapter.layers.values()),
        "use_rslora": False,
        "fan_in_fan_out": transposed,
        "bias": "none",
        "lora_dropout": 0.0,
        "init_lora_weights": True,
        "inference_mode": True,
        "task_type": None,
    }
    with atomic_file(folder / TENSORS) as partial:
        write_tensors(partial, tensors, {"format": "pt"})
    atomic_write(folder / CONFIG, json.dumps(settings, indent=1))


def _as_integer(x: float) -> float:
    return int(x) if float(x).is_integer() else x


def _settings(folder: Path) -> dict[str, Any]:
    settings = read_json(folder / CONFIG)
    if not isinstance(settings, dict):
        raise InputError(f"{folder / CONFIG}: damaged: not a table")
    return settings


def _check(file: Path, settings: Mapping[str, Any]) -> None:
    if settings.get("peft_type") != "LORA":
        raise InputError(
            f"{file}: peft_type = {settings.get('peft_type')!r} is not supported: LORA"
        )
    for key, value in settings.items():
        if key not in WITHOUT_EFFECT | READ and value not in (None, False, [], {}, ""):
            raise InputError(f"{file}: {key} = {value!r} is not supported")
    initialisation = settings.get("init_lora_weights", True)
    if isinstance(initialisation, str) and initialisation.lower().startswith(OF_THE_BASE):
        raise InputError(
            f"{file}: init_lora_weights = {initialisation!r} also changed the weights of the "
            "base, which are not in the adapter"
        )


def _low_rank(
    file: Path, name: str, parts: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> LowRank:
    if not {"A", "B"} <= parts.keys():
        raise InputError(f"{file}: {name} lacks lora_A or lora_B")
    a, b = parts["A"], parts["B"]
    rank = _of_pattern(settings.get("rank_pattern"), name, settings.get("r"))
    alpha = _of_pattern(settings.get("alpha_pattern"), name, settings.get("lora_alpha", 8))
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1] or a.shape[0] != rank:
        raise InputError(
            f"{file}: {name} has lora_A {tuple(a.shape)} and lora_B {tuple(b.shape)}, and its rank "
            f"is {rank}"
        )
    magnitude = parts.get("magnitude_vector")
    if (magnitude is not None) != bool(settings.get("use_dora")):
        raise InputError(f"{file}: use_dora and the magnitudes of {name} do not go together")
    root = settings.get("use_rslora", False)
    scale = float(alpha) / (rank**0.5 if root else rank)
    return LowRank(a, b, scale, None if magnitude is None else magnitude.flatten())


def _of_pattern(pattern: Any, name: str, default: Any) -> Any:
    """The value for the first key with which a layer's name ends, as in PEFT, or `default`."""
    for key, value in (pattern or {}).items():
        if re.match(rf"(.*\.)?({key})$", name):
            return value
    return default
