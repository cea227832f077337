"""The load of the experts in training: how unevenly tokens are routed, and how many are dropped."""

from collections.abc import Mapping

import torch
from torch import Tensor

from addnorm.nn.moe import expert_load, route, within_capacity
from addnorm.training.loss import Mixtures, real_tokens


class ExpertLoad:
    """Counts the tokens of every expert, padding left out, over the micro-batches of a step.

    Counting takes no part in the gradient, and the device is waited for only in `figures`; `latest`
    is what that last returned.
    """

    def __init__(self, mixtures: Mixtures) -> None:
        self.mixtures = mixtures
        self.latest: dict[str, float] = {}
        self._counts: dict[str, Tensor] = {}
        self._kept: dict[str, Tensor] = {}

    @torch.no_grad()
    def count(self, router_logits: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> None:
        """Add the choices of one micro-batch, from what the routers returned."""
        for name, logits in router_logits.items():
            mixture, valid = self.mixtures[name], real_tokens(name, logits, inputs)
            _, chosen = route(logits.detach(), mixture.top_k)
            counts = expert_load(chosen, logits.shape[-1], valid)
            self._counts[name] = self._counts.get(name, 0) + counts
            if (capacity := mixture.capacity(chosen)) is not None:
                kept = within_capacity(chosen, capacity)
                kept = (kept if valid is None else kept[valid]).sum()
                self._kept[name] = self._kept.get(name, 0) + kept

    def figures(self) -> dict[str, float]:
        """The figures since the last call, empty without mixtures; counting starts again.

        `load_ratio` is `max_e n_e / mean_e n_e` of the mixture where it is largest, one if the load
        is even; `dropped`, only with a capacity, the share of choices that experts had no place
        for, over all mixtures that have one.
        """
        counts = {name: n.tolist() for name, n in self._counts.items() if n.sum()}
        figures = dict[str, float]()
        if counts:
            figures["load_ratio"] = max(max(n) * len(n) / sum(n) for n in counts.values())
        if asked := sum(sum(counts.get(name, [])) for name in self._kept):
            kept = sum(int(n) for n in self._kept.values())
            figures["dropped"] = 1 - kept / asked
        self.latest, self._counts, self._kept = figures, {}, {}
        return figures
