"""RMS of the residual stream and of sublayer outputs by layer, and their gradient norms."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.models import DecoderModel, EncoderDecoderModel, Model
from addnorm.nn.blocks import Stack
from addnorm.nn.functional import at_least_float32

SUBLAYERS = ("attention", "cross_attention", "feedforward")
"""The sublayers of a block by name; other mixers take the place of attention."""

ByLayer = Mapping[str, list[float]]
"""A number for each layer, keyed by "stream" or the name of a sublayer."""


@dataclass(frozen=True)
class Tower:
    """A stack of a model with its embedding; in a causal one no token sees those after it."""

    embed: nn.Module
    stack: Stack
    causal: bool


def towers_of(model: Model) -> dict[str, Tower]:
    """The stacks of a model, by the names that their modules have in it."""
    if isinstance(model, EncoderDecoderModel):
        return {
            "encoder": Tower(model.source_embed, model.encoder, causal=False),
            "decoder": Tower(model.target_embed, model.decoder, causal=True),
        }
    return {"stack": Tower(model.embed, model.stack, causal=isinstance(model, DecoderModel))}


@dataclass(frozen=True)
class LayerStates:
    """The residual stream before each layer and after the last, and the sublayer outputs."""

    stream: list[Tensor] = field(default_factory=list[Tensor])
    outputs: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])

    def sizes(self) -> ByLayer:
        """The root mean square of each."""
        found = {"stream": self.stream, **self.outputs}
        return {name: [rms(x) for x in states] for name, states in found.items()}


@contextmanager
def layer_states(model: Model) -> Generator[dict[str, LayerStates]]:
    """Record the residual stream and sublayer outputs of each stack in one forward pass.

    The output of a sublayer is that of attention (or of what stands there) and of the feed-forward
    itself, before the dropout or the norm that a placement may put behind it. What is caught keeps
    its gradients, where there are any.
    """
    towers = towers_of(model)
    caught = {name: LayerStates() for name in towers}
    hooks = [hook for name, tower in towers.items() for hook in _watch(tower.stack, caught[name])]
    try:
        yield caught
    finally:
        for hook in hooks:
            hook.remove()


def _watch(stack: Stack, states: LayerStates) -> Iterator[RemovableHandle]:
    def entering(_: nn.Module, args: tuple[Any, ...]) -> None:
        states.stream.append(args[0])

    def leaving(_: nn.Module, _args: Any, out: Tensor) -> None:
        states.stream.append(out)

    def watch(name: str, module: nn.Module) -> RemovableHandle:
        outputs = states.outputs.setdefault(name, [])

        def catch(_: nn.Module, _args: Any, out: Tensor) -> None:
            outputs.append(out)

        return module.register_forward_hook(catch)

    for block in stack.blocks:
        yield block.register_forward_pre_hook(entering)
        for name, module in sublayers_of(block).items():
            yield watch(name, module)
    yield stack.blocks[-1].register_forward_hook(leaving)


def sublayers_of(block: nn.Module) -> dict[str, nn.Module]:
    """The sublayers that a block has, by name."""
    children = dict(block.named_children())
    return {name: children[name] for name in SUBLAYERS if name in children}


def gradient_norms(
    model: Model, states: Mapping[str, LayerStates], loss: Float[Tensor, ""]
) -> dict[str, ByLayer]:
    """The norms of the gradient of a loss by layer, for each stack of `states`.

    `‖∂loss/∂x‖` of the stream before each layer and after the last, and for each sublayer
    `‖∂loss/∂W‖` over all its weights; 0 where the loss does not depend on them.
    """
    wanted: list[tuple[str, str, list[Tensor]]] = []
    for name, tower in towers_of(model).items():
        wanted += [(name, "stream", [x]) for x in states[name].stream]
        for block in tower.stack.blocks:
            for sublayer, module in sublayers_of(block).items():
                weights: list[Tensor] = [one for one in module.parameters() if one.requires_grad]
                wanted.append((name, sublayer, weights))
    flat = [one for _, _, tensors in wanted for one in tensors]
    gradients = iter(torch.autograd.grad(loss, flat, materialize_grads=True))
    found: dict[str, dict[str, list[float]]] = {name: {} for name in states}
    for name, what, tensors in wanted:
        square = sum(float(at_least_float32(next(gradients)).square().sum()) for _ in tensors)
        found[name].setdefault(what, []).append(square**0.5)
    return {**found}


def rms(x: Tensor) -> float:
    """`√mean(x²)`, in float32 or wider."""
    return float(at_least_float32(x.detach()).square().mean().sqrt())
