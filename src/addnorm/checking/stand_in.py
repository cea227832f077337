"""A device with real numbers that stands in for a GPU, on every machine.

The device of its tensors is the meta device, while the CPU computes their numbers. So loops
that read numbers, such as training and writing, run to their end, and their results can be compared
with those of the CPU; a tensor of the CPU among those of the device is an error, as on a GPU. Only
a number without dimensions may be combined with them.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from addnorm.nn.positions.position import Position

THERE = torch.device("meta")

_MADE_FROM_NUMBERS = (torch.tensor, torch.as_tensor, Tensor.new_tensor)
_COPIES = (torch.ops.aten.copy_.default,)

M = TypeVar("M", bound=nn.Module)


class StandIn(Tensor):
    """A tensor on the device; `held` contains its numbers."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @staticmethod
    def __new__(cls: type["StandIn"], held: Tensor) -> "StandIn":
        with torch.inference_mode(False):
            wrapper: Any = Tensor._make_wrapper_subclass(  # pyright: ignore
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=THERE,
            )
        return wrapper

    def __init__(self, held: Tensor) -> None:
        super().__init__()
        self.held = held

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _computed(func, args, kwargs or {})


@contextmanager
def stand_in_device() -> Generator[None]:
    """In this context, tensors on the meta device are stand-ins with numbers."""
    with _FromNumbers(), _Operations():
        yield


def moved(model: M) -> M:
    """Move a model to the device in place; only within `stand_in_device`."""
    done = dict[int, Tensor]()
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):  # pyright: ignore
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = done.setdefault(id(tensor), _there(tensor))  # pyright: ignore
        if isinstance(module, Position):  # its constants follow it
            for name, value in vars(module).items():
                if isinstance(value, Tensor):
                    setattr(module, name, _there(value))
    return model


def numbers(x: Tensor) -> Tensor:
    """Return the numbers in a tensor on the device."""
    assert isinstance(x, StandIn), "a tensor of the CPU"
    return x.held.detach()


def _there(tensor: Tensor) -> Tensor:
    copy = StandIn(tensor.detach().clone())
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, requires_grad=tensor.requires_grad)
    return copy


class _FromNumbers(TorchFunctionMode):
    """Makes tensors from Python numbers, and numbers from tensors: torch dispatches neither."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.tolist and isinstance(args[0], StandIn):
            return args[0].held.tolist()
        if func in _MADE_FROM_NUMBERS:
            first, device = args[0], kwargs.pop("device", None)
            if func is Tensor.new_tensor:
                args, device = args[1:], device or first.device
                kwargs.setdefault("dtype", first.dtype)
            tensor = torch.tensor(*args, **kwargs)
            return tensor if device is None else tensor.to(device)
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):
    """A mode that turns new tensors of the device into stand-ins."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation on the CPU; the results are on the device of `device=` or the inputs."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, StandIn)]
    if there and func not in _COPIES and (of_cpu := [x for x in tensors if _is_of_cpu(x)]):
        raise RuntimeError(
            f"{func}: a tensor of the CPU, {tuple(of_cpu[0].shape)}, among those of the device"
        )
    if torch.Tag.inplace_view in func.tags:  # changes shapes and strides of the stand-in itself
        with no_dispatch():
            func(*args, **kwargs)
    args, kwargs = tree_map(lambda x: x.held if isinstance(x, StandIn) else x, (args, kwargs))
    device = kwargs.get("device")
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    out = func(*args, **kwargs)
    if (device is None and not there) or (device is not None and torch.device(device) != THERE):
        return out
    before = {id(x.held): x for x in there}  # a tensor changed in place stays the same one

    def on_device(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return before[id(x)] if id(x) in before else StandIn(x)

    return tree_map(on_device, out)


def _is_of_cpu(x: Tensor) -> bool:
    return not isinstance(x, StandIn) and x.ndim > 0
