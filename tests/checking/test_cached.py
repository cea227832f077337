"""The cache: rows follow their texts through selection."""

import pytest
import torch

from addnorm.checking.cached import Reader, cached, selected_memory
from addnorm.checking.case import Case
from addnorm.checking.matrix import USUAL, Cell
from addnorm.models import DecoderModel


def case(family: str) -> Case:
    return Case.of(Cell(family=family, parts=tuple(USUAL.items())))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_rows_are_chosen_on_the_way(family: str) -> None:
    one = case(family)
    with torch.no_grad():
        found = list(cached(one, one.expected()))
    names = ["cached", "cache.select (selected)", "cache.select (beams)"]
    assert [comparison.name for comparison in found] == names
    assert all(comparison.holds for comparison in found)
    assert all(comparison.ours.numel() for comparison in found)


def test_a_memory_follows_its_rows() -> None:
    one = case("decoder")
    assert isinstance(one.model, DecoderModel)
    with torch.no_grad():
        found = list(selected_memory(one, one.model))
    assert [tuple(c.ours.shape[:2]) for c in found] == [(2, 3), (3, 2), (2, 2)]
    assert all(comparison.holds for comparison in found)


@torch.no_grad()
def test_a_reader_keeps_rows() -> None:
    reader = Reader.of(case("encoder_decoder"))
    tokens, memory = reader.tokens.clone(), reader.memory
    reader.read(slice(0, 2))
    reader.select(torch.tensor([2, 0]))
    assert torch.equal(reader.tokens, tokens[[2, 0]])
    assert memory is not None
    assert reader.memory is not None
    assert torch.equal(reader.memory, memory[[2, 0]])
