"""Sizes and gradients by layer: those of the stream and of the sublayers, and nothing changed."""

from typing import Any

import pytest
import torch

from addnorm.inspect.depth import gradient_norms, layer_states, towers_of
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig

SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 3, "attention": AttentionConfig(n_heads=2)}


def test_the_stream_is_the_sum_of_sublayer_outputs() -> None:
    """Before the first layer stands the embedding; a pre-norm layer adds what its parts put out."""
    model = DecoderConfig(**SMALL, residual=PreNormConfig()).build(11).double().eval()
    tokens = torch.randint(11, (1, 6))
    with torch.no_grad(), layer_states(model) as by_stack:
        hidden, _ = model.hidden(tokens)
    states = by_stack["stack"]
    assert len(states.stream) == 4
    for i in range(3):
        added = states.outputs["attention"][i] + states.outputs["feedforward"][i]
        torch.testing.assert_close(states.stream[i] + added, states.stream[i + 1])
    assert torch.equal(model.stack.norm(states.stream[3]), hidden)
    sizes = states.sizes()
    assert sizes["stream"] == [
        pytest.approx(float(x.square().mean() ** 0.5)) for x in states.stream
    ]
    assert [len(sizes[name]) for name in ("attention", "feedforward")] == [3, 3]
    with layer_states(model) as later:
        pass
    assert torch.equal(model.hidden(tokens)[0], hidden)
    assert later["stack"].stream == []


@pytest.mark.parametrize(
    "parts", [{}, {"residual": ParallelConfig()}, {"attention": RecurrentConfig(cell="gru")}]
)
def test_gradient_norms_equal_those_of_backward(parts: dict[str, Any]) -> None:
    model = EncoderDecoderConfig(**{**SMALL, **parts}).build(11).double().eval()
    with layer_states(model) as by_stack:
        logits = model(torch.randint(11, (1, 6)), torch.randint(11, (1, 4)))
    loss = logits.logsumexp(-1).mean()
    for states in by_stack.values():
        for x in states.stream:
            x.retain_grad()
    loss.backward(retain_graph=True)
    streams = {
        name: [float(x.grad.norm()) for x in module.stream if x.grad is not None]
        for name, module in by_stack.items()
    }
    norms = gradient_norms(model, by_stack, loss)
    for name, tower in towers_of(model).items():
        assert norms[name]["stream"] == pytest.approx(streams[name], rel=1e-9)
        names = ["attention", "feedforward"] + ["cross_attention"] * (name == "decoder")
        assert {*norms[name]} == {"stream", *names}
        for sublayer in names:
            modules = [block.get_submodule(sublayer) for block in tower.stack.blocks]
            expected = [
                float(torch.cat([w.grad.flatten() for w in module.parameters()]).norm())
                for module in modules
            ]
            assert norms[name][sublayer] == pytest.approx(expected, rel=1e-9)
            assert min(expected) > 0
