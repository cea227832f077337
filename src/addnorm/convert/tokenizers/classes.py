"""The tokenizer classes of transformers 5: which one reads a folder, and what it changes.

A generic class uses `tokenizer.json` unchanged. Every other class uses its vocabulary alone, and
builds the rest from `tokenizer_config.json`, so that `do_lower_case` there overrides the file.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from addnorm.convert.tokenizers.layouts import JSON, Folder, token_name
from addnorm.files import read_file

GENERIC = "TokenizersBackend"

NAMED = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The special tokens that every class knows by name."""

OF_MODEL = {
    "albert": "AlbertTokenizer",
    "bart": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "clip": "CLIPTokenizer",
    "clip_text_model": "CLIPTokenizer",
    "cohere": "CohereTokenizer",
    "cohere2": "CohereTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "glm": GENERIC,
    "glm4": GENERIC,
    "glm4_moe": GENERIC,
    "gpt2": "GPT2Tokenizer",
    "gpt_bigcode": GENERIC,
    "gpt_neo": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "gptj": "GPT2Tokenizer",
    "granite": GENERIC,
    "granitemoehybrid": GENERIC,
    "gte": "XLMRobertaTokenizer",
    "hubert": "Wav2Vec2CTCTokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    "llava": GENERIC,
    "longformer": "RobertaTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "marian": "MarianTokenizer",
    "mbart": "MBartTokenizer",
    "ministral": GENERIC,
    "mistral": GENERIC,
    "mistral3": GENERIC,
    "mixtral": GENERIC,
    "modernbert": GENERIC,
    "mpnet": "MPNetTokenizer",
    "mpt": "GPTNeoXTokenizer",
    "mt5": "T5Tokenizer",
    "nemotron": GENERIC,
    "nemotron_h": GENERIC,
    "nomic_bert": "BertTokenizer",
    "olmo": "GPTNeoXTokenizer",
    "olmo2": GENERIC,
    "olmo3": GENERIC,
    "opt": "GPT2Tokenizer",
    "pegasus": "PegasusTokenizer",
    "phi": "GPT2Tokenizer",
    "phi3": GENERIC,
    "qwen2": "Qwen2Tokenizer",
    "qwen2_5_vl": "Qwen2Tokenizer",
    "qwen2_moe": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "qwen3_5": "Qwen3_5Tokenizer",
    "qwen3_5_moe": "Qwen3_5Tokenizer",
    "qwen3_5_moe_text": "Qwen3_5Tokenizer",
    "qwen3_5_text": "Qwen3_5Tokenizer",
    "qwen3_moe": "Qwen2Tokenizer",
    "qwen3_next": "Qwen2Tokenizer",
    "qwen3_vl": "Qwen2Tokenizer",
    "roberta": "RobertaTokenizer",
    "siglip": "SiglipTokenizer",
    "smolvlm": GENERIC,
    "stablelm": GENERIC,
    "starcoder2": "GPT2Tokenizer",
    "t5": "T5Tokenizer",
    "umt5": GENERIC,
    "wav2vec2": "Wav2Vec2CTCTokenizer",
    "whisper": "WhisperTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""The class of a model type, used if the folder names none."""

OVERRULED = ("qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "modernbert")
"""Model types for which transformers ignores the class that a folder names."""

ALIASES = {
    "BartTokenizer": "RobertaTokenizer",
    "BloomTokenizer": GENERIC,
    "ElectraTokenizer": "BertTokenizer",
    "LEDTokenizer": "RobertaTokenizer",
    "LongformerTokenizer": "RobertaTokenizer",
    "LxmertTokenizer": "BertTokenizer",
    "MobileBertTokenizer": "BertTokenizer",
    "Phi3Tokenizer": "LlamaTokenizer",
    "PreTrainedTokenizer": GENERIC,
    "PythonBackend": GENERIC,
}
"""Other names of classes."""

Inner = tokenizers.Tokenizer
Model = models.BPE | models.WordPiece | models.Unigram | models.WordLevel


@dataclass(frozen=True)
class TokenizerClass:
    """How a tokenizer class changes the tokenizer that its files describe.

    `names` are the default special tokens, and `rebuild` sets the steps around a model of the kind
    `model`. `around` are the special tokens before, between and after two texts if the class and
    not the file decides; the tokens of the second text then have the type `second`. `types` is
    whether the model gets these types by default.
    """

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    model: type[Model] | None = None
    rebuild: Callable[[Inner, Folder], None] | None = None
    around: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None = None
    second: int = 0
    types: bool = False
    unk_id: int | None = None
    first: Callable[[Inner, Folder], None] | None = None
    """What it does with a text before all steps, whatever files the folder has."""
    padding: Literal["left", "right"] = "right"
    """The side of a text on which it pads where the folder says nothing."""

    def can_read(self, inner: Inner, names: Mapping[str, str]) -> bool:
        """Whether a tokenizer model has the kind and the unknown token that the class needs."""
        unknown = names.get("unk_token")
        fits = self.unk_id is None or inner.id_to_token(self.unk_id) == unknown
        return self.model is None or (self.model is type(inner.model) and fits)


def class_name(folder: Folder) -> str:
    """The class with which transformers reads a folder."""
    given = folder.settings.get("tokenizer_class") or folder.config.get("tokenizer_class")
    bare = given.removesuffix("Fast") if isinstance(given, str) else None
    usual = OF_MODEL.get(folder.model_type, GENERIC if bare is None else None)
    if bare is None or usual == GENERIC or folder.model_type in OVERRULED:
        return usual or GENERIC
    name = bare if bare == usual else ALIASES.get(bare, bare)
    return GENERIC if name == "LlamaTokenizer" and _has_byte_level(folder) else name


def _has_byte_level(folder: Folder) -> bool:
    """Whether `tokenizer.json` splits into bytes, which LLaMA's class cannot read."""
    return folder.has(JSON) and b'"ByteLevel"' in read_file(folder.path / JSON)


def special_names(folder: Folder, kind: TokenizerClass) -> dict[str, str]:
    """The special tokens of a folder, by their names in transformers, such as `eos_token`.

    Those of the settings replace those of the class; a null removes one.
    """
    given: dict[str, Any] = {}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = folder.settings.get(key)
        given |= more if isinstance(more, dict) else {}
    given |= {
        key: value
        for key, value in folder.settings.items()
        if key.endswith("_token") and key != "word_delimiter_token"  # it is written in texts
    }
    # In this order transformers adds those that are new.
    given = dict.fromkeys(NAMED) | dict(kind.names) | given
    texts = {key: token_name(value) for key, value in given.items()}
    return {key: text for key, text in texts.items() if text is not None}


def _byte_pairs(
    inner: Inner, *, unk: str | None = None, fuse_unk: bool = False, byte_fallback: bool = False
) -> None:
    model: Any = inner.model
    model.dropout, model.unk_token, model.fuse_unk = None, unk, fuse_unk
    model.byte_fallback, model.ignore_merges = byte_fallback, False


def _byte_level(inner: Inner, folder: Folder) -> None:
    """Rebuild the steps of GPT-2, RoBERTa and Whisper."""
    _byte_pairs(inner)
    space = folder.setting("add_prefix_space", bool, False)
    _set(inner, None, pre_tokenizers.ByteLevel(add_prefix_space=space), decoders.ByteLevel())


def _gpt_neox(inner: Inner, folder: Folder) -> None:
    _byte_level(inner, folder)
    inner.normalizer = normalizers.NFC()


QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern by which Qwen2 splits a text into words."""


QWEN3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of Qwen3.5, in which accents are parts of words."""


def _qwen(pattern: str, inner: Inner, folder: Folder) -> None:
    _byte_pairs(inner)
    space = folder.setting("add_prefix_space", bool, False)
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    _set(
        inner,
        normalizers.NFC(),
        pre_tokenizers.Sequence([words, bytes_]),
        decoders.ByteLevel(),
    )


CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
"""The pattern by which CLIP splits a text into words."""


def _clip(inner: Inner, folder: Folder) -> None:
    _byte_pairs(inner, unk=folder.names.get("unk_token"))
    words = pre_tokenizers.Split(Regex(CLIP_WORDS), "removed", invert=True)
    _set(
        inner,
        normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
        ),
        pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        decoders.ByteLevel(),
    )


SPACE = "▁"


def _llama(inner: Inner, folder: Folder) -> None:
    _byte_pairs(inner, fuse_unk=True, byte_fallback=True)
    space = folder.setting("add_prefix_space", bool, True)
    scheme = "always" if folder.setting("legacy", bool, False) else "first"
    scheme = scheme if space else "never"
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if space else []
    metaspace = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    _set(inner, None, metaspace, decoders.Sequence(steps))


def _gemma(inner: Inner, folder: Folder) -> None:
    _byte_pairs(inner, unk=folder.names.get("unk_token"), fuse_unk=True, byte_fallback=True)
    decoder = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    _set(
        inner,
        normalizers.Replace(" ", SPACE),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence(decoder),
    )


def _siglip2(inner: Inner, folder: Folder) -> None:
    """Rebuild Gemma's steps, with texts in lower case."""
    _gemma(inner, folder)
    inner.normalizer = normalizers.Sequence([normalizers.Lowercase(), inner.normalizer])


def _bert(inner: Inner, folder: Folder) -> None:
    model: Any = inner.model
    unknown = folder.names.get("unk_token")
    if unknown is not None and model.token_to_id(unknown) is not None:
        model.unk_token = unknown
    model.max_input_chars_per_word, model.continuing_subword_prefix = 100, "##"
    normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=folder.setting("tokenize_chinese_chars", bool, True),
        strip_accents=folder.setting("strip_accents", bool),
        lowercase=folder.setting("do_lower_case", bool, True),
    )
    _set(inner, normalizer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##"))


def _fairseq(inner: Inner, folder: Folder) -> None:
    """Rebuild the steps of XLM-R and CamemBERT."""
    space = folder.setting("add_prefix_space", bool, True)
    _sentence_pieces(inner, "always" if space else "never")


PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
"""The characters that SigLIP leaves out of texts: those of `string.punctuation`."""


def _canonical(inner: Inner, folder: Folder) -> None:
    """Rebuild SigLIP's steps: lower case, no punctuation, single spaces."""
    steps: list[Any] = []
    if folder.setting("do_lower_case", bool, True):
        steps.append(normalizers.Lowercase())
    steps += [
        normalizers.Replace(Regex(PUNCTUATION), ""),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
    ]
    steps += [] if inner.normalizer is None else [inner.normalizer]
    inner.normalizer = normalizers.Sequence(steps)


def _t5(inner: Inner, folder: Folder) -> None:
    _sentence_pieces(inner, "always")


def _sentence_pieces(inner: Inner, scheme: Literal["always", "never"]) -> None:
    metaspace = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme)
    _set(
        inner,
        _charsmap(inner.normalizer),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace]),
        decoders.Metaspace(SPACE, prepend_scheme=scheme),
    )


def _charsmap(normalizer: normalizers.Normalizer | None) -> normalizers.Normalizer | None:
    """The character map of a SentencePiece model."""
    state: Any = normalizer.__getstate__() if normalizer is not None else b"{}"
    step: dict[str, Any] = json.loads(state)
    for inner_step in step.get("normalizers", [step]):
        if inner_step.get("type") == "Precompiled":
            return normalizers.Precompiled(b64decode(inner_step["precompiled_charsmap"]))
    return None


def _set(
    inner: Inner,
    normalizer: normalizers.Normalizer | None,
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    decoder: decoders.Decoder,
) -> None:
    inner.normalizer = normalizer
    inner.pre_tokenizer = pre_tokenizer
    inner.decoder = decoder


def _all(token: str, *roles: str) -> dict[str, str]:
    return {f"{role}_token": token for role in roles}


_BERT = {f"{key}_token": f"[{key.upper()}]" for key in ("unk", "sep", "pad", "cls", "mask")}
_ROBERTA = {
    **_all("<s>", "bos", "cls"),
    **_all("</s>", "eos", "sep"),
    **{f"{key}_token": f"<{key}>" for key in ("unk", "pad", "mask")},
}
_LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_GEMMA = {f"{key}_token": f"<{key}>" for key in ("unk", "bos", "eos", "pad", "mask")}
_T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_GPT2 = _all("<|endoftext|>", "unk", "bos", "eos")
_QWEN = _all("<|endoftext|>", "unk", "eos", "pad")

_CLIP = _all("<|endoftext|>", "unk", "eos", "pad") | {"bos_token": "<|startoftext|>"}

_TWO_ENDS = (("bos_token",), ("eos_token", "eos_token"), ("eos_token",))

CLASSES = {
    GENERIC: TokenizerClass(),
    "BertTokenizer": TokenizerClass(
        names=_BERT,
        model=models.WordPiece,
        rebuild=_bert,
        around=(("cls_token",), ("sep_token",), ("sep_token",)),
        second=1,
        types=True,
    ),
    "DistilBertTokenizer": TokenizerClass(
        names=_BERT,
        model=models.WordPiece,
        rebuild=_bert,
        around=(("cls_token",), ("sep_token",), ("sep_token",)),
        second=1,
    ),
    "CLIPTokenizer": TokenizerClass(names=_CLIP, model=models.BPE, rebuild=_clip, around=_TWO_ENDS),
    "GPT2Tokenizer": TokenizerClass(names=_GPT2, model=models.BPE, rebuild=_byte_level),
    "WhisperTokenizer": TokenizerClass(names=_GPT2, model=models.BPE, rebuild=_byte_level),
    "RobertaTokenizer": TokenizerClass(
        names=_ROBERTA,
        model=models.BPE,
        rebuild=_byte_level,
        around=(("cls_token",), ("sep_token", "sep_token"), ("sep_token",)),
    ),
    "GPTNeoXTokenizer": TokenizerClass(
        names=_GPT2 | {"pad_token": "<|padding|>"},
        model=models.BPE,
        rebuild=_gpt_neox,
        around=((), (), ()),
        second=1,
    ),
    "Qwen2Tokenizer": TokenizerClass(names=_QWEN, model=models.BPE, rebuild=partial(_qwen, QWEN)),
    "Qwen3_5Tokenizer": TokenizerClass(
        names=_QWEN, model=models.BPE, rebuild=partial(_qwen, QWEN3_5)
    ),
    "LlamaTokenizer": TokenizerClass(
        names=_LLAMA, model=models.BPE, rebuild=_llama, padding="left"
    ),
    "GemmaTokenizer": TokenizerClass(
        names=_GEMMA, model=models.BPE, rebuild=_gemma, padding="left"
    ),
    "Siglip2Tokenizer": TokenizerClass(
        names=_GEMMA, model=models.BPE, rebuild=_siglip2, padding="left"
    ),
    "T5Tokenizer": TokenizerClass(
        names=_T5,
        model=models.Unigram,
        rebuild=_t5,
        around=((), ("eos_token",), ("eos_token",)),
        unk_id=2,
    ),
    "SiglipTokenizer": TokenizerClass(
        names=_all("</s>", "eos", "pad") | {"unk_token": "<unk>"},
        model=models.Unigram,
        around=((), ("eos_token",), ("eos_token",)),
        first=_canonical,
    ),
    "XLMRobertaTokenizer": TokenizerClass(
        names=_ROBERTA, model=models.Unigram, rebuild=_fairseq, around=_TWO_ENDS, unk_id=3
    ),
    "CamembertTokenizer": TokenizerClass(
        names=_ROBERTA, model=models.Unigram, rebuild=_fairseq, around=_TWO_ENDS
    ),
    "MarianTokenizer": TokenizerClass(names=_T5),
}
"""The supported classes by name."""
