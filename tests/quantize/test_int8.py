"""int8 weights: close to the definition, tied if they were tied, and usable for look-ups."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.quantize import int8, quantize_int8
from addnorm.quantize.int8 import Int8Matrix, int8_product, rounded
from addnorm.quantize.layers import DynamicRounding


@given(st.integers(1, 9), st.integers(1, 40), st.floats(1e-6, 1e6))
def test_rounding_is_off_by_half_a_step_at_most(d_out: int, d_in: int, size: float) -> None:
    weight = torch.randn(d_out, d_in) * size
    values, scale = rounded(weight)
    assert values.dtype == torch.int8
    assert int(values.abs().max()) <= 127
    assert ((values * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None]).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_every_row_has_its_own_scale(transposed: bool) -> None:
    """A row a million times smaller than another keeps as many digits."""
    sizes = 10.0 ** torch.arange(-3.0, 4.0)
    weight = torch.randn(7, 40) * sizes[:, None]
    weight = weight.t().contiguous().t() if transposed else weight
    values, scale = rounded(weight)
    largest = weight.abs().amax(1)
    assert values.abs().amax(1).tolist() == [127] * 7
    torch.testing.assert_close(scale, largest / 127)
    errors = (Int8Matrix(weight).rows(torch.arange(7)) - weight).abs().amax(1)
    assert (errors <= 0.5001 / 127 * largest).all()


def test_products_keep_the_precision_of_rows_of_all_sizes() -> None:
    """Of the input and of the matrix: each entry is off by its own two rows' rounding alone."""
    d_in = 64
    x = torch.randn(5, d_in) * 10.0 ** torch.arange(-2.0, 3.0)[:, None]
    weight = torch.randn(7, d_in) * 10.0 ** torch.arange(-3.0, 4.0)[:, None]
    product, want = DynamicRounding()(x, Int8Matrix(weight)), x @ weight.t()
    off = x.norm(dim=1)[:, None] * weight.norm(dim=1)
    assert ((product - want).abs() <= 0.02 * off).all()


@pytest.mark.parametrize("instructions", [False, True])
@pytest.mark.parametrize("shape", [(1, 64, 8), (5, 64, 8), (33, 1040, 16), (9, 3000, 24)])
def test_products_of_integers_are_exact(
    shape: tuple[int, int, int], instructions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of numbers of the largest size, whose sums pass 2²⁴ where rows are long."""
    monkeypatch.setattr(int8, "_int8_instructions", instructions)
    rows, d_in, d_out = shape
    x = torch.randint(-127, 128, (rows, d_in), dtype=torch.int8)
    values = torch.randint(-127, 128, (d_out, d_in), dtype=torch.int8)
    x[0], values[0], values[1] = 127, 127, -127
    product = int8.int8_matmul(x, values)
    assert product.dtype == torch.int32
    assert torch.equal(product.long(), x.long() @ values.long().t())


def test_values_are_contiguous_for_every_view() -> None:
    assert rounded(torch.randn(5, 7).t())[0].is_contiguous()
    assert rounded(torch.randn(5, 7)[:, 1:4])[0].is_contiguous()


def test_a_row_of_zeros_stays_zero() -> None:
    values, scale = rounded(torch.zeros(2, 3))
    assert not values.any()
    assert scale.isfinite().all()


@pytest.mark.parametrize("rows", [1, 2, 16, 17, 33, 100])
@pytest.mark.parametrize(("d_out", "d_in"), [(64, 32), (33, 48), (7, 5)])
def test_products_are_exact_but_for_rounding_both_sides(rows: int, d_out: int, d_in: int) -> None:
    x, (values, scale) = torch.randn(rows, d_in), rounded(torch.randn(d_out, d_in))
    whole, by = rounded(x)
    want = (whole.double() @ values.double().T) * by.double()[:, None] * scale.double()
    torch.testing.assert_close(int8_product(x, values, scale).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_a_quantised_decoder_is_near_the_plain_one(tied: bool) -> None:
    config = DecoderConfig(
        d_model=64,
        n_layers=2,
        attention=AttentionConfig(n_heads=4, n_kv_heads=2),
        feedforward=GatedFeedForwardConfig(),
        head=TokenHeadConfig(tied=tied),
    )
    model, tokens = config.build(50).eval(), torch.randint(50, (3, 9))
    want, before = model(tokens), sum(p.nbytes for p in model.parameters())
    quantized = quantize_int8(model)
    assert quantized is model
    difference = (quantized(tokens) - want).norm() / want.norm()
    assert 0 < difference < 0.05
    sizes = {t.data_ptr(): t.nbytes for t in (*quantized.parameters(), *quantized.buffers())}
    assert sum(sizes.values()) < 0.35 * before
    assert not any(isinstance(m, nn.Linear | nn.Embedding) for m in quantized.modules())


def test_translators_share_one_table_in_three_places() -> None:
    config = EncoderDecoderConfig(d_model=32, n_layers=1, attention=AttentionConfig(n_heads=2))
    model = quantize_int8(config.build(20).eval())
    tables = [model.source_embed.tokens, model.target_embed.tokens, model.head]
    assert len({id(part.matrix) for part in tables}) == 1
    y = model(torch.randint(20, (2, 5)), torch.randint(20, (2, 4)))
    assert y.shape == (2, 4, 20)
    assert y.isfinite().all()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("stack.blocks.1.attention.q_proj", r"attention.q_proj.extra \(2.0\) of layer 1"),
        ("stack.blocks.0.feedforward.up_proj", r"feedforward.up_proj.extra \(2.0\) of layer 0"),
        ("embed.tokens", r"embed.tokens.extra \(2.0\)"),
        ("head", r"head.extra \(2.0\)"),
    ],
)
def test_a_module_with_an_unknown_attribute_is_rejected(path: str, message: str) -> None:
    model = DecoderConfig(d_model=16, n_layers=2, attention=AttentionConfig(n_heads=2)).build(9)
    model.get_submodule(path).extra = 2.0  # pyright: ignore[reportArgumentType]
    before = [type(module) for module in model.modules()]
    with pytest.raises(InputError, match=f"quantisation cannot hold {message}"):
        quantize_int8(model)
    assert [type(module) for module in model.modules()] == before


def test_modules_that_are_not_replaced_may_have_any_attribute() -> None:
    model = DecoderConfig(d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2)).build(9)
    model.stack.blocks[0].feedforward_residual.norm.extra = 2.0
    assert quantize_int8(model) is model


def test_a_single_row_in_a_graph_is_not_rounded() -> None:
    """Traced, a single row is multiplied as it is: exact in the rounded weights."""

    class Times(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = Int8Matrix(torch.randn(7, 5))
            self.activations = DynamicRounding()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.activations(x, self.matrix)

    module, x = Times(), torch.randn(1, 5)
    exact = x @ (module.matrix.values * module.matrix.scale[:, None]).T
    traced = torch.export.export(module, (x,), strict=False).module()
    torch.testing.assert_close(traced(x), exact)
    assert not torch.allclose(module(x), exact, rtol=1e-5)
