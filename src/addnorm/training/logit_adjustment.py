"""Logit adjustment: rare classes are learnt as if they were less rare."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from addnorm.data.batches.batch import Batch
from addnorm.data.ids.encoding import IGNORE
from addnorm.errors import InputError


@dataclass(frozen=True)
class LogitAdjustment:
    """`z + τ log π`: what the loss takes for the outputs `z` (Menon et al. 2021, eq. 10).

    `π_c = (n_c + 1) / (n + C)` is the share of class `c` among the `n` targets of training, one
    added to each of the `C` counts for those that never occur, which Menon et al. leave out. The
    model answers by `z` alone, and so gives rare classes more than their share: with τ = 1 the
    least mean error over classes, in between a trade of precision for recall.
    """

    tau: float
    counts: Int[Tensor, " classes"]

    @classmethod
    def of(cls, tau: float, batches: Iterable[Batch]) -> "LogitAdjustment | None":
        """The adjustment by the targets of an epoch; None for τ = 0.

        Raises `InputError` for targets that are no classes.
        """
        if not tau:
            return None
        every = [batch.targets.flatten() for batch in batches]
        if any(targets.dtype != torch.long for targets in every):
            raise InputError(
                f"train.logit_adjustment = {tau} is for classes and tags: several labels and "
                "numbers have none, so leave it out"
            )
        targets = torch.cat(every)
        return cls(tau, targets[targets != IGNORE].bincount())

    def __call__(self, outputs: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        """The adjusted outputs."""
        n = outputs.shape[-1]
        counts = 1.0 + torch.nn.functional.pad(self.counts, (0, n - len(self.counts)))
        log_prior = (counts / counts.sum()).log()
        return outputs + self.tau * log_prior.to(outputs)
