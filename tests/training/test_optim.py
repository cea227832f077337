"""Which optimiser updates which parameter, and round trips of optimiser state."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from tests.contracts import check_records, named
from tests.training import tiny
from tests.training.tiny import At, Crash, crash, everything, same
from torch import nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import ClassificationHeadConfig, TokenHeadConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.training.callbacks import StepEvent
from addnorm.training.muon import Muon
from addnorm.training.optim import (
    AdadeltaConfig,
    AdamW8bitConfig,
    AdamWConfig,
    MaxNorm,
    MaxNormConfig,
    MuonConfig,
    OptimizerConfig,
    check_installed,
    restore_optimizers,
    roles_of,
)

BUILT = [
    AdamWConfig(weight_decay=0.1),
    MuonConfig(weight_decay=0.2),
    AdadeltaConfig(rho=0.9, weight_decay=0.1),
]
RECORDS = [*BUILT, AdamW8bitConfig(block_size=128)]
SMALL = {"d_model": 16, "n_layers": 2, "attention": AttentionConfig(n_heads=2)}
MODELS = {
    "decoder": lambda: DecoderConfig(**SMALL).build(11),
    "untied": lambda: DecoderConfig(**SMALL, head=TokenHeadConfig(tied=False)).build(11),
    "learned positions": lambda: DecoderConfig(**SMALL, position=LearnedConfig()).build(11),
    "translator": lambda: EncoderDecoderConfig(**SMALL).build(11),
    "two vocabularies": lambda: EncoderDecoderConfig(**SMALL, share_embeddings=False).build(11, 7),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[request.param]()


def ids(parameters) -> list[int]:
    return sorted(map(id, parameters))


def test_every_optimiser_has_a_record() -> None:
    check_records(OptimizerConfig, RECORDS)


def test_each_parameter_has_one_role(model: nn.Module) -> None:
    roles = roles_of(model)
    assert ids(roles.matrices + roles.tables + roles.vectors) == ids(model.parameters())


def test_roles_follow_the_kind_of_parameter(model: nn.Module) -> None:
    roles = roles_of(model)
    name = {id(p): name for name, p in model.named_parameters()}
    linear = {
        f"{path}.weight"
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and ".blocks." in path
    }
    assert {name[id(p)] for p in roles.matrices} == linear
    assert all("embed" in name[id(p)] or name[id(p)] == "head.weight" for p in roles.tables)
    assert all(p.ndim == 1 for p in roles.vectors)
    assert roles.tables


def test_a_frozen_parameter_has_no_role() -> None:
    model = MODELS["decoder"]()
    frozen = next(model.parameters()).requires_grad_(False)
    roles = roles_of(model)
    assert id(frozen) not in ids(roles.matrices + roles.tables + roles.vectors)


@pytest.mark.parametrize("config", named(RECORDS))
def test_each_parameter_is_in_one_group_of_one_optimiser(model: nn.Module, config) -> None:
    groups = [g for o in config.build(model, lr=0.5) for g in o.param_groups]
    assert ids(p for g in groups for p in g["params"]) == ids(model.parameters())


def test_adamw_does_not_decay_vectors(model: nn.Module) -> None:
    [adamw] = AdamWConfig(weight_decay=0.1, betas=(0.8, 0.9), eps=1e-7).build(model, lr=0.5)
    for group in adamw.param_groups:
        assert group["lr"] == 0.5
        assert group["betas"] == (0.8, 0.9)
        assert group["eps"] == 1e-7
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.1 if parameter.ndim > 1 else 0.0)


def test_muon_moves_the_matrices_of_the_stacks_and_adamw_the_rest(model: nn.Module) -> None:
    config = MuonConfig(lr=0.3, weight_decay=0.2, adamw=AdamWConfig(weight_decay=0.1))
    muon, adamw = config.build(model, lr=0.5)
    roles = roles_of(model)
    assert isinstance(muon, Muon)
    [group] = muon.param_groups
    assert ids(group["params"]) == ids(roles.matrices)
    assert (group["lr"], group["weight_decay"]) == (0.3, 0.2)
    rest = {id(p): g for g in adamw.param_groups for p in g["params"]}
    assert sorted(rest) == ids(roles.tables + roles.vectors)
    assert all(rest[id(p)]["weight_decay"] == 0.1 for p in roles.tables)
    assert all(rest[id(p)]["weight_decay"] == 0.0 for p in roles.vectors)


def test_adamw_equals_its_formula() -> None:
    """Loshchilov & Hutter 2019, algorithm 2, in float64."""
    model = nn.Linear(3, 2).double()
    lr, b1, b2, eps, decay = 0.1, 0.9, 0.98, 1e-9, 0.01
    [adamw] = AdamWConfig(betas=(b1, b2), eps=eps, weight_decay=decay).build(model, lr)
    theta = model.weight.detach().clone()
    m = v = torch.zeros_like(theta)
    for t in range(1, 6):
        g = torch.randn_like(theta)
        model.weight.grad = g.clone()
        adamw.step()
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        step = (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
        theta = theta - lr * decay * theta - lr * step
        torch.testing.assert_close(model.weight.detach(), theta, rtol=1e-12, atol=1e-12)


def test_adadelta_equals_its_formula() -> None:
    """Zeiler 2012, algorithm 1, in float64; L2 acts on the matrix alone."""
    model = nn.Linear(3, 2).double()
    lr, rho, eps, decay = 0.5, 0.95, 1e-6, 0.01
    [adadelta] = AdadeltaConfig(rho=rho, eps=eps, weight_decay=decay).build(model, lr)
    for parameter, penalty in ((model.weight, decay), (model.bias, 0.0)):
        theta = parameter.detach().clone()
        squares = steps = torch.zeros_like(theta)
        for _ in range(6):
            gradient = torch.randn_like(theta)
            for other in model.parameters():
                other.grad = None
            parameter.grad = gradient.clone()
            adadelta.step()
            g = gradient + penalty * theta
            squares = rho * squares + (1 - rho) * g**2
            step = g * ((steps + eps) / (squares + eps)).sqrt()
            steps = rho * steps + (1 - rho) * step**2
            theta = theta - lr * step
            torch.testing.assert_close(parameter.detach(), theta, rtol=1e-12, atol=1e-12)


def move(model: nn.Module, optimizers: list[torch.optim.Optimizer], n: int = 3) -> None:
    for _ in range(n):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for optimizer in optimizers:
            optimizer.step()


def check_round_trip(model: nn.Module, config: Any) -> dict[str, torch.Tensor]:
    """A restored state equals the saved one, and so do its next steps; return its tensors."""
    first = config.build(model, lr=0.01)
    move(model, first)
    tensors = {name: t.clone() for name, t in tiny.states(first).items()}
    twin = copy.deepcopy(model)
    second = config.build(twin, lr=0.01)
    assert tiny.states(second) == {}
    restore_optimizers(second, tensors)
    tiny.same(tensors, tiny.states(second))
    for m, optimizers in ((model, first), (twin, second)):
        torch.manual_seed(1)
        move(m, optimizers)
    tiny.same(model.state_dict(), twin.state_dict())
    tiny.same(tiny.states(first), tiny.states(second))
    return tensors


@pytest.mark.parametrize("config", named(BUILT))
def test_the_state_round_trips_through_tensors(model: nn.Module, config) -> None:
    check_round_trip(model, config)


def test_restored_settings_are_those_of_the_config() -> None:
    """So a resumed run takes a new learning rate or decay."""
    model = MODELS["decoder"]()
    old = AdamWConfig(weight_decay=0.1).build(model, lr=0.01)
    move(model, old)
    new = AdamWConfig(weight_decay=0.3).build(model, lr=0.02)
    restore_optimizers(new, tiny.states(old))
    assert new[0].param_groups[0]["lr"] == 0.02
    assert new[0].param_groups[0]["weight_decay"] == 0.3


# States of 8 bits.


@pytest.fixture
def wide() -> nn.Module:
    """A decoder with matrices that are large enough for 8 bits."""
    pytest.importorskip("torchao", exc_type=ImportError)
    config = DecoderConfig(d_model=64, n_layers=1, attention=AttentionConfig(n_heads=2))
    return config.build(11)


def test_only_matrices_of_the_stacks_have_8_bit_states(wide: nn.Module) -> None:
    """As embeddings are in 32 bits in Dettmers et al. 2022, §2.3."""
    narrow, rest = AdamW8bitConfig(weight_decay=0.1, betas=(0.8, 0.9)).build(wide, lr=0.5)
    roles = roles_of(wide)
    [group] = narrow.param_groups
    assert ids(group["params"]) == ids(roles.matrices)
    assert (float(group["lr"]), group["weight_decay"], group["betas"]) == (0.5, 0.1, (0.8, 0.9))
    assert isinstance(rest, torch.optim.AdamW)
    assert ids(p for g in rest.param_groups for p in g["params"]) == ids(
        roles.tables + roles.vectors
    )


def test_missing_torchao_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(
        InputError, match=r'"adamw_8bit" is .* pip install "addnorm\[compression\]"'
    ):
        check_installed(AdamW8bitConfig())
    check_installed(AdamWConfig())


def test_a_state_of_another_type_is_rejected(wide: nn.Module) -> None:
    pytest.importorskip("torchao", exc_type=ImportError)
    from torchao.optim import AdamW4bit

    other = AdamW4bit(wide.parameters())
    for parameter in wide.parameters():
        other.state[parameter]["exp_avg"] = other._new_buffer(parameter, True)
    with pytest.raises(InputError, match="AdamW4bit keeps exp_avg as OptimState4bit"):
        tiny.states([other])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.usefixtures("types_unchecked")
def test_8_bit_states_round_trip_through_tensors(wide: nn.Module) -> None:
    tensors = check_round_trip(wide, AdamW8bitConfig())
    n = sum(p.numel() for p in roles_of(wide).matrices)
    states = [t for name, t in tensors.items() if name.endswith(".codes")]
    assert all(t.dtype == torch.uint8 for t in states)
    assert sum(t.numel() for t in states) == 2 * n
    assert {type(t) for t in tensors.values()} == {torch.Tensor}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.usefixtures("types_unchecked")
def test_steps_with_8_bit_states_are_near_those_with_32_bits(wide: nn.Module) -> None:
    twin, start = copy.deepcopy(wide), copy.deepcopy(wide)
    for m, config in ((wide, AdamW8bitConfig()), (twin, AdamWConfig(eps=1e-8))):
        torch.manual_seed(1)
        move(m, config.build(m, lr=0.01), n=5)
    before, ours, theirs = (
        torch.cat([p.detach().flatten() for p in roles_of(m).matrices]) for m in (start, wide, twin)
    )
    assert not torch.equal(ours, theirs)
    assert (ours - theirs).norm() < 0.05 * (theirs - before).norm()


TIGHT = MaxNormConfig(bound=0.4, parameters="*up_proj.weight")
SETTINGS = {"constraint": TIGHT, "optimizer": AdadeltaConfig(), "lr": 1.0}


def classifier() -> nn.Module:
    torch.manual_seed(0)
    parts = {"attention": AttentionConfig(n_heads=2), "head": ClassificationHeadConfig()}
    return EncoderConfig(d_model=8, n_layers=1, **parts).build(11, 6)


@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 2)])
def test_each_row_equals_its_formula(shape: tuple[int, ...]) -> None:
    """Short rows stay bit for bit, long ones keep their direction; a filter is one row."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    norms = weight.detach().flatten(1).norm(dim=1)
    bound = float(norms.median())
    before = weight.detach().clone()
    MaxNorm([weight], bound=bound).apply()
    for old, new, norm in zip(before, weight.detach(), norms, strict=True):
        if norm <= bound:
            assert torch.equal(old, new)
        else:
            torch.testing.assert_close(new, old * bound / norm, rtol=1e-6, atol=1e-9)


def test_by_default_the_last_matrix_of_a_classifier_is_bounded() -> None:
    model = classifier()
    [weight] = MaxNormConfig().build(model).weights
    assert weight is dict(model.named_parameters())["head.proj.weight"]


class Norms:
    """The largest norms of the rows that are bound, after each step."""

    def __init__(self) -> None:
        self.model: nn.Module | None = None
        self.seen: list[float] = []

    def on_step(self, _: StepEvent) -> None:
        assert self.model is not None
        rows = [w.detach().norm(dim=1).max() for w in TIGHT.build(self.model).weights]
        self.seen.append(float(torch.stack(rows).max()))


@pytest.mark.usefixtures("types_unchecked")
def test_rows_are_within_the_bound_after_each_step_and_so_is_their_average(tmp_path: Path) -> None:
    norms = Norms()
    trainer = tiny.trainer(tmp_path, callbacks=[norms], ema=0.5, **SETTINGS)
    norms.model = trainer.model
    trainer.fit()
    assert len(norms.seen) == trainer.total_steps
    assert max(norms.seen) <= 0.4 * (1 + 1e-5)
    assert max(norms.seen) == pytest.approx(0.4, rel=1e-4), "the bound was reached"
    assert all(w.norm(dim=1).max() > 0.4 for w in TIGHT.build(tiny.build()).weights)
    for weight in TIGHT.build(trainer.model).weights:  # those of the moving average
        assert weight.detach().norm(dim=1).max() <= 0.4 * (1 + 1e-5)


@pytest.mark.usefixtures("types_unchecked")
def test_adadelta_under_a_bound_resumes_bit_for_bit(tmp_path: Path) -> None:
    straight = tiny.trainer(tmp_path / "straight", **SETTINGS)
    straight.fit()
    first = tiny.trainer(tmp_path / "half", callbacks=[At(8, crash)], **SETTINGS)
    with pytest.raises(Crash):
        first.fit()
    second = tiny.trainer(tmp_path / "half", seed=7, **SETTINGS)
    assert second.resume() == []
    assert second.state.step > 0
    second.fit()
    same(everything(second), everything(straight))


def test_a_name_without_a_match_is_rejected_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'head.project.weight': .* is 'head.proj.weight'"):
        MaxNormConfig(parameters="head.project.weight").build(classifier())


def test_a_vector_is_rejected() -> None:
    with pytest.raises(InputError, match=r"head.proj.bias has one axis and so no rows"):
        MaxNormConfig(parameters="head.proj.*").build(classifier())


@pytest.mark.parametrize("bound", [0.0, -1.0, "three"])
def test_a_bound_must_be_positive(bound: object) -> None:
    with pytest.raises(ValueError, match="bound"):
        TypeAdapter(MaxNormConfig).validate_python({"bound": bound})
