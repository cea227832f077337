"""What is traced into a graph: parts of anyone's own, but no hooks and no other attention."""

from typing import Any

import pytest
from tests.convert.own_parts import DoubledConfig, HalvedNormConfig

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.models.traceable import check_traceable
from addnorm.nn.attention import AttentionConfig, SelfAttention
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import NormConfig
from addnorm.nn.recurrent import RecurrentConfig

SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 2, "attention": AttentionConfig(n_heads=2)}


class Windowed(SelfAttention):
    """Attention of someone's own, of whose cache nothing is known."""


def _check(**parts: Any) -> None:
    model = DecoderConfig(**SMALL | parts).build(7)
    check_traceable(model, model.stack, "a compiled model")


def test_own_parts_are_traced_as_they_are() -> None:
    norm: NormConfig = HalvedNormConfig()
    _check(norm=norm, attention=AttentionConfig(n_heads=2, output=DoubledConfig()))
    model = EncoderDecoderConfig(**SMALL).build(7)
    check_traceable(model, model.decoder, "a compiled model")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"attention": RecurrentConfig()}, "only attention"),
        ({"feedforward": MixtureOfExpertsConfig()}, "mixture of experts"),
    ],
)
def test_work_that_depends_on_the_data_is_refused(parts: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        _check(**parts)


def test_hooks_and_other_attention_are_named() -> None:
    model = DecoderConfig(**SMALL).build(7)
    hook = model.stack.blocks[1].register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match=r"a compiled model cannot hold forward hooks .* layer 1"):
        check_traceable(model, model.stack, "a compiled model")
    hook.remove()
    model.stack.blocks[0].attention.__class__ = Windowed
    with pytest.raises(InputError, match=r"cannot hold attention \(Windowed\) of layer 0"):
        check_traceable(model, model.stack, "a compiled model")
