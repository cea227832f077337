"""On the meta device, which stands in for a GPU, tensors of the CPU and waits are noticed."""

import pytest
import torch
from torch import Tensor

from addnorm.checking.another_device import (
    NEEDS_VALUES,
    another_device,
    compare_device,
    device_cells,
)
from addnorm.checking.case import Case
from addnorm.checking.comparison import CellResult, run_comparisons
from addnorm.checking.matrix import AROUND_MIXERS, USUAL, Cell
from addnorm.data.batches.batch import Batch
from addnorm.nn.moe import MixtureOfExperts
from addnorm.nn.norms import LayerNorm


def result_of(family: str, **parts: str) -> CellResult:
    cell = Cell(family=family, parts=tuple((USUAL | parts).items()))  # type: ignore[arg-type]
    return run_comparisons(cell.id, another_device(Case.of(cell)))


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder_decoder"])
@pytest.mark.parametrize("position", ["rotary", "alibi", "transformer_xl"])
def test_models_run_there(family: str, position: str) -> None:
    result = result_of(family, position=position)
    assert result.failed is None
    assert result.compared == (2 if family == "encoder" else 5)


@pytest.mark.parametrize("mixer", ["rnn", "lstm", "gru", "convolutions"])
@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_mixers_run_there(family: str, mixer: str) -> None:
    cell = Cell(family=family, parts=tuple((a, USUAL[a]) for a in AROUND_MIXERS), mixer=mixer)  # type: ignore[arg-type]
    result = run_comparisons(cell.id, another_device(Case.of(cell)))
    assert result.failed is None
    assert result.compared == (2 if family == "encoder" else 5)


def test_a_tensor_of_the_cpu_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LayerNorm.forward

    def shifted(self: LayerNorm, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return forward(self, x, valid) + torch.arange(x.shape[-1], dtype=x.dtype)

    monkeypatch.setattr(LayerNorm, "forward", shifted)
    assert "device" in str(result_of("decoder").failed)


@pytest.mark.parametrize("wait", [Tensor.item, Tensor.tolist, bool, Tensor.nonzero])
def test_a_wait_for_a_value_is_noticed(wait: object, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LayerNorm.forward
    assert callable(wait)

    def waiting(self: LayerNorm, x: Tensor, valid: Tensor | None = None) -> Tensor:
        wait(x.sum() > 0)
        return forward(self, x, valid)

    monkeypatch.setattr(LayerNorm, "forward", waiting)
    assert result_of("decoder").failed is not None


@pytest.mark.parametrize(("part", "compared"), [({"feedforward": "moe"}, 5), ({"core": "flex"}, 0)])
def test_what_needs_values_is_named(part: dict[str, str], compared: int) -> None:
    result = result_of("decoder", **part)
    assert result.failed is None
    assert result.compared == compared
    assert result.needs_values
    assert {*result.needs_values} < {*NEEDS_VALUES.values()}


def test_a_mixture_with_a_tensor_of_the_cpu_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = MixtureOfExperts.forward
    monkeypatch.setattr(
        MixtureOfExperts, "forward", lambda self, x: forward(self, x) + torch.zeros(x.shape[-1])
    )
    assert "a tensor of the CPU" in str(result_of("decoder", feedforward="moe").failed)


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize("name", device_cells())
def test_the_device_is_as_the_cpu(name: str) -> None:
    result = compare_device(name)
    assert result.failed is None
    assert result.compared == 2


def failure(name: str) -> str:
    return str(compare_device(f"device/decoder/{name}").failed)


def test_a_batch_left_on_the_cpu_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "to", lambda self, device: self)
    assert "a tensor of the CPU" in failure("adamw")


def test_ends_left_on_the_cpu_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    isin = torch.isin
    monkeypatch.setattr(torch, "isin", lambda x, ends: isin(x, ends.to("cpu")))
    assert "a tensor of the CPU" in failure("beams")


@pytest.mark.parametrize("way", ["greedy", "int8_dynamic", "muon"])
def test_a_layer_left_on_the_cpu_is_detected(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LayerNorm.forward

    def shifted(self: LayerNorm, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return forward(self, x, valid) + torch.arange(x.shape[-1], dtype=x.dtype)

    monkeypatch.setattr(LayerNorm, "forward", shifted)
    assert "a tensor" in failure(way)


def test_another_result_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a kernel that only one of the devices has."""
    forward = LayerNorm.forward

    def other(self: LayerNorm, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return forward(self, x, valid) * (1.1 if x.is_meta else 1.0)

    monkeypatch.setattr(LayerNorm, "forward", other)
    assert failure("adamw") == "average of adamw on the device"
