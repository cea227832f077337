"""The ledger: any item of a model that its reader does not claim is reported."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.models.ledger import Ledger, check_as_built, equal, items_of, shown
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.linear import Linear
from addnorm.nn.masks import Window
from addnorm.nn.norms import LayerNorm, RMSNorm, RMSNormConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import PreNormConfig

CONFIG = DecoderConfig(
    d_model=16,
    n_layers=2,
    attention=AttentionConfig(n_heads=2),
    position=RotaryConfig(),
    norm=RMSNormConfig(),
    residual=PreNormConfig(),
)


def _model(config: DecoderConfig = CONFIG) -> DecoderModel:
    return config.build(11)


def _read_as_built(model: DecoderModel) -> None:
    ledger = Ledger(model, "test")
    check_as_built(ledger, model, _model())
    ledger.parameters()
    ledger.close()


class Doubled(nn.Module):
    """Someone's own part without any parameter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_a_model_as_built_is_accounted_for() -> None:
    _read_as_built(_model())


def test_everything_is_listed_with_its_path_and_shared_modules_once() -> None:
    model = _model()
    names = [f"{item.path}.{item.name}".strip(".") for item in items_of(model)]
    assert len(names) == len(set(names))
    assert {
        "stack.blocks.1.attention.q_proj.weight",
        "stack.blocks.0.attention.pattern",
        "stack.blocks.0.attention_residual.norm.eps",
        "stack.blocks.0.feedforward.activation",
        "embed.position.frequencies",
        "embed.scale",
    } <= set(names)
    assert not any("training" in name for name in names)


def test_an_unclaimed_item_is_named_with_its_layer_and_value() -> None:
    gated = CONFIG.attention.__class__(n_heads=2, output=GatedOutputConfig())
    model = _model(DecoderConfig(d_model=16, n_layers=2, attention=gated))
    ledger = Ledger(model, "GGUF")
    with pytest.raises(InputError, match=r"^GGUF cannot hold the model \(DecoderModel\)$"):
        ledger.close()
    block = model.stack.blocks[1]
    with pytest.raises(
        InputError, match=r"GGUF cannot hold attention.output \(GatedOutput\) of layer 1: it knows"
    ):
        ledger.module(block.attention.output, Doubled)


def test_claims_are_by_reading_and_a_subclass_is_another_part() -> None:
    class Mine(RMSNorm):
        pass

    norm = RMSNorm(4)
    ledger = Ledger(norm, "R")
    assert ledger.module(norm, LayerNorm, RMSNorm) is norm
    with pytest.raises(InputError, match=r"R cannot hold weight \(\[1.0, 1.0, 1.0, 1.0\]\)"):
        ledger.close()
    ledger.leave(norm, "weight", because="this test does not write it")
    with pytest.raises(InputError, match=r"R cannot hold eps \(1e-06\)"):
        ledger.close()
    assert ledger.take(norm, "eps") == 1e-6
    ledger.close()
    with pytest.raises(InputError, match="Mine"):
        Ledger(mine := Mine(4), "R").module(mine, RMSNorm)


def test_linear_maps_tables_and_dropout_are_claimed_whole() -> None:
    for layer in (Linear(2, 3), nn.Linear(2, 3, bias=False)):
        ledger = Ledger(layer, "R")
        weight, bias = ledger.linear(layer)
        assert (weight is layer.weight, bias is layer.bias) == (True, True)
        ledger.close()
    table = nn.Embedding(3, 2)
    ledger = Ledger(table, "R")
    assert ledger.table(table) is table.weight
    ledger.close()
    table.max_norm = 1.0
    with pytest.raises(InputError, match=r"max_norm \(1.0\)"):
        ledger.close(table)


def test_the_same_in_all_layers_or_the_first_that_differs() -> None:
    model = _model()
    norms = [block.attention_residual.norm for block in model.stack.blocks]
    ledger = Ledger(model, "GGUF")
    assert ledger.same(norms, "eps") == 1e-6
    norms[1].eps = 0.5
    with pytest.raises(
        InputError, match=r"one value for all layers, not .*norm.eps \(0.5\) of layer 1 and .*1e-06"
    ):
        ledger.same(norms, "eps")
    with pytest.raises(InputError, match="it knows 3 there"):
        ledger.expect(norms[0], "eps", 3)


def test_a_part_can_be_left_out_whole_and_closed_alone() -> None:
    model = _model()
    ledger = Ledger(model, "R")
    ledger.leave_all(model.head, because="nothing here needs logits")
    ledger.close(model.head)
    with pytest.raises(InputError, match="stack"):
        ledger.close(model.stack)


def _swap_window(model: DecoderModel) -> None:
    model.stack.blocks[0].attention.pattern = Window(3)


def _swap_norm(model: DecoderModel) -> None:
    model.stack.norm = LayerNorm(16)


def _add_hook(model: DecoderModel) -> None:
    model.stack.blocks[1].register_forward_hook(lambda *_: None)


def _untie(model: DecoderModel) -> None:
    model.head.weight = nn.Parameter(model.head.weight.clone())


def _shift(model: DecoderModel) -> None:
    model.embed.position.frequencies = model.embed.position.frequencies * 2


def _drop_block(model: DecoderModel) -> None:
    del model.stack.blocks[1]


def _wrap_forward(model: DecoderModel) -> None:
    model.stack.norm.forward = lambda x, valid=None: x


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_swap_window, r"attention.pattern \(Window\(size=3\)\) of layer 0"),
        (_swap_norm, "norm"),
        (_add_hook, r"hooks"),
        (_untie, "head.weight"),
        (_shift, "position.frequencies"),
        (_drop_block, "layer 1"),
        (_wrap_forward, "norm.forward"),
    ],
)
def test_what_was_changed_after_building_is_refused(change: Any, says: str) -> None:
    model = _model()
    change(model)
    with pytest.raises(InputError, match=says):
        _read_as_built(model)


@pytest.mark.long
@settings(max_examples=40)
@given(st.data())
def test_anything_added_anywhere_is_refused(data: st.DataObject) -> None:
    model = _model()
    places = [(path, m) for path, m in model.named_modules()]
    path, module = data.draw(st.sampled_from(places))
    add_something(data, module)
    with pytest.raises(InputError, match=r"test cannot"):
        _read_as_built(model)
    assert isinstance(path, str)


def add_something(data: st.DataObject, module: nn.Module) -> None:
    """A setting, a parameter, a buffer or a module that no reader knows."""
    match data.draw(st.sampled_from(["setting", "parameter", "buffer", "module"])):
        case "setting":
            module.extra_scale = 1.5
        case "parameter":
            module.register_parameter("extra", nn.Parameter(torch.ones(2)))
        case "buffer":
            module.register_buffer("extra", torch.ones(2))
        case _:
            module.add_module("extra", Doubled())


def test_equal_and_shown() -> None:
    assert equal(torch.ones(2), torch.ones(2))
    assert not equal(torch.ones(2), torch.ones(3))
    assert not equal(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not equal(1, 1.0)
    assert equal(Window(3), Window(3))
    assert shown(torch.relu) == "relu"
    assert shown(torch.ones(9)) == "a tensor of shape (9,)"
    assert shown(Doubled()) == "Doubled"
