"""Training, writing and quantised models run on a stand-in; the CPU's tensors are noticed."""

import pytest
import torch
from torch import Tensor

from addnorm.checking.on_the_device import compare_device, device_cells
from addnorm.data.batches.batch import Batch
from addnorm.nn.norms import LayerNorm


@pytest.mark.long
@pytest.mark.parametrize("name", device_cells())
def test_the_device_is_as_the_cpu(name: str) -> None:
    result = compare_device(name)
    assert result.failed is None
    assert result.compared == 2


def failure(name: str) -> str:
    return str(compare_device(f"device/decoder/{name}").failed)


def test_a_batch_left_on_the_cpu_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "to", lambda self, device: self)
    assert "a tensor of the CPU" in failure("adamw")


def test_ends_left_on_the_cpu_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    isin = torch.isin
    monkeypatch.setattr(torch, "isin", lambda x, ends: isin(x, ends.to("cpu")))
    assert "a tensor of the CPU" in failure("beams")


@pytest.mark.parametrize("way", ["greedy", "int8_dynamic", "muon"])
def test_a_layer_that_stays_is_noticed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LayerNorm.forward

    def shifted(self: LayerNorm, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return forward(self, x, valid) + torch.arange(x.shape[-1], dtype=x.dtype)

    monkeypatch.setattr(LayerNorm, "forward", shifted)
    assert "a tensor" in failure(way)


def test_another_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a kernel that only one of the devices has."""
    forward = LayerNorm.forward

    def other(self: LayerNorm, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return forward(self, x, valid) * (1.1 if x.is_meta else 1.0)

    monkeypatch.setattr(LayerNorm, "forward", other)
    assert failure("adamw") == "average of adamw on the device"
