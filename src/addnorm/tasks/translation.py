"""Sequence to sequence: a text from a text, an image or a clip, by an encoder–decoder."""

from collections.abc import Mapping, Sequence
from typing import Any

from addnorm.data.examples import MEDIA, Example, Pair, target_text
from addnorm.errors import InputError
from addnorm.generate import TextDecoder, Transcription, Translation, transcribe, translate
from addnorm.metrics import scores as metrics
from addnorm.metrics.scores import summary_scores
from addnorm.models import EncoderDecoderModel, Model
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task


class SequenceToSequence(Task):
    """`p(token | tokens before, source)`: translation, summaries, captions, transcripts."""

    name = "translation"
    model = "model.kind = 'encoder_decoder'"
    metrics = ("loss", "bleu", "chrf", "wer", "cer", "rouge1", "rouge2", "rougeL")
    command = "addnorm generate"

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """The perplexity, and the scores of the texts that the model writes."""
        assert isinstance(model, EncoderDecoderModel)
        predictions = _written(model, split, n_written)
        found = written_scores(predictions, split.examples, split.settings)
        return Evaluation({"perplexity": metrics.perplexity(outputs.loss), **found}, predictions)


def _written(model: EncoderDecoderModel, split: EvaluationSplit, n: int | None) -> dict[int, str]:
    """The texts that a model writes for the first `n` examples, by default for all."""
    assert split.tokenizers is not None
    chosen, decoding, target = split.encoded[:n], split.settings.decoding, split.tokenizers.target
    options: Any = {
        "eos_id": target.eos_ids,
        "text_decoder": TextDecoder(target),
        "batch_size": split.settings.batch_size,
    }
    if signals := [example.signal for example in chosen if example.signal is not None]:
        writer = Translation(model, target.bos_id, never=target.never_ids)
        medium = MEDIA[type(split.examples[0])]
        hypotheses = transcribe(Transcription(writer, signals, medium), decoding, **options)
    else:
        sources = [example.tokens for example in chosen]
        hypotheses = translate(model, sources, decoding, bos_id=target.bos_id, **options)
    return {example.index: best[0].text for example, best in zip(chosen, hypotheses, strict=True)}


def written_scores(
    predictions: Mapping[int, str], examples: Sequence[Example], settings: EvalConfig
) -> dict[str, float]:
    """The scores of texts by the index of their example; none without texts.

    BLEU and chrF, and the error rates where the source is an image or a sound; for summaries ROUGE
    beside that of the source's first sentence. Raises `InputError` for summaries of what has no
    text, and for several references of a translation.
    """
    if not predictions:
        return {}
    some = [examples[i] for i in predictions]
    written = list(predictions.values())
    if settings.text_metrics == "summary":
        pairs = [one for one in some if isinstance(one, Pair)]
        if len(pairs) < len(some):
            raise InputError("eval.text_metrics = 'summary' needs sources that are texts")
        references = [(pair.target, *pair.other_targets) for pair in pairs]
        return summary_scores(written, references, [pair.source for pair in pairs])
    if any(isinstance(one, Pair) and one.other_targets for one in some):
        raise InputError(
            "BLEU and chrF are measured against one reference, and there are several: set "
            "eval.text_metrics = 'summary' for ROUGE against the best"
        )
    references = [target_text(one) for one in some]
    scores = metrics.translation_scores(written, references, settings.bleu_tokenize)
    if type(some[0]) in MEDIA:
        scores |= metrics.transcription_scores(written, references)
    return scores
