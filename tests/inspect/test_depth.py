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


def test_sizes_are_those_of_the_stream_and_add_up() -> None:
    """Before the first layer stands the embedding; a pre-norm layer adds what its parts put out."""
    model = DecoderConfig(**SMALL, residual=PreNormConfig()).build(11).double().eval()
    tokens = torch.randint(11, (1, 6))
    with torch.no_grad(), layer_states(model) as caught:
        hidden, _ = model.hidden(tokens)
    states = caught["stack"]
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
def test_gradients_are_those_of_backward(parts: dict[str, Any]) -> None:
    model = EncoderDecoderConfig(**{**SMALL, **parts}).build(11).double().eval()
    with layer_states(model) as caught:
        logits = model(torch.randint(11, (1, 6)), torch.randint(11, (1, 4)))
    loss = logits.logsumexp(-1).mean()
    for states in caught.values():
        for x in states.stream:
            x.retain_grad()
    loss.backward(retain_graph=True)
    streams = {
        name: [float(x.grad.norm()) for x in one.stream if x.grad is not None]
        for name, one in caught.items()
    }
    found = gradient_norms(model, caught, loss)
    for name, tower in towers_of(model).items():
        assert found[name]["stream"] == pytest.approx(streams[name], rel=1e-9)
        names = ["attention", "feedforward"] + ["cross_attention"] * (name == "decoder")
        assert {*found[name]} == {"stream", *names}
        for sublayer in names:
            modules = [block.get_submodule(sublayer) for block in tower.stack.blocks]
            norms = [
                float(torch.cat([w.grad.flatten() for w in one.parameters()]).norm())
                for one in modules
            ]
            assert found[name][sublayer] == pytest.approx(norms, rel=1e-9)
            assert min(norms) > 0
