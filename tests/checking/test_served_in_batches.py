"""Serving in batches is compared for every kind of cache, and faults of its rows are found."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from addnorm.checking.case import Case
from addnorm.checking.comparison import Comparison
from addnorm.checking.matrix import Cell
from addnorm.checking.served_in_batches import Batch, Batches, served_in_batches
from addnorm.nn.recurrent import StateCache
from addnorm.serve.engine.rows import Rows
from addnorm.serve.engine.slots import RowBuffers

ATTENTION = "decoder/rotary/layernorm/pre/scaled_dot/gqa/full/default_core/plain_output/mlp"
RECURRENT = "decoder/none/rmsnorm/pre/gru/mlp"
TRANSLATOR = ATTENTION.replace("decoder/", "encoder_decoder/")


def comparisons(cell: str, name: str = "") -> list[Comparison]:
    """A comparison whose random choices depend on the `name`."""
    case = Case.of(Cell.of(cell))
    case.draw.seed(name)
    return [*served_in_batches(case, case.expected().detach(), in_place=False)]


@pytest.mark.parametrize("cell", [ATTENTION, RECURRENT, TRANSLATOR])
def test_logits_are_those_of_the_definition(cell: str) -> None:
    for i in range(3):
        (comparison,) = comparisons(cell, str(i))
        assert comparison.holds
        assert len(comparison.ours) >= 10


def test_rows_join_repeat_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for owner, name in ((Rows, "join"), (Batch, "keep"), (Batches, "_start")):
        plain = getattr(owner, name)

        def called(self: Any, *given: Any, plain: Any = plain, name: str = name) -> Any:
            calls.append(name)
            return plain(self, *given)

        monkeypatch.setattr(owner, name, called)
    for i in range(4):
        comparisons(RECURRENT, str(i))
    assert min(calls.count(name) for name in ("join", "keep", "_start")) >= 3


def test_caches_that_do_not_join_are_served_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(StateCache, "join")
    monkeypatch.delattr(Rows, "join")
    (comparison,) = comparisons(RECURRENT)
    assert comparison.holds


def in_order(plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda cache, rows: plain(cache, rows.sort().values)


def taken_twice(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda buffers, n: plain(buffers, n) // 2


def other_sources(plain: Callable[..., None]) -> Callable[..., None]:
    def select(rows: Rows, chosen: Tensor) -> None:
        plain(rows, chosen)
        assert rows.sources is not None
        rows.sources = rows.sources.flip(0)

    return select


@pytest.mark.parametrize(
    ("cell", "owner", "method", "fault"),
    [
        (ATTENTION, RowBuffers, "take", taken_twice),
        (RECURRENT, StateCache, "select", in_order),
        (TRANSLATOR, Rows, "select", other_sources),
    ],
)
def test_a_planted_fault_is_found(
    cell: str, owner: type, method: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, fault(getattr(owner, method)))
    assert not all(comparison.holds for i in range(3) for comparison in comparisons(cell, str(i)))
