"""The encoder–decoder Transformer: the decoder attends to the encoded source."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, cast

from jaxtyping import Bool, Float, Int, Shaped
from pydantic import PositiveInt
from torch import Tensor, nn

from addnorm.config import ConfigError, config, problem_of
from addnorm.errors import InputError
from addnorm.models.earlier_layers import check_chosen
from addnorm.models.inputs import (
    Input,
    InputConfig,
    TokenInputConfig,
    build_input,
    embedded,
    valid_positions,
)
from addnorm.models.layers import LayerConfig, Stacks, entries_of
from addnorm.models.transformer import LayerCount, TransformerConfig
from addnorm.nn.attention import CrossAttention
from addnorm.nn.blocks import MixerConfig, Stack
from addnorm.nn.cache import KVCache
from addnorm.nn.context import Context
from addnorm.nn.embed import TokenEmbedding, zero_padding
from addnorm.nn.heads import AnyTokenHeadConfig, TokenHeadConfig, build_head, tie_head
from addnorm.nn.init import initialise
from addnorm.nn.masks import Branches, Causal
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.patches import SeriesEmbeddingConfig
from addnorm.nn.positions import PositionConfig
from addnorm.nn.residuals import Depth
from addnorm.nn.types import KeysValues
from addnorm.parts import check_conflicts


class EncoderDecoderModel(nn.Module):
    """`head(decoder(target, encoder(source)))` (Vaswani et al. 2017, fig. 1)."""

    def __init__(
        self,
        *,
        source_embed: Input,
        encoder: Stack,
        target_embed: TokenEmbedding,
        decoder: Stack,
        head: nn.Module,
    ) -> None:
        super().__init__()
        self.source_embed = source_embed
        self.encoder = encoder
        self.target_embed = target_embed
        self.decoder = decoder
        self.head = head

    def forward(
        self,
        source: Shaped[Tensor, "batch *input"],
        target: Int[Tensor, "batch seq"],
        source_valid: Bool[Tensor, "batch source_seq"] | None = None,
        target_valid: Bool[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Next-token logits at every position of `target`."""
        return self.head(*self.hidden(source, target, source_valid, target_valid))

    def hidden(
        self,
        source: Shaped[Tensor, "batch *input"],
        target: Int[Tensor, "batch seq"],
        source_valid: Bool[Tensor, "batch source_seq"] | None = None,
        target_valid: Bool[Tensor, "batch seq"] | None = None,
    ) -> tuple[Float[Tensor, "batch seq d_model"], Context]:
        """The final hidden states and their context: the inputs of the head."""
        memory = self.encode(source, source_valid)
        return self.decoded(target, memory, source_valid, target_valid)

    def encode(
        self,
        source: Shaped[Tensor, "batch *input"],
        valid: Bool[Tensor, "batch source_seq"] | None = None,
    ) -> Float[Tensor, "batch memory_seq d_model"]:
        """Encode the source into the memory that the decoder attends to."""
        x, ctx = embedded(self.source_embed, source, valid)
        return zero_padding(self.encoder(x, ctx), ctx.valid)

    def decode(
        self,
        target: Int[Tensor, "batch seq"],
        memory: Float[Tensor, "memories memory_seq width"],
        source_valid: Bool[Tensor, "memories source_seq"] | None = None,
        target_valid: Bool[Tensor, "batch kv_seq"] | None = None,
        cache: KVCache | None = None,
        branches: Branches | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Next-token logits given the memory; `source_valid` marks the real source inputs.

        With a `cache`, `target` holds only the new tokens, and `target_valid` covers the cached
        ones too. With `branches`, each new token of a row is the leaf of a branch, rather than the
        successor of the token before it.
        """
        return self.head(*self.decoded(target, memory, source_valid, target_valid, cache, branches))

    def decoded(
        self,
        target: Int[Tensor, "batch seq"],
        memory: Float[Tensor, "memories memory_seq width"],
        source_valid: Bool[Tensor, "memories source_seq"] | None = None,
        target_valid: Bool[Tensor, "batch kv_seq"] | None = None,
        cache: KVCache | None = None,
        branches: Branches | None = None,
    ) -> tuple[Float[Tensor, "batch seq d_model"], Context]:
        """The decoder's final hidden states and their context: the inputs of the head."""
        past = 0 if cache is None else cache.length
        mask, positions = (Causal(), None) if branches is None else (branches, branches.positions)
        ctx = Context.over(target, mask, valid=target_valid, past=past, positions=positions)
        ctx = ctx.attending(memory, valid_positions(self.source_embed, source_valid))
        return self.decoder(self.target_embed(target, ctx), ctx, cache), ctx

    def cross_keys_values(
        self, memory: Float[Tensor, "memories memory_seq d_model"]
    ) -> list[KeysValues]:
        """Project the memory to the cross-attention keys and values of each layer."""
        return [attention.keys_values(memory) for attention in self.cross_attentions]

    @property
    def cross_attentions(self) -> list[CrossAttention]:
        """The cross-attention module of each decoder layer."""
        return [cast(CrossAttention, block.cross_attention) for block in self.decoder.blocks]

    def new_cache(self) -> KVCache:
        """An empty cache for the decoder."""
        return self.decoder.new_cache()


OF_DECODER = ("attention", "feedforward", "layer_pattern", "position")
"""The fields of which the decoder can have its own, such as `decoder_attention`."""


@config
class EncoderDecoderConfig(TransformerConfig):
    """An encoder of the kind of input `input`, and a decoder that writes tokens."""

    kind: Literal["encoder_decoder"] = "encoder_decoder"
    input: InputConfig = TokenInputConfig()
    """The input of the encoder: tokens, images, audio or time series."""
    n_decoder_layers: LayerCount | None = None
    """Blocks of the decoder; by default as many as the encoder has."""
    decoder_attention: MixerConfig | None = None
    """The mixer of the decoder's tokens; by default as in the encoder."""
    decoder_feedforward: AnyFeedForwardConfig | None = None
    """The decoder's layer that acts on each token alone; by default the encoder's."""
    share_embeddings: bool = True
    """Use one table for source and target, which then share a vocabulary."""
    decoder_layer_pattern: tuple[LayerConfig, ...] | None = None
    """The parts in which the decoder's layers differ, in turn; by default as in the encoder."""
    decoder_position: PositionConfig | None = None
    """The decoder's positions; by default the encoder's."""
    decoder_max_len: PositiveInt | None = None
    """The decoder's `max_len`; by default the encoder's."""
    target_vocab_size: PositiveInt | None = None
    """Rows of the decoder's table; by default as many as its tokenizer has tokens."""
    head: AnyTokenHeadConfig = TokenHeadConfig()
    """The head, from the decoder's hidden states to logits over the vocabulary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_conflicts([self.head], self)
        if isinstance(self.input, SeriesEmbeddingConfig) and self.input.variables != "mixed":
            raise ValueError(
                "input.variables = 'independent' is for a forecast of each variable: a text is "
                "written about all of them, 'mixed'"
            )
        try:
            parts = self.decoder_parts
        except ConfigError as error:
            raise ValueError(f"decoder: {problem_of(error.errors()[0])}") from error
        for layer in parts.layers(len(parts.layer_pattern) or 1):
            layer.cross_attention.heads(self.d_model)

    @cached_property
    def decoder_parts(self) -> "EncoderDecoderConfig":
        """The configuration with the decoder's layers and positions."""
        given = {name: getattr(self, f"decoder_{name}") for name in OF_DECODER}
        given = {name: value for name, value in given.items() if value is not None}
        without = dict.fromkeys((f"decoder_{name}" for name in given), None)
        return replace(self, **given, **without) if given else self

    @property
    def looks_back(self) -> bool:
        return False

    @property
    def stacks(self) -> Stacks:
        """The parts of every layer, by the name that its stack has in the model."""
        n_decoder = self.n_decoder_layers or self.n_layers
        return {
            "encoder": self.layers(self.n_layers),
            "decoder": self.decoder_parts.layers(n_decoder),
        }

    def fields_of_layers(self, chosen: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """The fields of a configuration that keeps the chosen layers, in this order."""
        encoder, decoder = chosen["encoder"], chosen["decoder"]
        changes = super().fields_of_layers({"encoder": encoder})
        check_chosen(self.stacks["decoder"], decoder)
        if len(decoder) != len(encoder) or self.n_decoder_layers is not None:
            changes["n_decoder_layers"] = len(decoder)
        pattern = entries_of(self.decoder_parts.layer_pattern, decoder)
        if self.decoder_layer_pattern is not None or pattern != changes["layer_pattern"]:
            changes["decoder_layer_pattern"] = pattern
        return changes

    def build(self, vocab_size: int, target_vocab_size: int | None = None) -> EncoderDecoderModel:
        """Build the model; `target_vocab_size` defaults to `vocab_size`.

        Only token inputs need `vocab_size`.

        Raises `InputError` if two different vocabularies would have to share one table.
        """
        n_target = target_vocab_size or vocab_size
        share = self.share_embeddings and isinstance(self.input, TokenInputConfig)
        if share and n_target != vocab_size:
            raise InputError(
                f"one table cannot embed a source vocabulary of {vocab_size} and a target "
                f"vocabulary of {n_target}: set model.share_embeddings = false, "
                "or tokenizer.joint = true"
            )
        position = self.build_position(causal=False)
        decoder = self.decoder_parts
        target_position = decoder.build_position(causal=True, max_len=self.decoder_max_len)
        n_decoder = self.n_decoder_layers or self.n_layers
        depth = Depth(encoder=self.n_layers, decoder=n_decoder)
        model = EncoderDecoderModel(
            source_embed=build_input(self.input, self, position, vocab_size),
            encoder=self.build_stack(position, depth),
            target_embed=self.build_embedding(n_target, target_position),
            decoder=decoder.build_cross_stack(target_position, replace(depth, causal=True)),
            head=build_head(self.head, self.d_model, n_target),
        )
        initialise(model, self.init)
        if isinstance(self.head, TokenHeadConfig) and self.head.tied:
            tie_head(model.head, model.target_embed.tokens)
        if share:
            assert isinstance(model.source_embed, TokenEmbedding)
            model.source_embed.tokens.weight = model.target_embed.tokens.weight
        return model
