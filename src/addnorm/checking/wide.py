"""transformers in float64 throughout, even where its code forces float32."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Wide(TorchFunctionMode):
    """A mode that uses float64 where float32 is named: in norms, rotary angles, softmax.

    A difference between two libraries is judged where rounding is out of the way.
    """

    def __enter__(self) -> "Wide":
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_default_dtype(self.default)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        func = Tensor.double if func == Tensor.float else func
        named = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **named)


def _wide(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument
