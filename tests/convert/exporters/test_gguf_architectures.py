from typing import Any

import pytest

from addnorm.convert.exporters.decoder_parts import describe_parts
from addnorm.convert.exporters.gguf_architectures import ARCHITECTURES, architecture_of
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.models.ledger import Ledger
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import NoNorm, RMSNormConfig
from addnorm.nn.positions import RotaryConfig, T5BiasConfig
from addnorm.nn.residuals import PreNormConfig, SandwichNormConfig

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
def test_every_architecture_says_something_of_every_part(name: str) -> None:
    model = _model()
    assert ARCHITECTURES[name].keys() == describe_parts(model, Ledger(model, "GGUF")).keys()


def test_a_llama_is_one_only_with_its_final_norm() -> None:
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
def test_what_no_architecture_has_is_refused_with_the_nearest(
    parts: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        _architecture(_model(**parts))
