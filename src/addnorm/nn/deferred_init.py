"""Building a model without memory for its weights; each weight is then drawn on demand.

A model that one process cannot hold is split among several; to draw its weights as one process
would, one is drawn at a time, from where the generator of random numbers stood.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, wrap_torch_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ModelT = TypeVar("ModelT", bound=nn.Module)
InitialWeight = Callable[[nn.Parameter], Tensor]
"""Returns the value with which a weight begins."""


def deferred_init(build: Callable[[], ModelT]) -> tuple[ModelT, InitialWeight]:
    """Build a model without memory for its weights; return it and a function that draws them.

    The weights, and the state of torch's generator afterwards, are those of `build()` to the bit.
    """
    recorder = _Recorder()
    with torch.device("meta"), recorder, _Values(recorder):
        model = build()
    meta = dict[nn.Parameter, Tensor]()
    new = dict[int, Any]()
    for module in model.modules():
        for tensors in (vars(module)["_parameters"], vars(module)["_buffers"], vars(module)):
            for name, tensor in tensors.items():
                if isinstance(tensor, Tensor) and tensor.is_meta:
                    if id(tensor) not in new:
                        new[id(tensor)] = _real(tensor, recorder)
                        meta[new[id(tensor)]] = tensor
                    tensors[name] = new[id(tensor)]
    return model, lambda parameter: recorder.value(meta[parameter])


def changed(
    model: nn.Module, initial: InitialWeight, change: Callable[[str, Tensor], object]
) -> InitialWeight:
    """What draws each weight of a model and then lets `change` set values of it, by its name.

    Buffers, which have their values, are changed at once.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    for name, buffer in model.named_buffers():
        change(name, buffer)

    def draw(parameter: nn.Parameter) -> Tensor:
        weight = initial(parameter)
        change(names[parameter], weight)
        return weight

    return draw


def _real(tensor: Tensor, recorder: "_Recorder") -> Tensor:
    """The real value of a tensor: a parameter without memory, or the value of any other tensor."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(without_memory(tensor, device="cpu"), tensor.requires_grad)
    return recorder.value(tensor)


def without_memory(tensor: Tensor, device: torch.device | str | None = None) -> Tensor:
    """A tensor of this shape and type, all of whose values are one NaN, or zero."""
    value = float("nan") if tensor.is_floating_point() else 0
    return torch.full((), value, dtype=tensor.dtype, device=device or tensor.device).expand(
        tensor.shape
    )


@wrap_torch_function(lambda weight, std, most=2.0: (weight,))
def truncated_normal_(weight: Tensor, std: float, most: float = 2.0) -> Tensor:
    """Fill a weight with normal numbers that lie between `-most` and `most`.

    torch draws some of them again, and leaves a tensor on the meta device alone; here they are
    drawn by one function, which is recorded.
    """
    return nn.init.trunc_normal_(weight, std=std, a=-most, b=most)


class _Values(TorchFunctionMode):
    """Keep the values of `torch.tensor`, which the meta device would drop, and record draws."""

    def __init__(self, recorder: "_Recorder") -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") is None:
            return func(*args, **{**kwargs, "device": "cpu"}).to("meta")
        if func is truncated_normal_:
            return self.recorder.called(func, args, kwargs, draws=True)
        return func(*args, **kwargs)


@dataclass(frozen=True)
class _Call:
    """A recorded call of a torch function, with the generator's state if the call draws numbers."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    generator: Tensor | None


class _Recorder(TorchDispatchMode):
    """Records how tensors on the meta device get their values."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = list[_Call]()
        self._of_storage = dict[int, list[int]]()
        """The numbers of the calls that return a tensor with this storage."""
        self._scratch = torch.UntypedStorage(0)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        draws = torch.Tag.nondeterministic_seeded in func.tags
        return self.called(func, args, kwargs or {}, draws=draws)

    def called(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, draws: bool
    ) -> Any:
        """Make a call, record it, and return its result."""
        generator = torch.get_rng_state() if draws else None
        result = self._drawn(func, args, kwargs) if draws else func(*args, **kwargs)
        tensors = [tensor for tensor in _tensors(result) if tensor.is_meta]
        for tensor in tensors:
            self._of_storage.setdefault(_storage(tensor), []).append(len(self.calls))
        if tensors:
            self.calls.append(_Call(func, args, kwargs, result, generator))
        return result

    def _drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result on the meta device; the numbers are drawn in real memory and then dropped."""
        replay = _Replay()
        if args and isinstance(args[0], Tensor) and args[0].is_meta:
            replay.place(args[0], self._scratch_of(args[0]))
        real_args, real_kwargs = replay.arguments(args, kwargs)
        drawn = func(*real_args, **real_kwargs)
        if real_args and drawn is real_args[0]:  # in place
            return args[0]
        device = kwargs.get("device") or (args[0].device if args else drawn.device)
        return drawn if device == drawn.device else torch.empty_like(drawn, device=device)

    def _scratch_of(self, tensor: Tensor) -> torch.UntypedStorage:
        """One scratch memory for all tensors, since separate ones would fragment memory."""
        n = tensor.untyped_storage().nbytes()
        if self._scratch.nbytes() < n:
            self._scratch.resize_(n)
        return self._scratch

    def value(self, tensor: Tensor) -> Tensor:
        """The value of a tensor, computed by only those recorded calls that it depends on."""
        chosen, seen, reads = set[int](), set[int](), [_storage(tensor)]
        while reads:
            if (storage := reads.pop()) in seen:
                continue
            seen.add(storage)
            for number in self._of_storage.get(storage, ()):
                call = self.calls[number]
                chosen.add(number)
                reads += map(_storage, _tensors((call.args, call.kwargs)))
        after, replay = torch.get_rng_state(), _Replay()
        for number in sorted(chosen):
            replay.repeat(self.calls[number])
        torch.set_rng_state(after)
        return replay.real(tensor.detach())


class _Replay:
    """The recorded calls made again with real tensors."""

    def __init__(self) -> None:
        self._storages = dict[int, torch.UntypedStorage]()

    def place(self, tensor: Tensor, storage: torch.UntypedStorage) -> None:
        """Give a tensor on the meta device this storage, unless it has one."""
        self._storages.setdefault(_storage(tensor), storage)

    def repeat(self, call: _Call) -> None:
        """Make a call again, from the same state of the generator."""
        if call.generator is not None:
            torch.set_rng_state(call.generator)
        args, kwargs = self.arguments(call.args, call.kwargs)
        result = call.function(*args, **kwargs)
        for meta, real in zip(_tensors(call.result), _tensors(result), strict=True):
            self.place(meta, real.untyped_storage())

    def arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with real tensors."""
        real_args, real_kwargs = tree_map(self.real, (args, dict(kwargs)))
        if "device" in kwargs:
            real_kwargs["device"] = torch.device("cpu")
        return real_args, real_kwargs

    def real(self, tensor: Any) -> Any:
        """The real tensor in place of one on the meta device; with new memory if it has none."""
        if not (isinstance(tensor, Tensor) and tensor.is_meta):
            return tensor
        storage = self._storages.get(_storage(tensor))
        if storage is None:
            size, stride = tensor.shape, tensor.stride()
            return torch.empty_strided(size, stride, dtype=tensor.dtype, device="cpu")
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype, device="cpu").set_(storage, *place)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    """The identity of a tensor's storage, also of one without memory."""
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
