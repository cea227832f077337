"""Converting a tokenizer to the byte-level BPE vocabulary of a GGUF file."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = range(1, 6)
"""llama.cpp's token types."""

LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{LETTERS}|\p{{N}}{{1,3}}|{SIGNS}": "llama-bpe",
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{LETTERS}|\p{{N}}|{SIGNS}": "qwen2",
}
"""llama.cpp's names of pre-tokenizer patterns; GPT-2's pattern is built in."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Tokens by id with their types, the merges in order, and the pre-tokenizer."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    pre: str
    add_bos: bool


def vocabulary(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """Convert the tokenizer to byte-level BPE with `size` ids.

    A character tokenizer becomes merges that join the bytes of each character; llama.cpp drops
    unknown characters, which our tokenizer maps to the unknown token. Raises `InputError` for other
    tokenizers.
    """
    settings: dict[str, Any] = json.loads(tokenizer.inner.to_str())
    model = settings["model"]
    if tokenizer.vocab_size > size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model has {size}"
        )
    if model["type"] != "BPE":
        raise _refusal(f"a {model['type']} tokenizer")
    added = {token["id"]: bool(token["special"]) for token in settings["added_tokens"]}
    names = [tokenizer.inner.id_to_token(i) for i in range(size)]
    types = [_type(tokenizer, i, name, added) for i, name in enumerate(names)]
    tokens = [f"[UNUSED{i}]" if name is None else name for i, name in enumerate(names)]
    if _is_characters(settings):
        tokens = [
            to_byte_alphabet(token) if kind == NORMAL else token
            for token, kind in zip(tokens, types, strict=True)
        ]
        normal = (token for token, kind in zip(tokens, types, strict=True) if kind == NORMAL)
        merges, pre = list(dict.fromkeys(left_to_right_merges(normal))), "gpt-2"
    else:
        merges, pre = [_merge(merge) for merge in model["merges"]], _pre(settings)
    # GGUF has no empty lists, and this merge never produces a token.
    merges = merges or [" ".join(to_byte_alphabet("é"))]
    return Vocabulary(
        tokens=tokens, types=types, merges=merges, pre=pre, add_bos=_add_bos(tokenizer)
    )


def _refusal(what: str) -> InputError:
    return InputError(
        f"{what} cannot be written to GGUF: llama.cpp has byte-level BPE (kind = 'bpe'), which "
        "can also express characters (kind = 'char')"
    )


def _type(tokenizer: Tokenizer, i: int, name: str | None, added: dict[int, bool]) -> int:
    if name is None:
        return UNUSED
    if i == tokenizer.unk_id:
        return UNKNOWN
    if i not in added:
        return NORMAL
    return CONTROL if added[i] else USER_DEFINED


def _add_bos(tokenizer: Tokenizer) -> bool:
    """Whether prompts begin with the bos token, as `data.ids` encodes them."""
    before = tokenizer.before if tokenizer.begins is None else tokenizer.begins
    if before not in (None, (), (tokenizer.bos_id,)):
        raise _refusal(f"a tokenizer that puts {before} before each text")
    return before != ()


def _is_characters(settings: dict[str, Any]) -> bool:
    model, decoder = settings["model"], settings["decoder"] or {}
    plain = settings["pre_tokenizer"] is None and settings["normalizer"] is None
    return plain and not model["merges"] and decoder.get("type") == "Fuse"


def _pre(settings: dict[str, Any]) -> str:
    """llama.cpp's name for the pre-tokenizer."""
    pre, normalizer = settings["pre_tokenizer"] or {}, settings["normalizer"]
    split: dict[str, Any] = {}
    if pre.get("type") == "Sequence" and len(pre["pretokenizers"]) == 2:
        split, pre = pre["pretokenizers"]
    pattern = split.get("pattern", {}).get("Regex")
    name = SPLITS.get(pattern) if split else "gpt-2"
    byte_level = pre.get("type") == "ByteLevel" and not pre["add_prefix_space"]
    if name is None or not byte_level or pre.get("use_regex", True) == bool(split):
        raise _refusal("a tokenizer that splits text into words in its own way")
    composed = name == "qwen2" and normalizer == {"type": "NFC"}
    if normalizer is not None and not composed:
        raise _refusal(f"a tokenizer with the normalizer {normalizer.get('type')}")
    if bool(settings["model"].get("ignore_merges")) != (name == "llama-bpe"):
        raise _refusal("a tokenizer that looks up words before merging")
    return name


def _merge(merge: str | list[str]) -> str:
    """A merge as `a b`; newer tokenizer files store pairs."""
    return merge if isinstance(merge, str) else " ".join(merge)


# GPT-2's alphabet, which maps each byte to a visible character (Radford et al. 2019, code).


def _alphabet() -> dict[int, str]:
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {
        byte: chr(256 + n) for n, byte in enumerate(others)
    }


ALPHABET = _alphabet()


def to_byte_alphabet(text: str) -> str:
    """The UTF-8 bytes of a text in GPT-2's byte alphabet."""
    return "".join(ALPHABET[byte] for byte in text.encode())


def left_to_right_merges(tokens: Iterable[str]) -> Iterator[str]:
    """Yield the merges that build each token from its bytes, left to right.

    Other characters are not affected: UTF-8 continuation bytes never begin a character.
    """
    for token in tokens:
        for n in range(1, len(token)):
            yield f"{token[:n]} {token[n]}"
