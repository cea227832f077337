"""Optimisers: AdamW for everything, or torch's Muon for the matrices and AdamW for the rest."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from addnorm.config import Probability, config
from addnorm.nn.blocks import Stack

Betas = tuple[Probability, Probability]


@config
class AdamWConfig:
    """AdamW (Loshchilov & Hutter 2019). Weight decay acts on matrices alone."""

    kind: Literal["adamw"] = "adamw"
    betas: Betas = (0.9, 0.98)
    eps: PositiveFloat = 1e-9
    weight_decay: NonNegativeFloat = 0.01

    def build(self, model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
        roles = roles_of(model)
        return [self.over(roles.matrices + roles.tables, roles.vectors, lr)]

    def over(
        self, decayed: list[nn.Parameter], plain: list[nn.Parameter], lr: float
    ) -> torch.optim.Optimizer:
        """AdamW over these parameters, weight decay on the first list alone."""
        groups = [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=lr,
            betas=self.betas,
            eps=self.eps,
            fused=True,  # one kernel over all parameters: about 4 × faster, on CPU too
        )


@config
class MuonConfig:
    """Muon (Jordan et al. 2024) for the matrices inside the stack, AdamW for all else.

    `lr` is Muon's own; AdamW takes `train.lr`.
    """

    kind: Literal["muon"] = "muon"
    lr: PositiveFloat = 0.02
    momentum: Probability = 0.95
    weight_decay: NonNegativeFloat = 0.05
    adamw: AdamWConfig = AdamWConfig(weight_decay=0.0)

    def build(self, model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
        roles = roles_of(model)
        muon = torch.optim.Muon(
            roles.matrices, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        return [muon, self.adamw.over(roles.tables, roles.vectors, lr)]


OptimizerConfig = Annotated[AdamWConfig | MuonConfig, Field(discriminator="kind")]
"""Every optimiser there is."""


@dataclass(frozen=True)
class Roles:
    """The parameters of a model, each once, by what they are."""

    matrices: list[nn.Parameter]
    """Weights of the linear maps inside the stacks."""
    tables: list[nn.Parameter]
    """Embeddings and heads: rows are looked up or compared, not composed."""
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


def optimizer_tensors(optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The state of every optimiser as tensors named `optimiser.parameter.entry`."""
    return {
        f"{i}.{parameter}.{entry}": tensor
        for i, optimizer in enumerate(optimizers)
        for parameter, state in optimizer.state_dict()["state"].items()
        for entry, tensor in state.items()
    }


def restore_optimizers(optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Put back a state from `optimizer_tensors`; the hyperparameters stay as they were built."""
    states: list[dict[int, dict[str, Tensor]]] = [{} for _ in optimizers]
    for name, tensor in tensors.items():
        i, parameter, entry = name.split(".", 2)
        states[int(i)].setdefault(int(parameter), {})[entry] = tensor
    for optimizer, state in zip(optimizers, states, strict=True):
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
