"""Early exits: their own heads, and the layers that they run."""

import pytest
import torch
from tests.contracts import check_gradients, check_module, context
from torch.testing import assert_close

from addnorm.models import DecoderConfig, DecoderModel, EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.exits import ExitHead, check_exits
from addnorm.nn.heads import ClassificationHeadConfig, HeadConfig, TaggingHeadConfig
from addnorm.nn.norms import BatchNorm, LayerNorm, LayerNormConfig

HEADS = [ClassificationHeadConfig(), TaggingHeadConfig()]


def build(head: HeadConfig | None = None) -> ExitHead:
    return ExitHead(LayerNormConfig().build(6), (head or ClassificationHeadConfig()).build(6, 4))


# The head.


@pytest.mark.parametrize("head", HEADS)
def test_contract(head: HeadConfig) -> None:
    x, ctx = torch.randn(2, 3, 6), context(2, 3)
    check_module(lambda: build(head), lambda module, dtype: module(x.to(dtype), ctx))
    check_gradients(build(head), lambda m, x: m(x, ctx), x, twice=True)


def test_an_exit_is_a_head_on_a_norm_of_its_own() -> None:
    module, x, ctx = build(), torch.randn(2, 3, 6), context(2, 3)
    assert_close(module(x, ctx), module.head(LayerNorm(6)(x), ctx))


def test_the_norm_gets_the_mask_of_real_tokens() -> None:
    valid = torch.tensor([[True, True, False], [True, False, False]])
    module = ExitHead(BatchNorm(6), TaggingHeadConfig().build(6, 4))
    x, ctx = torch.randn(2, 3, 6), context(2, 3, valid=valid)
    dirty = x.masked_fill(~valid[..., None], 1e4)
    assert torch.equal(module(x, ctx)[valid], module(dirty, ctx)[valid])


def exiting(**fields: object) -> DecoderModel:
    torch.manual_seed(2)
    attention = AttentionConfig(n_heads=2)
    config = DecoderConfig(d_model=8, n_layers=5, attention=attention, dropout=0.0, **fields)  # type: ignore[arg-type]
    return config.build(11).eval()


def test_exits_are_named_by_their_layer() -> None:
    model = exiting(exits=(2, 4))
    assert list(model.exits) == ["2", "4"]
    assert model.exits["2"].norm is not model.exits["4"].norm
    assert model.exits["2"].head.weight is model.embed.tokens.weight  # tied, as the model's own
    assert not exiting().exits


def test_the_last_exit_is_the_model_and_the_others_are_shorter_models() -> None:
    model, tokens = exiting(exits=(2, 4)), torch.randint(11, (3, 6))
    outputs = list(model.exit_logits(tokens))
    assert len(outputs) == 3
    assert_close(outputs[2], model(tokens))
    shorter = exiting()
    shorter.stack.blocks = model.stack.blocks[:2]
    shorter.stack.norm, shorter.head = model.exits["2"].norm, model.head
    shorter.embed = model.embed
    assert_close(outputs[0], shorter(tokens))


def test_layers_above_the_last_exit_that_is_read_never_run() -> None:
    model, ran = exiting(exits=(2,)), []
    for i, block in enumerate(model.stack.blocks, start=1):
        block.register_forward_hook(lambda *_, i=i: ran.append(i))
    next(iter(model.exit_logits(torch.randint(11, (3, 6)))))
    assert ran == [1, 2]


def test_every_kind_of_head_can_exit() -> None:
    config = EncoderConfig(
        d_model=8,
        n_layers=3,
        attention=AttentionConfig(n_heads=2),
        head=ClassificationHeadConfig(),
        exits=(1,),
    )
    assert [tuple(y.shape) for y in config.build(9, 4).exit_logits(torch.randint(9, (2, 5)))] == [
        (2, 4)
    ] * 2


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([0, 2], r"\[0, 2\] must lie between 1 and 5"),
        ([2, 6], r"\[2, 6\] must lie between 1 and 5: of n_layers = 6"),
        ([4, 2], r"\[4, 2\] must rise: give \[2, 4\]"),
        ([2, 2], r"\[2, 2\] must rise: give \[2\]"),
    ],
)
def test_impossible_layers_are_refused(layers: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_exits(layers, 6)
