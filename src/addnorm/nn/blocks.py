"""The Transformer block, with or without cross-attention, its mixer, and the stack of blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Protocol, cast, runtime_checkable

import torch
from torch import nn

from addnorm.errors import InputError
from addnorm.nn.attention.latent import LatentAttentionConfig
from addnorm.nn.attention.multihead import AttentionConfig, SelfAttention
from addnorm.nn.built import built, built_module
from addnorm.nn.cache import Cache, KVCache, LayerCache, NoCache, PassCache, SegmentMemory
from addnorm.nn.context import Context, Readable
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.delta import GatedDeltaConfig
from addnorm.nn.dropout import LayerDrop
from addnorm.nn.hyper_connections import CollapsedNorm
from addnorm.nn.mamba import Mamba2Config
from addnorm.nn.masks import Causal, Full, Mask
from addnorm.nn.no_sublayer import NoMixerConfig
from addnorm.nn.per_layer_embedding import PerLayerInput
from addnorm.nn.positions.position import Position
from addnorm.nn.protocols import OfModules
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.short_convolution import GatedConvolutionConfig
from addnorm.nn.types import Hidden, Stream
from addnorm.parts import Family


@runtime_checkable
class Mixer(Protocol, metaclass=OfModules):
    """A token mixer: the sublayer in which tokens exchange information, such as attention."""

    @property
    def pattern(self) -> Mask:
        """The mask that this layer adds to the mask of the forward pass."""
        ...

    def new_cache(self) -> Cache:
        """An empty cache for the state that the mixer needs from earlier tokens."""
        ...


@runtime_checkable
class ReadingMixer(Mixer, Protocol, metaclass=OfModules):
    """A mixer that can read the keys and values that an earlier layer has stored in this pass."""

    @property
    def reads(self) -> int | None:
        """The layer that this mixer reads, counted from 0; None if it reads none."""
        ...


@runtime_checkable
class MixerPart(Protocol):
    """A configuration of a token mixer, the sublayer in which tokens exchange information.

    The module it builds is called as `mixer(x, ctx, cache)`, `x` of shape `[batch, seq, d_model]`;
    `ctx` has the mask, the positions and which tokens are real, `cache` comes from its
    `new_cache()`, or is None. Its `pattern` is the mask that it adds to the mask of the forward
    pass (`Full()` for none). `layer` counts from 0.
    """

    def build(self, d_model: int, position: Position, causal: bool, layer: int) -> nn.Module: ...


MixerConfig = Annotated[
    AttentionConfig
    | LatentAttentionConfig
    | RecurrentConfig
    | ConvolutionConfig
    | GatedDeltaConfig
    | Mamba2Config
    | GatedConvolutionConfig
    | NoMixerConfig
    | MixerPart,
    Family("mixer", MixerPart, default="attention"),
]
"""Any token mixer, built-in or custom."""


def build_mixer(
    mixer: MixerConfig, d_model: int, position: Position, causal: bool, layer: int
) -> nn.Module:
    """The mixer of a layer. Raises `InputError` if a custom part builds none."""
    made = mixer.build(d_model, position, causal, layer)
    parts = built(mixer, made, Mixer, "the mixer must be an nn.Module with pattern and new_cache()")
    x = torch.zeros(2, 3, d_model)
    ctx = Context.over(x, Causal() if causal else Full()).restrict(parts.pattern)
    return built_module(mixer, made, "mixer(x, ctx, cache)", (x, ctx, None), x.shape)


class Sublayers(nn.Module):
    """The sublayers of a block, registered in the order in which its class names them; abstract."""

    def __init__(self, **sublayers: nn.Module) -> None:
        super().__init__()
        kinds = (vars(kind) for kind in type(self).__mro__)
        names = next(kind["__annotations__"] for kind in kinds if "__annotations__" in kind)
        if sublayers.keys() != names.keys():
            raise TypeError(f"{type(self).__name__} takes {', '.join(names)}")
        for name in names:
            self.add_module(name, sublayers[name])


class Block(Sublayers):
    """Self-attention, then feed-forward, each inside its residual (Vaswani et al. 2017, §3.1).

    `attention` may be any other mixer.
    """

    attention: nn.Module
    attention_residual: nn.Module
    feedforward: nn.Module
    feedforward_residual: nn.Module

    def forward(self, x: Stream, ctx: Context, cache: LayerCache | None = None) -> Stream:
        self_cache = None if cache is None else cache.self_cache
        x = self.attention_residual(x, lambda h: self.attention(h, ctx, self_cache), ctx.valid)
        return self.feedforward_residual(x, self.feedforward, ctx.valid)


class EmbeddedBlock(Sublayers):
    """Self-attention, feed-forward, then a sublayer that reads the layer's vector of each token.

    Gemma 3n and 4 (see `per_layer_embedding`).
    """

    attention: nn.Module
    attention_residual: nn.Module
    feedforward: nn.Module
    feedforward_residual: nn.Module
    per_layer: nn.Module
    per_layer_residual: nn.Module

    def forward(self, x: Stream, ctx: Context, cache: LayerCache | None = None) -> Stream:
        self_cache = None if cache is None else cache.self_cache
        x = self.attention_residual(x, lambda h: self.attention(h, ctx, self_cache), ctx.valid)
        x = self.feedforward_residual(x, self.feedforward, ctx.valid)
        return self.per_layer_residual(x, lambda h: self.per_layer(h, ctx.vector), ctx.valid)


class ConvolvedBlock(Sublayers):
    """Self-attention, feed-forward, then a convolution of what the layer read joins them.

    DeBERTa v2 (see `layer_convolution`).
    """

    attention: nn.Module
    attention_residual: nn.Module
    feedforward: nn.Module
    feedforward_residual: nn.Module
    convolution: nn.Module

    def forward(self, x: Hidden, ctx: Context, cache: LayerCache | None = None) -> Hidden:
        self_cache = None if cache is None else cache.self_cache
        y = self.attention_residual(x, lambda h: self.attention(h, ctx, self_cache), ctx.valid)
        y = self.feedforward_residual(y, self.feedforward, ctx.valid)
        return self.convolution(x, y, ctx)


class CanonBlock(Sublayers):
    """Self-attention, then feed-forward, each with a Canon layer before it (see `canon`)."""

    attention: nn.Module
    attention_residual: nn.Module
    feedforward: nn.Module
    feedforward_residual: nn.Module

    def forward(self, x: Stream, ctx: Context, cache: LayerCache | None = None) -> Stream:
        held = None if cache is None else cache.self_cache
        x = self.attention_residual(x, lambda h: self.attention(h, ctx, held), ctx.valid)
        return self.feedforward_residual(x, lambda h: self.feedforward(h, ctx, held), ctx.valid)


class CrossBlock(Sublayers):
    """Self-attention, cross-attention, then feed-forward: the original decoder layer."""

    attention: nn.Module
    attention_residual: nn.Module
    cross_attention: nn.Module
    cross_attention_residual: nn.Module
    feedforward: nn.Module
    feedforward_residual: nn.Module

    def forward(self, x: Stream, ctx: Context, cache: LayerCache | None = None) -> Stream:
        self_cache, cross_cache = (
            (None, None) if cache is None else (cache.self_cache, cache.cross_cache)
        )
        x = self.attention_residual(x, lambda h: self.attention(h, ctx, self_cache), ctx.valid)
        x = self.cross_attention_residual(
            x, lambda h: self.cross_attention(h, ctx, cross_cache), ctx.valid
        )
        return self.feedforward_residual(x, self.feedforward, ctx.valid)


class ParallelBlock(Sublayers):
    """`x + attention(norm(x)) + feedforward(norm(x))` (GPT-J, PaLM, GPT-NeoX).

    `norm` is the norm that the branches share, or the identity.
    """

    norm: nn.Module
    attention: nn.Module
    attention_residual: nn.Module
    feedforward: nn.Module
    feedforward_residual: nn.Module

    def forward(self, x: Stream, ctx: Context, cache: LayerCache | None = None) -> Stream:
        self_cache = None if cache is None else cache.self_cache
        h = self.norm(x, ctx.valid)
        attended = self.attention_residual(
            h, lambda h: self.attention(h, ctx, self_cache), ctx.valid
        )
        return x + attended + self.feedforward_residual(h, self.feedforward, ctx.valid)


class ParallelCrossBlock(Sublayers):
    """`x + attention(norm(x)) + cross_attention(norm(x)) + feedforward(norm(x))`."""

    norm: nn.Module
    attention: nn.Module
    attention_residual: nn.Module
    cross_attention: nn.Module
    cross_attention_residual: nn.Module
    feedforward: nn.Module
    feedforward_residual: nn.Module

    def forward(self, x: Stream, ctx: Context, cache: LayerCache | None = None) -> Stream:
        self_cache, cross_cache = (
            (None, None) if cache is None else (cache.self_cache, cache.cross_cache)
        )
        h = self.norm(x, ctx.valid)
        attended = self.attention_residual(
            h, lambda h: self.attention(h, ctx, self_cache), ctx.valid
        )
        crossed = self.cross_attention_residual(
            h, lambda h: self.cross_attention(h, ctx, cross_cache), ctx.valid
        )
        return x + attended + crossed + self.feedforward_residual(h, self.feedforward, ctx.valid)


AnyBlock = (
    Block
    | EmbeddedBlock
    | ConvolvedBlock
    | CanonBlock
    | CrossBlock
    | ParallelBlock
    | ParallelCrossBlock
)


def first_layer(group: int, n_layers: int, n_distinct: int) -> int:
    """The first layer of a group, counted from 0: layer `i` of `n` is in group `⌊i g / n⌋`."""
    return -(-group * n_layers // n_distinct)


def shared_layer(layer: int, n_layers: int, n_distinct: int) -> int:
    """The layer whose weights a layer has: the first of its group."""
    return first_layer(layer * n_distinct // n_layers, n_layers, n_distinct)


def share_weights(blocks: Sequence[AnyBlock], n_distinct: int) -> None:
    """Tie the parameters of consecutive blocks, in `n_distinct` groups (Lan et al. 2020, §3.1).

    Every block remains a module of its own, and so do its buffers, such as running statistics.
    """
    for i, block in enumerate(blocks):
        first = blocks[shared_layer(i, len(blocks), n_distinct)]
        for name, module in block.named_modules():
            same = first.get_submodule(name)
            for part, parameter in same.named_parameters(recurse=False):
                module.register_parameter(part, parameter)


def check_unshared(model: nn.Module, what: str) -> None:
    """Raise `InputError` if layers share weights, since `what` changes layers one by one."""
    for stack in [module for module in model.modules() if isinstance(module, Stack)]:
        weights = [{id(p) for p in block.parameters()} for block in stack.blocks]
        if any(first and first == second for first, second in pairwise(weights)):
            raise InputError(
                f"{what} changes single layers, and layers of this model share weights"
            )


class Stack(nn.Module):
    """A sequence of blocks, followed by the final norm of the placement.

    With `layer_drop`, training skips blocks at random.
    """

    def __init__(
        self, blocks: Sequence[AnyBlock], norm: nn.Module, layer_drop: LayerDrop | None = None
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.layer_drop = layer_drop

    @property
    def mixers(self) -> list[Mixer]:
        """The token mixer of each layer."""
        return [cast(Mixer, block.attention) for block in self.blocks]

    @property
    def patterns(self) -> list[Mask]:
        """The mask that each layer adds to the mask of the forward pass."""
        return [mixer.pattern for mixer in self.mixers]

    def forward(self, x: Stream, ctx: Context, cache: KVCache | None = None) -> Hidden:
        for hidden in self.layer_outputs(x, ctx, cache):
            x = hidden
        return self.norm(x, ctx.valid)

    def layer_outputs(
        self, x: Stream, ctx: Context, cache: KVCache | None = None
    ) -> Iterator[Stream]:
        """Yield the output of each layer, before the final norm; all streams if it has several.

        Behind the embedded tokens, `x` has the vectors for single layers, if there are any.
        """
        caches = self.caches_of_pass(cache)
        x, vectors = self.apart(x)
        contexts = self.contexts(ctx, caches, vectors)
        for block, of_layer, layer_cache in zip(self.blocks, contexts, caches, strict=True):
            run = block if self.layer_drop is None else self.layer_drop.around(block)
            x = run(x, of_layer, layer_cache)
            yield x
        if cache is not None:
            cache.advance(x.shape[1])

    @property
    def read_layers(self) -> list[int | None]:
        """The earlier layer that each layer reads in a pass, counted from 0; None for none."""
        return [mixer.reads if isinstance(mixer, ReadingMixer) else None for mixer in self.mixers]

    def caches_of_pass(self, cache: KVCache | None) -> list[LayerCache | None]:
        """The cache of each layer in a pass.

        Without a cache, those layers that others read store their keys and values for the pass.
        """
        if cache is not None:
            return list(cache)
        read = {*(layers := self.read_layers)}
        return [LayerCache(PassCache()) if i in read else None for i in range(len(layers))]

    def apart(self, x: Stream) -> tuple[Hidden, list[Stream | None]]:
        """Split the input into the embedded tokens and each layer's own vectors of them.

        Vectors for layers lie behind those of the tokens.
        """
        widths = [
            cast(PerLayerInput, block.per_layer).width if isinstance(block, EmbeddedBlock) else 0
            for block in self.blocks
        ]
        if not any(widths):
            return x, [None] * len(widths)
        x, *vectors = x.split([x.shape[-1] - sum(widths), *widths], dim=-1)
        return x, [*vectors]

    def contexts(
        self,
        ctx: Context,
        caches: Sequence[LayerCache | None],
        vectors: Sequence[Stream | None],
    ) -> list[Context]:
        """The context of each layer: its pattern, its vectors, and the cache of the layer it reads.

        A mask is evaluated once for all layers that share a pattern.
        """
        of_pattern = {pattern: ctx.restrict(pattern) for pattern in self.patterns}
        contexts: list[Context] = []
        layers = zip(self.patterns, self.read_layers, vectors, strict=True)
        for pattern, read, vector in layers:
            of_layer = of_pattern[pattern]
            if vector is not None:
                of_layer = replace(of_layer, vector=vector)
            if read is not None:
                earlier = caches[read]
                assert earlier is not None
                assert isinstance(earlier.self_cache, Readable), "attention alone is read"
                of_layer = replace(of_layer, earlier=earlier.self_cache)
            contexts.append(of_layer)
        return contexts

    def collapsed(self, x: Stream) -> Hidden:
        """The output of a layer as a single residual stream, as the final norm would read it."""
        return self.norm.collapse(x) if isinstance(self.norm, CollapsedNorm) else x

    def new_cache(self) -> KVCache:
        """An empty cache for all layers."""
        return KVCache([mixer.new_cache() for mixer in self.mixers])

    @property
    def storing(self) -> list[bool]:
        """Whether each layer stores keys and values; the others read those of an earlier layer."""
        return [not isinstance(mixer.new_cache(), NoCache) for mixer in self.mixers]

    def with_others(self, caches: Sequence[Cache]) -> list[Cache]:
        """A cache for every layer: these for the layers that store, empty ones for the others."""
        assert len(caches) == sum(self.storing), "a cache for each layer that stores something"
        remaining = iter(caches)
        return [next(remaining) if stores else NoCache() for stores in self.storing]

    def new_memory(self, size: int) -> KVCache:
        """An empty segment memory: attention keeps its last `size` inputs, or those in its reach.

        Other mixers carry their own state from segment to segment. Raises `InputError` for a layer
        that reads an earlier one.
        """
        for i, read in enumerate(self.read_layers):
            if read is not None:
                raise InputError(
                    f"segment memory: layer {i} reads the keys or values of layer {read}, which a "
                    "memory of hidden states lacks: leave value_residual and kv_layers_back out"
                )
        caches = [
            SegmentMemory(size) if isinstance(mixer, SelfAttention) else mixer.new_cache()
            for mixer in self.mixers
        ]
        return KVCache(caches, limit=size)
