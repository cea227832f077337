"""Speculative decoding by multi-token prediction: the same tokens, in fewer passes."""

from typing import Any

import pytest
import torch
from tests.contracts import started

from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, SampleConfig, generate
from addnorm.generate.rules import RulesConfig
from addnorm.generate.self_speculation import SelfSpeculation
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, LatentAttentionConfig, WindowPatternConfig
from addnorm.nn.hyper_connections import HyperConnectionsConfig
from addnorm.nn.positions import ALiBiConfig, LearnedConfig, RotaryConfig, TransformerXLConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.nn.token_ahead import MultiTokenConfig

WINDOW = AttentionConfig(n_heads=2, n_kv_heads=1, pattern=WindowPatternConfig(size=3))
MODELS: dict[str, dict[str, Any]] = {
    "rotary": {"position": RotaryConfig()},
    "window": {"position": RotaryConfig(), "attention": WINDOW},
    "latent": {
        "position": RotaryConfig(),
        "attention": LatentAttentionConfig(n_heads=2, rank=4, d_content=4, d_position=4, d_value=4),
    },
    "alibi": {"position": ALiBiConfig(), "residual": HyperConnectionsConfig()},
    "learned": {"position": LearnedConfig()},
    "transformer_xl": {"position": TransformerXLConfig()},
}


def decoder(name: str, depth: int = 1, **more: Any) -> DecoderModel:
    torch.manual_seed(3)
    fields: dict[str, Any] = {
        "residual": PreNormConfig(),
        "attention": AttentionConfig(n_heads=2),
        "max_len": 20,
        **MODELS[name],
        **more,
    }
    config = DecoderConfig(
        d_model=8, n_layers=2, dropout=0.0, mtp=MultiTokenConfig(depth=depth), **fields
    )
    model = started(config.build(5)).double()
    assert isinstance(model, DecoderModel)
    return model.eval()


CASES = [
    pytest.param(name, depth, marks=() if i == depth % 4 else pytest.mark.slow)
    for i, name in enumerate(MODELS)
    for depth in (1, 3)
]
"""A window with one token drafted, and ALiBi with three; the others are slow."""


@pytest.mark.parametrize(("name", "depth"), CASES)
def test_writes_the_same_tokens(name: str, depth: int) -> None:
    model = decoder(name, depth)
    drafted = SelfSpeculation(model)
    prompts = [[1], [2, 3, 4, 1, 0, 2, 2], [0, 1, 2]]
    ways = [
        GreedyConfig(),
        SampleConfig(temperature=1.5, seed=1),
        GreedyConfig(rules=RulesConfig(no_repeat_ngram_size=3)),
    ]
    for way in ways:
        ours = generate(drafted, prompts, way, max_new_tokens=16, eos_id=None)
        theirs = generate(model, prompts, way, max_new_tokens=16, eos_id=None, batch_size=1)
        assert [best[0].ids for best in ours] == [best[0].ids for best in theirs]
        for [one], [two] in zip(ours, theirs, strict=True):
            assert one.score == pytest.approx(two.score, rel=1e-5)
    assert drafted.n_drafted > 0


def test_a_right_draft_saves_passes() -> None:
    """A model whose next token is always the same, drafts it: a pass writes three tokens."""
    model = decoder("rotary", 2)
    with torch.no_grad():
        model.head.weight.zero_()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    drafted, passes = SelfSpeculation(model), list[int]()
    model.stack.register_forward_hook(lambda _, args, out: passes.append(args[0].shape[1]))
    generate(drafted, [[1, 2, 3]], GreedyConfig(), max_new_tokens=10, eos_id=None)
    assert passes == [3, 3, 3, 3]
    assert drafted.n_accepted == 6


def test_rejects_what_cannot_forget() -> None:
    with pytest.raises(InputError, match=r"model\.mtp = \{ depth = 1 \}"):
        SelfSpeculation(DecoderConfig(d_model=8, n_layers=1).build(5))
    pattern = (LayerConfig(), LayerConfig(attention=RecurrentConfig()))
    with pytest.raises(InputError, match="layer 1, Recurrent, keeps a state"):
        SelfSpeculation(decoder("rotary", layer_pattern=pattern))


def test_rejects_beams_and_several_texts() -> None:
    drafted = SelfSpeculation(decoder("rotary"))
    with pytest.raises(InputError, match="leave beams out"):
        generate(drafted, [[1]], BeamConfig(beams=2), max_new_tokens=3, eos_id=None)
    with pytest.raises(InputError, match="one text at a time"):
        drafted.start([[1], [2]])
