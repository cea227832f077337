"""Opening decoders in GGUF files, of the architectures that `exporters.gguf` writes.

Keys become our configuration, and llama.cpp's names of tensors ours; whatever is in the file and
is not read is refused.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, Literal
from warnings import warn

import torch
from pydantic import ValidationError
from torch import Tensor

from addnorm.config import problem_of
from addnorm.convert.core.family import ModelSpec, build_untrained, stored_tensors
from addnorm.convert.exporters.gguf import FUSED, IN_PAIRS, NO_WINDOW, SCALING
from addnorm.convert.exporters.gguf_architectures import ARCHITECTURES
from addnorm.convert.importers.gguf_tokenizer import tokenizer_of
from addnorm.convert.weights.gguf_file import GGUF, PLAIN
from addnorm.convert.weights.mapped import StoredTensor
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import IgnoredSettings, InputError, choices, nearest
from addnorm.models import DecoderConfig, ModelConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import (
    AttentionConfig,
    FullPatternConfig,
    ScaledDotConfig,
    WindowPatternConfig,
)
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.init import without_values
from addnorm.nn.norms import LayerNormConfig, OffsetRMSNormConfig, RMSNormConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    LearnedConfig,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NoPositionConfig,
    RotaryConfig,
    YaRNScaling,
)
from addnorm.nn.positions.scaling import ScalingConfig
from addnorm.nn.positions.sinusoidal import frequencies
from addnorm.nn.residuals import ParallelConfig, PreNormConfig, SandwichNormConfig

SIZES = {"block_count": 512, "embedding_length": 2**20, "feed_forward_length": 2**22}
"""The largest sizes; larger ones are refused before anything is built."""

WINDOWED = ("gemma2",)
"""Architectures with a window in every second layer."""

WITHOUT_EFFECT = re.compile(
    r"""general\.(?!type$).*                      # where the model comes from
    | split\..* | quantize\..* | imatrix\..*      # how the file was written
    | tokenizer\.chat_templates?(\..*)?           # read where a chat begins
    | tokenizer\.huggingface\.json                # the tokenizer once more
    | tokenizer\.ggml\.(scores|merges|pre|token_type_count)  # of the other kind of tokenizer
    | tokenizer\.ggml\.(cls|seperator|mask|fim_\w+|prefix|suffix|middle)_token_id  # roles in texts
    """,
    re.VERBOSE,
)
"""The keys on which no output of a decoder depends."""

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Source:
    """The source of one of our tensors: a tensor of the file, and the change to apply to it."""

    name: str
    change: Change = lambda tensor: tensor


def describe_gguf(file: Path) -> tuple[ModelSpec, Tokenizers]:
    """The configuration and the tokenizer of a file. Raises `InputError` as `load_gguf` does."""
    gguf = GGUF.open(file)
    spec = _spec(gguf)
    _sources(gguf, spec)
    tokenizer = tokenizer_of(gguf)
    gguf.ignore(*filter(WITHOUT_EFFECT.fullmatch, gguf.keys))
    gguf.check_all_read()
    if tokenizer.vocab_size > spec.vocab_size:
        raise InputError(
            f"{file}: the tokenizer has {tokenizer.vocab_size:,} tokens, and token_embd.weight "
            f"{spec.vocab_size:,} rows"
        )
    return spec, Tokenizers(tokenizer, tokenizer)


def gguf_tensors(
    file: Path, dtype: torch.dtype | None = None, model: ModelConfig | None = None
) -> tuple[ModelSpec, dict[str, Tensor]]:
    """Our tensors in a file by name, with the configuration that they fit.

    They get the widest type of the file's matrices unless `dtype` is given; a warning names types
    of fewer bits. Raises `InputError` naming the key or tensor that is missing or not supported.
    """
    gguf = GGUF.open(file)
    spec = _spec(gguf)
    sources = _sources(gguf, spec)
    quantised = sorted({kind for kind in gguf.types.values() if kind not in PLAIN})
    matrices = [gguf.tensors[name] for name in gguf.tensors if _is_matrix(gguf, name)]
    kinds = {tensor.dtype for tensor in matrices} or {torch.float32}
    chosen = reduce(torch.promote_types, kinds) if dtype is None else dtype
    if quantised:
        n = sum(kind in quantised for kind in gguf.types.values())
        warn(
            f"{file}: {n} weights are stored as {' and '.join(quantised)}, and read as "
            f"{str(chosen).removeprefix('torch.')}",
            IgnoredSettings,
            stacklevel=3,
        )
    tensors = {
        name: source.change(_of(gguf, source.name).read().to(chosen)).contiguous()
        for name, source in sources.items()
    }
    return (spec if model is None else replace(spec, model=model)), tensors


def _is_matrix(gguf: GGUF, name: str) -> bool:
    return len(gguf.tensors[name].shape) > 1 and name != "position_embd.weight"


def chat_template_of(file: Path) -> str | None:
    """The chat template of a file; None without one."""
    return GGUF.open(file).get("tokenizer.chat_template", "") or None


# Keys.


def _spec(gguf: GGUF) -> ModelSpec:
    """The configuration of a file. Raises `InputError` naming a key that is not supported."""
    _check_whole_model(gguf)
    name = gguf.architecture
    if name not in ARCHITECTURES:
        raise InputError(
            f"{gguf.path}: general.architecture = {name!r} is not supported."
            f"{choices(name, ARCHITECTURES)}"
        )
    table = _of(gguf, "token_embd.weight")
    try:
        model = DecoderConfig(**_fields(gguf, name))
    except (ValidationError, ValueError) as error:
        if str(error).startswith(f"{gguf.path}: "):
            raise
        problem = problem_of(error.errors()[0]) if isinstance(error, ValidationError) else error
        raise InputError(f"{gguf.path}: the keys of {name}: {problem}") from error
    gguf.ignore(
        f"{name}.vocab_size", f"{name}.tensor_data_layout", f"{name}.rope.scaling.finetuned"
    )
    gguf.check_all_read(f"{name}.")
    return ModelSpec(model=model, vocab_size=table.shape[0])


def _check_whole_model(gguf: GGUF) -> None:
    """Raise `InputError` for a part of a model, an adapter, or an image projector."""
    if (kind := gguf.get("general.type", "model")) != "model":
        raise InputError(
            f"{gguf.path}: general.type = {kind!r} is not supported: only a whole model is read"
        )
    if (n := gguf.get("split.count", 1)) > 1:
        raise InputError(
            f"{gguf.path}: this is file {gguf.get('split.no', 0) + 1} of {n} of one model: join "
            "them with `llama-gguf-split`"
        )


def _size(gguf: GGUF, key: str, default: int | None = None) -> int:
    name = f"{gguf.architecture}.{key}"
    size = gguf.required(name, int) if default is None else gguf.get(name, default)
    most = SIZES.get(key, 2**31)
    if not 1 <= size <= most:
        raise InputError(f"{gguf.path}: {name} = {size:,} must be from 1 to {most:,}")
    return size


def _fields(gguf: GGUF, name: str) -> dict[str, Any]:
    """The fields of our configuration."""
    gated = "blk.0.ffn_gate.weight" in gguf.tensors
    d_ff, n_layers = _size(gguf, "feed_forward_length"), _size(gguf, "block_count")
    biased = "blk.0.ffn_up.bias" in gguf.tensors
    activation: Any = "gelu_tanh" if not gated or name in SCALING else "silu"
    kind = GatedFeedForwardConfig if gated else FeedForwardConfig
    windows: dict[str, Any] = _windows(gguf, n_layers) if name in WINDOWED else {}
    return {
        "d_model": _size(gguf, "embedding_length"),
        "n_layers": n_layers,
        "max_len": _max_len(gguf),
        "position": _position(gguf),
        "attention": _attention(gguf, name),
        "feedforward": kind(d_ff=d_ff, activation=activation, bias=biased),
        "norm": _norm(gguf, name, "output_norm"),
        "residual": _residual(gguf, name),
        "embedding": EmbeddingConfig(scale="sqrt" if name in SCALING else "one"),
        "head": TokenHeadConfig(
            tied="output.weight" not in gguf.tensors,
            softcap=gguf.get(f"{name}.final_logit_softcapping", 0.0) or None,
        ),
        **windows,
    }


def _attention(gguf: GGUF, name: str) -> AttentionConfig:
    n_heads = _size(gguf, "attention.head_count")
    d_head = _d_head(gguf)
    if _size(gguf, "attention.value_length", d_head) != d_head:
        raise InputError(f"{gguf.path}: {name}.attention.value_length must be {d_head}")
    first = "blk.0.attn_qkv" if name in FUSED else "blk.0.attn_q"
    qk_norm = "blk.0.attn_q_norm.weight" in gguf.tensors
    return AttentionConfig(
        n_heads=n_heads,
        n_kv_heads=_size(gguf, "attention.head_count_kv", n_heads),
        d_head=d_head,
        bias=f"{first}.bias" in gguf.tensors,
        out_bias="blk.0.attn_output.bias" in gguf.tensors,
        qk_norm=RMSNormConfig(eps=_eps(gguf)) if qk_norm else None,
        score=ScaledDotConfig(softcap=gguf.get(f"{name}.attn_logit_softcapping", 0.0) or None),
    )


def _d_head(gguf: GGUF) -> int:
    usual = _size(gguf, "embedding_length") // _size(gguf, "attention.head_count")
    return _size(gguf, "attention.key_length", max(usual, 1))


def _eps(gguf: GGUF) -> float:
    name = gguf.architecture
    keys = [f"{name}.attention.layer_norm_{kind}epsilon" for kind in ("", "rms_")]
    present = next((key for key in keys if key in gguf.keys), keys[-1])
    return _shortest(gguf.required(present, float))


def _shortest(number: float) -> float:
    """The decimal number that a float32 was rounded from."""
    return float(f"{number:.7g}")


def _norm(
    gguf: GGUF, name: str, example: str
) -> LayerNormConfig | RMSNormConfig | OffsetRMSNormConfig:
    eps = _eps(gguf)
    if f"{name}.attention.layer_norm_epsilon" in gguf.keys:
        return LayerNormConfig(eps=eps, bias=f"{example}.bias" in gguf.tensors)
    return OffsetRMSNormConfig(eps=eps) if name in SCALING else RMSNormConfig(eps=eps)


def _residual(gguf: GGUF, name: str) -> PreNormConfig | SandwichNormConfig | ParallelConfig:
    if name in WINDOWED:
        return SandwichNormConfig()
    parallel = name == "gptneox" and gguf.get(f"{name}.use_parallel_residual", True)
    return ParallelConfig(norms="each") if parallel else PreNormConfig()


def _windows(gguf: GGUF, n_layers: int) -> dict[str, Any]:
    """A pattern with a window in every second layer, from the first on."""
    size = gguf.get(f"{gguf.architecture}.attention.sliding_window", NO_WINDOW)
    if size >= NO_WINDOW or n_layers < 2:
        return {}
    patterns = (WindowPatternConfig(size=size), FullPatternConfig())
    return {"layer_pattern": tuple(LayerConfig(pattern=pattern) for pattern in patterns)}


def _position(gguf: GGUF) -> Any:
    """The positions: rotary if a base or a width is given, else learned, ALiBi or none."""
    name = gguf.architecture
    if gguf.get(f"{name}.attention.max_alibi_bias", 0.0) > 0.0:
        return ALiBiConfig()
    if "position_embd.weight" in gguf.tensors:
        return LearnedConfig()
    if name in ("gpt2", "mpt"):
        return NoPositionConfig()
    d_head = _d_head(gguf)
    width = _size(gguf, "rope.dimension_count", d_head)
    theta = gguf.get(f"{name}.rope.freq_base", 10000.0)
    return RotaryConfig(theta=theta, fraction=width / d_head, scaling=_scaling(gguf, width, theta))


def _scaling(gguf: GGUF, width: int, theta: float) -> ScalingConfig | None:
    name = gguf.architecture
    kind = gguf.get(f"{name}.rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise InputError(
            f"{gguf.path}: {name}.rope.scaling.type = {kind!r} is not supported, only none, "
            "linear, yarn"
        )
    if kind == "yarn":
        return _yarn(gguf)
    temperature = gguf.get(f"{name}.rope.scaling.attn_factor", 1.0)
    factor = gguf.get(f"{name}.rope.scaling.factor", 1.0) or 1.0
    factor = factor if kind == "linear" else 1.0
    divisors = torch.ones(width // 2) * factor
    if (factors := gguf.tensors.get("rope_freqs.weight")) is not None:
        divisors = divisors * factors.read().float()
    if temperature == 1.0 and len(divisors.unique()) == 1:
        only = float(divisors[0])
        return None if only == 1.0 else LinearScaling(factor=only)
    llama3 = Llama3Scaling(factor=max(float(divisors.max()), 1.0))
    same = torch.allclose(
        llama3.frequencies(width, theta), frequencies(width, theta) / divisors.double(), rtol=1e-6
    )
    if temperature == 1.0 and same:
        return llama3
    each = tuple(divisors.tolist())
    return LongRoPEScaling(
        short=each, long=each, original_max_len=_max_len(gguf), attention_factor=temperature
    )


def _yarn(gguf: GGUF) -> YaRNScaling:
    """YaRN's settings: the factor, the training length, and β if given."""
    start = f"{gguf.architecture}.rope.scaling"
    if "rope_freqs.weight" in gguf.tensors or gguf.get(f"{start}.yarn_ext_factor", 1.0) != 1.0:
        raise InputError(f"{gguf.path}: {start}.type = 'yarn' is not supported with other divisors")
    factor = _shortest(gguf.required(f"{start}.factor", float))
    extra = _shortest(
        gguf.get(f"{start}.attn_factor", 1.0) * gguf.get(f"{start}.yarn_attn_factor", 1.0)
    )
    usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return YaRNScaling(
        factor=factor,
        original_max_len=_size(gguf, "rope.scaling.original_context_length", _max_len(gguf)),
        beta_fast=_shortest(gguf.get(f"{start}.yarn_beta_fast", 32.0)),
        beta_slow=_shortest(gguf.get(f"{start}.yarn_beta_slow", 1.0)),
        attention_factor=None if extra == 1.0 else extra * usual,
    )


def _max_len(gguf: GGUF) -> int:
    return _size(gguf, "context_length")


# Tensors.


def _of(gguf: GGUF, name: str) -> StoredTensor:
    if name not in gguf.tensors:
        raise InputError(
            f"{gguf.path}: the tensor {name} is missing.{nearest(name, [*gguf.tensors])}"
        )
    return gguf.tensors[name]


def _sources(gguf: GGUF, spec: ModelSpec) -> dict[str, Source]:
    """The sources of all our tensors.

    Raises `InputError` for a tensor that is missing, left over or of another shape.
    """
    with without_values():
        model = build_untrained(spec)
    expected = {name: tuple(tensor.shape) for name, tensor in stored_tensors(model).items()}
    sources = dict(_named(gguf, spec.model, [*expected]))
    used = {source.name for source in sources.values()} | {"rope_freqs.weight"}
    if left := sorted(gguf.tensors.keys() - used):
        raise InputError(
            f"{gguf.path}: the tensor {left[0]} is not of the architecture "
            f"{gguf.architecture}.{nearest(left[0], sorted(used))}"
        )
    for name, source in sources.items():
        stored = _of(gguf, source.name)
        shape = tuple(source.change(torch.empty(stored.shape, device="meta")).shape)
        if shape != expected[name]:
            raise InputError(
                f"{gguf.path}: {source.name} has shape {stored.shape}, which gives {shape} for "
                f"{name}, expected {expected[name]}"
            )
    return sources


OUTER = {
    "embed.tokens.weight": "token_embd.weight",
    "embed.position.table.weight": "position_embd.weight",
    "stack.norm": "output_norm",
    "head.weight": "output.weight",
}
INNER = {
    "attention.out_proj": "attn_output",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "feedforward.gate_proj": "ffn_gate",
    "feedforward.up_proj": "ffn_up",
    "feedforward.down_proj": "ffn_down",
    "attention_residual.norm": "attn_norm",
    "feedforward_residual.norm": "ffn_norm",
    "attention_residual.norm_in": "attn_norm",
    "attention_residual.norm_out": "post_attention_norm",
    "feedforward_residual.norm_in": "ffn_norm",
    "feedforward_residual.norm_out": "post_ffw_norm",
}
"""llama.cpp's names of modules by ours."""

QKV: tuple[Literal["q", "k", "v"], ...] = ("q", "k", "v")


def _named(gguf: GGUF, model: ModelConfig, names: list[str]) -> Iterator[tuple[str, Source]]:
    assert isinstance(model, DecoderConfig)
    for name in names:
        if name in OUTER:
            yield name, Source(OUTER[name])
            continue
        module, _, end = name.rpartition(".")
        if module in OUTER:
            yield name, Source(f"{OUTER[module]}.{end}", _norm_change(gguf, end))
            continue
        _, _, number, sublayer, part = module.split(".")  # stack.blocks.N.…
        block = f"blk.{number}."
        inside = f"{sublayer}.{part}"
        if inside in INNER:
            change = _norm_change(gguf, end) if "norm" in part else _same
            if part in ("q_norm", "k_norm"):
                change = _unturned(gguf, part[0])
            yield name, Source(f"{block}{INNER[inside]}.{end}", change)
            continue
        assert part in ("q_proj", "k_proj", "v_proj"), name
        yield name, _projection(gguf, block, part[0], end)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _norm_change(gguf: GGUF, end: str) -> Change:
    """The change to gains, which Gemma's files store with an offset of one."""
    offset = gguf.architecture in SCALING and end == "weight"
    return (lambda gain: gain - 1.0) if offset else _same


def _projection(gguf: GGUF, block: str, part: str, end: str) -> Source:
    """The source of queries, keys or values: a tensor of their own, or a part of a joint one."""
    if gguf.architecture not in FUSED:
        return Source(f"{block}attn_{part}.{end}", _unturned(gguf, part))
    n_heads = _size(gguf, "attention.head_count")
    n_kv_heads, d_head = _size(gguf, "attention.head_count_kv", n_heads), _d_head(gguf)
    sizes = [n_heads * d_head, n_kv_heads * d_head, n_kv_heads * d_head]
    begin = sum(sizes[: "qkv".index(part)])
    return Source(
        f"{block}attn_qkv.{end}", lambda whole: whole[begin : begin + sizes["qkv".index(part)]]
    )


def _unturned(gguf: GGUF, part: str) -> Change:
    """The change to rows of queries and keys: from adjacent rotary pairs to halves."""
    if part == "v" or gguf.architecture not in IN_PAIRS:
        return _same
    d_head = _d_head(gguf)
    return partial(_halves, d_head, _size(gguf, "rope.dimension_count", d_head))


def _halves(d_head: int, width: int, rows: Tensor) -> Tensor:
    heads = rows.unflatten(0, (-1, d_head))
    turned, rest = heads.split([width, d_head - width], dim=1)
    turned = turned.unflatten(1, (width // 2, 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat([turned, rest], dim=1).flatten(0, 1)
