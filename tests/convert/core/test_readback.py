"""Reading back: inputs of every kind of model, and what counts as the same logits."""

from typing import Any

import pytest
import torch

from addnorm.convert.core.readback import check_logits, model_logits, sample_inputs, sample_tokens
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.models.inputs import LogMelEmbeddingConfig, PatchEmbeddingConfig, SeriesEmbeddingConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import ClassificationHeadConfig, TokenHeadConfig
from addnorm.nn.positions import LearnedConfig

SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 1, "attention": AttentionConfig(n_heads=2)}
LABELS = ClassificationHeadConfig()


def test_the_sample_is_within_the_vocabulary_and_the_table_of_positions() -> None:
    for size in (2, 11, 50000):
        tokens = sample_tokens(size)
        assert tokens.shape == (1, 16)
        assert 0 <= int(tokens.min()) <= int(tokens.max()) < size
    assert len(set(sample_tokens(50000)[0].tolist())) > 8
    assert sample_tokens(9, max_len=5).shape == (1, 5)


@pytest.mark.parametrize(
    "model",
    [
        DecoderConfig(**SMALL).build(11),
        DecoderConfig(**SMALL, max_len=4, position=LearnedConfig()).build(11),
        EncoderConfig(**SMALL).build(11),
        EncoderConfig(**SMALL, input=PatchEmbeddingConfig(size=(8, 4), patch=4), head=LABELS).build(
            n_labels=2
        ),
        EncoderConfig(**SMALL, input=SeriesEmbeddingConfig(patch=4), head=LABELS).build(n_labels=2),
        EncoderDecoderConfig(**SMALL).build(11),
        EncoderDecoderConfig(
            **SMALL, input=LogMelEmbeddingConfig(n_mels=3), head=TokenHeadConfig(tied=False)
        ).build(11),
    ],
)
def test_every_kind_of_model_reads_its_sample(model: Any) -> None:
    model.train()
    inputs = sample_inputs(model)
    logits = model_logits(model, inputs)
    assert model.training
    assert logits.isfinite().all()
    assert torch.equal(logits, model_logits(model, sample_inputs(model)))


def test_logits_are_the_same_up_to_rounding() -> None:
    logits = torch.randn(2, 3)
    check_logits("R", logits, logits)
    check_logits("R", logits.double() + 1e-5, logits)
    check_logits("R", logits + 0.05, logits, torch.bfloat16)
    with pytest.raises(InputError, match=r"R cannot hold this model: .* differ by 0.05"):
        check_logits("R", logits + 0.05, logits)
    with pytest.raises(InputError, match="differ by nan"):
        check_logits("R", logits * torch.nan, logits)
    with pytest.raises(InputError, match=r"shape \(2, 2\), not \(2, 3\)"):
        check_logits("R", logits[:, 1:], logits)
