"""By distance: what each scheme of positions does, against its formula."""

from typing import Any

import pytest
import torch

from addnorm.inspect.distance import ByOffset, cosines, position_curves
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    LearnedConfig,
    NoPositionConfig,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.positions.alibi import slopes
from addnorm.nn.positions.sinusoidal import frequencies
from addnorm.nn.recurrent import RecurrentConfig

N = 7


def curves_of(position: Any, layer: int = 0, **parts: Any) -> list[ByOffset]:
    fields = {"attention": AttentionConfig(n_heads=2), **parts}
    model = DecoderConfig(d_model=16, n_layers=2, position=position, **fields).build(11).double()
    with position_curves(model.eval(), {"stack": layer}) as curves:
        model(torch.randint(11, (1, N)))
    return curves


def test_the_mean_over_pairs_of_one_offset() -> None:
    matrix = torch.tensor([[1.0, 9.0], [2.0, 3.0]])
    both_directions = ByOffset.of({"a": matrix}, causal=False, what="w", stack="stack")
    assert (both_directions.offsets, both_directions.lines) == ([-1, 0, 1], {"a": [2.0, 2.0, 9.0]})
    back = ByOffset.of({"a": matrix}, causal=True, what="w", stack="stack")
    assert (back.offsets, back.lines) == ([-1, 0], {"a": [2.0, 2.0]})
    assert torch.equal(cosines(torch.zeros(1, 2), torch.ones(1, 2)), torch.zeros(1, 1))


@pytest.mark.parametrize(
    ("position", "width", "what"),
    [
        (SinusoidalConfig(), 16, "similarity of two positions (cosine)"),
        (RotaryConfig(), 8, "equal vectors, rotated (cosine)"),
    ],
)
def test_the_similarity_of_waves_follows_their_frequencies(
    position: Any, width: int, what: str
) -> None:
    """The mean of `cos(d ω)` for every two positions at a distance of `d`."""
    [curve] = curves_of(position)
    assert curve.what == what
    [line] = curve.lines.values()
    expected = [float((d * frequencies(width)).cos().mean()) for d in curve.offsets]
    assert line == pytest.approx(expected, rel=1e-9)


def test_bias_curves_equal_the_biases_of_the_scores() -> None:
    [alibi] = curves_of(ALiBiConfig(), layer=1)
    assert alibi.what == "added to the score"
    assert alibi.offsets == [*range(1 - N, 1)]
    for slope, line in zip(slopes(2).tolist(), alibi.lines.values(), strict=True):
        assert line == pytest.approx([slope * d for d in alibi.offsets])
    [t5] = curves_of(T5BiasConfig())
    assert [*t5.lines] == ["head 0", "head 1"]
    assert len(curves_of(TransformerXLConfig())) == 1


def test_positions_without_effect_have_no_curve() -> None:
    assert curves_of(NoPositionConfig()) == []
    assert len(curves_of(LearnedConfig(), attention=RecurrentConfig())) == 1


def test_curves_cover_both_stacks_and_both_directions() -> None:
    parts: dict[str, Any] = {"d_model": 16, "n_layers": 1, "attention": AttentionConfig(n_heads=2)}
    model = EncoderDecoderConfig(**parts).build(11).eval()
    with position_curves(model, {"encoder": 0, "decoder": 0}) as curves:
        model(torch.randint(11, (1, N)), torch.randint(11, (1, 3)))
    assert {curve.stack: curve.offsets for curve in curves} == {
        "encoder": [*range(1 - N, N)],
        "decoder": [-2, -1, 0],
    }
    encoder = EncoderConfig(**parts, position=ALiBiConfig()).build(11).eval()
    with position_curves(encoder, {"stack": 0}) as curves:
        encoder(torch.randint(11, (1, N)))
    [line, _] = curves[0].lines.values()
    assert line == line[::-1]
    with pytest.raises(RuntimeError, match="stop"), position_curves(encoder, {"stack": 0}):
        raise RuntimeError("stop")
