"""Whisper's time stamps: which tokens may follow each other, and the segments they enclose."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

NOTHING = -1
"""The id that pads rows."""

SECONDS = 0.02
"""The time between two neighbouring time stamps: that of one position of the encoder."""

FRAMES = 2
"""The frames of a position."""


@dataclass(frozen=True)
class TimestampRules:
    """The tokens of time stamps, and the rules on what may follow them.

    The token `first + i` stands for `i · 0.02` seconds after the beginning of the window; the token
    before `first` asks for a text without stamps, and ids from `end` on are not text. A text begins
    with a stamp, at most number `latest_start`. Stamps never decrease. They enclose segments: a
    stamp that ends a segment is followed by the stamp of the next one or by the end, and a stamp
    that begins one by text. Where all stamps together are likelier than any single token of text, a
    stamp is written (Radford et al. 2022, §2.3 and §4.5, and their code; `transformers`).
    """

    first: int
    end: int
    latest_start: int | None = None

    def apply(
        self, scores: Float[Tensor, "rows vocab"], written: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """Set forbidden tokens to -inf, given the tokens `written` so far, padded on the left."""
        vocab = torch.arange(scores.shape[-1], device=scores.device)
        stamps, text = vocab >= self.first, vocab < self.end
        history = F.pad(written, (2, 0), value=NOTHING)
        begins = (history[:, -1] == NOTHING)[:, None]
        last = history[:, -1] >= self.first
        opens = last & ((history[:, -2] >= self.first) | (history[:, -2] == NOTHING))
        closes = last & ~opens
        latest = torch.where(history >= self.first, history, self.first - 1).amax(1)
        earliest = torch.where(closes, latest, latest + 1)[:, None]
        forbidden = (vocab == self.first - 1) | (stamps & (vocab < earliest))
        forbidden = forbidden | (opens[:, None] & stamps) | (closes[:, None] & text)
        late = stamps if self.latest_start is None else vocab <= self.first + self.latest_start
        forbidden = forbidden | (begins & ~(stamps & late))
        scores = scores.masked_fill(forbidden, -inf)
        log_p = scores.float().log_softmax(-1)
        likelier = log_p[:, stamps].logsumexp(-1) > log_p[:, ~stamps].amax(-1)
        return scores.masked_fill(likelier[:, None] & ~stamps, -inf)

    def text_of(self, ids: Sequence[int]) -> list[int]:
        """The ids without time stamps."""
        return [token for token in ids if token < self.first]


class Span(NamedTuple):
    """The ids of a segment's text, and its first and last position in the window."""

    start: int
    end: int
    ids: Sequence[int]


def spans_of(
    ids: Sequence[int], rules: TimestampRules, n_positions: int
) -> tuple[list[Span], int | None]:
    """The segments of a window, and the position at which the next window begins.

    Two neighbouring stamps are the end of a segment and the beginning of the next. If the text ends
    within a segment, the window has cut it: that segment is left out, and the next window begins
    where the last whole segment ends. Otherwise the next window begins at the end of this one,
    which None stands for. A window without neighbouring stamps is a single segment.
    """
    stamped = [token >= rules.first for token in ids]
    cuts = [i + 1 for i in range(len(ids) - 1) if stamped[i] and stamped[i + 1]]
    if not cuts:
        stamps = [token - rules.first for token in ids if token >= rules.first]
        end = stamps[-1] if stamps and stamps[-1] > 0 else n_positions
        return [Span(0, end, rules.text_of(ids))], None
    ended = not stamped[-2] and stamped[-1]
    bounds = [0, *cuts, *([len(ids)] if ended else [])]
    spans = [
        Span(ids[i] - rules.first, ids[j - 1] - rules.first, rules.text_of(ids[i:j]))
        for i, j in pairwise(bounds)
    ]
    return spans, None if ended else max(1, spans[-1].end)
