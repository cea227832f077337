"""Texts: the attention mask."""

from typing import Any

from addnorm.checking.definition.texts import PATTERNS, MixerContext, Texts
from addnorm.nn.attention import (
    BlocksPatternConfig,
    FullPatternConfig,
    WindowPatternConfig,
)

FULL = FullPatternConfig()
WINDOW = WindowPatternConfig(size=2)
BLOCKS = BlocksPatternConfig(size=2, local=0, n_global=1)


def seen(texts: Texts, pattern: Any = FULL, causal: bool = True) -> list[str]:
    return [
        "".join("x" if cell else "." for cell in row)
        for row in texts.seen(causal=causal, pattern=pattern).tolist()
    ]


def test_two_texts() -> None:
    texts = Texts.of([2, 1])
    assert (list(texts.text), list(texts.place)) == ([0, 0, 1], [0, 1, 0])
    assert (len(texts), texts.tokens(1)) == (3, [2])
    assert seen(texts) == ["x..", "xx.", "..x"]
    assert seen(texts, causal=False) == ["xx.", "xx.", "..x"]
    assert texts.same_text(Texts.of([1, 1])).tolist() == [[True, False]] * 2 + [[False, True]]


def test_patterns() -> None:
    assert seen(Texts.of([4]), WINDOW) == ["x...", "xx..", ".xx.", "..xx"]
    assert seen(Texts.of([4]), WINDOW, causal=False) == ["xx..", "xxx.", ".xxx", "..xx"]
    blocks = ["xxxxxx"] * 2 + ["xxxx.."] * 2 + ["xx..xx"] * 2
    assert seen(Texts.of([6]), BLOCKS, causal=False) == blocks


def test_a_prefix_is_seen_from_everywhere() -> None:
    assert seen(Texts.of([3, 2], prefix=[2, 0])) == ["xx...", "xx...", "xxx..", "...x.", "...xx"]


def test_segments_look_back_at_the_memory() -> None:
    texts = Texts.of([5]).in_segments([slice(0, 2), slice(2, 4), slice(4, 5)], memory=1)
    assert seen(texts) == ["x....", "xx...", ".xx..", ".xxx.", "...xx"]
    assert texts.is_latest().tolist() == [False] * 4 + [True]
    assert Texts.of([2]).is_latest().tolist() == [True, True]


def test_a_place_is_that_of_the_first_layer_by_default() -> None:
    assert MixerContext(texts=Texts.of([1]), causal=True, position=None).layer == 0


def near(config: object, i: int, j: int) -> bool:
    return PATTERNS.of(config)(config, i, j)


def test_a_window_counts_places() -> None:
    assert [near(WindowPatternConfig(size=2), 3, j) for j in range(6)] == [0, 0, 1, 1, 1, 0]
    assert near(FullPatternConfig(), 0, 99)


def test_blocks_see_their_neighbours_and_the_global_ones() -> None:
    config = BlocksPatternConfig(size=2, local=1, n_global=1)
    assert [near(config, 8, j) for j in range(0, 12, 2)] == [1, 0, 0, 1, 1, 1]
    assert all(near(config, 0, j) for j in range(12))
