"""Our ViT against Hugging Face's, with the same random weights."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from addnorm.models import EncoderConfig, EncoderModel
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import ClassificationHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.residuals import PreNormConfig

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]

# Their names, in the library's fifth version, and ours.
NAMES = {
    r"^vit\.embeddings\.cls_token$": "embed.class_token",
    r"^vit\.embeddings\.position_embeddings$": "embed.positions",
    r"^vit\.embeddings\.patch_embeddings\.projection\.": "embed.proj.",
    r"^vit\.layers\.": "stack.blocks.",
    r"^vit\.layernorm\.": "stack.norm.",
    r"^classifier\.": "head.proj.",
    r"\.layernorm_before\.": ".attention_residual.norm.",
    r"\.layernorm_after\.": ".feedforward_residual.norm.",
    r"\.o_proj\.": ".out_proj.",
    r"\.mlp\.fc1\.": ".feedforward.up_proj.",
    r"\.mlp\.fc2\.": ".feedforward.down_proj.",
}


def renamed(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = re.sub(theirs, ours, name)
    return name


def pair() -> tuple[Any, EncoderModel]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        image_size=12,
        patch_size=4,
        num_channels=3,
        layer_norm_eps=1e-6,
        num_labels=5,
        attn_implementation="sdpa",  # their eager softmax is in float32 whatever the type
    )
    theirs = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    ours = EncoderConfig(
        d_model=16,
        n_layers=3,
        position=NoPositionConfig(),
        attention=AttentionConfig(n_heads=4),
        feedforward=FeedForwardConfig(activation="gelu", d_ff=40),
        norm=LayerNormConfig(eps=1e-6),
        residual=PreNormConfig(),
        dropout=0.0,
        input=PatchEmbeddingConfig(size=(12, 12), patch=4),
        head=ClassificationHeadConfig(pooling="first"),
    ).build(n_labels=5)
    known = ours.state_dict()
    weights = {renamed(name): weight for name, weight in theirs.state_dict().items()}
    assert weights.keys() == known.keys()
    ours.load_state_dict({name: weight.view_as(known[name]) for name, weight in weights.items()})
    return theirs.double(), ours.double().eval()


def check(theirs: Tensor, ours: Tensor) -> None:
    assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_logits_and_gradients() -> None:
    theirs, ours = pair()
    images = torch.randn(2, 3, 12, 12).double()
    one, other = theirs(pixel_values=images).logits, ours(images)
    check(one, other)
    one.square().sum().backward()
    other.square().sum().backward()
    gradients = {renamed(name): p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        theirs_grad = gradients[name].view_as(parameter)
        assert_close(parameter.grad, theirs_grad, rtol=1e-9, atol=1e-9)


def test_another_resolution() -> None:
    theirs, ours = pair()
    images = torch.randn(2, 3, 8, 20).double()
    check(theirs(pixel_values=images, interpolate_pos_encoding=True).logits, ours(images))
