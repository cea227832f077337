"""x-transformers (lucidrains)."""

from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from addnorm.bench.implementation import Run
from addnorm.bench.sizes import DecoderSizes
from addnorm.bench.training import TrainingOptions, training


def train_decoder(_: Path, *, sizes: DecoderSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Training a GPT, with attention by torch's fused kernel (`attn_flash`)."""
    library: Any = import_module("x_transformers")
    layers = library.Decoder(
        dim=sizes.d_model,
        depth=sizes.n_layers,
        heads=sizes.n_heads,
        attn_dim_head=sizes.d_model // sizes.n_heads,
        ff_mult=sizes.d_ff / sizes.d_model,
        attn_dropout=sizes.dropout,
        ff_dropout=sizes.dropout,
        attn_flash=True,
    )
    model = library.TransformerWrapper(
        num_tokens=sizes.vocab_size,
        max_seq_len=sizes.length,
        emb_dropout=sizes.dropout,
        tie_embedding=True,
        attn_layers=layers,
    )
    return training(model, sizes, **options)
