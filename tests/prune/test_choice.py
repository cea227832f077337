"""The units that matter most stay, in every layer as many."""

import pytest
import torch
from tests.prune.test_smaller import CONFIGS, built

from addnorm.errors import InputError
from addnorm.prune.choice import kept_layers, kept_units, n_kept
from addnorm.prune.units import head_groups


def test_the_most_important_stay_in_their_order() -> None:
    units = head_groups(built(CONFIGS["decoder"]))
    found = {one.path: torch.tensor([0.1, 0.9, 0.2, 0.5]) for one in units}
    found[units[1].path] = torch.tensor([1.0, 1.0, 1.0, 1.0])
    kept = kept_units(units, found, 0.5, "heads")
    assert [kept[one.path] for one in units] == [(1, 3), (0, 1), (1, 3)]


def test_layers_that_share_a_table_keep_the_same_heads() -> None:
    units = head_groups(built(CONFIGS["t5"]))
    found = {one.path: torch.zeros(4) for one in units}
    found[units[0].path] = 100 * torch.tensor([1.0, 0.9, 0.0, 0.0])
    found[units[1].path] = torch.tensor([0.0, 0.7, 0.0, 0.7])
    kept = kept_units(units, found, 0.5, "heads")
    assert {kept[one.path] for one in units} == {(0, 1)}


def test_a_share_is_what_leaves() -> None:
    assert n_kept(8, 0.25, "heads") == 6
    assert n_kept(9, 0.25, "feedforward") == 7


def test_the_only_layer_stays() -> None:
    with pytest.raises(InputError, match="`layers = every:2` keeps every layer: there is only one"):
        kept_layers(("every:2",), {"encoder": 1, "decoder": 1})


def test_layers_by_step_and_by_number() -> None:
    depths = {"encoder": 6, "decoder": 3}
    assert kept_layers(["every:2"], depths) == {"encoder": (0, 2, 4), "decoder": (0, 2)}
    assert kept_layers(["0", "2"], depths) == {"encoder": (0, 2), "decoder": (0, 2)}
