"""ALiBi of keys in bfloat16: a row by hand, the bits that are lost, and texts of a row."""

import pytest
import torch
from tests.contracts import build_context
from tests.nn.positions.places import EVERYTHING, at
from torch.testing import assert_close

from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.positions import RoundedALiBi, RoundedALiBiConfig


def test_a_row_by_hand() -> None:
    """Slopes of two heads are 1/16 and 1/256; of 259, eight bits leave 260, and of 257 256."""
    position = RoundedALiBiConfig().build(build_context(8, 2))
    assert position.scale == 0.5
    q = torch.zeros(1, 2, 1, 4, dtype=torch.float64)
    bias = position.score_bias(q, at([0, 1, 2, 257, 259], new=1))(EVERYTHING, EVERYTHING)
    row = torch.tensor([0.0, 1.0, 2.0, 256.0, 260.0], dtype=torch.float64)
    assert_close(bias[0, :, 0], 0.5 * torch.stack([row / 16, row / 256]), rtol=0, atol=0)


def test_tiles_and_single_pairs_agree() -> None:
    """Of rows with places of their own, as padding and packed texts have."""
    position, q = RoundedALiBi(3, 0.3), torch.zeros(2, 3, 4, 4)
    ctx = at([0, 1, 2, 3], [0, 1, 0, 1])
    bias = position.score_bias(q, ctx)
    whole = bias(EVERYTHING, EVERYTHING)
    indices = torch.meshgrid(*(torch.arange(n) for n in (2, 3, 4, 4)), indexing="ij")
    assert_close(bias.at(*indices), whole.expand(2, 3, 4, 4), rtol=0, atol=0)
    assert_close(bias(slice(1, 3), slice(2, 4)), whole[:, :, 1:3, 2:4], rtol=0, atol=0)


def test_models_that_look_ahead_are_refused() -> None:
    attention = AttentionConfig(n_heads=2)
    for kind in (EncoderConfig, EncoderDecoderConfig):
        with pytest.raises(ValueError, match="decoders and causal encoders: use 'alibi'"):
            kind(d_model=8, attention=attention, position=RoundedALiBiConfig())
    DecoderConfig(d_model=8, attention=attention, position=RoundedALiBiConfig()).build(5)
    EncoderConfig(d_model=8, attention=attention, position=RoundedALiBiConfig(), causal=True).build(
        5
    )


@pytest.mark.parity
def test_biases_of_falcon() -> None:
    """Of 2,000 keys, for any number of heads, bit for bit."""
    falcon = pytest.importorskip("transformers.models.falcon.modeling_falcon")
    for n_heads in (1, 3, 8, 12, 71):
        real = torch.ones(1, 2000, dtype=torch.long)
        theirs = falcon.build_alibi_tensor(real, n_heads, torch.float32)
        bias = RoundedALiBi(n_heads, 1.0).score_bias(
            torch.zeros(1, n_heads, 1, 4), at([*range(2000)], new=1)
        )
        assert torch.equal(bias(EVERYTHING, EVERYTHING)[0], theirs)
