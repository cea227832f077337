"""The metrics of each task: predictions and references in, numbers and their settings out."""

import math
import re
import sys
from collections.abc import Callable, Collection, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from addnorm.errors import InputError, optional


def perplexity(loss: float) -> float:
    """`exp(loss)` for a loss in nats per token."""
    return math.exp(min(loss, 700.0))


def token_scores(total_loss: float, n_right: int, n_tokens: int) -> dict[str, float]:
    """The perplexity, and the percentage of tokens that the model predicts as most probable."""
    n = max(n_tokens, 1)
    return {"perplexity": perplexity(total_loss / n), "accuracy": 100 * n_right / n}


def bits_per_character(total_loss: float, n_characters: int) -> float:
    """The total loss of a text in bits, divided by its number of characters."""
    return total_loss / math.log(2) / max(n_characters, 1)


def recalls(
    similarity: Float[Tensor, "queries candidates"],
    right: Bool[Tensor, "queries candidates"],
    best: Sequence[int],
) -> list[float]:
    """How often a right candidate is among the `k` most similar, in percent, for each `k`.

    A wrong candidate that is as similar as the best right one stands before it.
    """
    limit = similarity.masked_fill(~right, -math.inf).amax(1, keepdim=True)
    before = ((similarity >= limit) & ~right).sum(1)
    return [100 * float((before < k).double().mean()) for k in best]


TOKENISED = 100
"""The number of texts ending in " .", as tokenised texts do, from which sacrebleu warns too."""


@cache
def _warn_of_tokens() -> None:
    """Warn once that texts look tokenised; sacrebleu would warn at each evaluation."""
    print(
        'warning: many texts end in " .", as tokenised ones do: eval.bleu_tokenize = "none" counts '
        "their words as they are",
        file=sys.stderr,
    )


def translation_scores(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str
) -> dict[str, float]:
    """Corpus BLEU (Papineni et al. 2002) and chrF2 (Popović 2015) by sacrebleu, both 0 to 100.

    `exact` is the percentage of hypotheses that equal their reference.
    """
    if tokenize != "none" and sum(text.endswith(" .") for text in hypotheses) >= TOKENISED:
        _warn_of_tokens()
    sides = list(hypotheses), [list(references)]
    bleu, chrf = (metric.corpus_score(*sides) for metric in _sacrebleu(tokenize).values())
    same = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return {"bleu": bleu.score, "chrf": chrf.score, "exact": 100 * same / max(len(references), 1)}


def sacrebleu_signatures(tokenize: str) -> dict[str, str]:
    """Return sacrebleu's signatures of how BLEU and chrF are measured (Post 2018)."""
    signatures: dict[str, str] = {}
    for name, metric in _sacrebleu(tokenize).items():
        metric.num_refs = 1  # known to it only after scoring
        signatures[name] = metric.get_signature().format()
    return signatures


def _sacrebleu(tokenize: str) -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF  # pyright: ignore[reportPrivateImportUsage]

    return {"bleu": BLEU(tokenize=tokenize, force=True), "chrf": CHRF()}


def transcription_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Word and character error rates by jiwer, in percent; insertions can bring them above 100.

    Insertions, deletions and substitutions of the whole corpus, divided by the words (or
    characters) of its references (Morris et al. 2004). Raises `InputError` without jiwer.
    """
    jiwer = optional("jiwer", "audio", "an error rate")
    sides = list(references), list(hypotheses)
    return {"wer": 100 * float(jiwer.wer(*sides)), "cer": 100 * float(jiwer.cer(*sides))}


def accuracy(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """The percentage of correct predictions."""
    right = sum(p == g for p, g in zip(predicted, gold, strict=True))
    return 100 * right / max(len(gold), 1)


def macro_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """The mean over the classes in `gold` of `2 TP / (2 TP + FP + FN)`, in percent."""
    pairs = list(zip(predicted, gold, strict=True))
    scores: list[float] = []
    for label in sorted(set(gold)):
        hits = sum(p == g == label for p, g in pairs)
        wrong = sum((p == label) != (g == label) for p, g in pairs)
        scores.append(2 * hits / (2 * hits + wrong))
    return 100 * sum(scores) / max(len(scores), 1)


def label_scores(
    predicted: Sequence[Collection[str]], gold: Sequence[Collection[str]], labels: Sequence[str]
) -> dict[str, float]:
    """Multi-label micro F1, macro F1 over the labels that occur, and exact match, in percent.

    `exact` is the percentage of texts with exactly the right labels. A label that is neither
    predicted nor gold is left out; if there is no label at all, F1 is 100.
    """
    pairs = list(zip(predicted, gold, strict=True))
    counts = [
        (
            sum(label in p and label in g for p, g in pairs),
            sum((label in p) != (label in g) for p, g in pairs),
        )
        for label in labels
    ]
    hits, wrong = (sum(side) for side in zip(*counts, strict=True))
    each = [2 * hit / (2 * hit + miss) for hit, miss in counts if hit + miss]
    return {
        "f1_micro": 200 * hits / (2 * hits + wrong) if hits + wrong else 100.0,
        "f1_macro": 100 * sum(each) / len(each) if each else 100.0,
        "exact": 100 * sum(set(p) == set(g) for p, g in pairs) / max(len(pairs), 1),
    }


def number_scores(
    predicted: Sequence[Sequence[float]], gold: Sequence[Sequence[float]]
) -> dict[str, float]:
    """The mean squared error, R², and the Pearson and Spearman correlations (from -1 to 1).

    `R² = 1 - Σ (y - ŷ)² / Σ (y - ȳ)²`. With several numbers per text, R² and correlations are
    averaged over them. R² of constant numbers counts as 0, and so does a correlation.
    """
    ours, theirs = (torch.tensor(side, dtype=torch.float64) for side in (predicted, gold))
    return {
        "mse": float((ours - theirs).square().mean()),
        "r2": _r_squared(ours, theirs),
        "pearson": _correlation(ours, theirs),
        "spearman": _correlation(_ranks(ours), _ranks(theirs)),
    }


def squared_errors(
    predicted: Sequence[Sequence[float]], gold: Sequence[Sequence[float]]
) -> list[float]:
    """The squared error of each text, the mean over its numbers."""
    ours, theirs = torch.tensor(predicted).double(), torch.tensor(gold).double()
    return (ours - theirs).square().mean(-1).tolist()


def _r_squared(predicted: Float[Tensor, "n outputs"], gold: Float[Tensor, "n outputs"]) -> float:
    spread = (gold - gold.mean(0)).square().sum(0)
    wrong = (predicted - gold).square().sum(0)
    return float(torch.where(_changes(gold), 1 - wrong / spread, 0.0).mean())


def _correlation(x: Float[Tensor, "n outputs"], y: Float[Tensor, "n outputs"]) -> float:
    vary = _changes(x) & _changes(y)
    x, y = (side - side.mean(0) for side in (x, y))
    size = (x.square().sum(0) * y.square().sum(0)).sqrt()
    return float(torch.where(vary, (x * y).sum(0) / size, 0.0).mean())


def _changes(x: Float[Tensor, "n outputs"]) -> Bool[Tensor, " outputs"]:
    """Whether each column varies: even a constant column has a spread around its rounded mean."""
    return x.amin(0) < x.amax(0)


def _ranks(x: Float[Tensor, "n outputs"]) -> Float[Tensor, "n outputs"]:
    """The rank of each number in its column; ties get their mean rank."""
    ordered = x.sort(0).values.mT.contiguous()
    columns = x.mT.contiguous()
    first = torch.searchsorted(ordered, columns)
    last = torch.searchsorted(ordered, columns, right=True)
    return (first + last).mT.double() / 2


def entity_scores(
    predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Precision, recall and F1 over entities (type and span correct), in percent.

    Computed by seqeval, equivalent to conlleval. Raises `InputError` if seqeval is not installed.
    """
    labeling = _sequence_labeling()
    # Its annotations are wrong: scores are lists only without an average.
    score: Callable[..., tuple[float, ...]] = labeling.precision_recall_fscore_support
    sides = ([list(tags) for tags in gold], [list(tags) for tags in predicted])
    precision, recall, f1, *_ = score(*sides, average="micro", zero_division=0)
    return {
        "f1": 100 * float(f1),
        "precision": 100 * float(precision),
        "recall": 100 * float(recall),
    }


def surface_scores(
    predicted: Sequence[Sequence[str]],
    gold: Sequence[Sequence[str]],
    words: Sequence[Sequence[str]],
) -> dict[str, float]:
    """Precision, recall and F1 over the unique surface forms of entities, in percent.

    A surface form is a type with the words of an entity, and counts once however often it occurs
    (Derczynski et al. 2017, §4): with the sets `P` and `G` of predicted and true forms, precision
    is `|P ∩ G| / |P|`, recall `|P ∩ G| / |G|`. Case counts. Raises `InputError` if seqeval, which
    finds the entities, is not installed.
    """
    ours, theirs = surface_forms(predicted, words), surface_forms(gold, words)
    common = len(ours & theirs)
    return {
        "surface_f1": 200 * common / max(len(ours) + len(theirs), 1),
        "surface_precision": 100 * common / max(len(ours), 1),
        "surface_recall": 100 * common / max(len(theirs), 1),
    }


def surface_forms(
    tags: Sequence[Sequence[str]], words: Sequence[Sequence[str]]
) -> set[tuple[str, tuple[str, ...]]]:
    """The type and the words of every entity, each once."""
    entities: Callable[[list[str]], list[tuple[str, int, int]]] = _sequence_labeling().get_entities
    return {
        (kind, tuple(sentence[first : last + 1]))
        for row, sentence in zip(tags, words, strict=True)
        for kind, first, last in entities(list(row))
    }


def _sequence_labeling() -> Any:
    return optional("seqeval.metrics.sequence_labeling", "tagging", "the F1 of tags")


MEASURES = ("rouge1", "rouge2", "rougeL")
"""Common words, common pairs of words, and the longest common subsequence of words."""

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
"""White space after a mark that ends a sentence."""

WORD = re.compile("[a-z0-9]")
"""The letters and digits of which the package forms words."""


def rouge_scores(summaries: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """The mean F1 of each measure, 0 to 100, against the best reference of each summary.

    Lin 2004, §2 to §3: `F1 = 2 PR / (P + R)` of the n-grams in common (`n` = 1, 2), and of their
    longest common subsequence. By the package rouge-score, on stems of lower-cased words; the best
    reference is that of the largest F1, for each measure by itself. Its words are of the letters a
    to z and of digits alone. Raises `InputError` if the package is not installed, and where no
    reference has such a word; and `ValueError` if a summary has no reference.
    """
    if not all(references):
        raise ValueError("each summary needs a reference")
    texts = [text for by_summary in references for text in by_summary]
    if texts and not any(WORD.search(text.lower()) for text in texts):
        raise InputError(
            f"ROUGE counts words of the letters a to z, and no reference has one, such as "
            f"{references[0][0][:60]!r}: it would always be 0"
        )
    library = optional("rouge_score.rouge_scorer", "summaries", "ROUGE")
    scorer = library.RougeScorer(list(MEASURES), use_stemmer=True)
    rows = [
        scorer.score_multi(list(by_summary), summary)
        for by_summary, summary in zip(references, summaries, strict=True)
    ]
    return {
        name: 100 * sum(row[name].fmeasure for row in rows) / max(len(rows), 1) for name in MEASURES
    }


def summary_scores(
    summaries: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str]
) -> dict[str, float]:
    """Return the summaries' ROUGE and, as `lead_…`, that of the sources' first sentences."""
    leads = rouge_scores([lead(source) for source in sources], references)
    return rouge_scores(summaries, references) | {f"lead_{k}": v for k, v in leads.items()}


def lead(text: str) -> str:
    """The first sentence of a text: up to the first `.`, `!` or `?` before white space."""
    return SENTENCE_END.split(text.strip(), maxsplit=1)[0]


MARKS = "case and punctuation count"


@cache
def measured_by(package: str, how: str) -> str:
    """A line that begins with a package and, if it is installed, its version."""
    try:
        return f"{package} {version(package)}: {how}"
    except PackageNotFoundError:
        return f"{package}: {how}"


def error_rates(metric: str) -> str:
    """How word and character error rates are measured; empty for other metrics."""
    units = {"wer": "words between white space", "cer": "characters"}
    return measured_by("jiwer", f"{units[metric]}; {MARKS}") if metric in units else ""
