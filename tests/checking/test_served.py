"""Serving is compared with the definition, and faults of pages, windows and copies are found."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from addnorm.checking.case import Case
from addnorm.checking.comparison import Comparison
from addnorm.checking.matrix import Cell
from addnorm.checking.served import served
from addnorm.serve.engine.decoder import PagedDecoder
from addnorm.serve.engine.pages import PageTable

FULL = "decoder/rotary/layernorm/pre/scaled_dot/gqa/full/default_core/plain_output/mlp"
WINDOW = FULL.replace("/full/", "/window/")
RECURRENT = "decoder/none/rmsnorm/pre/gru/mlp"


def comparisons(cell: str) -> list[Comparison]:
    case = Case.of(Cell.of(cell))
    return [*served(case, case.expected().detach(), "gathered")]


@pytest.mark.parametrize("cell", [FULL, WINDOW])
def test_served_logits_are_those_of_the_definition(cell: str) -> None:
    (comparison,) = comparisons(cell)
    assert comparison.holds
    assert len(comparison.ours) >= 7 + 4 + 2 + 7  # set aside, some are computed twice


def test_a_recurrent_model_is_not_served_in_pages() -> None:
    assert comparisons(RECURRENT) == []


def wrong_slots(plain: Callable[..., Any]) -> Callable[..., Any]:
    def slots(decoder: PagedDecoder, parts: Any) -> tuple[Tensor, Tensor]:
        places, valid = plain(decoder, parts)
        return places.roll(1, 1), valid

    return slots


def back_too_early(plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda table, first: plain(table, first + 2)


@pytest.mark.parametrize(
    ("cell", "owner", "method", "fault"),
    [
        (FULL, PagedDecoder, "_slots", wrong_slots),
        (WINDOW, PageTable, "give_back", back_too_early),
    ],
)
def test_a_planted_fault_is_found(
    cell: str, owner: type, method: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, fault(getattr(owner, method)))
    (comparison,) = comparisons(cell)
    assert not comparison.holds
