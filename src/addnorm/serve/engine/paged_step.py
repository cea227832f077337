"""One step of a decoder with keys and values in slots, eager or as a compiled graph."""

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.errors import InputError
from addnorm.generate.compiled import check_compilable, dynamic_axes
from addnorm.generate.graphs import Graph, compiled
from addnorm.generate.next_token import device_of, evaluating
from addnorm.kernels.build import load_operator
from addnorm.kernels.cached_attention import OPERATOR
from addnorm.models import DecoderModel
from addnorm.models.step import LAST, DecoderState, decoder_step, pairs
from addnorm.nn.attention.cached_attention import operator_scores
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.cache import KVCache, SelfCache
from addnorm.nn.paged_cache import PagedCache, TextSlots

Buffers = Sequence[Float[Tensor, "slots kv_heads d_head"]]
"""Keys and values of all texts, alternating, layer by layer."""


class PagedStep(nn.Module):
    """`decoder_step` with the keys and values of all texts in buffer slots.

    With `in_place`, layers whose attention the kernel can compute read one new token's keys where
    they are; without a C++ compiler that works, or not on a CPU, they are gathered all the same:
    `why_gathered` names the compiler's error.
    """

    def __init__(self, model: DecoderModel, buffers: Buffers, *, in_place: bool) -> None:
        super().__init__()
        self.model = model
        self.storing = model.stack.storing
        remaining = iter(buffers[::2])
        keys = [next(remaining) if stores else None for stores in self.storing]
        self.scores, self.why_gathered = kernel_scores(model.stack.mixers, keys, in_place=in_place)

    def forward(
        self,
        tokens: Int[Tensor, "rows new"],
        slots: TextSlots,
        valid: Bool[Tensor, "rows so_far"],
        buffers: Buffers,
        positions: slice = LAST,
    ) -> Float[Tensor, "chosen vocab"]:
        scores = [score for score, stores in zip(self.scores, self.storing, strict=True) if stores]
        layers = [
            PagedCache(keys, values, slots, score)
            for (keys, values), score in zip(pairs(buffers), scores, strict=True)
        ]
        length = slots.shape[1] - tokens.shape[1]
        cache = KVCache(self.model.stack.with_others(layers), length=length)
        state = DecoderState(cache=cache, valid=valid)
        return decoder_step(self.model, tokens, state, positions)[0].flatten(0, 1)


def kernel_scores(
    attentions: Iterable[object], keys: Iterable[Tensor | None], *, in_place: bool
) -> tuple[list[DotProduct | None], str | None]:
    """The score of each attention that our kernel can compute, or the reason why it cannot.

    None is the score where keys are gathered. `keys` are the buffers of each, None of those that
    keep no keys.
    """
    scores = operator_scores(attentions, keys)
    if not (in_place and any(scores)):
        return [None] * len(scores), None
    try:
        load_operator(OPERATOR)
    except InputError as error:
        return [None] * len(scores), str(error)
    return scores, None


def new_buffers(model: DecoderModel, n_slots: int) -> list[Tensor]:
    """Buffers for the keys and values of `n_slots` tokens, alternating, layer by layer.

    They hold zeros in the last slot, which is read as padding. No other slot is read before it is
    written, so that the system gives memory to those alone that have been written.
    """
    cache = model.new_cache()
    with torch.inference_mode(), evaluating(model):
        model(torch.zeros(1, 1, dtype=torch.long, device=device_of(model)), cache=cache)
    layers = [layer.self_cache for layer in cache]
    parts = [part for layer in layers if isinstance(layer, SelfCache) for part in layer.kept]
    assert len(parts) == 2 * sum(model.stack.storing), "only attention has keys and values"
    buffers = [part.new_empty(n_slots, part.shape[1], part.shape[3]) for part in parts]
    for buffer in buffers:
        buffer[-1] = 0.0
    return buffers


def compiled_step(step: PagedStep, buffers: Buffers) -> Callable[..., Tensor]:
    """Compile the step for one new token per text, or load its graphs.

    There is a graph for one text, where products are loops over the weights, and one for any number
    of texts. Raises `InputError` as `CompiledContinuation` does.
    """
    check_compilable("this model does not compile for serving", step.model)
    graphs = [_graph(step, buffers, rows) for rows in (1, 2)]

    def run(
        tokens: Tensor,
        slots: Tensor,
        valid: Tensor,
        buffers: Buffers,
        positions: slice = LAST,  # a graph has the logits of every text
    ) -> Tensor:
        if slots.shape[1] == 1:  # an axis of any length has at least two in a graph
            slots, valid = slots.expand(-1, 2).contiguous(), F.pad(valid, (1, 0))
        return graphs[len(tokens) > 1](tokens, slots, valid, buffers)

    return run


def _graph(step: PagedStep, buffers: Buffers, rows: int) -> Graph:
    """A graph for one text; for any number of texts if `rows` is more than one."""
    example = (
        torch.zeros(rows, 1, dtype=torch.long),
        torch.zeros(rows, 3, dtype=torch.long),
        torch.ones(rows, 3, dtype=torch.bool),
        [buffer.new_zeros(3, *buffer.shape[1:]) for buffer in buffers],
    )
    texts = dynamic_axes(rows > 1, 1)
    slots = [dynamic_axes(True)] * len(buffers)
    with evaluating(step), torch.no_grad():
        return compiled(step, example, (dynamic_axes(rows > 1), texts, texts, slots))
