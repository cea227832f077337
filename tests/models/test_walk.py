"""The number of calls from a model's forward to the attention kernel."""

import inspect
import sys
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from addnorm.models import DecoderConfig

DEEPEST, LINES = 11, 120


def frames_at_the_kernel(
    monkeypatch: pytest.MonkeyPatch, model: Any, tokens: Any
) -> list[CodeType]:
    """The functions of AddNorm that are running when the kernel does, outermost first."""
    kernel, found = F.scaled_dot_product_attention, list[CodeType]()

    def watched(*args: Any, **kwargs: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        found.clear()
        while frame is not None:
            if "addnorm" in frame.f_globals.get("__name__", "") and "/addnorm/" in (
                frame.f_code.co_filename
            ):
                found.append(frame.f_code)
            frame = frame.f_back
        found.reverse()
        return kernel(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    model(tokens)
    return found


def test_the_kernel_is_eleven_calls_and_120_lines_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five in the reader's eye: model, stack, block, placement, attention; then `attend`, where a
    cache may attend in place, and the core.
    """
    model = DecoderConfig(d_model=16, n_layers=2, attention={"n_heads": 2}).build(7).eval()
    with torch.no_grad():
        codes = frames_at_the_kernel(monkeypatch, model, torch.zeros(1, 12, dtype=torch.long))
    names = [code.co_qualname.rpartition(".<locals>.")[2] for code in codes]
    assert names[0] == "DecoderModel.forward", names
    assert len(names) <= DEEPEST, names
    written = {code: _body(code) for code in codes if "<lambda>" not in code.co_qualname}
    assert sum(written.values()) <= LINES, written


def _body(code: CodeType) -> int:
    """The lines of a function without its docstring and its signature."""
    lines = inspect.getsource(code).splitlines()
    start = next(i for i, line in enumerate(lines) if line.rstrip().endswith(":"))
    text = "\n".join(lines[start + 1 :])
    pieces = text.split('"""')
    return len([x for x in (pieces[2] if len(pieces) > 2 else text).splitlines() if x.strip()])
