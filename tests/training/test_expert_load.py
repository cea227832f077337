"""The experts in training: the loss that balances them, and their load against counts by hand."""

import json
from pathlib import Path

import pytest
import torch
from tests.runs.tiny import LANGUAGE, train_text, write_corpora
from torch import Tensor, nn

from addnorm.nn.moe import MixtureOfExperts, load_balance
from addnorm.training.expert_load import (
    ExpertLoad,
    balance_loss,
    mixtures_of,
    record_router_logits,
)
from addnorm.training.parallel.world import OneProcess

VALID = torch.tensor([[True, True, True, False], [True, True, True, False]])


def logits(*chosen: int) -> Tensor:
    """Router logits of two texts of four tokens, that prefer these experts of three."""
    return nn.functional.one_hot(torch.tensor(chosen), 3).float().view(2, 4, 3)


def load(capacity_factor: float | None = None) -> ExpertLoad:
    experts = [nn.Identity() for _ in range(3)]
    mixture = MixtureOfExperts(4, experts, top_k=1, capacity_factor=capacity_factor)
    return ExpertLoad({"stack.0": mixture}, OneProcess())


def test_the_load_ratio_is_the_largest_load_over_the_mean_without_padding() -> None:
    counted = load()
    counted.count({"stack.0": logits(0, 0, 1, 2, 0, 0, 2, 2)}, {"valid": VALID})  # 4, 1, 1
    assert counted.figures() == {"load_ratio": pytest.approx(2.0)}
    assert counted.latest == {"load_ratio": pytest.approx(2.0)}
    assert counted.figures() == {}


def test_micro_batches_add_up() -> None:
    counted = load()
    for expert in range(3):
        counted.count({"stack.0": logits(*[expert] * 8)}, {})
    assert counted.figures() == {"load_ratio": pytest.approx(1.0)}


def test_the_dropped_share_counts_real_tokens() -> None:
    counted = load(0.75)  # two places
    counted.count({"stack.0": logits(0, 0, 0, 0, 0, 1, 2, 2)}, {"valid": VALID})
    assert counted.figures() == {"load_ratio": pytest.approx(2.0), "dropped": pytest.approx(2 / 6)}


def test_at_inference_nothing_is_dropped() -> None:
    counted = load(0.75)
    counted.mixtures["stack.0"].eval()
    counted.count({"stack.0": logits(*[0] * 8)}, {})
    assert counted.figures() == {"load_ratio": pytest.approx(3.0)}


def test_without_mixtures_or_real_tokens_there_are_no_figures() -> None:
    assert ExpertLoad({}, OneProcess()).figures() == {}
    counted = load(0.75)
    counted.count({"stack.0": logits(*[0] * 8)}, {"valid": torch.zeros_like(VALID)})
    assert counted.figures() == {}


def test_every_line_of_a_run_has_the_load_and_what_was_dropped(tmp_path: Path) -> None:
    write_corpora(tmp_path)
    moe = 'feedforward = { kind = "moe", n_experts = 4, top_k = 2, capacity_factor = 0.75 }'
    text = LANGUAGE.replace('feedforward = { kind = "mlp", d_ff = 32 }', moe)
    train_text(tmp_path, "run", text)
    curve = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in curve.splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 4
    for line in steps:
        assert 1.0 <= line["load_ratio"] <= 2.0  # of 4 experts, a token takes 2
        assert 0.25 <= line["dropped"] < 1.0  # there are places for three of four choices
    assert any("valid_loss" in line for line in lines)


# The loss that balances the experts.


class Two(nn.Module):
    """Stands for a model of two stacks with a mixture each, and one that asks for no balance."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.extra = (
            nn.Sequential(MixtureOfExperts(4, [nn.Linear(4, 4) for _ in range(3)], **settings))
            for settings in ({"top_k": 1, "balance": 0.5}, {"top_k": 2}, {"top_k": 2, "balance": 0})
        )

    def forward(self, source: Tensor, target: Tensor, **_: Tensor) -> Tensor:
        return self.extra(self.encoder(source).mean(1, keepdim=True) + self.decoder(target))


@pytest.mark.parametrize("masked", [True, False])
def test_the_load_of_each_stack_has_its_own_mask(masked: bool) -> None:
    """Source and target of one shape: only the names of the stacks distinguish their masks."""
    model, inputs = Two(), {"source": torch.randn(2, 3, 4), "target": torch.randn(2, 3, 4)}
    valid = {f"{side}_valid": torch.rand(2, 3) > 0.4 for side in inputs} if masked else {}
    mixtures = mixtures_of(model)
    assert list(mixtures) == ["encoder.0", "decoder.0", "extra.0"]
    with record_router_logits(mixtures) as router_logits:
        model(**inputs)
    loss = balance_loss(mixtures, router_logits, inputs | valid, OneProcess())
    source = load_balance(model.encoder[0].router(inputs["source"]), 1, valid.get("source_valid"))
    target = load_balance(model.decoder[0].router(inputs["target"]), 2, valid.get("target_valid"))
    torch.testing.assert_close(loss, 0.5 * source + 0.01 * target)


def test_recording_ends_with_its_context() -> None:
    model = Two()
    with record_router_logits(mixtures_of(model)) as router_logits:
        model(torch.randn(2, 3, 4), torch.randn(2, 3, 4))
    assert len(router_logits) == 3
    router_logits.clear()
    model(torch.randn(2, 3, 4), torch.randn(2, 3, 4))
    assert not router_logits


def test_a_model_of_one_stack_has_one_mask_where_it_fits() -> None:
    mixture = MixtureOfExperts(4, [nn.Linear(4, 4) for _ in range(3)], top_k=1, balance=1.0)
    logits, valid = torch.randn(2, 3, 3), torch.tensor([[True, False, True], [True, True, False]])
    loss = balance_loss({"stack.0": mixture}, {"stack.0": logits}, {"valid": valid}, OneProcess())
    assert torch.equal(loss, load_balance(logits, 1, valid))
    loss = balance_loss(
        {"stack.0": mixture}, {"stack.0": logits}, {"valid": valid[:, :2]}, OneProcess()
    )
    assert torch.equal(loss, load_balance(logits, 1))


def test_without_mixtures_there_is_nothing_to_balance() -> None:
    assert mixtures_of(nn.Linear(2, 2)) == {}
    assert balance_loss({}, {}, {}, OneProcess()) == 0.0
