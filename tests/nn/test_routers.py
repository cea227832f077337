"""Routers: gates by hand and in float64, groups, corrections, parity, and what is refused."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import started
from torch import Tensor
from torch.testing import assert_close

from addnorm.checking.definition.feedforward import routed
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig, load_balance
from addnorm.nn.routers import Router, SigmoidRouter, SigmoidRouterConfig, SoftmaxRouterConfig


def softmax(top_k: int, n: int = 3, **settings: Any) -> Router:
    return SoftmaxRouterConfig(**settings).build(4, n, top_k)


def sigmoid(top_k: int, n: int = 3, **settings: Any) -> SigmoidRouter:
    router = SigmoidRouterConfig(**settings).build(4, n, top_k)
    assert isinstance(router, SigmoidRouter)
    return router


def test_softmax_gates_by_hand() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    gates, chosen = softmax(2).route(logits)
    assert chosen.tolist() == [0, 1]
    assert_close(gates, torch.tensor([0.625, 0.375]))
    gates, chosen = softmax(1).route(logits.flip(0))
    assert chosen.tolist() == [2]
    assert_close(gates, torch.tensor([0.5]))
    assert softmax(1, normalize=True, scale=2.0).route(logits)[0].item() == pytest.approx(2.0)
    assert_close(softmax(2, normalize=False).route(logits)[0], torch.tensor([0.5, 0.3]))


def test_sigmoid_gates_by_hand() -> None:
    """The correction changes the choice, and no gate."""
    logits = torch.tensor([0.8, 0.6, 0.3]).logit()
    router = sigmoid(2, scale=3.0)
    gates, chosen = router.route(logits)
    assert chosen.tolist() == [0, 1]
    assert_close(gates, 3 * torch.tensor([0.8, 0.6]) / 1.4)
    router.correction.copy_(torch.tensor([0.0, -0.2, 0.2]))
    gates, chosen = router.route(logits)
    assert chosen.tolist() == [0, 2]
    assert_close(gates, 3 * torch.tensor([0.8, 0.3]) / 1.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [softmax, sigmoid])
def test_scores_keep_float32(make: Any, dtype: torch.dtype) -> None:
    gates, _ = make(2, 8).route(torch.randn(5, 8).to(dtype))
    assert gates.dtype == torch.float32
    assert_close(gates.sum(-1), torch.ones(5))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([SoftmaxRouterConfig, SigmoidRouterConfig]),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (4, 3), (8, 5)]),
    st.integers(1, 4),
    st.sampled_from([None, True, False]),
    st.integers(0, 2**31),
)
def test_equals_the_definition(
    kind: Any, groups: tuple[int, int], top_k: int, normalize: bool | None, seed: int
) -> None:
    n, (n_groups, top_groups) = 8, groups
    if top_groups * n // n_groups < top_k:
        return
    router = kind(normalize=normalize, scale=2.5, n_groups=n_groups, top_groups=top_groups)
    config = MixtureOfExpertsConfig(n_experts=n, top_k=top_k, router=router)
    module = router.build(4, n, top_k)
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(11, n, generator=draw, dtype=torch.float64)
    correction = torch.zeros(n)
    if isinstance(module, SigmoidRouter):  # so low that groups left out by a zero would win
        correction = torch.randn(n, generator=draw) - 2
        module.correction.copy_(correction)
    gates, chosen = module.route(logits)
    ours = torch.zeros_like(logits).scatter(-1, chosen, gates)
    assert_close(ours, routed(config, logits, correction), rtol=1e-12, atol=1e-12)


def test_corrections_move_by_the_sign_of_the_load() -> None:
    router = sigmoid(1, 4, correction_rate=0.25)
    router.move(torch.tensor([9, 1, 3, 3]))
    assert router.correction.tolist() == [-0.25, 0.25, 0.25, 0.25]
    router.move(torch.tensor([2, 2, 2, 2]))
    assert router.correction.tolist() == [-0.25, 0.25, 0.25, 0.25]


def test_corrections_have_no_gradient_and_are_saved() -> None:
    config = MixtureOfExpertsConfig(n_experts=4, router=SigmoidRouterConfig())
    module = config.build(4)
    assert "router.correction" in module.state_dict()
    assert "router.correction" not in dict(module.named_parameters())
    module(torch.randn(3, 4)).sum().backward()
    assert module.router.weight.grad is not None
    assert module.router.weight.grad.any()


def test_load_of_sigmoids_is_of_their_shares() -> None:
    logits = torch.randn(9, 4, dtype=torch.float64)
    shares = logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
    f = shares.topk(2).indices.flatten().bincount(minlength=4) / 18
    expected = 4 * (f * shares.mean(0)).sum()
    assert_close(load_balance(logits, 2, router=sigmoid(2, 4)), expected)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_parity_with_deepseek_v3() -> None:
    theirs_of = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    theirs = theirs_of.DeepseekV3MoE(
        theirs_of.DeepseekV3Config(
            hidden_size=6, moe_intermediate_size=5, n_routed_experts=8, num_experts_per_tok=3,
            n_group=4, topk_group=2, n_shared_experts=2, routed_scaling_factor=2.5,
        )
    )  # fmt: skip
    config = MixtureOfExpertsConfig(
        n_experts=8,
        top_k=3,
        expert=GatedFeedForwardConfig(d_ff=5),
        router=SigmoidRouterConfig(scale=2.5, n_groups=4, top_groups=2),
        shared=GatedFeedForwardConfig(d_ff=10),
    )
    ours = started(config.build(6))
    with torch.no_grad():
        ours.router.correction.uniform_(0, 0.3)
        theirs.gate.weight.copy_(ours.router.weight)
        theirs.gate.e_score_correction_bias.copy_(ours.router.correction)
        for e, expert in enumerate(ours.experts):
            both = torch.cat((expert.gate_proj.weight, expert.up_proj.weight))
            theirs.experts.gate_up_proj[e].copy_(both)
            theirs.experts.down_proj[e].copy_(expert.down_proj.weight)
    theirs.shared_experts.load_state_dict(ours.shared.state_dict())
    x = torch.randn(3, 7, 6)
    assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_parity_with_qwen2_moe() -> None:
    theirs_of = pytest.importorskip("transformers.models.qwen2_moe.modeling_qwen2_moe")
    theirs = theirs_of.Qwen2MoeSparseMoeBlock(
        theirs_of.Qwen2MoeConfig(
            hidden_size=6, moe_intermediate_size=5, shared_expert_intermediate_size=7,
            num_experts=4, num_experts_per_tok=2, norm_topk_prob=False,
        )
    )  # fmt: skip
    config = MixtureOfExpertsConfig(
        n_experts=4,
        expert=GatedFeedForwardConfig(d_ff=5),
        router=SoftmaxRouterConfig(normalize=False),
        shared=GatedFeedForwardConfig(d_ff=7),
        shared_gate=True,
    )
    ours = started(config.build(6))
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.router.weight)
        theirs.shared_expert_gate.weight.copy_(ours.shared_gate.weight)
        for e, expert in enumerate(ours.experts):
            both = torch.cat((expert.gate_proj.weight, expert.up_proj.weight))
            theirs.experts.gate_up_proj[e].copy_(both)
            theirs.experts.down_proj[e].copy_(expert.down_proj.weight)
    theirs.shared_expert.load_state_dict(ours.shared.state_dict())
    x = torch.randn(3, 7, 6)
    output: Tensor = theirs(x)
    assert_close(ours(x), output[0] if isinstance(output, tuple) else output, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("router", "message"),
    [
        ({"n_groups": 3}, "router.n_groups = 3 does not divide n_experts = 8: give 2"),
        ({"n_groups": 4, "top_groups": 5}, "router.top_groups = 5 of 4 groups: give 1 to 4"),
        ({"n_groups": 8, "top_groups": 2}, "have 2 experts, and top_k = 3: give .*top_groups = 3"),
    ],
)
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_impossible_groups_are_refused(kind: str, router: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixtureOfExpertsConfig(n_experts=8, top_k=3, router={"kind": kind, **router})  # pyright: ignore[reportArgumentType]


def test_a_gate_without_a_shared_expert_is_refused() -> None:
    with pytest.raises(ValueError, match="shared_gate = true without a shared expert"):
        MixtureOfExpertsConfig(shared_gate=True)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_a_correction_stays_wide_in_a_narrow_model(narrow: torch.dtype) -> None:
    """Steps of 0.001 vanish in bfloat16; DeepSeek-V3's code keeps it in float32 too."""
    router = SigmoidRouterConfig().build(4, 3, 1)
    router.correction += torch.tensor([0.5, 0.5 + 2**-12, 0.0])
    router = router.to(narrow)
    assert router.weight.dtype == narrow
    assert router.correction.tolist() == [0.5, 0.5 + 2**-12, 0.0]
    assert router.to(torch.float64).correction.dtype == torch.float64
