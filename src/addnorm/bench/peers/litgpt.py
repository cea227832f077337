"""LitGPT (Lightning AI)."""

from importlib import import_module
from pathlib import Path
from typing import Any

from torch.nn import functional as F

from addnorm.bench.implementation import Run
from addnorm.bench.sizes import DecoderSizes
from addnorm.bench.training import Precision, training


def train_decoder(
    _: Path, *, sizes: DecoderSizes, precision: Precision = "float32", compile: bool = False
) -> Run:
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
    return training(
        model,
        lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten()),
        sizes.batches(),
        sizes.tokens,
        precision=precision,
        compile=compile,
    )
