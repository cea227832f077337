"""Mixed precision: autocast, and loss scaling for float16."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from addnorm.errors import InputError
from addnorm.nn.linear import multiplies_natively

PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]

_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_precision(name: PrecisionName, device: torch.device) -> PrecisionName:
    """The precision with this name; "auto" is bfloat16 if the device multiplies it natively."""
    if name != "auto":
        return name
    return "bfloat16" if multiplies_natively(torch.bfloat16, device) else "float32"


def autocast(precision: PrecisionName, device: torch.device) -> AbstractContextManager[object]:
    """The autocast context of the forward pass; weights and optimiser state stay in float32.

    Raises `InputError` for float16 on a CPU.
    """
    if precision == "float16" and device.type == "cpu":
        raise InputError(
            "train.precision = 'float16' needs a GPU: on a CPU float16 products are hundreds of "
            "times slower than float32. Use 'bfloat16' or 'float32'."
        )
    precision = resolve_precision(precision, device)
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_TYPES[precision])


def loss_scaler(precision: PrecisionName, device: torch.device) -> torch.amp.GradScaler:
    """Dynamic loss scaling for float16 (Micikevicius et al. 2018, §3.2); a no-op otherwise."""
    return torch.amp.GradScaler(device.type, enabled=precision == "float16")


def resolve_device(name: str) -> torch.device:
    """The device with this name; "auto" selects a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("train.device = 'cuda', but torch sees no GPU here: use 'cpu' or 'auto'")
    return torch.device(name)
