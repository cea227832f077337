"""How much of a model a memory holds."""

from sys import maxsize

import pytest
import torch

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.serve.engine.budget import longest_at_once, page_pool, scores_at_once, slots_in


@pytest.mark.parametrize("config", [DecoderConfig, EncoderConfig, EncoderDecoderConfig])
def test_the_scores_of_the_longest_text_fit_and_of_a_longer_one_do_not(config: type) -> None:
    sizes = {"d_model": 16, "n_layers": 1, "attention": AttentionConfig(n_heads=4)}
    model = config(**sizes).build(9)
    for memory in (16, 2**20 - 1, 2**20, 2**31):
        longest = longest_at_once(model, memory)
        assert 4 * 4 * longest**2 <= memory < 4 * 4 * (longest + 1) ** 2
    assert longest_at_once(model.to(torch.bfloat16), 2**21) == 512


def test_without_attention_only_time_bounds_a_text() -> None:
    model = DecoderConfig(d_model=8, n_layers=1, attention=RecurrentConfig()).build(9)
    assert scores_at_once(model, 1) == float("inf")
    assert longest_at_once(model, 1) == maxsize


def test_a_memory_without_pages_is_refused() -> None:
    assert page_pool(16 * 100 * 3, 16, 100).n_pages == 2
    assert slots_in(299, 100) == 2
    with pytest.raises(InputError, match="a token takes 100 bytes"):
        slots_in(199, 100)
    with pytest.raises(InputError, match="at least two are needed"):
        page_pool(16 * 100 * 2 - 1, 16, 100)
