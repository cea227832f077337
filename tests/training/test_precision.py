"""The dtype of products, and when losses are scaled."""

import pytest
import torch

from addnorm.errors import InputError
from addnorm.training import precision as precisions
from addnorm.training.precision import autocast, loss_scaler, resolve_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_products_run_in_the_precision_and_weights_keep_theirs(precision, dtype) -> None:
    linear = torch.nn.Linear(3, 4)
    with autocast(precision, CPU):
        out = linear(torch.randn(2, 3))
    assert out.dtype == dtype
    out.float().sum().backward()
    assert linear.weight.dtype == linear.weight.grad.dtype == torch.float32
    assert linear(torch.randn(2, 3)).dtype == torch.float32, "outside the context nothing changes"


def test_float16_is_rejected_on_a_cpu() -> None:
    with pytest.raises(InputError, match=r"float16.*needs a GPU.*'bfloat16' or 'float32'"):
        autocast("float16", CPU)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_float16_scales_the_loss(precision) -> None:
    scaler = loss_scaler(precision, CPU)
    assert not scaler.is_enabled()
    assert scaler.scale(torch.tensor(2.0)) == 2.0
    assert scaler.state_dict() == {}


@pytest.mark.gpu
def test_float16_scales_the_loss_on_a_gpu() -> None:
    scaler = loss_scaler("float16", torch.device("cuda"))
    assert scaler.is_enabled()
    assert scaler.scale(torch.ones((), device="cuda")) > 1


@pytest.mark.parametrize("native", [False, True])
def test_auto_is_bfloat16_if_it_is_native(monkeypatch, native: bool) -> None:
    monkeypatch.setattr(precisions, "multiplies_natively", lambda *_: native)
    assert resolve_precision("auto", CPU) == ("bfloat16" if native else "float32")
    assert resolve_precision("bfloat16", CPU) == "bfloat16"
    with autocast("auto", CPU):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype is (torch.bfloat16 if native else torch.float32)
