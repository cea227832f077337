"""torch's optimisers without its compiler, whose import takes as long again as torch's own."""

from inspect import unwrap
from typing import Any, TypeVar, cast

import torch

T = TypeVar("T", bound=torch.optim.Optimizer)

SHIELDED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""The methods that torch wraps so that its compiler leaves them out."""


def without_compiler(optimizer: type[T]) -> type[T]:
    """Return the same optimiser, for use outside compiled graphs: it does not import the compiler.

    torch wraps methods of every optimiser to hide them from `torch.compile`, and imports the
    compiler for that where nothing is compiled. Here they are as they were written.
    """
    plain: dict[str, Any] = {name: unwrap(getattr(optimizer, name)) for name in SHIELDED}
    plain["step"] = torch.no_grad()(unwrap(optimizer.step))
    about = {name: getattr(optimizer, name) for name in ("__doc__", "__module__")}
    return cast(type[T], type(optimizer.__name__, (optimizer,), {**about, **plain}))


AdamW = without_compiler(torch.optim.AdamW)
Adadelta = without_compiler(torch.optim.Adadelta)
