"""AddNorm's implementations, which use its public API."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import addnorm
from addnorm.bench.decoding import DecodingSizes, Precision, decoding
from addnorm.bench.implementation import Run, started, timed
from addnorm.bench.training import DecoderSizes, TrainingPrecision, TranslatorSizes
from addnorm.data.batches.buckets import Batch
from addnorm.data.tokenizing.tokenizers import BOS_ID, EOS_ID
from addnorm.generate import (
    BeamConfig,
    CompiledContinuation,
    CompiledTranslation,
    GreedyConfig,
    generate,
    translate,
)
from addnorm.machine import cores
from addnorm.models import (
    DecoderConfig,
    DecoderModel,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    Model,
)
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.quantize import DynamicConfig, Int4Config, Int8Config, QuantizationConfig, quantize
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer

QUANTIZED: dict[Precision, QuantizationConfig] = {
    "int8": Int8Config(),
    "int4": Int4Config(activations=DynamicConfig()),
}

FIRST_TOKEN = """
import addnorm
from addnorm.generate import CompiledContinuation, GreedyConfig, generate
model = CompiledContinuation(addnorm.load({folder!r}).model)
generate(model, [[1, 2, 3]], GreedyConfig(), max_new_tokens=2, eos_id=None)
"""
"""The second token is the first from the compiled graph; the prompt gives the first."""


def train_decoder(
    folder: Path,
    *,
    sizes: DecoderSizes,
    precision: TrainingPrecision = "float32",
    compile: bool = False,
) -> Run:
    """Return rounds of training a GPT with the library's own loop."""
    batches = [Batch.of({"tokens": x}, y, []) for x, y in sizes.batches()]
    model = decoder_config(sizes).build(sizes.vocab_size)
    config = TrainConfig(steps=10**9, precision=precision, compile=compile, device="cpu")
    return _updates(model, batches, config, sizes.tokens, folder)


def train_translator(
    folder: Path,
    *,
    sizes: TranslatorSizes,
    precision: TrainingPrecision = "float32",
    compile: bool = False,
) -> Run:
    """Return rounds of training a translator with the library's own loop."""
    batches = [Batch.of({"source": x, "target": y}, z, []) for x, y, z in sizes.batches()]
    model = translator_config(sizes).build(sizes.vocab_size)
    config = TrainConfig(steps=10**9, precision=precision, compile=compile, device="cpu")
    return _updates(model, batches, config, sizes.tokens, folder)


def decode(folder: Path, *, sizes: DecodingSizes, precision: Precision) -> Run:
    """Return rounds of greedy continuations of all prompts in a batch, compiled.

    Keys and values of a quantised model have 16 bits, as llama.cpp's always have.
    """
    model = _opened(folder, precision)
    assert isinstance(model, DecoderModel)
    prompts = sizes.prompts()
    dtype = torch.bfloat16 if precision in QUANTIZED else None
    compiled = CompiledContinuation(model, several=len(prompts) > 1, cache_dtype=dtype)
    return decoding(
        lambda n: generate(compiled, prompts, GreedyConfig(), max_new_tokens=n, eos_id=None), sizes
    )


def translations(folder: Path, *, sizes: DecodingSizes, beams: int, precision: Precision) -> Run:
    """Return rounds of translations by beam search; sources end with eos."""
    model = _opened(folder, precision)
    assert isinstance(model, EncoderDecoderModel)
    sources = [[*row[:-1], EOS_ID] for row in sizes.prompts()]
    beam, compiled = BeamConfig(beams=beams), CompiledTranslation(model, BOS_ID, beams=beams)

    def step() -> None:
        translate(compiled, sources, beam, max_new_tokens=sizes.new, eos_id=None)

    return timed(step, sizes.batch * sizes.new)


def first_token(folder: Path) -> Run:
    """Return rounds of the time to first token of a compiled decoder, with a warm graph cache.

    Each round is a new process (see `started`).
    """
    return started(folder, statement=FIRST_TOKEN.format(folder=str(folder / "hf")))


def _opened(folder: Path, precision: Precision) -> Model:
    torch.set_num_threads(cores())
    if precision in QUANTIZED:
        return quantize(addnorm.load(folder / "hf").model, QUANTIZED[precision])
    return addnorm.load(folder / "hf", dtype=getattr(torch, precision)).model


def _updates(
    model: torch.nn.Module, batches: Sequence[Batch], config: TrainConfig, tokens: int, folder: Path
) -> Run:
    torch.set_num_threads(cores())
    run_folder = Path(tempfile.mkdtemp(dir=folder))
    trainer = Trainer(model, Repeated(batches), config, run_folder)
    return timed(lambda: trainer.update(trainer.next_group()), tokens, steps=3)


class Repeated:
    """A loader with the same batches in every epoch."""

    def __init__(self, repeated: Sequence[Batch]) -> None:
        self.repeated = repeated

    def __len__(self) -> int:
        return len(self.repeated)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from number `start` on."""
        del epoch
        return iter(self.repeated[start:])


def decoder_config(sizes: DecoderSizes) -> DecoderConfig:
    """Return a GPT-2 configuration with these sizes."""
    return DecoderConfig(
        d_model=sizes.d_model,
        n_layers=sizes.n_layers,
        max_len=sizes.length,
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=sizes.n_heads, dropout=sizes.dropout),
        feedforward=FeedForwardConfig(d_ff=sizes.d_ff, activation="gelu_tanh"),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
        dropout=sizes.dropout,
        init="gpt2",
    )


def translator_config(sizes: TranslatorSizes) -> EncoderDecoderConfig:
    """Return a configuration of the original Transformer with these sizes."""
    return EncoderDecoderConfig(
        d_model=sizes.d_model,
        n_layers=sizes.n_layers,
        attention=AttentionConfig(n_heads=sizes.n_heads),
        feedforward=FeedForwardConfig(d_ff=sizes.d_ff),
        dropout=sizes.dropout,
    )
