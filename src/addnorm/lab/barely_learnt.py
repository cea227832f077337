"""Detects models that have barely learnt, whose differences mean little."""

from pathlib import Path

from addnorm.training.loggers import LOG, read_journal

LEAST_FALL = 0.1
"""The least fall of the loss, as a share of that of the first step, which is about chance."""


def fall_of_loss(folder: Path) -> tuple[float, float] | None:
    """The training loss at a run's first step, and the mean over its last tenth of steps.

    None for a run without at least two steps, or whose loss may be negative.
    """
    losses = [line["loss"] for line in read_journal(folder / LOG).lines if "loss" in line]
    if len(losses) < 2 or losses[0] <= 0:
        return None
    last = losses[-max(1, len(losses) // 10) :]
    return losses[0], sum(last) / len(last)


def barely_learnt(folder: Path) -> tuple[float, float] | None:
    """Both losses if a run has barely learnt; None otherwise."""
    fall = fall_of_loss(folder)
    return fall if fall is not None and fall[1] > (1 - LEAST_FALL) * fall[0] else None
