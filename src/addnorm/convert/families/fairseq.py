"""fairseq-style encoder–decoder layers, shared by Marian, BART and Whisper."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TypeVar

from addnorm.convert.core import keys
from addnorm.convert.core.family import ModelSpec, encoder_decoder
from addnorm.convert.core.known import token_head_of
from addnorm.convert.core.maps import Reshaped, TensorMap, ZeroTensor, renamed, weight_and_bias
from addnorm.convert.core.settings import Json
from addnorm.data.tokenizing.tokenizers import BOS_ID, EOS_ID, PAD_ID
from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig

HEAD_BIAS = "final_logits_bias"

TOKEN_IDS: Json = {
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "decoder_start_token_id": BOS_ID,
}
"""The ids of our tokenizers, which those of a folder replace."""


def fairseq_table(
    model_type: str, architecture: str, model: EncoderDecoderConfig, *entries: keys.Entry
) -> keys.ConfigTable:
    """The table of a family: the keys of both stacks, and `entries`."""
    attention, feedforward = AttentionConfig(n_heads=1), FeedForwardConfig()
    return keys.ConfigTable(
        replace(
            model,
            attention=attention,
            decoder_attention=attention,
            feedforward=feedforward,
            decoder_feedforward=feedforward,
        ),
        (
            keys.VOCABULARY,
            keys.Size("d_model", "d_model hidden_size"),
            keys.Size("n_layers", "encoder_layers num_hidden_layers"),
            keys.Size("n_decoder_layers", "decoder_layers"),
            keys.Size("attention.n_heads", "encoder_attention_heads"),
            keys.Size("decoder_attention.n_heads", "decoder_attention_heads"),
            keys.Size("feedforward.d_ff", "encoder_ffn_dim"),
            keys.Size("decoder_feedforward.d_ff", "decoder_ffn_dim"),
            keys.Choice(
                "feedforward.activation decoder_feedforward.activation",
                "activation_function",
                keys.ACTIVATIONS,
                "gelu",
            ),
            keys.Value("attention.dropout decoder_attention.dropout", "attention_dropout", 0.0),
            keys.Value(
                "feedforward.dropout decoder_feedforward.dropout", "activation_dropout", 0.0
            ),
            keys.Value("head.tied", "tie_word_embeddings", True),
            keys.Ignored("encoder_layerdrop decoder_layerdrop"),
            *entries,
        ),
        {
            "model_type": model_type,
            "architectures": [architecture],
            "is_encoder_decoder": True,
            **TOKEN_IDS,
            "forced_eos_token_id": None,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
        },
        _without_equal_decoder,
    )


SCALE = keys.Choice("embedding.scale", "scale_embedding", {True: "sqrt", False: "one"}, False)


def _without_equal_decoder(model: ModelConfig) -> ModelConfig:
    """The model without the decoder's attention or feed-forward where the encoder's is the same."""
    assert isinstance(model, EncoderDecoderConfig)
    return replace(
        model,
        decoder_attention=_if_other(model.decoder_attention, model.attention),
        decoder_feedforward=_if_other(model.decoder_feedforward, model.feedforward),
    )


T = TypeVar("T")


def _if_other(part: T, other: object) -> T | None:
    return None if part == other else part


def with_head_bias(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """Give the head a bias if the file has one."""
    model = encoder_decoder(spec)
    head = replace(token_head_of(model), bias=HEAD_BIAS in names)
    return replace(spec, model=replace(model, head=head))


def head_bias(spec: ModelSpec) -> Iterator[TensorMap]:
    """The map of the head bias."""
    n_tokens = spec.target_vocab_size or spec.vocab_size
    if token_head_of(encoder_decoder(spec)).bias:
        yield Reshaped("head.bias", HEAD_BIAS, (n_tokens,), (1, n_tokens))


def stacks(model: EncoderDecoderConfig, *, key_bias: bool = True) -> Iterator[TensorMap]:
    """The maps of all layers of both stacks; without `key_bias`, theirs have no key bias."""
    lacks = None if key_bias else model.d_model
    for i in range(model.n_layers):
        yield from _layer(f"encoder.blocks.{i}", f"model.encoder.layers.{i}", False, lacks)
    for i in range(model.n_decoder_layers or model.n_layers):
        yield from _layer(f"decoder.blocks.{i}", f"model.decoder.layers.{i}", True, lacks)


def _layer(ours: str, theirs: str, cross: bool, lacks: int | None) -> Iterator[TensorMap]:
    yield from _attention(f"{ours}.attention", f"{theirs}.self_attn", lacks)
    yield from renamed(ours, theirs, LAYER)
    if cross:
        norm = "cross_attention_residual.norm"
        yield from _attention(f"{ours}.cross_attention", f"{theirs}.encoder_attn", lacks)
        yield from weight_and_bias(f"{ours}.{norm}", f"{theirs}.encoder_attn_layer_norm")


LAYER = {
    "attention_residual.norm": "self_attn_layer_norm",
    "feedforward.up_proj": "fc1",
    "feedforward.down_proj": "fc2",
    "feedforward_residual.norm": "final_layer_norm",
}


def _attention(ours: str, theirs: str, lacks: int | None) -> Iterator[TensorMap]:
    """`lacks` is the width of the key bias if theirs has none."""
    for part in ("q_proj", "v_proj", "out_proj"):
        yield from weight_and_bias(f"{ours}.{part}", f"{theirs}.{part}")
    yield from weight_and_bias(f"{ours}.k_proj", f"{theirs}.k_proj", bias=lacks is None)
    if lacks is not None:
        yield ZeroTensor(f"{ours}.k_proj.bias", (lacks,))
