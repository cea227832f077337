"""Padding anywhere changes nothing: every mask, bias and cache counts tokens, not slots.

Each row of a batch must give what its text gives alone, for any padding, past, pattern, position
scheme, cache and kernel.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from addnorm.models import DecoderConfig, DecoderModel
from addnorm.models.step import (
    EVERY,
    DecoderState,
    concatenated_cache,
    decoder_step,
    fixed_cache,
)
from addnorm.nn.attention import (
    AttentionConfig,
    BlocksPatternConfig,
    EagerCoreConfig,
    FullPatternConfig,
    WindowPatternConfig,
)
from addnorm.nn.cache import ConcatenatedCache, KVCache
from addnorm.nn.masks import Mask
from addnorm.nn.positions import (
    ALiBiConfig,
    KERPLEConfig,
    LearnedConfig,
    NoPositionConfig,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.positions.scaling import DynamicScaling

VOCAB, LENGTH, WIDTH, HEADS = 13, 12, 16, 4


@dataclass(frozen=True)
class Dilated(Mask):
    """A user's pattern: every `step`-th token, at most `size` away, with nothing but `allows`."""

    step: int
    size: int

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return ((q - kv) % self.step == 0) & ((q - kv).abs() < self.size)

    @property
    def reach(self) -> tuple[float, float]:
        return self.size - 1, self.size - 1


@dataclass(frozen=True)
class DilatedConfig:
    """Its configuration."""

    step: int = 2
    size: int = 5

    def build(self) -> Mask:
        return Dilated(self.step, self.size)


PATTERNS: dict[str, Any] = {
    "full": FullPatternConfig(),
    "window": WindowPatternConfig(size=3),
    "window of one": WindowPatternConfig(size=1),
    "blocks": BlocksPatternConfig(size=2, local=1),
    "global blocks": BlocksPatternConfig(size=2, local=0, n_global=1),
    "dilated": DilatedConfig(),
}
POSITIONS: dict[str, Any] = {
    "none": NoPositionConfig(),
    "learned": LearnedConfig(),
    "sinusoidal": SinusoidalConfig(),
    "rotary": RotaryConfig(),
    "dynamic": RotaryConfig(theta=4.0, scaling=DynamicScaling(factor=3.0, original_max_len=3)),
    "alibi": ALiBiConfig(),
    "kerple": KERPLEConfig(),
    "t5": T5BiasConfig(buckets=6, max_distance=5),
    "transformer_xl": TransformerXLConfig(),
}
CACHES = ("eager", "fixed", "concatenated", "memory")


def decoder(pattern: str, position: str, *, eager: bool = False, layers: int = 2) -> DecoderModel:
    core = EagerCoreConfig() if eager else None
    attention = AttentionConfig(n_heads=HEADS, n_kv_heads=2, pattern=PATTERNS[pattern], core=core)
    config = DecoderConfig(
        d_model=WIDTH,
        n_layers=layers,
        max_len=4 * LENGTH,
        attention=attention,
        position=POSITIONS[position],
    )
    return config.build(VOCAB).eval().double()


class Reader:
    """A batch read chunk by chunk with a cache of one kind."""

    def __init__(self, model: DecoderModel, kind: str, rows: int) -> None:
        self.model, self.kind = model, kind
        self.cache = model.new_memory(4 * LENGTH) if kind == "memory" else model.new_cache()
        room = 4 * LENGTH if kind == "fixed" else 0
        self.parts = [
            torch.zeros(rows, 2, room, WIDTH // HEADS).double()
            for _ in range(2 * len(model.stack.blocks))
        ]

    def before(self, start: int, end: int) -> KVCache:
        """The cache for the tokens of these slots."""
        if self.kind == "fixed":
            return fixed_cache(self.model.stack, self.parts, torch.arange(end), end - start)
        if self.kind == "concatenated":
            caches = (layer.self_cache for layer in self.cache)
            kept = [one.kept for one in caches if isinstance(one, ConcatenatedCache)]
            past = [part for pair in kept for part in pair] or self.parts
            self.cache = concatenated_cache(self.model.stack, past)
        return self.cache

    def read(self, tokens: Tensor, valid: Tensor, cuts: list[int]) -> Tensor:
        """The logits of all tokens."""
        found: list[Tensor] = []
        for start, end in pairwise(cuts):
            state = DecoderState(cache=self.before(start, end), valid=valid[:, :end])
            found.append(decoder_step(self.model, tokens[:, start:end], state, EVERY)[0])
        return torch.cat(found, dim=1)


def alone(model: DecoderModel, tokens: Tensor, valid: Tensor, cuts: list[int]) -> Tensor:
    """The logits of one row's text without its padding, in the same chunks, all in a list."""
    cache, found = model.new_cache(), [torch.zeros(0, VOCAB).double()]
    for start, end in pairwise(cuts):
        text = tokens[start:end][valid[start:end]]
        if len(text):
            found.append(model(text[None], cache=cache)[0])
    return torch.cat(found)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[int]]:
    """Tokens, which of them are real, and where the batch is cut into chunks."""
    n = draw(st.integers(1, LENGTH))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=3))
    tokens = torch.randint(VOCAB, (len(rows), n), generator=torch.Generator().manual_seed(n))
    inner = draw(st.sets(st.integers(1, n)))
    return tokens, torch.tensor(rows), sorted({0, n, *inner})


@pytest.mark.sampled(2)
@pytest.mark.long
@pytest.mark.parametrize("kind", CACHES)
@given(
    pattern=st.sampled_from(list(PATTERNS)),
    position=st.sampled_from(list(POSITIONS)),
    eager=st.booleans(),
    batch=batches(),
)
@settings(max_examples=30)
@torch.inference_mode()
def test_a_row_gives_what_its_text_gives_alone(
    kind: str, pattern: str, position: str, eager: bool, batch: tuple[Tensor, Tensor, list[int]]
) -> None:
    model, (tokens, valid, cuts) = decoder(pattern, position, eager=eager), batch
    logits = Reader(model, kind, len(tokens)).read(tokens, valid, cuts)
    for i in range(len(tokens)):
        expected = alone(model, tokens[i], valid[i], cuts)
        torch.testing.assert_close(logits[i][valid[i]], expected)
        if valid[i].any() and position != "dynamic":  # whose early keys turn with the length
            whole = model(tokens[i][valid[i]][None])[0]
            torch.testing.assert_close(expected, whole)


@pytest.mark.parametrize("kind", CACHES)
@torch.inference_mode()
def test_a_window_after_prompts_padded_on_the_right(kind: str) -> None:
    """Mistral's window: the shorter prompt was padded, and the next tokens follow both."""
    model = decoder("window", "rotary", layers=3)
    tokens = torch.randint(VOCAB, (2, 11))
    valid = torch.tensor([[True] * 11, [True] * 2 + [False] * 6 + [True] * 3])
    logits = Reader(model, kind, 2).read(tokens, valid, [0, 8, 9, 10, 11])
    for i in range(2):
        expected = model(tokens[i][valid[i]][None])[0]
        torch.testing.assert_close(logits[i][valid[i]], expected)


@torch.inference_mode()
def test_a_window_stays_small_once_the_padding_is_behind_it() -> None:
    """Slots that no later token can reach are dropped: padding costs memory only for a while."""
    model, rows = decoder("window", "rotary"), 2
    cache, valid = model.new_cache(), torch.tensor([[True] * 8, [True] + [False] * 7])
    model(torch.zeros(rows, 8, dtype=torch.long), valid, cache=cache)
    for _ in range(6):
        valid = torch.cat([valid, torch.ones(rows, 1, dtype=torch.bool)], dim=1)
        model(torch.zeros(rows, 1, dtype=torch.long), valid, cache=cache)
    keys, _ = next(iter(cache)).self_cache.kept  # type: ignore[union-attr]
    assert keys.shape[2] == 3
    assert cache.length == 14
