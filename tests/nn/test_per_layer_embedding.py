"""Per-layer embeddings: a row by hand, what a layer adds, and what cannot have them."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.context import Context
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.hyper_connections import HyperConnectionsConfig
from addnorm.nn.masks import Causal
from addnorm.nn.norms import NoNorm, RMSNormConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.per_layer_embedding import (
    PerLayerEmbedding,
    PerLayerEmbeddingConfig,
    PerLayerInput,
)
from addnorm.nn.residuals import ParallelConfig, SandwichNormConfig
from addnorm.training.parallel.stages import staged_sections

TWO = EmbeddingConfig(per_layer=PerLayerEmbeddingConfig(width=2))


def test_a_row_by_hand() -> None:
    """Two layers of width 1 and a model of width 4, without a norm: (x W / 2 + E) / √2."""
    module = PerLayerEmbedding(3, 4, 1, 2, NoNorm()).double()
    module.tokens.weight.data.copy_(torch.tensor([[0.0, 0.0], [5.0, 7.0], [0.0, 0.0]]))
    module.proj.weight.data.copy_(torch.tensor([[1.0, 1.0, 1.0, 1.0], [2.0, 0.0, 0.0, 0.0]]))
    x = torch.tensor([[[3.0, 1.0, 0.0, 2.0]]]).double()
    of_layers = module(torch.tensor([[1]]), x).flatten().tolist()
    assert of_layers == pytest.approx([(6 / 2 + 5) / math.sqrt(2), (6 / 2 + 7) / math.sqrt(2)])


def test_what_a_layer_makes_of_its_vector() -> None:
    module = PerLayerInput(2, 1, "relu").double()
    module.gate_proj.weight.data.copy_(torch.tensor([[1.0, -1.0]]))
    module.out_proj.weight.data.copy_(torch.tensor([[2.0], [3.0]]))
    x = torch.tensor([[[5.0, 1.0], [1.0, 5.0]]]).double()
    assert module(x, torch.full((1, 2, 1), 10.0).double()).tolist() == [[[80.0, 120.0], [0.0, 0.0]]]


def _embedded(model: Any, tokens: Any) -> Any:
    ctx = Context.over(tokens, Causal())
    return model.embed(tokens, ctx), ctx


def decoder(**fields: Any) -> Any:
    torch.manual_seed(0)
    parts: dict[str, Any] = {"embedding": TWO, "residual": SandwichNormConfig()}
    return DecoderConfig(
        d_model=8,
        n_layers=3,
        attention=AttentionConfig(n_heads=2),
        norm=RMSNormConfig(),
        dropout=0.0,
        **parts | fields,
    ).build(20)


def test_each_layer_reads_its_own_columns_of_the_table() -> None:
    model = decoder().double().eval()
    tokens = torch.tensor([[3, 4, 3]])
    ctx_layers = [*model.stack.layer_outputs(*_embedded(model, tokens))]
    model.embed.per_layer.tokens.weight.data[:, 2:4] += 1.0  # of layer 1
    again = [*model.stack.layer_outputs(*_embedded(model, tokens))]
    same = [torch.equal(a, b) for a, b in zip(ctx_layers, again, strict=True)]
    assert same == [True, False, False]


def test_padding_has_no_vectors_and_every_weight_a_gradient() -> None:
    model = decoder(residual=SandwichNormConfig(layer_factor=True))
    tokens, valid = torch.randint(20, (2, 5)), torch.arange(5) >= torch.tensor([[2], [0]])
    x, _ = _embedded(model, tokens)
    assert x.shape == (2, 5, 8 + 3 * 2)
    logits = model(tokens, valid)
    assert_close(model(tokens[:1, 2:]), logits[:1, 2:])
    logits[valid].square().sum().backward()
    zero = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [n for n in zero if not n.endswith("k_proj.bias")] == []


def test_the_factor_of_a_layer_is_learned_and_stands_in_its_last_sublayer() -> None:
    factor = SandwichNormConfig(layer_factor=True)
    for embedding, last in ((TWO, "per_layer"), (EmbeddingConfig(), "feedforward")):
        names = [n for n, _ in decoder(residual=factor, embedding=embedding).named_parameters()]
        found = [name for name in names if "layer_factor" in name]
        assert found == [f"stack.blocks.{i}.{last}_residual.layer_factor" for i in range(3)]
    model = decoder(residual=factor).double().eval()
    one = [*model.stack.layer_outputs(*_embedded(model, torch.tensor([[3, 4]])))]
    model.stack.blocks[2].per_layer_residual.layer_factor.data.fill_(-2.0)
    two = [*model.stack.layer_outputs(*_embedded(model, torch.tensor([[3, 4]])))]
    assert_close(two[2], -2 * one[2])


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (DecoderConfig, {"residual": ParallelConfig()}, "give another residual than 'parallel'"),
        (DecoderConfig, {"residual": HyperConnectionsConfig()}, "another residual than 'hyper_co"),
        (DecoderConfig, {"mtp": {}}, "leave mtp out"),
        (DecoderConfig, {"layer_drop": 0.1}, "leave layer_drop out"),
        (EncoderConfig, {"n_distinct_layers": 1}, "leave n_distinct_layers out"),
        (EncoderDecoderConfig, {}, "an encoder–decoder cannot have it"),
        (
            EncoderConfig,
            {"input": PatchEmbeddingConfig(size=(4, 4), channels=1, patch=2)},
            "the input must be tokens, not 'patches'",
        ),
    ],
)
def test_what_cannot_have_them_is_refused(kind: Any, fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"embedding.per_layer gives every layer a .*{message}"):
        kind(d_model=8, embedding=TWO, **fields)


def test_stages_and_a_choice_of_layers_are_refused() -> None:
    with pytest.raises(InputError, match="layer 0 reads its own vectors of the tokens"):
        staged_sections(decoder())
    config = DecoderConfig(d_model=8, n_layers=3, embedding=TWO)
    assert config.fields_of_layers({"stack": range(3)})["n_layers"] == 3
    with pytest.raises(InputError, match=r"embedding.per_layer has a table for every layer"):
        config.fields_of_layers({"stack": [0, 2]})
