"""Layers of several processes, in turn: to the bit what one process computes, and writes."""

import copy
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.parallel.cells import chosen, is_staged
from tests.training.parallel.test_stages import KINDS, PARTS, model_of
from tests.training.parallel.threads import together
from torch import nn

from addnorm.checking.case import Case
from addnorm.checking.matrix import Cell
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, SampleConfig
from addnorm.generate.decode import generate, translate
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.models.weights import n_bytes, weights_of
from addnorm.nn.token_ahead import MultiTokenConfig
from addnorm.training.parallel.inference_stages import even_ends, split_layers
from addnorm.training.parallel.pieces import Group


def in_turn(model: nn.Module, group: Group) -> Any:
    """The model of one of several processes."""
    part = copy.deepcopy(model)
    split_layers(part, group)
    return part


@pytest.mark.parametrize("kind", KINDS)
def test_layers_in_turn_compute_as_the_model(kind: str) -> None:
    model, inputs = model_of(kind)
    model.eval()
    compute = torch.no_grad()(lambda part: part(**inputs))
    expected = compute(model)
    for outputs in together(3, lambda group: compute(in_turn(model, group))):
        assert torch.equal(outputs, expected)


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize(("kind", "dtype"), [("decoder", "float32"), ("translator", "bfloat16")])
def test_the_same_texts_are_written(kind: str, dtype: str) -> None:
    """Of ragged prompts, by more processes than the translator's encoder has layers."""
    model = model_of(kind)[0].eval().to(getattr(torch, dtype))
    write: Any = generate if isinstance(model, DecoderModel) else translate

    def written(part: nn.Module) -> list[Any]:
        ways = (GreedyConfig(), SampleConfig(), BeamConfig(beams=3))
        return [write(part, [[4, 5, 6], [8]], way, max_new_tokens=5) for way in ways]

    expected = written(model)
    for texts in together(3, lambda group: written(in_turn(model, group))):
        assert texts == expected


def test_a_process_has_its_layers_its_caches_and_a_table_once() -> None:
    def held(group: Group) -> tuple[dict[str, int], int]:
        part = in_turn(model, group)
        sizes = {name: weight.numel() for name, weight in weights_of(part).items()}
        return sizes, len(part.new_cache().layers)

    model, _ = model_of("decoder")
    whole = weights_of(model)
    parts = together(2, held)
    assert sum(caches for _, caches in parts) == 5
    for name, weight in whole.items():
        sizes = [sizes[name] for sizes, _ in parts]
        shared = name == "embed.position.table.weight"  # all layers add the same biases
        assert sorted(sizes) == [weight.numel() if shared else 0, weight.numel()]
    assert max(sum(sizes.values()) for sizes, _ in parts) * 4 <= 0.6 * n_bytes(whole.values())


def test_what_predicts_tokens_ahead_is_in_one_process() -> None:
    torch.manual_seed(0)
    model = DecoderConfig(n_layers=4, mtp=MultiTokenConfig(), **PARTS).build(20).eval()
    expected = generate(model, [[4, 5, 6]], GreedyConfig(), max_new_tokens=5)

    def held(group: Group) -> tuple[int, Any]:
        part = in_turn(model, group)
        size = n_bytes(weights_of(part.ahead).values())
        return size, generate(part, [[4, 5, 6]], GreedyConfig(), max_new_tokens=5)

    (first, texts), (last, same) = together(2, held)
    assert (first, last) == (0, n_bytes(weights_of(model.ahead).values()))
    assert texts == same == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.data())
def test_the_largest_group_is_as_small_as_can_be(sizes: list[int], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(sizes)))

    def largest(ends: Sequence[int]) -> int:
        return max(sum(sizes[a:b]) for a, b in zip((0, *ends), ends, strict=False))

    ends = even_ends(sizes, n)
    assert len(ends) == n
    assert [*ends] == sorted({*ends})
    assert ends[0] > 0
    every = [(*inner, len(sizes)) for inner in combinations(range(1, len(sizes)), n - 1)]
    assert largest(ends) == min(map(largest, every))


def test_fewer_layers_than_processes_are_refused() -> None:
    with pytest.raises(InputError, match="6 stages need as many layers, and the model has 5"):
        together(6, lambda group: in_turn(model_of("decoder")[0], group))


@pytest.mark.slow
@pytest.mark.usefixtures("types_unchecked")
def test_every_part_computes_as_in_one_process() -> None:
    """The outputs of each cell of the test matrix."""
    cells = [cell for cell in chosen() if cell.refusal() is None and is_staged(cell)]
    assert len(cells) > 180
    assert not [cell.id for cell in cells if not is_same(cell)]


def is_same(cell: Cell) -> bool:
    """Whether two processes have the outputs of one, to the bit."""
    case = Case.of(cell)
    inputs, _ = case.batch("right")
    compute = torch.no_grad()(lambda part: part(*inputs))
    expected = compute(case.model.eval())
    outputs = together(2, lambda group: compute(in_turn(case.model, group)))
    return all(torch.equal(output, expected) for output in outputs)
