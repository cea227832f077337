"""Watching a model from outside: the attention weights of every core, caught by hooks."""

from collections.abc import Generator
from contextlib import contextmanager

from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.nn.attention import EagerCore, SDPACore


@contextmanager
def attention_weights(
    model: nn.Module,
) -> Generator[dict[str, Float[Tensor, "batch heads q_seq kv_seq"]]]:
    """The weights of each core's latest call, by the name of its attention module.

    They are computed from the queries and keys that the core received, by the reference core, so
    the model runs with its own kernels and its result does not change.
    """
    caught: dict[str, Tensor] = {}
    reference = EagerCore().eval()

    def watch(name: str, core: nn.Module) -> RemovableHandle:
        def catch(_: nn.Module, args: tuple[object, ...]) -> None:
            q, k, _v, *rest = args
            caught[name] = reference.weights(q, k, *rest).detach()  # pyright: ignore[reportArgumentType]

        return core.register_forward_pre_hook(catch)

    hooks = [
        watch(name.removesuffix(".core"), core)
        for name, core in model.named_modules()
        if isinstance(core, SDPACore | EagerCore)
    ]
    try:
        yield caught
    finally:
        for hook in hooks:
            hook.remove()
