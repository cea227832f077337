"""Peers based on torch: transformers, JoeyNMT, LitGPT and x-transformers."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Unpack

import torch
from torch import Tensor

from addnorm.bench.decoding import DecodingSizes, Precision, decoding
from addnorm.bench.implementation import Run, timed
from addnorm.bench.training import DecoderSizes, TrainingOptions, TranslatorSizes, training
from addnorm.machine import cores


def train_gpt2(_: Path, *, sizes: DecoderSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Return rounds of training GPT-2, with the model's own loss."""
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


def train_marian(_: Path, *, sizes: TranslatorSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Return rounds of training Marian, with the model's own loss."""
    transformers: Any = import_module("transformers")
    model = transformers.MarianMTModel(transformers.MarianConfig(**_marian(sizes)))
    return training(
        model,
        sizes,
        lambda x, y, z: model(input_ids=x, decoder_input_ids=y, labels=z).loss,
        **options,
    )


def _marian(sizes: TranslatorSizes) -> dict[str, Any]:
    side = {"layers": sizes.n_layers, "attention_heads": sizes.n_heads, "ffn_dim": sizes.d_ff}
    sides = {f"{name}_{k}": v for name in ("encoder", "decoder") for k, v in side.items()}
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


def decode_transformers(folder: Path, *, sizes: DecodingSizes, precision: Precision) -> Run:
    """Return rounds of greedy continuations of all prompts in a batch, by `generate`."""
    model = _opened("AutoModelForCausalLM", folder, precision)
    tokens = torch.tensor(sizes.prompts())
    return decoding(lambda n: _generate(model, tokens, n, 1), sizes)


def translate_transformers(
    folder: Path, *, sizes: DecodingSizes, beams: int, precision: Precision
) -> Run:
    """Return rounds of translations by beam search, by `generate`."""
    model = _opened("MarianMTModel", folder, precision)
    tokens = torch.tensor([[*row[:-1], 3] for row in sizes.prompts()])
    return timed(lambda: _generate(model, tokens, sizes.new, beams), sizes.batch * sizes.new)


def _opened(kind: str, folder: Path, precision: Precision) -> Any:
    torch.set_num_threads(cores())
    transformers: Any = import_module("transformers")
    model = getattr(transformers, kind).from_pretrained(folder / "hf")
    return model.to(getattr(torch, precision)).eval()


def _generate(model: Any, tokens: torch.Tensor, n: int, beams: int) -> None:
    lengths = {"max_new_tokens": n, "min_new_tokens": n, "num_beams": beams}
    valid = torch.ones_like(tokens)
    with torch.inference_mode():
        model.generate(tokens, attention_mask=valid, do_sample=False, pad_token_id=0, **lengths)


SPECIALS = ("<unk>", "<pad>", "<s>", "</s>")


def train_joeynmt(_: Path, *, sizes: TranslatorSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Return rounds of training a translator, with the model's own loss."""
    vocabulary = _vocabulary(sizes.vocab_size)
    side: dict[str, Any] = {
        "type": "transformer",
        "num_layers": sizes.n_layers,
        "num_heads": sizes.n_heads,
        "hidden_size": sizes.d_model,
        "ff_size": sizes.d_ff,
        "dropout": sizes.dropout,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": sizes.d_model, "scale": True},
    }
    parts = {"encoder": side, "decoder": side, "tied_embeddings": True, "tied_softmax": True}
    model: Any = import_module("joeynmt.model").build_model(parts, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", 0.0)
    real = torch.ones(sizes.batch, 1, sizes.length, dtype=torch.bool)
    lengths = torch.full((sizes.batch,), sizes.length)

    def loss_of(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        masks = {"src_mask": real, "trg_mask": real, "src_length": lengths}
        return model(return_type="loss", src=x, trg_input=y, trg=z, **masks)[0] / sizes.tokens

    return training(model, sizes, loss_of, **options)


def _vocabulary(size: int) -> Any:
    unknown, padding, begin, end = SPECIALS
    names = {"unk_token": unknown, "pad_token": padding, "bos_token": begin, "eos_token": end}
    ids = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}
    nothing = {"sep_token": None, "sep_id": None, "lang_tags": list[str]()}
    words = [f"w{i}" for i in range(size - len(SPECIALS))]
    library: Any = import_module("joeynmt.vocabulary")
    return library.Vocabulary(words, SimpleNamespace(**names, **ids, **nothing))


def train_litgpt(_: Path, *, sizes: DecoderSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Return rounds of training LitGPT's closest model: rotary positions, an untied head."""
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


def train_x_transformers(
    _: Path, *, sizes: DecoderSizes, **options: Unpack[TrainingOptions]
) -> Run:
    """Return rounds of training a GPT with torch's fused attention (`attn_flash`)."""
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
