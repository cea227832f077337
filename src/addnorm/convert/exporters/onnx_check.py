"""Verifying an ONNX export with onnxruntime, if it is installed."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from addnorm.convert.core.readback import check_logits, model_logits, sample_inputs
from addnorm.convert.exporters.onnx_quantized import Dequantized, Product
from addnorm.errors import InputError
from addnorm.models import DecoderModel, DualEncoderModel, EncoderDecoderModel, EncoderModel, Model
from addnorm.nn.convolutional_embedding import ConvolutionalEmbedding
from addnorm.nn.patches import PatchEmbedding, SeriesEmbedding

TYPES = {"tensor(float16)": torch.float16, "tensor(double)": torch.float64}
"""onnxruntime's names of tensor types other than float32."""

INPUTS_ROUNDED = 5e-2
"""The tolerance where inputs are rounded: a number between two steps may fall to either."""


def check_onnx(folder: Path, model: Model) -> None:
    """Raise `InputError` unless onnxruntime reproduces the model's logits on a small input.

    The graph of a quantised model is run without optimisation, which may choose products that also
    round the inputs of int8 weights. Without onnxruntime nothing is compared.
    """
    try:
        import onnxruntime  # noqa: F401 # pyright: ignore[reportUnusedImport]
    except ImportError:
        return
    modules = list(model.modules())
    as_written = any(isinstance(part, Dequantized) for part in modules)
    inputs = _inputs(folder, model)
    on_cpu = tuple(tensor.cpu() for tensor in inputs)
    match model:
        case EncoderModel():
            session = Session(folder / "model.onnx", as_written=as_written)
            [outputs] = session.run(session.source(on_cpu[0])).values()
        case DecoderModel():
            session = Session(folder / "decoder_model.onnx", as_written=as_written)
            new = {"input_ids": on_cpu[0], "attention_mask": torch.ones_like(on_cpu[0])}
            outputs = session.run(new | session.empty_past())["logits"]
        case EncoderDecoderModel():
            outputs = _translated(folder, on_cpu, as_written=as_written)
        case DualEncoderModel():  # which has no graphs
            return
    expected = model_logits(model, inputs)
    rounded = any(isinstance(part, Product) and part.scale is not None for part in modules)
    tolerance = INPUTS_ROUNDED if rounded else None
    check_logits("ONNX", outputs, expected, expected.dtype, tolerance=tolerance)


def _inputs(folder: Path, model: Model) -> tuple[Tensor, ...]:
    """Sample inputs for the model, with images and windows of the size that the graph takes."""
    inputs = sample_inputs(model)
    embed = model.source_embed if isinstance(model, EncoderDecoderModel) else model.embed
    if not isinstance(embed, PatchEmbedding | ConvolutionalEmbedding | SeriesEmbedding):
        return inputs
    file = "encoder_model.onnx" if isinstance(model, EncoderDecoderModel) else "model.onnx"
    name = "series" if isinstance(embed, SeriesEmbedding) else "pixels"
    shape = (1, *Session(folder / file).shapes[name][1:])
    signal = torch.linspace(-1.0, 1.0, int(torch.tensor(shape).prod())).view(shape)
    dtype = inputs[0].dtype if isinstance(embed, SeriesEmbedding) else embed.dtype
    return (signal.to(inputs[0].device, dtype), *inputs[1:])


def _translated(folder: Path, inputs: tuple[Tensor, ...], *, as_written: bool) -> Tensor:
    encoder = Session(folder / "encoder_model.onnx", as_written=as_written)
    decoder = Session(folder / "decoder_model.onnx", as_written=as_written)
    memory = encoder.run(encoder.source(inputs[0]))
    cross = {name: tensor for name, tensor in memory.items() if name.startswith("cross")}
    rows, length = memory["last_hidden_state"].shape[:2]
    new = {"input_ids": inputs[1], "encoder_attention_mask": torch.ones(rows, length).long()}
    return decoder.run(new | cross | decoder.empty_past())["logits"]


class Session:
    """A graph in onnxruntime, on one CPU thread."""

    def __init__(self, file: Path, *, as_written: bool = False) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        if as_written:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self.file = file
        with _as_input_error(f"{file}: onnxruntime cannot open it"):
            self._inner: Any = onnxruntime.InferenceSession(file, options, providers=providers)
        self.shapes = {node.name: tuple(node.shape) for node in self._inner.get_inputs()}
        self._types = {node.name: str(node.type) for node in self._inner.get_inputs()}

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name, given those inputs that the graph has.

        Raises `InputError` where one is missing, or of another type or shape.
        """
        if missing := self.shapes.keys() - inputs.keys():
            raise InputError(f"{self.file} needs {min(missing)}: it reads {', '.join(self.shapes)}")
        arrays = {name: inputs[name].numpy() for name in self.shapes}
        names = [output.name for output in self._inner.get_outputs()]
        with _as_input_error(f"{self.file}: onnxruntime cannot run it on these inputs"):
            outputs = self._inner.run(names, arrays)
        return {name: torch.from_numpy(output) for name, output in zip(names, outputs, strict=True)}

    def source(self, tensor: Tensor) -> dict[str, Tensor]:
        """The encoder inputs: pixels, a window of a series, or ids with a mask and types."""
        if signal := {"pixels", "series"} & self.shapes.keys():
            return {signal.pop(): tensor}
        mask, types = torch.ones_like(tensor), torch.zeros_like(tensor)
        return {"input_ids": tensor, "attention_mask": mask, "token_type_ids": types}

    def empty_past(self) -> dict[str, Tensor]:
        """The empty past at the start of a text."""
        return {
            name: torch.zeros(1, shape[1], 0, shape[3], dtype=TYPES.get(self._types[name]))
            for name, shape in self.shapes.items()
            if name.startswith("past")
        }


@contextmanager
def _as_input_error(problem: str) -> Generator[None]:
    """Convert errors of onnxruntime, which have no common class, to `InputError`."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().splitlines()[0].rpartition(" : ")[2]
        raise InputError(f"{problem}: {reason}") from error
