"""Exporting decoders to GGUF, for one of the architectures that llama.cpp supports."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor, nn

from addnorm.atomic import atomic_directory
from addnorm.convert.core.readback import check_types
from addnorm.convert.exporters.claims import added_positions, claim_gain, geometric
from addnorm.convert.exporters.gguf_architectures import (
    architecture_of,
    attention_of,
    eps_of,
    norms_of,
)
from addnorm.convert.exporters.gguf_check import check_gguf
from addnorm.convert.exporters.gguf_vocabulary import vocabulary
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, optional
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.models.ledger import Ledger
from addnorm.nn.attention import SelfAttention
from addnorm.nn.blocks import Block, ParallelBlock
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.masks import Window
from addnorm.nn.norms import LayerNorm, OffsetRMSNorm, RMSNorm
from addnorm.nn.positions import ALiBi, Learned, Rotary, Sinusoidal
from addnorm.nn.positions.rotary import LAYOUTS
from addnorm.nn.positions.sinusoidal import frequencies

Dtype = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
Named = Iterator[tuple[str, Tensor]]

IN_PAIRS = {"llama"}
"""Architectures with interleaved rotary pairs; in the others, pairs are half the width apart."""
FUSED = {"gpt2", "gptneox", "mpt"}
"""Architectures with a fused matrix for queries, keys and values."""
SCALING = {"gemma", "gemma2"}
"""Architectures that multiply embeddings by √d_model; for others the table itself is scaled."""
UNTIED = {"gptneox"}
"""Architectures whose head is always written, even if tied."""

THETA = 10000.0
"""The nominal base for non-geometric frequencies, which are written as factors."""
NO_WINDOW = 2**30
"""The window size that means no window, for architectures that always have one."""


def export_gguf(
    model: DecoderModel,
    config: DecoderConfig,
    tokenizers: Tokenizers,
    file: Path,
    dtype: Dtype = "f32",
    *,
    scales: DecoderModel | None = None,
    template: str | None = None,
) -> None:
    """Write the weights, sizes and vocabulary to `file`; norms and biases stay in float32.

    The first three end tokens become the ends of a text, of a turn and of a message, at which
    llama.cpp stops. `template` is the chat template.

    Before the file is moved into place, it is read back and must reproduce the model's logits.
    Raises `InputError` for parts and tokenizers that llama.cpp lacks, or if the package is missing.
    """
    gguf = _library()
    check_types("GGUF", model)
    ledger = Ledger(model, "GGUF")
    name = architecture_of(model, ledger)
    if name == "gemma2" and len(model.stack.blocks) == 46:
        raise InputError("llama.cpp scales the scores of a 'gemma2' of 46 layers in its own way")
    writer = gguf.GGUFWriter(None, name)
    _add_sizes(writer, model, config, name, ledger)
    _add_vocabulary(writer, tokenizers.source, model.embed.tokens.num_embeddings)
    if template is not None:
        writer.add_chat_template(template)
    writer.add_name(file.stem)
    kind = "ALL_F32" if dtype == "f32" else f"MOSTLY_{dtype.upper()}"
    writer.add_file_type(gguf.LlamaFileType[kind])
    tensors = _tensors(model, config, name, ledger)
    if scales is None:
        for tensor_name, tensor in tensors:
            _add_tensor(writer, tensor_name, tensor, dtype)
    else:
        of_scales = _tensors(scales, config, name, Ledger(scales, "GGUF"))
        for (tensor_name, tensor), (_, scale) in zip(tensors, of_scales, strict=True):
            add_quantized(writer, tensor_name, tensor, scale, dtype)
    ledger.close()
    with atomic_directory(file.parent) as partial:
        writer.write_header_to_file(partial / file.name)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        check_gguf(partial / file.name, model)


def _library() -> Any:
    return optional("gguf", "gguf", "this export")


# Sizes and vocabulary.


def _add_sizes(
    writer: Any, model: DecoderModel, config: DecoderConfig, name: str, ledger: Ledger
) -> None:
    blocks = _blocks(model)
    attentions = [attention_of(block) for block in blocks]
    d_head = ledger.same(attentions, "d_head")
    widths = {
        proj: ledger.same([getattr(attention, proj) for attention in attentions], "out_features")
        for proj in ("q_proj", "k_proj", "v_proj")
    }
    if widths["k_proj"] != widths["v_proj"]:
        raise ledger.refusal(attentions[0].v_proj, "out_features", f"{widths['k_proj']}")
    writer.add_context_length(model.embed.position.max_len or config.max_len)
    writer.add_embedding_length(model.embed.tokens.embedding_dim)
    writer.add_vocab_size(model.embed.tokens.num_embeddings)
    writer.add_block_count(len(blocks))
    ups = [layer.up_proj for layer in map(_feedforward, blocks)]
    writer.add_feed_forward_length(ledger.same(ups, "out_features"))
    writer.add_head_count(widths["q_proj"] // d_head)
    writer.add_head_count_kv(widths["k_proj"] // d_head)
    writer.add_key_length(d_head)
    writer.add_value_length(d_head)
    eps = eps_of(model, ledger)
    layer_norm = isinstance(model.stack.norm, LayerNorm)
    (writer.add_layer_norm_eps if layer_norm else writer.add_layer_norm_rms_eps)(eps)
    _add_positions(writer, attentions, ledger)
    if name == "gptneox":
        writer.add_parallel_residual(isinstance(blocks[0], ParallelBlock))
    if name == "gemma2":
        _add_gemma2(writer, model, attentions, ledger)


def _blocks(model: DecoderModel) -> list[Block | ParallelBlock]:
    """The blocks, whose types were checked with the choice of architecture."""
    blocks = list(model.stack.blocks)
    assert all(isinstance(block, Block | ParallelBlock) for block in blocks)
    return blocks  # pyright: ignore[reportReturnType]


def _feedforward(block: Block | ParallelBlock) -> FeedForward | GatedFeedForward:
    assert isinstance(block.feedforward, FeedForward | GatedFeedForward)
    return block.feedforward


def _add_positions(writer: Any, attentions: list[SelfAttention], ledger: Ledger) -> None:
    positions = [attention.position for attention in attentions]
    match positions[0]:
        case Rotary() as rotary:
            for name in ("frequencies", "temperature", "turn"):
                ledger.same(positions, name)
            base, factor = geometric(rotary) or (THETA, 1.0)
            writer.add_rope_dimension_count(2 * len(rotary.frequencies))
            writer.add_rope_freq_base(base)
            if factor != 1.0:
                writer.add_rope_scaling_type(_library().RopeScalingType.LINEAR)
                writer.add_rope_scaling_factor(factor)
            if rotary.temperature != 1.0:
                writer.add_rope_scaling_attn_factors(rotary.temperature)
        case ALiBi():
            writer.add_max_alibi_bias(8.0)
        case _:
            pass


def _add_gemma2(
    writer: Any, model: DecoderModel, attentions: list[SelfAttention], ledger: Ledger
) -> None:
    scores = [attention.core.get_submodule("score") for attention in attentions]
    writer.add_attn_logit_softcapping(ledger.same(scores, "softcap"))
    writer.add_final_logit_softcapping(model.head.softcap)
    pattern = attentions[0].pattern
    writer.add_sliding_window(pattern.size if isinstance(pattern, Window) else NO_WINDOW)


def _add_vocabulary(writer: Any, tokenizer: Tokenizer, size: int) -> None:
    words = vocabulary(tokenizer, size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words.pre)
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    writer.add_token_merges(words.merges)
    writer.add_bos_token_id(tokenizer.bos_id)
    if tokenizer.pad_id in tokenizer.special_ids:  # otherwise there is no padding token
        writer.add_pad_token_id(tokenizer.pad_id)
    ends = writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id
    for add, end in zip(ends, tokenizer.eos_ids, strict=False):
        add(end)
    if tokenizer.unk_id is not None:
        writer.add_unk_token_id(tokenizer.unk_id)
    writer.add_add_bos_token(words.add_bos)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


# Tensors, by the names of llama.cpp.


def _add_tensor(writer: Any, name: str, tensor: Tensor, dtype: Dtype) -> None:
    tensor = tensor.detach().cpu().float().contiguous()
    matrix = tensor.ndim > 1 and name != "position_embd.weight"
    if not matrix or dtype == "f32":
        writer.add_tensor(name, tensor.numpy())
    elif dtype == "f16":
        writer.add_tensor(name, tensor.half().numpy())
    else:
        raw = _library().GGMLQuantizationType.BF16
        writer.add_tensor(name, tensor.bfloat16().view(torch.uint8).numpy(), raw_dtype=raw)


def _tensors(model: DecoderModel, config: DecoderConfig, name: str, ledger: Ledger) -> Named:
    embed, head, blocks = model.embed, model.head, _blocks(model)
    own_scale = embed.scale != 1.0 and name not in SCALING
    table, head_weight = ledger.table(embed.tokens), ledger.take(head, "weight")
    yield "token_embd.weight", table * embed.scale if own_scale else table
    if isinstance(embed.position, Learned | Sinusoidal):
        rows = config.max_len
        yield "position_embd.weight", added_positions(embed, rows, embed.tokens.weight.dtype)
    yield from _norm("output_norm", model.stack.norm, ledger)
    if head_weight is not table or own_scale or name in UNTIED:
        yield "output.weight", head_weight
    position = attention_of(blocks[0]).position
    if isinstance(position, Rotary) and geometric(position) is None:
        actual = position.frequencies
        yield "rope_freqs.weight", frequencies(2 * len(actual), THETA) / actual
    for i, block in enumerate(blocks):
        for part, tensor in _block(block, name, ledger):
            yield f"blk.{i}.{part}", tensor


def _block(block: Block | ParallelBlock, name: str, ledger: Ledger) -> Named:
    for part, norm in norms_of(block).items():
        yield from _norm(part, norm, ledger)
    attention = attention_of(block)
    parts = dict(_queries_keys_values(attention, ledger, in_pairs=name in IN_PAIRS))
    yield from _joined(parts) if name in FUSED else parts.items()
    yield from _linear("attn_output", attention.out_proj, ledger)
    layer = _feedforward(block)
    if isinstance(layer, GatedFeedForward):
        yield from _linear("ffn_gate", layer.gate_proj, ledger)
    yield from _linear("ffn_up", layer.up_proj, ledger)
    yield from _linear("ffn_down", layer.down_proj, ledger)


def _queries_keys_values(attention: SelfAttention, ledger: Ledger, *, in_pairs: bool) -> Named:
    """Yield the projections and query/key norms, with rotary features in llama.cpp's order."""
    turning = [*_linear("attn_q", attention.q_proj, ledger)]
    turning += [*_linear("attn_k", attention.k_proj, ledger)]
    if isinstance(attention.q_norm, RMSNorm | OffsetRMSNorm):
        turning += [*_norm("attn_q_norm", attention.q_norm, ledger)]
        turning += [*_norm("attn_k_norm", attention.k_norm, ledger)]
    for part, tensor in turning:
        yield part, reorder_rotary_rows(tensor, attention, in_pairs=in_pairs)
    yield from _linear("attn_v", attention.v_proj, ledger)


def reorder_rotary_rows(rows: Tensor, attention: SelfAttention, *, in_pairs: bool) -> Tensor:
    """Reorder the rows of every head so that rotary pairs are adjacent or half a head apart.

    Features that are not rotated stay at the end.
    """
    position = attention.position
    if not isinstance(position, Rotary) or in_pairs == (position.turn is LAYOUTS["interleaved"]):
        return rows
    half = len(position.frequencies)
    heads = rows.unflatten(0, (-1, attention.d_head))
    turned, rest = heads.split([2 * half, attention.d_head - 2 * half], dim=1)
    turned = turned.unflatten(1, (2, half) if in_pairs else (half, 2)).transpose(1, 2)
    return torch.cat([turned.flatten(1, 2), rest], dim=1).flatten(0, 1)


def _joined(parts: dict[str, Tensor]) -> Named:
    for end in ("weight", "bias"):
        if group := [tensor for part, tensor in parts.items() if part.endswith(end)]:
            yield f"attn_qkv.{end}", torch.cat(group)


def _linear(part: str, layer: nn.Linear, ledger: Ledger) -> Named:
    weight, bias = ledger.linear(layer)
    yield f"{part}.weight", weight
    if bias is not None:
        yield f"{part}.bias", bias


def _norm(part: str, norm: nn.Module, ledger: Ledger) -> Named:
    names = dict(norm.named_parameters(recurse=False))
    if "weight" in names:
        yield f"{part}.weight", claim_gain(norm, ledger)
    if "bias" in names:
        yield f"{part}.bias", ledger.take(norm, "bias")


# Blocks of 32 numbers with one scale, which hold a model's own integers.

BLOCK = 32

HALF_ROUNDING = 2**-10
"""How far a scale may move as it becomes a half: twice the rounding of normal numbers."""


def add_quantized(writer: Any, name: str, tensor: Tensor, scale: Tensor, dtype: str) -> None:
    """Add a tensor of integers times `scale`; in float32 if all scales are zero.

    Raises `InputError` for rows that are not blocks of 32, and scales that a half cannot hold.
    """
    tensor, scale = (x.detach().cpu().float().contiguous() for x in (tensor, scale))
    if tensor.ndim == 1 or name == "position_embd.weight" or not scale.any():
        writer.add_tensor(name, tensor.numpy())
        return
    if not scale.all():
        raise InputError(f"GGUF has one type for all of {name}, of which a part is not quantised")
    kinds = _library().GGMLQuantizationType
    pack, kind = (q8_0, kinds.Q8_0) if dtype == "q8_0" else (q4_0, kinds.Q4_0)
    if tensor.shape[-1] % BLOCK:
        raise InputError(f"GGUF has blocks of {BLOCK} numbers, and {name} rows of {len(tensor[0])}")
    half = scale.half()
    if ((half.float() - scale).abs() > HALF_ROUNDING * scale.abs()).any():
        raise InputError(f"GGUF keeps scales as halves, which are too coarse for {name}")
    integers = (tensor / scale).round().to(torch.int8)
    blocks = pack(integers.unflatten(-1, (-1, BLOCK)), half.unflatten(-1, (-1, BLOCK))[..., 0])
    writer.add_tensor(name, blocks.flatten(-2).numpy(), raw_dtype=kind)


def q8_0(
    integers: Int8[Tensor, "rows blocks 32"], scale: Float[Tensor, "rows blocks"]
) -> UInt8[Tensor, "rows blocks 34"]:
    """Encode blocks of 32 numbers: a half-precision scale, then 32 bytes."""
    return torch.cat([_bytes(scale), integers.view(torch.uint8)], -1)


def q4_0(
    integers: Int8[Tensor, "rows blocks 32"], scale: Float[Tensor, "rows blocks"]
) -> UInt8[Tensor, "rows blocks 18"]:
    """Encode blocks of 32 numbers: a half-precision scale, then two numbers to a byte."""
    shifted = (integers + 8).to(torch.uint8)
    return torch.cat([_bytes(scale), shifted[..., :16] | (shifted[..., 16:] << 4)], -1)


def _bytes(scale: Float[Tensor, "rows blocks"]) -> UInt8[Tensor, "rows blocks 2"]:
    return torch.from_numpy(scale.numpy()[..., None].view(np.uint8))
