"""Axial rotary positions: their definition in float64, and what depends on what."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import build_context
from torch import Tensor
from torch.testing import assert_close

from addnorm.checking.definition.positions import rotated
from addnorm.checking.definition.texts import Texts
from addnorm.config import ConfigError
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.context import Context
from addnorm.nn.convolutional_embedding import ConvolutionalEmbeddingConfig
from addnorm.nn.heads import HiddenHeadConfig
from addnorm.nn.masks import Full
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.positions import AxialRotaryConfig

CONFIG = AxialRotaryConfig(theta=7.0)


def turned(x: Tensor, grid: tuple[int, int], d_head: int) -> Tensor:
    position = CONFIG.build(build_context(2 * d_head, 2))
    ctx = Context.over(torch.zeros(1, x.shape[2], 1), Full())
    q, k = position.rotate(x, x[:, :1], Context(**{**vars(ctx), "grid": grid}))
    assert torch.equal(q[:, :1], k)
    return q


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.sampled_from([4, 8, 12]))
def test_equals_its_definition(rows: int, columns: int, before: int, d_head: int) -> None:
    n = before + rows * columns
    x = torch.randn(1, 2, n, d_head).double()
    found = turned(x, (rows, columns), d_head)
    texts = Texts(text=[0] * n, place=list(range(n)), grid=(rows, columns))
    for head in range(2):
        expected = rotated(CONFIG, {}, x[0, head], texts)
        assert_close(found[0, head], expected, rtol=0, atol=1e-12)
    assert torch.equal(found[:, :, :before], x[:, :, :before])


def test_products_depend_on_the_offset_of_coordinates() -> None:
    q, k = torch.randn(2, 8).double()
    grid = turned(q.expand(1, 2, 12, 8), (3, 4), 8)[0, 0], turned(k.expand(1, 2, 12, 8), (3, 4), 8)
    scores = (grid[0] @ grid[1][0, 0].T).view(3, 4, 3, 4)
    assert_close(scores[0, 1, 1, 3], scores[1, 0, 2, 2])
    assert_close(scores[0, 0, 0, 1], scores[2, 2, 2, 3])


def test_a_narrow_type_turns_by_exact_angles() -> None:
    x = torch.randn(1, 2, 12, 8).bfloat16()
    exact = turned(x.double(), (3, 4), 8)
    assert_close(turned(x, (3, 4), 8).double(), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("inputs", [PatchEmbeddingConfig, ConvolutionalEmbeddingConfig])
def test_pictures_alone(inputs: type) -> None:
    sizes = {
        "d_model": 8,
        "n_layers": 1,
        "position": CONFIG,
        "attention": AttentionConfig(n_heads=2),
    }
    model = EncoderConfig(**sizes, input=inputs(size=(32, 32)), head=HiddenHeadConfig())  # type: ignore[arg-type]
    assert model.build(5)(torch.randn(1, 3, 32, 64)).isfinite().all()
    for kind in (EncoderConfig, DecoderConfig):
        with pytest.raises(
            ConfigError, match=r"need model\.kind = 'encoder' with model\.input\.kind"
        ):
            kind(**sizes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="d_head = 6 must be a multiple of 4, such as 8"):
        EncoderConfig(
            d_model=12,
            position=CONFIG,
            attention=AttentionConfig(n_heads=2),
            input=PatchEmbeddingConfig(),
        )
