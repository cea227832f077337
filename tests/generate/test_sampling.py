"""Sampling filters and draws against their definitions, row by row."""

from math import exp, inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from addnorm.errors import InputError
from addnorm.generate import BeamConfig, DecodingConfig, GreedyConfig, SampleConfig
from addnorm.generate.sampling import (
    draw,
    generator_of,
    min_p,
    most_probable,
    temperature,
    top_k,
    top_p,
    uniforms,
)

NUMBER = st.integers(-8, 8).map(float) | st.just(-inf)
NUMBERS = st.lists(NUMBER, min_size=1, max_size=9)
WITH_A_TOKEN = NUMBERS.filter(lambda row: max(row) > -inf)


def kept(logits: Tensor) -> set[int]:
    return {i for i, z in enumerate(logits[0].tolist()) if z > -inf}


def softmax(row: list[float]) -> list[float]:
    weights = [exp(z) for z in row]
    return [w / sum(weights) for w in weights]


@given(st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=4), st.booleans())
def test_the_most_probable_token_has_the_largest_logit(rows: list[list[float]], wide: bool) -> None:
    logits = torch.tensor(rows, dtype=torch.float64 if wide else torch.float32).view(-1, 3)
    got = most_probable(logits)
    assert got.dtype is torch.long
    assert torch.equal(logits.gather(1, got[:, None])[:, 0], logits.amax(1))


@given(WITH_A_TOKEN, st.integers(1, 12))
def test_top_k_keeps_tokens_that_fewer_than_k_exceed(row: list[float], k: int) -> None:
    expected = {i for i, z in enumerate(row) if z > -inf and sum(y > z for y in row) < k}
    assert kept(top_k(torch.tensor([row]), k)) == expected


@given(WITH_A_TOKEN, st.floats(0.01, 0.99))
def test_top_p_keeps_tokens_that_less_than_p_outweighs(row: list[float], p: float) -> None:
    probabilities = softmax(row)
    above = [sum(q for q, y in zip(probabilities, row, strict=True) if y > z) for z in row]
    sure = {i for i, z in enumerate(row) if z > -inf and above[i] < p - 1e-9}
    perhaps = {i for i, z in enumerate(row) if z > -inf and above[i] < p + 1e-9}
    assert sure <= kept(top_p(torch.tensor([row]), p)) <= perhaps


@given(WITH_A_TOKEN, st.floats(0.01, 1.0))
def test_min_p_keeps_tokens_p_times_as_probable_as_the_best(row: list[float], p: float) -> None:
    ratios = [exp(z - max(row)) for z in row]
    sure = {i for i, ratio in enumerate(ratios) if ratio >= p * (1 + 1e-5)}
    perhaps = {i for i, ratio in enumerate(ratios) if ratio >= p * (1 - 1e-5) and ratio > 0}
    assert sure <= kept(min_p(torch.tensor([row]), p)) <= perhaps


FILTERS = [
    lambda z: temperature(z, 0.3),
    lambda z: top_k(z, 2),
    lambda z: top_p(z, 0.4),
    lambda z: min_p(z, 0.5),
]


@pytest.mark.parametrize("keep", FILTERS)
@given(row=NUMBERS)
def test_filters_never_remove_the_best_nor_add_or_break_anything(keep, row: list[float]) -> None:
    logits = torch.tensor([row, row])
    before = logits.clone()
    after = keep(logits)
    assert torch.equal(logits, before)
    assert torch.equal(after[0], after[1])
    assert not after.isnan().any()
    assert ((after > -inf) <= (logits > -inf)).all()
    assert (after[logits == logits.amax(-1, keepdim=True)] > -inf).all() or max(row) == -inf


def test_filters_that_keep_everything_return_equal_logits() -> None:
    logits = torch.randn(3, 1000) * 20
    for same in (top_k(logits, 1000), top_k(logits, 9999), top_p(logits, 1.0), min_p(logits, 0.0)):
        assert torch.equal(same, logits)


def test_a_tiny_temperature_is_greedy_and_does_not_overflow() -> None:
    logits = torch.tensor([[3e4, 2.9e4, -inf, -3e4]])
    cold = temperature(logits, 1e-30)
    assert cold.softmax(-1).tolist() == [[1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("value", [1e-44, 1e-320])
def test_a_temperature_that_rounds_to_zero_is_greedy(value: float) -> None:
    logits = torch.tensor([[1.0, 3.0, -inf, 2.0]])
    assert temperature(logits, value).softmax(-1).tolist() == [[0.0, 1.0, 0.0, 0.0]]
    chosen = draw(SampleConfig(temperature=value).filtered(logits), torch.tensor([0.5]))
    assert chosen.tolist() == [1]


def test_all_top_k_ties_stay() -> None:
    assert kept(top_k(torch.tensor([[1.0, 2.0, 2.0, 2.0]]), 2)) == {1, 2, 3}
    assert kept(top_p(torch.tensor([[1.0, 1.0, 1.0, 1.0]]), 0.3)) == {0, 1, 2, 3}


@given(WITH_A_TOKEN, st.sampled_from([0.0, 0.25, 0.5, 1 - 2**-53]) | st.floats(0, 1 - 2**-53))
def test_draw_never_returns_a_token_of_probability_zero(row: list[float], number: float) -> None:
    token = draw(torch.tensor([row]), torch.tensor([number], dtype=torch.float64))
    assert row[int(token)] > -inf


def test_draw_inverts_the_distribution_function() -> None:
    logits = torch.tensor([[0.2, 0.3, 0.0, 0.5]]).log().expand(5, 4)
    numbers = torch.tensor([0.0, 0.19, 0.21, 0.49, 0.51], dtype=torch.float64)
    assert draw(logits, numbers).tolist() == [0, 0, 1, 1, 3]


def test_draws_have_the_frequencies_of_the_model() -> None:
    n = 20_000
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.0]])
    tokens = draw(logits.expand(n, 4), uniforms([generator_of(0, 5)] * n))
    frequencies = torch.bincount(tokens, minlength=4) / n
    # Four standard errors of a share are at most 4 · sqrt(0.25 / n) = 0.014.
    assert torch.allclose(frequencies, logits.softmax(-1)[0], atol=0.014)


@pytest.mark.parametrize("row", [[-inf, -inf], [float("nan"), 0.0]])
def test_draw_rejects_logits_without_a_distribution(row: list[float]) -> None:
    with pytest.raises(InputError, match=r"NaN or are all -inf"):
        draw(torch.tensor([[0.0, 0.0], row]), torch.zeros(2, dtype=torch.float64))


def test_each_row_has_its_own_random_stream() -> None:
    def numbers(seed: int, rows: list[int], n: int) -> torch.Tensor:
        generators = [generator_of(seed, row) for row in rows]
        return torch.stack([uniforms(generators) for _ in range(n)])

    together, alone = numbers(7, [3, 1, 2], 50), numbers(7, [1], 9)
    assert torch.equal(together[:9, 1], alone[:, 0])
    every = torch.cat([together.flatten(), numbers(8, [1, 2, 3], 50).flatten()])
    assert len(set(every.tolist())) == 300
    assert ((every >= 0) & (every < 1)).all()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": inf},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"seed": -1},
        {"top_q": 0.5},
    ],
)
def test_invalid_settings_are_rejected(bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SampleConfig(**bad)


@pytest.mark.parametrize(
    "config", [GreedyConfig(), SampleConfig(top_k=3, seed=5), BeamConfig(n_best=2)]
)
def test_settings_round_trip_through_plain_data(config) -> None:
    adapter = TypeAdapter(DecodingConfig)
    assert adapter.validate_python(adapter.dump_python(config)) == config
