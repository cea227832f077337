"""Two encoders: padding and batch-mates change nothing, a fill is read, and wrong sizes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import check_config, check_gradients, check_module
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models import DualEncoderConfig, DualEncoderModel, EncoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.contrastive import ContrastiveHeadConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.positions import LearnedConfig, NoPositionConfig
from addnorm.nn.vectors import VectorHeadConfig

VOCAB = 13
IMAGE = EncoderConfig(
    d_model=12,
    n_layers=1,
    attention=AttentionConfig(n_heads=3),
    position=NoPositionConfig(),
    input=PatchEmbeddingConfig(size=(4, 4), patch=2, channels=1),
    head=VectorHeadConfig(pooling="first", width=6),
    dropout=0.0,
)
SMALL = DualEncoderConfig(
    d_model=8,
    n_layers=2,
    max_len=9,
    attention=AttentionConfig(n_heads=2),
    position=LearnedConfig(),
    head=ContrastiveHeadConfig(text=VectorHeadConfig(pooling="last", width=6)),
    image=IMAGE,
    dropout=0.0,
)
KINDS = {
    "causal": replace(SMALL, causal=True),
    "both_ways": SMALL,
    "filled": replace(SMALL, fill=3),
}
IMAGES = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(4, VOCAB, (3, 5), generator=torch.Generator().manual_seed(0))
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str) -> DualEncoderModel:
    torch.manual_seed(7)
    return KINDS[kind].build(VOCAB).eval()


@every_kind
def test_contract(kind: str) -> None:
    check_config(KINDS[kind], ModelConfig)
    check_module(lambda: build(kind), lambda model, dtype: model(IMAGES.to(dtype), TOKENS))


def test_gradients() -> None:
    check_gradients(build("causal"), lambda m, x: m(IMAGES, TOKENS) * x, torch.ones(1), twice=False)


@every_kind
def test_logits_are_scaled_cosines(kind: str) -> None:
    model = build(kind).double()
    u, v = model.image_vectors(IMAGES.double()), model.text_vectors(TOKENS)
    ones = torch.ones(3).double()
    assert_close(u.norm(dim=1), ones[:2])
    assert_close(v.norm(dim=1), ones)
    assert_close(model(IMAGES.double(), TOKENS), model.head.logit_scale.exp() * u @ v.T)


@settings(max_examples=8)
@every_kind
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    side=st.sampled_from(["left", "right"]),
)
def test_batch_mates_and_padding_change_nothing(kind: str, lengths: list[int], side: str) -> None:
    model, slots = build(kind).double(), torch.arange(max(lengths))
    sizes = torch.tensor(lengths)[:, None]
    valid = slots >= max(lengths) - sizes if side == "left" else slots < sizes
    tokens = torch.randint(1, VOCAB, valid.shape) * valid
    with torch.no_grad():
        together = model.text_vectors(tokens, valid)
        for i in range(len(lengths)):
            assert_close(together[i], model.text_vectors(tokens[i : i + 1, valid[i]])[0])


def test_a_fill_is_read_up_to_the_longest() -> None:
    model = build("filled").double()
    full = torch.nn.functional.pad(TOKENS, (0, 4), value=3)
    plain = build("both_ways").double()
    assert_close(model.text_vectors(TOKENS), plain.text_vectors(full))
    assert (model.text_vectors(TOKENS) - plain.text_vectors(TOKENS)).abs().max() > 1e-3


def test_a_longer_text_is_refused() -> None:
    for kind in KINDS:
        with pytest.raises(InputError, match="9 positions"):
            build(kind).text_vectors(torch.ones(1, 10, dtype=torch.long))


def test_widths_must_agree() -> None:
    with pytest.raises(ValueError, match="vectors of 6 numbers and pictures of 5"):
        replace(SMALL, image=replace(IMAGE, head=VectorHeadConfig(pooling="first", width=5)))


def test_pictures_need_patches_and_a_vector() -> None:
    with pytest.raises(ValueError, match="image reads tokens with a token head"):
        replace(SMALL, image=EncoderConfig())


def test_a_fill_is_a_token() -> None:
    with pytest.raises(InputError, match="fill = 13 is not one of the 13 tokens: at most 12"):
        replace(SMALL, fill=VOCAB).build(VOCAB)
