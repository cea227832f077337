"""Prepared models for benchmarks: random weights in the formats of all implementations."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from addnorm.bench.decoding import GPT2_VOCABULARY
from addnorm.bench.implementation import Round, Run
from addnorm.bench.ours import translator_config
from addnorm.bench.training import TranslatorSizes
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.exporters.ctranslate2 import export_ctranslate2
from addnorm.convert.exporters.gguf import export_gguf
from addnorm.convert.folder import save
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BPEConfig
from addnorm.models import DecoderConfig
from addnorm.models.presets import gpt2_small

HF, CTRANSLATE2, GGUF = "hf", "ctranslate2", "{}.gguf"
"""The names of the formats in the folder."""


def gpt2(
    folder: Path, *, config: DecoderConfig | None = None, vocab_size: int = GPT2_VOCABULARY
) -> Run:
    """Prepare GPT-2 small, or `config`, for us, transformers, CTranslate2 and llama.cpp."""

    def write() -> None:
        decoder, text = config or gpt2_small(), _tokenizers()
        torch.manual_seed(0)
        model = decoder.build(vocab_size).eval()
        save(folder / HF, ModelSpec(model=decoder, vocab_size=vocab_size), model, text)
        if _is_installed("ctranslate2"):
            export_ctranslate2(model, decoder, text, folder / CTRANSLATE2)
        if _is_installed("llama_cpp") and _is_installed("gguf"):
            export_gguf(model, decoder, text, folder / GGUF.format("float32"), "f32")
            export_gguf(model, decoder, text, folder / GGUF.format("bfloat16"), "bf16")

    return _once(write)


def translator(folder: Path, *, sizes: TranslatorSizes) -> Run:
    """Prepare a translator for us, transformers (as Marian) and CTranslate2."""

    def write() -> None:
        config, text = replace(translator_config(sizes), dropout=0.0), _tokenizers()
        torch.manual_seed(0)
        model = config.build(sizes.vocab_size).eval()
        spec = ModelSpec(model=config, vocab_size=sizes.vocab_size)
        save(folder / HF, spec, model, text, model_type="marian")
        if _is_installed("ctranslate2"):
            export_ctranslate2(model, config, text, folder / CTRANSLATE2)

    return _once(write)


def _tokenizers() -> Tokenizers:
    """Return arbitrary tokenizers, since the benchmarks use no text."""
    tokenizer = BPEConfig(vocab_size=300).train(["To be, or not to be, that is the question."])
    return Tokenizers(tokenizer, tokenizer)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _once(write: Callable[[], None]) -> Run:
    write()
    return lambda: Round(1.0, 1)
