"""Graphs of a step give its logits, whatever the number of rows and slots; here without a GPU.

A graph is recorded as a function that computes the step again, into the same tensor.
"""

from collections.abc import Callable

import pytest
import torch
from tests.devices import NothingFromTheCPU
from tests.serve.engine.test_decoder import CONFIGS, VOCAB, check_logits
from torch import Tensor

from addnorm.checking.stand_in import THERE, moved, stand_in_device
from addnorm.errors import InputError
from addnorm.models.step import LAST
from addnorm.serve.engine import decoder as decoders
from addnorm.serve.engine.cuda_graphs import (
    MOST_GRAPHS,
    GraphedStep,
    Replay,
    padded_rows,
    padded_slots,
)
from addnorm.serve.engine.paged_step import PagedStep, new_buffers


def recorded(step: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
    logits = torch.full_like(step(), torch.nan)

    def replay() -> None:
        logits.copy_(step())

    return replay, logits


def plain(name: str = "rotary", n_slots: int = 401) -> tuple[PagedStep, list[Tensor]]:
    torch.manual_seed(0)
    model = CONFIGS[name].build(VOCAB).eval()
    buffers = new_buffers(model, n_slots)
    for buffer in buffers:
        buffer[:-1] = torch.randn_like(buffer[:-1])
    return PagedStep(model, buffers, in_place=False), buffers


def inputs(lengths: list[int], n_slots: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ragged texts in slots of their own, padded on the left."""
    width, padding = max(lengths), n_slots - 1
    slots = torch.full((len(lengths), width), padding)
    free = torch.randperm(padding).tolist()
    for row, n in zip(slots, lengths, strict=True):
        row[width - n :] = torch.tensor([free.pop() for _ in range(n)])
    return torch.randint(0, VOCAB, (len(lengths), 1)), slots, slots != padding


@pytest.mark.parametrize("name", ["rotary", "softcap, bias of pairs"])
@torch.inference_mode()
def test_logits_are_those_of_the_step(name: str) -> None:
    n_slots = 400
    step, buffers = plain(name, n_slots)
    graphed = GraphedStep(step, buffers, recorded)
    for lengths in ([1], [7, 3, 5], [260, 1], [5], [2] * 5, [9, 9, 9]):
        given = inputs(lengths, n_slots)
        expected = step(*given, buffers)
        logits = graphed(*given, buffers, LAST)
        assert logits.shape == (len(lengths), VOCAB)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        again = graphed(*given, buffers)
        assert torch.equal(again, logits)
        assert again.data_ptr() != logits.data_ptr()  # a later step must not change it
    assert graphed.graphs.keys() == {(1, 256), (4, 256), (2, 512), (8, 256)}


@pytest.mark.parametrize("name", ["rotary", "window"])
def test_a_schedule_gets_the_logits_of_each_sequence_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def graphed(step: PagedStep, buffers: list[Tensor]) -> GraphedStep:
        return GraphedStep(step, buffers, recorded)

    monkeypatch.setattr(decoders, "compiled_step", graphed)
    check_logits(name, 4, "compiled")


def test_what_cannot_be_recorded_is_refused_or_computed_without() -> None:
    step, buffers = plain()

    def fails(_: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    with pytest.raises(InputError, match=r"as a CUDA graph: operation not .* capturing$"):
        GraphedStep(step, buffers, fails)

    def wrong(step: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        return (lambda: None), recorded(step)[1]

    with pytest.raises(InputError, match="its logits differ"):
        GraphedStep(step, buffers, wrong)
    graphed = GraphedStep(step, buffers, recorded)
    graphed.record = fails
    given = inputs([3, 2], 401)
    with torch.inference_mode():
        with pytest.warns(UserWarning, match="steps of 2 rows without a graph: operation not"):
            logits = graphed(*given, buffers)
        torch.testing.assert_close(logits, step(*given, buffers), atol=1e-5, rtol=1e-5)


def test_the_oldest_graphs_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("addnorm.serve.engine.cuda_graphs.MOST_GRAPHS", 2)
    step, buffers = plain()
    graphed = GraphedStep(step, buffers, recorded)
    with torch.inference_mode():
        for lengths in ([1], [1, 2], [1] * 4, [1]):
            graphed(*inputs(lengths, 401), buffers)
            assert len(graphed.graphs) <= 2
    assert MOST_GRAPHS > 2


def test_sizes_are_few_and_waste_little() -> None:
    for n in range(1, 5000):
        rows, slots = padded_rows(n), padded_slots(n)
        assert n <= rows < 2 * n
        assert n <= slots <= max(n + 255, n * 5 // 4)
    assert len({padded_slots(n) for n in range(1, 2**15)}) <= 24


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_takes_nothing_from_the_cpu(name: str) -> None:
    with stand_in_device(), torch.inference_mode():
        model = moved(CONFIGS[name].build(VOCAB).eval())
        buffers = new_buffers(model, 401)
        step = PagedStep(model, buffers, in_place=True)
        tokens, slots, valid = (torch.ones_like(x, device=THERE) for x in inputs([7, 3], 401))
        with NothingFromTheCPU():
            assert step(tokens, slots, valid, buffers).device == THERE


@pytest.mark.gpu
def test_a_gpu_replays_the_step() -> None:
    torch.manual_seed(0)
    model = CONFIGS["rotary"].build(VOCAB).eval().cuda()
    buffers = new_buffers(model, 1200)
    step = PagedStep(model, buffers, in_place=True)
    with torch.inference_mode():
        graphed = GraphedStep(step, buffers)
        for lengths in ([1], [7, 3, 5], [260, 1], [7, 3, 5]):
            tokens, slots, valid = (tensor.cuda() for tensor in inputs(lengths, 1200))
            logits = graphed(tokens, slots, valid, buffers)
            expected = step(tokens, slots, valid, buffers)
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
