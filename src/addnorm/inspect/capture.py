"""Recording attention weights and expert routing with forward hooks."""

import copy
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from typing import Any, TypeVar

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.errors import InputError
from addnorm.models.ledger import hooks_of
from addnorm.nn.attention.core import HasWeights
from addnorm.nn.attention.cross_layer import CrossLayerAttention
from addnorm.nn.attention.multihead import Attending, SelfAttention, unfold_beams
from addnorm.nn.dropout import Dropout
from addnorm.nn.moe import MixtureOfExperts

M = TypeVar("M", bound=nn.Module)


def sharing_weights(model: M) -> M:
    """Return a copy of a model with the same tensors: hooks on it do not reach the model.

    So one may look at a model that other threads use at the same time.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)  # pyright: ignore[reportArgumentType]


@contextmanager
def attention_weights(
    model: nn.Module,
) -> Generator[dict[str, Float[Tensor, "batch heads q_seq kv_seq"]]]:
    """Record the attention weights of every layer's latest forward pass, by module name.

    They are those of the core itself, `core.weights(q, k, mask, bias)`, for the queries and keys,
    mask and bias that it received; the model runs with its own kernels, and its result does not
    change. If several rows share one memory, each row has its own weights. The changes that a hook
    makes to a core's output are not included. Raises `InputError` naming a core that cannot show
    its weights, or drops some in training, and a hook inside a core or its positions, which may
    change the output and not the weights, or the reverse.
    """
    weights: dict[str, Tensor] = {}
    attentions = {
        name: module for name, module in model.named_modules() if isinstance(module, Attending)
    }
    for name, attention in attentions.items():
        _check_shows(f"{name}.core", attention.core)
        _check_hooks(name, attention)
    with ExitStack() as hooks:
        for name, attention in attentions.items():
            for handle in _record(name, attention, weights):
                hooks.enter_context(handle)
        yield weights


def _check_shows(name: str, core: nn.Module) -> None:
    """Raise `InputError` for a core whose `weights` may differ from those in `forward`."""
    kind = type(core)
    forward, weights = (
        next((base for base in kind.__mro__ if method in vars(base)), None)
        for method in ("forward", "weights")
    )
    if not isinstance(core, HasWeights) or forward is not weights or _overrides(core, forward):
        raise InputError(
            f"{name} ({kind.__name__}) does not show its weights: give the class that defines its "
            "forward a method weights(q, k, mask, bias)"
        )
    drops = getattr(core, "dropout", 0.0) or any(
        module.p for module in core.modules() if isinstance(module, Dropout)
    )
    if core.training and drops:
        raise InputError(f"{name} drops weights at random in training: call model.eval() first")


def _overrides(core: nn.Module, defining: type | None) -> list[str]:
    """The methods of the defining class that a subclass or the instance overrides."""
    of_instance = vars(core).keys() & {m for m in dir(type(core)) if callable(getattr(core, m))}
    subclasses = takewhile(lambda kind: kind is not defining, type(core).__mro__)
    methods = (name for kind in subclasses for name, value in vars(kind).items() if callable(value))
    of_subclasses = (m for m in methods if not m.startswith("__") and m in dir(defining))
    return [*of_instance, *of_subclasses]


def _check_hooks(name: str, attention: Attending) -> None:
    """Raise `InputError` for a hook inside the core or positions, which kernels may skip."""
    parts = {"core": attention.core}
    if isinstance(attention, SelfAttention | CrossLayerAttention):
        parts["position"] = attention.position
    for part, whole in parts.items():
        for path, module in whole.named_modules():
            if path and (hooks := hooks_of(module)):
                shown = getattr(hooks[0], "__qualname__", repr(hooks[0]))
                raise InputError(
                    f"{name}.{part}.{path} ({type(module).__name__}) has a forward hook, {shown}: "
                    "the weights that are shown may not be those that are used. Remove it first"
                )


def _record(name: str, attention: Attending, weights: dict[str, Tensor]) -> list[RemovableHandle]:
    core = attention.core
    assert isinstance(core, HasWeights)
    latest: list[Tensor] = []

    def after_core(
        _: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], _out: Tensor
    ) -> None:
        _check_hooks(name, attention)  # which may have been added since
        q, k, *rest = args[:2] + args[3:]
        keywords = {key: value for key, value in keywords.items() if key != "v"}
        latest[:] = [core.weights(q, k, *rest, **keywords).detach()]

    def after_attention(_: nn.Module, _args: tuple[object, ...], out: Tensor) -> None:
        weights[name] = unfold_beams(latest[0], out.shape[0])

    # Several attentions may share one core, so the weights get their name after the attention.
    return [
        attention.core.register_forward_hook(after_core, prepend=True, with_kwargs=True),
        attention.register_forward_hook(after_attention, prepend=True),
    ]


@contextmanager
def expert_gates(
    model: nn.Module,
) -> Generator[dict[str, tuple[Float[Tensor, "*tokens top_k"], Int[Tensor, "*tokens top_k"]]]]:
    """Record the gates and experts of every token, best first, by the name of each mixture."""
    gates: dict[str, tuple[Tensor, Tensor]] = {}

    def record(name: str, mixture: MixtureOfExperts) -> RemovableHandle:
        def hook(_: nn.Module, _args: tuple[Tensor, ...], logits: Tensor) -> None:
            gates[name] = mixture.router.route(logits.detach())

        return mixture.router.register_forward_hook(hook)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, MixtureOfExperts):
                hooks.enter_context(record(name, module))
        yield gates
