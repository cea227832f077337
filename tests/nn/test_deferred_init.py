"""Weights that are drawn later and alone are those of a model that is built at once, to the bit."""

from typing import Any, get_args

import pytest
import torch
from tests.training.parallel.cells import chosen

from addnorm.checking.case import build
from addnorm.checking.matrix import Cell
from addnorm.models import DecoderConfig
from addnorm.nn.deferred_init import deferred_init, without_memory
from addnorm.nn.init import InitName
from addnorm.nn.residuals import DeepNormConfig

CELLS = [cell for cell in chosen() if cell.own is None and cell.refusal() is None]


def check_alike(config: Any) -> None:
    torch.manual_seed(3)
    whole = build(config)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    model, initial = deferred_init(lambda: build(config))
    assert torch.equal(torch.get_rng_state(), after)
    assert all(not any(p.stride()) or p.numel() == 1 for p in model.parameters())
    parts = dict(model.named_parameters())
    assert parts.keys() == dict(whole.named_parameters()).keys()
    for name, weight in reversed([*whole.named_parameters()]):
        assert parts[name].requires_grad == weight.requires_grad
        assert initial(parts[name]).equal(weight), name
        assert initial(parts[name]).stride() == weight.stride()
    buffers = dict(model.named_buffers())
    assert buffers.keys() == dict(whole.named_buffers()).keys()
    assert all(buffers[name].equal(buffer) for name, buffer in whole.named_buffers())
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("cell", CELLS, ids=[cell.id for cell in CELLS])
def test_each_part_begins_with_the_weights_of_a_model_built_at_once(cell: Cell) -> None:
    check_alike(cell.config())


@pytest.mark.parametrize("init", get_args(InitName))
def test_so_does_each_scheme(init: InitName) -> None:
    check_alike(DecoderConfig(d_model=8, n_layers=2, residual=DeepNormConfig(), init=init))


def test_a_weight_without_memory_is_of_its_shape_and_type() -> None:
    empty = without_memory(torch.zeros(1000, 30, dtype=torch.bfloat16))
    assert empty.shape == (1000, 30)
    assert empty.dtype == torch.bfloat16
    assert empty.untyped_storage().nbytes() == 2
    assert empty[3, 4].isnan()
