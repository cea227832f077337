"""Verification of exports: sample inputs for every model, and tolerances."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.convert.exports import BOTH

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.readback import (
    check_logits,
    check_types,
    model_logits,
    sample_inputs,
    sample_tokens,
)
from addnorm.convert.exporters.ctranslate2 import export_ctranslate2
from addnorm.convert.exporters.gguf import export_gguf
from addnorm.convert.exporters.onnx import export_onnx
from addnorm.convert.folder import save
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.models.inputs import (
    ConvolutionalEmbeddingConfig,
    LogMelEmbeddingConfig,
    PatchEmbeddingConfig,
    SeriesEmbeddingConfig,
)
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import ClassificationHeadConfig, TokenHeadConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PreNormConfig

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
        EncoderConfig(
            **SMALL, input=ConvolutionalEmbeddingConfig(size=(9, 8), widths=(4,)), head=LABELS
        ).build(n_labels=2),
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


def test_types_that_do_not_go_together_are_refused_by_the_parameter(tmp_path: Path) -> None:
    config = DecoderConfig(**SMALL, residual=PreNormConfig(), norm=RMSNormConfig())
    model = config.build(11).half()
    check_types("GGUF", model)
    model.stack.norm.float()
    check_types("GGUF", model)  # this one runs
    model.stack.blocks[0].feedforward.float()
    told = (
        r"cannot hold this model, which does not run: stack.blocks.0.feedforward.up_proj.weight is "
        r"float32, and embed.tokens.weight is float16. Give all one type, such as model.to\("
    )
    with pytest.raises(InputError, match=f"^GGUF {told}"):
        check_types("GGUF", model)
    with pytest.raises(InputError, match=f"^a Hugging Face folder {told}"):
        save(tmp_path, ModelSpec(model=config, vocab_size=11), model, None)
    for package, export in {
        "onnxscript": lambda: export_onnx(model, config, tmp_path),
        "gguf": lambda: export_gguf(model, config, BOTH, tmp_path / "a.gguf"),
        "ctranslate2": lambda: export_ctranslate2(model, config, BOTH, tmp_path),
    }.items():
        pytest.importorskip(package)
        with pytest.raises(InputError, match=told):
            export()
    assert not list(tmp_path.iterdir())
