"""Folders of all families, with the vocabulary files of their first releases."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

TEXTS = [
    "the cat sat on the mat, the other cat did not",
    "die Katze saß auf der Matte",
    "猫はマットの上に座った",
    "to be or not to be. that's the question",
    "a rose is a rose is a rose 1234567890",
    "quizzical wizards vex my big sphinx of quartz, judge",
] * 6


def write(folder: Path, **files: Any) -> Path:
    """JSON files into a folder, `config` as `config.json`."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def byte_pairs(folder: Path, *special: str) -> None:
    """GPT-2's `vocab.json` and `merges.txt`."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXTS, trainer)
    inner.model.save(str(folder))


def word_pieces(folder: Path) -> None:
    """BERT's `vocab.txt`."""
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    inner.train_from_iterator(TEXTS, trainer)
    inner.model.save(str(folder))


def sentence_pieces(file: Path, **options: Any) -> list[str]:
    """A SentencePiece model, and its pieces."""
    spm = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **options,
    )
    file.write_bytes(model.getvalue())
    found = spm.SentencePieceProcessor(model_proto=model.getvalue())
    return [found.id_to_piece(i) for i in range(found.get_piece_size())]


def gpt2(folder: Path) -> None:
    write(folder, config={"model_type": "gpt2", "bos_token_id": 0, "eos_token_id": 0})
    byte_pairs(folder, "<|endoftext|>")


def roberta(folder: Path) -> None:
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    write(folder, config={"model_type": "roberta", **ids})
    byte_pairs(folder, "<s>", "<pad>", "</s>", "<unk>", "<mask>")


def bert(folder: Path) -> None:
    write(folder, config={"model_type": "bert", "pad_token_id": 0})
    word_pieces(folder)


def distilbert(folder: Path) -> None:
    write(
        folder,
        config={"model_type": "distilbert", "pad_token_id": 0},
        tokenizer_config={"do_lower_case": False, "tokenizer_class": "DistilBertTokenizer"},
    )
    word_pieces(folder)


def t5(folder: Path) -> None:
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    write(folder, config={"model_type": "t5", "is_encoder_decoder": True, **ids})
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentence_pieces(folder / "spiece.model", model_type="unigram", vocab_size=130, **ids)


def xlm_roberta(folder: Path) -> None:
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    write(folder, config={"model_type": "xlm-roberta", **ids})
    sentence_pieces(folder / "sentencepiece.bpe.model", model_type="unigram", vocab_size=130)


def camembert(folder: Path) -> None:
    ids = {"bos_token_id": 5, "pad_token_id": 1, "eos_token_id": 6}
    write(folder, config={"model_type": "camembert", **ids})
    sentence_pieces(folder / "sentencepiece.bpe.model", model_type="unigram", vocab_size=130)


def llama(folder: Path) -> None:
    write(
        folder,
        config={"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2},
        tokenizer_config={"add_bos_token": True, "tokenizer_class": "LlamaTokenizer"},
    )
    sentence_pieces(
        folder / "tokenizer.model",
        model_type="bpe",
        vocab_size=500,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )


def marian(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    source = sentence_pieces(folder / "source.spm", model_type="unigram", vocab_size=100)
    target = sentence_pieces(folder / "target.spm", model_type="unigram", vocab_size=70)
    names = ["</s>", "<unk>", *sorted({*source[3:], *target[3:]}), ">>fra<<", "<pad>"]
    pad = len(names) - 1
    ids = {"eos_token_id": 0, "pad_token_id": pad, "decoder_start_token_id": pad}
    write(
        folder,
        config={"model_type": "marian", "is_encoder_decoder": True, **ids},
        vocab={name: i for i, name in enumerate(names)},
    )


FAMILIES = {
    make.__name__.replace("_", "-"): make
    for make in (gpt2, roberta, bert, distilbert, t5, xlm_roberta, camembert, llama, marian)
}
