"""The definitions of attention patterns, `f(config, i, j)`: whether `i` may attend to `j`."""

from collections.abc import Callable
from typing import Any

from addnorm.checking.definition.definitions import Definitions
from addnorm.nn.attention import BlocksPatternConfig, FullPatternConfig, WindowPatternConfig


def window(config: Any, i: int, j: int) -> bool:
    """Beltagy et al. 2020, §3.1."""
    return abs(i - j) < config.size


def blocks(config: Any, i: int, j: int) -> bool:
    """Zaheer et al. 2020, §2, without random blocks."""
    a, b = i // config.size, j // config.size
    return abs(a - b) <= config.local or min(a, b) < config.n_global


PATTERNS = Definitions[Callable[[Any, int, int], bool]](
    "pattern",
    "patterns.py",
    {
        FullPatternConfig: lambda config, i, j: True,
        WindowPatternConfig: window,
        BlocksPatternConfig: blocks,
    },
)
