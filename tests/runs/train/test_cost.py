"""The cost of training: memory by hand, with and without values; sizes and times as in training."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.runs.tiny import RECIPES, write_recipe
from torch._subclasses.fake_tensor import FakeTensorMode

from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.train import cost
from addnorm.runs.train.cost import (
    Allocations,
    PeakMemory,
    estimate,
    largest_batches,
    predict_peak_memory,
)
from addnorm.runs.train.train_run import TrainingSetup, count


def setup_of(folder: Path, task: str = "language", **overrides: str) -> TrainingSetup:
    return TrainingSetup(
        read_recipe(write_recipe(folder, task), {"train.device": "cpu", **overrides})
    )


def counted(one: TrainingSetup, *, values: bool) -> cost._Counted:
    batches = largest_batches(one.loaders.train)
    if values:
        return cost._count(one.model, one, batches, lambda tensor: tensor)
    return cost._without_values(one, batches, torch.device("cpu"))


def test_the_parts_of_adamw_and_an_average(tmp_path: Path) -> None:
    one = setup_of(tmp_path, **{"train.ema": "0.9"})
    peak = predict_peak_memory(one)
    n = count(one.model)
    counters = 4 * len(list(one.model.parameters()))
    assert peak.weights == peak.average == 4 * n
    assert peak.optimizer == 2 * 4 * n + counters
    assert peak.activations > 4 * n  # gradients are among them
    assert peak.total >= peak.before
    parts = (peak.process, peak.weights, peak.optimizer, peak.average, peak.activations, peak.other)
    assert peak.total == max(sum(parts), peak.before)
    assert not peak.exceeds()


@pytest.mark.long
@pytest.mark.parametrize("task", RECIPES)
def test_counts_without_values_are_those_with_values(tmp_path: Path, task: str) -> None:
    one = setup_of(tmp_path, task)
    without, with_values = (counted(one, values=values) for values in (False, True))
    assert (without.weights, without.optimizer) == (with_values.weights, with_values.optimizer)
    assert without.peak == pytest.approx(with_values.peak, rel=0.05)


def test_a_count_changes_nothing(tmp_path: Path) -> None:
    one = setup_of(tmp_path)
    before = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    counted(one, values=False)
    assert all(torch.equal(t, before[name]) for name, t in one.model.state_dict().items())
    assert all(parameter.grad is None for parameter in one.model.parameters())


@pytest.mark.long
def test_activation_checkpointing_takes_less(tmp_path: Path) -> None:
    deep = {"model.n_layers": "6", "model.feedforward.d_ff": "256"}
    usual = counted(setup_of(tmp_path, **deep), values=False)
    blocks = {**deep, "train.activation_checkpointing": "block"}
    assert counted(setup_of(tmp_path, **blocks), values=False).peak < 0.85 * usual.peak


def test_accumulation_holds_gradients_and_activations(tmp_path: Path) -> None:
    one = counted(setup_of(tmp_path), values=False)
    two = counted(setup_of(tmp_path, **{"train.accumulate": "2"}), values=False)
    assert two.peak > one.peak


@pytest.mark.long
def test_states_of_8_bits_take_a_quarter(tmp_path: Path) -> None:
    pytest.importorskip("torchao", exc_type=ImportError)
    wide = {"model.d_model": "64", "model.feedforward.d_ff": "512"}
    optimizer = {"train.optimizer": '{ kind = "adamw_8bit" }'}
    usual = counted(setup_of(tmp_path, **wide), values=False)
    small = counted(setup_of(tmp_path, **wide, **optimizer), values=False)
    assert small.weights == usual.weights
    assert small.optimizer < 0.4 * usual.optimizer  # embeddings keep 32 bits


def test_a_model_that_reads_values_is_counted_with_them(tmp_path: Path) -> None:
    kind = {"model.attention": '{ kind = "recurrent" }'}
    one = setup_of(tmp_path, "classification", **kind)
    assert predict_peak_memory(one).activations > 0


def test_the_largest_batches(tmp_path: Path) -> None:
    one = setup_of(tmp_path, "translation")
    loader = one.loaders.train
    found = largest_batches(loader)
    sizes = [batch.inputs["source"].numel() for batch in loader.batches()]
    assert found[0].inputs["source"].numel() == pytest.approx(max(sizes), rel=0.5)
    assert 1 <= len(found) <= 3
    assert len(largest_batches(setup_of(tmp_path).loaders.train)) == 1


def test_what_does_not_fit_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "total_memory", lambda: 2**20)
    monkeypatch.setattr(cost, "_make_steps", lambda *_: pytest.fail("it was tried"))
    peak = predict_peak_memory(setup_of(tmp_path))
    assert peak.exceeds()
    assert peak.other == 0


def test_memory_of_an_unknown_size_is_enough() -> None:
    sizes = dict.fromkeys(("weights", "optimizer", "average", "activations", "other"), 1)
    peak = PeakMemory(device=torch.device("cpu"), process=1, before=2**62, **sizes)
    assert peak.total == 2**62
    assert replace(peak, before=5).total == 6


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_estimate_counts_parameters_tokens_and_steps(precision: str, tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "language")
    overrides = {
        "train.accumulate": "3",
        "train.steps": "50",
        "train.precision": precision,
        "train.ema": "0.9",
        "train.device": "cpu",
    }
    setup = TrainingSetup(read_recipe(file, overrides))
    estimated = estimate(setup, n_timed=2)
    n = count(setup.model)
    assert estimated.parameters == n
    assert estimated.steps == 50
    assert estimated.steps_per_epoch == -(-len(setup.loaders.train) // 3)
    assert 3 * 4 * 16 - 2 <= estimated.tokens_per_step <= 3 * 4 * 16  # bos is no target
    # Weights, gradients, average, two moments of AdamW and its step counters, 4 bytes each.
    counters = 4 * len(list(setup.model.parameters()))
    assert estimated.state_bytes == 5 * 4 * n + counters
    assert estimated.seconds == pytest.approx(50 * estimated.seconds_per_step)
    assert estimated.seconds_per_step > 0
    assert estimated.peak_bytes is None or estimated.peak_bytes > 2**20


def test_epochs_give_the_steps(tmp_path: Path) -> None:
    setup = TrainingSetup(read_recipe(write_recipe(tmp_path, "classification")))
    estimated = estimate(setup, n_timed=1)
    assert estimated.steps == 2 * estimated.steps_per_epoch


def test_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_recipe(tmp_path, "classification")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = sorted(tmp_path.rglob("*"))
    estimate(TrainingSetup(read_recipe(file)), n_timed=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_storages_are_counted_until_they_are_freed() -> None:
    with Allocations() as counted:
        x = torch.zeros(100)
        assert (counted.live, counted.peak) == (400, 400)
        view = x[10:].view(9, 10)
        x.add_(1)
        assert counted.live == 400
        y = x + 1
        assert counted.live == 800
        del y, x
        assert counted.live == 400
        del view
    assert (counted.live, counted.peak) == (0, 800)


def test_tensors_of_the_backward_pass_are_live() -> None:
    weight = torch.zeros(50, requires_grad=True)
    counted = Allocations()
    counted.add([weight, weight.view(5, 10)])
    assert counted.live == 200
    with counted:
        loss = weight.exp().sum()
        assert counted.live == 200 + 200 + 4  # the exponential is its own derivative
        loss.backward()
        del loss
    assert counted.live == 200 + 200
    assert weight.grad is not None


def test_tensors_without_values_count_as_others_do() -> None:
    with FakeTensorMode(), Allocations() as counted:
        x = torch.zeros(2**40)
        assert counted.live == 4 * 2**40
        del x
    assert counted.live == 0
