"""The units that pruning can remove: groups of attention heads, and rows of feed-forwards."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from addnorm.errors import InputError
from addnorm.models import EncoderDecoderModel, Model
from addnorm.nn.attention import CrossAttention, SelfAttention
from addnorm.nn.attention.core import EagerCore, SDPACore
from addnorm.nn.attention.flex import FlexCore
from addnorm.nn.attention.head_norms import HeadsTogether
from addnorm.nn.attention.multihead import MultiHead, has_tied_values
from addnorm.nn.attention.outputs import GatedOutput, PlainOutput
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.blocks import CrossBlock, ParallelCrossBlock, Stack
from addnorm.nn.convolution import Convolution
from addnorm.nn.delta import GatedDelta
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.mamba import Mamba2
from addnorm.nn.no_sublayer import NoFeedForward, NoMixer
from addnorm.nn.positions.alibi import ALiBi
from addnorm.nn.positions.kerple import KERPLE
from addnorm.nn.positions.learned import Learned
from addnorm.nn.positions.position import NoPosition
from addnorm.nn.positions.rotary import DynamicRotary, Rotary
from addnorm.nn.positions.rounded_alibi import RoundedALiBi
from addnorm.nn.positions.sinusoidal import Sinusoidal
from addnorm.nn.positions.t5 import T5Bias
from addnorm.nn.positions.transformer_xl import TransformerXL
from addnorm.nn.recurrent import Recurrent
from addnorm.nn.short_convolution import GatedConvolution

BY_HEAD = (T5Bias, ALiBi, RoundedALiBi, KERPLE, TransformerXL)
"""The positions that have parameters for each head."""
CORES = (SDPACore, EagerCore, FlexCore)
OUTPUTS = (PlainOutput, GatedOutput)
WITHOUT_HEADS = (Recurrent, Convolution, GatedDelta, Mamba2, GatedConvolution, NoMixer)
"""The mixers that have no heads of attention."""
POSITIONS = (NoPosition, Sinusoidal, Learned, Rotary, DynamicRotary, T5Bias)
"""The positions that treat all heads alike, and T5's, whose table has a column for each head."""


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of one sublayer: groups of heads, or feed-forward rows.

    A group is a key/value head with the query heads that it serves.
    """

    path: str
    """The path of the sublayer in the model."""
    n: int
    """The number of units of the sublayer."""
    width: int
    """The number of inputs of the last projection that belong to a unit."""
    projection: nn.Module
    """The last projection, whose inputs are the outputs of the units."""
    table: nn.Module | None = None
    """The table of position biases by head, which every layer with the same one shares."""


def stacks_of(model: Model) -> dict[str, Stack]:
    """The stacks of a model, by name."""
    if isinstance(model, EncoderDecoderModel):
        return {"encoder": model.encoder, "decoder": model.decoder}
    return {"stack": model.stack}


def head_groups(model: Model) -> list[Units]:
    """The groups of heads of every attention; other mixers have none.

    Raises `InputError` if an attention cannot lose heads, and where there is no attention.
    """
    groups: list[Units] = []
    others: list[tuple[str, nn.Module]] = []
    for name, stack in stacks_of(model).items():
        for i, block in enumerate(stack.blocks):
            attentions = {"attention": block.attention}
            if isinstance(block, CrossBlock | ParallelCrossBlock):
                attentions["cross_attention"] = block.cross_attention
            for kind, attention in attentions.items():
                path = f"{name}.blocks.{i}.{kind}"
                if isinstance(attention, WITHOUT_HEADS):
                    others.append((path, attention))
                else:
                    groups.append(_groups(path, attention))  # pyright: ignore[reportArgumentType]
    if others and not groups:
        raise _refusal("heads", *others[0], "attention can")
    _check_unused(model, groups)
    return groups


def _check_unused(model: Model, groups: Sequence[Units]) -> None:
    """Raise `InputError` for positions with per-head parameters that no layer uses.

    Heads are ranked in the layers, which does not determine the parameters to remove here.
    """
    used = {id(units.table) for units in groups}
    for name, part in model.named_modules():
        if isinstance(part, BY_HEAD) and ".blocks." not in name and id(part) not in used:
            raise InputError(
                f"`heads`: model.position is {type(part).__name__}, which has parameters for each "
                "head, but every layer has other positions by model.layer_pattern, so the heads to "
                "remove from it are unknown: leave `heads` out, or first replace it by positions "
                'without heads, by `SwapOptions(sets=("position=none",))`'
            )


def feedforward_rows(model: Model) -> list[Units]:
    """The rows of every feed-forward; a layer of a mixer alone has none.

    Raises `InputError` for a feed-forward whose rows cannot be removed, and where there is none.
    """
    rows: list[Units] = []
    absent: list[tuple[str, nn.Module]] = []
    for name, stack in stacks_of(model).items():
        for i, block in enumerate(stack.blocks):
            feedforward, path = block.feedforward, f"{name}.blocks.{i}.feedforward"
            if isinstance(feedforward, NoFeedForward):
                absent.append((path, feedforward))
                continue
            if type(feedforward) not in (FeedForward, GatedFeedForward):
                raise _refusal("feedforward", path, feedforward, "mlp and gated layers can")  # pyright: ignore[reportArgumentType]
            down = feedforward.down_proj  # pyright: ignore[reportAttributeAccessIssue]
            n = down.in_features  # pyright: ignore[reportAttributeAccessIssue]
            rows.append(Units(path=path, n=n, width=1, projection=down))  # pyright: ignore[reportArgumentType]
    if absent and not rows:
        raise _refusal("feedforward", *absent[0], "mlp and gated layers can")
    return rows


def _groups(path: str, attention: nn.Module) -> Units:
    if type(attention) not in (SelfAttention, CrossAttention):
        raise _refusal("heads", path, attention, "attention with keys of its own can")
    assert isinstance(attention, MultiHead)
    if has_tied_values(attention):
        raise _refusal("heads", path, attention, "attention whose values are projected can")
    if isinstance(attention, SelfAttention) and attention.value_residual is not None:
        usable = "attention without value_residual can"
        raise _refusal("heads", f"{path}.value_residual", attention.value_residual, usable)
    _check(f"{path}.core", attention.core, CORES, "sdpa, eager and flex can")
    _check(f"{path}.output", attention.output, OUTPUTS, "plain and gated outputs can")
    score: object = attention.core.score
    plain = type(score) is DotProduct and score.weight is None
    if isinstance(score, nn.Module) and not plain:
        raise _refusal("heads", f"{path}.core.score", score, "dot products can")
    table = None
    if isinstance(attention, SelfAttention):
        usable = "sinusoidal, learned, rotary, t5 and no positions can"
        _check(f"{path}.position", attention.position, POSITIONS, usable)
        table = attention.position if isinstance(attention.position, T5Bias) else None
    for name in ("q_norm", "k_norm"):
        if isinstance(norm := attention.get_submodule(name), HeadsTogether):
            raise _refusal("heads", f"{path}.{name}", norm, "norms of each head can")
    n = attention.k_proj.out_features // attention.d_head
    width = attention.out_proj.in_features // n
    return Units(path=path, n=n, width=width, projection=attention.out_proj, table=table)


def _check(path: str, part: nn.Module, prunable: Sequence[type], usable: str) -> None:
    if type(part) not in prunable:
        raise _refusal("heads", path, part, usable)


def _refusal(option: str, path: str, part: nn.Module, usable: str) -> InputError:
    return InputError(
        f"`{option}`: {path} is {type(part).__name__}, which cannot be pruned ({usable}): "
        f"leave `{option}` out"
    )
