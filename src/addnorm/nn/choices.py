"""The choice between equivalent kernels, where the fastest depends on the processor.

All kernels of a choice compute the same function, up to rounding. `choices()` returns those in
force: given by `use_choices`, else by the installed provider, else `DEFAULTS`. Importing
`addnorm.models` installs the provider that measures this machine (`addnorm.tuning`); `addnorm.nn`
alone measures nothing.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter
from torch import Tensor, nn
from torch.autograd import forward_ad

from addnorm.config import config

UNLIMITED = 2**62


@config
class KernelChoices:
    """The choice of kernels for a CPU; the defaults are right on most processors."""

    product: Literal["torch", "onednn", "operator"] = "torch"
    """What multiplies float32 matrices: torch's own choice (MKL), oneDNN, or the operator in
    `kernels`.
    """
    bfloat16_product: Literal["torch", "operator"] = "torch"
    """What multiplies matrices under bfloat16 autocast: torch (oneDNN), or the operator."""
    bias: Literal["torch", "fused"] = "torch"
    """Where products of bfloat16 get their bias: in a separate pass (`torch`), or in the product.

    A compiler always adds it in the loop that follows the product.
    """
    few_queries: NonNegativeInt = 8
    """Number of queries up to which float32 attention is computed by plain products."""
    short_keys: NonNegativeInt = 1024
    """Number of keys up to which attention trains by plain products under bfloat16 autocast.

    They round scores to bfloat16, as autocast does with all products.
    """
    many_scores: NonNegativeInt = 2**22
    """Number of scores above which plain products in bfloat16 are computed in blocks."""
    logits_at_once: PositiveInt = 2**22
    """Number of logits that the loss of a vocabulary materialises at once."""
    attention: Literal["torch", "operator"] = "torch"
    """What computes the gradient of attention in bfloat16: torch, or the operator in `kernels`."""
    attention_forward: Literal["torch", "operator"] = "torch"
    """What computes the output of attention in bfloat16 where the operator computes its gradient:
    torch, or another operator.
    """
    causal_attention: Literal["torch", "operator"] = "torch"
    """What computes causal attention and its gradient in float32, with 64 to 512 keys: torch, or
    the operator in `kernels`.
    """
    activation: Literal["torch", "operator"] = "torch"
    """What computes GELU by tanh, squared ReLU and gates: torch, or the operator in `kernels`."""
    cross_entropy: Literal["torch", "operator"] = "torch"
    """What computes the loss of classes with its gradient: torch, or the operator in `kernels`."""
    add_norm: Literal["torch", "operator"] = "torch"
    """What computes dropout, sum and norm of post-norm sublayers: torch, or the operator in
    `kernels`, whose masks are others.
    """
    keep_pages: bool = True
    """Whether memory that a training step frees is kept for the next one."""


DEFAULTS = KernelChoices()
"""The choices without a provider, on other devices, and where a graph is built."""

CHOICES = TypeAdapter(KernelChoices)


class _InThread(threading.local):
    """The choices that `use_choices` set, separate for each thread.

    The attribute is set by `__init__`, since a compiler guards attributes of objects but not the
    defaults of a class, and does not trace a `ContextVar`.
    """

    def __init__(self) -> None:
        self.chosen: KernelChoices | None = None


_here = _InThread()
_provider: Callable[[], KernelChoices] | None = None
_of_machine: dict[int, KernelChoices] = {}
"""The provider's choices in this process, by the number of threads."""
_newest = DEFAULTS
"""The last of these, for a compiler, which does not trace the number of threads."""
_asking = threading.Lock()


def install_provider(provider: Callable[[], KernelChoices] | None) -> None:
    """Take the choices of this machine from `provider`, called once for each number of threads.

    With None, the defaults hold.
    """
    global _provider, _newest
    _provider, _newest = provider, DEFAULTS
    _of_machine.clear()


def choices() -> KernelChoices:
    """The choices in force in this thread.

    A compiler that traces a model before the provider was called gets the defaults.
    """
    if _here.chosen is not None:
        return _here.chosen
    if torch.compiler.is_compiling():
        return _newest
    of_machine = _of_machine.get(torch.get_num_threads())
    return _of_provider() if of_machine is None else of_machine


def _of_provider() -> KernelChoices:
    global _newest
    if _provider is None:
        return DEFAULTS
    threads = torch.get_num_threads()
    with _asking:
        if threads not in _of_machine:
            _of_machine[threads] = _newest = _provider()
    return _of_machine[threads]


def given_in_thread() -> KernelChoices | None:
    """The choices that `use_choices` set in this thread; None outside of it."""
    return _here.chosen


@contextmanager
def use_choices(chosen: KernelChoices | None) -> Generator[None]:
    """Use these choices within the block; with None, those of the provider.

    They hold in the thread that entered the block. Backward passes need none: on a CPU, whose
    kernels these are, they run in the thread that asked for them, by the kernels of the forward.
    An operator is used only once it is loaded (`kernels.build.load_operator`).
    """
    before, _here.chosen = _here.chosen, chosen
    try:
        yield
    finally:
        _here.chosen = before


def takes_operators(*tensors: Tensor) -> bool:
    """Whether an operator of ours may compute with these, which nothing exports or transforms.

    They are plain tensors in the memory of a CPU: no fake one, nor a part of one, nor a sparse one.
    """
    if torch.compiler.is_exporting() or transformed():
        return False
    plain = all(
        type(x) in (Tensor, nn.Parameter) and x.is_cpu and x.layout is torch.strided
        for x in tensors
    )
    if torch.compiler.is_compiling():  # which knows no others, and does not trace what follows
        return plain
    return plain and not any(x.is_nested or x.is_neg() for x in tensors)


def transformed() -> bool:
    """Whether something is active that only torch's own kernels support.

    That is `torch.func`, forward mode, `torch.jit.trace`, or a mode that sees every operation, such
    as a counter of their cost.
    """
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:  # pyright: ignore[reportPrivateUsage]
        return True
    if torch.compiler.is_compiling():
        return False
    seen = torch._C._len_torch_dispatch_stack() > 0  # pyright: ignore[reportPrivateUsage]
    return seen or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def is_intercepted(module: nn.Module) -> bool:
    """Whether a call does more than the class says: a hook, or a forward of this module alone."""
    return bool(
        module._forward_hooks  # pyright: ignore[reportPrivateUsage]
        or module._forward_pre_hooks  # pyright: ignore[reportPrivateUsage]
        or module._backward_hooks  # pyright: ignore[reportPrivateUsage]
        or module._backward_pre_hooks  # pyright: ignore[reportPrivateUsage]
        or "forward" in vars(module)
        or torch.nn.modules.module._has_any_global_hook()  # pyright: ignore[reportPrivateUsage]
    )
