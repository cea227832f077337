"""The values that each part of a layer saves for the backward pass, and its products.

Counted as our modules save them, storage that several share once (Korthikanti et al. 2022, §4.1,
count another implementation in the same way).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from addnorm.errors import InputError
from addnorm.models.ledger import shown
from addnorm.nn.attention.core import EagerCore, SDPACore
from addnorm.nn.attention.cross_layer import CrossLayerAttention
from addnorm.nn.attention.flex import FlexCore
from addnorm.nn.attention.head_norms import HeadsTogether
from addnorm.nn.attention.multihead import Attending, CrossAttention, MultiHead, SelfAttention
from addnorm.nn.attention.outputs import GatedOutput, PlainOutput
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.blocks import Block, CrossBlock, ParallelBlock, ParallelCrossBlock
from addnorm.nn.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from addnorm.nn.masks import Full, Window
from addnorm.nn.moe import MixtureOfExperts
from addnorm.nn.no_sublayer import NoFeedForward, NoMixer, NoPlacement
from addnorm.nn.norms import (
    BatchNorm,
    DynamicErf,
    DynamicTanh,
    LayerNorm,
    NoNorm,
    OffsetLayerNorm,
    OffsetRMSNorm,
    RMSNorm,
    ScaleNorm,
)
from addnorm.nn.positions.alibi import ALiBi
from addnorm.nn.positions.kerple import KERPLE
from addnorm.nn.positions.learned import Learned
from addnorm.nn.positions.position import NoPosition, Position
from addnorm.nn.positions.rotary import DynamicRotary, Rotary
from addnorm.nn.positions.rounded_alibi import RoundedALiBi
from addnorm.nn.positions.sinusoidal import Sinusoidal
from addnorm.nn.positions.t5 import T5Bias
from addnorm.nn.positions.transformer_xl import RelativeScores
from addnorm.nn.residuals import (
    Branch,
    DeepNorm,
    LayerScale,
    PostNorm,
    PreNorm,
    SandwichNorm,
)
from addnorm.training.parallel.planner.model import Attention, Part, Product, Saved

NORMS: dict[type[nn.Module], tuple[int, int]] = {
    NoNorm: (0, 0),
    LayerNorm: (1, 8),
    OffsetLayerNorm: (1, 8),
    RMSNorm: (1, 4),
    OffsetRMSNorm: (1, 4),
    ScaleNorm: (2, 8),
    DynamicTanh: (2, 0),
    DynamicErf: (3, 0),
    BatchNorm: (3, 0),
}
"""What a norm saves of each token: copies of its input, and bytes of statistics."""

BIASES: dict[type[Position], tuple[int, int]] = {
    NoPosition: (0, 0),
    Sinusoidal: (0, 0),
    Learned: (0, 0),
    Rotary: (0, 0),
    DynamicRotary: (0, 0),
    ALiBi: (1, 0),
    RoundedALiBi: (1, 0),
    T5Bias: (0, 9),
    KERPLE: (2, 9),
    RelativeScores: (0, 7),
}
"""What positions save for each query and key: values of each head, and bytes of all together."""

BESIDES_OUTPUT = {
    **dict.fromkeys(("relu", "tanh", "sigmoid"), 0),
    **dict.fromkeys(("gelu", "gelu_tanh", "silu", "mish", "squared_relu"), 1),
    "quick_gelu": 2,
}
"""The values that an activation function saves, apart from its output."""

EXTRA = {ACTIVATIONS[name]: n for name, n in BESIDES_OUTPUT.items()}  # pyright: ignore[reportArgumentType]


def part_of_layer(block: nn.Module, width: int, *, causal: bool) -> Part:
    """The products and the saved values of a layer, without its weights.

    Raises `InputError` for a part whose values are not known.
    """
    parts = [*_read(block, _Layer(width, causal))]
    left = sum(part.left for part in parts)
    return Part(
        products=tuple(product for part in parts for product in part.products),
        attention=tuple(attention for part in parts for attention in part.attention),
        saved=sum((part.saved for part in parts), Saved()),
        entered=sum(part.entered for part in parts),
        left=left,
        again=left - (width if _ends_unsaved(block) else 0),
    )


def _ends_unsaved(block: nn.Module) -> bool:
    """Whether a layer ends in a sum that saves nothing, so that recomputation can skip it."""
    residual, last = block.get_submodule("feedforward_residual"), block.get_submodule("feedforward")
    ends = isinstance(residual, PreNorm | Branch) and residual.dropout.p == 0
    return ends and isinstance(last, FeedForward | GatedFeedForward)


@dataclass(frozen=True)
class _Layer:
    width: int
    causal: bool


def _read(module: nn.Module, layer: _Layer) -> Iterator[Part]:
    """Yield the parts of a block: its sublayers, norms and residual connections."""
    match module:
        case Block() | CrossBlock():
            for child in _present(module):
                yield from _read(child, layer)
        case ParallelBlock() | ParallelCrossBlock():
            yield from _in_parallel(module, layer)
        case PreNorm() | LayerScale() | PostNorm() | DeepNorm() | Branch() | SandwichNorm():
            yield Part(saved=_residual(module, layer.width))
        case SelfAttention() | CrossAttention() | CrossLayerAttention():
            yield _attention(module, layer)
        case FeedForward() | GatedFeedForward():
            yield _feedforward(module, layer.width)
        case MixtureOfExperts():
            yield from _mixture(module, layer.width)
        case _:
            yield norm(module, layer.width)


def _present(block: nn.Module) -> list[nn.Module]:
    """The parts of a block, without those of a sublayer that it lacks."""
    absent = NoMixer, NoFeedForward, NoPlacement
    return [child for child in block.children() if not isinstance(child, absent)]


Placement = PreNorm | LayerScale | PostNorm | DeepNorm | Branch | SandwichNorm
"""The placements with one residual stream."""


def _residual(module: Placement, width: int) -> Saved:
    """What a residual connection saves: for its norms, its dropout and its learned factors."""
    dropped = Saved(masks=width if module.dropout.p > 0 else 0)
    if isinstance(module, SandwichNorm):
        return dropped + norm(module.norm_in, width).saved + _of_products(module.norm_out, width)
    scaled = Saved(products=width if isinstance(module, LayerScale) else 0)
    return dropped + norm(module.norm, width).saved + scaled


def _in_parallel(block: ParallelBlock | ParallelCrossBlock, layer: _Layer) -> Iterator[Part]:
    """Yield the sublayers of a parallel block, whose common input is saved once."""
    for child in block.children():
        yield from _read(child, layer)
    again = (sum(isinstance(child, Branch) for child in block.children()) - 1) * layer.width
    if isinstance(block.norm, NoNorm):
        yield Part(saved=Saved(stream=-again))
    else:
        yield Part(saved=Saved(products=-again, copies=again))


def norm(module: nn.Module, width: int) -> Part:
    """The values that a norm saves.

    Raises `InputError` for one of unknown values, and for any other part.
    """
    module = module.norm if isinstance(module, HeadsTogether) else module
    if type(module) not in NORMS:
        raise unknown(module)
    values, statistics = NORMS[type(module)]
    return Part(saved=Saved(stream=values * width, bytes=statistics))


def unknown(module: nn.Module) -> InputError:
    """The error for a part whose saved values are unknown."""
    return InputError(
        f"plan has no figures for {shown(module)}: it knows plain attention, feed-forward layers, "
        "mixtures of experts, norms, and placements with one residual stream"
    )


def _attention(module: Attending, layer: _Layer) -> Part:
    if isinstance(module, CrossLayerAttention):
        return _cross_layer_attention(module, layer)
    return _of_own_keys(module, layer)


def _of_own_keys(module: MultiHead, layer: _Layer) -> Part:
    """What attention saves with its own keys: `q k v`, the heads' output, and the common input.

    A core of plain products also saves scores, which `Attention` counts.
    """
    width = layer.width
    queries, keys = module.q_proj.out_features, module.k_proj.out_features
    products = [
        Product(width, queries),
        Product(width, keys),
        Product(width, keys),
        Product(queries, width),
    ]
    cross = isinstance(module, CrossAttention)
    saved = Saved(products=2 * queries + 2 * keys + width, copies=(1 if cross else 2) * width)
    if cross:
        saved += Saved(products=width)  # the memory, which all layers share in one type
        saved = replace(saved, copies=2 * width)
    saved += _of_products(module.q_norm, queries) + _of_products(module.k_norm, keys)
    if module.v_norm is not None:
        saved += _of_products(module.v_norm, keys)
    if isinstance(module, SelfAttention) and module.rotated_q_norm is not None:
        saved += _of_products(module.rotated_q_norm, queries + keys)
    if isinstance(module, SelfAttention) and module.value_residual is not None:
        saved += Saved(products=keys)  # the values before the sum; those of the first are there
    return _with_core(module, layer, tuple(products), saved)


def _cross_layer_attention(module: CrossLayerAttention, layer: _Layer) -> Part:
    """What it saves: `q`, the heads' output, and the input; keys are another layer's."""
    width, queries = layer.width, module.q_proj.out_features
    saved = Saved(products=2 * queries + width) + _of_products(module.q_norm, queries)
    if module.rotated_q_norm is not None:
        saved += _of_products(module.rotated_q_norm, queries)
    return _with_core(module, layer, (Product(width, queries), Product(queries, width)), saved)


def _with_core(
    module: Attending, layer: _Layer, products: tuple[Product, ...], saved: Saved
) -> Part:
    """Attention with these products, and what its core and output operation save."""
    cross, width = isinstance(module, CrossAttention), layer.width
    queries = module.q_proj.out_features
    match module.output:
        case PlainOutput():
            pass
        case GatedOutput():
            products = (*products, Product(width, queries))
            saved += Saved(products=2 * queries, copies=width)
        case _:
            raise unknown(module.output)
    attention = _core(module, layer, cross=cross)
    if not attention.scores:
        saved += Saved(bytes=4 * attention.heads)
    in_text = isinstance(module, SelfAttention | CrossLayerAttention)
    if in_text and isinstance(module.position, Rotary):
        # Rotated queries lie in memory head by head, and so does the output: it is copied once.
        saved += Saved(products=queries, positions=2 * len(module.position.frequencies))
    entered = width * (2 if cross else 1)
    return Part(products=products, attention=(attention,), saved=saved, entered=entered, left=width)


def _of_products(module: nn.Module, width: int) -> Saved:
    """What a norm of matrix products saves, such as the norm of queries."""
    saved = norm(module, width).saved
    return Saved(products=saved.stream, bytes=saved.bytes)


def _core(module: Attending, layer: _Layer, *, cross: bool) -> Attention:
    in_text = isinstance(module, SelfAttention | CrossLayerAttention)
    position = module.position if in_text else None
    pattern = module.pattern if in_text else Full()
    scores, on_cpu = _scores(module.core)
    if position is not None and type(position) not in BIASES:
        raise unknown(position)
    for_heads, for_pairs = (0, 0) if position is None else BIASES[type(position)]
    if isinstance(position, T5Bias | KERPLE | RelativeScores):
        scores, on_cpu = max(scores, 1), max(on_cpu, 1)  # no fused kernel learns a bias
    heads = module.q_proj.out_features // module.d_head
    return Attention(
        heads=heads,
        kv_heads=module.n_kv_heads,
        d_head=module.d_head,
        causal=layer.causal and not cross,
        scores=scores,
        scores_on_cpu=on_cpu,
        bias=heads * for_heads + (0 if isinstance(pattern, Full) else 1),
        bias_bytes=for_pairs,
        reach=pattern.size if isinstance(pattern, Window) else None,
        cross=cross,
    )


def _scores(core: nn.Module) -> tuple[int, int]:
    """The values that a core saves for each head, query and key: on a GPU, and on a CPU."""
    match core:
        case SDPACore() | FlexCore():
            return 0, 3 if core.dropout else 0
        case EagerCore() if isinstance(core.score, DotProduct) or not isinstance(
            core.score, nn.Module
        ):
            scores = 4 if core.weights_dropout.p else 2
            return scores, scores
        case _:
            raise unknown(core)


def _feedforward(module: FeedForward | GatedFeedForward, width: int) -> Part:
    """A feed-forward layer, which saves its input and its inner features."""
    d_ff, dropped = module.d_ff, module.dropout.p > 0
    if module.activation not in EXTRA:
        raise unknown(module.activation if isinstance(module.activation, nn.Module) else module)
    besides = EXTRA[module.activation]
    gated = isinstance(module, GatedFeedForward)
    inner = besides + (3 if gated else 1)
    if dropped and not gated and besides == 0:
        inner += 1  # the output of the function is not what the last product reads
    maps = [Product(width, d_ff)] * (2 if gated else 1)
    return Part(
        products=(*maps, Product(d_ff, width)),
        saved=Saved(
            products=width + inner * d_ff,
            copies=width * (len(maps) - 1),
            masks=d_ff if dropped else 0,
        ),
        entered=width,
        left=width,
    )


def _mixture(module: MixtureOfExperts, width: int) -> Iterator[Part]:
    """A mixture of experts: the router, the chosen experts with their inputs, a shared expert."""
    n, k = len(module.experts), module.router.top_k
    yield Part(
        products=(Product(width, n),),
        saved=Saved(products=width + 2 * k * width, bytes=(8 + 4) * n + 40 * k),
    )
    part = _expert(module.experts[0], width)
    saved = part.saved
    yield Part(
        products=tuple(replace(product, share=float(k)) for product in part.products),
        saved=Saved(products=k * saved.products, copies=k * saved.copies, masks=k * saved.masks),
        entered=k * part.entered,
        left=k * part.left,
    )
    if module.shared is not None:
        yield _expert(module.shared, width)
        yield Part(saved=Saved(products=-width, copies=width))  # it reads what the router reads
    if module.shared_gate is not None:
        yield Part(products=(Product(width, 1),), saved=Saved(products=width + 1, copies=width))


def _expert(module: nn.Module, width: int) -> Part:
    if not isinstance(module, FeedForward | GatedFeedForward):
        raise unknown(module)
    return _feedforward(module, width)
