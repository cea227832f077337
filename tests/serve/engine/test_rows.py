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
from addnorm.serve.engine.rows import Rows, why_alone
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


def test_sources_are_written_once_and_their_slots_are_free_again() -> None:
    buffers = RowBuffers(next_token_of("encoder–decoder"), 40, in_place=False)
    short, long = Rows(buffers), Rows(buffers)
    short.start([TOKENS[0][:3]])
    long.start([TOKENS[1][:7]])
    assert buffers.n_used == 3 + 1 + 7 + 1
    written = [[part.clone() for part in layer] for layer in buffers.memories if layer is not None]
    short.join(long)
    del long
    sources = short.sources
    assert sources is not None
    assert ((sources != buffers.padding).sum(1).tolist(), sources.shape[1]) == ([3, 7], 7)
    short.select(torch.tensor([0, 0, 1, 1]))
    short.step(torch.tensor([5, 6, 7, 8]))
    assert buffers.n_used == 3 + 1 + 7 + 1 + 4
    for layer, before in zip(filter(None, buffers.memories), written, strict=True):
        for part, same in zip(layer, before, strict=True):
            assert torch.equal(part[sources], same[sources])
    short.select(torch.tensor([1]))
    assert short.sources is not None
    assert short.sources.shape == (1, 3)
    assert buffers.n_used == 3 + 2
    del short
    assert buffers.n_used == 0


def test_very_different_lengths_do_not_share_a_step() -> None:
    buffers = RowBuffers(next_token_of("encoder–decoder"), 1000, in_place=False)
    short, long = Rows(buffers), Rows(buffers)
    short.start([TOKENS[0][:2]] * 100)
    long.start([[5] * 500])
    assert not short.fits(long)
    assert short.fits(short)


def test_the_cache_that_cannot_be_joined_is_named() -> None:
    for name in JOINABLE:
        assert why_alone(next_token_of(name).model) is None
    assert why_alone(next_token_of("alone").model) == "the Sums of layer 0 has no method `join`"
