"""EvalConfig: the `[eval]` table of a recipe."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from addnorm.config import config
from addnorm.generate import BeamConfig, DecodingConfig

MetricName = Literal["loss", "bleu", "chrf", "accuracy", "f1"]


@config
class EvalConfig:
    """How a model is judged.

    `metric` picks the best weights and decides on early stopping; by default it is `accuracy` for
    classification, `f1` for tagging and `loss` otherwise. BLEU is sacrebleu's, with its tokeniser
    `bleu_tokenize` ("none" where the text is tokenised already). `valid_examples` is how many
    validation sentences are translated while training, for BLEU; 0 leaves BLEU out there.
    """

    metric: MetricName | None = None
    decoding: DecodingConfig = BeamConfig()
    bleu_tokenize: Literal["13a", "intl", "zh", "char", "none"] = "13a"
    valid_examples: NonNegativeInt = 0
    batch_size: PositiveInt = 64
