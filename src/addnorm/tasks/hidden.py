"""Plain texts of which parts are hidden: masked language models, and denoisers."""

from jaxtyping import Float
from torch import Tensor

from addnorm.data.batches.batch import Batch
from addnorm.metrics import scores as metrics
from addnorm.models import Model
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task


class Hidden(Task):
    """The hidden tokens are scored one by one; nothing is written."""

    metrics = ("loss", "accuracy")
    learns_from = "language"
    plain_texts = True

    def correct(self, logits: Float[Tensor, "..."], batch: Batch) -> int:
        """How many hidden tokens have the highest probability."""
        return int((logits.argmax(-1) == batch.targets).sum())

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """The perplexity and the accuracy of the hidden tokens."""
        n = outputs.n_targets
        return Evaluation(metrics.token_scores(outputs.total_loss, outputs.correct, n))


class MaskedLanguage(Hidden):
    """`p(hidden token | text with masks)` of an encoder (Devlin et al. 2019)."""

    name = "masked_language"
    model = "model.kind = 'encoder' with model.head.kind = 'token'"
    command = "addnorm fill"


class Denoising(Hidden):
    """A corrupted text restored by an encoder–decoder (Raffel et al. 2020; Lewis et al. 2020)."""

    name = "denoising"
    model = "train.batching.kind = 'denoising'"
    command = "addnorm generate"
