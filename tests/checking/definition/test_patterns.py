"""Patterns: which positions may attend to which."""

from addnorm.checking.definition.patterns import PATTERNS
from addnorm.nn.attention import BlocksPatternConfig, FullPatternConfig, WindowPatternConfig


def near(config: object, i: int, j: int) -> bool:
    return PATTERNS.of(config)(config, i, j)


def test_a_window_counts_places() -> None:
    assert [near(WindowPatternConfig(size=2), 3, j) for j in range(6)] == [0, 0, 1, 1, 1, 0]
    assert near(FullPatternConfig(), 0, 99)


def test_blocks_see_their_neighbours_and_the_global_ones() -> None:
    config = BlocksPatternConfig(size=2, local=1, n_global=1)
    assert [near(config, 8, j) for j in range(0, 12, 2)] == [1, 0, 0, 1, 1, 1]
    assert all(near(config, 0, j) for j in range(12))
