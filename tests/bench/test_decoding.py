"""Decoding rounds count the new tokens and subtract the time of the prompt."""

import time

import pytest

from addnorm.bench.decoding import GPT2_MATRICES, DecodingSizes, decoding
from addnorm.models.presets import gpt2_small


def test_the_prompt_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def generate(n: int) -> None:
        now[0] += 3.0 + 0.5 * n  # a prompt of 3 s, half a second for each token

    done = decoding(generate, DecodingSizes(batch=2, new=5))()
    assert (done.seconds, done.units) == (2.0, 8)
    assert done.details == {"with prompt": 10 / 5.5, "prompt ms": 3500.0}


def test_prompts_and_what_a_token_costs() -> None:
    sizes = DecodingSizes(batch=3, prompt=7, vocab_size=20)
    prompts = sizes.prompts()
    assert prompts == sizes.prompts()
    assert [len(row) for row in prompts] == [7, 7, 7]
    assert {4 <= token < 20 for row in prompts for token in row} == {True}
    whole, half = (sizes.cost(p).per_unit for p in ("float32", "bfloat16"))
    assert whole == 2 * half == 4 * GPT2_MATRICES / 3


def test_what_gpt2_multiplies_by() -> None:
    config = gpt2_small()
    layer = 4 * config.d_model**2 + 2 * 4 * config.d_model**2
    assert config.n_layers * layer + 50_257 * config.d_model == GPT2_MATRICES
