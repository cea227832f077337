"""EvalConfig: the `[eval]` table of a recipe."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, DecodingConfig

MetricName = Literal[
    "loss",
    "bleu",
    "chrf",
    "wer",
    "cer",
    "rouge1",
    "rouge2",
    "rougeL",
    "accuracy",
    "f1",
    "surface_f1",
    "f1_micro",
    "f1_macro",
    "exact",
    "mse",
    "mae",
    "r2",
    "pearson",
    "spearman",
]

TEXT_METRICS: dict[str, tuple[MetricName, ...]] = {
    "translation": ("bleu", "chrf", "wer", "cer"),
    "summary": ("rouge1", "rouge2", "rougeL"),
}
"""The metrics of generated text, by its kind."""

WRITTEN = tuple(name for names in TEXT_METRICS.values() for name in names)
"""All metrics of generated text."""

WRITING = ("decoding", "text_metrics", "bleu_tokenize", "valid_examples")
"""The settings of `EvalConfig` about generated text."""

LOWER_IS_BETTER: tuple[MetricName, ...] = ("loss", "mse", "mae", "wer", "cer")
"""For all other metrics, higher is better."""


@config
class EvalConfig:
    """How a model is evaluated."""

    metric: MetricName | str | None = None
    """The metric that selects the best weights and stops training early; by default accuracy for
    classification, F1 for tagging, micro F1 for several labels, MSE for numbers and forecasts, loss
    otherwise.
    """
    decoding: DecodingConfig = BeamConfig()
    """How text is written from the model's probabilities."""
    text_metrics: Literal["translation", "summary"] = "translation"
    """The metrics of generated text: BLEU and chrF for translations; ROUGE for summaries, together
    with that of the source's first sentence.
    """
    bleu_tokenize: Literal["13a", "intl", "zh", "char", "none"] = "13a"
    """The tokeniser of sacrebleu's BLEU; `none` where the text is tokenised already."""
    valid_examples: NonNegativeInt = 0
    """How many validation examples are translated or transcribed while training, for BLEU and chrF
    or the error rates; 0 for none.
    """
    batch_size: PositiveInt = 64
    """Texts that are decoded at once."""

    def check_written(self) -> None:
        """Raise `InputError` unless texts are written and the chosen metric measures them.

        For a task whose models write as `decoding` says.
        """
        measures = TEXT_METRICS[self.text_metrics]
        if self.metric not in WRITTEN:
            return
        if self.metric not in measures:
            raise InputError(
                f"eval.metric = {self.metric!r} is not measured with text_metrics = "
                f"{self.text_metrics!r}: that has {', '.join(measures)}"
            )
        if not self.valid_examples:
            raise InputError(
                f"eval.metric = {self.metric!r} needs eval.valid_examples, the number of "
                "validation examples to translate or transcribe"
            )
