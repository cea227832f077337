"""The tokenizers that a page can run: all their parts are ported to JavaScript (`page/src`)."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

Table = Mapping[str, Any]

PORTED: Mapping[str, tuple[str, ...]] = {
    "normalizer": (
        *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"),
        *("Prepend", "Replace", "Strip", "Precompiled", "Sequence"),
    ),
    "pre_tokenizer": (
        *("ByteLevel", "WhitespaceSplit", "Whitespace", "BertPreTokenizer", "Punctuation"),
        *("Digits", "Split", "Metaspace", "Sequence"),
    ),
    "model": ("BPE", "Unigram", "WordPiece", "WordLevel"),
    "decoder": (
        *("ByteLevel", "Fuse", "ByteFallback", "Metaspace", "WordPiece", "BPEDecoder"),
        *("Replace", "Strip", "Sequence"),
    ),
}
"""The parts that the page has, by the key of `tokenizer.json` that names them."""

STEPS = ("normalizers", "pretokenizers", "decoders")
"""The keys of the steps of a sequence."""

NOT_PORTED = re.compile(
    r"\\[^pPsSdDwWnrtfvu\W]|\(\?(?!:|!|=|i:)|(?<!\\)[*+?]\+|\d\}\+|\[\[|&&|\[[^\]]*\\[SDW]"
    r"|\(\?i:[^)]*[^\x00-\x7f]"
)
"""What an expression may hold that JavaScript reads differently."""


def ported_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """The `tokenizer.json` for a tokenizer that a page can run.

    Raises `InputError` naming the part that the page does not have.
    """
    table: dict[str, Any] = json.loads(tokenizer.inner.to_str())
    for key in PORTED:
        for part in _parts(table[key]):
            _check_part(key, part)
    _check_model(table["model"])
    for token in table["added_tokens"]:
        if token["single_word"]:
            raise _refusal(f"the added token {token['content']!r}, which is a word of its own")
    return table


def _parts(part: Table | None) -> Iterator[Table]:
    """Yield a part of a tokenizer; for a sequence, each of its steps."""
    if part is None:
        return
    yield part
    for key in STEPS:
        for step in part.get(key, ()):
            yield from _parts(step)


def _check_part(key: str, part: Table) -> None:
    kind = part["type"]
    if kind not in PORTED[key]:
        raise _refusal(f"the {key.replace('_', '-')} {kind}")
    pattern = part.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    if expression is not None and (strange := NOT_PORTED.search(expression)):
        raise _refusal(f"{strange[0]!r} in the expression of the {key.replace('_', '-')}")


def _check_model(model: Table) -> None:
    """Raise `InputError` for a model setting that affects ids but is not ported."""
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model["type"] == "BPE" and model.get(name):
            raise _refusal(f"{name} = {model[name]!r} of byte-pair encoding")


def _refusal(what: str) -> InputError:
    return InputError(f"a page does not have {what} of this tokenizer: export to ONNX, or to hf")
