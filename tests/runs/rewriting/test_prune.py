"""Pruned runs: they open everywhere, their model is the masked one, and refusals write nothing."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.runs.inference.test_forecast import write
from torch.testing import assert_close

import addnorm
from addnorm.cli.main import status
from addnorm.data.batches.batch import Batch
from addnorm.errors import InputError
from addnorm.prune.selection import gated, importance
from addnorm.prune.units import feedforward_rows, head_groups
from addnorm.runs.evaluation import EvaluationData, evaluate_run
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.rewriting.prune import PruneOptions, PruneReport, calibration_batches, prune_run
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run
from addnorm.training.loss import loss_sum

RunOf = Callable[[str], Path]
CONSOLE = Console(file=io.StringIO())


def pruned(folder: Path, out: Path, **options: object) -> PruneReport:
    return prune_run(Run.open(folder), out, PruneOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["language", "translation", "classification", "tagging"])
def test_a_folder_with_the_masked_model(task: str, run_of: RunOf, tmp_path: Path) -> None:
    report = pruned(run_of(task), tmp_path / "out", heads=0.5, feedforward=0.25)
    opened = addnorm.load(tmp_path / "out")
    assert opened.recipe.model.attention.n_heads == 1
    assert opened.recipe.model.attention.d_head == 8
    assert opened.recipe.model.feedforward.d_ff == 24
    scores = evaluate_run(opened, "valid")
    assert scores["loss"] == pytest.approx(report.scores["pruned"]["loss"], rel=1e-6)
    old = Run.open(run_of(task))
    units = head_groups(old.model) + feedforward_rows(old.model)
    masks = {one.path: torch.zeros(1, one.n) for one in units}
    for path, kept in report.pruning.units.items():
        masks[path][:, list(kept)] = 1.0
    [batch] = calibration_batches(EvaluationData.of(old, "valid"), 1)
    with gated(units, masks), torch.no_grad():
        assert_close(opened.model(**batch.inputs), old.model(**batch.inputs), rtol=0, atol=1e-6)


def one_of(batch: Batch, row: int) -> Batch:
    inputs = {name: tensor[row : row + 1] for name, tensor in batch.inputs.items()}
    return Batch.of(inputs, batch.targets[row : row + 1], [row])


def test_independent_variables_of_a_series_are_rows_of_their_example(tmp_path: Path) -> None:
    """An example of two variables has two rows in every layer, and one importance."""
    run = train_run(read_recipe(write(tmp_path)), tmp_path / "run", resume=True, console=CONSOLE)
    report = pruned(tmp_path / "run", tmp_path / "out", heads=0.5, feedforward=0.5)
    assert set(report.scores) == {"before", "pruned"}
    units = head_groups(run.model)
    [batch] = calibration_batches(EvaluationData.of(run, "valid"), 1)
    together = importance(run.model, units, [batch], loss_sum)
    alone = [
        importance(run.model, units, [one_of(batch, i)], loss_sum)
        for i in range(len(batch.targets))
    ]
    for path, found in together.items():
        assert_close(found, torch.stack([one[path] for one in alone]).mean(0))


def test_weights_that_are_not_finite_are_named(run_of: RunOf, tmp_path: Path) -> None:
    run = Run.open(run_of("language"))
    weight = next(iter(run.model.parameters()))
    with torch.no_grad():
        weight.view(-1)[0] = float("nan")
    run.save(tmp_path / "nan")
    with pytest.raises(InputError, match=r"embed\.tokens\.weight holds NaN or infinity"):
        pruned(tmp_path / "nan", tmp_path / "out", heads=0.5)
    assert status(["quantize", str(tmp_path / "nan"), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("recover", [0, 2])
def test_scores_are_saved_with_the_run(recover: int, run_of: RunOf, tmp_path: Path) -> None:
    report = pruned(run_of("language"), tmp_path / "out", heads=0.5, recover=recover)
    lines = [json.loads(one) for one in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    [line] = [one for one in lines if "valid_loss" in one]
    assert line["step"] == recover
    assert line["valid_loss"] == [*report.scores.values()][-1]["loss"]


def test_recovery_trains_the_smaller_model(run_of: RunOf, tmp_path: Path) -> None:
    report = pruned(run_of("language"), tmp_path / "out", heads=0.5, recover=2)
    assert set(report.scores) == {"before", "pruned", "recovered"}
    assert report.scores["recovered"]["loss"] != report.scores["pruned"]["loss"]
    opened = Run.open(tmp_path / "out")
    assert opened.recipe.train.steps == 2
    assert evaluate_run(opened, "valid")["loss"] == pytest.approx(
        report.scores["recovered"]["loss"], rel=1e-6
    )


def test_calibration_takes_as_few_batches_as_have_the_examples(run_of: RunOf) -> None:
    data = EvaluationData.of(Run.open(run_of("classification")), "valid")
    assert len(calibration_batches(data, 1)) == 1
    total = sum(len(one.indices) for one in calibration_batches(data, 10**6))
    assert data.evaluator is not None
    assert total == len(data.evaluator.encoded)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to remove: give `heads`"),
        ({"heads": 0.01}, "the nearest share is 0.5"),
        ({"layers": ("every:2",)}, "keeps every layer"),
        ({"heads": 0.5, "recover": -1}, "`recover = -1`: must be at least 0"),
        ({"heads": 0.5, "calibrate": 0}, "`calibrate = 0`: must be at least 1"),
    ],
)
def test_a_refusal_writes_nothing(
    options: dict[str, object], message: str, run_of: RunOf, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        pruned(run_of("language"), tmp_path / "out", **options)
    assert not [*(tmp_path / "out").glob("*.*")]


def test_existing_files_stay(run_of: RunOf, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="something is there already"):
        pruned(run_of("language"), tmp_path, heads=0.5)
    assert [one.name for one in tmp_path.iterdir()] == ["mine.txt"]
