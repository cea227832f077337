"""LitGPT (Lightning AI)."""

from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from addnorm.bench.implementation import Run
from addnorm.bench.sizes import DecoderSizes
from addnorm.bench.training import TrainingOptions, training


def train_decoder(_: Path, *, sizes: DecoderSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Training the closest GPT that LitGPT has: with rotary positions and an untied head."""
    library: Any = import_module("litgpt.model")
    config = import_module("litgpt.config").Config(
        block_size=sizes.length,
        vocab_size=sizes.vocab_size,
        padded_vocab_size=sizes.vocab_size,
        n_layer=sizes.n_layers,
        n_head=sizes.n_heads,
        n_embd=sizes.d_model,
        intermediate_size=sizes.d_ff,
        norm_class_name="LayerNorm",
        mlp_class_name="GptNeoxMLP",
        parallel_residual=False,
    )
    model = library.GPT(config)
    return training(model, sizes, **options)
