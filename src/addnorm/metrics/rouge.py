"""ROUGE: how much of a reference summary's wording a summary has, beside the lead sentence."""

import re
from collections.abc import Sequence
from typing import Any

from addnorm.errors import InputError, optional

MEASURES = ("rouge1", "rouge2", "rougeL")
"""Common words, common pairs of words, and the longest common subsequence of words."""

END = re.compile(r"(?<=[.!?])\s+")
"""White space after a mark that ends a sentence."""

WORD = re.compile("[a-z0-9]")
"""What the package takes for parts of words."""


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
    if references and not any(WORD.search(one.lower()) for some in references for one in some):
        raise InputError(
            f"ROUGE counts words of the letters a to z, and no reference has one, such as "
            f"{references[0][0][:60]!r}: it would be 0 whatever is written"
        )
    scorer = _scorer()
    rows = [
        scorer.score_multi(list(some), one) for some, one in zip(references, summaries, strict=True)
    ]
    return {
        name: 100 * sum(row[name].fmeasure for row in rows) / max(len(rows), 1) for name in MEASURES
    }


def summary_scores(
    summaries: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str]
) -> dict[str, float]:
    """ROUGE of the summaries, and as `lead_…` that of each source's first sentence."""
    leads = rouge_scores([lead(source) for source in sources], references)
    return rouge_scores(summaries, references) | {f"lead_{k}": v for k, v in leads.items()}


def lead(text: str) -> str:
    """The first sentence of a text: up to the first `.`, `!` or `?` before white space."""
    return END.split(text.strip(), maxsplit=1)[0]


def _scorer() -> Any:
    library = optional("rouge_score.rouge_scorer", "summaries", "ROUGE")
    return library.RougeScorer(list(MEASURES), use_stemmer=True)
