"""How a part is split over processes: the axis of each weight, which its class declares.

Each process of a group has some heads of attention, some inner features of a feed-forward layer and
some rows of the vocabulary (Shoeybi et al. 2019, §3). A part says so by a class attribute:

    class FeedForward(nn.Module):
        splits = {"up_proj": Split(0), "down_proj": Split(1)}

The keys are layers, tensors and dropouts in the part. A linear layer split by its rows (axis 0)
gives some features; one split by its columns (axis 1) reads them, and its products are summed over
the processes. All other weights of such a part stay whole, and their gradients are summed. A part
that declares nothing is computed whole by every process, unless it is inside one that is split. An
attention core that computes with several heads together says so by `heads_together = 2`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from addnorm.parts import is_ours


@dataclass(frozen=True)
class Split:
    """An axis of a layer, tensor, dropout or output that is divided among processes.

    `units` names the attribute of the part with the number of pieces that the axis consists of at
    most, such as heads; by default each index is one. If there are fewer than processes and they
    are `copied`, several processes hold the same one, and its gradients are summed.
    """

    axis: int
    units: str | None = None
    copied: bool = False


Splits = Mapping[str, Split]


def heads_together(part: nn.Module | None) -> int:
    """The number of neighbouring heads that an attention core or output computes as one unit."""
    return getattr(part, "heads_together", 1)


OUTPUT = "output"
"""The name, among the splits of a part, of its output: gathered from all processes."""

WHOLE_INPUT = "whole input"
"""The name, among the splits of a part inside a split one, of its input: gathered from all
processes, of whose outputs each keeps its own piece.
"""


def declared_splits(module: nn.Module) -> Splits | None:
    """The splits that the class of a module declares; None if it declares none.

    A class from outside does not inherit those of ours, since what it changes may not split alike.
    """
    kind = type(module)
    for base in kind.__mro__:
        if "splits" in vars(base):
            return None if is_ours(base) and not is_ours(kind) else vars(base)["splits"]
    return None
