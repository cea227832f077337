"""Low-rank adaptation: begins as the model was, learns alone what is new, and merges exactly."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.models.weights import weights_of
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import ClassificationHeadConfig
from addnorm.nn.linear import LowRank
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.training.adapters import AdapterConfig, DoRAConfig, LoRAConfig, LoRALinear, adapt
from addnorm.training.optim import AdamWConfig, build_optimizers

SMALL = {"d_model": 16, "n_layers": 2, "max_len": 32, "dropout": 0.0}
GATED = GatedFeedForwardConfig(d_ff=24)
MODELS: dict[str, ModelConfig] = {
    "decoder": DecoderConfig(
        **SMALL, attention=AttentionConfig(n_heads=2, n_kv_heads=1, bias=False), feedforward=GATED
    ),
    "encoder": EncoderConfig(
        **SMALL, attention=AttentionConfig(n_heads=2), head=ClassificationHeadConfig()
    ),
    "translator": EncoderDecoderConfig(
        **SMALL, attention=AttentionConfig(n_heads=2), feedforward=FeedForwardConfig(d_ff=24)
    ),
    "mixture": DecoderConfig(
        **SMALL,
        attention=AttentionConfig(n_heads=2),
        feedforward=MixtureOfExpertsConfig(n_experts=3, top_k=2),
    ),
}
ADAPTERS = {
    "lora": LoRAConfig(rank=3, alpha=5.0),
    "dora": DoRAConfig(rank=3, alpha=5.0),
    "some": LoRAConfig(rank=2, targets=("q_proj", "v_proj")),
}
TOKENS = torch.tensor([[5, 1, 7, 3, 2], [4, 4, 9, 8, 6]])


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    config = MODELS[name]
    if isinstance(config, EncoderConfig):
        return config.build(11, n_labels=3).double().eval()
    if isinstance(config, EncoderDecoderConfig):
        return config.build(11, 11).double().eval()
    return config.build(11).double().eval()


def outputs_of(model: nn.Module) -> torch.Tensor:
    return model(TOKENS, TOKENS) if hasattr(model, "decoder") else model(TOKENS)


def learn(model: nn.Module, steps: int = 3) -> None:
    [optimizer] = build_optimizers(AdamWConfig(), model, lr=1e-2)
    for _ in range(steps):
        outputs_of(model).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("name", MODELS)
def test_an_adapted_model_starts_unchanged_and_merges_exactly(name: str, kind: str) -> None:
    model = built(name)
    names, before = set(weights_of(model)), outputs_of(model)
    frozen = {key: w.clone() for key, w in weights_of(model).items()}
    adapted = adapt(model, ADAPTERS[kind])
    assert_close(outputs_of(model), before, rtol=0, atol=1e-12)
    assert all(".lora_" in key or key.endswith(".magnitude") for key in weights_of(model))
    learn(model)
    after = outputs_of(model)
    assert float((after - before).detach().abs().max()) > 1e-4
    changed = {f"{key}.weight" for key in adapted.layers()}
    adapted.merge()
    assert set(weights_of(model)) == names
    assert not [m for m in model.modules() if isinstance(m, LoRALinear)]
    assert_close(outputs_of(model), after, rtol=0, atol=1e-12)
    for key, weight in weights_of(model).items():
        assert torch.equal(weight, frozen[key]) == (key not in changed), key


def test_a_row_of_zeros_stays_finite_under_dora() -> None:
    """Its magnitude is divided by its norm, and both are 0."""
    model = built("decoder")
    weight = next(w for name, w in weights_of(model).items() if name.endswith("up_proj.weight"))
    with torch.no_grad():
        weight[0] = 0.0
    before = outputs_of(model)
    adapted = adapt(model, DoRAConfig())
    assert_close(outputs_of(model), before, rtol=0, atol=1e-12)
    learn(model)
    after = outputs_of(model)
    assert bool(after.isfinite().all())
    adapted.merge()
    assert_close(outputs_of(model), after, rtol=0, atol=1e-12)


def test_a_merge_in_float32_is_exact_within_rounding() -> None:
    model = built("decoder").float()
    adapted = adapt(model, LoRAConfig())
    learn(model)
    after = outputs_of(model)
    adapted.merge()
    assert_close(outputs_of(model), after, rtol=0, atol=1e-6 * float(after.detach().abs().max()))


def test_tied_weights_stay_tied() -> None:
    config = replace(MODELS["decoder"], attention=AttentionConfig(n_heads=2))
    model = config.build(11)
    head, table = model.head, model.embed.tokens
    assert head.weight is table.weight
    adapt(model, LoRAConfig()).merge()
    assert model.head.weight is model.embed.tokens.weight
    assert isinstance(model.head.weight, nn.Parameter)


def test_new_weights_are_learned_whole() -> None:
    model = built("encoder")
    before = {name: w.clone() for name, w in weights_of(model).items()}
    new = {name for name in before if name.startswith("head.")}
    adapted = adapt(model, LoRAConfig(), new)
    assert new <= set(weights_of(model))
    learn(model)
    adapted.merge()
    after = weights_of(model)
    assert not any(torch.equal(after[name], before[name]) for name in new)
    assert torch.equal(after["embed.tokens.weight"], before["embed.tokens.weight"])


def test_adapted_layers_equal_the_formulas_of_the_papers() -> None:
    torch.manual_seed(1)
    layer = nn.Linear(5, 4).double()
    for config in (LoRAConfig(rank=2, alpha=3.0), DoRAConfig(rank=2, alpha=3.0)):
        adapted = config.build(layer)
        with torch.no_grad():
            adapted.lora_B.normal_()
            if config.kind == "dora":
                adapted.magnitude.mul_(1.5)
        a, b = adapted.lora_A.detach(), adapted.lora_B.detach()
        expected = layer.weight.detach() + 1.5 * b @ a
        if config.kind == "dora":
            expected = 1.5 * layer.weight.norm(dim=1, keepdim=True).detach() * expected
            expected = expected / (layer.weight.detach() + 1.5 * b @ a).norm(dim=1, keepdim=True)
        x = torch.randn(3, 5, dtype=torch.float64)
        assert_close(adapted(x), x @ expected.T + layer.bias)
        assert_close(adapted.low_rank().changed(layer.weight.detach()), expected)


def test_the_norm_is_a_constant_in_the_gradient() -> None:
    """Liu et al. 2024, eq. 11: `∇_V = m / ‖V‖ ∇_W'`."""
    torch.manual_seed(2)
    layer = DoRAConfig(rank=2).build(nn.Linear(5, 4, bias=False).double())
    with torch.no_grad():
        layer.lora_B.normal_()
    x = torch.randn(3, 5, dtype=torch.float64)
    layer(x).square().sum().backward()
    outputs = layer(x).detach()
    v = (layer.weight + layer.scale * layer.lora_B @ layer.lora_A).detach()
    of_w = 2 * outputs.T @ x
    of_v = (layer.magnitude.detach() / v.norm(dim=1))[:, None] * of_w
    assert_close(layer.lora_B.grad, layer.scale * of_v @ layer.lora_A.detach().T)


def test_dropout_acts_only_on_the_change() -> None:
    layer = LoRAConfig(dropout=0.5).build(nn.Linear(6, 6))
    x = torch.randn(4, 6)
    plain = layer.eval()(x)
    assert torch.equal(layer.train()(x), plain)  # B is zero
    with torch.no_grad():
        layer.lora_B.normal_()
    assert not torch.equal(layer(x), layer(x))


def test_a_missing_target_is_rejected_by_name() -> None:
    with pytest.raises(InputError, match=r"no layer 'q_porj'.*Did you mean 'q_proj'"):
        adapt(built("decoder"), LoRAConfig(targets=("q_porj",)))
    with pytest.raises(InputError, match="no attention or feed-forward"):
        adapt(nn.Sequential(nn.Linear(2, 2)), LoRAConfig())


def test_a_change_keeps_the_dtype_of_the_matrix() -> None:
    change = LowRank(torch.ones(1, 3), torch.full((2, 1), 2.0**-12), 1.0)
    changed = change.changed(torch.ones(2, 3, dtype=torch.bfloat16))
    assert changed.dtype == torch.bfloat16


def configs() -> list[AdapterConfig]:
    return [*ADAPTERS.values()]


def test_only_a_small_share_is_learned() -> None:
    for config in configs():
        model = built("decoder")
        whole = sum(p.numel() for p in model.parameters())
        adapt(model, config)
        assert sum(p.numel() for p in model.parameters()) < whole / 2
