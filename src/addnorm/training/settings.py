"""TrainConfig: the `[train]` table of a recipe."""

from math import ceil
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from addnorm.arguments import LARGEST, problem_of_number
from addnorm.config import Probability, config
from addnorm.data.batches.buckets import BatchingConfig, TokensConfig
from addnorm.data.batches.images import ExamplesConfig, mixes
from addnorm.parts import kind_of
from addnorm.training.activation_checkpointing import Checkpointed
from addnorm.training.adapters import AdapterConfig
from addnorm.training.distillation import DistillationConfig
from addnorm.training.loggers import LoggerConfig, LoggerConfigs, TensorBoardConfig
from addnorm.training.loss import CrossEntropyConfig, LossConfig
from addnorm.training.optim import AdamWConfig, MaxNormConfig, MuonConfig, OptimizerConfig
from addnorm.training.precision import PrecisionName
from addnorm.training.schedule import LinearConfig, ScheduleConfig


@config
class TrainConfig:
    """How long to train, in which batches, by which optimiser, and which weights stay."""

    start: Path | None = None
    """A run folder or a Hugging Face folder whose weights training begins with."""
    adapter: AdapterConfig | None = None
    """Learn a low-rank change of the matrices of `start` alone: `lora` or `dora`."""
    distillation: DistillationConfig | None = None
    """Learn the outputs of a teacher, and the labels."""
    steps: PositiveInt | None = None
    """Updates of the weights to make; give either this or `epochs`."""
    epochs: PositiveInt | None = None
    """Passes over the training data to make; give either this or `steps`."""
    batching: BatchingConfig = TokensConfig()
    """How examples are put into batches."""
    lr: PositiveFloat = 1e-3
    """The peak learning rate, which the schedule multiplies by a factor from 0 to 1."""
    optimizer: OptimizerConfig = AdamWConfig()
    """The rule by which gradients change the weights."""
    schedule: ScheduleConfig = LinearConfig()
    """How the learning rate rises and falls over the steps."""
    schedule_steps: PositiveInt | None = None
    """Steps over which the schedule runs, after which its last rate stays; by default all. A run
    that is made longer keeps the end of its schedule by the number of steps that it had.
    """
    loss: LossConfig = CrossEntropyConfig()
    """The objective of training; validation reports the cross-entropy whatever this is."""
    label_smoothing: Probability = 0.0
    """The probability mass taken from the right token and spread over all (Szegedy et al. 2016,
    §7).
    """
    logit_adjustment: NonNegativeFloat = 0.0
    """How much of a class's rarity is taken from its logits while learning, so that rare classes
    are found more often: 0 for none, 1 for the least mean error over classes (Menon et al. 2021).
    """
    r_drop: NonNegativeFloat = 0.0
    """How strongly two passes over each batch, with other dropout, learn to agree (α of Liang et
    al. 2021): 0 for one pass; otherwise a step costs about twice as much.
    """
    clip: PositiveFloat | None = 1.0
    """The largest global norm of the gradient: a larger one is scaled down (Pascanu et al.
    2013).
    """
    constraint: MaxNormConfig | None = None
    """A bound on the weights, applied after each step: `max_norm` for the rows of a matrix."""
    accumulate: PositiveInt = 1
    """Batches whose gradients make up one step."""
    precision: PrecisionName = "float32"
    """The type in which products run; weights and optimiser stay in float32. `auto` takes bfloat16
    where the processor or GPU multiplies it, else float32.
    """
    ema: Probability | None = None
    """The decay, per step, of a moving average of the weights that the run ends with."""
    average: NonNegativeInt = 0
    """End with the mean of that many last checkpoints; 0 for the last weights."""
    validate_every: PositiveInt | None = None
    """Steps between validations; by default one at the end of each epoch."""
    save_every: PositiveInt | None = None
    """Steps between checkpoints; by default one at the end of each epoch."""
    keep: PositiveInt = 3
    """How many of the newest checkpoints stay on disk."""
    patience: PositiveInt | None = None
    """Stop after that many validations without a better `eval.metric`."""
    select: Literal["last", "best"] = "last"
    """Which weights the run ends with: the last ones, or those of the best validation."""
    activation_checkpointing: Checkpointed = "none"
    """Save memory by activation checkpointing: `block` keeps each block's input alone and computes
    the rest again in the backward pass, a third slower (Chen et al. 2016, §4).
    """
    compile: bool = False
    """Train through `torch.compile`: a slow start, then faster steps."""
    seed: int = 1
    """The seed of the first weights, the order of examples and dropout."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto` takes a GPU where there is one."""
    logger: LoggerConfigs = ()
    """Who gets the figures besides `metrics.jsonl`: `tensorboard`, `wandb` or `mlflow`, a custom
    logger or callback, or a list of them. Names and steps are the same in all, also when the run is
    resumed.
    """
    tensorboard: bool = False
    """The earlier form of `logger = "tensorboard"`."""

    @property
    def loggers(self) -> tuple[LoggerConfig, ...]:
        """The loggers, with TensorBoard if `tensorboard` is set."""
        has_board = any(isinstance(logger, TensorBoardConfig) for logger in self.logger)
        return self.logger + ((TensorBoardConfig(),) if self.tensorboard and not has_board else ())

    @property
    def has_tokens(self) -> bool:
        """Whether a tokenizer comes from the model that training starts or learns from."""
        return self.start is not None or self.distillation is not None

    def steps_per_epoch(self, n_batches: int) -> int:
        """The number of updates in an epoch of `n_batches`; the last may have fewer batches."""
        return ceil(n_batches / self.accumulate)

    def total_steps(self, n_batches: int) -> int:
        """The number of updates of a whole training with this many batches per epoch."""
        return self.steps or (self.epochs or 0) * self.steps_per_epoch(n_batches)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and abs(value) >= LARGEST:
                raise ValueError(f"{name} = {value}: {problem_of_number(value)}")
        which = ", and not both" if self.steps else ": there is neither"
        kinds = [kind_of(logger) for logger in self.logger]
        repeated = next((kind for kind in kinds if kinds.count(kind) > 1), None)
        other = None if isinstance(self.loss, CrossEntropyConfig) else kind_of(self.loss)
        rules = (
            (
                (self.steps is None) == (self.epochs is None),
                f"give either steps or epochs{which}",
            ),
            (
                other and self.distillation is not None,
                f"distillation goes with cross_entropy: leave it out with {other}",
            ),
            (
                self.adapter is not None and self.start is None,
                "adapter changes the weights of a model that is there: give start, its folder",
            ),
            (
                self.adapter is not None and isinstance(self.optimizer, MuonConfig),
                "muon is for whole matrices: use the optimizer adamw with adapter",
            ),
            (
                other and self.label_smoothing,
                f"label_smoothing is that of cross_entropy: leave it out with {other}",
            ),
            (
                self.logit_adjustment and (other or self.distillation is not None),
                f"logit_adjustment is that of cross_entropy: leave it out with "
                f"{other or 'distillation'}",
            ),
            (
                self.r_drop and (other or self.distillation is not None),
                f"r_drop goes with cross_entropy: leave it out with {other or 'distillation'}",
            ),
            (
                other
                and isinstance(self.batching, ExamplesConfig)
                and mixes(self.batching.augment),
                "mixup and cutmix give probabilities of classes, which cross_entropy takes: leave "
                f"them out with {other}",
            ),
            (
                self.ema is not None and self.average,
                "ema and average both replace the final weights: give one of them",
            ),
            (
                self.distillation is not None
                and self.distillation.compares_layers
                and (self.compile or self.activation_checkpointing != "none"),
                "distillation of hidden states and attention watches the layers as they run: leave "
                "compile and activation_checkpointing out",
            ),
            (
                self.start is not None
                and self.distillation is not None
                and self.distillation.start == "teacher",
                'start and distillation.start = "teacher" both say what training begins with: give '
                "one of them",
            ),
            (repeated, f"logger has {repeated} twice: give each logger once"),
            (
                self.average and self.select == "best",
                "average replaces the best weights: use select = 'last' with it",
            ),
        )
        for wrong, message in rules:
            if wrong:
                raise ValueError(message)
