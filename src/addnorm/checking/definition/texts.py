"""Concatenated texts, and the definitions of the patterns in their attention mask."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from addnorm.checking.definition.definitions import Definitions
from addnorm.nn.attention import BlocksPatternConfig, FullPatternConfig, WindowPatternConfig


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Concatenated texts: token `n` is at position `place[n]` of text `text[n]`.

    All tokens of text `t` may attend to its first `prefix[t]` tokens. If a text is processed in
    segments, `segment[n]` is the segment of token `n`: a query then also attends to the `memory`
    tokens before its own segment, into which no gradient flows. The last tokens of a picture are
    its patches, in a `grid` of rows and columns.
    """

    text: Sequence[int]
    place: Sequence[int]
    prefix: Sequence[int] = ()
    segment: Sequence[int] = ()
    memory: int = 0
    grid: tuple[int, int] | None = None

    @classmethod
    def of(cls, lengths: Sequence[int], prefix: Sequence[int] = ()) -> "Texts":
        """Concatenate texts of these lengths."""
        return cls(
            text=[t for t, n in enumerate(lengths) for _ in range(n)],
            place=[p for n in lengths for p in range(n)],
            prefix=prefix,
        )

    def in_segments(self, segments: Sequence[slice], memory: int) -> "Texts":
        """Process the tokens in these segments, with a memory of this many tokens."""
        segment = [i for i, part in enumerate(segments) for _ in range(part.start, part.stop)]
        return replace(self, segment=segment, memory=memory)

    def __len__(self) -> int:
        return len(self.text)

    def tokens(self, text: int) -> list[int]:
        """The indices of the tokens of a text, in order."""
        return [n for n, t in enumerate(self.text) if t == text]

    def sees(self, query: int, key: int, *, causal: bool, pattern: Any) -> bool:
        """Whether the token `query` may attend to the token `key`."""
        i, j = self.place[query], self.place[key]
        if self.text[query] != self.text[key]:
            return False
        in_prefix = bool(self.prefix) and j < self.prefix[self.text[key]]
        if causal and j > i and not in_prefix:
            return False
        return PATTERNS.of(pattern)(pattern, i, j) and self._remembered(query, key)

    def _remembered(self, query: int, key: int) -> bool:
        """Whether the key is in the query's segment or among the `memory` tokens before it."""
        if not self.segment or self.segment[query] == self.segment[key]:
            return True
        places = [
            p for p, s in zip(self.place, self.segment, strict=True) if s == self.segment[query]
        ]
        return (
            self.segment[key] < self.segment[query] and self.place[key] >= min(places) - self.memory
        )

    def seen(self, *, causal: bool, pattern: Any) -> Bool[Tensor, "q_seq kv_seq"]:
        """The attention mask: `sees` for every pair."""
        n = range(len(self))
        return torch.tensor(
            [[self.sees(i, j, causal=causal, pattern=pattern) for j in n] for i in n]
        )

    def same_text(self, other: "Texts") -> Bool[Tensor, "q_seq kv_seq"]:
        """A mask of the tokens in `other` that belong to the same text as each token here."""
        return torch.tensor([[a == b for b in other.text] for a in self.text])

    def is_latest(self) -> Bool[Tensor, " seq"]:
        """A mask of the tokens in the last segment; all tokens if there is only one."""
        last = max(self.segment, default=0)
        return torch.tensor([s == last for s in self.segment or [0] * len(self)])


@dataclass(frozen=True, kw_only=True)
class MixerContext:
    """The surroundings of a mixer: its texts, direction, position encoding and layer.

    `causal` means left to right only. `position` is the configuration of this layer's position
    encoding; `layer` counts from 0. `earlier` has the keys and values of the heads of the layers
    before, by their number.
    """

    texts: Texts
    causal: bool
    position: Any
    layer: int = 0
    earlier: dict[int, tuple[list[Tensor], list[Tensor]]] = field(
        default_factory=dict[int, tuple[list[Tensor], list[Tensor]]]
    )


def window(config: Any, i: int, j: int) -> bool:
    """Beltagy et al. 2020, §3.1."""
    return abs(i - j) < config.size


def blocks(config: Any, i: int, j: int) -> bool:
    """Zaheer et al. 2020, §2, without random blocks."""
    a, b = i // config.size, j // config.size
    return abs(a - b) <= config.local or min(a, b) < config.n_global


PATTERNS = Definitions[Callable[[Any, int, int], bool]](
    "pattern",
    "texts.py",
    {
        FullPatternConfig: lambda config, i, j: True,
        WindowPatternConfig: window,
        BlocksPatternConfig: blocks,
    },
)
