"""Export translators and language models to CTranslate2 folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from addnorm.atomic import atomic_directory
from addnorm.convert.exporters.ctranslate2_options import blocks_of, refusal, stack_options
from addnorm.data.encoding import Tokenizers
from addnorm.data.tokenizers import Tokenizer
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DecoderModel, EncoderDecoderConfig, EncoderDecoderModel
from addnorm.nn.attention import SelfAttention
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.blocks import AnyBlock, CrossBlock, ParallelBlock, Stack
from addnorm.nn.context import Context
from addnorm.nn.embed import Embedding
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.heads import TokenHead
from addnorm.nn.masks import Full
from addnorm.nn.norms import LayerNorm, NoNorm, OffsetRMSNorm, RMSNorm
from addnorm.nn.positions import Learned, Sinusoidal, T5Bias
from addnorm.nn.residuals import PostNorm, PreNorm, SandwichNorm

Quantization = Literal["int8", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"]
Norm = LayerNorm | RMSNorm | OffsetRMSNorm

N_POSITIONS = 2048
"""Rows, at least, of the table that stands for positions that have no end."""

SANDWICH = {
    "self_attention": ("input_layer_norm", "post_attention_layer_norm"),
    "attention": (
        "external_pre_encoder_attention_layer_norm",
        "external_post_encoder_attention_layer_norm",
    ),
    "ffn": ("pre_feedforward_layer_norm", "post_feedforward_layer_norm"),
}
"""The two norms around each part of a layer."""


def export_ctranslate2(
    model: EncoderDecoderModel | DecoderModel,
    config: EncoderDecoderConfig | DecoderConfig,
    tokenizers: Tokenizers,
    folder: Path,
    *,
    quantization: Quantization | None = None,
) -> None:
    """Write `model.bin`, `config.json`, the vocabularies and the tokenizers into `folder`.

    Tokens are those of the tokenizer: `tokenizer.inner.encode(text).tokens`. The runtime itself
    adds what a source begins and ends with; a prompt is given whole. Where our positions have no
    end, theirs end at `max_len`, or at 2048 if that is more. Raises `InputError` naming the part
    that CTranslate2 does not have, and where the package is missing.
    """
    _require()
    rows = max(config.max_len, N_POSITIONS)
    match model:
        case DecoderModel():
            spec = _language_model(model, tokenizers.source, rows)
        case EncoderDecoderModel():
            spec = _translator(model, tokenizers, rows)
    spec.config.layer_norm_epsilon = _one_eps(model)
    spec.validate()
    spec.optimize(quantization=quantization)
    with atomic_directory(folder, ["*vocabulary.json", "*tokenizer*.json"]) as partial:
        spec.save(str(partial))
        tokenizers.save(partial)


def _require() -> None:
    try:
        import ctranslate2  # noqa: F401 # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise InputError(
            "this export needs CTranslate2: pip install 'addnorm[ctranslate2]'"
        ) from error


# The whole model.


def _language_model(model: DecoderModel, tokenizer: Tokenizer, rows: int) -> Any:
    from ctranslate2.specs import transformer_spec

    options = stack_options(model.stack)
    decoder = transformer_spec.TransformerDecoderSpec(
        **options, with_encoder_attention=False, layernorm_embedding=_has_norm(model.embed)
    )
    spec = transformer_spec.TransformerDecoderModelSpec(decoder)
    _set_decoder(decoder, model.embed, model.stack, model.head, rows)
    tokens = _vocabulary(tokenizer, model.embed)
    spec.register_vocabulary(tokens)
    _set_specials(spec.config, tokenizer, tokens)
    return spec


def _translator(model: EncoderDecoderModel, tokenizers: Tokenizers, rows: int) -> Any:
    from ctranslate2.specs import transformer_spec

    if not isinstance(source := model.source_embed, Embedding):
        raise refusal("encoder of other inputs", "an encoder of tokens")
    options = stack_options(model.encoder)
    for name, part in (("alibi", "ALiBi"), ("parallel_residual", "parallel sublayers")):
        if options.pop(name, False):
            raise refusal(f"encoder with {part}", "a decoder-only model with it")
    encoder = transformer_spec.TransformerEncoderSpec(
        **options, layernorm_embedding=_has_norm(source)
    )
    options = stack_options(model.decoder)
    if options.get("pre_post_layer_norm"):
        options["external_pre_post_encoder_layers"] = True
    decoder = transformer_spec.TransformerDecoderSpec(
        **options, layernorm_embedding=_has_norm(model.target_embed)
    )
    spec: Any = transformer_spec.TransformerSpec(encoder, decoder)
    _set_embedding(encoder, encoder.embeddings[0], source, rows)
    _set_stack(encoder, model.encoder)
    _set_decoder(decoder, model.target_embed, model.decoder, model.head, rows)
    spec.register_source_vocabulary(_vocabulary(tokenizers.source, source))
    tokens = _vocabulary(tokenizers.target, model.target_embed)
    spec.register_target_vocabulary(tokens)
    _set_specials(spec.config, tokenizers.target, tokens)
    spec.config.decoder_start_token = spec.config.bos_token
    _set_source_ends(spec.config, tokenizers.source)
    return spec


def _vocabulary(tokenizer: Tokenizer, embed: Embedding) -> list[str]:
    """The tokens by id; ids that the embedding has and the tokenizer has not get names of ours."""
    ids = range(embed.tokens.num_embeddings)
    named = [(i, tokenizer.inner.id_to_token(i)) for i in ids]
    return [f"<unused {i}>" if token is None else token for i, token in named]


def _set_specials(config: Any, tokenizer: Tokenizer, tokens: list[str]) -> None:
    if tokenizer.eos_id is None:
        raise refusal("text without an end", "a tokenizer with an end token")
    config.bos_token = tokens[tokenizer.bos_id]
    config.eos_token = tokens[tokenizer.eos_id]
    config.unk_token = "" if tokenizer.unk_id is None else tokens[tokenizer.unk_id]


def _set_source_ends(config: Any, tokenizer: Tokenizer) -> None:
    """What a source begins and ends with, as `data.encoding` puts it there."""
    before, after = tokenizer.before or (), tokenizer.after
    after = tokenizer.eos_ids[:1] if after is None else after
    if before not in ((), (tokenizer.bos_id,)) or after not in ((), (tokenizer.eos_id,)):
        raise refusal("source between other tokens", "one between its start and its end")
    config.add_source_bos = bool(before)
    config.add_source_eos = bool(after)


# The weights.


def _set_decoder(spec: Any, embed: Embedding, stack: Stack, head: TokenHead, rows: int) -> None:
    _set_embedding(spec, spec.embeddings, embed, rows)
    _set_stack(spec, stack)
    if head.transform is not None:
        raise refusal("head with a transform", "a plain head")
    spec.projection.weight = _array(head.weight)
    if head.bias is not None:
        spec.projection.bias = _array(head.bias)
    if head.scale != 1.0:
        spec.scale_outputs = head.scale
    if head.softcap is not None:
        spec.final_logit_softcapping = head.softcap


def _set_embedding(spec: Any, table: Any, embed: Embedding, rows: int) -> None:
    if embed.types is not None:
        raise refusal("sentence types", "an embedding without them")
    table.weight = _array(embed.tokens.weight)
    spec.scale_embeddings = embed.scale if embed.scale != 1.0 else False
    if _has_norm(embed):
        _set_norm(spec, "layernorm_embedding", embed.norm)
    if "position_encodings" in vars(spec):
        spec.position_encodings.encodings = _array(_encodings(embed, rows))
    elif isinstance(embed.position, Sinusoidal | Learned):
        raise refusal("positions both added and in attention", "one scheme")


def _encodings(embed: Embedding, rows: int) -> Tensor:
    """What the position scheme adds to the embedding at each position."""
    nothing = torch.zeros(1, embed.position.max_len or rows, embed.tokens.embedding_dim)
    nothing = nothing.to(embed.tokens.weight.device)
    return embed.position.embed(nothing, Context.over(nothing, Full()))[0]


def _has_norm(embed: Embedding) -> bool:
    return not isinstance(embed.norm, NoNorm)


def _set_stack(spec: Any, stack: Stack) -> None:
    for layer, block in zip(spec.layer, blocks_of(stack), strict=True):
        _set_attention(layer.self_attention, block.attention)
        if isinstance(block, CrossBlock):
            _set_attention(layer.attention, block.cross_attention)
            for norm in {"q_norm", "k_norm"} & vars(layer.attention).keys():
                delattr(layer.attention, norm)  # the specification has what self-attention has
        _set_feedforward(layer.ffn, block.feedforward)
        _set_block_norms(layer, block)
    if "layer_norm" in vars(spec):
        _set_norm(spec, "layer_norm", stack.norm)


def _set_block_norms(layer: Any, block: AnyBlock) -> None:
    match block:
        case ParallelBlock(norm=LayerNorm() | RMSNorm() | OffsetRMSNorm() as norm):
            _set_norm(layer, "shared_layer_norm", norm)
        case ParallelBlock():
            _set_norm(layer, "input_layer_norm", block.attention_residual.norm)
            _set_norm(layer, "post_attention_layer_norm", block.feedforward_residual.norm)
        case _:
            for part, residual in _residuals(block).items():
                inner, outer = SANDWICH[part]
                if isinstance(residual, SandwichNorm):
                    _set_norm(layer, inner, residual.norm_in)
                    _set_norm(layer, outer, residual.norm_out)
                else:
                    assert isinstance(residual, PreNorm | PostNorm)
                    _set_norm(getattr(layer, part), "layer_norm", residual.norm)


def _residuals(block: AnyBlock) -> Mapping[str, nn.Module]:
    """Each residual by what CTranslate2 calls its part of a layer."""
    residuals = {"self_attention": block.attention_residual, "ffn": block.feedforward_residual}
    cross = isinstance(block, CrossBlock)
    return residuals | ({"attention": block.cross_attention_residual} if cross else {})


def _set_attention(spec: Any, attention: nn.Module) -> None:
    assert isinstance(attention, MultiHead)
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    first = [[q, k, v]] if isinstance(attention, SelfAttention) else [[q], [k, v]]
    for linear, layers in zip(spec.linear, [*first, [attention.out_proj]], strict=True):
        _set_linear(linear, layers)
    score = attention.core.score
    assert isinstance(score, DotProduct)
    if score.scale != attention.d_head**-0.5:
        spec.queries_scale = score.scale
    if not isinstance(attention.q_norm, NoNorm):
        _set_norm(spec, "q_norm", attention.q_norm)
        _set_norm(spec, "k_norm", attention.k_norm)
    if isinstance(attention, SelfAttention) and isinstance(bias := attention.position, T5Bias):
        spec.relative_attention_bias = _array(bias.table.weight)
        spec.relative_attention_max_distance = np.int32(bias.max_distance)


def _set_feedforward(spec: Any, layer: nn.Module) -> None:
    assert isinstance(layer, FeedForward | GatedFeedForward)
    if isinstance(layer, GatedFeedForward):
        _set_linear(spec.linear_0, [layer.gate_proj])
        _set_linear(spec.linear_0_noact, [layer.up_proj])
    else:
        _set_linear(spec.linear_0, [layer.up_proj])
    _set_linear(spec.linear_1, [layer.down_proj])


def _set_linear(spec: Any, layers: Sequence[nn.Linear]) -> None:
    """The layers as one, their outputs side by side."""
    weights: list[Tensor] = [layer.weight for layer in layers]
    spec.weight = _array(torch.cat(weights))
    biases: list[Tensor | None] = [layer.bias for layer in layers]
    if given := [bias for bias in biases if bias is not None]:
        assert len(given) == len(layers)
        spec.bias = _array(torch.cat(given))


def _set_norm(parent: Any, name: str, norm: nn.Module) -> None:
    from ctranslate2.specs import common_spec

    if not isinstance(norm, Norm):
        part = "layer without a norm" if isinstance(norm, NoNorm) else type(norm).__name__
        raise refusal(part, "LayerNorm and RMSNorm")
    spec = common_spec.LayerNormSpec(rms_norm=not isinstance(norm, LayerNorm))
    weight = norm.weight.float()
    spec.gamma = _array(1.0 + weight if isinstance(norm, OffsetRMSNorm) else weight)
    if isinstance(norm, LayerNorm):
        spec.beta = _array(torch.zeros_like(weight) if norm.bias is None else norm.bias)
    setattr(parent, name, spec)


def _one_eps(model: EncoderDecoderModel | DecoderModel) -> float:
    """The ε of all norms: CTranslate2 has one for the whole model."""
    parts = (part for name, part in model.named_children() if name != "exits")
    norms = [m for part in parts for m in part.modules() if isinstance(m, Norm)]
    if len(found := {norm.eps for norm in norms}) != 1:
        raise refusal(f"norms with eps of {sorted(found)} in one model", "one eps for all")
    return found.pop()


def _array(tensor: Tensor) -> Any:
    """A copy, for CTranslate2 quantizes in place."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()
