"""RMS of the residual stream and of sublayer outputs by layer, and gradient norms."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
    """A stack of a model with its embedding, and whether it is causal."""

    embed: nn.Module
    stack: Stack
    causal: bool


def towers_of(model: Model) -> dict[str, Tower]:
    """The stacks of a model with their embeddings, by module name."""
    if isinstance(model, EncoderDecoderModel):
        return {
            "encoder": Tower(model.source_embed, model.encoder, causal=False),
            "decoder": Tower(model.target_embed, model.decoder, causal=True),
        }
    causal = isinstance(model, DecoderModel) or model.causal
    return {"stack": Tower(model.embed, model.stack, causal=causal)}


@dataclass(frozen=True)
class LayerStates:
    """The residual stream before each layer and after the last, and the sublayer outputs.

    Several streams lie side by side in `stream`, and `collapse` makes one of them.
    """

    collapse: Callable[[Tensor], Tensor]
    stream: list[Tensor] = field(default_factory=list[Tensor])
    outputs: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])

    def sizes(self) -> ByLayer:
        """The root mean square of each tensor."""
        with torch.no_grad():
            stream = [self.collapse(x) for x in self.stream]
        states = {"stream": stream, **self.outputs}
        return {name: [rms(x) for x in by_layer] for name, by_layer in states.items()}


@contextmanager
def layer_states(model: Model) -> Generator[dict[str, LayerStates]]:
    """Record the residual stream and sublayer outputs of each stack in one forward pass.

    The output of a sublayer is that of attention (or of the mixer in its place) or of the
    feed-forward itself, before the dropout or the norm that its placement may apply to it. The
    recorded tensors keep their gradients, if there are any.
    """
    towers = towers_of(model)
    states = {name: LayerStates(tower.stack.collapsed) for name, tower in towers.items()}
    with ExitStack() as hooks:
        for name, tower in towers.items():
            for handle in _record(tower.stack, states[name]):
                hooks.enter_context(handle)
        yield states


def _record(stack: Stack, states: LayerStates) -> Iterator[RemovableHandle]:
    def before_block(_: nn.Module, args: tuple[Any, ...]) -> None:
        states.stream.append(args[0])

    def after(module: nn.Module, outputs: list[Tensor]) -> RemovableHandle:
        def hook(_: nn.Module, _args: Any, out: Tensor) -> None:
            outputs.append(out)

        return module.register_forward_hook(hook)

    for block in stack.blocks:
        yield block.register_forward_pre_hook(before_block)
        for name, module in sublayers_of(block).items():
            yield after(module, states.outputs.setdefault(name, []))
    yield after(stack.blocks[-1], states.stream)


def sublayers_of(block: nn.Module) -> dict[str, nn.Module]:
    """The sublayers of a block, by name."""
    children = dict(block.named_children())
    return {name: children[name] for name in SUBLAYERS if name in children}


def gradient_norms(
    model: Model, states: Mapping[str, LayerStates], loss: Float[Tensor, ""]
) -> dict[str, ByLayer]:
    """The norms of the gradient of a loss by layer, for each stack of `states`.

    `‖∂loss/∂x‖` of the stream before each layer and after the last, and for each sublayer
    `‖∂loss/∂W‖` over all its weights; 0 where the loss does not depend on them.
    """
    groups: list[tuple[str, str, list[Tensor]]] = []
    for stack, tower in towers_of(model).items():
        groups += [(stack, "stream", [x]) for x in states[stack].stream]
        for block in tower.stack.blocks:
            for name, module in sublayers_of(block).items():
                weights: list[Tensor] = [w for w in module.parameters() if w.requires_grad]
                groups.append((stack, name, weights))
    flat = [tensor for _, _, tensors in groups for tensor in tensors]
    gradients = iter(torch.autograd.grad(loss, flat, materialize_grads=True))
    norms: dict[str, dict[str, list[float]]] = {stack: {} for stack in states}
    for stack, name, tensors in groups:
        square = sum(float(at_least_float32(next(gradients)).square().sum()) for _ in tensors)
        norms[stack].setdefault(name, []).append(square**0.5)
    return {**norms}


def rms(x: Tensor) -> float:
    """`√mean(x²)`, in float32 or wider."""
    return float(at_least_float32(x.detach()).square().mean().sqrt())
