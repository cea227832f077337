"""Scores of what a model writes beside the references: translations, transcripts, summaries."""

from collections.abc import Mapping, Sequence

from addnorm.data.examples import MEDIA, Example, Pair, target_text
from addnorm.errors import InputError
from addnorm.runs.metrics import transcription_scores, translation_scores
from addnorm.runs.rouge import summary_scores
from addnorm.runs.settings import EvalConfig


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
    scores = translation_scores(written, references, settings.bleu_tokenize)
    if type(some[0]) in MEDIA:
        scores |= transcription_scores(written, references)
    return scores
