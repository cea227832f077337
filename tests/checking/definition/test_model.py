"""Models: the order of norms and sublayers, and torch's layers with the same weights."""

import math

import pytest
import torch
from torch import nn

from addnorm.checking.definition import (
    Texts,
    decoder_logits,
    encoder_decoder_logits,
    encoder_logits,
)
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.residuals import PostNormConfig, PreNormConfig

SIZES = {
    "d_model": 8,
    "n_layers": 2,
    "attention": AttentionConfig(n_heads=2),
    "feedforward": FeedForwardConfig(d_ff=6),
    "position": NoPositionConfig(),
    "dropout": 0.0,
}
TOKENS = [1, 4, 2, 0]


def same(torchs: nn.Module, ours: dict[str, torch.Tensor], sublayers: dict[str, str]) -> None:
    """Give a layer of torch the weights of a block."""
    state: dict[str, torch.Tensor] = {}
    for theirs, mine in sublayers.items():
        for kind in ("weight", "bias"):
            if theirs.endswith("attn"):
                parts = [ours[f"{mine}.{name}_proj.{kind}"] for name in "qkv"]
                state[f"{theirs}.in_proj_{kind}"] = torch.cat(parts)
                state[f"{theirs}.out_proj.{kind}"] = ours[f"{mine}.out_proj.{kind}"]
            else:
                state[f"{theirs}.{kind}"] = ours[f"{mine}.{kind}"]
    torchs.load_state_dict(state, strict=True)


ENCODER = {
    "self_attn": "attention",
    "norm1": "attention_residual.norm",
    "linear1": "feedforward.up_proj",
    "linear2": "feedforward.down_proj",
    "norm2": "feedforward_residual.norm",
}
DECODER = {
    **ENCODER,
    "multihead_attn": "cross_attention",
    "norm2": "cross_attention_residual.norm",
    "norm3": "feedforward_residual.norm",
}


def drawn(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.randn_like(w, dtype=torch.float64) / 2 for name, w in weights.items()}


def block(weights: dict[str, torch.Tensor], path: str) -> dict[str, torch.Tensor]:
    return {n.removeprefix(path): w for n, w in weights.items() if n.startswith(path)}


@pytest.mark.parametrize("placement", [PostNormConfig(), PreNormConfig()])
@pytest.mark.parametrize("causal", [True, False])
def test_encoder_and_decoder_are_those_of_torch(
    placement: PostNormConfig | PreNormConfig, causal: bool
) -> None:
    config = (DecoderConfig if causal else EncoderConfig)(**SIZES, residual=placement)
    weights = drawn(config.build(5).state_dict())
    pre = placement.kind == "pre"
    x = weights["embed.tokens.weight"][TOKENS][None] * math.sqrt(8)
    mask = nn.Transformer.generate_square_subsequent_mask(4).double() if causal else None
    for i in range(2):
        layer = nn.TransformerEncoderLayer(8, 2, 6, 0.0, batch_first=True, norm_first=pre).double()
        same(layer, block(weights, f"stack.blocks.{i}."), ENCODER)
        x = layer(x, mask)
    if pre:
        norm = (weights["stack.norm.weight"], weights["stack.norm.bias"])
        x = nn.functional.layer_norm(x, (8,), *norm)
    expected = (x @ weights["head.weight"].T)[0]
    logits = (decoder_logits if causal else encoder_logits)(config, weights, TOKENS, Texts.of([4]))
    torch.testing.assert_close(logits, expected)


def test_encoder_decoder_is_that_of_torch() -> None:
    config = EncoderDecoderConfig(**SIZES, n_decoder_layers=1, share_embeddings=False)
    weights = drawn(config.build(5).state_dict())
    source = [3, 2, 2]
    memory = weights["source_embed.tokens.weight"][source][None] * math.sqrt(8)
    for i in range(2):
        layer = nn.TransformerEncoderLayer(8, 2, 6, 0.0, batch_first=True).double()
        same(layer, block(weights, f"encoder.blocks.{i}."), ENCODER)
        memory = layer(memory)
    decoder = nn.TransformerDecoderLayer(8, 2, 6, 0.0, batch_first=True).double()
    same(decoder, block(weights, "decoder.blocks.0."), DECODER)
    y = weights["target_embed.tokens.weight"][TOKENS][None] * math.sqrt(8)
    y = decoder(y, memory, nn.Transformer.generate_square_subsequent_mask(4).double())
    logits = encoder_decoder_logits(
        config, weights, (source, Texts.of([3])), (TOKENS, Texts.of([4]))
    )
    torch.testing.assert_close(logits, (y @ weights["head.weight"].T)[0])
