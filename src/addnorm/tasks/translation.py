"""Sequence to sequence: an encoder–decoder writes a text from a text, an image or a clip."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from addnorm.data import Corpus
from addnorm.data.batches.buckets import BatchingConfig, DenoisingConfig
from addnorm.data.example import has_signals
from addnorm.data.example_columns import source_texts, target_texts
from addnorm.data.examples import Captioned, Example, Pair, Transcribed
from addnorm.data.ids.compact import Compact, Encoded
from addnorm.data.ids.encoding import encoded_inputs, written_ids, written_rows
from addnorm.data.ids.framing import framed_rows, in_groups
from addnorm.data.ids.layout import SourceAndTarget
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.generate import TextDecoder, Transcription, Translation, transcribe, translate
from addnorm.metrics import scores as metrics
from addnorm.metrics.scores import (
    MARKS,
    MEASURES,
    error_rates,
    measured_by,
    rouge_scores,
    summary_scores,
)
from addnorm.models import EncoderDecoderModel, Model
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.hidden import Denoising
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task


class SequenceToSequence(Task):
    """`p(token | tokens before, source)`: translation, summaries, captions, transcripts."""

    name = "translation"
    model = "model.kind = 'encoder_decoder'"
    metrics = ("loss", "bleu", "chrf", "wer", "cer", "rouge1", "rouge2", "rougeL")
    call = "run.translate(texts)"
    endpoint = "/translate"
    page = "translate"
    target_unit = "tokens"
    examples = (Pair, Captioned, Transcribed)
    layout = SourceAndTarget()
    classes = True
    writes_text = True
    decodes = True
    written_metrics = ("bleu", "chrf", "exact", "wer", "cer", *MEASURES)

    def with_batching(self, batching: BatchingConfig) -> Task:
        """Return `Denoising` for an encoder–decoder that learns from corrupted texts."""
        return Denoising() if isinstance(batching, DenoisingConfig) else self

    def check_packages(self, corpus: Corpus, settings: EvalConfig) -> None:
        """Check that `jiwer` (transcripts) or `rouge-score` (summaries) is installed."""
        if has_signals(corpus.medium):
            metrics.transcription_scores(["a"], ["a"])
        if settings.text_metrics == "summary":
            rouge_scores(["a"], [["a"]])

    def encode(
        self, examples: Sequence[Any], tokenizers: Tokenizers | None, numbers: Mapping[str, int]
    ) -> Iterator[Encoded]:
        """Encode the source (text, image or sound) and the target, texts with their end token."""
        assert tokenizers is not None
        targets = written_ids(tokenizers.target, target_texts(examples))
        for read, ids in zip(_sources(examples, tokenizers), targets, strict=True):
            yield read.with_targets(ids)

    def encode_split(
        self, examples: Sequence[Any], tokenizers: Tokenizers | None, numbers: Mapping[str, int]
    ) -> Sequence[Encoded]:
        """Encode pairs of texts all at once, with the same result as `encode`."""
        ours = type(self).encode is SequenceToSequence.encode
        if not (ours and examples and isinstance(examples[0], Pair)):
            return super().encode_split(examples, tokenizers, numbers)
        assert tokenizers is not None
        read = framed_rows(self.name, tokenizers.source, source_texts(examples))
        return Compact(read, written_rows(tokenizers.target, target_texts(examples)))

    def measured_with(self, metric: str, settings: EvalConfig) -> str:
        """Return the package of the metric and its settings."""
        if metric in ("bleu", "chrf"):
            return f"sacrebleu {metrics.sacrebleu_signatures(settings.bleu_tokenize)[metric]}"
        if metric in MEASURES:
            how = "F1 on stems of lower-cased words, against the best reference"
            return measured_by("rouge-score", how)
        if metric.removeprefix("lead_") in MEASURES:
            how = "the source's first sentence, otherwise as the summaries"
            return measured_by("rouge-score", how)
        return f"whole texts; {MARKS}" if metric == "exact" else error_rates(metric)

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """Return the perplexity, and the scores of the texts written by the model."""
        assert isinstance(model, EncoderDecoderModel)
        predictions = _written(model, split, n_written)
        scores = written_scores(predictions, split.examples, split.settings)
        return Evaluation({"perplexity": metrics.perplexity(outputs.loss), **scores}, predictions)


def _sources(examples: Sequence[Example], tokenizers: Tokenizers) -> Iterator[Encoded]:
    """Yield the model's inputs: texts with only their end token, or images or clips."""
    if not examples or has_signals(examples[0].medium):
        return encoded_inputs(examples, None)
    ids = in_groups("translation", tokenizers.source, source_texts(examples))
    return (Encoded(i, row, []) for i, row in enumerate(ids))


def _written(model: EncoderDecoderModel, split: EvaluationSplit, n: int | None) -> dict[int, str]:
    """Return the texts that a model writes for the first `n` examples, by default for all."""
    assert split.tokenizers is not None
    chosen, decoding, target = split.encoded[:n], split.settings.decoding, split.tokenizers.target
    options: Any = {
        "eos_id": target.eos_ids,
        "text_decoder": TextDecoder(target),
        "batch_size": split.settings.batch_size,
    }
    if signals := [example.signal for example in chosen if example.signal is not None]:
        writer = Translation(model, target.bos_id, never=target.never_ids)
        medium = split.examples[0].medium
        hypotheses = transcribe(Transcription(writer, signals, medium), decoding, **options)
    else:
        sources = [example.tokens for example in chosen]
        hypotheses = translate(model, sources, decoding, bos_id=target.bos_id, **options)
    return {example.index: best[0].text for example, best in zip(chosen, hypotheses, strict=True)}


def written_scores(
    predictions: Mapping[int, str], examples: Sequence[Example], settings: EvalConfig
) -> dict[str, float]:
    """Return the scores of the written texts by example index; empty without texts.

    They are BLEU and chrF, and the error rates if the source is an image or a clip; for summaries
    ROUGE, and that of the source's first sentence. Raises `InputError` for summaries of sources
    without text, and for several references of a translation.
    """
    if not predictions:
        return {}
    chosen = [examples[i] for i in predictions]
    written = list(predictions.values())
    if settings.text_metrics == "summary":
        pairs = [example for example in chosen if isinstance(example, Pair)]
        if len(pairs) < len(chosen):
            raise InputError("eval.text_metrics = 'summary' needs sources that are texts")
        references = [(pair.target, *pair.other_targets) for pair in pairs]
        return summary_scores(written, references, [pair.source for pair in pairs])
    if any(isinstance(example, Pair) and example.other_targets for example in chosen):
        raise InputError(
            "BLEU and chrF are measured against one reference, and there are several: set "
            "eval.text_metrics = 'summary' for ROUGE against the best"
        )
    references = [example.target_text() for example in chosen]
    scores = metrics.translation_scores(written, references, settings.bleu_tokenize)
    if has_signals(chosen[0].medium):
        scores |= metrics.transcription_scores(written, references)
    return scores
