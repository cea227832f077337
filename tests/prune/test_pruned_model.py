"""The pruned model equals the masked one, over architectures, in float64 and float32."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.errors import IgnoredSettings, InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, Model, ModelConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.differential import DifferentialCoreConfig
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.attention.patterns import WindowPatternConfig
from addnorm.nn.attention.scores import AdditiveConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import ClassificationHeadConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    KERPLEConfig,
    RotaryConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import DeepNormConfig, ParallelConfig, PreNormConfig
from addnorm.nn.token_ahead import MultiTokenConfig
from addnorm.prune.pruned_model import Pruning, keep_weights, smaller_config
from addnorm.prune.selection import gated, kept_layers, kept_units
from addnorm.prune.units import Units, feedforward_rows, head_groups, stacks_of

SIZES: dict[str, Any] = {"d_model": 16, "n_layers": 3, "max_len": 16, "dropout": 0.0}
MHA = AttentionConfig(n_heads=4)
CONFIGS: dict[str, ModelConfig] = {
    "decoder": DecoderConfig(**SIZES, attention=MHA),
    "grouped": DecoderConfig(
        **SIZES,
        attention=AttentionConfig(n_heads=8, n_kv_heads=4, d_head=6, qk_norm=RMSNormConfig()),
        position=RotaryConfig(),
        feedforward=GatedFeedForwardConfig(bias=True),
        residual=PreNormConfig(),
        norm=RMSNormConfig(),
    ),
    "gated_output": DecoderConfig(
        **SIZES, attention=AttentionConfig(n_heads=4, output=GatedOutputConfig(), bias=False)
    ),
    "gated_by_head": DecoderConfig(
        **SIZES,
        attention=AttentionConfig(n_heads=8, n_kv_heads=4, output=GatedOutputConfig(per="head")),
        residual=ParallelConfig(),
    ),
    "t5": DecoderConfig(**SIZES, attention=MHA, position=T5BiasConfig(buckets=6, max_distance=5)),
    "exits": DecoderConfig(**SIZES, attention=MHA, exits=(1,)),
    "classifier": EncoderConfig(**SIZES, attention=MHA, head=ClassificationHeadConfig()),
    "translator": EncoderDecoderConfig(
        **SIZES, attention=MHA, feedforward=FeedForwardConfig(d_ff=9)
    ),
    "translator_apart": EncoderDecoderConfig(
        **SIZES,
        attention=MHA,
        n_decoder_layers=2,
        decoder_attention=AttentionConfig(n_heads=8, n_kv_heads=2),
        cross_attention=AttentionConfig(n_heads=2),
        decoder_feedforward=GatedFeedForwardConfig(),
        position=T5BiasConfig(buckets=6, max_distance=5),
    ),
}


def built(config: ModelConfig, dtype: torch.dtype = torch.float64) -> Model:
    torch.manual_seed(0)
    n: dict[str, Any] = {"n_labels": 3} if isinstance(config, EncoderConfig) else {}
    model = config.build(11, **n).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms away from where they start
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs_of(config: ModelConfig) -> dict[str, Tensor]:
    tokens = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(1))
    valid = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    if isinstance(config, EncoderDecoderConfig):
        return {"source": tokens, "target": tokens.flip(1), "source_valid": valid}
    return {"tokens" if isinstance(config, DecoderConfig) else "inputs": tokens, "valid": valid}


def pruning_of(
    model: Model,
    *,
    heads: float | None = None,
    rows: float | None = None,
    layers: tuple[str, ...] = (),
) -> tuple[Pruning, list[Units]]:
    """A pruning by random importances."""
    units = {"heads": head_groups(model) if heads else [], "feedforward": []}
    units["feedforward"] = feedforward_rows(model) if rows else []
    every = units["heads"] + units["feedforward"]
    scores = {units_of.path: torch.rand(units_of.n) for units_of in every}
    kept: dict[str, tuple[int, ...]] = {}
    for option, share in (("heads", heads), ("feedforward", rows)):
        kept |= kept_units(units[option], scores, share or 0.0, option)
    depths = {name: len(stack.blocks) for name, stack in stacks_of(model).items()}
    pruning = Pruning(
        heads=heads,
        feedforward=rows,
        units=kept,
        of={units_of.path: units_of.n for units_of in every},
        layers=kept_layers(layers, depths) if layers else {},
    )
    return pruning, every


def pruned(config: ModelConfig, model: Model, pruning: Pruning) -> Model:
    smaller = smaller_config(config, pruning)
    new = built(smaller, next(model.parameters()).dtype)
    keep_weights(model, new, pruning)
    return new


def masks_of(pruning: Pruning, units: list[Units], dtype: torch.dtype) -> Mapping[str, Tensor]:
    masks: dict[str, Tensor] = {}
    for sublayer in units:
        masks[sublayer.path] = torch.zeros(1, sublayer.n, dtype=dtype)
        masks[sublayer.path][:, list(pruning.units[sublayer.path])] = 1.0
    return masks


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_pruned_model_equals_the_masked_one(name: str, dtype: torch.dtype) -> None:
    config = CONFIGS[name]
    model, inputs = built(config, dtype), inputs_of(config)
    whole = model(**inputs)
    pruning, units = pruning_of(model, heads=0.5, rows=0.25)
    with gated(units, masks_of(pruning, units, dtype)):
        masked = model(**inputs)
    new = pruned(config, model, pruning)
    assert_close(new(**inputs), masked, rtol=0, atol=1e-6)
    assert not torch.allclose(masked, whole, atol=1e-3)
    count, before = (sum(p.numel() for p in either.parameters()) for either in (new, model))
    assert count < before
    assert_close(model(**inputs), whole, rtol=0, atol=0)  # the hooks are gone


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_without_layers_equals_one_that_skips_them(name: str) -> None:
    config = CONFIGS[name]
    model, inputs = built(config), inputs_of(config)
    pruning, _ = pruning_of(model, layers=("every:2",))
    new = pruned(config, model, pruning)
    for stack_name, stack in stacks_of(model).items():
        stack.blocks = nn.ModuleList([stack.blocks[i] for i in pruning.layers[stack_name]])
    assert torch.equal(new(**inputs), model(**inputs))


def test_heads_rows_and_layers_can_be_pruned_together() -> None:
    config = CONFIGS["translator"]
    model, inputs = built(config), inputs_of(config)
    pruning, units = pruning_of(model, heads=0.25, rows=0.5, layers=("0", "2"))
    new = pruned(config, model, pruning)
    with gated(units, masks_of(pruning, units, torch.float64)):
        for name, stack in stacks_of(model).items():
            stack.blocks = nn.ModuleList([stack.blocks[i] for i in pruning.layers[name]])
        masked = model(**inputs)
    assert_close(new(**inputs), masked, rtol=0, atol=1e-6)


def test_exits_move_with_their_layers() -> None:
    config = DecoderConfig(**{**SIZES, "n_layers": 4}, attention=MHA, exits=(3,))
    model, tokens = built(config), inputs_of(config)["tokens"]
    pruning, _ = pruning_of(model, layers=("0", "2", "3"))
    new = pruned(config, model, pruning)
    assert list(new.exits) == ["2"]  # type: ignore[union-attr]
    model.stack.blocks = nn.ModuleList([model.stack.blocks[i] for i in (0, 2, 3)])  # type: ignore[union-attr]
    states = model.stack.layer_outputs(*_embedded(model, tokens))  # type: ignore[union-attr]
    hidden = [next(states) for _ in range(2)][-1]
    first = next(iter(new.exit_logits(tokens)))  # type: ignore[union-attr]
    assert torch.equal(first, model.exits["3"](hidden, _embedded(model, tokens)[1]))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("exits", "layers", "mended"),
    [
        ((3,), "0 1", "2 3"),
        ((3,), "1 2", "1 2 3"),
        ((3,), "3", "2 3"),
        ((1, 2), "0 2", "0 1 2"),
        ((1, 2), "0", "0 1 2"),
        ((1, 2, 3), "0 1 2", None),
    ],
)
def test_removing_a_layer_with_an_exit_is_rejected_with_a_valid_choice(
    exits: tuple[int, ...], layers: str, mended: str | None
) -> None:
    config = DecoderConfig(**{**SIZES, "n_layers": 4}, attention=MHA, exits=exits)
    model = built(config)
    with pytest.raises(InputError, match=r"early exits? stands? on layers? \d") as raised:
        smaller_config(config, pruning_of(model, layers=tuple(layers.split()))[0])
    if mended is None:
        assert str(raised.value).endswith("none of these 4 layers can be removed")
        return
    assert str(raised.value).endswith(f"give `layers = {mended}`")
    smaller_config(config, pruning_of(model, layers=tuple(mended.split()))[0])


def test_tokens_further_ahead_are_left_out() -> None:
    """Their modules read the model as it was; what is left is pruned like a model without them."""
    config = DecoderConfig(**{**SIZES, "n_layers": 4}, attention=MHA, mtp=MultiTokenConfig())
    model = built(config)
    pruning = pruning_of(model, layers=("2",))[0]
    with pytest.warns(IgnoredSettings, match=r"model\.mtp is left out"):
        smaller = smaller_config(config, pruning)
    assert smaller == replace(config, n_layers=len(pruning.layers["stack"]), mtp=None)
    new = built(smaller)
    keep_weights(model, new, pruning)
    assert torch.equal(new.head.weight, model.head.weight)


def _embedded(model: Any, tokens: Tensor) -> tuple[Tensor, Any]:
    from addnorm.nn.context import Context
    from addnorm.nn.masks import Causal

    ctx = Context.over(tokens, Causal())
    return model.embed(tokens, ctx), ctx


def test_a_layer_keeps_its_own_window() -> None:
    pattern = (LayerConfig(pattern=WindowPatternConfig(size=2)), LayerConfig())
    config = DecoderConfig(**{**SIZES, "n_layers": 4}, attention=MHA, layer_pattern=pattern)
    model, inputs = built(config), inputs_of(config)
    pruning, _ = pruning_of(model, layers=("1", "2", "3"))
    new = pruned(config, model, pruning)
    model.stack.blocks = nn.ModuleList(list(model.stack.blocks)[1:])  # type: ignore[union-attr]
    assert torch.equal(new(**inputs), model(**inputs))


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"position": ALiBiConfig()}, {"heads": 0.5}, "`heads`: .* is ALiBi"),
        ({"position": KERPLEConfig()}, {"heads": 0.5}, "`heads`: .* is KERPLE"),
        ({"attention": RecurrentConfig()}, {"heads": 0.5}, "blocks.0.attention is "),
        (
            {"attention": AttentionConfig(n_heads=4, core=DifferentialCoreConfig())},
            {"heads": 0.5},
            "core is DifferentialCore",
        ),
        (
            {"attention": AttentionConfig(n_heads=4, score=AdditiveConfig())},
            {"heads": 0.5},
            "core.score is Additive",
        ),
        (
            {"feedforward": MixtureOfExpertsConfig(n_experts=2, top_k=1)},
            {"rows": 0.5},
            "`feedforward`: .* is MixtureOfExperts",
        ),
        ({"residual": DeepNormConfig()}, {"layers": ("every:2",)}, "number of the layer"),
        ({"residual": PreNormConfig(first=False)}, {"layers": ("1", "2")}, "the old model"),
        ({"attention": AttentionConfig(n_heads=1)}, {"heads": 0.5}, "there is only one"),
        (
            {},
            {"heads": 0.1},
            "removes no group or row of 4 in stack.blocks.0.attention: the nearest",
        ),
        ({}, {"heads": 0.95}, "removes every group or row of 4 in .*: the nearest .* 0.75"),
        ({}, {"rows": 1.5}, "`feedforward = 1.5`: give the share to remove"),
        ({}, {"layers": ("every:1",)}, "keeps every layer: the smallest step is every:2"),
        ({}, {"layers": ("0", "3")}, "the model has layers 0 to 2"),
        ({}, {"layers": ("2", "0")}, "give 0 2"),
        ({}, {"layers": ("some",)}, "write numbers of layers"),
    ],
)
def test_parts_that_cannot_be_pruned_are_rejected_by_name(
    changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    config = DecoderConfig(**{**SIZES, "attention": MHA, **changes})
    model = built(config)
    with pytest.raises(InputError, match=message):
        pruned(config, model, pruning_of(model, **options)[0])


@pytest.mark.parametrize("position", [RotaryConfig(), T5BiasConfig(), ALiBiConfig()])
def test_layers_that_are_left_may_all_lack_attention(position: Any) -> None:
    """Positions for heads, which no layer uses any more, change nothing."""
    recurrent = (LayerConfig(), LayerConfig(attention=RecurrentConfig()))
    config = DecoderConfig(**{**SIZES, "n_layers": 2}, position=position, layer_pattern=recurrent)
    model = built(config)
    pruning = Pruning(layers={"stack": (1,)})
    new = pruned(config, model, pruning)
    left, old = (stacks_of(one)["stack"].blocks for one in (new, model))
    expected = old[1].state_dict()
    assert all(weight.equal(expected[name]) for name, weight in left[0].state_dict().items())


@pytest.mark.parametrize(
    "position", [T5BiasConfig(), ALiBiConfig(), KERPLEConfig(), TransformerXLConfig()]
)
def test_positions_by_head_that_every_layer_replaces_are_rejected(position: Any) -> None:
    """What their heads are is not to be seen in any layer: no shapes are spoken of."""
    config = DecoderConfig(
        **SIZES,
        attention=MHA,
        position=position,
        layer_pattern=(LayerConfig(position=RotaryConfig()),),
    )
    with pytest.raises(InputError) as raised:
        head_groups(config.build(11))
    message = str(raised.value)
    assert message.startswith(
        f"`heads`: model.position is {type(position).__name__[:-6]}, which has"
    )
    assert "model.layer_pattern" in message
    assert "shape" not in message
