"""Which layers are quantised: those of every part that holds matrices, and those that are named."""

import copy

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DecoderModel, EncoderConfig
from addnorm.models.inputs import SeriesEmbeddingConfig
from addnorm.models.weights import weights_of
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.positions import PositionConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.parts import kind_of, members
from addnorm.quantize import Int8Config, StaticConfig, dequantize, quantize
from addnorm.quantize.model import laid_out
from addnorm.quantize.quantizable_layers import (
    check_replaceable,
    includable,
    names_matching,
    slots_of,
)

TOKENS = torch.arange(12)[None]


class Own(nn.Module):
    """A custom feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(32, 96)
        self.memory = nn.GRU(96, 32, batch_first=True)

    def forward(self, x: Float[Tensor, "batch seq d"]) -> Float[Tensor, "batch seq d"]:
        return self.memory(self.wide(x).relu())[0]


def with_own() -> DecoderModel:
    config = DecoderConfig(d_model=32, n_layers=2, attention=AttentionConfig(n_heads=2))
    model = config.build(12).eval()
    for i in (0, 1):
        model.set_submodule(f"stack.blocks.{i}.feedforward", Own())
    return model


def size(model: nn.Module) -> int:
    return sum(weight.nbytes for weight in weights_of(model).values())


def test_recurrences_and_forecasts_take_a_third_of_the_memory() -> None:
    lstm = DecoderConfig(d_model=64, n_layers=2, attention=RecurrentConfig())
    series = EncoderConfig(
        d_model=32,
        n_layers=1,
        attention=AttentionConfig(n_heads=2),
        input=SeriesEmbeddingConfig(look_back=96, patch=16, stride=8),
        head=ForecastHeadConfig(horizon=96),
    )
    for model in (lstm.build(40), series.build(n_labels=7)):
        before = size(model)
        assert size(quantize(model, Int8Config())) <= 0.35 * before


def test_layers_of_custom_modules_are_kept_unless_included() -> None:
    model = with_own()
    names = [f"stack.blocks.{i}.feedforward.{name}" for i in (0, 1) for name in ("wide", "memory")]
    assert includable(model) == names
    plain = quantize(copy.deepcopy(model), Int8Config())
    assert torch.equal(
        plain.get_parameter(f"{names[0]}.weight"), model.get_parameter(f"{names[0]}.weight")
    )
    quantized = quantize(copy.deepcopy(model), Int8Config(), include=["*.wide", "*.1.*.memory"])
    assert includable(quantized) == [names[1]]
    want = dequantize(copy.deepcopy(quantized))
    torch.testing.assert_close(quantized(TOKENS), want(TOKENS), rtol=0.1, atol=0.05)
    assert size(quantized) < size(plain) < size(model)


@pytest.mark.parametrize("static", [False, True])
def test_included_layers_round_trip_to_the_bit(static: bool) -> None:
    scheme = Int8Config(activations=StaticConfig()) if static else Int8Config()
    model, kept = with_own(), "stack.blocks.1.feedforward.wide"
    quantized = quantize(
        copy.deepcopy(model),
        scheme,
        [{"tokens": TOKENS}],
        include=["*.wide", "*.memory"],
        keep=[kept],
    )
    assert isinstance(quantized.get_submodule(kept), nn.Linear)
    again = laid_out(with_own(), scheme, [kept], includable(model)).eval()
    again.load_state_dict(quantized.state_dict())
    assert torch.equal(again(TOKENS), quantized(TOKENS))


def test_invalid_names_are_rejected_with_valid_ones() -> None:
    model = with_own()
    with pytest.raises(
        InputError, match=r"include = .*feedforward.wid`: matches no .*Did you mean '.*wide'"
    ):
        quantize(model, Int8Config(), include=["stack.blocks.0.feedforward.wid"])
    with pytest.raises(InputError, match=r"There are stack.blocks.0.feedforward.wide, "):
        quantize(model, Int8Config(), include=["9"])
    config = DecoderConfig(d_model=32, n_layers=1, attention=AttentionConfig(n_heads=2))
    with pytest.raises(InputError, match="No layer stays as it is"):
        quantize(config.build(9), Int8Config(), include=["*"])
    with pytest.raises(InputError, match="no layer 'gone' to keep"):
        laid_out(model, Int8Config(), [], ["gone"])
    with pytest.raises(InputError, match="matches no layer that is quantised"):
        names_matching(model, ["*.memory"])
    assert names_matching(model, ["*.memory"], includable(model)) == {
        "stack.blocks.0.feedforward.memory",
        "stack.blocks.1.feedforward.memory",
    }


def test_a_changed_recurrence_is_rejected_by_name() -> None:
    class Other(nn.LSTM):
        pass

    model = DecoderConfig(d_model=16, n_layers=1, attention=RecurrentConfig()).build(9)
    check_replaceable(model)
    assert any(slot.name.endswith("attention.ahead") for slot in slots_of(model))
    model.set_submodule("stack.blocks.0.attention.ahead", Other(16, 16, batch_first=True))
    with pytest.raises(InputError, match=r"quantisation cannot hold .*Other.*of layer 0"):
        check_replaceable(model)


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        *(("attention", kind_of(mixer)) for mixer in members(MixerConfig)),
        *(("position", kind_of(position)) for position in members(PositionConfig)),
    ],
)
def test_a_model_runs_with_every_layer_that_can_be_included(field: str, kind: str) -> None:
    """Also from its cache: no part reads the weight of a layer that is quantised."""
    try:
        config = DecoderConfig(d_model=32, n_layers=1, max_len=16, **{field: kind})  # pyright: ignore[reportArgumentType]
        model = config.build(11).eval()
    except ValueError:
        pytest.skip("not in a decoder")
    quantize(model, Int8Config(), include=includable(model))
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        expected, cache = model(tokens), model.new_cache()
        parts = [model(part, cache=cache) for part in tokens.split([4, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-3, atol=1e-3)
