from typing import Any

import pytest

from addnorm.convert.exporters.ctranslate2_options import blocks_of, stack_options
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderDecoderConfig, EncoderDecoderModel
from addnorm.models.layers import LayerConfig
from addnorm.models.ledger import Ledger
from addnorm.nn.attention import (
    AdditiveConfig,
    AttentionConfig,
    BilinearConfig,
    EagerCore,
    ScaledDotConfig,
    WindowPatternConfig,
)
from addnorm.nn.attention.scores import Additive
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.masks import Window
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import (
    DynamicScaling,
    LinearScaling,
    NTKScaling,
    RotaryConfig,
    TransformerXLConfig,
    YaRNScaling,
)
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import DeepNormConfig, ParallelConfig, PreNormConfig

SMALL = {"d_model": 32, "n_layers": 2}
FOUR = AttentionConfig(n_heads=4)


@pytest.fixture(autouse=True)
def _library() -> None:
    pytest.importorskip("ctranslate2")


def _options(config: DecoderConfig) -> dict[str, Any]:
    model = config.build(11)
    return stack_options(model.stack, Ledger(model, "CTranslate2"))


def test_options_of_a_stack_like_llama() -> None:
    config = DecoderConfig(
        **SMALL,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2),
        feedforward=GatedFeedForwardConfig(),
        residual=PreNormConfig(),
    )
    assert _options(config) == {
        "num_layers": 2,
        "num_heads": 4,
        "num_heads_kv": 2,
        "head_dim": 8,
        "qk_norm": False,
        "pre_norm": True,
        "ffn_glu": True,
        "activation": 2,
        "rotary_dim": 0,
        "rotary_interleave": False,
        "rotary_base": pytest.approx(10000.0, rel=1e-12),
    }


@pytest.mark.parametrize(
    ("scaling", "base", "factor"),
    [
        (LinearScaling(factor=4.0), 10000.0, 4.0),
        (NTKScaling(factor=4.0), 10000.0 * 4.0 ** (8 / 6), None),
    ],
)
def test_scaled_frequencies_become_a_base_and_a_factor(
    scaling: Any, base: float, factor: float | None
) -> None:
    found = _options(DecoderConfig(**SMALL, position=RotaryConfig(scaling=scaling), attention=FOUR))
    assert found["rotary_base"] == pytest.approx(base)
    assert found.get("rotary_scaling_factor") == (factor and pytest.approx(factor))


def test_blocks_are_yielded_in_order() -> None:
    model = DecoderConfig(**SMALL, attention=FOUR).build(11)
    stack = model.stack
    assert list(blocks_of(stack, Ledger(model, "CTranslate2"))) == list(stack.blocks)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            {"attention": RecurrentConfig()},
            r"hold attention \(Recurrent\) of layer 0: it knows attention there",
        ),
        (
            {"feedforward": MixtureOfExpertsConfig()},
            r"feedforward \(MixtureOfExperts\) of layer 0: .* 'mlp' and 'gated'",
        ),
        (
            {"feedforward": FeedForwardConfig(activation="squared_relu")},
            r"feedforward.activation \(squared_relu\) of layer 0: .* relu",
        ),
        (
            {"attention": AttentionConfig(n_heads=4, pattern=WindowPatternConfig(size=2))},
            r"hold attention.pattern \(Window\(size=2\)\) of layer 0: it knows Full\(\) there",
        ),
        (
            {"attention": AttentionConfig(n_heads=4, score=AdditiveConfig())},
            r"score \(Additive\) of layer 0: .* dot products",
        ),
        (
            {"attention": AttentionConfig(n_heads=4, score=BilinearConfig())},
            r"score.weight \(.*\) of layer 0: .* dot products",
        ),
        (
            {"attention": AttentionConfig(n_heads=4, score=ScaledDotConfig(softcap=1.0))},
            r"softcap \(1.0\) of layer 0",
        ),
        (
            {"position": TransformerXLConfig()},
            r"position \(RelativeScores\) of layer 0: it knows sinusoidal",
        ),
        (
            {"position": RotaryConfig(scaling=YaRNScaling(factor=2.0, original_max_len=8))},
            "no rotary scaling of this kind: none, 'linear' and 'ntk'",
        ),
        (
            {"position": RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_len=8))},
            r"position \(DynamicRotary\)",
        ),
        ({"residual": DeepNormConfig()}, "no placement DeepNorm: 'post', 'pre'"),
        (
            {"layer_pattern": (LayerConfig(position=RotaryConfig()), LayerConfig())},
            "no layer 1 unlike layer 0",
        ),
    ],
)
def test_unsupported_parts_are_refused(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        _options(DecoderConfig(**({**SMALL, "attention": FOUR} | parts)))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"cross_attention": AttentionConfig(n_heads=2)}, "cross-attention with other heads"),
        ({"attention": AttentionConfig(n_heads=4, qk_norm=RMSNormConfig())}, "qk_norm in cross"),
        ({"residual": ParallelConfig()}, "no parallel cross-attention"),
    ],
)
def test_unsupported_cross_attention_is_refused(parts: dict[str, Any], says: str) -> None:
    model = EncoderDecoderConfig(**({**SMALL, "attention": FOUR} | parts)).build(11)
    assert isinstance(model, EncoderDecoderModel)
    with pytest.raises(InputError, match=says):
        stack_options(model.decoder, Ledger(model, "CTranslate2"))


def test_the_first_layer_that_differs_is_named() -> None:
    config = EncoderDecoderConfig(d_model=32, n_layers=3, attention=FOUR)
    model = config.build(11)
    model.decoder.blocks[2].attention.pattern = Window(2)
    with pytest.raises(InputError, match=r"pattern \(Window\(size=2\)\) of layer 2 of the decoder"):
        stack_options(model.decoder, Ledger(model, "CTranslate2"))
    model.encoder.blocks[1].attention.core = EagerCore(Additive(4, 8))
    with pytest.raises(InputError, match=r"score \(Additive\) of layer 1 of the encoder: .* dot"):
        stack_options(model.encoder, Ledger(model, "CTranslate2"))
