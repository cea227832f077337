"""The base of all model configurations, which builds embeddings and stacks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import Field, PositiveInt
from torch import nn

from addnorm.config import Probability, config
from addnorm.errors import InputError
from addnorm.models.earlier_layers import check_chosen, check_reads, reads_of
from addnorm.models.layers import LayerConfig, LayerParts, Stacks, entries_of
from addnorm.nn.attention import AttentionConfig, LatentAttentionConfig
from addnorm.nn.attention.scores import is_plain_product, scale_of
from addnorm.nn.blocks import (
    AnyBlock,
    Block,
    ConvolvedBlock,
    CrossBlock,
    EmbeddedBlock,
    MixerConfig,
    ParallelBlock,
    ParallelCrossBlock,
    Stack,
    build_mixer,
    share_weights,
    shared_layer,
)
from addnorm.nn.dropout import LayerDrop
from addnorm.nn.embed import AnyEmbeddingConfig, EmbeddingConfig, TokenEmbedding, build_embedding
from addnorm.nn.exits import ExitHead
from addnorm.nn.feedforward import FeedForwardConfig, build_feedforward
from addnorm.nn.heads import HeadConfig, build_head
from addnorm.nn.hyper_connections import WITH_STREAMS
from addnorm.nn.init import InitName
from addnorm.nn.layer_convolution import LayerConvolutionConfig
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.no_sublayer import ABSENT, NoPlacement
from addnorm.nn.norms import LayerNormConfig, NoNorm, NormConfig, build_norm
from addnorm.nn.per_layer_embedding import PerLayerEmbeddingConfig
from addnorm.nn.positions import PositionConfig, SinusoidalConfig
from addnorm.nn.positions.position import (
    BuildContext,
    Position,
    acts_in_attention,
    build_position,
)
from addnorm.nn.residuals import (
    Depth,
    ParallelConfig,
    PostNormConfig,
    PreNorm,
    PreNormConfig,
    ResidualConfig,
    SandwichNormConfig,
    build_final_norm,
    build_placement,
)
from addnorm.parts import check_conflicts, kind_of

C = TypeVar("C", bound="TransformerConfig")

MOST_LAYERS = 4096
"""The deepest stack; the deepest that was published has a thousand layers."""

LayerCount = Annotated[PositiveInt, Field(le=MOST_LAYERS)]
"""How many layers a stack may have."""

Positioned = AttentionConfig | LatentAttentionConfig
POSITIONED = (AttentionConfig, LatentAttentionConfig)
"""The mixers in which positions act."""

SharedPositions = dict[BuildContext, Position]
"""The position module of the layers whose attention has these sizes; the model's comes first."""


class StackModel(nn.Module):
    """A model of one stack, `head(stack(embed(inputs)))`, with early exits; abstract."""

    embed: Any

    def __init__(
        self, embed: nn.Module, stack: Stack, head: nn.Module, exits: nn.ModuleDict | None = None
    ) -> None:
        super().__init__()
        self.embed = embed
        self.stack = stack
        self.head = head
        self.exits = exits or nn.ModuleDict()


@config
class TransformerConfig:
    """The width and the parts; abstract: the three model configurations add their own fields."""

    d_model: PositiveInt = 512
    """The width of the residual stream."""
    n_layers: LayerCount = 6
    """Blocks in the stack, in an encoder–decoder those of the encoder."""
    max_len: PositiveInt = 1024
    """The longest sequence in tokens that learned positions have a row for."""
    position: PositionConfig = SinusoidalConfig()
    """How the model knows the order of tokens."""
    attention: MixerConfig = AttentionConfig()
    """The mixer of tokens: attention, or a recurrence or convolution in its place."""
    cross_attention: AttentionConfig | None = None
    """The decoder's attention to the encoder; by default that of self-attention."""
    feedforward: AnyFeedForwardConfig = FeedForwardConfig()
    """The layer that acts on each token alone."""
    norm: NormConfig = LayerNormConfig()
    """The norm of every sublayer."""
    residual: ResidualConfig = PostNormConfig()
    """Where norms stand around a sublayer and its residual connection: by default after the sum,
    as in the original; `pre` is easier to train.
    """
    embedding: AnyEmbeddingConfig = EmbeddingConfig()
    """The table of token vectors, with their scale, norm and word dropout."""
    dropout: Probability = 0.1
    """The dropout rate of the embeddings and of the output of every sublayer."""
    layer_drop: Probability = 0.0
    """How often training skips a layer, so that layers can be removed later; 0.2 is usual."""
    init: InitName = "xavier"
    """How weights start: Glorot's, GPT-2's, BERT's, torch's own or Kim's way, or sublayers that
    write zero.
    """
    layer_pattern: tuple[LayerConfig, ...] = ()
    """The parts in which layers differ from the model, in turn: the first layer takes the first
    entry, and after the last entry comes the first again.
    """
    n_distinct_layers: LayerCount | None = None
    """How many layers have weights of their own: consecutive layers share those of the first of
    them, as in ALBERT, where all share one; by default every layer has its own.
    """
    vocab_size: PositiveInt | None = None
    """Rows of the embedding table; by default as many as the tokenizer has tokens."""

    def __post_init__(self) -> None:
        parts = [self.norm, self.residual, self.feedforward, self.attention, self.embedding]
        check_conflicts(parts, self)
        for i in range(len(self.layer_pattern) or 1):
            try:
                self._check_layer(self.layer(i))
            except ValueError as error:
                if not self.layer_pattern:
                    raise
                raise ValueError(f"layer {i}: {error}") from error
        self._check_earlier_layers()
        if self.n_distinct_layers is not None:
            self._check_shared_layers(self.n_distinct_layers)
        if self._position_attention is not None:
            sizes = self.build_context(causal=self.looks_back, max_len=self.max_len)
            check_conflicts([self.position], sizes)

    def _check_layer(self, layer: LayerParts) -> None:
        """Raise `ValueError` if the parts of a layer conflict with each other or the model."""
        check_conflicts([layer.norm, layer.feedforward, layer.attention], self)
        if isinstance(layer.attention, POSITIONED):
            sizes = self.build_context(
                causal=self.looks_back, max_len=self.max_len, attention=layer.attention
            )
            check_conflicts([layer.position], sizes)

    def _check_earlier_layers(self) -> None:
        """Raise `ValueError` for a layer that cannot read its earlier layer."""
        if self.cross_attention is not None and self.cross_attention.reads(1) is not None:
            raise ValueError(
                "value_residual and kv_layers_back read earlier layers of the same tokens: leave "
                "them out of cross_attention"
            )
        mixers = [self.attention, *(layer.attention for layer in self.layer_pattern)]
        if not any(isinstance(m, AttentionConfig) and m.reads(1) is not None for m in mixers):
            return
        for layers in self.stacks.values():
            check_reads(layers, self.d_model)
            for i, read in reads_of(layers).items():
                for name in ("layer_drop", "n_distinct_layers"):
                    if getattr(self, name):
                        raise ValueError(
                            f"layer {i} reads the keys or values of layer {read}, which {name} "
                            f"= {getattr(self, name):g} does not keep for it: leave {name} out"
                        )

    def _check_shared_layers(self, n_distinct: int) -> None:
        """Raise `ValueError` if layers cannot share weights since their parts differ."""
        if isinstance(self.residual, PreNormConfig) and not self.residual.first:
            raise ValueError(
                "layers cannot share weights if the first lacks a norm: n_distinct_layers"
            )
        for name, layers in self.stacks.items():
            if n_distinct > len(layers):
                raise ValueError(
                    f"n_distinct_layers = {n_distinct} is more than the {len(layers)} layers of "
                    f"the {name}"
                )
            for i, layer in enumerate(layers):
                first = shared_layer(i, len(layers), n_distinct)
                if layer != layers[first]:
                    raise ValueError(
                        f"layer {i} of the {name} shares the weights of layer {first}, but "
                        "layer_pattern gives them different parts: n_distinct_layers must not"
                    )

    @property
    def looks_back(self) -> bool:
        """Whether no token attends to later ones, in any stack."""
        return True

    @property
    def reads_pictures(self) -> bool:
        """Whether the tokens are patches of pictures."""
        return False

    # The parts of each layer, the source of everything that concerns a layer.

    @property
    def stacks(self) -> Stacks:
        """The parts of every layer, by the name of its stack in the model."""
        return {"stack": self.layers(self.n_layers)}

    def layers(self, n: int) -> tuple[LayerParts, ...]:
        """The parts of the first `n` layers."""
        return tuple(self.layer(i) for i in range(n))

    def layer(self, i: int) -> LayerParts:
        """The parts of layer `i`, counted from 0: its own by `layer_pattern`, or else the model's.

        By default, cross-attention is like the self-attention of its layer. Raises `ValueError` for
        a pattern or positions of a layer without attention.
        """
        pattern = self.layer_pattern
        parts = LayerParts(
            attention=self.attention,
            cross_attention=self.cross_attention_config,
            feedforward=self.feedforward,
            norm=self.norm,
            position=self.position,
        ).with_own(pattern[i % len(pattern)] if pattern else LayerConfig())
        if self.cross_attention is None and isinstance(parts.attention, AttentionConfig):
            return replace(parts, cross_attention=parts.attention.of_memory())
        return parts

    def fields_of_layers(self, chosen: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """The fields of a configuration that keeps the chosen layers, in this order.

        Raises `InputError` where layers share their weights, or would read other layers.
        """
        if self.n_distinct_layers is not None:
            raise InputError(
                f"layers share their weights (n_distinct_layers = {self.n_distinct_layers}): none "
                "can be chosen alone"
            )
        [(name, numbers)] = chosen.items()
        if self.per_layer is not None and [*numbers] != [*range(self.n_layers)]:
            raise InputError(
                "embedding.per_layer has a table for every layer: none can be chosen alone"
            )
        check_chosen(self.stacks[name], numbers)
        return {
            "n_layers": len(numbers),
            "layer_pattern": entries_of(self.layer_pattern, numbers),
        }

    def with_parts(self: C, field: str, change: Callable[[Any], Any]) -> C:
        """This configuration with `change` applied to the field of the model and of every layer.

        For `attention` these are the attention of the model, of its decoder and of its layers, and
        cross-attention.
        """
        names = [
            name for name in (field, f"cross_{field}", f"decoder_{field}") if name in vars(self)
        ]
        given = {name: part for name in names if (part := vars(self)[name]) is not None}
        changes: dict[str, Any] = {name: change(part) for name, part in given.items()}
        for name in ("layer_pattern", "decoder_layer_pattern"):
            if pattern := vars(self).get(name):
                changes[name] = tuple(layer.with_part(field, change) for layer in pattern)
        return replace(self, **changes)

    @property
    def _position_attention(self) -> Positioned | None:
        """The first attention that uses the model's positions, or else the first of all."""
        pattern = self.layer_pattern or (LayerConfig(),)
        mixers = [(layer.position, self.layer(i).attention) for i, layer in enumerate(pattern)]
        mixers.sort(key=lambda pair: pair[0] is not None)
        return next((mixer for _, mixer in mixers if isinstance(mixer, POSITIONED)), None)

    def build_context(
        self, *, causal: bool, max_len: int, attention: Positioned | None = None
    ) -> BuildContext:
        """The sizes for which a position encoding is built, by this attention or the model's."""
        attention = attention or self._position_attention or AttentionConfig(n_heads=1)
        heads = attention.heads(self.d_model)
        return BuildContext(
            d_model=self.d_model,
            max_len=max_len,
            n_heads=heads.n_heads,
            n_kv_heads=heads.n_kv_heads,
            d_head=heads.d_head,
            causal=causal,
            scale=scale_of(attention.score, attention.width(self.d_model)),
            n_layers=self.n_layers,
            score=kind_of(attention.score),
            plain_products=is_plain_product(attention.score),
            projections=isinstance(attention, AttentionConfig),
            pictures=self.reads_pictures,
        )

    def build_embedding(self, vocab_size: int, position: Position) -> TokenEmbedding:
        """Build the token embedding; a custom one has the same attributes (`EmbeddingPart`)."""
        made = build_embedding(self.embedding, vocab_size, self.d_model, position, self.dropout)
        if (per_layer := self.per_layer) is not None:
            made.per_layer = per_layer.build(vocab_size, self.d_model, self.n_layers, self.norm)
        return made

    @property
    def per_layer(self) -> PerLayerEmbeddingConfig | None:
        """The configuration of per-layer embeddings; None if there are none."""
        embedding = self.embedding
        return embedding.per_layer if isinstance(embedding, EmbeddingConfig) else None

    @property
    def convolution(self) -> LayerConvolutionConfig | None:
        """The convolution next to the first layer, which encoders alone may have."""
        return None

    def build_position(self, *, causal: bool, max_len: int | None = None) -> Position:
        """Build the position encoding of a stack, which acts on its embeddings and its layers."""
        context = self.build_context(causal=causal, max_len=max_len or self.max_len)
        if isinstance(self.embedding, EmbeddingConfig):
            context = replace(context, d_model=self.embedding.inner_width(self.d_model))
        return build_position(self.position, context)

    @property
    def cross_attention_config(self) -> AttentionConfig:
        """The configuration of cross-attention; by default that of self-attention.

        If the blocks have no attention: eight heads, or the largest smaller number that divides the
        width.
        """
        if self.cross_attention is not None:
            return self.cross_attention
        if isinstance(self.attention, AttentionConfig):
            return self.attention.of_memory()
        return AttentionConfig(n_heads=max(n for n in range(1, 9) if self.d_model % n == 0))

    def build_stack(self, position: Position, depth: Depth) -> Stack:
        """Build a stack of blocks with self-attention (or another mixer) and feed-forward."""
        return self._build_stack(position, depth, depth.n_layers, cross=False)

    def build_cross_stack(self, position: Position, depth: Depth) -> Stack:
        """Build a stack of blocks that also have cross-attention."""
        return self._build_stack(position, depth, depth.decoder, cross=True)

    def build_single(self, position: Position, depth: Depth) -> Stack:
        """Build a stack of one block, equal to layer `depth.layer` of the model."""
        shared = {self.build_context(causal=depth.causal, max_len=self.max_len): position}
        block = self._layer(shared, depth, cross=False)
        return Stack([block], build_final_norm(self.residual, self.d_model, self.norm))

    def _build_stack(
        self, position: Position, depth: Depth, n_layers: int, *, cross: bool
    ) -> Stack:
        shared = {self.build_context(causal=depth.causal, max_len=self.max_len): position}
        blocks = [
            self._layer(shared, replace(depth, layer=i), cross=cross) for i in range(n_layers)
        ]
        if self.n_distinct_layers is not None:
            share_weights(blocks, self.n_distinct_layers)
        layer_drop = LayerDrop(self.layer_drop) if self.layer_drop else None
        return Stack(blocks, build_final_norm(self.residual, self.d_model, self.norm), layer_drop)

    def _layer(self, shared: SharedPositions, depth: Depth, *, cross: bool) -> AnyBlock:
        """Build the block of a layer. Raises `InputError` for a wrong part, with the layer."""
        try:
            return self.build_block(shared, depth, cross=cross)
        except InputError as error:
            raise InputError(f"layer {depth.layer}: {error}") from error

    def build_block(self, shared: SharedPositions, depth: Depth, *, cross: bool) -> AnyBlock:
        """Build layer `depth.layer` of a stack, with every sublayer in its placement."""
        layer = self.layer(depth.layer)
        parts, per_layer = self._build_residuals(layer, depth, cross=cross), self.per_layer
        position = self._position_in(layer, shared, depth).in_layer(depth.layer)
        parts["attention"] = build_mixer(
            layer.attention, self.d_model, position, depth.causal, depth.layer
        )
        if cross:
            parts["cross_attention"] = layer.cross_attention.build_cross(self.d_model, depth.layer)
        parts["feedforward"] = build_feedforward(layer.feedforward, self.d_model)
        if per_layer is not None:
            parts["per_layer"] = per_layer.build_input(self.d_model)
            parts["per_layer_residual"] = self._build_output_norm(layer.norm, depth)
            return EmbeddedBlock(**parts)
        if depth.layer == 0 and self.convolution is not None:
            parts["convolution"] = self.convolution.build(self.d_model, layer.norm, self.dropout)
            return ConvolvedBlock(**parts)
        if isinstance(self.residual, ParallelConfig):
            parts["norm"] = self.residual.build_shared(self.d_model, layer.norm)
            return ParallelCrossBlock(**parts) if cross else ParallelBlock(**parts)
        return CrossBlock(**parts) if cross else Block(**parts)

    def _build_residuals(
        self, layer: LayerParts, depth: Depth, *, cross: bool
    ) -> dict[str, nn.Module]:
        """Build the placement of every sublayer of a layer, by its name in the block."""
        names = ["attention", *(["cross_attention"] if cross else []), "feedforward"]
        present = [name for name in names if not isinstance(getattr(layer, name), ABSENT)]
        begin, ends = depth.layer * len(names), self.per_layer is None
        return {
            f"{name}_residual": self.build_residual(
                layer.norm,
                replace(depth, sublayer=begin + i, ends_layer=ends and name == present[-1]),
                first=name == present[0],
            )
            if name in present
            else NoPlacement()
            for i, name in enumerate(names)
        }

    def _build_output_norm(self, norm: NormConfig, depth: Depth) -> nn.Module:
        """The placement of the sublayer of per-layer embeddings: a norm of its output."""
        factor = isinstance(self.residual, SandwichNormConfig) and self.residual.layer_factor
        placement = SandwichNormConfig(norms="output", layer_factor=factor)
        last = replace(depth, ends_layer=True)
        return build_placement(placement, self.d_model, norm, self.dropout, last)

    def _position_in(self, layer: LayerParts, shared: SharedPositions, depth: Depth) -> Position:
        """The positions of a layer: its own, or those shared by layers of the same head sizes."""
        attention = layer.attention if isinstance(layer.attention, POSITIONED) else None
        sizes = self.build_context(causal=depth.causal, max_len=self.max_len, attention=attention)
        pattern = self.layer_pattern
        if pattern and pattern[depth.layer % len(pattern)].position is not None:
            return build_position(layer.position, sizes)
        models = next(iter(shared.values()))
        if attention is None or not acts_in_attention(models):
            return models
        if sizes not in shared:
            shared[sizes] = build_position(self.position, sizes)
        return shared[sizes]

    def build_residual(self, norm: NormConfig, depth: Depth, *, first: bool) -> nn.Module:
        """Build the placement of one sublayer; `first` if it is the first of its block."""
        placement = self.residual
        very_first = first and depth.layer == 0
        if very_first and isinstance(placement, PreNormConfig) and not placement.first:
            return PreNorm(NoNorm(), self.dropout, scale=placement.scale)
        return build_placement(placement, self.d_model, norm, self.dropout, depth)

    def build_exits(
        self, layers: tuple[int, ...], head: HeadConfig, n_outputs: int
    ) -> nn.ModuleDict:
        """Build a norm and a head for each early exit."""
        exits = {
            str(layer): ExitHead(self._exit_norm(), build_head(head, self.d_model, n_outputs))
            for layer in layers
        }
        return nn.ModuleDict(exits)

    def _exit_norm(self) -> nn.Module:
        """The norm before the head of an exit, which also merges residual streams."""
        if isinstance(self.residual, WITH_STREAMS):
            return self.residual.build_final(self.d_model, self.norm)
        return build_norm(self.norm, self.d_model)
