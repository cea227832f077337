from typing import Any

import pytest

from addnorm.convert.exporters.gguf_architectures import (
    ARCHITECTURES,
    architecture_of,
    attention_of,
    blocks_of,
    describe_parts,
    eps_of,
    geometric,
    norms_of,
)
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.models.ledger import Ledger
from addnorm.nn.attention import (
    AdditiveConfig,
    AttentionConfig,
    BilinearConfig,
    DifferentialCoreConfig,
    DotConfig,
    ScaledDotConfig,
    WindowPatternConfig,
)
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig, TransformConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import LayerNormConfig, NoNorm, RMSNormConfig, ScaleNormConfig
from addnorm.nn.positions import (
    DynamicScaling,
    LearnedConfig,
    LinearScaling,
    Llama3Scaling,
    NoPositionConfig,
    NTKScaling,
    Rotary,
    RotaryConfig,
    T5BiasConfig,
)
from addnorm.nn.positions.position import BuildContext
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import DeepNormConfig, ParallelConfig, PreNormConfig, SandwichNormConfig

PARTS: dict[str, Any] = {
    "d_model": 32,
    "n_layers": 2,
    "position": RotaryConfig(),
    "attention": AttentionConfig(n_heads=4, bias=False),
    "feedforward": GatedFeedForwardConfig(),
    "norm": RMSNormConfig(),
    "residual": PreNormConfig(),
}


def _model(**parts: Any) -> Any:
    return DecoderConfig(**PARTS | parts).build(11)


def _architecture(model: Any) -> str:
    return architecture_of(model, Ledger(model, "GGUF"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_lists_every_part(name: str) -> None:
    model = _model()
    assert ARCHITECTURES[name].keys() == describe_parts(model, Ledger(model, "GGUF")).keys()


def test_a_llama_requires_its_final_norm() -> None:
    model = _model()
    assert _architecture(model) == "llama"
    model.stack.norm = NoNorm()
    with pytest.raises(InputError, match=r"GGUF cannot hold stack.norm \(NoNorm\)"):
        _architecture(model)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            {"feedforward": GatedFeedForwardConfig(activation="gelu")},
            r"nearest is '\w+': its feedforward is 'gated \w+', not 'gated gelu'",
        ),
        (
            {"residual": SandwichNormConfig()},
            "its placement is 'pre', not 'sandwich'",
        ),
        (
            {"head": TokenHeadConfig(bias=True)},
            "its head is 'plain', not 'with a bias'",
        ),
        (
            {"position": T5BiasConfig()},
            "its position is 'rotary', not 't5bias'",
        ),
    ],
)
def test_an_unsupported_part_is_refused_with_the_nearest_architecture(
    parts: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        _architecture(_model(**parts))


def _facts(model: Any) -> dict[str, str]:
    return describe_parts(model, Ledger(model, "GGUF"))


def test_the_parts_of_a_llama_are_described() -> None:
    assert _facts(_model()) == {
        "placement": "pre",
        "norm": "rmsnorm",
        "score": "scaled dot",
        "qk_norm": "none",
        "pattern": "full",
        "position": "rotary",
        "frequencies": "geometric",
        "heads": "of d_model in all",
        "feedforward": "gated silu",
        "feedforward bias": "none",
        "attention bias": "none",
        "embedding": "plain",
        "scale": "sqrt",
        "head": "plain",
        "tied": "yes",
    }


@pytest.mark.parametrize(
    ("parts", "part", "fact"),
    [
        ({"residual": DeepNormConfig()}, "placement", "deepnorm"),
        ({"residual": SandwichNormConfig()}, "placement", "sandwich"),
        ({"residual": ParallelConfig()}, "placement", "parallel"),
        ({"norm": ScaleNormConfig()}, "norm", "scalenorm"),
        ({"norm": LayerNormConfig(bias=False)}, "norm", "layernorm without bias"),
        ({"residual": PreNormConfig(first=False), "n_layers": 1}, "norm", "a mixture"),
        (
            {"attention": AttentionConfig(n_heads=4, qk_norm=LayerNormConfig())},
            "qk_norm",
            "layernorm",
        ),
        (
            {"attention": AttentionConfig(n_heads=4, score=ScaledDotConfig(softcap=1.0))},
            "score",
            "scaled dot with softcap",
        ),
        ({"attention": AttentionConfig(n_heads=4)}, "attention bias", "all"),
        ({"attention": AttentionConfig(n_heads=4, out_bias=False)}, "attention bias", "qkv"),
        (
            {"attention": AttentionConfig(n_heads=4, bias=False, out_bias=True)},
            "attention bias",
            "out",
        ),
        ({"attention": AttentionConfig(n_heads=4, d_head=6)}, "heads", "of another width"),
        (
            {"layer_pattern": (LayerConfig(pattern=WindowPatternConfig(size=3)), LayerConfig())},
            "pattern",
            "a window in every second layer",
        ),
        ({"position": RotaryConfig(fraction=0.5)}, "position", "partial rotary"),
        ({"position": T5BiasConfig()}, "position", "t5bias"),
        ({"position": NoPositionConfig()}, "position", "none"),
        (
            {"position": LearnedConfig(), "layer_pattern": (LayerConfig(position=RotaryConfig()),)},
            "position",
            "of two kinds",
        ),
        (
            {"position": RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_len=8))},
            "position",
            "dynamicrotary",
        ),
        ({"position": RotaryConfig(scaling=Llama3Scaling())}, "frequencies", "other"),
        ({"feedforward": FeedForwardConfig()}, "feedforward", "relu"),
        ({"feedforward": FeedForwardConfig()}, "feedforward bias", "all"),
        ({"feedforward": MixtureOfExpertsConfig()}, "feedforward", "MixtureOfExperts"),
        ({"embedding": EmbeddingConfig(n_types=2)}, "embedding", "with sentence types"),
        ({"embedding": EmbeddingConfig(norm=RMSNormConfig())}, "embedding", "with a norm"),
        (
            {"embedding": EmbeddingConfig(d_embed=3), "head": TokenHeadConfig(tied=False)},
            "embedding",
            "of a table of another width",
        ),
        ({"embedding": EmbeddingConfig(scale="one")}, "scale", "one"),
        ({"head": TokenHeadConfig(tied=False)}, "tied", "no"),
        ({"head": TokenHeadConfig(bias=True, softcap=2.0)}, "head", "with a bias and softcap"),
        ({"head": TokenHeadConfig(transform=TransformConfig())}, "head", "with a transform"),
    ],
)
def test_every_part_is_described(parts: dict[str, Any], part: str, fact: str) -> None:
    assert _facts(_model(**parts))[part] == fact


WINDOW = AttentionConfig(n_heads=4, pattern=WindowPatternConfig(size=3))


@pytest.mark.parametrize(
    ("layer", "attention", "says"),
    [
        (0, AttentionConfig(n_heads=4, score=DotConfig()), r"score.scale \(1.0\)"),
        (1, AttentionConfig(n_heads=4, score=AdditiveConfig()), r"score \(Additive\)"),
        (1, AttentionConfig(n_heads=4, score=BilinearConfig()), r"score.weight \(.*\)"),
        (2, AttentionConfig(n_heads=4, core=DifferentialCoreConfig()), r"\(DifferentialCore\)"),
        (2, WINDOW, r"pattern \(Window\(size=3\)\)"),
    ],
)
def test_the_first_layer_of_another_score_or_pattern_is_named(
    layer: int, attention: Any, says: str
) -> None:
    model = _model(n_layers=3)
    other = _model(n_layers=3, attention=attention, position=NoPositionConfig())
    for i in range(layer, 3):
        model.stack.blocks[i].attention.core = other.stack.blocks[i].attention.core
        model.stack.blocks[i].attention.pattern = other.stack.blocks[i].attention.pattern
    with pytest.raises(InputError, match=rf"GGUF cannot hold attention.*{says} of layer {layer}:"):
        _facts(model)


def test_windows_in_all_layers_or_in_the_wrong_half_name_the_first() -> None:
    half = (LayerConfig(), LayerConfig(pattern=WindowPatternConfig(size=3)))
    for parts in ({"attention": WINDOW}, {"layer_pattern": half}):
        with pytest.raises(InputError, match=r"pattern \(Window\(size=3\)\) of layer 1: .*Full"):
            _facts(_model(**parts))


def test_layers_of_two_kinds_and_other_mixers_are_refused() -> None:
    two = (LayerConfig(position=RotaryConfig(theta=7.0)), LayerConfig(position=NoPositionConfig()))
    with pytest.raises(InputError, match="layer 1 has position 'none', and layer 0 has 'rotary'"):
        _facts(_model(layer_pattern=two))
    with pytest.raises(InputError, match=r"attention \(Recurrent\) of layer 0"):
        _facts(_model(attention=RecurrentConfig()))


def test_geometric_frequencies_give_their_base_and_factor() -> None:
    build_context = BuildContext(d_model=32, max_len=8, n_heads=4, d_head=8, causal=True, scale=1.0)
    for scaling, base, factor in (
        (None, 500.0, 1.0),
        (LinearScaling(factor=3.0), 500.0, 3.0),
        (NTKScaling(factor=2.0), 500.0 * 2.0 ** (8 / 6), 1.0),
    ):
        rotary = RotaryConfig(theta=500.0, scaling=scaling).build(build_context)
        assert isinstance(rotary, Rotary)
        assert geometric(rotary) == pytest.approx((base, factor), rel=1e-12)


def test_the_norms_of_a_sandwich_block_have_llama_cpp_names() -> None:
    model = _model(residual=SandwichNormConfig())
    ledger = Ledger(model, "GGUF")
    [first, _] = blocks_of(model.stack, ledger)
    assert attention_of(first) is first.attention
    names = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]
    assert list(norms_of(first)) == names
    assert eps_of(model, ledger) == 1e-6


def test_an_epsilon_unlike_the_others_is_named_with_its_layer() -> None:
    model = _model(attention=AttentionConfig(n_heads=4, qk_norm=RMSNormConfig(eps=0.1)))
    named = r"not attention_residual.norm.eps \(1e-06\) of layer 0 and attention.q_norm.eps \(0.1\)"
    with pytest.raises(InputError, match=named):
        eps_of(model, Ledger(model, "GGUF"))
