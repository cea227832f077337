"""Exact answers have the same bits whoever else asks, however prompts are cut and pages shared."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.engine.arrivals import ARRIVALS, answers_of_arrivals, give_room, request
from tests.serve.engine.tiny import TINY, Answered, answered, run_of
from torch import Tensor
from torch.nn import functional as F

from addnorm.compiler import has_compiler
from addnorm.models import DecoderConfig
from addnorm.nn import linear as linear_module
from addnorm.nn.attention import AttentionConfig, DifferentialCoreConfig
from addnorm.nn.attention.patterns import WindowPatternConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.positions import ALiBiConfig, T5BiasConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.exact import SIZES, Tiles, agreeing
from addnorm.serve.engine.ngrams import PromptLookup
from addnorm.serve.engine.schedule import Limits
from addnorm.serve.engine.sequence import Request

WIDE = replace(TINY, d_model=48, attention=AttentionConfig(n_heads=3, n_kv_heads=1))
TILED = {
    "rotary": WIDE,
    "window": replace(
        WIDE, attention=AttentionConfig(n_heads=4, pattern=WindowPatternConfig(size=5))
    ),
    "alibi, odd widths": replace(
        WIDE, position=ALiBiConfig(), feedforward=GatedFeedForwardConfig(d_ff=71)
    ),
}
ALONE = {
    "bias of pairs": (replace(WIDE, position=T5BiasConfig()), "T5Bias positions"),
    "gathered": (
        replace(WIDE, attention=AttentionConfig(n_heads=4, core=DifferentialCoreConfig())),
        "attention of layer 0",
    ),
    "experts": (replace(WIDE, feedforward=MixtureOfExpertsConfig()), "each expert"),
}
BATCHES = {"recurrent": DecoderConfig(d_model=48, n_layers=1, attention=RecurrentConfig())}
CONFIGS = TILED | {name: config for name, (config, _) in ALONE.items()} | BATCHES
RUNS = {name: run_of(config) for name, config in CONFIGS.items()}
EXPECTED: dict[tuple[str, str], dict[tuple[str, int], Answered]] = {}


def alone(name: str, asks: Request) -> dict[tuple[str, int], Answered]:
    """The answers to a request that is the only one."""
    if (name, repr(asks)) not in EXPECTED:
        EXPECTED[name, repr(asks)] = answered(Engine(RUNS[name], memory=2**20, exact=True), [asks])
    return EXPECTED[name, repr(asks)]


def check_bits(
    name: str,
    arrivals: list[dict[str, Any]],
    page_size: int,
    limits: Limits,
    *,
    speculates: bool = False,
) -> None:
    engine = Engine(RUNS[name], memory=2**16, page_size=page_size, limits=limits, exact=True)
    if speculates:
        engine.speculate(PromptLookup())
    give_room(engine, 200)
    for asks, index, answer in answers_of_arrivals(engine, arrivals):
        expected = alone(name, asks)["r", index]
        assert answer.tokens == expected.tokens
        assert answer.log_probs == expected.log_probs
        assert answer.finished == expected.finished
        if index == 0 and asks.options.prompt_log_probs:
            assert answer.events[0].prompt == expected.events[0].prompt


limits = st.builds(Limits, chunk=st.integers(1, 40), rows=st.integers(3, 40))


@settings(max_examples=8, deadline=None)
@given(ARRIVALS, st.integers(1, 8), limits, st.booleans())
def test_bits_are_those_of_the_request_alone(
    arrivals: list[dict[str, Any]], page_size: int, limits: Limits, speculates: bool
) -> None:
    check_bits("rotary", arrivals, page_size, limits, speculates=speculates)


@pytest.mark.sampled(2)
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in RUNS if name != "rotary"])
@settings(max_examples=6, deadline=None)
@given(ARRIVALS, st.integers(1, 8), limits)
def test_so_are_those_of_other_parts(
    name: str, arrivals: list[dict[str, Any]], page_size: int, limits: Limits
) -> None:
    check_bits(name, arrivals, page_size, limits)


@pytest.mark.parametrize("name", ALONE)
def test_what_a_tile_would_change_is_computed_token_by_token(name: str) -> None:
    _, why = ALONE[name]
    *_, line = Engine(RUNS[name], exact=True).description.lines
    assert line.startswith(f"exact: one token after another: {why}")


@pytest.mark.parametrize("sizes", [(1,), (16,), (16, 64), SIZES])
def test_tiles_hold_all_tokens_and_few_places_are_empty(sizes: tuple[int, ...]) -> None:
    for n_tokens in (*range(140), 1000):
        tiles = list(Tiles(sizes).split(n_tokens))
        assert sum(n for n, _ in tiles) == n_tokens
        assert all(0 < n <= size and size in sizes for n, size in tiles)
        assert all(n == size for n, size in tiles[:-1])
        assert sum(size for _, size in tiles) - n_tokens < sizes[0]


def test_tiles_with_other_bits_are_found() -> None:
    def steady(places: list[int], size: int) -> Tensor:
        return torch.tensor(places, dtype=torch.float32)[:, None]

    def other_in_64(places: list[int], size: int) -> Tensor:
        return steady(places, size) + (size == 64) * 1e-4

    def other_at_the_end(places: list[int], size: int) -> Tensor:
        return steady(places, size) + (torch.arange(len(places)) == 15)[:, None] * 1e-4

    assert agreeing(steady, 32).sizes == SIZES
    assert agreeing(other_in_64, 32).sizes == (16, 32)
    tiles = agreeing(other_at_the_end, 32)
    assert tiles.sizes == (1,)
    assert str(tiles) == "exact: one token after another: here a row of 16 depends on its place"


def backwards_if_few(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product that adds in another order for fewer than 16 rows."""
    if x.numel() // x.shape[-1] < SIZES[0]:
        x, weight = x.flip(-1).contiguous(), weight.flip(-1).contiguous()
    return F.linear(x, weight, bias)


def split_as_they_come(tiles: Tiles, n_tokens: int) -> Iterator[tuple[int, int]]:
    yield n_tokens, n_tokens


def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that depend on the number of rows, without tiles, give other bits."""
    monkeypatch.setattr(linear_module, "linear", backwards_if_few)
    run: TrainedModel = run_of(WIDE)
    asked = [request(f"r{i}", log_probs=0, decoding="greedy") for i in range(20)]

    def bits() -> tuple[list[float], list[float]]:
        together = answered(Engine(run, exact=True), asked)["r0", 0]
        return together.log_probs, answered(Engine(run, exact=True), asked[:1])["r0", 0].log_probs

    first, second = bits()
    assert first == second
    monkeypatch.setattr(Tiles, "split", split_as_they_come)
    first, second = bits()
    assert first != second


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bits_of_a_compiled_step_are_those_of_the_request_alone() -> None:
    asked = [request(f"r{i}", (4 + i, 5, 6), decoding="greedy", log_probs=0) for i in range(20)]
    run = run_of(replace(WIDE, feedforward=MixtureOfExpertsConfig()))
    if not has_compiler():
        pytest.skip("needs a C++ compiler")
    engines = [
        Engine(run, exact=True, kernels="compiled", limits=Limits(chunk=chunk)) for chunk in (2, 9)
    ]
    together = answered(engines[0], asked)
    assert engines[0].description.lines[-1].startswith("exact: tokens in tiles of 16")
    for each in asked:
        alone = answered(engines[1], [each])[each.name, 0]
        assert alone.log_probs == together[each.name, 0].log_probs
        assert alone.tokens == together[each.name, 0].tokens
