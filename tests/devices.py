"""What a step must not do on a GPU: take tensors from the CPU, as no CUDA graph can."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class NothingFromTheCPU(TorchDispatchMode):
    """Raises where an operation reads or makes a tensor of the CPU; for `stand_in_device`."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                raise AssertionError(f"{func} has a tensor of the CPU")
        return result
