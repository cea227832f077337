"""Hugging Face transformers."""

from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

import torch

from addnorm.bench.decoding import DecodingSizes, decoding
from addnorm.bench.decoding import Precision as DecodingPrecision
from addnorm.bench.implementation import Run, timed
from addnorm.bench.sizes import DecoderSizes, TranslatorSizes
from addnorm.bench.training import TrainingOptions, training
from addnorm.processor import cores


def train_decoder(_: Path, *, sizes: DecoderSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Training GPT-2, with the model's own loss."""
    transformers: Any = import_module("transformers")
    config = transformers.GPT2Config(
        n_layer=sizes.n_layers,
        n_embd=sizes.d_model,
        n_head=sizes.n_heads,
        n_inner=sizes.d_ff,
        n_positions=sizes.length,
        vocab_size=sizes.vocab_size,
        embd_pdrop=sizes.dropout,
        attn_pdrop=sizes.dropout,
        resid_pdrop=sizes.dropout,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    model = transformers.GPT2LMHeadModel(config)
    return training(
        model, sizes, lambda tokens, _: model(input_ids=tokens, labels=tokens).loss, **options
    )


def train_translator(_: Path, *, sizes: TranslatorSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Training Marian, with the model's own loss."""
    transformers: Any = import_module("transformers")
    model = transformers.MarianMTModel(transformers.MarianConfig(**_marian(sizes)))
    return training(
        model,
        sizes,
        lambda x, y, z: model(input_ids=x, decoder_input_ids=y, labels=z).loss,
        **options,
    )


def _marian(sizes: TranslatorSizes) -> dict[str, Any]:
    both = {"layers": sizes.n_layers, "attention_heads": sizes.n_heads, "ffn_dim": sizes.d_ff}
    sides = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in both.items()}
    return sides | {
        "vocab_size": sizes.vocab_size,
        "d_model": sizes.d_model,
        "max_position_embeddings": 512,
        "activation_function": "relu",
        "scale_embedding": True,
        "dropout": sizes.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "pad_token_id": 0,
        "eos_token_id": 3,
        "decoder_start_token_id": 2,
        "use_cache": False,
    }


def decode(folder: Path, *, sizes: DecodingSizes, precision: DecodingPrecision) -> Run:
    """Greedy continuations of all prompts in a batch, by `generate`."""
    model = _opened("AutoModelForCausalLM", folder, precision)
    tokens = torch.tensor(sizes.prompts())
    return decoding(lambda n: _generate(model, tokens, n, 1), sizes)


def translate(
    folder: Path, *, sizes: DecodingSizes, beams: int, precision: DecodingPrecision
) -> Run:
    """Translations by beam search, by `generate`."""
    model = _opened("MarianMTModel", folder, precision)
    tokens = torch.tensor([[*row[:-1], 3] for row in sizes.prompts()])
    return timed(lambda: _generate(model, tokens, sizes.new, beams), sizes.batch * sizes.new)


def _opened(kind: str, folder: Path, precision: DecodingPrecision) -> Any:
    torch.set_num_threads(cores())
    transformers: Any = import_module("transformers")
    model = getattr(transformers, kind).from_pretrained(folder / "hf")
    return model.to(getattr(torch, precision)).eval()


def _generate(model: Any, tokens: torch.Tensor, n: int, beams: int) -> None:
    lengths = {"max_new_tokens": n, "min_new_tokens": n, "num_beams": beams}
    valid = torch.ones_like(tokens)
    with torch.inference_mode():
        model.generate(tokens, attention_mask=valid, do_sample=False, pad_token_id=0, **lengths)
