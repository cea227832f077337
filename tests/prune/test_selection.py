"""Importances against plain autograd in float64; the units that matter most stay."""

from typing import Any

import pytest
import torch
from tests.prune.test_pruned_model import CONFIGS, built, inputs_of
from torch import Tensor
from torch.testing import assert_close

from addnorm.data.batches.batch import Batch
from addnorm.errors import InputError
from addnorm.models import EncoderConfig, Model
from addnorm.prune.selection import gated, importance, kept_layers, kept_units, n_kept
from addnorm.prune.units import feedforward_rows, head_groups
from addnorm.training.loss import loss_sum

BY_ROW = ["decoder", "grouped", "t5", "classifier", "translator_apart"]


def batch_of(name: str) -> Batch:
    inputs = inputs_of(CONFIGS[name])
    shape = (3,) if isinstance(CONFIGS[name], EncoderConfig) else (3, 7)
    targets = torch.randint(3, shape, generator=torch.Generator().manual_seed(2))
    return Batch.of(inputs, targets, [0, 1, 2])


def loss_of(model: Model, batch: Batch, row: int) -> Tensor:
    inputs: dict[str, Any] = {key: x[row : row + 1] for key, x in batch.inputs.items()}
    return loss_sum(model(**inputs), batch.targets[row : row + 1])


@pytest.mark.parametrize("name", BY_ROW)
def test_importance_is_the_mean_derivative_of_the_examples(name: str) -> None:
    """The derivative of the loss by the gate, by central differences of the masked model."""
    model, batch = built(CONFIGS[name]), batch_of(name)
    units = head_groups(model)
    scores = importance(model, units, [batch], loss_sum)
    step = 1e-5
    for sublayer in units[:2]:
        for unit in range(sublayer.n):
            sizes: list[float] = []
            for row in range(3):
                ends: list[float] = []
                for change in (-step, step):
                    gate = torch.ones(1, sublayer.n, dtype=torch.float64)
                    gate[0, unit] += change
                    with torch.no_grad(), gated([sublayer], {sublayer.path: gate}):
                        ends.append(float(loss_of(model, batch, row)))
                sizes.append(abs(ends[1] - ends[0]) / (2 * step))
            assert float(scores[sublayer.path][unit]) == pytest.approx(
                sum(sizes) / 3, rel=1e-4, abs=1e-7
            )


@pytest.mark.parametrize("name", BY_ROW)
def test_importance_of_rows_is_the_first_order_taylor_term(name: str) -> None:
    """`|Σ_t h_t ∂L/∂h_t|` of the hidden features themselves, without gates."""
    model, batch = built(CONFIGS[name]), batch_of(name)
    units = feedforward_rows(model)
    scores = importance(model, units, [batch, batch], loss_sum)
    for sublayer in units:
        states: list[Tensor] = []
        hook = sublayer.projection.register_forward_pre_hook(lambda _, x: states.append(x[0]))  # noqa: B023
        terms: list[Tensor] = []
        for row in range(3):
            states.clear()
            [gradient] = torch.autograd.grad(loss_of(model, batch, row), states)
            terms.append((gradient * states[0]).sum((0, 1)).abs())
        hook.remove()
        assert_close(scores[sublayer.path], torch.stack(terms).mean(0).detach())


def test_importance_does_not_depend_on_the_batches() -> None:
    model, batch = built(CONFIGS["decoder"]), batch_of("decoder")
    alone = [
        Batch.of({k: x[i : i + 1] for k, x in batch.inputs.items()}, batch.targets[i : i + 1], [i])
        for i in range(3)
    ]
    units = head_groups(model)
    together = importance(model, units, [batch], loss_sum)
    apart = importance(model, units, alone, loss_sum)
    for path in together:
        assert_close(together[path], apart[path])


def test_hooks_are_removed_after_an_error() -> None:
    model = built(CONFIGS["decoder"])
    units = head_groups(model)
    with pytest.raises(RuntimeError), gated(units, {units[0].path: torch.ones(1, 4)}):
        raise RuntimeError
    assert not units[0].projection._forward_pre_hooks


def test_the_most_important_units_are_kept_in_order() -> None:
    units = head_groups(built(CONFIGS["decoder"]))
    scores = {sublayer.path: torch.tensor([0.1, 0.9, 0.2, 0.5]) for sublayer in units}
    scores[units[1].path] = torch.tensor([1.0, 1.0, 1.0, 1.0])
    kept = kept_units(units, scores, 0.5, "heads")
    assert [kept[sublayer.path] for sublayer in units] == [(1, 3), (0, 1), (1, 3)]


def test_layers_that_share_a_table_keep_the_same_heads() -> None:
    units = head_groups(built(CONFIGS["t5"]))
    scores = {sublayer.path: torch.zeros(4) for sublayer in units}
    scores[units[0].path] = 100 * torch.tensor([1.0, 0.9, 0.0, 0.0])
    scores[units[1].path] = torch.tensor([0.0, 0.7, 0.0, 0.7])
    kept = kept_units(units, scores, 0.5, "heads")
    assert {kept[sublayer.path] for sublayer in units} == {(0, 1)}


def test_a_share_is_the_part_that_is_removed() -> None:
    assert n_kept(8, 0.25, "heads") == 6
    assert n_kept(9, 0.25, "feedforward") == 7


def test_the_only_layer_cannot_be_removed() -> None:
    with pytest.raises(InputError, match="`layers = every:2` keeps every layer: there is only one"):
        kept_layers(("every:2",), {"encoder": 1, "decoder": 1})


def test_layers_are_given_by_step_or_by_number() -> None:
    depths = {"encoder": 6, "decoder": 3}
    assert kept_layers(["every:2"], depths) == {"encoder": (0, 2, 4), "decoder": (0, 2)}
    assert kept_layers(["0", "2"], depths) == {"encoder": (0, 2), "decoder": (0, 2)}
