"""Transcription without a decoder: a text from the frames of a sound or an image (CTC)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from addnorm.data import Corpus
from addnorm.data.batches.batch import Batch
from addnorm.data.examples import Captioned, Transcribed
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import encoded_inputs
from addnorm.data.ids.layout import Aligned
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.generate import Generated
from addnorm.metrics import scores as metrics
from addnorm.metrics.scores import MARKS, error_rates
from addnorm.models import Model
from addnorm.nn.ctc import BLANK, CTCHead
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task, Valid


class FrameTranscription(Task):
    """`p(text | frames)`, summed over all alignments (Graves et al. 2006).

    A text is read off the likeliest symbol of each frame: of equal neighbours one, without blanks
    (best path decoding, §3.2).
    """

    name = "transcription"
    model = "model.kind = 'encoder' with model.head.kind = 'ctc'"
    metrics = ("wer", "cer", "loss")
    call = "run.transcribe(files)"
    target_unit = "tokens"
    examples = (Transcribed, Captioned)
    layout = Aligned()
    writes_text = True

    def check_packages(self, corpus: Corpus, settings: EvalConfig) -> None:
        """Check that `jiwer`, which counts errors, is installed."""
        metrics.transcription_scores(["a"], ["a"])

    def encode(
        self, examples: Sequence[Any], tokenizers: Tokenizers | None, numbers: Mapping[str, int]
    ) -> Iterator[Encoded]:
        """Encode the sound or image, and the tokens of its text without special ones."""
        assert tokenizers is not None
        targets = tokenizers.target.encode_batch([example.target_text() for example in examples])
        for inputs, ids in zip(encoded_inputs(examples, None), targets, strict=True):
            yield replace(inputs, targets=ids)

    def measured_with(self, metric: str, settings: EvalConfig) -> str:
        """How errors are counted."""
        return f"whole texts; {MARKS}" if metric == "exact" else error_rates(metric)

    def answers(
        self,
        head: nn.Module,
        logits: Float[Tensor, "batch frames vocab"],
        batch: Batch,
        valid: Valid,
    ) -> Mapping[int, tuple[list[int], float]]:
        """The tokens and the log-probability of each example's best path."""
        blank = head.blank if isinstance(head, CTCHead) else BLANK
        best = logits.log_softmax(-1).max(-1)
        paths, log_p = best.indices, best.values
        if valid is not None:
            paths, log_p = paths.masked_fill(~valid, blank), log_p.masked_fill(~valid, 0.0)
        scores = log_p.sum(1).tolist()
        tokens = [[i for i, _ in groupby(path) if i != blank] for path in paths.tolist()]
        return dict(zip(batch.indices, zip(tokens, scores, strict=True), strict=True))

    def result(
        self,
        answer: tuple[list[int], float],
        example: Any,
        tokenizers: Tokenizers | None,
        labels: Sequence[str],
    ) -> Generated:
        """The text, scored by the log-probability of its best path."""
        assert tokenizers is not None
        tokens, score = answer
        text = tokenizers.target.decode(tokens)
        return Generated(text=text, score=score, finished="eos", ids=tuple(tokens))

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """The rates of wrong words and characters, and the share of texts without an error."""
        texts = {
            i: self.result(answer, split.examples[i], split.tokenizers, ()).text
            for i, answer in outputs.answers.items()
        }
        references = [split.examples[i].target_text() for i in texts]
        return Evaluation(metrics.transcription_scores([*texts.values()], references), texts)
