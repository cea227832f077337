"""fairseq-style encoder–decoder layers, shared by Marian, BART and Whisper."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from addnorm.convert.core.activations import activation_name, activation_of
from addnorm.convert.core.family import ModelSpec, attention_of, encoder_decoder, mlp_of
from addnorm.convert.core.known import embedding_of, token_head_of
from addnorm.convert.core.maps import Reshaped, TensorMap, ZeroTensor, weight_and_bias
from addnorm.convert.core.settings import Json, Settings
from addnorm.data.tokenizing.tokenizers import BOS_ID, EOS_ID, PAD_ID
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig

HEAD_BIAS = "final_logits_bias"


def sublayers(settings: Settings) -> dict[str, Any]:
    """Attention and feed-forward of both stacks, with a bias everywhere; of the decoder where they
    differ from the encoder's."""
    encoder, decoder = (_sublayers(settings, side) for side in ("encoder", "decoder"))
    own = {f"decoder_{name}": part for name, part in decoder.items() if part != encoder[name]}
    return encoder | own


def _sublayers(settings: Settings, side: str) -> dict[str, Any]:
    return {
        "attention": AttentionConfig(
            n_heads=settings.required_int(f"{side}_attention_heads"),
            dropout=settings.get("attention_dropout", 0.0),
        ),
        "feedforward": FeedForwardConfig(
            d_ff=settings.required_int(f"{side}_ffn_dim"),
            activation=activation_of(settings, "activation_function", "gelu"),
            dropout=settings.get("activation_dropout", 0.0),
        ),
    }


def depths(settings: Settings) -> tuple[int, int]:
    """The numbers of encoder and decoder layers."""
    for side in ("encoder", "decoder"):  # random layer dropping in training
        settings.get(f"{side}_layerdrop", 0.0)
    return settings.required_int("encoder_layers", "num_hidden_layers"), settings.required_int(
        "decoder_layers"
    )


def embedding_scale(settings: Settings) -> EmbeddingConfig:
    """Embeddings, optionally multiplied by √d_model."""
    return EmbeddingConfig(scale="sqrt" if settings.get("scale_embedding", False) else "one")


def written(spec: ModelSpec, model_type: str, architecture: str) -> Json:
    """The config keys shared by these families."""
    model = encoder_decoder(spec)
    attention, dense = attention_of(model), mlp_of(model)
    config: Json = {
        "model_type": model_type,
        "architectures": [architecture],
        "is_encoder_decoder": True,
        "vocab_size": spec.vocab_size,
        "d_model": model.d_model,
        "activation_function": activation_name(dense.activation),
        "dropout": model.dropout,
        "attention_dropout": attention.dropout,
        "activation_dropout": dense.dropout,
        "scale_embedding": embedding_of(model).scale == "sqrt",
        "tie_word_embeddings": token_head_of(model).tied,
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "decoder_start_token_id": BOS_ID,
        "forced_eos_token_id": None,
    }
    n_decoder_layers = model.n_decoder_layers or model.n_layers
    for side, parts, n_layers in (
        ("encoder", model, model.n_layers),
        ("decoder", model.decoder_parts, n_decoder_layers),
    ):
        config |= {
            f"{side}_layers": n_layers,
            f"{side}_attention_heads": attention_of(parts).n_heads,
            f"{side}_ffn_dim": mlp_of(parts).d_ff or 4 * model.d_model,
            f"{side}_layerdrop": 0.0,
        }
    return config


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
    yield from weight_and_bias(f"{ours}.attention_residual.norm", f"{theirs}.self_attn_layer_norm")
    if cross:
        norm = "cross_attention_residual.norm"
        yield from _attention(f"{ours}.cross_attention", f"{theirs}.encoder_attn", lacks)
        yield from weight_and_bias(f"{ours}.{norm}", f"{theirs}.encoder_attn_layer_norm")
    yield from weight_and_bias(f"{ours}.feedforward.up_proj", f"{theirs}.fc1")
    yield from weight_and_bias(f"{ours}.feedforward.down_proj", f"{theirs}.fc2")
    yield from weight_and_bias(f"{ours}.feedforward_residual.norm", f"{theirs}.final_layer_norm")


def _attention(ours: str, theirs: str, lacks: int | None) -> Iterator[TensorMap]:
    """`lacks` is the width of the key bias if theirs has none."""
    for part in ("q_proj", "v_proj", "out_proj"):
        yield from weight_and_bias(f"{ours}.{part}", f"{theirs}.{part}")
    yield from weight_and_bias(f"{ours}.k_proj", f"{theirs}.k_proj", bias=lacks is None)
    if lacks is not None:
        yield ZeroTensor(f"{ours}.k_proj.bias", (lacks,))
