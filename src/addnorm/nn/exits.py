"""Early exits: heads on the outputs of lower layers."""

from collections.abc import Iterator, Sequence

from jaxtyping import Float
from torch import Tensor, nn

from addnorm.nn.blocks import Stack
from addnorm.nn.context import Context
from addnorm.nn.heads import TokenHead
from addnorm.nn.types import Stream


class ExitHead(nn.Module):
    """`head(norm(x))` on the output of a lower layer, with its own norm and head.

    Schwartz et al. 2020, §3; Teerapittayanon et al. 2016 (BranchyNet), §III.
    """

    def __init__(self, norm: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.head = head

    def forward(self, x: Stream, ctx: Context) -> Float[Tensor, "batch *outputs"]:
        return self.head(self.norm(x, ctx.valid), ctx)


def check_exits(layers: Sequence[int], n_layers: int) -> None:
    """Raise `ValueError` unless the layers are ascending and lie between 1 and `n_layers - 1`.

    Layers count from one; the last layer has the model's own head.
    """
    if any(not 1 <= layer < n_layers for layer in layers):
        raise ValueError(
            f"exits = {list(layers)} must lie between 1 and {n_layers - 1}: "
            f"of n_layers = {n_layers} the last has the model's own head"
        )
    rising = sorted(set(layers))
    if list(layers) != rising:
        raise ValueError(f"exits = {list(layers)} must rise: give {rising}")


def tie_exits(exits: nn.ModuleDict, table: nn.Embedding) -> None:
    """Tie the heads of the exits to the embedding table, like the model's own head."""
    for exit_head in exits.values():
        assert isinstance(exit_head, ExitHead)
        assert isinstance(exit_head.head, TokenHead)
        exit_head.head.weight = table.weight  # pyright: ignore[reportAttributeAccessIssue]


def exit_logits(
    stack: Stack,
    exits: nn.ModuleDict,
    head: nn.Module,
    x: Float[Tensor, "batch seq d_model"],
    ctx: Context,
) -> Iterator[Float[Tensor, "batch *outputs"]]:
    """Yield the logits of each early exit, then those of the model's head."""
    hidden = x
    for layer, hidden in enumerate(stack.layer_outputs(x, ctx), start=1):
        if str(layer) in exits:
            yield exits[str(layer)](hidden, ctx)
    yield head(stack.norm(hidden, ctx.valid), ctx)
