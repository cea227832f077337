"""What stands in a layer that lacks a sublayer: no mixer, no feed-forward, no placement."""

from typing import Any, Literal

import torch
from torch import nn

from addnorm.config import config
from addnorm.nn.cache import NoCache
from addnorm.nn.context import Context
from addnorm.nn.masks import Full, Mask
from addnorm.nn.positions.position import Position
from addnorm.nn.residuals import ParallelConfig, Sublayer
from addnorm.nn.types import Hidden, Stream, Valid


class NoPlacement(nn.Module):
    """`x`: the place of a sublayer that the layer lacks, with neither norm nor residual sum."""

    def forward(self, x: Stream, f: Sublayer, valid: Valid | None = None) -> Stream:
        return x


class NoMixer(nn.Module):
    """`y = 0`: no exchange between tokens, in a layer of a feed-forward alone.

    Nemotron-H (NVIDIA 2025, §2.1).
    """

    pattern: Mask = Full()

    def forward(self, x: Hidden, ctx: Context, cache: NoCache | None = None) -> Hidden:
        return torch.zeros_like(x)

    def new_cache(self) -> NoCache:
        """An empty cache; nothing is stored."""
        return NoCache()


class NoFeedForward(nn.Module):
    """`y = 0`: no layer that acts on each token alone, in a layer of a mixer alone.

    Attention alone is a model too (Elhage et al. 2021).
    """

    def forward(self, x: Hidden) -> Hidden:
        return torch.zeros_like(x)


def _conflict(what: str, around: Any) -> str | None:
    if isinstance(around.residual, ParallelConfig):
        return (
            f"{what}.kind = 'none' leaves no sublayers to run in parallel: give model.residual "
            "another kind, such as 'pre'"
        )
    return None


@config
class NoMixerConfig:
    """No mixer: the layer has a feed-forward alone."""

    kind: Literal["none"] = "none"

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """No examples here: it is tested together with layers that have one."""
        return {}

    def conflict(self, around: Any) -> str | None:
        """Parallel sublayers are at least two."""
        return _conflict("attention", around)

    def build(self, d_model: int, position: Position, causal: bool, layer: int = 0) -> NoMixer:
        return NoMixer()


@config
class NoFeedForwardConfig:
    """No feed-forward: the layer has a mixer alone."""

    kind: Literal["none"] = "none"

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """No examples here: it is tested together with layers that have one."""
        return {}

    def conflict(self, around: Any) -> str | None:
        """Parallel sublayers are at least two."""
        return _conflict("feedforward", around)

    def build(self, d_model: int) -> NoFeedForward:
        return NoFeedForward()


ABSENT = (NoMixerConfig, NoFeedForwardConfig)
"""The parts of sublayers that a layer lacks."""
