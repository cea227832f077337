"""Knowledge distillation: a student learns a teacher's outputs, hidden states and attention.

In layer-wise distillation, layer `i` of a student of `M` layers learns from layer `round(i N / M)`
of a teacher of `N` layers (Jiao et al. 2020, §3), in each stack.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import gcd
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Shaped
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from addnorm.config import WORD, config
from addnorm.data.ids.encoding import IGNORE
from addnorm.errors import InputError
from addnorm.models.weights import Weights
from addnorm.nn.attention.core import HasWeights
from addnorm.nn.attention.multihead import SelfAttention
from addnorm.nn.blocks import Stack
from addnorm.nn.functional import at_least_float32
from addnorm.nn.linear import Linear
from addnorm.nn.types import Heads
from addnorm.training.loss import binary_cross_entropy_sum, squared_error_sum

MAPS = "distillation_maps"
"""The name, in a student in training, of the linear maps from its width to its teacher's."""

Which = Literal["uniform", "last"]
"""The layers that learn: all, from evenly spaced layers of the teacher, or the last."""

Probabilities = Float[Tensor, "batch heads q_seq kv_seq"]


@config
class HiddenStatesConfig:
    """Learn the outputs of the teacher's layers: `mean((H_s W - H_t)²)` (Jiao et al. 2020, eq. 8).

    The mean is over real tokens and features. `W` is learned together with the student, one for
    each of its stacks, and is not saved with the model; models of the same width need none.
    """

    weight: PositiveFloat = 1.0
    """The factor of this loss, which is added to the loss of the outputs."""
    layers: Which = "uniform"
    """The layers that learn: all, or the last of each stack."""


@config
class AttentionWeightsConfig:
    """Learn the teacher's self-attention weights: `mean KL(A_t ‖ A_s)` (Wang et al. 2020, eq. 6).

    The mean is over heads and real queries; student and teacher need the same number of heads.
    """

    kind: Literal["weights"] = "weights"
    weight: PositiveFloat = 1.0
    """The factor of this loss, which is added to the loss of the outputs."""
    layers: Which = "uniform"
    """The layers that learn: all, or the last of each stack."""

    def check(self, student: SelfAttention, teacher: SelfAttention, where: str) -> None:
        """Raise `InputError` if head counts differ, or a core has no attention weights."""
        n_heads, of_teacher = (a.q_proj.out_features // a.d_head for a in (student, teacher))
        if n_heads != of_teacher:
            raise InputError(
                f"{where} has {n_heads} heads, and the teacher {of_teacher}: take "
                'train.distillation.attention_transfer.kind = "relations"'
            )
        for core in (student.core, teacher.core):
            if not isinstance(core, HasWeights):
                raise InputError(f"{where}: {type(core).__name__} does not show its weights")

    def of(self, inputs: "AttentionInputs") -> Sequence[Probabilities]:
        """The attention weights of a layer, without dropout."""
        assert isinstance(inputs.core, HasWeights)
        return [inputs.core.weights(inputs.q, inputs.k, inputs.mask, inputs.bias)]


@config
class AttentionRelationsConfig:
    """Learn the teacher's relations of queries, keys and values (Wang et al. 2021, eq. 2 to 5).

    The vectors of all heads are concatenated and split into `n_heads` relation heads of width d, in
    which `softmax(A Aᵀ / √d)` relates every real token to every other, where `A` are the queries,
    the keys or the values; the loss is `mean KL`, summed over the three. Student and teacher may
    differ in heads and width.
    """

    kind: Literal["relations"] = "relations"
    n_heads: PositiveInt = 8
    """The number of relation heads into which queries, keys and values are split."""
    weight: PositiveFloat = 1.0
    """The factor of this loss, which is added to the loss of the outputs."""
    layers: Which = "last"
    """The layers that learn: all, or the last of each stack."""

    def check(self, student: SelfAttention, teacher: SelfAttention, where: str) -> None:
        """Raise `InputError` if `n_heads` does not divide the width of a projection."""
        widths = {
            whose: [proj.out_features for proj in (part.q_proj, part.k_proj, part.v_proj)]
            for whose, part in (("this student", student), ("the teacher", teacher))
        }
        common = gcd(*(width for of_model in widths.values() for width in of_model))
        divisors = [n for n in range(1, common + 1) if common % n == 0]
        for whose, of_model in widths.items():
            for width in of_model:
                if width % self.n_heads:
                    closest = min(divisors, key=lambda n: abs(n - self.n_heads))
                    raise InputError(
                        f"{where}: train.distillation.attention_transfer.n_heads = {self.n_heads} "
                        f"does not divide the {width} features of {whose}'s projections: the "
                        f"nearest that does is {closest}"
                    )

    def of(self, inputs: "AttentionInputs") -> Sequence[Probabilities]:
        """The relations among queries, among keys and among values."""
        heads = (inputs.q, inputs.k, inputs.v)
        return [relations(vectors, self.n_heads, inputs.valid) for vectors in heads]


AttentionTransferConfig = Annotated[
    AttentionWeightsConfig | AttentionRelationsConfig, Field(discriminator="kind"), WORD
]
"""The attention that a student learns: its weights, or the relations of its inputs."""


@config
class DistillationConfig:
    """Learn a teacher's outputs and the labels: `(1 - w) CE + w T² KL` (Hinton et al. 2015).

    KL is the divergence of the student's probabilities from the teacher's, both at the temperature
    T. `hidden_states` and `attention_transfer` add their mean losses to this sum, once for each
    target.
    """

    teacher: Path
    """The folder of the teacher: a run, or a Hugging Face folder with the same tokens."""
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    """T divides the logits of both models: above 1, unlikely tokens count for more."""
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """The weight w of the teacher's outputs in the loss; 1 ignores the labels."""
    hidden_states: HiddenStatesConfig | None = None
    """Learn the teacher's hidden states too; by default only its outputs."""
    attention_transfer: AttentionTransferConfig | None = None
    """Learn the teacher's attention too: its `weights`, or the `relations` of its inputs."""
    start: Literal["random", "teacher"] = "random"
    """Begin with random weights, or with those weights of the teacher that fit the student,
    including evenly spaced layers.
    """

    @property
    def compares_layers(self) -> bool:
        """Whether the student learns the teacher's hidden states or attention."""
        return self.hidden_states is not None or self.attention_transfer is not None


def imitation_sum(
    student: Float[Tensor, "*batch vocab"],
    teacher: Float[Tensor, "*batch vocab"],
    targets: Shaped[Tensor, "*targets"],
    temperature: float = 1.0,
) -> Float[Tensor, ""]:
    """`T² Σ_t KL(softmax(teacher_t / T) ‖ softmax(student_t / T))` in nats, in float32 or wider.

    Hinton et al. 2015, §2: T² keeps the scale of the gradient the same at every temperature T. The
    sum is over all targets that are not ignored; their values do not matter. The teacher gets no
    gradient. For boolean targets (multi-label) the student learns the teacher's probability of each
    label; for real-valued targets (regression), its outputs.
    """
    if targets.dtype == torch.bool:
        return binary_cross_entropy_sum(student, teacher.detach().sigmoid())
    if targets.is_floating_point():
        return squared_error_sum(student, teacher.detach())
    counted = targets.flatten() != IGNORE
    student_log_p, teacher_log_p = (
        (at_least_float32(logits.flatten(0, -2)[counted]) / temperature).log_softmax(-1)
        for logits in (student, teacher.detach())
    )
    return F.kl_div(student_log_p, teacher_log_p, reduction="sum", log_target=True) * temperature**2


def relations(
    heads: Heads, n_heads: int, valid: Bool[Tensor, "batch seq"] | None
) -> Float[Tensor, "batch n_heads seq seq"]:
    """`softmax(A Aᵀ / √d)` in `n_heads` relation heads of width d, with padding masked."""
    split = heads.transpose(1, 2).flatten(2).unflatten(-1, (n_heads, -1)).transpose(1, 2)
    scores = split @ split.mT * split.shape[-1] ** -0.5
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None, None, :], -torch.inf)
    return scores.softmax(-1)


# Recording layers as they run.


@dataclass
class AttentionInputs:
    """The inputs of a self-attention's core in its latest forward pass."""

    core: nn.Module
    q: Heads
    k: Heads
    v: Heads
    mask: Any
    bias: Any
    valid: Bool[Tensor, "batch seq"] | None = None


@dataclass
class LayerRecord:
    """A layer's output in its latest pass, its real tokens, and the inputs of its attention."""

    output: Tensor | None = None
    valid: Bool[Tensor, "batch seq"] | None = None
    attention: AttentionInputs | None = None


def _record(block: nn.Module, record: LayerRecord, *, attention: bool) -> Iterator[RemovableHandle]:
    """Fill the record each time the block runs, until the returned handles are removed."""

    def after_block(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        record.output, record.valid = out, args[1].valid
        if record.attention is not None:
            record.attention.valid = record.valid

    def before_core(core: nn.Module, args: tuple[Any, ...]) -> None:
        q, k, v, mask, bias = args
        record.attention = AttentionInputs(core, q, k, v, mask, bias)

    yield block.register_forward_hook(after_block)
    if attention:
        assert isinstance(block.attention, SelfAttention)
        yield block.attention.core.register_forward_pre_hook(before_core)


# The loss.


class LayerLoss:
    """The loss between the layers of a student and a teacher, recorded while both run.

    Raises `InputError` for a student with more layers than the teacher, and for layers that the
    loss cannot compare.
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
        self.stacks = stacks_of(student, teacher)
        self.pairs = [
            (path, i, n, ours, theirs)
            for path, stacks in self.stacks.items()
            for i, n, ours, theirs in _paired(*stacks)
        ]
        if attention is not None:
            for path, i, n, ours, theirs in self.pairs:
                if learns(attention.layers, i, n):
                    where = f"{path}.blocks.{i}.attention"
                    attention.check(*_attentions(ours, theirs, where), where)

    @contextmanager
    def recording(self) -> Generator[Callable[[], Tensor]]:
        """Record both models; yields a function that returns the loss of their latest passes."""
        records = [(LayerRecord(), LayerRecord()) for _ in self.pairs]
        with ExitStack() as hooks:
            for (*_, ours, theirs), (our_record, their_record) in zip(
                self.pairs, records, strict=True
            ):
                for block, record in ((ours, our_record), (theirs, their_record)):
                    for handle in _record(block, record, attention=self.attention is not None):
                        hooks.enter_context(handle)
            yield partial(self._loss, records)

    def _loss(self, records: Sequence[tuple[LayerRecord, LayerRecord]]) -> Float[Tensor, ""]:
        hidden: list[Tensor] = []
        attention: list[Tensor] = []
        for (path, i, n, *_), (ours, theirs) in zip(self.pairs, records, strict=True):
            if self.hidden is not None and learns(self.hidden.layers, i, n):
                assert ours.output is not None
                assert theirs.output is not None
                student, teacher = self.stacks[path]
                states = self.map_hidden_states(path, student.collapsed(ours.output))
                target = teacher.collapsed(theirs.output).detach()
                _check_shapes("hidden states", states, target)
                hidden.append(mean_squares(states, target, ours.valid))
            if self.attention is not None and learns(self.attention.layers, i, n):
                assert ours.attention is not None
                assert theirs.attention is not None
                attention.append(self._attention(ours.attention, theirs.attention))
        weighted = [
            loss.weight * torch.stack(by_layer).mean()
            for loss, by_layer in ((self.hidden, hidden), (self.attention, attention))
            if loss is not None
        ]
        return torch.stack(weighted).sum()

    def _attention(self, ours: AttentionInputs, theirs: AttentionInputs) -> Float[Tensor, ""]:
        assert self.attention is not None
        losses: list[Tensor] = []
        for p, target in zip(self.attention.of(ours), self.attention.of(theirs), strict=True):
            _check_shapes("attention", p, target)
            losses.append(mean_divergence(target.detach(), p, ours.valid))
        return torch.stack(losses).sum()

    def map_hidden_states(self, path: str, x: Tensor) -> Tensor:
        """Map the hidden states of a stack of the student to the teacher's width."""
        maps = dict(self.student.named_children()).get(MAPS)
        by_stack = {} if maps is None else dict(maps.named_children())
        return by_stack[path](x) if path in by_stack else x


def _check_shapes(what: str, ours: Tensor, theirs: Tensor) -> None:
    if ours.shape != theirs.shape:
        raise InputError(
            f"train.distillation: the student's {what} have shape {tuple(ours.shape)}, and the "
            f"teacher's {tuple(theirs.shape)}: both models must read the same sequence"
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
    """The mean of `KL(theirs ‖ ours)` over heads and real queries; 0 for a fully masked query."""
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
    """Whether layer `i` of `n` learns from the teacher, counted from 0."""
    return which == "uniform" or i == n - 1


def teacher_layer(i: int, n: int, of: int) -> int:
    """The teacher's layer (of `of`) from which layer `i` of `n` learns, counted from 0."""
    return round((i + 1) * of / n) - 1


def stacks_of(student: nn.Module, teacher: nn.Module) -> dict[str, tuple[Stack, Stack]]:
    """The stacks of both models by name. Raises `InputError` if the student is the deeper one."""
    ours, theirs = (
        {name: module for name, module in model.named_modules() if isinstance(module, Stack)}
        for model in (student, teacher)
    )
    for name, stack in ours.items():
        if len(stack.blocks) > len(theirs[name].blocks):
            raise InputError(
                f"train.distillation: the student's {name} has {len(stack.blocks)} layers, and the "
                f"teacher's {len(theirs[name].blocks)}: the student must not be deeper. Give it "
                "fewer layers, or leave hidden_states, attention_transfer and start out"
            )
    return {name: (stack, theirs[name]) for name, stack in ours.items()}


def _paired(student: Stack, teacher: Stack) -> Iterator[tuple[int, int, nn.Module, nn.Module]]:
    """Yield for each student layer: its number, the number of layers, the layer, its teacher."""
    n, of = len(student.blocks), len(teacher.blocks)
    for i, block in enumerate(student.blocks):
        yield i, n, block, teacher.blocks[teacher_layer(i, n, of)]


def _attentions(
    ours: nn.Module, theirs: nn.Module, where: str
) -> tuple[SelfAttention, SelfAttention]:
    attentions = ours.attention, theirs.attention
    for attention in attentions:
        if not isinstance(attention, SelfAttention):
            raise InputError(
                f"{where} is {type(attention).__name__}, which has no heads to compare: leave "
                "train.distillation.attention_transfer out"
            )
    return attentions  # pyright: ignore[reportReturnType]


@contextmanager
def learned_maps(
    student: nn.Module, hidden: HiddenStatesConfig | None, widths: tuple[int, int]
) -> Generator[None]:
    """Temporarily give each stack of the student a linear map to its teacher's width.

    The maps are the child `MAPS` of the student, so that optimisers, averages and checkpoints have
    them.
    """
    if hidden is None or widths[0] == widths[1]:
        yield
        return
    stacks = [name for name, module in student.named_modules() if isinstance(module, Stack)]
    student.add_module(MAPS, nn.ModuleDict({name: Linear(*widths, bias=False) for name in stacks}))
    try:
        yield
    finally:
        delattr(student, MAPS)


def from_teacher(weights: Weights, student: nn.Module, teacher: nn.Module) -> Weights:
    """The teacher's weights, renamed to the student's layers that learn from them."""
    stacks = stacks_of(student, teacher)
    inner = tuple(f"{path}.blocks." for path in stacks)
    renamed = {name: weight for name, weight in weights.items() if not name.startswith(inner)}
    for path, (ours, theirs) in stacks.items():
        for i in range(n := len(ours.blocks)):
            old = f"{path}.blocks.{teacher_layer(i, n, len(theirs.blocks))}."
            new = f"{path}.blocks.{i}."
            renamed |= {
                new + name.removeprefix(old): weight
                for name, weight in weights.items()
                if name.startswith(old)
            }
    return renamed
