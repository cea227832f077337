"""A tiny model in the place of GPT-2 small, for the benchmarks of serving."""

from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.bench import first_tokens, prepared, serving
from addnorm.models.presets import gpt2_small
from addnorm.nn.attention import AttentionConfig

TINY = replace(gpt2_small(), n_layers=1, d_model=32, attention=AttentionConfig(n_heads=2))


@pytest.fixture
def gpt2_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model with 320 tokens, for benchmarks with one thread and little memory."""
    for module in (serving, first_tokens):
        monkeypatch.setattr(module, "MEMORY", 2**20)
    monkeypatch.setattr(serving, "cores", lambda: 1)
    monkeypatch.setattr(first_tokens, "cores", lambda: 1)
    prepared.gpt2(tmp_path, config=TINY, vocab_size=320)
    return tmp_path
