"""A decoder's step as CUDA graphs on a GPU, one for each number of rows and of slots.

A step for one token of each text is a thousand small kernels, and launching them one by one takes
longer than they do. A graph launches all of them at once. Its shapes and addresses are fixed, so
rows and slots are padded to a few sizes, and the inputs are copied into tensors of its own.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from addnorm.errors import InputError
from addnorm.generate.next_token import evaluating
from addnorm.models.step import LAST
from addnorm.serve.engine.paged_step import Buffers, PagedStep

MOST_GRAPHS = 48
"""The graphs that are kept; each holds a few MB for its kernels."""

LEAST_SLOTS = 256
"""The smallest number of slots of a graph."""

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""How far the logits of a graph may be from those of the step, as a share of the largest."""

Replay = Callable[[], None]

Record = Callable[[Callable[[], Tensor]], tuple[Replay, Tensor]]
"""Records a computation; returns what computes it again, and where its result then is."""


@dataclass(frozen=True)
class StepGraph:
    """A recorded step, with the tensors that it reads and writes."""

    tokens: Int[Tensor, "rows 1"]
    slots: Int[Tensor, "rows so_far"]
    valid: Bool[Tensor, "rows so_far"]
    logits: Float[Tensor, "rows vocab"]
    replay: Replay


class GraphedStep:
    """A `PagedStep` for the newest token of each text, by graphs recorded on demand.

    The first logits of a graph are compared with those of the step. Sizes of which no graph can be
    recorded, or whose logits differ, are computed by the step, with a warning. Raises `InputError`
    if that is so for a single text: the step needs values on the CPU, as a mixture of experts does.
    """

    def __init__(self, step: PagedStep, buffers: Buffers, record: Record | None = None) -> None:
        self._step = step
        self._buffers = buffers
        self._padding = len(buffers[0]) - 1
        self.record = on_stream() if record is None else record
        self.graphs: dict[tuple[int, int], StepGraph | None] = {}
        device = buffers[0].device
        tokens = torch.zeros(1, 1, dtype=torch.long, device=device)
        slots = torch.full((1, LEAST_SLOTS), self._padding, device=device)
        valid = torch.zeros(1, LEAST_SLOTS, dtype=torch.bool, device=device)
        valid[:, -1] = True
        with torch.inference_mode(), evaluating(step):
            graph, why = self._recorded(tokens, slots, valid)
        if why is not None:
            raise InputError(f"this model does not run as a CUDA graph: {why}")
        self.graphs[1, LEAST_SLOTS] = graph  # the memory that all share goes with the last of them
        for buffer in buffers:
            buffer[-1] = 0.0

    def __call__(
        self,
        tokens: Int[Tensor, "rows 1"],
        slots: Int[Tensor, "rows so_far"],
        valid: Bool[Tensor, "rows so_far"],
        buffers: Sequence[Tensor],
        positions: slice = LAST,  # a graph has the logits of every text
    ) -> Float[Tensor, "rows vocab"]:
        """The logits after the newest token of each text."""
        n, rows, width = len(tokens), padded_rows(len(tokens)), padded_slots(slots.shape[1])
        more = (width - slots.shape[1], 0, 0, rows - n)
        tokens = F.pad(tokens, (0, 0, 0, rows - n))
        slots, valid = F.pad(slots, more, value=self._padding), F.pad(valid, more)
        graph = self._graph(tokens, slots, valid)
        if graph is None:
            return self._step(tokens, slots, valid, self._buffers, LAST)[:n]
        graph.tokens.copy_(tokens)
        graph.slots.copy_(slots)
        graph.valid.copy_(valid)
        graph.replay()
        return graph.logits[:n].clone()

    def _graph(self, tokens: Tensor, slots: Tensor, valid: Tensor) -> StepGraph | None:
        """The graph for inputs of these sizes; None if it cannot be recorded."""
        sizes = len(slots), slots.shape[1]
        if sizes not in self.graphs:
            while len(self.graphs) >= MOST_GRAPHS:
                del self.graphs[next(iter(self.graphs))]
            graph, why = self._recorded(tokens, slots, valid)
            if why is not None:
                warnings.warn(f"steps of {sizes[0]} rows without a graph: {why}", stacklevel=2)
            self.graphs[sizes] = graph
        return self.graphs[sizes]

    def _recorded(
        self, tokens: Tensor, slots: Tensor, valid: Tensor
    ) -> tuple[StepGraph | None, str | None]:
        """A new graph for inputs of these sizes, or the reason why there is none."""
        tokens, slots, valid = tokens.clone(), slots.clone(), valid.clone()

        def step() -> Tensor:
            return self._step(tokens, slots, valid, self._buffers, LAST)

        expected = step().clone()
        try:
            replay, logits = self.record(step)
        except RuntimeError as error:
            return None, str(error).partition("\n")[0]
        replay()
        limit = TOLERANCES.get(expected.dtype, 0.0) * max(1.0, float(expected.abs().max()))
        if not torch.allclose(logits, expected, rtol=0.0, atol=limit, equal_nan=True):
            return None, "its logits differ from those of the step"
        return StepGraph(tokens, slots, valid, logits, replay), None


def on_stream() -> Record:
    """A function that records graphs on a stream, in memory shared by all graphs."""
    pool = torch.cuda.graph_pool_handle()

    def record(step: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries choose their kernels before they are recorded
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits = step()
        return graph.replay, logits

    return record


def padded_rows(n: int) -> int:
    """Round up to the next power of two."""
    return 1 << (n - 1).bit_length()


def padded_slots(n: int) -> int:
    """Round up to a multiple of 256; from 2,048 on, of a quarter of the power of two below."""
    size = max(LEAST_SLOTS, 1 << max((n - 1).bit_length() - 3, 0))
    return -(-n // size) * size
