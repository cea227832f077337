"""The long-context benchmark at small sizes: token counts and windows are correct."""

from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.bench import long_context
from addnorm.bench.long_context import STEPS, config_of, read, write
from addnorm.models.presets import gpt2_small
from addnorm.nn.attention import AttentionConfig, FullPatternConfig, WindowPatternConfig

SMALL = replace(gpt2_small(), n_layers=1, d_model=16, attention=AttentionConfig(n_heads=2))


def test_a_window_only_where_it_is_asked_for() -> None:
    full, windowed = config_of(None), config_of(256)
    assert full.attention.pattern == FullPatternConfig()
    assert windowed.attention.pattern == WindowPatternConfig(size=256)
    assert full.position.kind == windowed.position.kind == "rotary"


def test_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_context, "GPT2_VOCABULARY", 50)
    done = read(Path(), length=40, window=8, small=SMALL)()
    assert done.units == 40
    assert done.details["held MiB"] > 0
    run = write(Path(), length=40, window=8, small=SMALL)
    assert [run().units, run().units] == [STEPS, STEPS]
