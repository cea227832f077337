"""Watching a model from outside: the weights that attention used, the experts of every token."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.errors import InputError
from addnorm.nn.attention.multihead import MultiHead, unfold_beams
from addnorm.nn.dropout import Dropout
from addnorm.nn.masks import Evaluated
from addnorm.nn.moe import MixtureOfExperts, route
from addnorm.nn.positions.position import Bias
from addnorm.nn.types import Keys, Queries


@runtime_checkable
class HasWeights(Protocol):
    """An attention core that shows the weights of its values."""

    def weights(
        self, q: Queries, k: Keys, mask: Evaluated, bias: Bias | None = None
    ) -> Float[Tensor, "batch heads q_seq kv_seq"]:
        """The weight of every key for every query."""
        ...


@contextmanager
def attention_weights(
    model: nn.Module,
) -> Generator[dict[str, Float[Tensor, "batch heads q_seq kv_seq"]]]:
    """Catch the attention weights of every layer's latest call, by the name of its module.

    The core itself is asked for them, `core.weights(q, k, mask, bias)`, with the queries and keys,
    mask and bias that it received; the model runs with its own kernels, and its result does not
    change. Where several rows share one memory, each row has weights of its own. Raises
    `InputError` naming a core that cannot show its weights, or drops some in training. What
    a hook makes of a core's output is not among them.
    """
    caught: dict[str, Tensor] = {}
    attentions = {
        name: module for name, module in model.named_modules() if isinstance(module, MultiHead)
    }
    for name, attention in attentions.items():
        _check_shows(f"{name}.core", attention.core)
    hooks = [hook for name, module in attentions.items() for hook in _watch(name, module, caught)]
    try:
        yield caught
    finally:
        for hook in hooks:
            hook.remove()


def _check_shows(name: str, core: nn.Module) -> None:
    """Raise `InputError` for a core whose `weights` are not, or may not be, those that it uses."""
    kind = type(core)
    defining = {
        method: next((one for one in kind.__mro__ if method in vars(one)), None)
        for method in ("forward", "weights")
    }
    if not isinstance(core, HasWeights) or defining["forward"] is not defining["weights"]:
        raise InputError(
            f"{name} ({kind.__name__}) does not show its weights: give it a method "
            "weights(q, k, mask, bias) beside its forward"
        )
    drops = getattr(core, "dropout", 0.0) or any(
        one.p for one in core.modules() if isinstance(one, Dropout)
    )
    if core.training and drops:
        raise InputError(f"{name} drops weights at random in training: call model.eval() first")


def _watch(name: str, attention: MultiHead, caught: dict[str, Tensor]) -> list[RemovableHandle]:
    core = attention.core
    assert isinstance(core, HasWeights)

    def catch(_: nn.Module, args: tuple[object, ...]) -> None:
        q, k, _v, *rest = args
        caught[name] = core.weights(q, k, *rest).detach()  # pyright: ignore[reportArgumentType]

    def unfold(_: nn.Module, _args: tuple[object, ...], out: Tensor) -> None:
        caught[name] = unfold_beams(caught[name], out.shape[0])

    before, after = attention.core.register_forward_pre_hook, attention.register_forward_hook
    return [before(catch), after(unfold)]


@contextmanager
def expert_gates(
    model: nn.Module,
) -> Generator[dict[str, tuple[Float[Tensor, "*tokens top_k"], Int[Tensor, "*tokens top_k"]]]]:
    """Catch the gates and the experts of every token, best first, by the name of each mixture."""
    caught: dict[str, tuple[Tensor, Tensor]] = {}

    def watch(name: str, mixture: MixtureOfExperts) -> RemovableHandle:
        def catch(_: nn.Module, _args: tuple[Tensor, ...], logits: Tensor) -> None:
            gates, chosen = route(logits.detach(), mixture.top_k)
            caught[name] = (gates, chosen)

        return mixture.router.register_forward_hook(catch)

    modules = model.named_modules()
    hooks = [watch(name, one) for name, one in modules if isinstance(one, MixtureOfExperts)]
    try:
        yield caught
    finally:
        for hook in hooks:
            hook.remove()
