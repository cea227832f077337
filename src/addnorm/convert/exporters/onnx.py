"""Export models to ONNX graphs, with the key/value cache as graph inputs and outputs."""

import copy
import logging
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from addnorm.atomic import atomic_directory
from addnorm.errors import InputError
from addnorm.models import (
    DecoderConfig,
    DecoderModel,
    EncoderDecoderModel,
    EncoderModel,
    Model,
    ModelConfig,
)
from addnorm.models.inputs import Input
from addnorm.nn.attention import CrossAttention, EagerCore, SDPACore, SelfAttention
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.audio import LogMelEmbedding
from addnorm.nn.blocks import CrossBlock, ParallelCrossBlock, Stack
from addnorm.nn.cache import KeysValues, LayerCache
from addnorm.nn.context import Context, Memory, positions_of
from addnorm.nn.convolution import Convolution
from addnorm.nn.embed import Embedding, zero_padding
from addnorm.nn.masks import Causal, Dense, Full, Mask, Padding
from addnorm.nn.moe import MixtureOfExperts
from addnorm.nn.patches import PatchEmbedding, PatchEmbeddingConfig, SeriesEmbedding, as_sequence
from addnorm.nn.recurrent import Recurrent

Held = Float[Tensor, "batch kv_heads kv_seq d_head"]
Hidden = Float[Tensor, "batch seq d_model"]

EXTERNAL = 2**30
"""Bytes of weights from which on they stand in a file of their own: one graph holds 2 GiB."""

REFUSED: dict[type[nn.Module], str] = {
    Recurrent: "a recurrent mixer reads its text run by run, as the data say: use attention",
    Convolution: "a convolution reads its text run by run, as the data say: use attention",
    MixtureOfExperts: "a mixture of experts splits its tokens as the data say: use kind = 'gated'",
    LogMelEmbedding: "log-mel frames are no input of an exported graph: export tokens or images",
    SeriesEmbedding: "time series are no input of an exported graph: export tokens or images",
}
"""Modules whose work depends on more than shapes, and what would be accepted."""


def export_onnx(model: Model, config: ModelConfig, folder: Path) -> list[Path]:
    """Write the graphs of `model` into `folder`; return their files.

    | model | file | inputs | outputs |
    |---|---|---|---|
    | encoder | `model.onnx` | `input_ids`, `attention_mask`, or `pixels` | `output` |
    | decoder | `decoder_model.onnx` | `input_ids`, `attention_mask`, past | `logits`, present |
    | both | `encoder_model.onnx` | as an encoder | `memory`, cross |
    | | `decoder_model.onnx` | `input_ids`, `encoder_attention_mask`, cross, past | as a decoder |

    Past are `past_key.i` and `past_value.i` of each layer `i`, of shape (batch, kv_heads, past,
    d_head), where `past` may be 0; present are `present_key.i` and `present_value.i`, the past of
    the next step; cross are `cross_key.i` and `cross_value.i`, computed once. Ids and masks are
    int64; a decoder's mask has past + sequence columns, padding on either side. An encoder that
    tells sentences apart reads `token_type_ids` too. A window keeps its whole past. Raises
    `InputError` for parts that no graph can hold, and where `onnx` is missing.
    """
    try:
        import onnxscript  # noqa: F401 # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise InputError("ONNX export needs onnx: pip install 'addnorm[onnx]'") from error
    for module in model.modules():
        if reason := REFUSED.get(type(module)):
            raise InputError(f"this model cannot be exported to ONNX: {reason}")
    if any(parameter.dtype == torch.bfloat16 for parameter in model.parameters()):
        raise InputError("onnxruntime has no bfloat16 on a CPU: export float32 or float16")
    graphs = _graphs(_plain(model), config)
    with atomic_directory(folder, ["*.onnx", "*.onnx.data"]) as partial:
        for graph in graphs:
            graph.save(partial)
        names = sorted(file.name for file in partial.iterdir())
    return [folder / name for name in names]


def _plain(model: Model) -> Model:
    """A copy for inference whose attention is plain products.

    A kernel with a float mask makes NaN of a query that sees nothing; padding is full of those.
    """
    plain = copy.deepcopy(model).eval().cpu().requires_grad_(False)
    for module in plain.modules():
        if isinstance(module, SelfAttention | CrossAttention) and isinstance(module.core, SDPACore):
            module.core = EagerCore(module.core.score)
    return plain


@dataclass(frozen=True, kw_only=True)
class GraphTensor:
    """An input of a graph: an example of it, and the names of the axes that may have any length."""

    example: Tensor
    axes: Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """What is written to one file."""

    name: str
    module: nn.Module
    inputs: Mapping[str, GraphTensor]
    outputs: Sequence[str]

    def save(self, folder: Path) -> None:
        """Trace the module on the examples, and write the graph."""
        examples = tuple(slot.example for slot in self.inputs.values())
        anything = torch.export.Dim.DYNAMIC
        lengths = tuple(dict.fromkeys(slot.axes, anything) for slot in self.inputs.values())
        with torch.no_grad(), _quiet():
            exported = torch.export.export(
                self.module, examples, dynamic_shapes={"tensors": lengths}, strict=False
            )
            program = torch.onnx.export(
                exported,
                input_names=list(self.inputs),
                output_names=list(self.outputs),
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            program.rename_axes(self.symbols([value.shape for value in program.model.graph.inputs]))
            size = sum(p.nbytes for p in self.module.parameters())
            program.save(folder / self.name, external_data=size > EXTERNAL)

    def symbols(self, shapes: Iterable[Any]) -> dict[Any, str]:
        """The axis that each symbol of the tracer stands for."""
        found = {
            str(shape[i]): axis
            for shape, slot in zip(shapes, self.inputs.values(), strict=True)
            for i, axis in slot.axes.items()
        }
        return {symbol: axis for symbol, axis in found.items() if symbol.isidentifier()}


@contextmanager
def _quiet() -> Generator[None]:
    """Say nothing of what the tracer, the translator and their libraries remark on the way."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _graphs(model: Model, config: ModelConfig) -> list[Graph]:
    match model:
        case EncoderModel(embed=embed, stack=stack, head=head):
            module = EncoderGraph(embed, stack, head)
            inputs = _readable(embed, config)
            return [Graph(name="model.onnx", module=module, inputs=inputs, outputs=["output"])]
        case DecoderModel(embed=embed, stack=stack, head=head):
            new = {"input_ids": _ids(3, "sequence"), "attention_mask": _ids(7, "past + sequence")}
            module = DecoderGraph(embed, stack, head, cross=False)
            return [_decoder(module, new | _past(stack))]
        case EncoderDecoderModel(target_embed=embed, decoder=stack, head=head):
            cross_attentions = [_cross_attention(block) for block in stack.blocks]
            cross = _keys_values("cross", "memory", cross_attentions)
            encoder = Graph(
                name="encoder_model.onnx",
                module=EncoderGraph(
                    model.source_embed, model.encoder, MemoryHead(cross_attentions)
                ),
                inputs=_readable(model.source_embed, config),
                outputs=["memory", *cross],
            )
            new = {"input_ids": _ids(3, "sequence"), "encoder_attention_mask": _ids(5, "memory")}
            module = DecoderGraph(embed, stack, head, cross=True)
            return [encoder, _decoder(module, new | cross | _past(stack))]


def _decoder(module: nn.Module, inputs: Mapping[str, GraphTensor]) -> Graph:
    present = [name.replace("past", "present") for name in inputs if name.startswith("past")]
    names = ["logits", *present]
    return Graph(name="decoder_model.onnx", module=module, inputs=inputs, outputs=names)


def _past(stack: Stack) -> dict[str, GraphTensor]:
    mixers = [mixer for mixer in stack.mixers if isinstance(mixer, SelfAttention)]
    return _keys_values("past", "past", mixers)  # others were refused


def _cross_attention(block: nn.Module) -> CrossAttention:
    assert isinstance(block, CrossBlock | ParallelCrossBlock)
    return block.cross_attention


def _ids(length: int, axis: str) -> GraphTensor:
    return GraphTensor(example=torch.ones(2, length, dtype=torch.long), axes={0: "batch", 1: axis})


def _readable(embed: Input, config: ModelConfig) -> dict[str, GraphTensor]:
    """What an encoder reads: tokens of any number, or images of the size that it was made for."""
    if isinstance(embed, Embedding):
        names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (embed.types is not None)
        return {name: _ids(3, "sequence") for name in names}
    assert isinstance(embed, PatchEmbedding)
    assert not isinstance(config, DecoderConfig)
    assert isinstance(config.input, PatchEmbeddingConfig)
    pixels = torch.zeros(2, config.input.channels, *config.input.size)
    return {"pixels": GraphTensor(example=pixels.to(embed.proj.weight.dtype), axes={0: "batch"})}


def _keys_values(name: str, axis: str, attentions: Sequence[MultiHead]) -> dict[str, GraphTensor]:
    """The keys and values of every layer, `axis` of them; the example has 4, or 5 of a memory."""
    slots: dict[str, GraphTensor] = {}
    for i, attention in enumerate(attentions):
        weight, heads = attention.k_proj.weight, attention.k_proj.out_features // attention.d_head
        length = 5 if axis == "memory" else 4
        for part in ("key", "value"):  # one tensor for both would be one input to the tracer
            example = torch.zeros(2, heads, length, attention.d_head, dtype=weight.dtype)
            slots[f"{name}_{part}.{i}"] = GraphTensor(example=example, axes={0: "batch", 2: axis})
    return slots


# The modules that are traced. Sizes are symbols here: no `len`, no `int`, no choice by a length.


@dataclass(frozen=True, kw_only=True)
class TracedContext(Context):
    """The context of tokens that are the last of `valid`; made here, for symbols have no `len`."""

    past: int
    slots: Int[Tensor, " kv_seq"]
    base: Mask

    @classmethod
    def of(cls, valid: Bool[Tensor, "batch kv_seq"], past: int, base: Mask) -> "TracedContext":
        """The context of the tokens after the first `past` ones."""
        slots = torch.arange(valid.shape[1])
        none = slots[:0]  # what the parts ask these fields for is the number of slots alone
        return cls(
            batch=valid.shape[0],
            kv_positions=positions_of(slots, valid),
            q_slots=none,
            kv_slots=none,
            mask=base,
            valid=valid[:, past:],
            past=past,
            slots=slots,
            base=base & Padding(valid),
        )

    @property
    def positions(self) -> Int[Tensor, "#batch seq"]:
        """The positions of the new tokens."""
        return self.kv_positions[:, self.past :]

    def seen(self, pattern: Mask) -> "TracedContext":
        """This context with its mask narrowed by `pattern`, and evaluated."""
        rows = torch.arange(self.batch)[:, None, None]
        q, kv = self.slots[self.past :, None], self.slots
        allowed = self.base.allows(rows, q, kv)
        if pattern.at(self.kv_positions) is not pattern:  # it counts positions, not slots
            q, kv = self.positions[:, :, None], self.kv_positions[:, None]
        return replace(self, mask=Dense((allowed & pattern.allows(rows, q, kv))[:, None]))


class ConcatenatedCache:
    """One layer's keys and values as tensors of the graph: the new ones join those of the past."""

    def __init__(self, keys: Held, values: Held) -> None:
        self.keys = keys
        self.values = values

    def source(self, x: Hidden) -> Hidden:
        return x

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]

    def append(self, k: Held, v: Held) -> KeysValues:
        self.keys = torch.cat([self.keys, k], dim=2)
        self.values = torch.cat([self.values, v], dim=2)
        return self.keys, self.values


def run_stack(
    stack: Stack, x: Hidden, ctx: TracedContext, caches: Sequence[LayerCache] | None = None
) -> Hidden:
    """`stack(x)` with a mask that is evaluated from tensors."""
    seen = {pattern: ctx.seen(pattern) for pattern in stack.patterns}
    for i, block in enumerate(stack.blocks):
        x = block(x, seen[stack.patterns[i]], None if caches is None else caches[i])
    return stack.norm(x, ctx.valid)


def patches(embed: PatchEmbedding, pixels: Tensor) -> tuple[Hidden, Context]:
    """`embed(pixels)` for images of the size it was made for."""
    x = embed.proj(pixels).flatten(2).transpose(1, 2)
    if embed.class_token is not None:
        x = torch.cat([embed.class_token.expand(x.shape[0], 1, -1), x], dim=1)
    x = x if embed.positions is None else x + embed.positions
    return as_sequence(x, embed.position, embed.dropout)


class EncoderGraph(nn.Module):
    """`head(stack(embed(inputs)))` of ids with their mask and types, or of pixels."""

    def __init__(self, embed: Input, stack: Stack, head: nn.Module) -> None:
        super().__init__()
        self.embed = embed
        self.stack = stack
        self.head = head

    def forward(self, *tensors: Tensor) -> Tensor:
        if isinstance(self.embed, PatchEmbedding):
            x, ctx = patches(self.embed, *tensors)
            return self.head(self.stack(x, ctx), ctx)
        tokens, mask, *types = tensors
        ctx = TracedContext.of(mask.bool(), 0, Full())
        return self.head(run_stack(self.stack, self.embed(tokens, ctx, *types), ctx), ctx)


class MemoryHead(nn.Module):
    """The memory, zero at padding, and the keys and values that each cross-attention sees in it."""

    def __init__(self, cross_attentions: Sequence[CrossAttention]) -> None:
        super().__init__()
        self.cross_attentions = nn.ModuleList(cross_attentions)

    def forward(self, x: Hidden, ctx: Context) -> list[Tensor]:
        found = [memory := zero_padding(x, ctx.valid)]
        for attention in self.cross_attentions:
            assert isinstance(attention, CrossAttention)
            found += attention.keys_values(memory)
        return found


class DecoderGraph(nn.Module):
    """Logits of new tokens, and the keys and values of all.

    The tensors are the ids and a mask, then keys and values: in a decoder the mask is that of all
    tokens, and the rest the past; with `cross` it is that of the memory, whose keys and values
    come before the past.
    """

    def __init__(self, embed: Embedding, stack: Stack, head: nn.Module, *, cross: bool) -> None:
        super().__init__()
        self.embed = embed
        self.stack = stack
        self.head = head
        self.cross = cross

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        tokens, mask, *held = tensors
        n = len(self.stack.blocks)
        *memory, past = [held[i : i + 2 * n] for i in range(0, len(held), 2 * n)]
        self_caches = [ConcatenatedCache(*pair) for pair in _pairs(past)]
        caches = [LayerCache(cache) for cache in self_caches]
        length = past[0].shape[2]
        valid = tokens.new_ones(tokens.shape[0], length + tokens.shape[1]) if self.cross else mask
        ctx = TracedContext.of(valid.bool(), length, Causal())
        for kept in memory:
            ctx = replace(ctx, memory=Memory(_unread(kept), Dense(mask.bool()[:, None, None])))
            for cache, pair in zip(caches, _pairs(kept), strict=True):
                cache.cross_cache.once(lambda pair=pair: pair)
        x = run_stack(self.stack, self.embed(tokens, ctx), ctx, caches)
        return [
            self.head(x, ctx),
            *(t for cache in self_caches for t in (cache.keys, cache.values)),
        ]


def _pairs(tensors: Sequence[Tensor]) -> list[KeysValues]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _unread(kept: Sequence[Tensor]) -> Hidden:
    """A memory of the right lengths; no layer reads it, for all have its keys and values."""
    return kept[0].transpose(1, 2).flatten(-2)
