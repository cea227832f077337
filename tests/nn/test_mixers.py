"""Mixers: one line of a recipe selects the token mixer."""

import pytest
from pydantic import TypeAdapter, ValidationError

from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.mixers import MixerConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.parts import kind_of, members

ADAPTER = TypeAdapter[object](MixerConfig)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"n_heads": 2}, AttentionConfig(n_heads=2)),
        ({"kind": "attention"}, AttentionConfig()),
        ({"kind": "recurrent", "cell": "lstm"}, RecurrentConfig(cell="lstm")),
        ({"kind": "convolution", "kernel_size": [3, 5]}, ConvolutionConfig(kernel_size=(3, 5))),
    ],
)
def test_attention_unless_another_kind_is_written(
    written: dict[str, object], expected: object
) -> None:
    assert ADAPTER.validate_python(written) == expected
    assert ADAPTER.validate_json(ADAPTER.dump_json(expected)) == expected


def test_the_union_lists_each_mixer_once() -> None:
    kinds = [kind_of(one) for one in members(MixerConfig)]
    assert sorted(kinds) == ["attention", "convolution", "recurrent"]


def test_a_kind_that_does_not_exist() -> None:
    with pytest.raises(ValidationError, match="mamba"):
        DecoderConfig(attention={"kind": "mamba"})  # type: ignore[arg-type]
