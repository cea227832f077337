"""Optimisers: AdamW (also with 8-bit states), Adadelta, or Muon; and a bound on rows of weights."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from addnorm.config import Probability, config
from addnorm.errors import InputError
from addnorm.nn.blocks import Stack
from addnorm.parts import Family, kind_of
from addnorm.quantize.torchao_import import torchao_for
from addnorm.training.muon import Muon
from addnorm.training.parallel.tensors import is_part, like, local, piece_within_stage, whole_shape
from addnorm.training.torch_optimizers import Adadelta, AdamW

Betas = tuple[Probability, Probability]
T = TypeVar("T")


@config
class AdamWConfig:
    """AdamW (Loshchilov & Hutter 2019). Weight decay acts only on matrices."""

    kind: Literal["adamw"] = "adamw"
    betas: Betas = (0.9, 0.98)
    """The decay of the running means of the gradient and of its square."""
    eps: PositiveFloat = 1e-9
    """Added to the root of the second moment, against division by zero."""
    weight_decay: NonNegativeFloat = 0.01
    """The decoupled decay of matrices, times the learning rate at each step."""

    def build(self, model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
        roles = roles_of(model)
        return [self.over(roles.matrices + roles.tables, roles.vectors, lr)]

    def over(
        self, decayed: list[nn.Parameter], plain: list[nn.Parameter], lr: float
    ) -> torch.optim.Optimizer:
        """AdamW over these parameters, with weight decay on `decayed` only."""
        return AdamW(
            _groups(decayed, plain, self.weight_decay),
            lr=lr,
            betas=self.betas,
            eps=self.eps,
            # One kernel over all parameters: about 4 × faster, on CPU too; meta has none.
            fused=not any(p.is_meta for p in (*decayed, *plain)),
        )


def _groups(
    decayed: list[nn.Parameter], plain: list[nn.Parameter], weight_decay: float
) -> list[dict[str, Any]]:
    """The non-empty parameter groups with and without weight decay."""
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


@config
class AdamW8bitConfig:
    """torchao's AdamW, with 8-bit moments for the linear layers of the stack.

    Each block of moments has one scale, and each moment an 8-bit code (Dettmers et al. 2022, §2).
    As in that paper, embeddings keep 32 bits; so do heads, biases and norm gains, and in torchao
    also matrices of fewer than 4096 values, or whose size is not a multiple of the block.
    `torch.compile` builds the step, which needs a compiler and takes a minute at the start.
    """

    kind: Literal["adamw_8bit"] = "adamw_8bit"
    betas: Betas = (0.9, 0.98)
    """The decay of the running means of the gradient and of its square."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment, against division by zero."""
    weight_decay: NonNegativeFloat = 0.01
    """The decoupled decay of matrices, times the learning rate at each step."""
    block_size: PositiveInt = 256
    """The number of values that share a scale."""

    def build(self, model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
        """Build both optimisers. Raises `InputError` without torchao."""
        adamw_8bit = _torchao_adamw()
        roles = roles_of(model)
        adamw = AdamWConfig(betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)
        rest = adamw.over(roles.tables, roles.vectors, lr)
        if not roles.matrices:
            return [rest]
        # A hint to the authors of the states, of no use to users.
        warnings.filterwarnings("ignore", "OptimState8bit does not implement _stable_hash")
        of_matrices = adamw_8bit(
            roles.matrices,
            lr=lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            block_size=self.block_size,
        )
        return [of_matrices, rest]


def _torchao_adamw() -> Callable[..., torch.optim.Optimizer]:
    with torchao_for('optimizer kind = "adamw_8bit"', 'choose "adamw"'):
        from torchao.optim import AdamW8bit
    return AdamW8bit


@config
class MuonConfig:
    """Muon (Jordan et al. 2024) for linear layers inside the stack, AdamW for all other weights."""

    kind: Literal["muon"] = "muon"
    lr: PositiveFloat = 0.02
    """The peak learning rate of linear layers inside the stack; other weights use `train.lr`."""
    momentum: Probability = 0.95
    """The decay of the running mean of gradients."""
    weight_decay: NonNegativeFloat = 0.05
    """The decoupled decay of these matrices, times the learning rate at each step."""
    adamw: AdamWConfig = AdamWConfig(weight_decay=0.0)
    """The optimiser of all other weights: embeddings, heads, other matrices, biases and norm
    gains.
    """

    def build(self, model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
        roles = roles_of(model)
        muon = Muon(
            roles.matrices, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        return [muon, self.adamw.over(roles.tables, roles.vectors, lr)]


@config
class AdadeltaConfig:
    """Adadelta (Zeiler 2012, algorithm 1): a step size for each weight, from its earlier steps.

    `θ ← θ - lr g √(E[Δ²] + eps) / √(E[g²] + eps)`, with the running means of the squared gradient
    and of the squared step. The paper's learning rate is 1: set `train.lr = 1.0`.
    """

    kind: Literal["adadelta"] = "adadelta"
    rho: Probability = 0.95
    """The decay of the running means of the squared gradient and of the squared step."""
    eps: PositiveFloat = 1e-6
    """Added to both means under their roots; it also sets the size of the first steps."""
    weight_decay: NonNegativeFloat = 0.0
    """The L2 penalty of matrices, added to their gradient."""

    def build(self, model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
        roles = roles_of(model)
        groups = _groups(roles.matrices + roles.tables, roles.vectors, self.weight_decay)
        return [Adadelta(groups, lr=lr, rho=self.rho, eps=self.eps)]


@runtime_checkable
class OptimizerPart(Protocol):
    """A configuration of a custom optimiser.

    It builds torch optimisers that together cover every trainable parameter of the model. `lr` is
    the peak learning rate, `train.lr`; the schedule scales the `lr` of every parameter group. Their
    state must consist of tensors and numbers, so that a checkpoint can store it.
    """

    def build(self, model: nn.Module, lr: float) -> list[torch.optim.Optimizer]: ...


OptimizerConfig = Annotated[
    AdamWConfig | AdamW8bitConfig | MuonConfig | AdadeltaConfig | OptimizerPart,
    Family("optimizer", OptimizerPart),
]
"""Any optimiser, built-in or custom."""


def check_installed(config: OptimizerConfig) -> None:
    """Raise `InputError` if the optimiser needs a library that is not installed."""
    if isinstance(config, AdamW8bitConfig):
        _torchao_adamw()


def build_optimizers(
    config: OptimizerConfig, model: nn.Module, lr: float
) -> list[torch.optim.Optimizer]:
    """Build the optimisers of a model.

    Raises `InputError` if the result is not a list of optimisers, or if they leave a trainable
    parameter out.
    """
    built: Any = config.build(model, lr)
    optimizers: list[Any] = [*built] if isinstance(built, list | tuple) else [built]
    kind = kind_of(config)
    if not optimizers or not all(isinstance(o, torch.optim.Optimizer) for o in optimizers):
        raise InputError(
            f"train.optimizer: {kind} builds {type(built).__name__}: build(model, lr) returns a "
            "list of torch.optim.Optimizer"
        )
    covered = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    left = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in covered]
    if left:
        raise InputError(
            f"train.optimizer: {kind} leaves out {len(left)} parameters, {left[0]} first: "
            "they would never learn"
        )
    return optimizers


@dataclass(frozen=True)
class Roles:
    """The parameters of a model by role, each listed once."""

    matrices: list[nn.Parameter]
    """Weights of linear layers inside the stacks."""
    tables: list[nn.Parameter]
    """All other matrices: embeddings, output heads, recurrent, convolution and score weights."""
    vectors: list[nn.Parameter]
    """Biases and norm gains."""


def roles_of(model: nn.Module) -> Roles:
    """Sort the trainable parameters of `model` by role."""
    inside = {
        id(linear.weight)
        for stack in model.modules()
        if isinstance(stack, Stack)
        for linear in stack.modules()
        if isinstance(linear, nn.Linear)
    }
    roles = Roles([], [], [])
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in inside:
            roles.matrices.append(parameter)
        elif parameter.ndim > 1:
            roles.tables.append(parameter)
        else:
            roles.vectors.append(parameter)
    return roles


NUMBERS: dict[str, tuple[type, torch.dtype]] = {
    "int": (int, torch.int64),
    "float": (float, torch.float64),
    "bool": (bool, torch.bool),
}
"""The types of numbers in an optimiser's state, and their dtypes in a checkpoint."""


STATE_8BIT = ("codes", "scale", "signed:bool")
"""The parts of an 8-bit state in a checkpoint; its sign determines the table of its values."""


def optimizer_tensors(
    optimizers: list[torch.optim.Optimizer], to_save: Callable[[Tensor, Tensor | None], T | None]
) -> dict[str, T]:
    """The state of every optimiser as tensors named `optimiser.parameter.entry`.

    Numbers become tensors whose names end in their type, and an 8-bit state becomes its codes, its
    scales and its sign. `to_save` returns the part of a tensor to save, which may be split as a
    parameter is, or None for no part. Raises `InputError` for an entry of any other type.
    """
    tensors: dict[str, T | None] = {}
    for i, optimizer in enumerate(optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter, state in optimizer.state_dict()["state"].items():
            for entry, value in state.items():
                name, kind = f"{i}.{parameter}.{entry}", type(value).__name__
                if type(value) in (Tensor, nn.Parameter) or is_part(value):
                    tensors[name] = to_save(value, parameters[parameter])
                elif kind == "OptimState8bit":
                    parts = (value.codes, value.scale, torch.tensor(value.signed))
                    pairs = zip(STATE_8BIT, parts, strict=True)
                    tensors |= {f"{name}.{part}": to_save(tensor, None) for part, tensor in pairs}
                elif kind in NUMBERS:
                    number = torch.tensor(value, dtype=NUMBERS[kind][1])
                    tensors[f"{name}:{kind}"] = to_save(number, None)
                elif value is not None:
                    raise InputError(
                        f"train.optimizer: {type(optimizer).__name__} keeps {entry} as {kind}: "
                        "only tensors, numbers and torchao's 8-bit states can be saved"
                    )
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def restore_optimizers(
    optimizers: list[torch.optim.Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    """Restore a state from `optimizer_tensors`; hyperparameters keep their current values."""
    states: list[dict[int, dict[str, Any]]] = [{} for _ in optimizers]
    parameters = [[p for g in o.param_groups for p in g["params"]] for o in optimizers]
    for name, tensor in _with_8bit_states(tensors).items():
        i, parameter, entry = name.split(".", 2)
        entry, _, kind = entry.partition(":")
        value = NUMBERS[kind][0](tensor.item()) if kind else tensor
        learned = parameters[int(i)][int(parameter)]
        if isinstance(value, Tensor) and value.shape == whole_shape(learned):
            value = like(value, learned, learned)
        states[int(i)].setdefault(int(parameter), {})[entry] = value
    for optimizer, state in zip(optimizers, states, strict=True):
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _with_8bit_states(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors, with the parts of each 8-bit state merged into one."""
    sign = f".{STATE_8BIT[-1]}"
    names = {name.removesuffix(sign) for name in tensors if name.endswith(sign)}
    if not names:
        return tensors
    from torchao.optim.subclass_8bit import OptimState8bit

    def state(name: str) -> Tensor:
        codes, scale, signed = (tensors[f"{name}.{part}"] for part in STATE_8BIT)
        block = codes.numel() // scale.numel()
        empty = OptimState8bit.zeros((block,), bool(signed), block, codes.device)
        return OptimState8bit(codes, scale, empty.qmap, bool(signed), scale.dtype)

    parts = {f"{name}.{part}" for name in names for part in STATE_8BIT}
    plain = {name: tensor for name, tensor in tensors.items() if name not in parts}
    return plain | {name: state(name) for name in names}


CLASSES = "head.proj.weight"
"""The last matrix of a classifier."""


@config
class MaxNormConfig:
    """Scale down every row of chosen matrices whose norm is above a bound.

    `w ← w min(1, bound / ‖w‖₂)` for each row `w`, at the start and after each step (Srivastava et
    al. 2014, §5.1; Kim 2014, §2.1). A row has the incoming weights of one output, or of one filter
    of a convolution. Averages of these weights over time are within the bound too.
    """

    kind: Literal["max_norm"] = "max_norm"
    bound: PositiveFloat = 3.0
    """The largest Euclidean norm of a row."""
    parameters: Annotated[str, Field(min_length=1)] = CLASSES
    """The name of the weights in `model.named_parameters()`, in which `*` stands for any
    characters; by default the last matrix of a classifier.
    """

    def build(self, model: nn.Module) -> "MaxNorm":
        """Find the weights to bound.

        Raises `InputError` if the name matches none, or matches a vector.
        """
        return MaxNorm(weights_named(model, self.parameters), bound=self.bound)


@runtime_checkable
class Bounded(Protocol):
    """A module that keeps some of its weights within bounds."""

    def keep_bounds(self) -> None:
        """Move the weights back into their bounds, in place."""
        ...


def constraint_on(model: nn.Module, config: MaxNormConfig | None) -> Callable[[], None]:
    """Apply all constraints; return a function that applies them again after each step.

    They are those that modules have themselves, and the one that is given. Raises `InputError` if
    the name of its weights matches none, or matches a vector.
    """
    all_of = [module.keep_bounds for module in model.modules() if isinstance(module, Bounded)]
    if config is not None:
        all_of.append(config.build(model).apply)

    def apply() -> None:
        for each in all_of:
            each()

    apply()
    return apply


class MaxNorm:
    """An upper bound on the norm of each row of some weights."""

    def __init__(self, weights: Sequence[nn.Parameter], *, bound: float) -> None:
        self.weights = weights
        self.bound = bound

    @torch.no_grad()
    def apply(self) -> None:
        """Scale down, in place, the rows whose norm exceeds the bound."""
        for weight in self.weights:
            rows, piece = local(weight), piece_within_stage(weight)
            if piece is None or piece.axis == 0:
                rows.renorm_(2, 0, self.bound)
            else:
                norms = piece.group.sum(rows.flatten(1).square().sum(1)).sqrt()
                rows.mul_((self.bound / (norms + 1e-7)).clamp(max=1.0)[:, None])


def weights_named(model: nn.Module, pattern: str) -> list[nn.Parameter]:
    """The trainable weights whose name matches the pattern.

    Raises `InputError` if there are none, or if one of them has a single axis: a bias or a gain has
    no rows.
    """
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    matches = {name: p for name, p in learned.items() if fnmatchcase(name, pattern)}
    matrices = [name for name, p in learned.items() if p.ndim > 1]
    if not matches:
        near = get_close_matches(pattern, matrices, 1, 0.0) or ["none"]
        raise InputError(
            f"train.constraint.parameters = {pattern!r}: no learned weights of the model have this "
            f"name; the nearest is {near[0]!r}"
        )
    for name, parameter in matches.items():
        if parameter.ndim < 2:
            raise InputError(
                f"train.constraint.parameters = {pattern!r}: {name} has one axis and so no rows; "
                f"{len(matrices)} weights have rows, {matrices[0]!r} first"
            )
    return list(matches.values())
