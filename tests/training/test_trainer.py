"""The training loop: accumulation, stopping, and non-finite losses."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training import tiny
from tests.training.tiny import (
    At,
    everything,
    in_a_process,
    journal,
    same,
    steps_of,
)
from torch import Tensor, nn

from addnorm.data.batches.buckets import Batch
from addnorm.errors import InputError
from addnorm.models.weights import weights_of
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.moe import MixtureOfExperts, MixtureOfExpertsConfig, load_balance
from addnorm.nn.norms import BatchNormConfig
from addnorm.nn.routers import SigmoidRouter, SigmoidRouterConfig
from addnorm.training.callbacks import Heard, StepEvent
from addnorm.training.checkpoint import checkpoints_in
from addnorm.training.expert_load import record_router_logits
from addnorm.training.loss import cross_entropy_sum
from addnorm.training.optim import AdamWConfig, MuonConfig
from addnorm.training.trainer import (
    Batches,
    NonFiniteError,
    Trainer,
    resolve_device,
)

pytestmark = pytest.mark.usefixtures("types_unchecked")


# Accumulation.


def gradients(trainer: Trainer) -> dict[str, Tensor]:
    return {k: p.grad.clone() for k, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("model", ["translator", "decoder"])
def test_micro_batches_equal_the_large_batch(tmp_path: Path, model) -> None:
    small = tiny.trainer(tmp_path / "small", model, dropout=0.0, label_smoothing=0.1)
    big = tiny.trainer(tmp_path / "big", model, dropout=0.0, label_smoothing=0.1)
    group = list(small.batches.batches(0))
    [whole] = tiny.Merged(tiny.batches(model), len(group)).batches(0)
    assert len({batch.n_tokens for batch in group}) > 1, "ragged"
    loss = sum(small.backward([batch], whole.n_tokens)[0].item() for batch in group)
    assert loss == pytest.approx(big.backward([whole], whole.n_tokens)[0].item(), rel=1e-6)
    torch.testing.assert_close(gradients(small), gradients(big), rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", [AdamWConfig(), MuonConfig()], ids=["adamw", "muon"])
def test_twenty_steps_of_micro_batches_equal_those_of_large_batches(
    tmp_path: Path, optimizer
) -> None:
    settings = {"steps": 20, "save_every": 100, "optimizer": optimizer, "lr": 1e-3, "dropout": 0.0}
    small = tiny.trainer(tmp_path / "small", accumulate=3, **settings)
    big = tiny.trainer(tmp_path / "big", **settings)
    big.batches = tiny.Merged(tiny.batches(), 3)
    for trainer in (small, big):
        if optimizer.kind == "muon":  # it rounds to bfloat16, where a last bit of float32 grows
            trainer.model.double()
        trainer.fit()
    assert small.state.epoch == big.state.epoch > 2
    for ours, theirs in zip(journal(small.folder), journal(big.folder), strict=True):
        assert ours["tokens"] == theirs["tokens"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)


def test_a_batch_without_targets_is_accepted(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, dropout=0.0)
    first, second = list(trainer.batches.batches(0))[:2]
    trainer.update([tiny.all_ignored(first)])
    before = weights_of(trainer.model)
    assert all(w.isfinite().all() for w in before.values())
    trainer.update([tiny.all_ignored(first), second])
    assert [line["loss"] > 0 for line in journal(tmp_path)] == [False, True]


class Ignored:
    """The batches of a trainer without targets, but for that of one number in each epoch."""

    def __init__(self, inner: Batches, but: int | None = None) -> None:
        self.inner = inner
        self.but = but

    def __len__(self) -> int:
        return len(self.inner)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        for i, batch in enumerate(self.inner.batches(epoch, start), start):
            yield batch if i == self.but else tiny.all_ignored(batch)


@pytest.mark.parametrize("steps", [1, 3, 12])
def test_training_without_any_target_is_rejected(tmp_path: Path, steps: int) -> None:
    """After an epoch, or where training is shorter, and nothing is saved as trained."""
    trainer = tiny.trainer(tmp_path, steps=steps, save_every=100)
    trainer.batches = Ignored(trainer.batches)
    with pytest.raises(InputError, match=f"step {min(steps, 7)}: no batch so far has anything"):
        trainer.fit()
    assert not [*checkpoints_in(tmp_path / "checkpoints")]


def test_one_batch_with_targets_is_enough(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, steps=7)
    trainer.batches = Ignored(trainer.batches, but=6)
    trainer.fit()
    assert trainer.state.step == trainer.total_steps == 7


def test_statistics_of_micro_batches_are_rejected(tmp_path: Path) -> None:
    parts = {"norm": BatchNormConfig()}
    with pytest.raises(InputError, match=r"train\.accumulate = 2 with batchnorm .* accumulate = 1"):
        tiny.trainer(tmp_path, accumulate=2, parts=parts)
    tiny.trainer(tmp_path, accumulate=1, parts=parts)


# Mixtures of experts.


def experts(balance: float) -> dict[str, MixtureOfExpertsConfig]:
    expert = FeedForwardConfig(d_ff=5)
    return {"feedforward": MixtureOfExpertsConfig(n_experts=4, expert=expert, balance=balance)}


def balances(trainer: Trainer, batch) -> dict[str, Tensor]:
    """The load-balance loss of each mixture, without the padding of its side."""
    modules = trainer.model.named_modules()
    mixtures = {name: m for name, m in modules if isinstance(m, MixtureOfExperts)}
    with record_router_logits(mixtures) as router_logits:
        trainer.model(**batch.inputs)
    masks = {"encoder": "source_valid", "decoder": "target_valid"}
    return {
        name: load_balance(logits, 2, batch.inputs.get(masks[name.split(".")[0]]))
        for name, logits in router_logits.items()
    }


def test_the_loss_includes_the_balance_of_every_mixture(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, parts=experts(0.3), dropout=0.0)
    batch = next(b for b in trainer.batches.batches(0) if len(b.inputs) == 4)
    loss_of_step = trainer.backward([batch], batch.n_tokens)[0].item()
    ours = gradients(trainer)
    trainer.model.zero_grad()
    parts = balances(trainer, batch)
    assert list(parts) == ["encoder.blocks.0.feedforward", "decoder.blocks.0.feedforward"]
    loss = cross_entropy_sum(trainer.model(**batch.inputs), batch.targets) / batch.n_tokens
    expected = loss + 0.3 * sum(parts.values())
    expected.backward()
    assert loss_of_step == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradients(trainer), ours, rtol=1e-5, atol=1e-6)


def test_micro_batches_weight_their_balance_by_tokens(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, parts=experts(0.3), dropout=0.0)
    a, b, *_ = trainer.batches.batches(0)
    n_tokens = a.n_tokens + b.n_tokens
    loss = sum(trainer.backward([batch], n_tokens)[0].item() for batch in (a, b))
    alone = [
        trainer.backward([single], single.n_tokens)[0].item() * single.n_tokens for single in (a, b)
    ]
    assert loss == pytest.approx(sum(alone) / n_tokens, rel=1e-6)


@pytest.mark.long
def test_training_with_balance_spreads_the_load(tmp_path: Path) -> None:
    left: dict[float, float] = {}
    for balance in (0.0, 0.3):
        settings = {"steps": 60, "save_every": 1000, "dropout": 0.0}
        trainer = tiny.trainer(tmp_path / str(balance), parts=experts(balance), **settings)
        trainer.fit()
        with torch.no_grad():
            loads = [balances(trainer, batch).values() for batch in trainer.batches.batches(0)]
        left[balance] = torch.tensor([list(values) for values in loads]).mean().item()
    assert left[0.3] < 1.1
    assert left[0.0] > 1.2


@pytest.mark.long
def test_corrections_spread_the_load_without_a_loss(tmp_path: Path) -> None:
    left: dict[float, float] = {}
    for rate in (0.0, 0.02):
        router = SigmoidRouterConfig(correction_rate=rate)
        parts = {"feedforward": replace(experts(0.0)["feedforward"], router=router)}
        settings = {"steps": 60, "save_every": 1000, "dropout": 0.0, "ema": 0.9}
        trainer = tiny.trainer(tmp_path / str(rate), parts=parts, **settings)
        trainer.fit()
        left[rate] = sum(line["load_ratio"] for line in journal(tmp_path / str(rate))[-20:]) / 20
        routers = [m for m in trainer.model.modules() if isinstance(m, SigmoidRouter)]
        assert all(bool(router.correction.any()) == bool(rate) for router in routers)
    assert left[0.02] < left[0.0] - 0.2


# How long.


class Seen:
    """Notes the examples of every batch that is taken."""

    def __init__(self) -> None:
        self.inner = tiny.batches()
        self.epochs: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self.inner)

    def batches(self, epoch: int, start: int = 0):
        for batch in self.inner.batches(epoch, start):
            self.epochs.setdefault(epoch, []).extend(batch.indices)
            yield batch


@pytest.mark.parametrize("accumulate", [1, 2, 3, 100])
def test_epochs_use_every_example_once_each(tmp_path: Path, accumulate: int) -> None:
    trainer = tiny.trainer(tmp_path, epochs=3, accumulate=accumulate)
    trainer.batches = recorded = Seen()
    trainer.fit()
    assert trainer.state.step == trainer.total_steps == 3 * math.ceil(len(recorded) / accumulate)
    assert (trainer.state.epoch, trainer.state.position) == (3, 0)
    for epoch in range(3):
        assert sorted(recorded.epochs[epoch]) == list(range(23))
    assert recorded.epochs[0] != recorded.epochs[1]


@pytest.mark.parametrize("steps", [1, 12])
def test_a_run_ends_after_its_steps(tmp_path: Path, steps: int) -> None:
    trainer = tiny.trainer(tmp_path, steps=steps)
    trainer.fit()
    lines = journal(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in lines)


def test_rates_follow_the_schedule_each_from_its_own_peak(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path,
        optimizer=MuonConfig(lr=0.5),
        lr=0.01,
        steps=4,
        schedule={"kind": "linear", "warmup": 2},
    )
    muon: list[float] = []

    class Rates:
        def on_step(self, _: StepEvent) -> None:
            muon.append(trainer.optimizers[0].param_groups[0]["lr"])

    trainer.callbacks.add(Rates(), Heard())
    trainer.fit()
    assert muon == pytest.approx([0.25, 0.5, 0.5, 0.25])
    assert [line["lr"] for line in journal(tmp_path)] == pytest.approx([0.005, 0.01, 0.01, 0.005])


@pytest.mark.long
def test_the_loss_falls(tmp_path: Path) -> None:
    """The same 23 pairs again and again."""
    tiny.trainer(tmp_path, steps=120, save_every=1000, dropout=0.0).fit()
    losses = [line["loss"] for line in journal(tmp_path)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("clip", [0.5, 1e4, None])
def test_the_gradient_is_clipped_and_its_norm_before_is_logged(tmp_path: Path, clip) -> None:
    trainer = tiny.trainer(tmp_path, clip=clip, dropout=0.0)
    [batch, *_] = trainer.batches.batches(0)
    trainer.backward([batch], batch.n_tokens)
    raw = gradients(trainer)
    norm = trainer.clip(1.0, torch.tensor([1.0]))
    exact = math.sqrt(sum(float(g.double().square().sum()) for g in raw.values()))
    assert norm == pytest.approx(exact, rel=1e-5)
    assert norm > 0.5
    factor = 1.0 if clip is None else min(1.0, clip / exact)
    for name, gradient in gradients(trainer).items():
        torch.testing.assert_close(gradient, raw[name] * factor, rtol=1e-4, atol=1e-7)


# What is not finite.


def poison_gradient(trainer: Trainer, step: int, name: str, factor: float = float("nan")) -> None:
    def hook(gradient: Tensor) -> Tensor:
        return gradient * factor if trainer.state.step == step - 1 else gradient

    dict(trainer.model.named_parameters())[name].register_hook(hook)


def poison_loss(trainer: Trainer, step: int, value: float) -> None:
    def hook(_: nn.Module, __: object, logits: Tensor) -> Tensor:
        return logits * value if trainer.state.step == step - 1 else logits

    trainer.model.get_submodule("head").register_forward_hook(hook)


TENSOR = "encoder.blocks.0.feedforward.up_proj.weight"


def test_a_norm_that_overflows_names_the_largest_gradient(tmp_path) -> None:
    """Each gradient is finite, and the sum of their squares is not."""
    trainer = tiny.trainer(tmp_path)
    poison_gradient(trainer, 2, TENSOR, 1e30)
    expected = f"the norm of the gradient overflows, the largest being that of {TENSOR}."
    with pytest.raises(NonFiniteError, match=expected):
        trainer.fit()


@pytest.mark.parametrize("where", ["gradient", "loss"])
@pytest.mark.parametrize("optimizer", [AdamWConfig(), MuonConfig()], ids=["adamw", "muon"])
def test_a_loss_or_gradient_that_is_not_finite_stops_before_the_update(
    tmp_path, where, optimizer
) -> None:
    settings = {"ema": 0.9, "optimizer": optimizer, "accumulate": 2}
    trainer = tiny.trainer(tmp_path, keep=1, save_every=3, **settings)
    before: dict[str, Tensor] = {}
    trainer.callbacks.add(At(7, lambda: before.update(everything(trainer))), Heard())
    if where == "gradient":
        poison_gradient(trainer, 8, TENSOR)
    else:
        poison_loss(trainer, 8, float("nan"))
    with pytest.raises(NonFiniteError, match=r"step 8: ") as raised:
        trainer.fit()
    if where == "gradient":
        assert f"that of {TENSOR}." in str(raised.value)
    else:
        assert "the loss is nan" in str(raised.value)
        assert "that of source_embed.tokens.weight." in str(raised.value)
    after = everything(trainer)
    del before["cpu"], after["cpu"]  # the forward pass has drawn its dropout
    same(after, before)
    assert steps_of(tmp_path) == [6]
    assert [line["step"] for line in journal(tmp_path)] == list(range(1, 8))
    again = tiny.trainer(tmp_path, seed=4, **settings)
    again.resume()
    again.fit()
    assert again.state.step == 12


# Precision and devices.


def test_float16_is_rejected_on_a_cpu_before_anything_is_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="float16"):
        tiny.trainer(tmp_path, precision="float16").fit()
    assert checkpoints_in(tmp_path / "checkpoints") == []


def test_bfloat16_keeps_weights_and_state_in_float32(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, precision="bfloat16")
    exact = tiny.trainer(tmp_path / "exact")
    trainer.fit()
    exact.fit()
    for name, tensor in everything(trainer).items():
        assert tensor.dtype in (torch.float32, torch.uint8) or name == "standing"
    ours, theirs = journal(tmp_path), journal(tmp_path / "exact")
    assert ours != theirs
    assert ours[-1]["loss"] == pytest.approx(theirs[-1]["loss"], rel=0.1)


def test_a_missing_gpu_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(InputError, match="no GPU here: use 'cpu' or 'auto'"):
        resolve_device("cuda")


COMPILED = """
import sys; from pathlib import Path; from tests.training import tiny
from addnorm.nn.moe import MixtureOfExpertsConfig; from addnorm.nn.norms import BatchNormConfig
parts = {
    "plain": {},
    "experts": {"feedforward": MixtureOfExpertsConfig(n_experts=3, balance=0.3)},
    "batchnorm": {"norm": BatchNormConfig()},
}[sys.argv[2]]
for compile in (False, True):
    folder = Path(sys.argv[1], str(compile))
    tiny.trainer(folder, steps=6, dropout=0.0, compile=compile, parts=parts).fit()
"""


ONE_GRAPH = """
import sys; from pathlib import Path; import torch; from tests.training import tiny
for model in ("translator", "decoder"):
    for precision, dropout in (("float32", 0.0), ("bfloat16", 0.2)):
        trainer = tiny.trainer(
            Path(sys.argv[1]), model, dropout=dropout, precision=precision, label_smoothing=0.1
        )
        torch._dynamo.reset()
        whole = torch.compile(trainer.loss, fullgraph=True, backend="eager", dynamic=True)
        for batch in list(trainer.batches.batches(0))[:3]:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                found = whole(batch.inputs, batch.targets, None)
                expected = trainer.loss(batch.inputs, batch.targets, None)
            rtol = 0.5 if dropout else 1e-5
            torch.testing.assert_close(found, expected, rtol=rtol, atol=0)
"""


@pytest.mark.long
def test_a_step_is_compiled_as_one_graph(tmp_path: Path) -> None:
    """A break in it costs more than compilation gains; `fullgraph` raises where it is."""
    done = in_a_process(ONE_GRAPH, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("parts", ["plain", "experts", "batchnorm"])
def test_compiled_training_is_the_same(tmp_path: Path, parts: str) -> None:
    """In another process: the run-time checks of types are not for compilers."""
    done = in_a_process(COMPILED, tmp_path, parts)
    assert done.returncode == 0, done.stderr
    eagers, compileds = (journal(tmp_path / name) for name in ("False", "True"))
    for eager, compiled in zip(eagers, compileds, strict=True):
        assert compiled == pytest.approx(eager, rel=1e-4)
