"""Exporting translation and language models to CTranslate2, and verifying them with its runtime."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from addnorm.atomic import atomic_directory
from addnorm.convert.core.readback import (
    check_logits,
    check_types,
    model_logits,
    sample_inputs,
)
from addnorm.convert.exporters.claims import (
    added_positions,
    claim_added,
    claim_gain,
    leave_unused_position,
)
from addnorm.convert.exporters.ctranslate2_options import (
    blocks_of,
    refusal,
    residuals_of,
    stack_options,
)
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import optional
from addnorm.models import DecoderConfig, DecoderModel, EncoderDecoderConfig, EncoderDecoderModel
from addnorm.models.ledger import Ledger
from addnorm.nn.attention import SelfAttention
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.blocks import Block, CrossBlock, ParallelBlock, Stack
from addnorm.nn.embed import Embedding
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.heads import TokenHead
from addnorm.nn.norms import LayerNorm, NoNorm, OffsetRMSNorm, RMSNorm
from addnorm.nn.positions import Learned, Sinusoidal, T5Bias
from addnorm.nn.residuals import Branch, PostNorm, PreNorm, SandwichNorm

Quantization = Literal["int8", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"]
Norm = LayerNorm | RMSNorm | OffsetRMSNorm

TEMPLATE = "chat_template.jinja"
"""The file of a chat template, as transformers names it."""

N_POSITIONS = 2048
"""The minimum number of rows of the table for unbounded position encodings."""

SANDWICH = {
    "self_attention": ("input_layer_norm", "post_attention_layer_norm"),
    "attention": (
        "external_pre_encoder_attention_layer_norm",
        "external_post_encoder_attention_layer_norm",
    ),
    "ffn": ("pre_feedforward_layer_norm", "post_feedforward_layer_norm"),
}
"""CTranslate2's names of the two norms around each sublayer."""


def export_ctranslate2(
    model: EncoderDecoderModel | DecoderModel,
    config: EncoderDecoderConfig | DecoderConfig,
    tokenizers: Tokenizers,
    folder: Path,
    *,
    quantization: Quantization | None = None,
    template: str | None = None,
) -> None:
    """Write `model.bin`, `config.json`, the vocabularies and the tokenizers into `folder`.

    The end of a text is the first end token; others must be given to the runtime as `end_token`.
    `template` is a chat template, written under the file name of transformers.

    Tokens are those of the tokenizer: `tokenizer.inner.encode(text).tokens`. The runtime adds the
    special tokens around a source; a prompt must already contain them. Unbounded position encodings
    are limited to `max_len`, or to 2048 if that is more. Before the folder is moved into place, it
    is loaded by the runtime and must reproduce the model's logits. Raises `InputError` naming a
    part that CTranslate2 lacks, or if the package is missing.
    """
    spec = specification(model, config, tokenizers)
    spec.optimize(quantization=quantization)
    replaced = ["*vocabulary.json", "*tokenizer*.json", TEMPLATE]
    with atomic_directory(folder, replaced) as partial:
        spec.save(str(partial))
        tokenizers.save(partial)
        if template is not None:
            (partial / TEMPLATE).write_text(template, encoding="utf-8")
        check_ctranslate2(partial, model, tokenizers, quantization)


# The whole model.


def specification(
    model: EncoderDecoderModel | DecoderModel,
    config: EncoderDecoderConfig | DecoderConfig,
    tokenizers: Tokenizers,
) -> Any:
    """The model as a CTranslate2 specification with its weights. Errors are those of the export."""
    optional("ctranslate2", "ctranslate2", "this export")
    check_types("CTranslate2", model)
    ledger = Ledger(model, "CTranslate2")
    rows = max(config.max_len, N_POSITIONS)
    match model:
        case DecoderModel():
            spec = _language_model(model, tokenizers.source, rows, ledger)
        case EncoderDecoderModel():
            spec = _translator(model, tokenizers, rows, ledger)
    spec.config.layer_norm_epsilon = _one_eps(model, ledger)
    ledger.close()
    spec.validate()
    return spec


def _language_model(model: DecoderModel, tokenizer: Tokenizer, rows: int, ledger: Ledger) -> Any:
    from ctranslate2.specs import transformer_spec

    ledger.module(model, DecoderModel)
    ledger.leave_all(model.exits, because="a forward pass ends without the logits of early exits")
    ledger.leave_all(model.ahead, because="a forward pass ends without tokens further ahead")
    ledger.module(model.embed, Embedding)
    options = stack_options(model.stack, ledger)
    decoder = transformer_spec.TransformerDecoderSpec(
        **options, with_encoder_attention=False, layernorm_embedding=_has_norm(model.embed)
    )
    spec = transformer_spec.TransformerDecoderModelSpec(decoder)
    _set_decoder(decoder, model.embed, model.stack, model.head, rows, ledger)
    tokens = _vocabulary(tokenizer, model.embed)
    spec.register_vocabulary(tokens)
    _set_specials(spec.config, tokenizer, tokens)
    return spec


def _translator(
    model: EncoderDecoderModel, tokenizers: Tokenizers, rows: int, ledger: Ledger
) -> Any:
    from ctranslate2.specs import transformer_spec

    if not isinstance(source := model.source_embed, Embedding):
        raise refusal("encoder of other inputs", "an encoder of tokens")
    ledger.module(model, EncoderDecoderModel)
    ledger.module(source, Embedding)
    ledger.module(model.target_embed, Embedding)
    options = stack_options(model.encoder, ledger)
    for name, part in (("alibi", "ALiBi"), ("parallel_residual", "parallel sublayers")):
        if options.pop(name, False):
            raise refusal(f"encoder with {part}", "a decoder-only model with it")
    encoder = transformer_spec.TransformerEncoderSpec(
        **options, layernorm_embedding=_has_norm(source)
    )
    options = stack_options(model.decoder, ledger)
    if options.get("pre_post_layer_norm"):
        options["external_pre_post_encoder_layers"] = True
    decoder = transformer_spec.TransformerDecoderSpec(
        **options, layernorm_embedding=_has_norm(model.target_embed)
    )
    spec: Any = transformer_spec.TransformerSpec(encoder, decoder)
    _set_embedding(encoder, encoder.embeddings[0], source, rows, ledger)
    _set_stack(encoder, model.encoder, ledger)
    leave_unused_position(source.position, model.encoder, ledger)
    _set_decoder(decoder, model.target_embed, model.decoder, model.head, rows, ledger)
    spec.register_source_vocabulary(_vocabulary(tokenizers.source, source))
    tokens = _vocabulary(tokenizers.target, model.target_embed)
    spec.register_target_vocabulary(tokens)
    _set_specials(spec.config, tokenizers.target, tokens)
    spec.config.decoder_start_token = spec.config.bos_token
    _set_source_ends(spec.config, tokenizers.source)
    return spec


def _vocabulary(tokenizer: Tokenizer, embed: Embedding) -> list[str]:
    """The tokens by id, with placeholder names for embedding rows without a token."""
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
    """Set the special tokens around a source, as `data.ids` puts them."""
    before, after = tokenizer.before or (), tokenizer.after
    after = tokenizer.eos_ids[:1] if after is None else after
    if before not in ((), (tokenizer.bos_id,)) or after not in ((), (tokenizer.eos_id,)):
        raise refusal("source between other tokens", "one between its start and its end")
    config.add_source_bos = bool(before)
    config.add_source_eos = bool(after)


# The weights.


def _set_decoder(
    spec: Any, embed: Embedding, stack: Stack, head: nn.Module, rows: int, ledger: Ledger
) -> None:
    _set_embedding(spec, spec.embeddings, embed, rows, ledger)
    _set_stack(spec, stack, ledger)
    leave_unused_position(embed.position, stack, ledger)
    head = ledger.module(head, TokenHead)
    if head.transform is not None:
        raise refusal("head with a transform", "a plain head")
    spec.projection.weight = _array(ledger.take(head, "weight"))
    if (bias := ledger.take(head, "bias")) is not None:
        spec.projection.bias = _array(bias)
    if (scale := ledger.take(head, "scale")) != 1.0:
        spec.scale_outputs = scale
    if (softcap := ledger.take(head, "softcap")) is not None:
        spec.final_logit_softcapping = softcap


def _set_embedding(spec: Any, table: Any, embed: Embedding, rows: int, ledger: Ledger) -> None:
    if embed.types is not None:
        raise refusal("sentence types", "an embedding without them")
    if embed.proj is not None:
        raise refusal("table of another width", "an embedding without d_embed")
    ledger.dropout(embed.dropout)
    ledger.dropout(embed.word_dropout)
    table.weight = _array(ledger.table(embed.tokens))
    scale = ledger.take(embed, "scale")
    spec.scale_embeddings = scale if scale != 1.0 else False
    if _has_norm(embed):
        _set_norm(spec, "layernorm_embedding", embed.norm, ledger)
    else:
        ledger.module(embed.norm, NoNorm)
    if "position_encodings" in vars(spec):
        claim_added(embed.position, ledger)
        spec.position_encodings.encodings = _array(added_positions(embed, rows, torch.float32))
    elif isinstance(embed.position, Sinusoidal | Learned):
        raise refusal("positions both added and in attention", "one scheme")


def _has_norm(embed: Embedding) -> bool:
    return not isinstance(embed.norm, NoNorm)


def _set_stack(spec: Any, stack: Stack, ledger: Ledger) -> None:
    for layer, block in zip(spec.layer, blocks_of(stack, ledger), strict=True):
        _set_attention(layer.self_attention, block.attention, ledger)
        if isinstance(block, CrossBlock):
            _set_attention(layer.attention, block.cross_attention, ledger)
            for norm in {"q_norm", "k_norm"} & vars(layer.attention).keys():
                delattr(layer.attention, norm)  # spec inherits these from self-attention
        _set_feedforward(layer.ffn, block.feedforward, ledger)
        assert isinstance(block, Block | CrossBlock | ParallelBlock)  # claimed as such
        _set_block_norms(layer, block, ledger)
    if "layer_norm" in vars(spec):
        _set_norm(spec, "layer_norm", stack.norm, ledger)
    else:
        ledger.module(stack.norm, NoNorm)


def _set_block_norms(layer: Any, block: Block | CrossBlock | ParallelBlock, ledger: Ledger) -> None:
    if isinstance(block, ParallelBlock):
        branches = block.attention_residual, block.feedforward_residual
        norms = [ledger.module(branch, Branch).norm for branch in branches]
        if not isinstance(block.norm, NoNorm):
            for norm in norms:
                ledger.module(norm, NoNorm)
            _set_norm(layer, "shared_layer_norm", block.norm, ledger)
            return
        ledger.module(block.norm, NoNorm)
        _set_norm(layer, "input_layer_norm", norms[0], ledger)
        _set_norm(layer, "post_attention_layer_norm", norms[1], ledger)
        return
    for part, residual in residuals_of(block).items():
        inner, outer = SANDWICH[part]
        if isinstance(residual, SandwichNorm):
            _set_norm(layer, inner, residual.norm_in, ledger)
            _set_norm(layer, outer, residual.norm_out, ledger)
        else:
            assert isinstance(residual, PreNorm | PostNorm)
            _set_norm(getattr(layer, part), "layer_norm", residual.norm, ledger)


def _set_attention(spec: Any, attention: nn.Module, ledger: Ledger) -> None:
    assert isinstance(attention, MultiHead)
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    first = [[q, k, v]] if isinstance(attention, SelfAttention) else [[q], [k, v]]
    for linear, layers in zip(spec.linear, [*first, [attention.out_proj]], strict=True):
        _set_linear(linear, layers, ledger)
    score = attention.core.score
    assert isinstance(score, DotProduct)
    if score.scale != attention.d_head**-0.5:
        spec.queries_scale = score.scale
    for name, norm in (("q_norm", attention.q_norm), ("k_norm", attention.k_norm)):
        if isinstance(norm, NoNorm):
            ledger.module(norm, NoNorm)
        else:
            _set_norm(spec, name, norm, ledger)
    if isinstance(attention, SelfAttention) and isinstance(bias := attention.position, T5Bias):
        spec.relative_attention_bias = _array(ledger.table(bias.table))
        spec.relative_attention_max_distance = np.int32(ledger.take(bias, "max_distance"))
        ledger.leave(bias, "causal", because="an encoder and a decoder each have their own ranges")


def _set_feedforward(spec: Any, layer: nn.Module, ledger: Ledger) -> None:
    assert isinstance(layer, FeedForward | GatedFeedForward)
    if isinstance(layer, GatedFeedForward):
        _set_linear(spec.linear_0, [layer.gate_proj], ledger)
        _set_linear(spec.linear_0_noact, [layer.up_proj], ledger)
    else:
        _set_linear(spec.linear_0, [layer.up_proj], ledger)
    _set_linear(spec.linear_1, [layer.down_proj], ledger)


def _set_linear(spec: Any, layers: Sequence[nn.Module], ledger: Ledger) -> None:
    """Fuse linear layers by concatenating their outputs."""
    weights, biases = zip(*(ledger.linear(layer) for layer in layers), strict=True)
    spec.weight = _array(torch.cat(weights))
    if given := [bias for bias in biases if bias is not None]:
        if len(given) != len(layers):
            raise refusal("bias of queries, keys or values alone", "one of all three or none")
        spec.bias = _array(torch.cat(given))


def _set_norm(parent: Any, name: str, norm: nn.Module, ledger: Ledger) -> None:
    from ctranslate2.specs import common_spec

    if not isinstance(norm, Norm):
        part = "layer without a norm" if isinstance(norm, NoNorm) else type(norm).__name__
        raise refusal(part, "LayerNorm and RMSNorm")
    ledger.module(norm, LayerNorm, RMSNorm, OffsetRMSNorm)
    if norm.weight is None:
        raise refusal("norm without a gain", "LayerNorm and RMSNorm with one")
    spec = common_spec.LayerNormSpec(rms_norm=not isinstance(norm, LayerNorm))
    gain = claim_gain(norm, ledger)
    spec.gamma = _array(gain)
    if isinstance(norm, LayerNorm):
        bias = ledger.take(norm, "bias")
        spec.beta = _array(torch.zeros_like(gain) if bias is None else bias)
    setattr(parent, name, spec)


def _one_eps(model: EncoderDecoderModel | DecoderModel, ledger: Ledger) -> float:
    """The ε of all norms; CTranslate2 has only one for the whole model."""
    parts = (part for name, part in model.named_children() if name not in ("exits", "ahead"))
    norms = [m for part in parts for m in part.modules() if isinstance(m, Norm)]
    if len(values := {ledger.take(norm, "eps") for norm in norms}) != 1:
        raise refusal(f"norms with eps of {sorted(values)} in one model", "one eps for all")
    return values.pop()


def _array(tensor: Tensor) -> Any:
    """A copy as an array, since CTranslate2 quantises in place."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()


# Reading back.

ROUNDING = {"float16": 2e-2, "bfloat16": 1e-1, "int16": 2e-2}
"""Tolerances for lower-precision types; 0.25 for int8 weights."""


def check_ctranslate2(
    folder: Path,
    model: EncoderDecoderModel | DecoderModel,
    tokenizers: Tokenizers,
    quantization: str | None,
) -> None:
    """Raise `InputError` unless the runtime reproduces the model's logits on a short text.

    Translation models return no logits, so the log-probabilities of a target are compared.
    """
    if isinstance(model, DecoderModel):
        [tokens] = inputs = sample_inputs(model)
        expected, actual = model_logits(model, inputs), _logits(folder, tokens)
    else:
        expected, actual = _log_probabilities(folder, model, tokenizers)
    rounding = None if quantization is None else ROUNDING.get(quantization, 0.25)
    check_logits("CTranslate2", actual, expected, expected.dtype, tolerance=rounding)


def _opened(kind: str, folder: Path) -> Any:
    import ctranslate2

    return getattr(ctranslate2, kind)(str(folder), compute_type="float32", intra_threads=1)


def _logits(folder: Path, tokens: Tensor) -> Tensor:
    logits = _opened("Generator", folder).forward_batch(tokens.tolist())
    return torch.from_numpy(np.array(logits))


def _log_probabilities(
    folder: Path, model: EncoderDecoderModel, tokenizers: Tokenizers
) -> tuple[Tensor, Tensor]:
    """Our and their log-probabilities of a target; their runtime adds special tokens."""
    source, target = sample_inputs(model)
    source, target = source[:, :-2], target[:, :-1]
    before, after = _ends(tokenizers.source)
    bos, eos = tokenizers.target.bos_id, tokenizers.target.eos_id
    assert eos is not None
    encoded = torch.cat([source.new_tensor([before]), source, source.new_tensor([after])], dim=1)
    written = torch.cat([target.new_tensor([[bos]]), target], dim=1)
    following = torch.cat([target, target.new_tensor([[eos]])], dim=1)
    logits = model_logits(model, (encoded.long(), written)).float().log_softmax(-1)
    ours = logits.gather(-1, following[..., None])[..., 0]
    names = (
        _names(folder, source[0].tolist(), "source"),
        _names(folder, target[0].tolist(), "target"),
    )
    [scored] = _opened("Translator", folder).score_batch([names[0]], [names[1]])
    return ours, torch.tensor([scored.log_probs])


def _ends(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    after = tokenizer.eos_ids[:1] if tokenizer.after is None else tokenizer.after
    return list(tokenizer.before or ()), list(after)


def _names(folder: Path, ids: list[int], side: str) -> list[str]:
    """The tokens for these ids in the folder's vocabulary."""
    shared, own = folder / "shared_vocabulary.json", folder / f"{side}_vocabulary.json"
    names = json.loads((shared if shared.exists() else own).read_text(encoding="utf-8"))
    return [names[i] for i in ids]
