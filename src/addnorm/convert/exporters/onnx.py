"""Exporting models to ONNX, with the key/value cache as graph inputs and outputs."""

import copy
import logging
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.atomic import atomic_directory
from addnorm.convert.core.readback import check_types
from addnorm.convert.exporters.onnx_check import check_onnx
from addnorm.convert.exporters.onnx_quantized import (
    blocks_options,
    has_blocks,
    pack_blocks,
    place_dequantized,
)
from addnorm.errors import InputError, optional
from addnorm.models import (
    DecoderConfig,
    DecoderModel,
    DualEncoderModel,
    EncoderDecoderModel,
    EncoderModel,
    Model,
    ModelConfig,
)
from addnorm.models.inputs import Input
from addnorm.models.ledger import Ledger
from addnorm.models.step import (
    EVERY,
    DecoderState,
    TranslationState,
    check_traceable,
    concatenated_cache,
    decoder_step,
    pairs,
    translation_step,
)
from addnorm.nn.attention import EagerCore, SDPACore, SelfAttention
from addnorm.nn.attention.flex import FlexCore
from addnorm.nn.attention.multihead import Attending, MultiHead
from addnorm.nn.blocks import Stack
from addnorm.nn.cache import ConcatenatedCache, KVCache
from addnorm.nn.convolutional_embedding import ConvolutionalEmbedding, ConvolutionalEmbeddingConfig
from addnorm.nn.crf import CRFHead
from addnorm.nn.embed import Embedding, TokenEmbedding
from addnorm.nn.forecast import ForecastHead
from addnorm.nn.heads import HiddenHead, PoolerHead
from addnorm.nn.patches import (
    PatchEmbedding,
    PatchEmbeddingConfig,
    SeriesEmbedding,
    SeriesEmbeddingConfig,
)
from addnorm.nn.vectors import VectorHead
from addnorm.quantize import is_quantized

EXPORTING = Lock()
"""torch traces one model at a time, and none runs meanwhile: exports in threads wait."""

EXTERNAL = 2**30
"""The weight size above which weights are in a separate file (protobuf's limit is 2 GiB)."""


def export_onnx(
    model: Model, config: ModelConfig, folder: Path, *, attention: bool = False
) -> list[Path]:
    """Write the graphs of `model` to `folder`; return their files.

    | model | file | inputs | outputs |
    |---|---|---|---|
    | encoder | `model.onnx` | `input_ids`, `attention_mask`; `pixels`; `series` | `output_name` |
    | decoder | `decoder_model.onnx` | `input_ids`, `attention_mask`, past | `logits`, present |
    | both | `encoder_model.onnx` | as an encoder | `last_hidden_state`, cross |
    | | `decoder_model.onnx` | `input_ids`, `encoder_attention_mask`, cross, past | as a decoder |

    Past are `past_key.i` and `past_value.i` of each layer `i`, of shape (batch, kv_heads, past,
    d_head), where `past` may be 0; present are `present_key.i` and `present_value.i`, the past of
    the next step; cross are `cross_key.i` and `cross_value.i`, computed once. Ids and masks are
    int64; a decoder's mask has past + sequence columns, padding on either side. An encoder with
    token types also has the input `token_type_ids`. With sliding windows the past is still
    complete. A position beyond a learned table is an index out of bounds, which onnxruntime refuses
    on a CPU. With `attention`, the decoder of an encoder–decoder also has the output
    `cross_attention`, the mean over layers and heads of the weights of each token over the memory,
    if its layers compute such. If onnxruntime is installed, the graphs must reproduce the model's
    logits before they are moved into place. Raises `InputError` for parts that cannot be traced, or
    if `onnx` is missing.
    """
    optional("onnxscript", "onnx", "this export")
    check_exportable(model)
    plain = _plain(model)
    graphs = graphs_of(plain, config, attention=attention)
    with EXPORTING, atomic_directory(folder, ["*.onnx", "*.onnx.data"]) as partial:
        for graph in graphs:
            graph.save(partial)
        check_onnx(partial, plain if is_quantized(model) else model)
        names = sorted(file.name for file in partial.iterdir())
    return [folder / name for name in names]


def check_exportable(model: Model) -> None:
    """Raise `InputError` for a model that cannot be an ONNX graph."""
    fixed = (SeriesEmbedding,) if isinstance(model.head, ForecastHead) else ()
    check_traceable("this model cannot be exported to ONNX", model, fixed=fixed)
    check_types("ONNX", model)
    if isinstance(model.head, CRFHead):
        raise InputError(
            "ONNX cannot hold head (CRFHead): a graph does not search for the best path of tags. "
            "Train with model.head.kind = 'tagging' for one."
        )
    if any(parameter.dtype == torch.bfloat16 for parameter in model.parameters()):
        raise InputError("onnxruntime has no bfloat16 on a CPU: export float32 or float16")


def _plain(model: Model) -> Model:
    """A copy of the model for inference, with attention as plain matrix products.

    Fused kernels with a float mask return NaN for fully masked queries, as in padding.
    """
    plain = copy.deepcopy(model).eval().cpu().requires_grad_(False)
    if is_quantized(plain):
        place_dequantized(plain)
    ledger = Ledger(plain, "ONNX")
    for module in plain.modules():
        if isinstance(module, Attending) and type(module.core) in (SDPACore, FlexCore):
            core = ledger.module(module.core, SDPACore, FlexCore)
            ledger.leave(core, "dropout", because="nothing is dropped at inference")
            if core.score is not None:
                ledger.leave_all(core.score, because="the new core has the same score")
            ledger.close(core)
            module.core = EagerCore(core.score)
    return plain


@dataclass(frozen=True, kw_only=True)
class GraphTensor:
    """An input of a graph: an example tensor, and the names of its dynamic axes."""

    example: Tensor
    axes: Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The content of one ONNX file."""

    name: str
    module: nn.Module
    inputs: Mapping[str, GraphTensor]
    outputs: Sequence[str]

    def save(self, folder: Path) -> None:
        """Trace the module on the examples, and save the graph."""
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
                **_options(blocks=has_blocks(self.module)),
            )
            assert program is not None
            program.rename_axes(self.symbols([value.shape for value in program.model.graph.inputs]))
            write_once(program.model.graph)
            pack_blocks(program.model.graph)
            size = sum(p.nbytes for p in self.module.parameters())
            program.save(folder / self.name, external_data=size > EXTERNAL)

    def symbols(self, shapes: Iterable[Any]) -> dict[Any, str]:
        """The axis name of each of the tracer's symbols."""
        symbols = {
            str(shape[i]): axis
            for shape, slot in zip(shapes, self.inputs.values(), strict=True)
            for i, axis in slot.axes.items()
        }
        return {symbol: axis for symbol, axis in symbols.items() if symbol.isidentifier()}


def _options(*, blocks: bool) -> dict[str, Any]:
    """The options of torch's exporter, with our translations of operators that ONNX lacks."""
    options = blocks_options() if blocks else {}
    translations: dict[Any, Any] = options.setdefault("custom_translation_table", {})
    translations[torch.ops.aten.sort.stable] = _stable_sort
    return options


def _stable_sort(values: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    """A stable sort as TopK over all numbers, which keeps the order of equal ones."""
    from onnxscript import opset18

    nodes: Any = opset18
    size = nodes.Gather(nodes.Shape(values), nodes.Constant(value_ints=[dim]))
    return nodes.TopK(values, size, axis=dim, largest=descending, sorted=1)


def write_once(graph: Any) -> None:
    """Store a table only once even if it is also used transposed, as by a tied head.

    The tracer also stores its transpose, which onnxruntime can compute when it opens the graph.
    """
    import onnx_ir as ir

    looked_up = {node.inputs[0].name for node in graph if node.op_type == "Gather"}
    weights = {name: value.const_value for name, value in graph.initializers.items()}
    for table in looked_up & weights.keys():
        for name, weight in weights.items():
            rows = list(weights[table].shape)
            if list(weight.shape) != rows[::-1] or len(rows) != 2 or name in looked_up:
                continue
            if (weights[table].numpy() == weight.numpy().T).all():
                turned = ir.node("Transpose", [graph.initializers[table]], {"perm": [1, 0]})
                graph.insert_before(graph[0], turned)
                ir.convenience.replace_all_uses_with(graph.initializers[name], turned.outputs[0])
                turned.outputs[0].dtype = weight.dtype
                turned.outputs[0].shape = weight.shape
                del graph.initializers[name]


@contextmanager
def _quiet() -> Generator[None]:
    """Suppress warnings of the tracer and the ONNX exporter."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def graphs_of(model: Model, config: ModelConfig, *, attention: bool = False) -> list[Graph]:
    """The graphs of a model, not yet traced: modules with named inputs and outputs."""
    match model:
        case DualEncoderModel():
            raise InputError(
                "a dual encoder, of texts and pictures, is not exported to ONNX: give to = 'hf'"
            )
        case EncoderModel():
            inputs = _readable(model.embed, config, types=True)
            module = Traced(model, _encoded)
            outputs = [output_name(model.head)]
            return [Graph(name="model.onnx", module=module, inputs=inputs, outputs=outputs)]
        case DecoderModel():
            new = {"input_ids": _ids(3, "sequence"), "attention_mask": _ids(7, "past + sequence")}
            return [_decoder(Traced(model, _decoder_step), new | _past(model.stack))]
        case EncoderDecoderModel():
            cross = _keys_values("cross", "memory", model.cross_attentions)
            encoder = Graph(
                name="encoder_model.onnx",
                module=Traced(model, _memory),
                inputs=_readable(model.source_embed, config),
                outputs=["last_hidden_state", *cross],
            )
            new = {"input_ids": _ids(3, "sequence"), "encoder_attention_mask": _ids(5, "memory")}
            inputs = new | cross | _past(model.decoder)
            if not (attention and all(map(_shows_weights, model.cross_attentions))):
                return [encoder, _decoder(Traced(model, _translation_step), inputs)]
            decoder = _decoder(Traced(model, _step_with_attention), inputs)
            return [encoder, replace(decoder, outputs=[*decoder.outputs, "cross_attention"])]


def output_name(head: nn.Module) -> str:
    """The name of an encoder's output in transformers and sentence-transformers."""
    match head:
        case HiddenHead():
            return "last_hidden_state"
        case PoolerHead():
            return "pooler_output"
        case VectorHead():
            return "sentence_embedding"
        case ForecastHead():
            return "prediction_outputs"
        case _:
            return "logits"


def _decoder(module: nn.Module, inputs: Mapping[str, GraphTensor]) -> Graph:
    present = [name.replace("past", "present") for name in inputs if name.startswith("past")]
    names = ["logits", *present]
    return Graph(name="decoder_model.onnx", module=module, inputs=inputs, outputs=names)


def _past(stack: Stack) -> dict[str, GraphTensor]:
    mixers = [mixer for mixer in stack.mixers if isinstance(mixer, SelfAttention)]
    return _keys_values("past", "past", mixers)  # other mixers were refused


def _ids(length: int, axis: str) -> GraphTensor:
    return GraphTensor(example=torch.ones(2, length, dtype=torch.long), axes={0: "batch", 1: axis})


def _readable(embed: Input, config: ModelConfig, *, types: bool = False) -> dict[str, GraphTensor]:
    """The encoder inputs: tokens of any number, images of the configured size, or a window.

    With `types`, also the types of tokens if the embedding has any. An encoder–decoder takes none:
    all of its tokens have the first type.
    """
    if isinstance(embed, TokenEmbedding):
        ours = isinstance(embed, Embedding)  # pyright: ignore[reportUnnecessaryIsInstance]
        typed = types and ours and embed.types is not None
        names = ["input_ids", "attention_mask"] + ["token_type_ids"] * typed
        return {name: _ids(3, "sequence") for name in names}
    assert not isinstance(config, DecoderConfig)
    if isinstance(config.input, SeriesEmbeddingConfig):  # of a forecast, whose window is fixed
        window = torch.zeros(2, config.input.channels, config.input.look_back or 0)
        return {"series": GraphTensor(example=window, axes={0: "batch"})}
    assert isinstance(embed, PatchEmbedding | ConvolutionalEmbedding)
    assert isinstance(config.input, PatchEmbeddingConfig | ConvolutionalEmbeddingConfig)
    pixels = torch.zeros(2, config.input.channels, *config.input.size)
    return {"pixels": GraphTensor(example=pixels.to(embed.dtype), axes={0: "batch"})}


def _keys_values(name: str, axis: str, attentions: Sequence[MultiHead]) -> dict[str, GraphTensor]:
    """Key and value inputs of every layer, with `axis` as the name of their length."""
    slots: dict[str, GraphTensor] = {}
    for i, attention in enumerate(attentions):
        heads = attention.k_proj.out_features // attention.d_head
        dtype = next((weight.dtype for weight in attention.parameters()), torch.float32)
        length = 5 if axis == "memory" else 4
        for part in ("key", "value"):  # a shared tensor would become one input
            example = torch.zeros(2, heads, length, attention.d_head, dtype=dtype)
            slots[f"{name}_{part}.{i}"] = GraphTensor(example=example, axes={0: "batch", 2: axis})
    return slots


# The traced functions: models and decoding steps with tensor arguments only.


class Traced(nn.Module):
    """A function of a model and tensors, as a module that can be traced."""

    def __init__(self, model: Model, function: Callable[..., Tensor | list[Tensor]]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *tensors: Tensor) -> Tensor | list[Tensor]:
        return self.function(self.model, *tensors)


def _encoded(model: EncoderModel, *tensors: Tensor) -> Tensor:
    """The output of an encoder for ids with their mask and types, or for pixels."""
    return model(*_with_valid(tensors))


def _memory(model: EncoderDecoderModel, *tensors: Tensor) -> list[Tensor]:
    """The encoder memory, with the cross-attention keys and values of each decoder layer."""
    memory = model.encode(*_with_valid(tensors))
    return [memory, *(part for pair in model.cross_keys_values(memory) for part in pair)]


def _decoder_step(model: DecoderModel, tokens: Tensor, mask: Tensor, *past: Tensor) -> list[Tensor]:
    """`decoder_step` for ids, mask and past: returns logits and the new cache."""
    cache = concatenated_cache(model.stack, past)
    state = DecoderState(cache=cache, valid=mask.bool())
    logits, _ = decoder_step(model, tokens, state, EVERY)
    return [logits, *_present(cache)]


def _translation_step(
    model: EncoderDecoderModel, tokens: Tensor, mask: Tensor, *held: Tensor
) -> list[Tensor]:
    """`translation_step` for ids, the past, and the memory's mask, keys and values."""
    cross, past = held[: len(held) // 2], held[len(held) // 2 :]
    cache = concatenated_cache(model.decoder, past)
    state = TranslationState.after(pairs(cross), mask.bool(), cache)
    logits, _ = translation_step(model, tokens, state)
    return [logits, *_present(cache)]


def _step_with_attention(model: EncoderDecoderModel, *tensors: Tensor) -> list[Tensor]:
    """`_translation_step` that also returns mean cross-attention weights."""
    weights: list[Tensor] = []
    with ExitStack() as hooks:
        for attention in model.cross_attentions:
            assert isinstance(attention.core, EagerCore)
            dropout = attention.core.weights_dropout
            hooks.enter_context(
                dropout.register_forward_hook(lambda *call: weights.append(call[2]))
            )
        outputs = _translation_step(model, *tensors)
    return [*outputs, torch.stack(weights).mean((0, 2))]


def _shows_weights(attention: MultiHead) -> bool:
    """Whether attention computes its weights exactly once, where a hook can see them."""
    return type(attention.core) is EagerCore


def _with_valid(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Convert the second input, the mask, to booleans."""
    return [tensor.bool() if i == 1 else tensor for i, tensor in enumerate(tensors)]


def _present(cache: KVCache) -> list[Tensor]:
    caches = (layer.self_cache for layer in cache)
    return [part for each in caches if isinstance(each, ConcatenatedCache) for part in each.kept]
