"""float32 and bfloat16 are close to float64, and a wrong dtype is detected."""

import pytest
import torch

from addnorm.check.case import Case
from addnorm.check.matrix import USUAL, Cell
from addnorm.check.narrow_types import narrow_types
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
