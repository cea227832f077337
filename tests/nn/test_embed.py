"""Embeddings: the formula, the original scale, and zero at padding."""

import math

import pytest
import torch
from tests.contracts import (
    NORM_RECORDS,
    POSITION_RECORDS,
    build_context,
    check_config,
    check_gradients,
    check_module,
    named,
    started,
)
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.models import EncoderConfig
from addnorm.nn.context import Context
from addnorm.nn.embed import Embedding, EmbeddingConfig, zero_padding
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.masks import Full
from addnorm.nn.norms import LayerNormConfig, NormConfig, RMSNormConfig
from addnorm.nn.positions import (
    Learned,
    LearnedConfig,
    NoPosition,
    PositionConfig,
    SinusoidalConfig,
    TransformerXLConfig,
)

TOKENS = torch.tensor([[3, 1, 4], [1, 5, 0]])
VALID = torch.tensor([[True, True, True], [True, True, False]])


def embed(module: Embedding, valid: Tensor | None = None) -> Tensor:
    return module(TOKENS, Context.over(TOKENS, Full(), valid=valid))


EMBEDDED = [
    one
    for one in POSITION_RECORDS
    if one.kind not in ("t5", "kerple", "learned_t5", "disentangled")
    and getattr(one, "fraction", 1.0) == 1.0
]
"""Schemes that embeddings of this size can hold, with no parameters that only scores use."""


@pytest.mark.parametrize(
    "config", [EmbeddingConfig(), EmbeddingConfig(scale="one", norm=RMSNormConfig())]
)
@pytest.mark.parametrize("position", named(EMBEDDED))
def test_contract(config: EmbeddingConfig, position: PositionConfig) -> None:
    check_config(config, EmbeddingConfig)
    check_module(
        lambda: config.build(6, 8, position.build(build_context(8, 2, max_len=16)), 0.0),
        lambda m, _: embed(m),
    )


@pytest.mark.parametrize("position", named(EMBEDDED))
def test_gradients(position: PositionConfig) -> None:
    module = EmbeddingConfig(norm=LayerNormConfig()).build(
        6, 4, position.build(build_context(4, 2, max_len=3)), 0.0
    )
    check_gradients(module, lambda m, x: embed(m, VALID) * x, torch.ones(1), twice=True)


def test_equals_the_formula() -> None:
    table = LearnedConfig().build(build_context(8, 2, max_len=16))
    module = EmbeddingConfig(norm=LayerNormConfig()).build(6, 8, table, 0.0)
    x = module.tokens.weight[TOKENS] * math.sqrt(8) + table.table.weight[:3]
    assert_close(embed(module), LayerNormConfig().build(8)(x))


def test_a_narrow_table_is_mapped_to_the_width_of_the_model() -> None:
    """Before positions are added, and scaled by the width of the model, not of the table."""
    position = LearnedConfig().build(build_context(8, 2, max_len=16))
    module = started(EmbeddingConfig(d_embed=3).build(6, 8, position, 0.0))
    assert module.proj is not None
    x = math.sqrt(8) * module.tokens.weight[TOKENS] @ module.proj.weight.T
    assert_close(embed(module), x + position.table.weight[:3])
    assert (EmbeddingConfig().width(8), EmbeddingConfig(d_embed=3).width(8)) == (8, 3)


def test_a_narrow_embedding_is_mapped_at_the_end() -> None:
    """Positions, types and norm have the width of the table; padding stays zero."""
    made_of = EmbeddingConfig(d_embed=3, map="last", norm=LayerNormConfig(), n_types=2)
    position = LearnedConfig().build(build_context(made_of.inner_width(8), 2, max_len=16))
    module = started(made_of.build(6, 8, position, 0.0))
    assert (module.proj, made_of.inner_width(8), EmbeddingConfig().inner_width(8)) == (None, 3, 8)
    x = math.sqrt(3) * module.tokens.weight[TOKENS] + position.table.weight[:3]
    x = module.norm(x + module.types.weight[0])
    assert module.proj_last is not None
    assert_close(embed(module), module.proj_last(x))
    assert bool((embed(module, VALID)[~VALID] == 0).all())


def test_a_map_at_the_end_needs_a_width_of_the_table() -> None:
    with pytest.raises(ValueError, match="give d_embed"):
        EmbeddingConfig(map="last")
    with pytest.raises(ValueError, match=r"transformer_xl.*embedding\.map = 'first'"):
        EncoderConfig(
            position=TransformerXLConfig(),
            embedding=EmbeddingConfig(d_embed=3, map="last"),
            head=TokenHeadConfig(tied=False),
        )


def test_hello_world() -> None:
    """D = 4: `PE(0) = [0, 1, 0, 1]`, `PE(1) = [0.8415, 0.5403, 0.0100, 0.99995]`."""
    module = EmbeddingConfig(scale="one").build(
        6, 4, SinusoidalConfig().build(build_context(4, 2, max_len=16)), 0.0
    )
    with torch.no_grad():
        module.tokens.weight[0] = torch.tensor([0.5, 1.0, 0.3, 0.7])
        module.tokens.weight[1] = torch.tensor([0.8, 0.6, 0.4, 0.9])
    tokens = torch.tensor([[0, 1]])
    expected = [[[0.5, 2.0, 0.3, 1.7], [1.6415, 1.1403, 0.4100, 1.89995]]]
    got = module(tokens, Context.over(tokens, Full()))
    assert_close(got, torch.tensor(expected), rtol=0, atol=5e-5)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_padding_is_zero_whatever_stands_there(garbage: float) -> None:
    config = EmbeddingConfig(norm=LayerNormConfig())
    module = config.build(6, 8, SinusoidalConfig().build(build_context(8, 2, max_len=16)), 0.0)
    clean = embed(module, VALID)
    with torch.no_grad():
        module.tokens.weight[0] = garbage
    assert torch.equal(embed(module, VALID), clean)
    assert torch.equal(clean[1, 2], torch.zeros(8))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("norm", named(NORM_RECORDS))
@pytest.mark.parametrize("position", named(EMBEDDED))
def test_no_gradient_sees_what_stands_in_the_padding(
    position: PositionConfig, norm: NormConfig, garbage: float
) -> None:
    """Not in the rows of tokens, types and positions that only the padding has."""
    config = EmbeddingConfig(norm=norm, n_types=2)
    module = started(
        config.build(6, 8, position.build(build_context(8, 2, max_len=16)), 0.1)
    ).train()
    ctx = Context.over(TOKENS, Full(), valid=torch.tensor([[True, True, False]] * 2))
    seed = torch.randn(2, 3, 8)

    def run() -> list[Tensor]:
        torch.manual_seed(0)
        out = module(TOKENS, ctx, types=torch.tensor([[0, 0, 1]] * 2))
        grads = torch.autograd.grad(out, list(module.parameters()), seed, allow_unused=True)
        return [out, *(g for g in grads if g is not None)]

    clean = run()
    assert all(g.isfinite().all() for g in clean)
    with torch.no_grad():
        module.tokens.weight[[0, 4]] = garbage
        module.types.weight[1] = garbage
        if isinstance(module.position, Learned):
            module.position.table.weight[2] = garbage
    assert all(map(torch.equal, run(), clean))


@pytest.mark.parametrize("norm", named(NORM_RECORDS))
def test_gradients_with_padding_before_a_norm(norm: NormConfig) -> None:
    module = EmbeddingConfig(norm=norm).build(6, 4, NoPosition(), 0.0)
    check_gradients(module, lambda m, x: embed(m, VALID) * x, torch.ones(1), twice=True)


def test_dropout_in_training_alone() -> None:
    module = Embedding(nn.Embedding(6, 64), position=NoPosition(), dropout=0.5)
    assert not torch.allclose(embed(module), embed(module))
    assert torch.equal(embed(module.eval()), module.tokens(TOKENS))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_zero_padding_keeps_the_type(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 4).to(dtype)
    out = zero_padding(x, VALID)
    assert out.dtype == dtype
    assert torch.equal(out, x * VALID[..., None])
    assert zero_padding(x, None) is x


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="scale"):
        EmbeddingConfig(scale="two")  # type: ignore[arg-type]


def test_word_dropout_hides_whole_words_and_keeps_positions() -> None:
    config = EmbeddingConfig(scale="one", word_dropout=0.5)
    module = config.build(
        6, 4, SinusoidalConfig().build(build_context(4, 2, max_len=16)), 0.0
    ).train()
    tokens = torch.full((50, 40), 3)
    ctx = Context.over(tokens, Full())
    words = module(tokens, ctx) - module.position.embed(torch.zeros(50, 40, 4), ctx)
    hidden = (words.abs() < 1e-6).all(-1)
    assert 0.45 < hidden.double().mean() < 0.55
    assert_close(words[~hidden], 2 * module.tokens.weight[3].expand((~hidden).sum(), -1))
    assert not (module.eval()(tokens, ctx) - module(tokens, ctx)).any()


def test_the_examples_have_every_choice() -> None:
    """What no example asks for, no combination of parts is ever checked with."""
    usual, *others = EmbeddingConfig.examples().values()
    for field in ("scale", "norm", "n_types"):
        assert [one for one in others if getattr(one, field) != getattr(usual, field)], field
