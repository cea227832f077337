"""Watching attention from outside: the right weights, and nothing changed by the watching."""

import pytest
import torch

from addnorm.inspect.capture import attention_weights
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig, EagerCoreConfig, SDPACoreConfig


@pytest.mark.parametrize("core", [SDPACoreConfig(), EagerCoreConfig()])
def test_weights_of_a_decoder_are_causal_and_sum_to_one(
    core: SDPACoreConfig | EagerCoreConfig,
) -> None:
    attention = AttentionConfig(n_heads=4, n_kv_heads=2, core=core)
    model = DecoderConfig(d_model=16, n_layers=2, attention=attention).build(11).eval()
    tokens = torch.randint(0, 11, (3, 6))
    plain = model(tokens)
    with attention_weights(model) as caught:
        assert torch.equal(model(tokens), plain)
    assert list(caught) == [f"stack.blocks.{i}.attention" for i in range(2)]
    for weights in caught.values():
        assert weights.shape == (3, 4, 6, 6)
        assert torch.equal(weights.triu(1), torch.zeros_like(weights))
        assert torch.allclose(weights.sum(-1), torch.ones(3, 4, 6))


def test_cross_attention_never_looks_at_padding() -> None:
    model = EncoderDecoderConfig(d_model=16, n_layers=1).build(11).eval()
    valid = torch.tensor([[True, True, False], [True, True, True]])
    source = torch.randint(0, 11, (2, 3))
    with attention_weights(model) as caught:
        model(source, torch.randint(0, 11, (2, 4)), source_valid=valid)
    weights = caught["decoder.blocks.0.cross_attention"]
    assert weights.shape == (2, 8, 4, 3)
    assert (weights[0, :, :, 2] == 0).all()
    assert torch.allclose(weights.sum(-1), torch.ones(2, 8, 4))


def test_hooks_are_gone_afterwards_even_after_an_error() -> None:
    model = DecoderConfig(d_model=16, n_layers=1).build(5).eval()
    with pytest.raises(RuntimeError, match="stop"), attention_weights(model):
        raise RuntimeError("stop")
    with attention_weights(model) as caught:
        pass
    model(torch.tensor([[1, 2]]))
    assert caught == {}
