"""Building batches of random tokens with padding, and splitting them into chunks."""

import random
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

VOCABULARY = 11

Side = Literal["right", "left", "between"]
SIDES: tuple[Side, ...] = ("right", "left", "between")
"""Where padding stands: after a text, before it, or anywhere between its tokens."""

Text = list[int]
Tokens = Int[Tensor, "batch seq"]


def padded(
    texts: Sequence[Text], side: Side, draw: random.Random
) -> tuple[Tokens, Bool[Tensor, "batch seq"]]:
    """A batch padded with random tokens, and the mask of real tokens."""
    width = max(len(text) for text in texts)
    tokens = torch.tensor([drawn(width, draw) for _ in texts])
    valid = torch.zeros_like(tokens, dtype=torch.bool)
    for row, text in enumerate(texts):
        places = {
            "right": range(len(text)),
            "left": range(width - len(text), width),
            "between": sorted(draw.sample(range(width), len(text))),
        }
        valid[row, list(places[side])] = True
    tokens[valid] = torch.tensor(flat(texts))
    return tokens, valid


def row(text: Sequence[int]) -> Tokens:
    """A batch of one text."""
    return torch.tensor([list(text)])


def flat(texts: Sequence[Text]) -> Text:
    """The tokens of all texts, concatenated, in the same order as `batch[valid]`."""
    return [token for text in texts for token in text]


def drawn(n: int, draw: random.Random) -> Text:
    """`n` random tokens."""
    return [draw.randrange(VOCABULARY) for _ in range(n)]


def pieces(n: int, draw: random.Random) -> list[slice]:
    """Split `n` tokens into a random number of non-empty chunks."""
    cuts = sorted(draw.sample(range(1, n), draw.randrange(1, n)))
    return [slice(a, b) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
