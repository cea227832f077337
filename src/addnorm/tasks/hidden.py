"""Tasks that hide parts of plain texts: masked language models and denoisers."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from addnorm.data import Corpus
from addnorm.data.batches.batch import Batch
from addnorm.data.batches.denoising import DenoisingConfig
from addnorm.data.batches.masked import MaskedConfig
from addnorm.data.examples import Text
from addnorm.data.ids.encoding import EncodedCorpus, encode_texts
from addnorm.data.ids.layout import NextToken
from addnorm.data.tokenizing.pieces import Advance
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.metrics import scores as metrics
from addnorm.models import Model
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task


class Hidden(Task):
    """A task that scores hidden tokens one by one, without writing text."""

    metrics = ("loss", "accuracy")
    target_unit = "tokens"
    examples = (Text,)
    layout = NextToken()
    plain_texts = True
    classes = True

    def encode_corpus(
        self,
        corpus: Corpus,
        tokenizers: Tokenizers | None,
        numbers: Mapping[str, int],
        advance: Advance,
    ) -> EncodedCorpus:
        """Encode the texts as for a language model; the batches hide parts of them."""
        assert tokenizers is not None
        return encode_texts(corpus, tokenizers, self.layout, advance)

    def correct(self, logits: Float[Tensor, "..."], batch: Batch) -> int:
        """The number of hidden tokens that the model predicts as most probable."""
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
    call = "run.fill(text)"
    endpoint = "/v1/embeddings"
    page = "masks"
    batching = MaskedConfig


class Denoising(Hidden):
    """A corrupted text restored by an encoder–decoder (Raffel et al. 2020; Lewis et al. 2020)."""

    name = "denoising"
    model = "train.batching.kind = 'denoising'"
    call = "run.generate(texts)"
    endpoint = "/translate"
    batching = DenoisingConfig
    writes_text = True
    decodes = True
