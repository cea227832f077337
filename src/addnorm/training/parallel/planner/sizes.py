"""The weights, products and saved values of each part of a model, in one of `tensor` processes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.models import DecoderModel, EncoderDecoderModel, EncoderModel
from addnorm.nn.blocks import Stack
from addnorm.nn.heads import TokenHead
from addnorm.nn.init import without_values
from addnorm.training.optim import roles_of
from addnorm.training.parallel.pieces import Group, Piece
from addnorm.training.parallel.planner.model import ModelSizes, Part, Product, Saved, Weight
from addnorm.training.parallel.planner.saved import norm, part_of_layer
from addnorm.training.parallel.tensor import Layout, split_model

TOKEN = 8
"""Bytes of a token's id."""


class Outlined(Group):
    """A group without other processes, which only tells the pieces that a process would have."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Raise `NotImplementedError`: nothing is computed here."""
        raise NotImplementedError

    def largest(self, tensor: Tensor) -> Tensor:
        """Raise `NotImplementedError`: nothing is computed here."""
        raise NotImplementedError

    def all(self, tensor: Tensor) -> list[Tensor]:
        """Raise `NotImplementedError`: nothing is computed here."""
        raise NotImplementedError


def sizes_of(
    model: nn.Module,
    d_model: int,
    tensor: int = 1,
    rank: int | None = None,
    names: Sequence[str] = (),
) -> ModelSizes:
    """The sizes of a model in one of `tensor` processes; the model is split and needs no values.

    By default those of the last process, whose pieces are the largest. Raises `InputError` for a
    model that cannot be split among so many processes, or that has a part without known values,
    with the layer's name among `names`.
    """
    head = model.get_submodule("head")
    n_logits = head.weight.shape[0] if isinstance(head, TokenHead) else 0
    group = Outlined(tensor - 1 if rank is None else rank, tensor)
    with without_values():
        layout = split_model(model, group) if tensor > 1 else Layout()
    weights = _Weights(model, layout)
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    blocks = [(block, stack is stacks[-1]) for stack in stacks for block in stack.blocks]
    embeds = [child for name, child in model.named_children() if name.endswith("embed")]
    uses = Counter(p for block, _ in blocks for p in block.parameters())
    uses.update(p for child in embeds for p in child.parameters() if p in uses)
    causal = isinstance(model, DecoderModel | EncoderDecoderModel) or (
        isinstance(model, EncoderModel) and model.causal
    )
    layers = list[Part]()
    for i, (block, last) in enumerate(blocks):
        try:
            part = part_of_layer(block, d_model, causal=causal and last)
        except InputError as error:
            raise InputError(f"{names[i] if names else f'layer {i}'}: {error}") from error
        own = weights.of(p for p in block.parameters() if uses[p] == 1)
        layers.append(replace(part, weights=own))
    read = [p for child in embeds for p in child.parameters() if p not in uses]
    written = [p for p in model.parameters() if p not in uses and p not in {*read}]
    tied = [p for p in head.parameters() if p in {*read}]
    return ModelSizes(
        d_model=d_model,
        embed=Part(
            weights=weights.of(read),
            saved=Saved(bytes=2 * TOKEN, masks=_dropped(embeds, d_model)),
            left=d_model if tensor > 1 else 0,
        ),
        layers=tuple(layers),
        head=_head(head, stacks, d_model, weights.of([*written, *tied])),
        tied=weights.of(tied),
        shared=weights.of(p for p, n in uses.items() if n > 1),
        logits=n_logits,
    )


class _Weights:
    """The weights of a model, each as this process holds it."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.inner = {id(p) for p in roles_of(model).matrices}
        named = dict(model.named_parameters())
        self.pieces = {id(p): layout.parameters.get(name) for name, p in named.items()}

    def of(self, parameters: Iterable[nn.Parameter]) -> tuple[Weight, ...]:
        """The weights for these parameters, each once."""
        return tuple(map(self._weight, dict.fromkeys(parameters)))

    def _weight(self, parameter: nn.Parameter) -> Weight:
        piece: Piece | None = self.pieces[id(parameter)]
        rows = parameter.shape[0] if parameter.ndim else 1
        return Weight(
            rows=rows,
            width=parameter.numel() // max(1, rows),
            copies=1 if piece is None else piece.copies,
            inner=id(parameter) in self.inner,
            axis=0 if piece is None else piece.axis,
        )


def _dropped(embeds: list[nn.Module], d_model: int) -> int:
    rates = (getattr(getattr(embed, "dropout", None), "p", 0.0) for embed in embeds)
    return sum(d_model for rate in rates if rate)


def _head(head: nn.Module, stacks: list[Stack], d_model: int, weights: tuple[Weight, ...]) -> Part:
    """The final norms and the head; the saved values of the loss depend on the number of tokens."""
    saved = sum((norm(stack.norm, d_model).saved for stack in stacks), Saved())
    if not isinstance(head, TokenHead):
        return Part(weights=weights, saved=saved + Saved(stream=d_model))
    n_outputs, width = head.weight.shape
    return Part(
        weights=weights,
        products=(Product(width, n_outputs),),
        saved=saved + Saved(bytes=TOKEN),
        entered=d_model,
    )
