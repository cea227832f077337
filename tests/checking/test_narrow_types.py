"""float32 and bfloat16 are close to float64, and a wrong dtype is detected."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.checking import planted
from torch import Tensor

from addnorm.checking.case import Case
from addnorm.checking.comparison import Comparison
from addnorm.checking.definition import DEFINITIONS
from addnorm.checking.matrix import USUAL, Cell
from addnorm.checking.narrow_types import bfloat16, narrow_types
from addnorm.nn import norms


def compared(family: str, **parts: str) -> dict[str, bool]:
    case = Case.of(Cell(family=family, parts=tuple((USUAL | parts).items())))  # type: ignore[arg-type]
    return {one.name: one.holds for one in narrow_types(case, case.expected().detach())}


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder_decoder"])
def test_what_holds_in_float64_nearly_holds(family: str) -> None:
    found = compared(family)
    assert all(found.values())
    assert {"float32 logits", "float32 left padding", "bfloat16 logits"} < {*found}
    decodes = {"float32 causality", "float32, one token at a time"} < {*found}
    assert decodes == (family != "encoder")


def test_experts_are_not_compared_in_bfloat16() -> None:
    assert "bfloat16 logits" not in compared("decoder", feedforward="moe")


def test_too_narrow_a_type_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = norms.LayerNorm.forward
    monkeypatch.setattr(
        norms.LayerNorm,
        "forward",
        lambda self, x, valid=None: forward(self, x.to(torch.bfloat16), valid).to(x.dtype),
    )
    assert not compared("decoder")["float32 logits"]


ILL = "decoder/rotary/layernorm/parallel/scaled_dot/gqa/window/differential/gated/mlp"
"""Where a right norm of two features is off by 0.3 in bfloat16."""


def in_bfloat16(part: Any) -> Comparison:
    cell = replace(Cell.of(ILL), own=("norm", part, "own"))
    with DEFINITIONS["norm"].adding(type(part), planted.partial_float64):
        case = Case.of(cell)
        expected = case.expected().detach()
        narrow = replace(case, model=case.model.float())
        return next(c for c in bfloat16(narrow, expected) if "logits" in c.name)


def test_a_norm_that_magnifies_rounding_is_right_in_bfloat16() -> None:
    compared = in_bfloat16(planted.PartialConfig())
    assert compared.holds
    assert compared.tolerance is None or compared.error > 0.2


def test_what_is_wrong_in_bfloat16_is_seen_where_rounding_is_magnified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward = planted.Partial.forward

    def half(self: planted.Partial, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return forward(self, x) * (0.1 if torch.is_autocast_enabled("cpu") else 1.0)

    monkeypatch.setattr(planted.Partial, "forward", half)
    assert not in_bfloat16(planted.PartialConfig()).holds
