"""Settings that cannot act because a run has too few steps or validations."""

from collections.abc import Iterator
from math import ceil

from addnorm.training.settings import TrainConfig


def settings_without_effect(
    config: TrainConfig, n_batches: int, *, validates: bool
) -> Iterator[str]:
    """A sentence on each setting that cannot act in this run, of `n_batches` in an epoch."""
    per_epoch, steps = config.steps_per_epoch(n_batches), config.total_steps(n_batches)
    n_saved = _times(config.save_every or per_epoch, steps)
    n_validated = _times(config.validate_every or per_epoch, steps) if validates else 0
    warmup = getattr(config.schedule, "warmup", 0)
    if isinstance(warmup, int) and warmup >= max(steps, 2):
        yield (
            f"train.schedule.warmup = {warmup:,}: the run has {steps:,} steps, so the learning "
            "rate is still rising at its end: lower it"
        )
    if config.patience is not None and n_validated and config.patience >= n_validated - 1:
        yield (
            f"train.patience = {config.patience}: the run has {n_validated} validations, so it "
            "never stops early: lower it, or train.validate_every"
        )
    if config.average > n_saved:
        yield (
            f"train.average = {config.average}: the run saves {n_saved} checkpoints, so the mean "
            "is of those: lower it, or train.save_every"
        )
    if config.ema is not None and (1 - config.ema) * steps < 1:
        yield (
            f"train.ema = {config.ema:g}: an average over more steps than the {steps:,} of the "
            f"run, in which its decay rises to {(1 + steps) / (10 + steps):.3g} at most: lower it"
        )
    if config.select == "best" and n_validated == 1:
        yield (
            "train.select = 'best': the run validates once, at its end, so the last weights are "
            "the best: lower train.validate_every"
        )
    yield from _intervals(config, steps, validates=validates)


def _intervals(config: TrainConfig, steps: int, *, validates: bool) -> Iterator[str]:
    """Intervals that are longer than the run, and one between validations of nothing."""
    if config.validate_every is not None and not validates:
        yield (
            f"train.validate_every = {config.validate_every:,}: there are no validation data: "
            "give data.valid or data.valid_fraction, or leave it out"
        )
    for name, what in (("validate_every", "validates"), ("save_every", "saves")):
        every = getattr(config, name)
        if every is not None and every > steps and (validates or name == "save_every"):
            yield (
                f"train.{name} = {every:,}: the run has {steps:,} steps, so it {what} once, at "
                "its end: lower it, or leave it out"
            )


def _times(every: int, steps: int) -> int:
    """How often something happens every so many steps, and at the end."""
    return ceil(steps / every)
