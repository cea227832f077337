"""Distillation inside of models: a student's layers learn hidden states and attention.

Layer `i` of a student of `M` layers learns from layer `round(i N / M)` of a teacher of `N` (Jiao et
al. 2020, §3), stack by stack.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.config import WORD, config
from addnorm.errors import InputError
from addnorm.nn.attention.core import HasWeights
from addnorm.nn.attention.multihead import SelfAttention
from addnorm.nn.blocks import Stack
from addnorm.nn.functional import at_least_float32
from addnorm.nn.linear import Linear
from addnorm.nn.types import Heads
from addnorm.training.average import Weights

MAPS = "distillation_maps"
"""The name, in a student that is trained, of the maps from its widths to its teacher's."""

Which = Literal["uniform", "last"]
"""Which layers learn: all, each from its teacher's at the same share of the depth, or the last."""

Probabilities = Float[Tensor, "batch heads q_seq kv_seq"]


@config
class HiddenStatesConfig:
    """A layer's output learns a teacher layer's: `mean((H_s W - H_t)²)` (Jiao et al. 2020, eq. 8).

    The mean is over real tokens and features. `W` is learned beside the student, one for each of
    its stacks, and is no part of what is saved; where both have one width there is none.
    """

    weight: PositiveFloat = 1.0
    """What this loss is multiplied by, beside that of the outputs."""
    layers: Which = "uniform"
    """Which layers learn: all, or the last of each stack."""


@config
class AttentionWeightsConfig:
    """Self-attention learns the teacher's: `mean KL(A_t ‖ A_s)` (Wang et al. 2020, eq. 6).

    The mean is over heads and real queries; both have as many heads.
    """

    kind: Literal["weights"] = "weights"
    weight: PositiveFloat = 1.0
    """What this loss is multiplied by, beside that of the outputs."""
    layers: Which = "uniform"
    """Which layers learn: all, or the last of each stack."""

    def check(self, student: SelfAttention, teacher: SelfAttention, where: str) -> None:
        """Raise `InputError` for other numbers of heads, and for cores without weights."""
        ours, theirs = (one.q_proj.out_features // one.d_head for one in (student, teacher))
        if ours != theirs:
            raise InputError(
                f"{where} has {ours} heads, and the teacher {theirs}: take "
                'train.distillation.attention_transfer.kind = "relations"'
            )
        for one in (student, teacher):
            if not isinstance(one.core, HasWeights):
                raise InputError(f"{where}: {type(one.core).__name__} does not show its weights")

    def of(self, seen: "Attended") -> Sequence[Probabilities]:
        """The attention weights of a layer, without dropout."""
        assert isinstance(seen.core, HasWeights)
        return [seen.core.weights(seen.q, seen.k, seen.mask, seen.bias)]


@config
class AttentionRelationsConfig:
    """Relations among queries, keys and values learn the teacher's (Wang et al. 2021, eq. 2 to 5).

    The heads' vectors stand side by side and are split into `n_heads` relation heads of width d, in
    which `softmax(A Aᵀ / √d)` relates every real token to every other, for `A` the queries, the
    keys and the values: `mean KL`, summed over the three. Student and teacher may differ in heads
    and width.
    """

    kind: Literal["relations"] = "relations"
    n_heads: PositiveInt = 8
    """Relation heads, among which queries, keys and values are divided."""
    weight: PositiveFloat = 1.0
    """What this loss is multiplied by, beside that of the outputs."""
    layers: Which = "last"
    """Which layers learn: all, or the last of each stack."""

    def check(self, student: SelfAttention, teacher: SelfAttention, where: str) -> None:
        """Raise `InputError` where the relation heads do not divide queries, keys and values."""
        widths = [
            proj.out_features
            for one in (student, teacher)
            for proj in (one.q_proj, one.k_proj, one.v_proj)
        ]
        for whose, one in (("this student", student), ("the teacher", teacher)):
            for proj in (one.q_proj, one.k_proj, one.v_proj):
                if proj.out_features % self.n_heads:
                    raise InputError(
                        f"{where}: train.distillation.attention_transfer.n_heads = {self.n_heads} "
                        f"does not divide the {proj.out_features} features of {whose}'s "
                        f"projections: the nearest that does is {_dividing(widths, self.n_heads)}"
                    )

    def of(self, seen: "Attended") -> Sequence[Probabilities]:
        """The relations of queries, of keys and of values."""
        return [relations(one, self.n_heads, seen.valid) for one in (seen.q, seen.k, seen.v)]


def _dividing(widths: Sequence[int], wanted: int) -> int:
    """The number nearest to `wanted` that divides all widths."""
    common = gcd(*widths)
    found = [n for n in range(1, common + 1) if common % n == 0]
    return min(found, key=lambda n: abs(n - wanted))


AttentionTransferConfig = Annotated[
    AttentionWeightsConfig | AttentionRelationsConfig, Field(discriminator="kind"), WORD
]
"""What of attention a student learns."""


def relations(
    heads: Heads, n_heads: int, valid: Bool[Tensor, "batch seq"] | None
) -> Float[Tensor, "batch n_heads seq seq"]:
    """`softmax(A Aᵀ / √d)` in `n_heads` relation heads of width d; none relates to padding."""
    split = heads.transpose(1, 2).flatten(2).unflatten(-1, (n_heads, -1)).transpose(1, 2)
    scores = split @ split.mT * split.shape[-1] ** -0.5
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None, None, :], -torch.inf)
    return scores.softmax(-1)


# What is seen of a layer as it runs.


@dataclass
class Attended:
    """What a self-attention received in its latest pass."""

    core: nn.Module
    q: Heads
    k: Heads
    v: Heads
    mask: Any
    bias: Any
    valid: Bool[Tensor, "batch seq"] | None = None


@dataclass
class Seen:
    """The output of a layer in its latest pass, its real tokens, and what its attention saw."""

    output: Tensor | None = None
    valid: Bool[Tensor, "batch seq"] | None = None
    attended: Attended | None = None


def _watch(block: nn.Module, seen: Seen, *, attention: bool) -> Iterator[RemovableHandle]:
    """Fill `seen` as the block runs, until the handles are removed."""

    def note(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        seen.output, seen.valid = out, args[1].valid
        if seen.attended is not None:
            seen.attended.valid = seen.valid

    def enter(core: nn.Module, args: tuple[Any, ...]) -> None:
        q, k, v, mask, bias = args
        seen.attended = Attended(core, q, k, v, mask, bias)

    yield block.register_forward_hook(note)
    if attention:
        assert isinstance(block.attention, SelfAttention)
        yield block.attention.core.register_forward_pre_hook(enter)


# The loss.


class LayerLoss:
    """What a student's layers lack of a teacher's, watched while both run.

    Raises `InputError` for stacks that differ, and for layers that the loss cannot compare.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        *,
        hidden: HiddenStatesConfig | None = None,
        attention: AttentionTransferConfig | None = None,
    ) -> None:
        self.student = student
        self.hidden = hidden
        self.attention = attention
        self.pairs = [
            (path, i, n, ours, theirs)
            for path, stacks in stacks_of(student, teacher).items()
            for i, n, ours, theirs in _paired(*stacks)
        ]
        if attention is not None:
            for path, i, n, ours, theirs in self.pairs:
                if learns(attention.layers, i, n):
                    where = f"{path}.blocks.{i}.attention"
                    attention.check(*_attentions(ours, theirs, where), where)

    @contextmanager
    def watching(self) -> Generator[Callable[[], Tensor]]:
        """Watch both models; the function that is given returns the loss of their latest passes."""
        seen = [(Seen(), Seen()) for _ in self.pairs]
        with ExitStack() as stack:
            for (*_, ours, theirs), sides in zip(self.pairs, seen, strict=True):
                for block, one in zip((ours, theirs), sides, strict=True):
                    for handle in _watch(block, one, attention=self.attention is not None):
                        stack.callback(handle.remove)
            yield partial(self._loss, seen)

    def _loss(self, seen: Sequence[tuple[Seen, Seen]]) -> Float[Tensor, ""]:
        hidden: list[Tensor] = []
        attention: list[Tensor] = []
        for (path, i, n, *_), (ours, theirs) in zip(self.pairs, seen, strict=True):
            if self.hidden is not None and learns(self.hidden.layers, i, n):
                assert ours.output is not None
                assert theirs.output is not None
                mapped = self.mapped(path, ours.output)
                _check_shapes("hidden states", mapped, theirs.output)
                hidden.append(mean_squares(mapped, theirs.output.detach(), ours.valid))
            if self.attention is not None and learns(self.attention.layers, i, n):
                assert ours.attended is not None
                assert theirs.attended is not None
                attention.append(self._attention(ours.attended, theirs.attended))
        losses = [
            kind.weight * torch.stack(some).mean()
            for kind, some in ((self.hidden, hidden), (self.attention, attention))
            if kind is not None
        ]
        return torch.stack(losses).sum()

    def _attention(self, ours: Attended, theirs: Attended) -> Float[Tensor, ""]:
        assert self.attention is not None
        losses: list[Tensor] = []
        for own, other in zip(self.attention.of(ours), self.attention.of(theirs), strict=True):
            _check_shapes("attention", own, other)
            losses.append(mean_divergence(other.detach(), own, ours.valid))
        return torch.stack(losses).sum()

    def mapped(self, path: str, x: Tensor) -> Tensor:
        """Hidden states of a stack of the student in the teacher's width."""
        maps = dict(self.student.named_children()).get(MAPS)
        own = {} if maps is None else dict(maps.named_children())
        return own[path](x) if path in own else x


def _check_shapes(what: str, ours: Tensor, theirs: Tensor) -> None:
    if ours.shape != theirs.shape:
        raise InputError(
            f"train.distillation: the student's {what} have shape {tuple(ours.shape)}, and the "
            f"teacher's {tuple(theirs.shape)}: layers that learn read the same sequence"
        )


def mean_squares(
    ours: Float[Tensor, "batch seq width"],
    theirs: Float[Tensor, "batch seq width"],
    valid: Bool[Tensor, "batch seq"] | None,
) -> Float[Tensor, ""]:
    """The mean of `(ours - theirs)²` over real tokens and features."""
    return _over_real((at_least_float32(ours) - at_least_float32(theirs)).square().mean(-1), valid)


def mean_divergence(
    theirs: Probabilities, ours: Probabilities, valid: Bool[Tensor, "batch q_seq"] | None
) -> Float[Tensor, ""]:
    """The mean of `KL(theirs ‖ ours)` over heads and real queries; 0 where nothing is attended."""
    ours, theirs = at_least_float32(ours), at_least_float32(theirs)
    tiny = torch.finfo(ours.dtype).tiny
    kl = torch.xlogy(theirs, theirs) - theirs * ours.clamp(min=tiny).log()
    return _over_real(kl.sum(-1).mean(1), valid)


def _over_real(
    values: Float[Tensor, "batch seq"], valid: Bool[Tensor, "batch seq"] | None
) -> Float[Tensor, ""]:
    if valid is None:
        return values.mean()
    return torch.where(valid, values, 0.0).sum() / valid.sum().clamp(min=1)


# Layers and stacks.


def learns(which: Which, i: int, n: int) -> bool:
    """Whether layer `i` of `n`, counted from 0, learns from the teacher."""
    return which == "uniform" or i == n - 1


def teacher_layer(i: int, n: int, of: int) -> int:
    """The teacher's layer, of `of`, from which layer `i` of `n` learns, counted from 0."""
    return round((i + 1) * of / n) - 1


def stacks_of(student: nn.Module, teacher: nn.Module) -> dict[str, tuple[Stack, Stack]]:
    """The stacks of both models by name. Raises `InputError` if the student is the deeper one."""
    theirs = {name: one for name, one in teacher.named_modules() if isinstance(one, Stack)}
    ours = {name: one for name, one in student.named_modules() if isinstance(one, Stack)}
    for name, one in ours.items():
        if len(one.blocks) > len(theirs[name].blocks):
            raise InputError(
                f"train.distillation: the student's {name} has {len(one.blocks)} layers, and the "
                f"teacher's {len(theirs[name].blocks)}: layers learn from as many or more. Give it "
                "fewer, or leave hidden_states, attention_transfer and start out"
            )
    return {name: (one, theirs[name]) for name, one in ours.items()}


def _paired(student: Stack, teacher: Stack) -> Iterator[tuple[int, int, nn.Module, nn.Module]]:
    """Each layer of the student with its number, how many there are, and its teacher's."""
    n, of = len(student.blocks), len(teacher.blocks)
    for i, block in enumerate(student.blocks):
        yield i, n, block, teacher.blocks[teacher_layer(i, n, of)]


def _attentions(
    ours: nn.Module, theirs: nn.Module, where: str
) -> tuple[SelfAttention, SelfAttention]:
    found = [block.attention for block in (ours, theirs)]
    for one in found:
        if not isinstance(one, SelfAttention):
            raise InputError(
                f"{where} is {type(one).__name__}, which has no heads to compare: leave "
                "train.distillation.attention_transfer out"
            )
    return found[0], found[1]  # pyright: ignore[reportReturnType]


@contextmanager
def learned_maps(
    student: nn.Module, hidden: HiddenStatesConfig | None, widths: tuple[int, int]
) -> Generator[None]:
    """Give the student a map from its width to its teacher's for each stack, for a while.

    The maps stand in the student as `MAPS`, so that optimisers, averages and checkpoints have them.
    """
    if hidden is None or widths[0] == widths[1]:
        yield
        return
    stacks = [name for name, one in student.named_modules() if isinstance(one, Stack)]
    student.add_module(MAPS, nn.ModuleDict({name: Linear(*widths, bias=False) for name in stacks}))
    try:
        yield
    finally:
        delattr(student, MAPS)


def from_teacher(weights: Weights, student: nn.Module, teacher: nn.Module) -> Weights:
    """The teacher's weights under the names of the student's layers that learn from them."""
    found: Weights = {}
    inner = tuple(f"{path}.blocks." for path in stacks_of(student, teacher))
    for path, (ours, theirs) in stacks_of(student, teacher).items():
        for i in range(n := len(ours.blocks)):
            old = f"{path}.blocks.{teacher_layer(i, n, len(theirs.blocks))}."
            new = f"{path}.blocks.{i}."
            found |= {
                new + name.removeprefix(old): weight
                for name, weight in weights.items()
                if name.startswith(old)
            }
    return {k: v for k, v in weights.items() if not k.startswith(inner)} | found
