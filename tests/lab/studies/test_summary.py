"""Summaries: pairs by seed, examples drawn again, and what is missing is counted."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from tests.lab.small import small_study

from addnorm.lab.statistics import bootstrap_interval
from addnorm.lab.studies.cell import FIGURES, Figures, write_figures
from addnorm.lab.studies.study import Study
from addnorm.lab.studies.summary import Row, summarise


def put(study: Study, values: dict[tuple[int, int], Figures]) -> None:
    """Write figures for cells, by variant and seed."""
    for cell in study.cells:
        if (cell.variant, cell.seed) in values:
            cell.folder.mkdir(parents=True, exist_ok=True)
            write_figures(cell.folder / FIGURES, values[cell.variant, cell.seed])


def figures(loss: float | None, **more) -> Figures:
    facts = {"state": "finished", "steps": 8, "tokens": 99, "seconds": 2.0, "parameters": 5}
    facts["scores"] = {} if loss is None else {"loss": loss}
    return Figures(split="valid", **{**facts, **more})


def test_variants_are_compared_seed_by_seed(tmp_path) -> None:
    study = small_study(tmp_path, "layernorm", "rmsnorm", "none", seeds=4)
    losses = {
        0: [2.0, 3.0, 4.0, 5.0],
        1: [1.9, 2.9, 3.95, 4.9],  # better with every seed, though the seeds differ more
        2: [2.0, 3.1, 3.9, 5.0],
    }
    put(study, {(v, s + 1): figures(x) for v, row in losses.items() for s, x in enumerate(row)})
    found = summarise(study)
    first, better, open_ = found.rows
    assert first.difference is None
    assert better.difference is not None
    assert better.difference.interval.mean == pytest.approx(-0.0875)
    assert found.better(better) is True
    assert found.better(open_) is None
    assert found.lower_is_better
    assert (found.splits, found.n_seeds) == (["valid"], 4)


def test_missing_and_diverged_cells_are_counted(tmp_path) -> None:
    study = small_study(tmp_path, seeds=4)
    broken = figures(None, state="diverged", problem="step 3: the loss is nan")
    put(
        study,
        {(0, s): figures(float(s)) for s in (1, 2, 3)}
        | {(1, 1): figures(1.5), (1, 2): broken, (1, 4): figures(9.0)},
    )
    first, other = summarise(study).rows
    assert (first.missing, first.diverged) == (1, 0)
    assert (other.missing, other.diverged) == (1, 1)
    assert other.difference is not None
    assert other.difference.interval.n == 1  # seed 1 alone is in both
    assert other.mean is not None
    assert other.mean.n == 2


def test_what_was_dropped_has_its_cost(tmp_path) -> None:
    study = small_study(tmp_path, seeds=1)
    folder = study.cells[1].folder
    folder.mkdir(parents=True)
    for steps in (4, 16):
        paused = figures(1.0, state="paused", steps=steps, tokens=10 * steps)
        write_figures(folder / f"figures-{steps}.json", paused)
    put(study, {(0, 1): figures(1.0)})
    dropped = summarise(study, {1: "worse"}).rows[1]
    assert (dropped.parameters, dropped.tokens, dropped.seconds) == (5, 160, 2.0)
    assert dropped.missing == 1
    assert dropped.mean is None


def test_without_figures_a_summary_is_empty(tmp_path) -> None:
    rows = summarise(small_study(tmp_path)).rows
    assert all(row.mean is None and row.difference is None for row in rows)
    assert [row.missing for row in rows] == [2, 2]


def test_batches_are_drawn_again_weighted_by_their_targets(tmp_path) -> None:
    study = small_study(tmp_path, seeds=1)
    targets = [10.0, 20.0, 30.0]
    ours, first = [11.0, 19.0, 33.0], [12.0, 24.0, 33.0]
    put(
        study,
        {
            (0, 1): figures(1.0, values={"loss": first, "targets": targets}),
            (1, 1): figures(1.0, values={"loss": ours, "targets": targets}),
        },
    )
    row = summarise(study).rows[1]
    w = np.array(targets)
    assert row.examples == bootstrap_interval(np.array(ours) / w, np.array(first) / w, w)
    assert row.examples is not None
    assert row.examples.mean == pytest.approx(-6 / 60)
    put(study, {(1, 1): figures(1.0, values={"loss": ours[:2], "targets": targets[:2]})})
    assert summarise(study).rows[1].examples is None
    put(study, {(1, 1): figures(1.0, values={"loss": ours, "targets": targets[::-1]})})
    assert summarise(study).rows[1].examples is None


def test_squared_errors_are_drawn_again_as_scipy_does_with_pairs(tmp_path) -> None:
    """Over texts the same as scipy's paired bootstrap; over stretches weighted by windows."""
    rng = np.random.default_rng(1)
    first = rng.chisquare(2, size=60)
    ours = first + rng.normal(0.3, 1.0, size=60)
    study = small_study(tmp_path, seeds=1)
    study = replace(study, settings=replace(study.settings, metric="mse"))
    assert study.lower_is_better

    def row(ours: np.ndarray, first: np.ndarray, more=({}, {})) -> Row:
        sides = (first, ours)
        put(
            study,
            {
                (i, 1): figures(
                    None,
                    scores={"mse": float(side.mean())},
                    values={"mse": side.tolist(), "targets": [60.0], **more[i]},
                )
                for i, side in enumerate(sides)
            },
        )
        return summarise(study).rows[1]

    found = row(ours, first).examples
    assert found is not None
    expected = stats.bootstrap(
        (ours, first),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        paired=True,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert found.mean == pytest.approx(ours.mean() - first.mean(), rel=1e-12)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-9)
    windows = [4.0] * 59 + [1.0]
    weighted = row(ours, first, ({"windows": windows}, {"windows": windows})).examples
    assert weighted == bootstrap_interval(ours, first, np.array(windows))
    assert weighted != found
    for other in ({"windows": [4.0] * 60}, {"examples": [1.0] * 60}):
        assert row(ours, first, ({}, other)).examples is None, "they are no pairs"
    assert row(ours, first, ({"targets": [30.0, 30.0]}, {})).examples == found


def test_bleu_is_drawn_again_by_sacrebleu(tmp_path) -> None:
    study = small_study(tmp_path, seeds=1)
    study = replace(study, settings=replace(study.settings, metric="bleu"))
    references = [f"the house number {n} is large and red" for n in range(30)]
    good = [(text, text) for text in references]
    bad = [("a house is small", text) for text in references]
    scores = {"bleu": 50.0}
    put(
        study,
        {
            (0, 1): figures(None, scores=scores, texts=bad),
            (1, 1): figures(None, scores=scores, texts=good),
        },
    )
    row = summarise(study).rows[1]
    assert row.bleu_p is not None
    assert row.bleu_p < 0.01
    put(study, {(1, 1): figures(None, scores=scores, texts=bad)})
    assert summarise(study).rows[1].bleu_p == 1.0
    half = [good[i] if i % 2 else bad[i] for i in range(30)]
    other = [bad[i] if i % 2 else good[i] for i in range(30)]
    put(
        study,
        {
            (0, 1): figures(None, scores=scores, texts=half),
            (1, 1): figures(None, scores=scores, texts=other),
        },
    )
    row = summarise(study).rows[1]
    assert row.bleu_p is not None
    assert row.bleu_p > 0.1
    assert not summarise(study).lower_is_better


@pytest.mark.parametrize(("tokens", "tell_apart"), [("13a", False), ("char", True)])
def test_bleu_is_drawn_again_with_the_tokens_of_the_score(
    tokens: str, tell_apart: bool, tmp_path
) -> None:
    """Chinese without spaces: by words every sentence is wrong, by characters few are."""
    study = small_study(tmp_path, seeds=1, overrides={"eval.bleu_tokenize": tokens})
    study = replace(study, settings=replace(study.settings, metric="bleu"))
    references = [f"这是第{n}座又大又红的房子" for n in range(20)]
    first = [(text.replace("子", "屋"), text) for text in references]
    ours = [(text.replace("红的房", "绿得屋"), text) for text in references]
    scores = {"bleu": 50.0}
    texts = {(0, 1): first, (1, 1): ours}
    put(study, {key: figures(None, scores=scores, texts=some) for key, some in texts.items()})
    p = summarise(study).rows[1].bleu_p
    assert p is not None
    assert (p < 0.01) == tell_apart
