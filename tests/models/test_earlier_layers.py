"""Layers that read an earlier one: every way of running them gives the same, or refuses."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.generate.early_exit import ConfidenceRule, EarlyExit
from addnorm.generate.self_speculation import check_speculates
from addnorm.inspect.capture import attention_weights
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.models.earlier_layers import check_chosen, reads_of
from addnorm.models.layers import LayerConfig
from addnorm.models.step import concatenated_cache, fixed_cache
from addnorm.nn.attention import AttentionConfig, WindowPatternConfig
from addnorm.nn.positions import ALiBiConfig, RotaryConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.prune.units import head_groups
from addnorm.training.activation_checkpointing import checkpointed_activations
from addnorm.training.parallel.context import check_texts
from addnorm.training.parallel.stages import staged_sections

HEADS = AttentionConfig(n_heads=4, n_kv_heads=2)
EVERY_SECOND = (LayerConfig(), LayerConfig(attention=replace(HEADS, kv_layers_back=1)))
WAYS: dict[str, dict[str, Any]] = {
    "cross_layer": {"layer_pattern": EVERY_SECOND},
    "in_windows": {
        "attention": replace(HEADS, pattern=WindowPatternConfig(size=3)),
        "layer_pattern": (
            LayerConfig(),
            LayerConfig(),
            LayerConfig(
                attention=replace(HEADS, pattern=WindowPatternConfig(size=3), kv_layers_back=2)
            ),
            LayerConfig(
                attention=replace(HEADS, pattern=WindowPatternConfig(size=3), kv_layers_back=2)
            ),
        ),
    },
    "value_residual": {"attention": replace(HEADS, value_residual="learned")},
}


def config(way: str, **fields: Any) -> DecoderConfig:
    parts: dict[str, Any] = {"attention": HEADS, "position": RotaryConfig(), "dropout": 0.0}
    return DecoderConfig(**{"d_model": 16, "n_layers": 4} | parts | WAYS[way] | fields)


def decoder(way: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    return config(way, **fields).build(20).double().eval()


TOKENS = torch.randint(20, (2, 11), generator=torch.Generator().manual_seed(1))
VALID = torch.arange(11) >= torch.tensor([[3], [0]])


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_every_cache_gives_what_a_whole_text_gives(way: str) -> None:
    model = decoder(way)
    whole = model(TOKENS, VALID)
    grown, cache, n = [], model.new_cache(), model.stack.storing
    for part in (slice(0, 5), slice(5, 6), slice(6, 11)):
        grown.append(model(TOKENS[:, part], VALID[:, : part.stop], cache=cache))
    assert_close(torch.cat(grown, 1)[VALID], whole[VALID])
    empty = [torch.zeros(2, 2, 0, 4).double() for _ in range(2 * sum(n))]
    concatenated = concatenated_cache(model.stack, empty)
    assert_close(model(TOKENS, VALID, cache=concatenated)[VALID], whole[VALID])
    buffers = [torch.zeros(2, 2, 12, 4).double() for _ in range(2 * sum(n))]
    fixed = fixed_cache(model.stack, buffers, torch.arange(11), 11)
    assert_close(model(TOKENS, VALID, cache=fixed)[VALID], whole[VALID])


@torch.no_grad()
def test_keys_are_stored_once() -> None:
    model = decoder("cross_layer")
    assert model.stack.read_layers == [None, 0, None, 2]
    assert model.stack.storing == [True, False, True, False]
    cache = model.new_cache()
    model(TOKENS, cache=cache)
    cache.select(torch.tensor([1, 1]))
    step, again = torch.randint(20, (2, 1)), model.new_cache()
    model(TOKENS[[1, 1]], cache=again)
    assert_close(model(step, cache=cache), model(step, cache=again))


@pytest.mark.parametrize("way", WAYS)
def test_checkpointed_training_is_the_same_to_the_bit(way: str) -> None:
    gradients = []
    for what in ("none", "block"):
        model = decoder(way).float().train()
        with checkpointed_activations(model, what):  # pyright: ignore[reportArgumentType]
            model(TOKENS, VALID).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_texts_that_leave_early_and_those_that_do_not(way: str) -> None:
    """With a rule that some texts pass, each has the logits of its exit."""
    torch.manual_seed(0)
    parts: dict[str, Any] = {"attention": HEADS, "position": RotaryConfig()} | WAYS[way]
    model = EncoderConfig(d_model=16, n_layers=4, exits=(1, 2), **parts).build(20, 3).eval()
    exits = [*model.exit_logits(TOKENS, VALID)]
    margins = exits[0].softmax(-1).topk(2).values
    between = float((margins[:, 0] - margins[:, 1]).mean())
    early = EarlyExit(ConfidenceRule(between))
    logits, depths = early._class_logits(model, TOKENS, VALID)  # pyright: ignore[reportPrivateUsage]
    assert sorted({*depths.tolist()})[0] == 1 < max(depths.tolist())
    of_depth = {1: exits[0], 2: exits[1], 4: exits[2]}
    expected = torch.stack([of_depth[int(d)][row] for row, d in enumerate(depths)])
    assert_close(logits, expected)


@torch.no_grad()
def test_attention_weights_are_those_of_every_layer() -> None:
    model = decoder("cross_layer")
    with attention_weights(model) as weights:
        model(TOKENS)
    assert [w.shape for w in weights.values()] == [(2, 4, 11, 11)] * 4


LAYER_1 = r"layer 1 reads the keys or values of layer 0"


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda model: model.new_memory(4), f"segment memory: {LAYER_1}"),
        (staged_sections, f"parallel.pipeline: {LAYER_1}"),
        (check_texts, "attention of layer 1 .* reads the keys or values of layer 0"),
        (head_groups, "stack.blocks.1.attention"),
    ],
)
@pytest.mark.parametrize("way", ["cross_layer", "value_residual"])
def test_what_cannot_hand_them_on_names_the_layer(
    way: str, run: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(decoder(way).float())


def test_drafts_of_the_model_itself_forget_tokens_of_the_layers_that_store_them() -> None:
    pattern = (
        LayerConfig(attention=HEADS),
        LayerConfig(attention=replace(HEADS, kv_layers_back=1)),
    )
    model = decoder("cross_layer", n_layers=3, layer_pattern=pattern, mtp={"depth": 1})
    check_speculates(model)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": replace(HEADS, kv_layers_back=1)}, "layer 0: kv_layers_back = 1 is before"),
        (
            {"layer_pattern": (LayerConfig(), *[EVERY_SECOND[1]] * 2)},
            "layer 2: kv_layers_back = 1 needs an earlier layer with keys and values of its own, "
            "and layer 1 is attention that reads another one",
        ),
        (
            {"layer_pattern": (LayerConfig(attention=RecurrentConfig()), EVERY_SECOND[1])},
            "layer 1: .* and layer 0 is 'recurrent'",
        ),
        (
            {"layer_pattern": (LayerConfig(attention=AttentionConfig(n_heads=4)), EVERY_SECOND[1])},
            "layer 1: it reads 4 heads of width 4 of layer 0, and has 2 heads of width 4",
        ),
        (
            {"layer_pattern": (LayerConfig(pattern=WindowPatternConfig(size=2)), EVERY_SECOND[1])},
            "layer 1: it reads the keys of layer 0, whose pattern is another",
        ),
        (
            {"layer_pattern": (LayerConfig(position=ALiBiConfig()), EVERY_SECOND[1])},
            "layer 1: it reads the keys of layer 0, whose position is another",
        ),
        ({"layer_pattern": EVERY_SECOND, "layer_drop": 0.1}, f"{LAYER_1}, which layer_drop"),
        ({"layer_pattern": EVERY_SECOND, "n_distinct_layers": 2}, f"{LAYER_1}, which n_distinct"),
        ({"layer_pattern": EVERY_SECOND, "mtp": {}}, "layer 3 reads .* of layer 2: leave mtp out"),
        (
            {"layer_pattern": (LayerConfig(attention=RecurrentConfig()), LayerConfig())}
            | {"attention": replace(HEADS, value_residual="fixed")},
            "layer 1: value_residual needs the values of the first layer, and layer 0 is 'recurr",
        ),
    ],
)
def test_a_layer_that_cannot_be_read_is_refused(fields: dict[str, Any], message: str) -> None:
    parts: dict[str, Any] = {"attention": HEADS, "position": RotaryConfig()} | fields
    with pytest.raises(ValueError, match=message):
        DecoderConfig(d_model=16, n_layers=4, **parts)


def test_the_layers_of_a_decoder_are_checked_too() -> None:
    with pytest.raises(ValueError, match=r"decoder: .*layer 0: kv_layers_back = 1 is before the"):
        EncoderDecoderConfig(d_model=16, decoder_attention=replace(HEADS, kv_layers_back=1))


def test_cross_attention_reads_no_earlier_layer() -> None:
    reading = replace(HEADS, value_residual="learned")
    model = EncoderDecoderConfig(d_model=16, n_layers=2, attention=reading)
    assert {layer.cross_attention for layer in model.stacks["decoder"]} == {HEADS}
    with pytest.raises(ValueError, match="leave them out of cross_attention"):
        EncoderDecoderConfig(d_model=16, cross_attention=reading)


def test_chosen_layers_still_read_the_same() -> None:
    layers = config("cross_layer", n_layers=6).layers(6)
    assert reads_of(layers) == {1: 0, 3: 2, 5: 4}
    for chosen in ([0, 1], [2, 3, 4], [0, 2, 3, 4, 5], [4, 5, 0, 1]):
        check_chosen(layers, chosen)
    for chosen in ([1], [0, 3], [0, 2, 1], [0, 2, 4, 5, 1]):
        with pytest.raises(InputError, match=r"layer [13] reads the keys or values of layer [02]"):
            check_chosen(layers, chosen)
    first = config("value_residual").layers(4)
    check_chosen(first, [0, 3])
    with pytest.raises(InputError, match="layer 1 reads the keys or values of layer 0"):
        check_chosen(first, [1, 2])
