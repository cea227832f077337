"""Every part of the test matrix, split over processes, computes as in one; what cannot is named."""

from typing import Any

import pytest
from tests.training.parallel.cells import OWN, OwnMixerConfig, usual
from tests.training.parallel.conftest import Outcomes

from addnorm.checking.case import Case
from addnorm.checking.matrix import Cell
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.positions import ALiBiConfig
from addnorm.training.parallel.tensor import check_splits, placed


def check(found: dict[str, Any], refusals: int) -> None:
    """All cells that are split are equal; as many as are expected are not, with the reason."""
    refused = {name: reason for name, reason in found.items() if isinstance(reason, str)}
    different = {name: by for name, by in found.items() if name not in refused and by > 1e-12}
    assert not different
    assert len(refused) == refusals
    assert all(" processes: " in reason for reason in refused.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_part_computes_as_in_one_process(cells_of_two: Outcomes) -> None:
    found = cells_of_two["tensor"]
    assert len(found) > 140
    check(found, refusals=5)


@pytest.mark.slow
def test_four_processes_compute_as_one(cells_of_four: Outcomes) -> None:
    check(cells_of_four["tensor"], refusals=20)


@pytest.mark.parametrize(
    ("changes", "processes", "message"),
    [
        (
            {"variant": "alibi_three_heads"},
            2,
            "attention of layer 0 has head_units = 3, which does not divide among 2 processes: the "
            "nearest number that it divides among is 1",
        ),
        (
            {"variant": "other_heads_learned"},
            4,
            "attention of layer 0 has head_units = 2, which does not divide among 4 processes",
        ),
        (
            {"own": (*OWN["undeclared"], "undeclared")},
            2,
            "attention.core.score of layer 0 (HeadGains) does not say how it is split",
        ),
        (
            {"own": (*OWN["inherited"], "inherited")},
            2,
            "attention.core.score of layer 0 (Squared) does not say how it is split",
        ),
    ],
)
def test_what_cannot_be_split_is_named(
    changes: dict[str, Any], processes: int, message: str
) -> None:
    model = Case.of(Cell(family="decoder", parts=usual(), **changes)).model
    with pytest.raises(InputError) as error:
        check_splits(model, processes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_positions_of_some_heads_in_a_layer_of_all_are_named() -> None:
    """One slope for each process would be added to every head, without a word."""
    layers = (LayerConfig(), LayerConfig(attention=OwnMixerConfig()))
    heads = AttentionConfig(n_heads=2)
    hybrid = {"d_model": 8, "n_layers": 2, "attention": heads, "position": ALiBiConfig()}
    check_splits(DecoderConfig(**hybrid).build(11), 2)
    with pytest.raises(InputError) as error:
        check_splits(DecoderConfig(**hybrid, layer_pattern=layers).build(11), 2)
    assert str(error.value).startswith(
        "attention.position of layer 1 (ALiBi) is split by heads, and OwnMixer around it does not"
    )


def test_a_vocabulary_of_fewer_tokens_than_processes_is_named() -> None:
    model = Case.of(Cell(family="decoder", parts=usual(heads="mqa"))).model
    with pytest.raises(InputError, match=r"embed has tokens of 11, .* 12 processes"):
        check_splits(model, 12)


def test_a_place_has_the_number_of_its_layer() -> None:
    assert placed("stack.blocks.3.attention.core") == "attention.core of layer 3"
    assert placed("decoder.blocks.0.cross_attention") == "cross_attention of layer 0 of the decoder"
    assert placed("head") == "head"
