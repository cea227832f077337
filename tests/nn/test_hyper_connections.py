"""Hyper-connections: pre-norm at the start, streams kept in size, read as one by exits."""

from typing import Any

import pytest
import torch
from tests.contracts import check_module, started
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.inspect.depth import layer_states
from addnorm.models import DecoderConfig, DecoderModel, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.depth import Depth
from addnorm.nn.hyper_connections import (
    CollapsedNorm,
    HyperConnectionsConfig,
    ManifoldConnectionsConfig,
    StreamHead,
    first_weights,
    side_by_side,
    sinkhorn,
)
from addnorm.nn.norms import NoNorm, RMSNormConfig
from addnorm.nn.residuals import PreNormConfig, ResidualConfig
from addnorm.training.optim import roles_of

HYPER: list[Any] = [
    HyperConnectionsConfig(),
    HyperConnectionsConfig(dynamic=False),
    ManifoldConnectionsConfig(),
]
TOKENS = torch.arange(12).view(2, 6) % 7


def decoder(residual: ResidualConfig, **more: Any) -> DecoderModel:
    torch.manual_seed(1)
    fields: dict[str, Any] = {"d_model": 8, "n_layers": 3, "dropout": 0.0, **more}
    config = DecoderConfig(attention=AttentionConfig(n_heads=2), residual=residual, **fields)
    return config.build(7).eval()


@pytest.mark.parametrize("config", HYPER[:2])
def test_starts_as_pre_norm(config: HyperConnectionsConfig) -> None:
    """Each sublayer reads one of equal streams, and adds to all; the norm undoes their sum."""
    pre, ours = decoder(PreNormConfig()), decoder(config)
    state = {
        name: value for name, value in pre.state_dict().items() if not name.startswith("stack.norm")
    }
    left = ours.load_state_dict(state, strict=False)
    assert not left.unexpected_keys
    assert_close(ours(TOKENS), pre(TOKENS), rtol=1e-3, atol=1e-4)


def test_sublayers_read_one_stream_after_another() -> None:
    config = EncoderDecoderConfig(
        d_model=8, n_layers=2, attention=AttentionConfig(n_heads=2), residual=HYPER[1]
    )
    names = [
        f"decoder.blocks.{layer}.{name}_residual"
        for layer in range(2)
        for name in ("attention", "cross_attention", "feedforward")
    ]
    model = config.build(7)
    read = [model.get_parameter(f"{name}.connections.read") for name in names]
    assert [int(weights.argmax()) for weights in read] == [0, 1, 2, 3, 0, 1]


def test_the_mixing_matrix_acts_transposed() -> None:
    """Row i, column j is how much of stream i goes to stream j."""
    residual = HyperConnectionsConfig(streams=2, dynamic=False).build(
        1, RMSNormConfig(), 0.0, Depth()
    )
    residual.norm = NoNorm()
    values = {"read": [1.0, 10.0], "mix": [1.0, 2.0, 3.0, 4.0], "write": [0.5, -1.0]}
    for name, value in values.items():
        residual.get_parameter(f"connections.{name}").data.copy_(torch.tensor(value))
    y = residual(torch.tensor([[[5.0, 7.0]]]), lambda h: h / 75)
    assert_close(y, torch.tensor([[[5.0 + 21.0 + 0.5, 10.0 + 28.0 - 1.0]]]))


def test_sinkhorn_ends_on_columns() -> None:
    weights = torch.rand(3, 5, 4, 4).double().softmax(-1)
    mixed = sinkhorn(weights, 2, 1e-6)
    assert_close(mixed.sum(-2), torch.ones(3, 5, 4).double(), rtol=0, atol=1e-5)
    assert (mixed.sum(-1) - 1).abs().max() > 1e-4
    mixed = sinkhorn(weights, 40, 1e-6)
    assert_close(mixed.sum(-1), torch.ones(3, 5, 4).double(), rtol=0, atol=1e-5)


def test_mhc_keeps_streams_that_are_equal() -> None:
    residual = started(ManifoldConnectionsConfig().build(6, RMSNormConfig(), 0.0, Depth()))
    x = torch.randn(2, 3, 6)
    y = side_by_side(residual(x, torch.zeros_like), 4, 6)
    assert_close(y, x.unsqueeze(-2).expand_as(y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", HYPER)
def test_weights_of_a_token_depend_on_it_alone_and_are_not_narrowed(config: Any) -> None:
    residual = started(config.build(6, RMSNormConfig(), 0.0, Depth(sublayer=5)))
    x = torch.randn(2, 3, 24)
    with torch.autocast("cpu", torch.bfloat16):
        y = residual(x, lambda h: h.bfloat16())
    assert y.dtype == torch.float32
    assert_close(y, residual(x, lambda h: h.bfloat16()), rtol=1e-2, atol=1e-2)
    whole = residual(x, torch.tanh)
    assert_close(whole[:, 1:2], residual(x[:, 1:2], torch.tanh))


@pytest.mark.parametrize("config", HYPER)
def test_one_stream_is_copied(config: Any) -> None:
    residual = started(config.build(6, RMSNormConfig(), 0.0, Depth()))
    x = torch.randn(2, 3, 6)
    assert_close(residual(x, torch.tanh), residual(x.repeat(1, 1, config.streams), torch.tanh))


def test_mhc_equals_deepseek_v4() -> None:
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

    sizes: dict[str, Any] = {"hidden_size": 6, "hc_mult": 3, "hc_sinkhorn_iters": 4}
    sizes |= {"hc_eps": 1e-4}
    config = DeepseekV4Config(**sizes, rms_norm_eps=1e-4)
    part = ManifoldConnectionsConfig(streams=3, iterations=4, eps=1e-4)
    ours: Any = started(part.build(6, RMSNormConfig(), 0.0, Depth()).connections)
    reference: Any = theirs.DeepseekV4HyperConnection(config)
    reference.fn.data, reference.base.data = ours.weight.data, ours.bias.data
    reference.scale.data = ours.scale.data
    x = torch.randn(2, 5, 3, 6)
    read, mix, write = ours(x)
    post, comb, collapsed = reference(x)
    assert_close((write, mix), (post, comb))
    assert_close((read.unsqueeze(-1) * x).sum(-2), collapsed)
    end: Any = started(StreamHead(6, 3, eps=1e-4))
    head: Any = theirs.DeepseekV4HyperHead(config)
    head.hc_fn.data, head.hc_base.data = end.weight.data, end.bias.data
    head.hc_scale.data = end.scale.data
    assert_close(end(x.flatten(-2)), head(x))


@pytest.mark.parametrize("config", HYPER)
def test_contract_of_the_end(config: Any) -> None:
    x = torch.randn(2, 3, 24)
    check_module(
        lambda: config.build_final(6, RMSNormConfig()), lambda end, dtype: end(x.to(dtype))
    )


@pytest.mark.parametrize("config", HYPER)
def test_exits_and_inspection_read_one_stream(config: Any) -> None:
    model = started(decoder(config, exits=(1, 2)))
    assert isinstance(model, DecoderModel)
    *exits, last = model.exit_logits(TOKENS)
    assert len(exits) == 2
    assert_close(last, model(TOKENS))
    assert all(isinstance(head.norm, CollapsedNorm) for head in model.exits.values())
    with layer_states(model) as states:
        model(TOKENS)
    assert {x.shape for x in states["stack"].outputs["attention"]} == {(2, 6, 8)}
    wide = states["stack"].stream[1]
    assert wide.shape == (2, 6, 32)
    assert model.stack.collapsed(wide).shape == (2, 6, 8)
    assert len(states["stack"].sizes()["stream"]) == 4


@pytest.mark.parametrize("config", HYPER)
def test_rejects_layer_drop(config: Any) -> None:
    with pytest.raises(ValueError, match="would skip layer 0"):
        decoder(config, layer_drop=0.1)


def test_weights_that_every_token_shares_are_not_decayed() -> None:
    model = decoder(HYPER[0])
    roles = roles_of(model)
    shared = [p for name, p in model.named_parameters() if ".static." in name]
    assert shared
    assert {id(p) for p in shared} <= {id(p) for p in roles.vectors}


def test_first_weights() -> None:
    read, mix = first_weights(3, 4)
    assert read.tolist() == [0, 1, 0]
    assert mix.equal(torch.eye(3))


def grown(model: nn.Module, x: Tensor) -> float:
    """How much larger the last layer's streams are than the embedding."""
    assert isinstance(model, DecoderModel)
    with layer_states(model) as states, torch.no_grad():
        model(x)
    first, *_, last = states["stack"].stream
    return float(last.abs().max() / first.abs().max())


def test_mixing_alone_neither_grows_nor_shrinks_in_depth() -> None:
    """mHC is for depth: with sublayers of zero, 40 layers of mixing leave the streams in size."""
    model = started(decoder(HYPER[2], n_layers=20))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "out_proj" in name or "down_proj" in name:
                parameter.zero_()
    assert grown(model, TOKENS) == pytest.approx(1, abs=1e-3)
