"""The choice of a kernel for cross-entropy; `tests/training/test_loss.py` has the numbers."""

import pytest
import torch

from addnorm.compiler import has_compiler
from addnorm.kernels.build import load_operator
from addnorm.nn import cross_entropy
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.cross_entropy import cross_entropy_and_gradient


@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_by_choice_the_operator_computes_float32_and_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load_operator(cross_entropy.OPERATOR)
    calls: list[torch.dtype] = []
    by_operator = cross_entropy.cross_entropy
    monkeypatch.setattr(
        cross_entropy,
        "cross_entropy",
        lambda x, *rest, **named: (calls.append(x.dtype), by_operator(x, *rest, **named))[1],
    )
    logits, targets = torch.randn(6, 11), torch.tensor([0, 10, -1, 4, 4, 4])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = logits.to(dtype)
        expected = cross_entropy_and_gradient(x, targets, 0.1, ignored=-1)
        with use_choices(KernelChoices(cross_entropy="operator")):
            got = cross_entropy_and_gradient(x, targets, 0.1, ignored=-1)
        torch.testing.assert_close(got, expected)
    assert calls == [torch.float32, torch.bfloat16]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch's own import
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_short_targets_and_forward_mode_are_left_to_torch() -> None:
    load_operator(cross_entropy.OPERATOR)
    logits, targets = torch.randn(6, 11), torch.tensor([0, 10, -1, 4, 4, 4])

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return cross_entropy_and_gradient(logits, targets, 0.1, ignored=-1)[0]

    expected, of_logits = cross_entropy_and_gradient(logits, targets, 0.1, ignored=-1)
    with use_choices(KernelChoices(cross_entropy="operator")):
        short, _ = cross_entropy_and_gradient(logits, targets.int(), 0.1, ignored=-1)
        _, slope = torch.func.jvp(loss, (logits,), (logits,))
    torch.testing.assert_close(short, expected)
    torch.testing.assert_close(slope, (of_logits * logits).sum())
