"""TrainConfig: the `[train]` table of a recipe."""

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from addnorm.config import Probability, config
from addnorm.data.batching import BatchingConfig, TokensConfig
from addnorm.parts import kind_of
from addnorm.train.loss import CrossEntropyConfig, LossConfig
from addnorm.train.optim import AdamWConfig, OptimizerConfig
from addnorm.train.precision import PrecisionName
from addnorm.train.schedule import LinearConfig, ScheduleConfig


@config
class TrainConfig:
    """How long, in what batches, by which optimiser, and what is kept.

    `validate_every` and `save_every` count steps; unset, they happen at the end of each epoch.
    `patience` stops after that many validations without a better `metric`. `select` says which
    weights the run ends with: the last ones, or those of the best validation. `average` ends with
    the mean of that many last checkpoints instead, `ema` with a moving average. `start` is the
    folder, a run's or one from Hugging Face, whose weights training begins with. `loss` is what
    training lowers; validation reports the cross-entropy whatever that is.
    """

    start: Path | None = None
    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    batching: BatchingConfig = TokensConfig()
    lr: PositiveFloat = 1e-3
    optimizer: OptimizerConfig = AdamWConfig()
    schedule: ScheduleConfig = LinearConfig()
    loss: LossConfig = CrossEntropyConfig()
    label_smoothing: Probability = 0.0
    clip: PositiveFloat | None = 1.0
    accumulate: PositiveInt = 1
    precision: PrecisionName = "float32"
    ema: Probability | None = None
    average: NonNegativeInt = 0
    validate_every: PositiveInt | None = None
    save_every: PositiveInt | None = None
    keep: PositiveInt = 3
    patience: PositiveInt | None = None
    select: Literal["last", "best"] = "last"
    compile: bool = False
    seed: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs, and not both")
        if self.label_smoothing and not isinstance(self.loss, CrossEntropyConfig):
            raise ValueError(
                f"label_smoothing is that of cross_entropy: leave it out with {kind_of(self.loss)}"
            )
        if self.ema is not None and self.average:
            raise ValueError("ema and average both replace the final weights: give one of them")
        if self.average and self.select == "best":
            raise ValueError("average replaces the best weights: use select = 'last' with it")
