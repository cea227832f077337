"""The summary of a study: each variant compared with the first, with intervals and a verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from addnorm.lab.statistics import (
    Difference,
    Interval,
    bootstrap_interval,
    differences,
    mean_interval,
    percentage_interval,
)
from addnorm.lab.studies.cell import Figures
from addnorm.lab.studies.study import Study

BLEU_SAMPLES = 1000
"""The number of samples of sentences that sacrebleu draws."""

COUNTING = ("accuracy", "exact")
"""The metrics that are the percentage of right examples."""

PERCENTAGES = (
    *COUNTING,
    *("f1", "surface_f1", "f1_micro", "f1_macro", "recall_1", "recall_5", "recall_10"),
    *("bleu", "chrf", "rouge1", "rouge2", "rougeL"),
)
"""The metrics between 0 and 100."""

BySeed = Mapping[int, Figures]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A variant with its figures, and its difference to the first.

    `values` are the scores of its seeds; `diverged` is the number of seeds that met NaN or an
    infinite number, `missing` of those that are not finished or were dropped. `examples` is the
    difference by bootstrap over test examples, the mean over seeds; `bleu_p` the p-value of
    sacrebleu's paired bootstrap, of the first seed. `parameters`, `tokens` and `seconds` are those
    of finished seeds, or, without any, of all that were trained.
    """

    name: str
    values: Mapping[int, float]
    mean: Interval | None
    difference: Difference | None
    examples: Interval | None
    bleu_p: float | None
    diverged: int
    missing: int
    parameters: int
    tokens: int
    seconds: float
    refused: str = ""
    dropped: str = ""
    adjusted: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A row for each variant, and the splits on which they were measured, normally one."""

    rows: Sequence[Row]
    metric: str
    lower_is_better: bool
    splits: Sequence[str]
    n_seeds: int

    def better(self, row: Row) -> bool | None:
        """Return whether a variant is better than the first; None if undecided."""
        verdict = row.difference.verdict if row.difference is not None else "undecided"
        if verdict not in ("higher", "lower"):
            return None
        return (verdict == "lower") == self.lower_is_better


def summarise(study: Study, dropped: Mapping[int, str] | None = None) -> Summary:
    """Compare all variants with the first, over the seeds that both have finished."""
    figures, trained = study.figures(), study.trained()
    scores = {
        i: {s: f.scores[study.metric] for s, f in seeds.items() if study.metric in f.scores}
        for i, seeds in figures.items()
    }
    compared = [i for i in scores if i and len(scores[i].keys() & scores[0].keys()) > 0]
    pairs = [paired(scores[i], scores[0]) for i in compared]
    others = len([i for i in dropped or {} if i not in compared])  # they were tested as well
    tests = differences(
        pairs,
        resolution=resolution_of(study.metric, figures),
        others=others,
        largest=100.0 if study.metric in PERCENTAGES else math.inf,
    )
    tested = dict(zip(compared, tests, strict=True))
    rows = [
        _row(
            study,
            i,
            scores[i],
            figures[i],
            trained[i],
            figures[0],
            tested.get(i),
            (dropped or {}).get(i, ""),
        )
        for i in figures
    ]
    splits = {f.split for seeds in figures.values() for f in seeds.values() if f.scores}
    return Summary(
        rows=rows,
        metric=study.metric,
        lower_is_better=study.lower_is_better,
        splits=sorted(splits),
        n_seeds=len(study.settings.seeds),
    )


def resolution_of(metric: str, figures: Mapping[int, BySeed]) -> float:
    """The smallest step of a score that counts examples; 0 for other scores."""
    counts = [
        len(f.values[metric])
        for seeds in figures.values()
        for f in seeds.values()
        if metric in COUNTING and len(f.values.get(metric, ()))
    ]
    return 100 / min(counts) if counts else 0.0


def paired(
    ours: Mapping[int, float], first: Mapping[int, float]
) -> tuple[list[float], list[float]]:
    """The scores of the seeds that two variants share."""
    common = [seed for seed in first if seed in ours]
    return [ours[seed] for seed in common], [first[seed] for seed in common]


def _row(
    study: Study,
    index: int,
    scores: Mapping[int, float],
    figures: BySeed,
    trained: Sequence[Figures],
    first: BySeed,
    difference: Difference | None,
    dropped: str,
) -> Row:
    variant = study.variants[index]
    ended = [cell for cell in trained if cell.state == "finished"] or trained
    expected = 0 if variant.recipe is None else len(study.settings.seeds)
    common = sorted(scores.keys() & {s for s, f in first.items() if f.scores})
    compared = bool(index and common)
    return Row(
        name=variant.name,
        values=dict(sorted(scores.items())),
        mean=_mean(study.metric, list(scores.values())) if scores else None,
        difference=difference,
        examples=_over_examples(study.metric, figures, first, common) if compared else None,
        bleu_p=_bleu_p(figures[common[0]], first[common[0]], _bleu_tokens(study))
        if compared and study.metric == "bleu"
        else None,
        diverged=sum(f.state == "diverged" for f in figures.values()),
        missing=expected - len(figures),
        parameters=ended[0].parameters if ended else 0,
        tokens=ended[0].tokens if ended else 0,
        seconds=median(cell.seconds for cell in ended) if ended else 0.0,
        refused=variant.refused,
        dropped=dropped,
        adjusted=variant.adjusted,
    )


def _mean(metric: str, scores: Sequence[float]) -> Interval:
    of_mean = percentage_interval if metric in PERCENTAGES else mean_interval
    return of_mean(scores)


def _over_examples(
    metric: str, ours: BySeed, first: BySeed, common: Sequence[int]
) -> Interval | None:
    """Return the difference with its interval over examples; None unless the score is a mean."""
    sides = [[side[seed].values for seed in common] for side in (ours, first)]
    if not all(metric in values for side in sides for values in side):
        return None
    lengths = {len(values[metric]) for side in sides for values in side}
    if len(lengths) > 1 or not lengths.isdisjoint({0}):
        return None
    mine, theirs = (np.mean([values[metric] for values in side], axis=0) for side in sides)
    all_values, (reference, *_) = [*sides[0], *sides[1]], sides[0]
    for name in ("targets",) if metric == "loss" else ("examples", "windows"):
        if any(values.get(name) != reference.get(name) for values in all_values):
            return None  # other examples or batches, or another tokenizer
    if metric != "loss":
        windows = reference.get("windows")
        return bootstrap_interval(mine, theirs, None if windows is None else np.array(windows))
    weights = np.array(reference["targets"])
    return bootstrap_interval(mine / weights, theirs / weights, weights)


def _bleu_tokens(study: Study) -> str:
    first = study.variants[0].recipe
    assert first is not None
    return first.eval.bleu_tokenize


def _bleu_p(ours: Figures, first: Figures, tokenize: str) -> float | None:
    """Return the p-value of a BLEU difference by sacrebleu's paired bootstrap (Koehn 2004)."""
    if not ours.texts or len(ours.texts) != len(first.texts):
        return None
    if ours.texts == first.texts:
        return 1.0  # sacrebleu counts all of its samples as more extreme
    references = [reference for _, reference in first.texts]
    sides = {"first": first.texts, "ours": ours.texts}
    systems: Any = [(name, [text for text, _ in texts]) for name, texts in sides.items()]
    bleu = BLEU(references=[references], tokenize=tokenize)
    test = PairedTest(systems, {"BLEU": bleu}, None, "bs", BLEU_SAMPLES)
    results: Any = test()[1]
    theirs, mine = results["BLEU"]
    if mine.score == theirs.score:
        return 1.0  # both 0, with different texts: counted in the same way
    return None if mine.p_value is None else float(mine.p_value)
