"""Initialisation: the variance of each role in each scheme, and no undefined values."""

from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
import torch
from tests.contracts import FEEDFORWARD_RECORDS, records
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHead, TokenHeadConfig
from addnorm.nn.init import SCHEMES, InitName
from addnorm.nn.norms import LayerNorm
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import DeepNormConfig, PreNormConfig

D, N = 64, 3
XAVIER = (2 / (D + D)) ** 0.5
SPREADS = {
    # scheme: embedding, a square matrix, a square output of 2 N sublayers
    "xavier": (D**-0.5, XAVIER, XAVIER),
    "gpt2": (0.02, 0.02, 0.02 / (2 * N) ** 0.5),
    "bert": (0.0176, 0.0176, 0.0176),  # 0.02 before the tails are cut off at two deviations
    "kaiming": (1.0, (3 * D) ** -0.5, (3 * D) ** -0.5),
    "kim": (0.25 / 3**0.5, XAVIER, XAVIER),
    "zero_output": (D**-0.5, XAVIER, 0.0),
}


def test_every_name_has_a_scheme() -> None:
    assert set(get_args(InitName)) == SCHEMES.keys() == SPREADS.keys()


@pytest.mark.parametrize("scheme", SPREADS)
def test_spread_by_role(scheme: InitName) -> None:
    config = DecoderConfig(
        d_model=D,
        n_layers=N,
        position=LearnedConfig(),
        head=TokenHeadConfig(tied=False),
        init=scheme,
    )
    model = config.build(500)
    embedding, matrix, output = SPREADS[scheme]
    spreads = {
        model.embed.tokens: embedding,
        model.embed.position.table: embedding,
        model.head: embedding,
        model.stack.blocks[1].attention.q_proj: matrix,
        model.stack.blocks[1].attention.out_proj: output,
    }
    for module, expected in spreads.items():
        assert module.weight.std().item() == pytest.approx(expected, rel=0.05), module
        assert module.weight.mean().abs().item() <= 0.1 * expected + 1e-9


def test_outputs_of_a_cross_stack_count_three_sublayers() -> None:
    model = EncoderDecoderConfig(d_model=D, n_layers=2, n_decoder_layers=5, init="gpt2").build(50)
    for blocks, sublayers in ((model.encoder.blocks, 2 * 2), (model.decoder.blocks, 3 * 5)):
        for block in blocks:
            for layer in (block.attention.out_proj, block.feedforward.down_proj):
                assert layer.weight.std().item() == pytest.approx(0.02 / sublayers**0.5, rel=0.1)
            assert block.feedforward.up_proj.weight.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("scheme", SPREADS)
def test_biases_are_zero_and_gains_one(scheme: InitName) -> None:
    model = EncoderDecoderConfig(
        d_model=16, n_layers=1, init=scheme, feedforward=GatedFeedForwardConfig(bias=True)
    ).build(20)
    seen = 0
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert torch.equal(module.bias, torch.zeros_like(module.bias))
            seen += 1
        elif isinstance(module, LayerNorm):
            assert torch.equal(module.weight, torch.ones(16))
            seen += 1
        elif isinstance(module, TokenHead):
            assert module.weight.isfinite().all()
    assert seen == 12 + 6 + 5


READS_BELOW = AttentionConfig(n_heads=2, kv_layers_back=1)
PARTS = [
    *({"attention": mixer} for mixer in records(MixerConfig)),
    *({"feedforward": feedforward} for feedforward in FEEDFORWARD_RECORDS),
    {"layer_pattern": (LayerConfig(), LayerConfig(attention=READS_BELOW))},
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(*part.values()).__name__)
def test_zero_output_starts_as_the_identity(part: dict[str, Any]) -> None:
    """Every mixer and feed-forward names the map that writes to the residual stream."""
    config = DecoderConfig(
        d_model=16,
        n_layers=2,
        attention=AttentionConfig(n_heads=2),
        residual=PreNormConfig(),
        init="zero_output",
        dropout=0.0,
    )
    model, tokens = replace(config, **part).build(20), torch.randint(0, 20, (2, 5))
    seen: list[torch.Tensor] = []
    model.embed.register_forward_hook(lambda _m, _i, out: seen.append(out))
    model.stack.blocks[-1].register_forward_hook(lambda _m, _i, out: seen.append(out))
    model(tokens)
    assert torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("scheme", SPREADS)
def test_the_seed_decides(scheme: InitName) -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return DecoderConfig(d_model=16, n_layers=1, init=scheme).build(20).state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("scheme", SPREADS)
def test_on_the_meta_device(scheme: InitName) -> None:
    with torch.device("meta"):
        model = DecoderConfig(init=scheme).build(100)
    assert all(p.is_meta for p in model.parameters())


def test_deepnorm_scales_what_writes_to_the_stream() -> None:
    """β on value, output and feed-forward weights alone (Wang et al. 2022, fig. 2)."""
    plain = DecoderConfig(d_model=16, n_layers=4, attention=AttentionConfig(n_heads=2))
    torch.manual_seed(3)
    before = plain.build(11).stack.state_dict()
    torch.manual_seed(3)
    after = replace(plain, residual=DeepNormConfig()).build(11).stack.state_dict()
    scaled = ("v_proj.weight", "out_proj.weight", "up_proj.weight", "down_proj.weight")
    for name, weight in before.items():
        gain = 32**-0.25 if name.endswith(scaled) else 1.0
        assert_close(after[name], weight * gain, rtol=1e-6, atol=0)


@pytest.mark.long
@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("n_layers", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_hundreds_of_layers_of_deepnorm_learn(n_layers: int) -> None:
    """Finite at the start, forward and back, and every step lowers the loss."""
    config = DecoderConfig(
        d_model=16,
        n_layers=n_layers,
        attention=AttentionConfig(n_heads=2),
        feedforward=FeedForwardConfig(d_ff=16),
        residual=DeepNormConfig(),
        dropout=0.0,
    )
    model = config.build(7)
    tokens = torch.arange(12).view(2, 6) % 7
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    losses = []
    for _ in range(2):
        logits = model(tokens)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
        first, last = (model.stack.blocks[i].feedforward.down_proj.weight.grad for i in (0, -1))
        assert 0.5 < float(first.norm() / last.norm()) < 2.0  # post-norm: 1e-21
        optimizer.step()
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


class OwnFeedForward(nn.Module):
    """Someone's own, with a name that ours have too and a start of its own."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_model)
        self.start = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.start.weight, 0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.start(self.gate_proj(x))


@dataclass(frozen=True)
class OwnFeedForwardConfig:
    def build(self, d_model: int) -> OwnFeedForward:
        return OwnFeedForward(d_model)


def test_a_custom_part_is_scaled_only_where_it_lists_its_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name alone has no role: DeepNorm scales what `deepnorm_weights` lists."""

    def build(residual: str) -> nn.Module:
        torch.manual_seed(0)
        config = DecoderConfig(
            d_model=8,
            n_layers=1,
            attention=AttentionConfig(n_heads=2),
            feedforward=OwnFeedForwardConfig(),
            residual=residual,
        )
        return config.build(5).stack.blocks[0].feedforward

    plain, deep = build("post"), build("deepnorm")
    assert torch.equal(plain.gate_proj.weight, deep.gate_proj.weight)
    monkeypatch.setattr(OwnFeedForward, "deepnorm_weights", ("gate_proj",), raising=False)
    beta = 8**-0.25
    assert_close(build("deepnorm").gate_proj.weight, beta * plain.gate_proj.weight)
    assert (deep.start.weight == 0.25).all(), "reset_parameters has the last word"
