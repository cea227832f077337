"""The tokenizer of a GGUF file: byte-level BPE, or the BPE of SentencePiece by its scores."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from addnorm.convert.exporters.gguf_vocabulary import (
    ALPHABET,
    CONTROL,
    NORMAL,
    SPLITS,
    UNKNOWN,
    USER_DEFINED,
)
from addnorm.convert.tokenizers.sentencepiece import Algorithm, Kind, Piece, SentencePiece
from addnorm.convert.weights.gguf_file import GGUF
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, choices

KEY = "tokenizer.ggml."

PATTERNS = {name: pattern for pattern, name in SPLITS.items()}


@dataclass(frozen=True)
class Splitting:
    """How texts are split into words, and words into tokens; the default pattern is GPT-2's."""

    pattern: str | None = None
    digits: bool = False
    """Whether each digit is a word."""
    whole_words: bool = False
    """Whether a word that is a token is not merged from its bytes."""
    starts: bool = False
    """Whether texts begin with the start token where no key says so."""
    composed: bool = False
    """Whether texts are normalised to NFC."""

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The splitter into words, in GPT-2's byte alphabet."""
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None)
        if self.pattern is not None:
            split = pre_tokenizers.Split(Regex(self.pattern), "isolated")
            return pre_tokenizers.Sequence([split, to_bytes])
        if self.digits:
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(True), to_bytes])
        return to_bytes


LLAMA3 = Splitting(PATTERNS["llama-bpe"], whole_words=True, starts=True)
SPLITTINGS: dict[str, Splitting] = {
    **dict.fromkeys(("gpt-2", "default", "", "mpt", "olmo", "phi-2", "mellum"), Splitting()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), Splitting(digits=True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), LLAMA3),
    **dict.fromkeys(("smaug-bpe", "dbrx"), Splitting(PATTERNS["llama-bpe"])),
    "qwen2": Splitting(PATTERNS["qwen2"], composed=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez"), Splitting(PATTERNS["qwen2"])),
}
"""llama.cpp's names of pre-tokenizers, of the architectures that are read."""

USUAL_IDS = {"bos": 1, "eos": 2, "unknown": 0}
"""The special tokens of a SentencePiece vocabulary without a key for them."""

ENDS = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"),
    *("<|end_of_text|>", "<|return|>", "<|call|>"),
)
"""Control tokens at which llama.cpp stops, whatever the keys say."""


def tokenizer_of(gguf: GGUF) -> Tokenizer:
    """The tokenizer of a file. Raises `InputError` for one of another kind, and damaged ones."""
    kinds = {"gpt2": _byte_level, "llama": _sentencepiece}
    kind = gguf.required(f"{KEY}model", str)
    if kind not in kinds:
        raise InputError(
            f"{gguf.path}: {KEY}model = {kind!r} is not supported.{choices(kind, kinds)}"
        )
    tokens = gguf.texts(f"{KEY}tokens")
    types = [int(number) for number in gguf.numbers(f"{KEY}token_type", len(tokens))]
    try:
        inner = kinds[kind](gguf, tokens, types)
    except InputError:
        raise
    except Exception as error:  # the library raises no other
        raise InputError(f"{gguf.path}: its tokenizer cannot be read: {error}") from error
    return _with_ids(gguf, inner, tokens, types, USUAL_IDS if kind == "llama" else {})


def _byte_level(gguf: GGUF, tokens: list[str], types: list[int]) -> tokenizers.Tokenizer:
    pre = gguf.get(f"{KEY}pre", "gpt-2")
    if pre not in SPLITTINGS:
        raise InputError(
            f"{gguf.path}: {KEY}pre = {pre!r} is not supported.{choices(pre, SPLITTINGS)}"
        )
    splitting = SPLITTINGS[pre]
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise InputError(f"{gguf.path}: {KEY}tokens has one token twice")
    if (characters := _characters(tokens, types)) is not None:
        return _of_characters(characters, tokens, types)
    merges = [*_merges(gguf, vocab)]
    model = models.BPE(vocab=vocab, merges=merges, ignore_merges=splitting.whole_words)
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = splitting.pre_tokenizer()
    if splitting.composed:
        inner.normalizer = normalizers.NFC()
    inner.decoder = decoders.ByteLevel()
    _add_tokens(inner, tokens, types)
    return inner


def _add_tokens(inner: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    special = [t for t, kind in zip(tokens, types, strict=True) if kind in (CONTROL, UNKNOWN)]
    inner.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    plain = [t for t, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED]
    inner.add_tokens([AddedToken(token, normalized=False) for token in plain])


def _merges(gguf: GGUF, vocab: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the merges; if there are none, yield one of a token outside the vocabulary."""
    merges = gguf.texts(f"{KEY}merges")
    for n, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if {left, right, left + right} <= vocab.keys():
            yield left, right
        elif len(merges) > 1:
            raise InputError(
                f"{gguf.path}: {KEY}merges: merge {n}, {merge!r:.60}, is not of three tokens"
            )


BYTES = {sign: byte for byte, sign in ALPHABET.items()}


def _characters(tokens: list[str], types: list[int]) -> list[str] | None:
    """The tokens of a single-character vocabulary, such as ours; None for any other."""
    characters: list[str] = []
    for token, kind in zip(tokens, types, strict=True):
        if kind == NORMAL:
            try:
                token = bytes(BYTES[sign] for sign in token).decode()
            except (KeyError, UnicodeDecodeError):
                return None
            if len(token) != 1:
                return None
        characters.append(token)
    return characters


def _of_characters(
    characters: list[str], tokens: list[str], types: list[int]
) -> tokenizers.Tokenizer:
    """A character tokenizer with an unknown token for others, which llama.cpp omits."""
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    vocab = {token: i for i, token in enumerate(characters)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=unknown))
    inner.decoder = decoders.Fuse()
    _add_tokens(inner, tokens, types)
    return inner


def _sentencepiece(gguf: GGUF, tokens: list[str], types: list[int]) -> tokenizers.Tokenizer:
    scores = gguf.numbers(f"{KEY}scores", len(tokens))
    kinds = [Kind(number) for number in types]
    return SentencePiece(
        pieces=tuple(map(Piece, tokens, scores, kinds)),
        algorithm=Algorithm.BPE,
        byte_fallback=Kind.BYTE in kinds,
        charsmap=b"",
        add_dummy_prefix=gguf.get(f"{KEY}add_space_prefix", True),
        remove_extra_whitespaces=gguf.get(f"{KEY}remove_extra_whitespaces", False),
        escape_whitespaces=True,
    ).build()


def _with_ids(
    gguf: GGUF,
    inner: tokenizers.Tokenizer,
    tokens: list[str],
    types: list[int],
    usual: Mapping[str, int],
) -> Tokenizer:
    """The tokenizer with its special tokens; `usual` gives the ids for absent keys."""
    ids_of = partial(_id, gguf, usual=usual, size=len(tokens))
    bos, pad, unk = map(ids_of, ("bos", "padding", "unknown"))
    named = [*map(ids_of, ("eos", "eot", "eom"))]
    control = {token: i for i, token in enumerate(tokens) if types[i] == CONTROL}
    ends = [i for i in (*named, *(control.get(name) for name in ENDS)) if i is not None]
    pre = gguf.get(f"{KEY}pre", "")
    starts = bool(usual) or SPLITTINGS.get(pre, Splitting()).starts
    begins = bos is not None and gguf.get(f"{KEY}add_bos_token", starts)
    if gguf.get(f"{KEY}add_eos_token", False):
        raise InputError(
            f"{gguf.path}: {KEY}add_eos_token = True: a text to continue has no end token"
        )
    if begins and bos is not None:
        name = tokens[bos]
        inner.post_processor = processors.TemplateProcessing(
            single=[name, "$A"], pair=[name, "$A", "$B"], special_tokens=[(name, bos)]
        )
    tokenizer = Tokenizer(
        inner,
        pad_id=pad,
        unk_id=next((i for i, kind in enumerate(types) if kind == UNKNOWN), unk),
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(ends)),
        before=(bos,) if begins and bos is not None else (),
        after=(),
    )
    ids = {"bos_token": bos, "eos_token": named[0], "pad_token": pad, "unk_token": unk}
    names = {name: tokens[i] for name, i in ids.items() if i is not None}
    return tokenizer.named(names, named[0])


def _id(gguf: GGUF, role: str, *, usual: Mapping[str, int], size: int) -> int | None:
    """The id of a special token, if it has one.

    Raises `InputError` for one beyond the vocabulary.
    """
    key = f"{KEY}{role}_token_id"
    if key not in gguf.keys and usual.get(role, size) >= size:
        return None
    i = gguf.get(key, usual.get(role, 0))
    if not 0 <= i < size:
        raise InputError(f"{gguf.path}: {key} = {i} is not from 0 to {size - 1}")
    return i
