"""The matrix covers every pair of parts, and refuses few combinations."""

import re
from collections import Counter
from itertools import combinations, islice
from math import prod

import pytest

from addnorm.checking.axes import ARCHITECTURES, AXES, MIXERS, VARIANTS
from addnorm.checking.matrix import CROSSED, TIMES, Cell, cells, named
from addnorm.checking.sampling import sample
from addnorm.errors import InputError

CELLS = list(cells())


def test_names_are_unique_and_always_the_same() -> None:
    names = [cell.id for cell in CELLS]
    assert len(set(names)) == len(names)
    assert [cell.id for cell in islice(cells(), 1000)] == names[:1000]
    assert all(name.count("/") in (len(AXES), len(AXES) + 1, 5) for name in names)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_what_meets_in_attention_is_in_every_combination(family: str) -> None:
    found = Counter(
        tuple(name for axis, name in cell.parts if axis in CROSSED)
        for cell in CELLS
        if cell.family == family and _plain(cell)
    )
    assert len(found) == prod(len(AXES[axis]) for axis in CROSSED)
    assert {*found.values()} == {TIMES}


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_every_pair_of_parts_meets(family: str) -> None:
    met = Counter(
        pair
        for cell in CELLS
        if cell.family == family and _plain(cell)
        for pair in combinations(cell.parts, 2)
    )
    for (a, first), (b, second) in combinations(AXES.items(), 2):
        assert all(met[(a, x), (b, y)] for x in first for y in second)


def test_every_variant_and_mixer_is_in_its_architectures() -> None:
    varied = {(cell.variant, cell.family) for cell in CELLS if cell.variant}
    assert varied == {(n, family) for n, v in VARIANTS.items() for family in v.architectures}
    mixed = {(cell.mixer, cell.family) for cell in CELLS if cell.mixer}
    assert mixed == {(name, family) for name in MIXERS for family in ARCHITECTURES}


def _plain(cell: Cell) -> bool:
    return not (cell.mixer or cell.variant)


@pytest.mark.long
def test_refusals_are_few_and_say_why() -> None:
    refused = Counter(cell.refusal() for cell in CELLS)
    allowed = refused.pop(None)
    assert allowed > 0.7 * len(CELLS)
    assert 0 < len(refused) <= 16
    assert all(re.search("use|must|give", str(reason)) for reason in refused)
    of_variants = {str(cell.refusal()) for cell in CELLS if cell.variant} - {"None"}
    apart = (
        "layer 1: it reads the keys of layer 0, whose",
        "embedding.per_layer gives every layer",
        "first_convolution joins the output",
        "canon is for sublayers that follow one another",
        "feedforward.kind = 'none' leaves no sublayers to run in parallel",
        "layer 0: attention.kind = 'none' leaves no sublayers to run in parallel",
    )
    assert all(reason.startswith(apart) for reason in of_variants), of_variants


def test_cells_by_name() -> None:
    found = named("decoder/rotary/*/gru")
    assert {cell.mixer for cell in found} == {"gru"}
    assert {cell.family for cell in found} == {"decoder"}  # and not encoder_decoder
    for cell in sample(60, 0, CELLS):
        assert Cell.of(cell.id) == cell
    with pytest.raises(InputError, match=r"'decoder/rotry'.* Did you mean 'rotary'\?"):
        named("decoder/rotry")


def test_a_custom_part_takes_the_place_of_its_family() -> None:
    from dataclasses import replace

    from addnorm.nn.norms import RMSNormConfig

    cell = replace(CELLS[0], own=("norm", RMSNormConfig(eps=0.5), "mine"))
    assert cell.config().norm == RMSNormConfig(eps=0.5)
    assert cell.id == f"{CELLS[0].id}/mine"
