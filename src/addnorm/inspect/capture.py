"""Recording attention weights and expert routing with forward hooks."""

from collections.abc import Generator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.errors import InputError
from addnorm.models.ledger import hooks_of
from addnorm.nn.attention.core import HasWeights
from addnorm.nn.attention.multihead import MultiHead, SelfAttention, unfold_beams
from addnorm.nn.dropout import Dropout
from addnorm.nn.moe import MixtureOfExperts, route


@contextmanager
def attention_weights(
    model: nn.Module,
) -> Generator[dict[str, Float[Tensor, "batch heads q_seq kv_seq"]]]:
    """Record the attention weights of every layer's latest forward pass, by module name.

    The core itself is asked for them, `core.weights(q, k, mask, bias)`, with the queries and keys,
    mask and bias that it received; the model runs with its own kernels, and its result does not
    change. Where several rows share one memory, each row has weights of its own. Raises
    `InputError` naming a core that cannot show its weights, or drops some in training, and a hook
    inside of a core or of its positions, which may change one of the two alone. What a hook makes
    of a core's output is not among them.
    """
    caught: dict[str, Tensor] = {}
    attentions = {
        name: module for name, module in model.named_modules() if isinstance(module, MultiHead)
    }
    for name, attention in attentions.items():
        _check_shows(f"{name}.core", attention.core)
        _check_hooks(name, attention)
    hooks = [hook for name, module in attentions.items() for hook in _watch(name, module, caught)]
    try:
        yield caught
    finally:
        for hook in hooks:
            hook.remove()


def _check_shows(name: str, core: nn.Module) -> None:
    """Raise `InputError` for a core whose `weights` may differ from those used in `forward`."""
    kind = type(core)
    defining = {
        method: next((one for one in kind.__mro__ if method in vars(one)), None)
        for method in ("forward", "weights")
    }
    beside = defining["forward"] is defining["weights"]
    if not isinstance(core, HasWeights) or not beside or _overrides(core, defining["forward"]):
        raise InputError(
            f"{name} ({kind.__name__}) does not show its weights: give it a method "
            "weights(q, k, mask, bias) beside its forward"
        )
    drops = getattr(core, "dropout", 0.0) or any(
        one.p for one in core.modules() if isinstance(one, Dropout)
    )
    if core.training and drops:
        raise InputError(f"{name} drops weights at random in training: call model.eval() first")


def _overrides(core: nn.Module, defining: type | None) -> list[str]:
    """The methods that a subclass or the instance itself puts in the place of the defining ones."""
    own = vars(core).keys() & {name for name in dir(type(core)) if callable(getattr(core, name))}
    below = takewhile(lambda one: one is not defining, type(core).__mro__)
    methods = (name for one in below for name, value in vars(one).items() if callable(value))
    return [
        *own,
        *(name for name in methods if not name.startswith("__") and name in dir(defining)),
    ]


def _check_hooks(name: str, attention: MultiHead) -> None:
    """Raise `InputError` for a hook below the core or the positions: kernels may pass it by."""
    inner = [(f"{name}.core.{path}", one) for path, one in attention.core.named_modules() if path]
    if isinstance(attention, SelfAttention):
        around = attention.position.named_modules()
        inner += [(f"{name}.position.{path}", one) for path, one in around if path]
    for path, module in inner:
        if found := hooks_of(module):
            shown = getattr(found[0], "__qualname__", repr(found[0]))
            raise InputError(
                f"{path} ({type(module).__name__}) has a forward hook, {shown}: the weights that "
                "are shown may not be those that are used. Remove it first"
            )


def _watch(name: str, attention: MultiHead, caught: dict[str, Tensor]) -> list[RemovableHandle]:
    core = attention.core
    assert isinstance(core, HasWeights)
    latest: list[Tensor] = []

    def catch(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any], _out: Tensor) -> None:
        _check_hooks(name, attention)  # one may have come since
        q, k, *rest = args[:2] + args[3:]
        given = {key: value for key, value in named.items() if key != "v"}
        latest[:] = [core.weights(q, k, *rest, **given).detach()]

    def unfold(_: nn.Module, _args: tuple[object, ...], out: Tensor) -> None:
        caught[name] = unfold_beams(latest[0], out.shape[0])

    # What the core received is known after it ran; several attentions may share one core.
    return [
        attention.core.register_forward_hook(catch, prepend=True, with_kwargs=True),
        attention.register_forward_hook(unfold, prepend=True),
    ]


@contextmanager
def expert_gates(
    model: nn.Module,
) -> Generator[dict[str, tuple[Float[Tensor, "*tokens top_k"], Int[Tensor, "*tokens top_k"]]]]:
    """Record the gates and experts of every token, best first, by the name of each mixture."""
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
