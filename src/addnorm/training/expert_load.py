"""The load of the experts of a mixture in training: the loss that balances it, and its figures."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.nn.moe import MixtureOfExperts, expert_load, load_balance, within_capacity
from addnorm.nn.routers import SigmoidRouter
from addnorm.training.parallel.world import World

Mixtures = Mapping[str, MixtureOfExperts]
"""The mixtures of experts in a model, by module name."""

MASKS = {"encoder": "source_valid", "decoder": "target_valid"}
"""The padding-mask argument of each stack of an encoder–decoder; other models have `valid`."""


def mixtures_of(model: nn.Module) -> Mixtures:
    """All mixtures of experts in the model."""
    modules = model.named_modules()
    return {name: module for name, module in modules if isinstance(module, MixtureOfExperts)}


@contextmanager
def record_router_logits(mixtures: Mixtures) -> Generator[dict[str, Tensor]]:
    """Record every router's logits in forward passes, by the name of its mixture."""
    router_logits: dict[str, Tensor] = {}

    def record(name: str) -> RemovableHandle:
        def hook(_: nn.Module, __: Any, logits: Tensor) -> None:
            router_logits[name] = logits

        return mixtures[name].router.register_forward_hook(hook)

    with ExitStack() as hooks:
        for name in mixtures:
            hooks.enter_context(record(name))
        yield router_logits


def balance_loss(
    mixtures: Mixtures,
    router_logits: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    world: World,
) -> Tensor | float:
    """`Σ balance · load_balance` over the recorded mixtures, excluding padding; per token.

    Of several processes, it is this one's share of the loss over the tokens of all.
    """
    return sum(
        (
            mixtures[name].balance
            * world.counted(
                load_balance(
                    logits,
                    mixtures[name].router.top_k,
                    real_tokens(name, logits, inputs),
                    world.total_load,
                    mixtures[name].router,
                )
            )
            for name, logits in router_logits.items()
            if mixtures[name].balance
        ),
        start=0.0,
    )


def real_tokens(
    name: str, logits: Tensor, inputs: Mapping[str, Tensor]
) -> Bool[Tensor, "..."] | None:
    """The mask of real tokens in this layer; None (all) if the inputs' mask has another shape."""
    valid = inputs.get(MASKS.get(name.partition(".")[0], "valid"))
    return valid if valid is not None and valid.shape == logits.shape[:-1] else None


class ExpertLoad:
    """Counts the tokens of every expert, without padding, over the micro-batches of a step.

    Counting takes no part in the gradient, and only `figures` waits for the device; `latest` holds
    what it last returned. The figures are of the tokens of all processes.
    """

    def __init__(self, mixtures: Mixtures, world: World) -> None:
        self.mixtures = mixtures
        self.world = world
        self.latest: dict[str, float] = {}
        self._counts: dict[str, Tensor] = {}
        self._of_step: dict[str, Tensor] = {}
        self._within_capacity: dict[str, Tensor] = {}

    @torch.no_grad()
    def count(self, router_logits: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> None:
        """Add the choices of one micro-batch, given the logits of the routers."""
        for name, logits in router_logits.items():
            mixture, valid = self.mixtures[name], real_tokens(name, logits, inputs)
            chosen = mixture.router.choose(mixture.router.scores(logits.detach()))
            counts = self.world.counted(expert_load(chosen, logits.shape[-1], valid))
            self._counts[name] = self._counts.get(name, 0) + counts
            self._of_step[name] = self._of_step.get(name, 0) + counts
            if (capacity := mixture.capacity(chosen)) is not None:
                within = within_capacity(chosen, capacity)
                n_within = (within if valid is None else within[valid]).sum()
                self._within_capacity[name] = self._within_capacity.get(name, 0) + n_within

    def move_corrections(self) -> None:
        """After a step, let routers with corrections move them against the step's load."""
        for name, mixture in self.mixtures.items():
            if isinstance(mixture.router, SigmoidRouter) and mixture.router.correction_rate:
                mixture.router.move(self.world.total(self._count(self._of_step, name)))
        self._of_step = {}

    def _count(self, counts: Mapping[str, Tensor], name: str) -> Tensor:
        """The number of choices of each expert of a mixture; 0 for experts of other processes."""
        none = torch.zeros(len(self.mixtures[name].experts), dtype=torch.long)
        return counts.get(name, none)

    def figures(self) -> dict[str, float]:
        """The figures since the last call, which restarts the counts; empty without mixtures.

        `load_ratio` is `max_e n_e / mean_e n_e` of the mixture where it is largest, which is 1 for
        an even load. `dropped`, only with a capacity, is the share of choices for which an expert
        had no place, over all mixtures that have a capacity.
        """
        totals = {name: self.world.total(self._count(self._counts, name)) for name in self.mixtures}
        counts = {name: n.tolist() for name, n in totals.items() if n.sum()}
        figures = dict[str, float]()
        if counts:
            figures["load_ratio"] = max(max(n) * len(n) / sum(n) for n in counts.values())
        if any(mixture.capacity_factor for mixture in self.mixtures.values()):
            choices = sum(int(self._counts[name].sum()) for name in self._within_capacity)
            within = sum(int(n) for n in self._within_capacity.values())
            n_choices, n_within = self.world.total(torch.tensor([choices, within])).tolist()
            if n_choices:
                figures["dropped"] = 1 - n_within / n_choices
        self.latest, self._counts, self._within_capacity = figures, {}, {}
        return figures
