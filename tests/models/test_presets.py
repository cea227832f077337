"""Presets: exact parameter counts, without allocating memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contracts import check_config

from addnorm.models import EncoderDecoderConfig, ModelConfig, presets
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig

PRESETS = [
    presets.bert_base,
    presets.bert_large,
    presets.distilbert_base,
    presets.gpt2_small,
    presets.llama_7b,
    presets.roberta_base,
    presets.t5_base,
    presets.t5_small,
    presets.transformer_base,
    presets.transformer_big,
    presets.transformer_xl_base,
    presets.vit_b16,
]


def count(config: Any, vocab_size: int) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in config.build(vocab_size).parameters())


@pytest.mark.parametrize("preset", PRESETS)
def test_round_trip(preset: Callable[[], Any]) -> None:
    check_config(preset(), ModelConfig)


@pytest.mark.parametrize(
    ("preset", "d", "ff", "total", "about"),
    [
        (presets.transformer_base, 512, 2048, 63_045_632, 65e6),
        (presets.transformer_big, 1024, 4096, 214_171_648, 213e6),
    ],
)
def test_the_original(
    preset: Callable[[], EncoderDecoderConfig], d: int, ff: int, total: int, about: float
) -> None:
    """Vaswani et al. 2017, table 3, counted from the shapes of §3.

    One table of V × d for source, target and output; `W_Q, W_K, W_V, W_O` of d × d without bias
    (§3.2.2); `W_1, b_1, W_2, b_2` (§3.3); a gain and a bias after each sublayer. The paper's own
    figures are rounded, and its vocabulary is given as "about 37000".
    """
    vocab, attention, feedforward, norm = 37_000, 4 * d * d, 2 * d * ff + ff + d, 2 * d
    encoder, decoder = attention + feedforward + 2 * norm, 2 * attention + feedforward + 3 * norm
    assert count(preset(), vocab) == vocab * d + 6 * encoder + 6 * decoder == total
    assert total == pytest.approx(about, rel=0.04)


def test_gpt2() -> None:
    small = presets.gpt2_small()
    assert count(small, 50_257) == 124_439_808
    xl = dataclasses.replace(
        small, d_model=1600, n_layers=48, attention=AttentionConfig(n_heads=25)
    )
    assert count(xl, 50_257) == 1_557_611_200


@pytest.mark.long
def test_gpt3() -> None:
    """Brown et al. 2020, table 2.1: 175 B."""
    shape = {
        "d_model": 12_288,
        "n_layers": 96,
        "max_len": 2048,
        "attention": AttentionConfig(n_heads=96),
    }
    config = dataclasses.replace(presets.gpt2_small(), **shape)  # type: ignore[arg-type]
    assert count(config, 50_257) == pytest.approx(175e9, rel=0.005)


@pytest.mark.parametrize(
    ("preset", "vocab", "expected"),
    [
        (presets.bert_base, 30_522, 109_482_240),
        (presets.bert_large, 30_522, 335_141_888),
        (presets.roberta_base, 50_265, 124_645_632),
        (presets.distilbert_base, 30_522, 66_362_880),
        (presets.t5_small, 32_128, 60_506_624),
        (presets.t5_base, 32_128, 222_903_552),
    ],
)
def test_exact_counts(preset: Callable[[], Any], vocab: int, expected: int) -> None:
    """The published figures; encoders with pooler where they have one."""
    assert count(preset(), vocab) == expected


def test_transformer_xl() -> None:
    """Dai et al. 2019, table 1: 151 M."""
    assert count(presets.transformer_xl_base(), 267_735) == pytest.approx(151e6, rel=0.005)


@pytest.mark.long
def test_llama() -> None:
    seven = presets.llama_7b()
    assert count(seven, 32_000) == 6_738_415_616
    seventy = dataclasses.replace(
        seven,
        d_model=8192,
        n_layers=80,
        attention=AttentionConfig(n_heads=64, n_kv_heads=8, bias=False),
        feedforward=GatedFeedForwardConfig(d_ff=28_672),
    )
    assert count(seventy, 32_000) == 68_976_648_192


def test_vit() -> None:
    """Dosovitskiy et al. 2021, table 1 ("86M"), counted from §3.1 for 1,000 classes."""
    d, patches = 768, (224 // 16) ** 2
    embedding = (16 * 16 * 3 + 1) * d + d + (patches + 1) * d
    block = 4 * (d + 1) * d + (d + 1) * 4 * d + (4 * d + 1) * d + 2 * 2 * d
    total = embedding + 12 * block + 2 * d + (d + 1) * 1000
    with torch.device("meta"):
        model = presets.vit_b16().build(n_labels=1000)
    assert sum(p.numel() for p in model.parameters()) == total == 86_567_656
