"""Which graph is whose: a name says all that a graph depends on, and nothing of the weights."""

import torch
from tests.generate.test_compiled import decoder
from torch.nn import functional as F

from addnorm.generate import graphs
from addnorm.models import DecoderModel
from addnorm.nn.attention import AttentionConfig, WindowPatternConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import ALiBiConfig, LearnedConfig, RotaryConfig
from addnorm.quantize import quantize_int8


def fingerprint_of(model: DecoderModel) -> str:
    return graphs.fingerprint(model, (torch.zeros(1, 1),))


def test_the_name_of_a_graph_is_that_of_everything_but_the_weights() -> None:
    plain = fingerprint_of(decoder())
    assert fingerprint_of(decoder()) == plain
    others = [
        decoder(position=LearnedConfig()),
        decoder(position=RotaryConfig()),
        decoder(position=RotaryConfig(theta=5000.0)),
        decoder(position=ALiBiConfig()),
        decoder(norm=RMSNormConfig()),
        decoder(norm=RMSNormConfig(eps=1e-3)),
        decoder(attention=AttentionConfig(n_heads=4)),
        decoder(attention=AttentionConfig(n_heads=2, pattern=WindowPatternConfig(size=3))),
        decoder(attention=AttentionConfig(n_heads=2, pattern=WindowPatternConfig(size=4))),
        decoder().bfloat16(),
        quantize_int8(decoder()),
    ]
    names = [plain, *(fingerprint_of(model) for model in others)]
    assert len(set(names)) == len(names)


def test_activations_and_ties_are_part_of_the_name() -> None:
    models = [decoder(feedforward=FeedForwardConfig(activation=a)) for a in ("relu", "gelu")]
    models += [decoder(feedforward=FeedForwardConfig(activation="gelu_tanh"))]
    models += [
        decoder(head=TokenHeadConfig(tied=False)),
        decoder(head=TokenHeadConfig(softcap=9.0)),
    ]
    assert len({fingerprint_of(model) for model in models}) == len(models)


def test_one_row_is_the_linear_map() -> None:
    x, w, b = torch.randn(1, 1, 7).double(), torch.randn(5, 7).double(), torch.randn(5).double()
    want = F.linear(x, w, b)
    torch.testing.assert_close(graphs.one_row(x, w, b), want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(graphs.one_row(x, w), want - b, rtol=1e-12, atol=1e-12)
