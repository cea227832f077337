"""Canon layers against loops in float64, inside layers, and what refuses them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from tests.contracts import context, started
from tests.nn.slots import FEW, SLOTS, passing
from tests.nn.test_delta import texts_alone
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.exporters.gguf_architectures import architecture_of
from addnorm.convert.folder import family_for
from addnorm.convert.transfer.model import transfer_weights
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, generate
from addnorm.generate.early_exit import check_exits_early
from addnorm.generate.self_speculation import check_speculates
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.models.layers import LayerConfig
from addnorm.models.ledger import Ledger
from addnorm.models.step import check_traceable
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.canon import Canon, CanonConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.mamba import Mamba2Config
from addnorm.nn.masks import Causal
from addnorm.nn.no_sublayer import NoFeedForwardConfig, NoMixerConfig
from addnorm.nn.per_layer_embedding import PerLayerEmbeddingConfig
from addnorm.nn.residuals import ParallelConfig
from addnorm.nn.token_ahead import MultiTokenConfig
from addnorm.serve.engine.paged import why_not_paged
from addnorm.serve.engine.rows import why_alone
from addnorm.training.parallel.context import check_texts

SMALL: dict[str, Any] = {
    "d_model": 8,
    "n_layers": 2,
    "max_len": 32,
    "attention": AttentionConfig(n_heads=2),
    "canon": CanonConfig(),
}


def with_canon(**more: Any) -> DecoderConfig:
    return DecoderConfig(**SMALL | more)


def built(**more: Any) -> DecoderModel:
    torch.manual_seed(0)
    model = with_canon(**more).build(16)
    return started(model).double().eval()


def test_a_row_by_hand() -> None:
    """Taps of 1, 10 and 100 on 1, 2, −1: each number, and 100 x_t + 10 x_{t-1} + x_{t-2}."""
    canon = Canon(1, 3, bias=True).double()
    canon.short.conv.weight.data = torch.tensor([[[1.0, 10.0, 100.0]]]).double()
    canon.short.conv.bias.data.fill_(0.5)  # pyright: ignore[reportOptionalMemberAccess]
    x = torch.tensor([[[1.0], [2.0], [-1.0]]]).double()
    expected = [1 + 100.5, 2 + 210.5, -1 - 100 + 20 + 1 + 0.5]
    assert canon(x, context(1, 3, Causal())).flatten().tolist() == expected


@FEW
@given(slots=SLOTS)
def test_every_tap_stays_in_its_text(slots: list[list[int]]) -> None:
    """Padding anywhere, batch-mates and packed neighbours change nothing."""
    canon, held = started(Canon(4, 3, bias=False)).double(), torch.tensor(slots)
    x = torch.randn(*held.shape, 4).double()
    seen = (held != 0)[..., None]
    y = canon(x, passing(held)).where(seen, 0.0)
    assert_close(y, texts_alone(canon, x, held), rtol=0, atol=1e-12)


def test_torchs_depthwise_convolution() -> None:
    canon, x = started(Canon(4, 4, bias=True)).double(), torch.randn(2, 6, 4).double()
    conv = canon.short.conv
    mixed = F.conv1d(x.mT, conv.weight, conv.bias, padding=3, groups=4)[..., :6].mT
    assert_close(canon(x, context(2, 6)), x + mixed)


def test_kernels_of_zero_leave_the_model_without_them() -> None:
    """And both give the other all weights but those of the kernels."""
    model, plain = built(), built(canon=None)
    configs = with_canon(), with_canon(canon=None)
    for name, weight in model.named_parameters():
        weight.data.mul_(".canon." not in name)
    report = transfer_weights(model, configs[0], plain, configs[1])
    assert {origin.kind for origin in report.origins.values()} == {"exact"}
    assert all(".canon." in name for name in report.unused)
    tokens = torch.arange(6)[None]
    assert torch.equal(model(tokens), plain(tokens))
    report = transfer_weights(plain, configs[1], built(), configs[0])
    new = {name for name, origin in report.origins.items() if origin.kind == "new"}
    assert new == {name for name in report.origins if ".canon." in name}
    assert not report.unused


@pytest.mark.parametrize("places", ["A", "C", "AC"])
def test_only_the_chosen_places_of_present_sublayers_have_kernels(places: Any) -> None:
    pattern = (
        LayerConfig(feedforward=NoFeedForwardConfig()),
        LayerConfig(attention=NoMixerConfig()),
        LayerConfig(attention=Mamba2Config(n_heads=2)),
    )
    model = built(canon=CanonConfig(places=places), n_layers=3, layer_pattern=pattern)
    names = {name for name, _ in model.named_parameters() if ".canon." in name}
    a, c = (
        {f"stack.blocks.{i}.attention" for i in (0, 2)},
        {f"stack.blocks.{i}.feedforward" for i in (1, 2)},
    )
    expected = (a if "A" in places else set()) | (c if "C" in places else set())
    assert names == {f"{path}.canon.short.conv.weight" for path in expected}
    model(torch.arange(6)[None]).sum().backward()
    assert all(
        weight.grad is not None for name, weight in model.named_parameters() if name in names
    )


@pytest.mark.parametrize("strategy", [GreedyConfig(), BeamConfig(beams=3)], ids=["greedy", "beams"])
def test_texts_of_unequal_length_are_written_as_alone(strategy: Any) -> None:
    model, prompts = built(canon=CanonConfig(kernel_size=5)), [[3, 4, 5, 6, 7], [8], [9, 2]]
    together = generate(model, prompts, strategy, max_new_tokens=6, eos_id=0)
    for prompt, [written] in zip(prompts, together, strict=True):
        [[alone]] = generate(model, [prompt], strategy, max_new_tokens=6, eos_id=0)
        assert written.ids == alone.ids


@pytest.mark.parametrize("places", ["A", "C", "AC"])
def test_a_text_read_in_pieces_is_the_whole_text(places: Any) -> None:
    """Each convolution keeps its own last tokens, before attention and before feed-forward."""
    model, tokens = built(canon=CanonConfig(places=places)), torch.randint(1, 16, (2, 9))
    cache, pieces = model.new_cache(), []
    with torch.no_grad():
        for start, stop in ((0, 4), (4, 5), (5, 6), (6, 9)):
            pieces.append(model(tokens[:, start:stop], cache=cache))
        assert_close(torch.cat(pieces, dim=1), model(tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"residual": ParallelConfig()}, "follow one another"),
        ({"embedding": EmbeddingConfig(per_layer=PerLayerEmbeddingConfig(width=2))}, "per_layer"),
        (
            {"attention": AttentionConfig(n_heads=2, value_residual="learned")},
            "layer 1 reads the keys or values of layer 0",
        ),
        ({"canon": {"places": "ABCD"}}, "places"),
    ],
)
def test_what_does_not_go_together_is_refused(more: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        with_canon(**more)


def test_who_knows_no_state_of_a_convolution_refuses_by_layer_and_name() -> None:
    model = built(exits=(1,))
    assert "layer 0 is not attention but CanonMixer" in str(why_not_paged(model))
    assert "CanonCache of layer 0" in str(why_alone(model))
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: check_exits_early(model), "layer 0 is CanonMixer"),
        (lambda: check_traceable("ONNX", model), "layer 0 has a CanonMixer"),
        (lambda: check_speculates(built(mtp=MultiTokenConfig())), "layer 0, CanonMixer"),
        (lambda: check_texts(model), "CanonMixer"),
        (lambda: architecture_of(built(), Ledger(built(), "GGUF")), "CanonBlock"),
        (lambda: family_for(ModelSpec(model=with_canon(), vocab_size=16)), "canon"),
    ]
    for refused, match in refusals:
        with pytest.raises(InputError, match=match):
            refused()
