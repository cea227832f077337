"""Validation: its inputs, no side effects, and the selection of final weights."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny
from tests.training.tiny import At, everything, interrupt, journal, same, steps_of
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.models.weights import copy_into, weights_of
from addnorm.nn.norms import BatchNormConfig
from addnorm.training.average import mean
from addnorm.training.callbacks import Heard, StepEvent, ValidationEvent
from addnorm.training.checkpoint import checkpoints_in, load_checkpoint, load_weights
from addnorm.training.trainer import Interrupted, Validation

TENSOR = "encoder.blocks.0.feedforward.up_proj.weight"


def scripted(*values: float, metric: str = "loss", larger: bool = False) -> Validation:
    """Scores from a list."""
    rest = iter(values)
    return Validation(lambda _: {metric: next(rest)}, metric, larger_is_better=larger)


def random_scores(model: nn.Module) -> dict[str, float]:
    """A validation that draws random numbers and runs the model in both modes."""
    inputs = next(tiny.batches().batches(0)).inputs
    with torch.no_grad():
        model(**inputs)
        torch.rand(3)
        return {"loss": model.train()(**inputs).square().mean().item()}


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"ema": 0.9}], ids=["plain", "ema"])
def test_validation_does_not_change_training(tmp_path: Path, settings) -> None:
    without = tiny.trainer(tmp_path / "without", **settings)
    without.fit()
    validation = Validation(random_scores)
    looked = tiny.trainer(tmp_path / "with", validation=validation, validate_every=2, **settings)
    looked.fit()
    lines = journal(tmp_path / "with")
    assert [line["step"] for line in lines if "valid_loss" in line] == [2, 4, 6, 8, 10, 12]
    assert [line for line in lines if "loss" in line] == journal(tmp_path / "without")
    a, b = everything(without), everything(looked)
    assert not torch.equal(a.pop("standing"), b.pop("standing"))
    same(a, b)


def test_validation_sees_the_moving_average_in_eval_mode(tmp_path: Path) -> None:
    in_eval_mode: list[bool] = []

    def score(model: nn.Module) -> dict[str, float]:
        assert trainer.average is not None
        in_eval_mode.append(not model.training)
        same(weights_of(model), trainer.average.weights)
        return {"loss": 1.0}

    trainer = tiny.trainer(tmp_path, validation=Validation(score), ema=0.9, validate_every=5)
    trainer.fit()
    assert in_eval_mode == [True] * 3  # 5, 10, and the last step


def test_validates_at_the_end_of_each_epoch_by_default(tmp_path: Path) -> None:
    n = len(tiny.batches())
    trainer = tiny.trainer(tmp_path, validation=scripted(*range(9)), epochs=2, save_every=None)
    trainer.fit()
    assert [line["step"] for line in journal(tmp_path) if "valid_loss" in line] == [n, 2 * n]
    assert steps_of(tmp_path) == [n, 2 * n]


@pytest.mark.parametrize("larger", [False, True])
def test_the_best_weights_are_kept_and_chosen(tmp_path: Path, larger: bool) -> None:
    values = [3.0, 1.0, 1.0, 2.0]
    validation = scripted(*(-v if larger else v for v in values), metric="m", larger=larger)
    snapshots: dict[int, dict[str, Tensor]] = {}
    trainer = tiny.trainer(
        tmp_path, validation=validation, steps=8, validate_every=2, select="best"
    )
    trainer.callbacks.add(At(4, lambda: snapshots.update({4: everything(trainer)})), Heard())
    trainer.fit()
    assert (trainer.state.best_step, abs(trainer.state.best or 0)) == (4, 1.0)
    best = load_weights(tmp_path / "best.safetensors")
    same(weights_of(trainer.model), best)
    same(best, {name: snapshots[4][f"model.{name}"] for name in best})
    [*_, newest] = checkpoints_in(tmp_path / "checkpoints")
    assert not torch.equal(load_checkpoint(newest)[0]["model"][TENSOR], best[TENSOR])


def test_weights_kept_and_loaded_have_their_running_statistics(tmp_path: Path) -> None:
    parts = {"norm": BatchNormConfig()}
    validation = scripted(2.0, 1.0, 3.0)
    trainer = tiny.trainer(
        tmp_path, validation=validation, steps=6, validate_every=2, select="best", parts=parts
    )
    trainer.fit()
    best = load_weights(tmp_path / "best.safetensors")
    assert sum(name.endswith("running_var") for name in best) == 5
    other = tiny.build(seed=1, **parts).eval()
    copy_into(other, best)
    inputs = next(tiny.batches().batches(0)).inputs
    assert torch.equal(other(**inputs), trainer.model.eval()(**inputs))


def test_nan_is_never_the_best_score(tmp_path: Path) -> None:
    validation = scripted(math.nan, 3.0, math.nan, 2.0)
    trainer = tiny.trainer(tmp_path, validation=validation, steps=4, validate_every=1)
    trainer.fit()
    assert (trainer.state.best, trainer.state.best_step) == (2.0, 4)


def test_stops_early_and_loads_the_best_weights(tmp_path: Path) -> None:
    validation = scripted(5.0, 4.0, 4.5, 4.0, 3.0, 3.5, 3.4, 3.3, 9.0)
    settings = {"steps": 100, "validate_every": 2, "patience": 3, "select": "best"}
    trainer = tiny.trainer(tmp_path, validation=validation, **settings)
    trainer.fit()
    assert trainer.state.step == 16
    assert trainer.state.best_step == 10
    assert steps_of(tmp_path)[-1] == 16
    same(weights_of(trainer.model), load_weights(tmp_path / "best.safetensors"))
    again = tiny.trainer(tmp_path, validation=scripted(), seed=4, **settings)
    again.resume()
    again.fit()
    assert again.state.step == 16, "it does not forget that it was tired"
    same(weights_of(trainer.model), weights_of(again.model))


def test_patience_survives_a_resume(tmp_path: Path) -> None:
    settings = {"steps": 100, "validate_every": 2, "patience": 3}
    first = tiny.trainer(
        tmp_path, validation=scripted(1, 2, 2), callbacks=[At(6, interrupt)], **settings
    )
    with pytest.raises(Interrupted):
        first.fit()
    second = tiny.trainer(tmp_path, validation=scripted(2, 2, 2), seed=4, **settings)
    second.resume()
    second.fit()
    assert second.state.step == 8


@pytest.mark.parametrize("settings", [{"select": "best"}, {"patience": 2}])
def test_settings_that_need_validation_are_rejected_without_it(tmp_path: Path, settings) -> None:
    with pytest.raises(InputError, match="need validation data"):
        tiny.trainer(tmp_path, **settings)


@pytest.mark.long
@pytest.mark.parametrize(("average", "keep", "expected"), [(3, 1, 3), (2, 4, 4), (9, 1, 6)])
def test_ends_with_the_mean_of_the_last_checkpoints(
    tmp_path, average: int, keep: int, expected: int
) -> None:
    """Kept for it even where `keep` is less; of fewer where there are no more."""
    trainer = tiny.trainer(tmp_path, average=average, keep=keep, save_every=2)
    trainer.fit()
    checkpoints = checkpoints_in(tmp_path / "checkpoints")
    assert len(checkpoints) == expected
    sets = [load_checkpoint(path)[0]["model"] for path in checkpoints[-average:]]
    same(weights_of(trainer.model), mean(sets))
    assert not torch.equal(sets[-1][TENSOR], mean(sets)[TENSOR])


def test_a_damaged_checkpoint_is_rejected_by_the_mean(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, average=3, save_every=2)
    trainer.fit()
    file = checkpoints_in(tmp_path / "checkpoints")[1] / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 64
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"model\.safetensors: damaged"):
        trainer.take_final_weights()


def test_ends_with_the_moving_average(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, ema=0.9)
    trainer.fit()
    assert trainer.average is not None
    same(weights_of(trainer.model), trainer.average.weights)
    tensors, facts = load_checkpoint(checkpoints_in(tmp_path / "checkpoints")[-1])
    assert facts["average_updates"] == 12
    assert not torch.equal(tensors["model"][TENSOR], tensors["average"][TENSOR])


@pytest.mark.parametrize(("keep", "steps"), [(1, [12]), (2, [9, 12]), (9, [3, 6, 9, 12])])
def test_keeps_the_newest_checkpoints(tmp_path: Path, keep: int, steps: list[int]) -> None:
    tiny.trainer(tmp_path, keep=keep, save_every=3).fit()
    assert steps_of(tmp_path) == steps


def test_saves_at_the_end_even_if_saving_is_never_due(tmp_path: Path) -> None:
    tiny.trainer(tmp_path, steps=3, save_every=1000).fit()
    assert steps_of(tmp_path) == [3]


def test_callbacks_get_every_step_and_validation(tmp_path: Path) -> None:
    calls: list[tuple[object, ...]] = []

    class Ear:
        def on_step(self, event: StepEvent) -> None:
            calls.append((event.step, event.total_steps, event.figures["tokens"] > 0))

        def on_validation(self, event: ValidationEvent) -> None:
            calls.append((event.step, dict(event.scores), event.is_best))

    tiny.trainer(
        tmp_path, validation=scripted(1.5, 2.5), callbacks=[Ear()], steps=2, validate_every=1
    ).fit()
    assert calls == [
        (1, 2, True),
        (1, {"loss": 1.5}, True),
        (2, 2, True),
        (2, {"loss": 2.5}, False),
    ]


def of_weights(metric: str, larger: bool, measure: str, before: str | None = None) -> Validation:
    """A score that the weights themselves decide, so that it can be measured again."""

    def score(model: nn.Module) -> dict[str, float]:
        return {metric: float(weights_of(model)[TENSOR].double().square().sum())}

    return Validation(
        score, metric, larger_is_better=larger, measure=measure, measure_before=before
    )


def test_the_best_weights_are_measured_again_by_another_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"steps": 8, "validate_every": 2, "select": "best", "patience": 2}
    first = tiny.trainer(tmp_path, validation=of_weights("loss", False, "loss"), **options)
    first.fit()
    assert first.state.best is not None
    assert first.state.validations_since_best == 2  # weights grow, so the first are the best
    longer = {**options, "steps": 12}
    again = tiny.trainer(tmp_path, validation=of_weights("f1", True, "f1"), **longer)
    again.resume()
    assert again.state.best == first.state.best
    assert again.state.validations_since_best == 0
    assert not again.finished()
    message = capsys.readouterr().err
    assert "of step 2, were chosen by loss: f1 of them is " in message
    again.fit()
    assert again.state.step == 12
    best = load_weights(tmp_path / "best.safetensors")
    assert float(best[TENSOR].double().square().sum()) == again.state.best
    same(weights_of(again.model), best)


def test_the_best_weights_are_not_measured_again_by_the_same_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"steps": 8, "validate_every": 2, "patience": 9}
    first = tiny.trainer(tmp_path, validation=of_weights("loss", False, "loss"), **options)
    first.fit()

    def score(_: nn.Module) -> dict[str, float]:
        raise AssertionError

    again = tiny.trainer(tmp_path, validation=Validation(score, measure="loss"), **options)
    again.resume()
    assert again.state == first.state
    assert not capsys.readouterr().err


@pytest.mark.parametrize("before", ["loss", "f1", None])
def test_an_earlier_checkpoint_takes_the_measure_of_its_recipe(
    tmp_path: Path, before: str | None
) -> None:
    options: dict[str, Any] = {"steps": 8, "validate_every": 2}
    tiny.trainer(tmp_path, validation=scripted(3.0, 1.0, 2.0, 4.0), **options).fit()
    newest = checkpoints_in(tmp_path / "checkpoints")[-1]
    tensors, facts = load_checkpoint(newest)
    del facts["best_by"], facts["schedule_steps"]
    groups = {name: dict(group) for name, group in tensors.items()}
    shutil.rmtree(newest)
    tiny.save_whole(newest.parent, 8, groups, facts)
    validation = of_weights("f1", True, "f1", before)
    again = tiny.trainer(tmp_path, validation=validation, **options)
    again.resume()
    assert (again.state.best == 1.0) == (before != "loss")


def test_missing_best_weights_restart_the_search_for_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"steps": 8, "validate_every": 2, "select": "best"}
    tiny.trainer(tmp_path, validation=of_weights("loss", False, "loss"), **options).fit()
    (tmp_path / "best.safetensors").unlink()
    longer = {**options, "steps": 10}
    again = tiny.trainer(tmp_path, validation=of_weights("f1", True, "f1"), **longer)
    again.resume()
    assert again.state.best is None
    assert "were chosen by loss, and are missing" in capsys.readouterr().err
    again.fit()
    assert again.state.best_step == 10
