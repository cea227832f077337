"""Readers for the tokenizer file layouts in Hugging Face folders."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from addnorm.convert.tokenizers.sentencepiece import SentencePiece, check_charsmap
from addnorm.data.tokenizing.tokenizers import read_inner
from addnorm.errors import InputError
from addnorm.files import read_file

JSON = "tokenizer.json"
TARGET = "target.tokenizer.json"
SETTINGS = "tokenizer_config.json"
NAMES = "special_tokens_map.json"
CONFIG, GENERATION = "config.json", "generation_config.json"

WRAPPED = ("roberta", "longformer", "bart")
"""Model types with `merges.txt` whose texts are wrapped in bos and eos."""

Wraps = tuple[bool, bool]
"""Whether bos precedes each text, and whether eos follows it."""

Read = tuple[tokenizers.Tokenizer, Wraps | None]
"""A tokenizer, and how it wraps a text; None if the tokenizer file defines that."""


@dataclass(frozen=True)
class Folder:
    """A folder, with the settings of its model, of generation and of its tokenizer.

    `names` are its special tokens by their names in transformers.
    """

    path: Path
    model_type: str
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    settings: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    def has(self, name: str) -> bool:
        """Whether a file exists."""
        return (self.path / name).exists()

    def setting(self, key: str, kind: type[Any], default: Any = None) -> Any:
        """A setting, checked to have the given type."""
        value = self.settings.get(key)
        if value is not None and type(value) is not kind:
            raise InputError(f"{self.path / SETTINGS}: {key} is {value!r}, not a {kind.__name__}")
        return default if value is None else value


def _json(folder: Folder, name: str) -> Iterator[Read]:
    for path in (folder.path / name, folder.path / TARGET):
        if path.exists():
            inner = read_inner(path)
            _check_unique(path, inner.get_vocab())
            _check_normalizer(path, inner.normalizer)
            yield inner, None


def _merges(folder: Folder, vocab: str, merges: str) -> Iterator[Read]:
    """Read GPT-2's and RoBERTa's files: byte-level BPE."""
    if folder.model_type.startswith("qwen"):
        raise InputError(f"{folder.path} has no {JSON}, which alone defines how Qwen splits a text")
    ids = {token: i for i, token in enumerate(_vocab(folder.path / vocab))}
    path = folder.path / merges
    pairs: list[tuple[str, str]] = []
    for n, line in enumerate(_lines(path), 1):
        if not line or line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise InputError(f"{path}, line {n}: {line!r} is not two parts with a space between")
        pairs.append((left, right))
        for part in (left, right, left + right):
            if part not in ids:
                raise InputError(f"{path}, line {n}: {part!r} is not in {vocab}")
    inner = tokenizers.Tokenizer(models.BPE(ids, pairs))
    space = folder.setting("add_prefix_space", bool, False)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    inner.decoder = decoders.ByteLevel()
    wrapped = folder.model_type in WRAPPED
    yield inner, (wrapped, wrapped)


def _word_pieces(folder: Folder, vocab: str) -> Iterator[Read]:
    """Read BERT's and DistilBERT's file: one token per line; of duplicates the last counts."""
    ids = {token: i for i, token in enumerate(_lines(folder.path / vocab))}
    unknown = token_name(folder.settings.get("unk_token")) or "[UNK]"
    if unknown not in ids:
        raise InputError(f"{folder.path / vocab} has no {unknown}")
    inner = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=folder.setting("tokenize_chinese_chars", bool, True),
        strip_accents=folder.setting("strip_accents", bool),
        lowercase=folder.setting("do_lower_case", bool, True),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    yield inner, (True, True)


def _t5(folder: Folder, name: str) -> Iterator[Read]:
    """Read T5's file, which lacks the tokens <extra_id_99> to <extra_id_0>."""
    inner = SentencePiece.read(folder.path / name).build()
    n = folder.setting("extra_ids", int, 100 if folder.model_type == "t5" else 0)
    inner.add_special_tokens([f"<extra_id_{i}>" for i in reversed(range(n))])
    yield inner, (inner.token_to_id("[CLS]") is not None, True)


def _llama(folder: Folder, name: str) -> Iterator[Read]:
    yield SentencePiece.read(folder.path / name).build(), (True, False)


def _fairseq(folder: Folder, name: str) -> Iterator[Read]:
    """Read XLM-R's and CamemBERT's file; their first ids differ, and a mask token comes last."""
    model = SentencePiece.read(folder.path / name)
    pieces = [piece.text for piece in model.pieces]
    if folder.model_type == "camembert":
        special = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
        tokens = [*special, *pieces[1:], "<mask>"]
    else:
        tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:], "<mask>"]
    yield model.build_for(tokens, set(tokens)), (True, True)


def _marian(folder: Folder, source: str, target: str, vocab: str) -> Iterator[Read]:
    """Read Marian's files: two SentencePiece models, one vocabulary, and language tokens."""
    target_vocab = "target_vocab.json" if folder.setting("separate_vocabs", bool) else vocab
    for model, names in ((source, vocab), (target, target_vocab)):
        tokens = _vocab(folder.path / names)
        if "<unk>" not in tokens:
            raise InputError(f"{folder.path / names} has no <unk>")
        languages = [token for token in tokens if token.startswith(">>") and token.endswith("<<")]
        unsplit = {"<unk>", "</s>", "<pad>", *languages}
        inner = SentencePiece.read(folder.path / model).build_for(tokens, unsplit)
        inner.add_tokens([AddedToken(token, normalized=False) for token in languages])
        yield inner, (False, True)


def generation_file(folder: Path) -> str:
    """The name of the file that decides how a folder's model generates, as in transformers.

    It is `generation_config.json`, and `config.json` where that is missing: one file decides alone,
    so that a key which `generation_config.json` lacks, or has as null, is not set.
    """
    return GENERATION if (folder / GENERATION).is_file() else CONFIG


def token_name(value: Any) -> str | None:
    """The text of a token in the settings, where it may be an object with flags."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _check_unique(path: Path, ids: Mapping[str, int]) -> None:
    by_id = dict[int, str]()
    for token, i in ids.items():
        if i in by_id:
            raise InputError(f"{path}: {by_id[i]!r} and {token!r} have one id: {i}")
        by_id[i] = token


def _check_normalizer(path: Path, normalizer: normalizers.Normalizer | None) -> None:
    """Raise `InputError` for a character map that would crash the library."""
    state: Any = normalizer.__getstate__() if normalizer is not None else b"{}"
    step: dict[str, Any] = json.loads(state)
    for inner_step in (step, *step.get("normalizers", ())):
        if inner_step.get("type") == "Precompiled":
            try:
                check_charsmap(b64decode(inner_step["precompiled_charsmap"]))
            except ValueError as error:
                raise InputError(f"{path} is not a tokenizer: {error}") from error


def _vocab(path: Path) -> list[str]:
    """The tokens of a `vocab.json`, ordered by id, without gaps."""
    ids = read_object(path)
    for token, i in ids.items():
        if type(i) is not int or not 0 <= i < len(ids):
            raise InputError(f"{path}: {token!r} has id {i!r}, not one of 0 to {len(ids) - 1}")
    _check_unique(path, ids)
    return sorted(ids, key=ids.__getitem__)


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(read_file(path))
        json.dumps(value, ensure_ascii=False).encode()  # refuses lone surrogates
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _lines(path: Path) -> list[str]:
    """The lines of a file, without line endings."""
    try:
        text = read_file(path).decode()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not UTF-8 text: {error}") from error
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


CTC = ("wav2vec2", "hubert")
"""Model types whose texts are spelled frame by frame, from the symbols of a `vocab.json`."""


def _symbols(folder: Folder, name: str) -> Iterator[Read]:
    """Read wav2vec 2.0's file: a token for each character, and one between words."""
    path = folder.path / name
    ids = {token: i for i, token in enumerate(_vocab(path))}
    if folder.setting("do_lower_case", bool, False):
        raise InputError(
            f"{folder.path / SETTINGS}: do_lower_case = true, by which texts become upper case and "
            "transcripts lower case, is not supported"
        )
    space = folder.setting("word_delimiter_token", str, "|")
    yield _speller(ids, space, folder.names.get("unk_token", "<unk>")), (False, False)


def _speller(ids: dict[str, int], space: str, unknown: str) -> tokenizers.Tokenizer:
    """A tokenizer with one token for each character, and `space` between words."""
    inner = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=unknown))
    inner.normalizer = normalizers.Replace(" ", space)
    inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    ends = tokenizers.Regex("^ +| +$")
    inner.decoder = decoders.Sequence(
        [decoders.Replace(space, " "), decoders.Fuse(), decoders.Replace(ends, "")]
    )
    return inner


def symbols_of(inner: tokenizers.Tokenizer) -> tuple[dict[str, int], str] | None:
    """The symbols of a wav2vec 2.0-like tokenizer, and the one between words; None for others."""
    tree: dict[str, Any] = json.loads(inner.to_str())
    model, normalizer = tree["model"], tree["normalizer"] or {}
    space: str = normalizer.get("content", "")
    if model["type"] != "WordLevel" or space not in model["vocab"]:
        return None
    symbols: dict[str, int] = model["vocab"]
    same = _speller(symbols, space, model["unk_token"])
    alike = all(tree[step] == json.loads(same.to_str())[step] for step in SPELLING)
    return (symbols, space) if alike else None


SPELLING = ("normalizer", "pre_tokenizer", "decoder")
"""The steps of a tokenizer that make its texts and tokens each other's."""


LAYOUTS: dict[tuple[str, ...], Callable[..., Iterator[Read]]] = {
    (JSON,): _json,
    ("vocab.json", "merges.txt"): _merges,
    ("vocab.txt",): _word_pieces,
    ("spiece.model",): _t5,
    ("tokenizer.model",): _llama,
    ("sentencepiece.bpe.model",): _fairseq,
    ("source.spm", "target.spm", "vocab.json"): _marian,
}
"""The files of each layout and its reader; the first complete layout is used."""


def layouts_of(model_type: str) -> dict[tuple[str, ...], Callable[..., Iterator[Read]]]:
    """The layouts for a model type: the files needed, and how to read them."""
    return LAYOUTS | ({("vocab.json",): _symbols} if model_type in CTC else {})
