"""JoeyNMT."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Unpack

import torch
from torch import Tensor

from addnorm.bench.implementation import Run
from addnorm.bench.sizes import TranslatorSizes
from addnorm.bench.training import TrainingOptions, training

SPECIALS = ("<unk>", "<pad>", "<s>", "</s>")


def train_translator(_: Path, *, sizes: TranslatorSizes, **options: Unpack[TrainingOptions]) -> Run:
    """Training a translator, with the model's own loss."""
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
