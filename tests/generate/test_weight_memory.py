"""Weights that move to huge pages are the same weights, with the same ones shared."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from addnorm import machine
from addnorm.generate import CompiledContinuation, GreedyConfig, generate, weight_memory
from addnorm.generate.weight_memory import lay_out
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.quantize import DynamicConfig, Int4Config, quantize

pytestmark = pytest.mark.skipif(
    machine.huge_pages(1) is None, reason="this system has no transparent huge pages"
)


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "MANY", 0)


def decoder() -> DecoderModel:
    torch.manual_seed(0)
    return DecoderConfig(d_model=64, n_layers=2).build(vocab_size=60).eval()


class Holder(nn.Module):
    """A module that holds these tensors."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def addresses(module: nn.Module) -> list[int]:
    return [tensor.data_ptr() for tensor in module.state_dict().values()]


def test_a_model_stays_as_it_was_and_moves_once(tmp_path: Path) -> None:
    model = decoder()
    parameters, before = [*model.parameters()], addresses(model)
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    ids = torch.randint(0, 60, (2, 7))
    want = model(ids)
    lay_out(model)
    moved = addresses(model)
    assert not {*before} & {*moved}
    assert all(at % 64 == 0 for at in moved)
    assert all(x is y for x, y in zip(parameters, model.parameters(), strict=True))
    torch.testing.assert_close(model(ids), want, rtol=0, atol=0)
    lay_out(model)
    assert addresses(model) == moved
    save_file(dict(model.named_parameters()), tmp_path / "weights.safetensors")
    kept = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(kept[name], weight) for name, weight in weights.items())
    model(ids).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert not all(torch.equal(kept[k], v) for k, v in model.named_parameters())


def test_memory_is_shared_afterwards_where_it_was_before() -> None:
    table = torch.randn(9, 4)
    holder = Holder(
        table=table, tied=table.view(9, 4), bits=table.view(torch.int32), other=table + 1
    )
    lay_out(holder)
    assert holder.table.data_ptr() == holder.tied.data_ptr() == holder.bits.data_ptr()
    holder.table[3, 2] = 5
    assert holder.tied[3, 2] == 5
    assert holder.bits.dtype == torch.int32
    assert holder.other.data_ptr() != holder.table.data_ptr()


def test_tied_weights_are_saved_once(tmp_path: Path) -> None:
    table = torch.randn(9, 4)
    holder = Holder(table=table, tied=table.view(9, 4))
    lay_out(holder)
    torch.save(holder.state_dict(), tmp_path / "holder.pt")
    loaded = torch.load(tmp_path / "holder.pt")
    assert loaded["table"].data_ptr() == loaded["tied"].data_ptr()


def test_views_in_another_order_stay_shared() -> None:
    base = torch.randn(4, 6)
    holder = Holder(one=base.t(), two=base.t())
    lay_out(holder)
    holder.one.fill_(7)
    assert (holder.two == 7).all()
    assert holder.two.is_contiguous()


def test_weights_that_moved_in_inference_mode_can_be_trained() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].weight.data = model[0].weight.data.t()
    with torch.inference_mode():
        lay_out(model)
    model(torch.randn(2, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_memory_of_several_processes_stays_in_place() -> None:
    model = decoder().share_memory()
    before = addresses(model)
    lay_out(model)
    assert addresses(model) == before


def test_tensors_that_overlap_stay_in_place() -> None:
    whole = torch.randn(9, 4)
    holder = Holder(whole=whole, part=whole[2:5], empty=torch.empty(0, 3))
    before = addresses(holder)
    lay_out(holder)
    assert addresses(holder) == before


def test_another_order_becomes_contiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "MANY", 2**60)
    weight = torch.randn(5, 3)
    holder = Holder(turned=weight.t(), plain=weight)
    lay_out(holder)
    assert holder.turned.is_contiguous()
    assert torch.equal(holder.turned, weight.t())
    assert holder.plain.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(weight_memory, "available_memory", lambda: 100),
        lambda patch: patch.setattr(machine, "TRANSPARENT_HUGE_PAGES", Path("/none")),
        lambda patch: patch.delattr("mmap.MADV_HUGEPAGE"),
        lambda patch: patch.setattr(machine, "HUGE_PAGE", 2**60),
    ],
    ids=["no memory", "no policy", "another system", "no more memory for this process"],
)
def test_without_room_or_huge_pages_nothing_moves(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    model = decoder()
    before = addresses(model)
    lay_out(model)
    assert addresses(model) == before


def test_a_policy_of_never_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "enabled"
    policy.write_text("always madvise [never]\n", encoding="ascii")
    monkeypatch.setattr(machine, "TRANSPARENT_HUGE_PAGES", policy)
    assert machine.huge_pages(100) is None


def test_memory_is_freed_with_the_last_tensor() -> None:
    gc.collect()
    before = len(weight_memory._blocks)
    holder = Holder(x=torch.randn(8), y=torch.randn(8))
    lay_out(holder)
    y = holder.y
    del holder
    gc.collect()
    assert len(weight_memory._blocks) == before + 1
    assert y.isfinite().all()
    del y
    gc.collect()
    assert len(weight_memory._blocks) == before


@pytest.mark.slow
@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("bits", [32, 4])
def test_graphs_generate_the_same(
    several: bool, bits: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    model = decoder()
    if bits == 4:
        quantize(model, Int4Config(activations=DynamicConfig()))
    prompts, greedy = [[1, 2, 3], [4, 5, 6]][: 1 + several], GreedyConfig()
    want = generate(model, prompts, greedy, max_new_tokens=6, eos_id=None)
    compiled = CompiledContinuation(model, several=several)
    got = generate(compiled, prompts, greedy, max_new_tokens=6, eos_id=None)
    scores = ([text.score for [text] in texts] for texts in (got, want))
    exact = 3e-2 if bits == 4 else 1e-4
    torch.testing.assert_close(*map(torch.tensor, scores), rtol=exact, atol=exact)
