"""Rows that join and leave have the logits that each has alone."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.engine.test_batches import RUNS
from torch import Tensor

from addnorm.generate import Continuation, Translation
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.serve.engine.rows import Memories, Rows, why_alone
from addnorm.serve.engine.slots import RowBuffers

TOKENS = [random.Random(i).choices(range(4, 30), k=40) for i in range(8)]
JOINABLE = [name for name in RUNS if name != "alone"]


def next_token_of(name: str) -> Continuation | Translation:
    model = RUNS[name].model
    if isinstance(model, EncoderDecoderModel):
        return Translation(model, 2)
    assert isinstance(model, DecoderModel)
    return Continuation(model)


def alone(name: str, text: int, prompt: int, written: int) -> Tensor:
    """The logits after a prompt and some written tokens of a text."""
    next_token = next_token_of(name)
    logits = next_token.start([TOKENS[text][:prompt]])
    for token in TOKENS[text][prompt : prompt + written]:
        logits = next_token.step(torch.tensor([token]))
    return logits[0]


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", JOINABLE)
@settings(max_examples=6)
@given(st.randoms(use_true_random=False))
def test_logits_are_those_of_each_row_alone(name: str, in_place: bool, draw: random.Random) -> None:
    buffers = RowBuffers(next_token_of(name), 400, in_place=in_place)
    rows, texts = Rows(buffers), list[tuple[int, int, int]]()
    for _ in range(6):
        arrived = [(draw.randrange(8), draw.randint(1, 9), 0) for _ in range(draw.randint(1, 3))]
        more = Rows(buffers)
        logits = more.start([TOKENS[text][:prompt] for text, prompt, _ in arrived])
        check(name, arrived, logits)
        if texts:
            rows.join(more)
        else:
            rows = more
        texts += arrived
        for _ in range(draw.randint(0, 3)):
            tokens = [TOKENS[text][prompt + written] for text, prompt, written in texts]
            logits = rows.step(torch.tensor(tokens))
            texts = [(text, prompt, written + 1) for text, prompt, written in texts]
            check(name, texts, logits)
            kept = draw.choices(range(len(texts)), k=draw.randint(1, len(texts)))
            rows.select(torch.tensor(kept))
            texts = [texts[i] for i in kept]


def check(name: str, texts: list[tuple[int, int, int]], logits: Tensor) -> None:
    expected = torch.stack([alone(name, *text) for text in texts])
    assert torch.allclose(logits, expected, atol=1e-4, rtol=1e-5)


def test_memories_are_padded_as_far_as_needed() -> None:
    model = RUNS["encoder–decoder"].model
    assert isinstance(model, EncoderDecoderModel)
    with torch.inference_mode():
        short, long = (Memories.of(model, [TOKENS[0][:n]], torch.device("cpu")) for n in (3, 7))
        both = short.joined(long)
    assert (len(both), both.width) == (2, 7)
    assert both.valid.sum(1).tolist() == [3, 7]
    again = both.select(torch.tensor([0, 0]))
    assert (len(again), again.width) == (2, 3)
    for ours, expected in zip(again.layers, short.layers, strict=True):
        assert all(torch.equal(x[:1], y) for x, y in zip(ours, expected, strict=True))


def test_very_different_lengths_do_not_share_a_step() -> None:
    buffers = RowBuffers(next_token_of("encoder–decoder"), 400, in_place=False)
    short, long = Rows(buffers), Rows(buffers)
    short.start([TOKENS[0][:2]] * 100)
    long.start([[5] * 500])
    assert not short.fits(long)
    assert short.fits(short)


def test_the_cache_that_cannot_be_joined_is_named() -> None:
    for name in JOINABLE:
        assert why_alone(next_token_of(name).model) is None
    assert why_alone(next_token_of("alone").model) == "the Sums of layer 0 has no method `join`"
