"""The convolution next to the first layer: its equation, texts of a row, and what it refuses."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.models import DecoderConfig, EncoderConfig, EncoderModel
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.context import Context
from addnorm.nn.heads import HiddenHeadConfig
from addnorm.nn.hyper_connections import HyperConnectionsConfig
from addnorm.nn.layer_convolution import LayerConvolution, LayerConvolutionConfig
from addnorm.nn.masks import Full
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.residuals import ParallelConfig

FIRST = LayerConvolutionConfig(activation="tanh")


def built(**more: Any) -> LayerConvolution:
    torch.manual_seed(0)
    return LayerConvolutionConfig(**more).build(4, LayerNormConfig(), 0.1).double().eval()


def test_a_row_by_hand() -> None:
    """Three tokens of four features: zero before the first and after the last."""
    module = built()
    x, y = torch.randn(2, 1, 3, 4, dtype=torch.float64)
    rows: list[torch.Tensor] = []
    for t in range(3):
        taps = module.conv.bias
        assert taps is not None
        for o in (-1, 0, 1):
            if 0 <= t + o < 3:
                taps = taps + module.conv.weight[:, :, o + 1] @ x[0, t + o]
        rows.append(F.layer_norm(y[0, t] + F.gelu(taps), (4,)))
    assert_close(module(x, y, Context.over(x, Full()))[0], torch.stack(rows), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_packed_and_padded_texts_are_read_as_if_alone(size: int) -> None:
    """Two texts of a row, and one after padding on the left, each against the text by itself."""
    module = built(kernel_size=size)
    x, y = torch.randn(2, 1, 5, 4, dtype=torch.float64)

    def alone(part: slice) -> torch.Tensor:
        return module(x[:, part], y[:, part], Context.over(x[:, part], Full()))[0]

    ctx = Context.over(x, Full(), segments=torch.tensor([[0, 0, 1, 1, 1]]))
    both = torch.cat([alone(slice(2)), alone(slice(2, 5))])
    assert_close(module(x, y, ctx)[0], both, rtol=0, atol=1e-12)
    valid = torch.tensor([[False, False, True, True, True]])
    after_padding = module(x, y, Context.over(x, Full(), valid=valid))[0, 2:]
    assert_close(after_padding, alone(slice(2, 5)), rtol=0, atol=1e-12)


def test_the_first_layer_alone_has_it() -> None:
    config = EncoderConfig(
        d_model=8, n_layers=3, attention=AttentionConfig(n_heads=2), head=HiddenHeadConfig(),
        first_convolution=FIRST,
    )  # fmt: skip
    model = config.build(11)
    assert isinstance(model, EncoderModel)
    names = {name.split(".")[2] for name, _ in model.named_parameters() if "convolution" in name}
    assert names == {"0"}
    assert "convolution" not in DecoderConfig().build(11).state_dict()


def test_the_layer_adds_a_convolution_of_its_own_input() -> None:
    config = EncoderConfig(
        d_model=8, n_layers=2, attention=AttentionConfig(n_heads=2), head=HiddenHeadConfig(),
        first_convolution=FIRST,
    )  # fmt: skip
    model, tokens = config.build(11).eval(), torch.tensor([[3, 5, 7, 1]])
    first: Any = model.stack.blocks[0]
    calls: list[tuple[torch.Tensor, ...]] = []
    for part in (model.embed, first.feedforward_residual, first):
        part.register_forward_hook(lambda _m, _i, out: calls.append(out))
    model(tokens)
    x, y, out = calls
    ctx = Context.over(x, Full())
    assert_close(out, first.convolution(x, y, ctx))
    assert not torch.allclose(out, first.convolution(y, y, ctx))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"causal": True}, "first_convolution and causal do not go together"),
        ({"n_distinct_layers": 1}, "n_distinct_layers do not go together"),
        ({"n_layers": 0}, "n_layers = 0"),
        ({"residual": ParallelConfig()}, "residual = 'parallel' do not: use 'pre' or 'post'"),
        ({"residual": HyperConnectionsConfig()}, "of one stream"),
    ],
)
def test_what_it_does_not_go_with(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        EncoderConfig(d_model=8, first_convolution=FIRST, **changes)


def test_an_even_kernel_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"kernel_size = 4 must be odd.*: 3 or 5"):
        LayerConvolutionConfig(kernel_size=4)
