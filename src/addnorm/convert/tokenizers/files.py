"""Loading the tokenizers of a Hugging Face folder, and saving them as `tokenizer.json`.

Which tokens begin and end what a model generates is decided by `generation_file` alone; the padding
of the model by `config.json`; all other special tokens by `tokenizer_config.json` and
`special_tokens_map.json`, and by the usual names of tokens.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from warnings import warn

import tokenizers
from tokenizers import AddedToken, models, processors

from addnorm.convert.tokenizers.classes import (
    CLASSES,
    GENERIC,
    NAMED,
    OF_MODEL,
    OVERRULED,
    TokenizerClass,
    class_name,
    special_names,
)
from addnorm.convert.tokenizers.layouts import (
    CTC,
    GENERATION,
    JSON,
    LAYOUTS,
    NAMES,
    SETTINGS,
    TARGET,
    Folder,
    Wraps,
    generation_file,
    layouts_of,
    read_object,
    symbols_of,
    token_name,
)
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import IgnoredSettings, InputError

ENCODERS = (
    "bert", "roberta", "xlm-roberta", "camembert", "distilbert", "modernbert", "clip",
    "clip_text_model", "siglip",
)  # fmt: skip
READ_PADDING = ("siglip",)
"""Model types that read the padding behind a text like any other token."""
DOUBLED = ("roberta", "longformer", "bart", "xlm-roberta", "camembert")
"""Model types that end the first text of a pair twice, and have no types of sentences."""
SEQ2SEQ = ("t5", "mt5", "umt5", "marian", "bart", "mbart", "m2m_100", "pegasus", "whisper")


@dataclass(frozen=True)
class Role:
    """How to find a special token: by keys in the settings, or by its usual names."""

    settings: tuple[str, ...]
    usual: tuple[str, ...]


ROLES = {
    "pad": Role(("pad_token",), ("<pad>", "[PAD]")),
    "unk": Role(("unk_token",), ("<unk>", "[UNK]")),
    "bos": Role(
        ("bos_token", "cls_token"),
        ("<s>", "<bos>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    ),
    "eos": Role(
        ("eos_token", "sep_token"),
        ("</s>", "<eos>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    ),
    "mask": Role(("mask_token",), ("<mask>", "[MASK]")),
}


def load_tokenizers(
    folder: Path,
    model_type: str,
    config: Mapping[str, Any],
    *,
    generates: Path | None = None,
) -> Tokenizers | None:
    """The tokenizers of a folder with this `config.json`; None if it has no tokenizer files.

    `generates` is the folder that decides how the model generates, if it is another one. The ids
    are those of `AutoTokenizer` in transformers 5. One `IgnoredSettings` warning lists the keys of
    `tokenizer_config.json` that are ignored. Raises `InputError` naming a damaged file, or a
    missing one in an incomplete layout.
    """
    place = generates or folder
    own = generation_file(place) == GENERATION
    generation = read_object(place / GENERATION) if own else config
    settings = read_object(folder / SETTINGS)
    if "added_tokens_decoder" not in settings:  # as older folders are
        settings |= read_object(folder / NAMES)
    here = Folder(folder, model_type, config, generation, settings)
    name = class_name(here)
    kind = CLASSES.get(name, CLASSES[GENERIC])
    here = replace(here, names=special_names(here, kind))
    layouts = layouts_of(model_type)
    for needs, read in layouts.items():
        if all(map(here.has, needs)):
            sides = [_tokenizer(here, kind, inner, wraps) for inner, wraps in read(here, *needs)]
            _check_padding(here)
            _warn_of_ignored(here, name, sides[0])
            return Tokenizers(sides[0], sides[-1])
    best = max(layouts, key=lambda needs: sum(map(here.has, needs)))
    present = [name for name in best if here.has(name)]
    if present:
        missing = [name for name in best if name not in present]
        raise InputError(f"{folder} has {' and '.join(present)}, but no {' and '.join(missing)}")
    return None


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has any tokenizer file."""
    return any((folder / name).exists() for needs in LAYOUTS for name in needs)


def _check_padding(folder: Folder) -> None:
    """Raise `InputError` for padding on the left in a model that reads padding."""
    if folder.model_type in READ_PADDING and folder.settings.get("padding_side") == "left":
        raise InputError(
            f"{folder.path / SETTINGS}: padding_side = left is not supported: this model reads "
            "the padding, which stands behind a text: give padding_side = right"
        )


def _warn_of_ignored(folder: Folder, name: str, tokenizer: Tokenizer) -> None:
    """Warn of tokenizer settings that transformers applies and this loader does not."""
    left: list[str] = []
    settings, kind = folder.settings, CLASSES.get(name)
    model = type(tokenizer.inner.model)
    if folder.has(JSON) and (kind is None or not kind.can_read(tokenizer.inner, folder.names)):
        left.append(f"tokenizer_class = {name} ({JSON} is used unchanged)")
    reads = folder.model_type in ENCODERS  # and writes nothing
    chats = folder.has("chat_template.jinja") or settings.get("chat_template") is not None
    left += _left_of_tokens(folder, kind, tokenizer)
    pads_before = kind is not None and kind.padding == "left" and "padding_side" not in settings
    if folder.model_type in READ_PADDING and pads_before:
        left.append(f"padding before a text, as {name} has it (this model reads it behind a text)")
    for key, follows, why in (
        ("truncation_side", "right", "a text is shortened at its end"),
        ("padding_side", "right" if reads else "left", "padding has no effect"),
        ("split_special_tokens", not chats, "those of a chat template are parsed"),
        ("clean_up_tokenization_spaces", reads or model is models.BPE, "spaces stay"),
        ("auto_map", None, "no code of a folder is run"),
        *((key, None, "the file decides") for key in ("language", "task", "predict_timestamps")),
    ):
        value = settings.get(key)
        if value not in (None, False, follows) and (key, value) != ("padding_side", "right"):
            left.append(f"{key} = {value} ({why})")
    if left:
        where = folder.path / SETTINGS
        warn(f"{where}: not followed: {', '.join(left)}", IgnoredSettings, stacklevel=3)


def _left_of_tokens(
    folder: Folder, kind: TokenizerClass | None, tokenizer: Tokenizer
) -> Iterator[str]:
    """Yield the differences between transformers' treatment of added tokens and ours."""
    settings = folder.settings
    if not folder.has(JSON):
        starts = {settings.get(f"add_{role}_token") for role in ("bos", "eos")}
        if folder.has("tokenizer.model") and starts == {None} and tokenizer.before:
            first = tokenizer.codec.name(tokenizer.before[0])
            yield f"add_bos_token is missing (a text begins with {first}, as such models learned)"
        return
    if "added_tokens_decoder" not in settings or kind is None or kind.rebuild is None:
        return
    listed = {token.content for _, token in _added(folder)} | {*folder.names.values()}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed |= {token_name(token) for token in settings.get(key) or ()}
    added = tokenizer.inner.get_added_tokens_decoder().values()
    if more := [token.content for token in added if token.content not in listed]:
        yield f"added_tokens_decoder without {', '.join(more)} ({JSON} has more)"


def save_tokenizer(folder: Path, tokenizers: Tokenizers, *, model_type: str, max_len: int) -> None:
    """Save a tokenizer so that transformers' `AutoTokenizer` gives the ids that the model expects.

    A separate target tokenizer is saved as `target.tokenizer.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = _with_template(tokenizers.source, model_type)
    _write(folder / JSON, source.to_str(pretty=True))
    (folder / TARGET).unlink(missing_ok=True)
    if tokenizers.target is not tokenizers.source:
        target = _with_template(tokenizers.target, model_type)
        _write(folder / TARGET, target.to_str(pretty=True))
    names = _names(source, tokenizers.source)
    types = ["token_type_ids"] if model_type == "bert" else []
    # Null, so that a class of transformers adds no default token.
    settings: dict[str, Any] = (
        dict.fromkeys(NAMED)
        | names
        | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_len,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", *types, "attention_mask"],
            "padding_side": "right" if model_type in (*ENCODERS, *SEQ2SEQ) else "left",
            # Our models never parse special tokens in a text.
            "split_special_tokens": tokenizers.source.before is None,
        }
    )
    if model_type in CTC and (spelling := symbols_of(source)) is not None:
        symbols, space = spelling
        _write(folder / VOCABULARY, json.dumps(symbols, ensure_ascii=False, indent=2) + "\n")
        (folder / JSON).unlink()  # the class of transformers reads the other file alone
        settings |= {"tokenizer_class": SPELLER, "word_delimiter_token": space}
    _warn_of_class(folder, model_type, source)
    _write(folder / NAMES, json.dumps(names, ensure_ascii=False, indent=2) + "\n")
    _write(folder / SETTINGS, json.dumps(settings, ensure_ascii=False, indent=2) + "\n")


def _warn_of_class(folder: Path, model_type: str, inner: tokenizers.Tokenizer) -> None:
    """Warn if transformers reads this model type with a class that changes the tokenizer."""
    if model_type not in OVERRULED:
        return
    name = OF_MODEL[model_type]
    kind, own = CLASSES[name], tokenizers.Tokenizer.from_str(inner.to_str())
    if kind.rebuild is not None:
        kind.rebuild(own, Folder(folder, model_type, {}, {}, {}))
    if any(repr(getattr(own, step)) != repr(getattr(inner, step)) for step in STEPS):
        warn(
            f"{folder / JSON}: transformers reads the tokenizer of every {model_type} folder as "
            f"{name}, which splits a text differently: its ids will differ there",
            IgnoredSettings,
            stacklevel=3,
        )


VOCABULARY, SPELLER = "vocab.json", "Wav2Vec2CTCTokenizer"
"""The file of symbols, and the class of transformers that reads it."""

STEPS = ("normalizer", "pre_tokenizer", "decoder")
"""The parts of a tokenizer that a class of transformers may replace."""


def special_ids(tokenizers: Tokenizers, model_type: str) -> dict[str, Any]:
    """The special token ids for `config.json` and `generation_config.json`."""
    target = tokenizers.target
    before = target.before if model_type in SEQ2SEQ else None
    ids: dict[str, Any] = {"bos_token_id": before[0] if before else target.bos_id}
    if target.pad_id in target.special_ids:
        ids["pad_token_id"] = target.pad_id
    if target.eos_id is not None:
        ids["eos_token_id"] = target.eos_id if len(target.eos_ids) == 1 else [*target.eos_ids]
    if model_type in SEQ2SEQ:
        ids["decoder_start_token_id"] = target.bos_id
    if target.never_ids:
        ids["bad_words_ids"] = [[i] for i in target.never_ids]
    return ids


def _tokenizer(
    folder: Folder, kind: TokenizerClass, inner: tokenizers.Tokenizer, wraps: Wraps | None
) -> Tokenizer:
    inner.no_truncation()
    inner.no_padding()
    if wraps is not None and not kind.names:
        folder = replace(folder, names={**_names_of_pieces(folder, inner), **folder.names})
    if folder.model_type not in CTC:  # there, no frame is a token that is added
        _add_tokens(folder, inner)
    _mark_special(folder, inner, usual=wraps is not None)
    # Without tokenizer.json, the steps are those of SentencePiece, which has more of them.
    as_first = wraps is not None and isinstance(inner.model, models.Unigram)
    followed = not as_first and kind.can_read(inner, folder.names)
    if kind.rebuild is not None and followed:
        kind.rebuild(inner, folder)
    if kind.first is not None:
        kind.first(inner, folder)
    if wraps is None:
        if kind.around is not None and followed:
            _set_around(folder, inner, kind)
    else:
        _set_wraps(folder, inner, kind, wraps)
    listed = folder.settings.get("model_input_names")
    if "token_type_ids" not in listed if isinstance(listed, list) else not kind.types:
        _drop_types(inner)
    before, after = _around(inner)
    pad, unk, bos, end = (_named(folder, inner, role) for role in ("pad", "unk", "bos", "eos"))
    starts = ("decoder_start_token_id",) if folder.model_type in SEQ2SEQ else ()
    pad = _ids(folder, inner, folder.config, "pad_token_id") or pad
    bos = _ids(folder, inner, folder.generation, *starts, "bos_token_id") or bos
    eos = _ids(folder, inner, folder.generation, "eos_token_id")
    # GPT-2 names its end token as the unknown token too, which it never needs.
    unk = [i for i in _own_unknown(inner) or unk if i not in (*bos, *eos, *end)]
    tokenizer = Tokenizer(
        inner,
        pad_id=pad[0] if pad else None,
        unk_id=unk[0] if unk else None,
        bos_id=(bos or end or [None])[0],
        eos_ids=tuple(eos),
        never_ids=_never(folder),
        before=before,
        after=after,
    )
    return tokenizer.named(folder.names, end[0] if end else None)


def _names_of_pieces(folder: Folder, inner: tokenizers.Tokenizer) -> dict[str, str]:
    """The special tokens in a SentencePiece model's vocabulary, for a generic class."""
    usual = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    own = {key: name for key, name in usual.items() if key not in folder.settings}
    return {key: name for key, name in own.items() if inner.token_to_id(name) is not None}


def _own_unknown(inner: tokenizers.Tokenizer) -> list[int]:
    """The id of the unknown token, if the tokenizer model has one."""
    token = getattr(inner.model, "unk_token", None)
    i = None if token is None else inner.model.token_to_id(token)
    return [] if i is None else [i]


def _set_around(folder: Folder, inner: tokenizers.Tokenizer, kind: TokenizerClass) -> None:
    """Add a class's special tokens around a text, or the file's if one is missing."""
    assert kind.around is not None
    ids = {role: inner.token_to_id(token) for role, token in folder.names.items()}
    present = {role: i for role, i in ids.items() if i is not None}
    if all(role in present for part in kind.around for role in part):
        before, between, after = ([present[role] for role in part] for part in kind.around)
        inner.post_processor = _template(
            inner, before, after, between=between, alike=not kind.second
        )


def _set_wraps(
    folder: Folder, inner: tokenizers.Tokenizer, kind: TokenizerClass, wraps: Wraps
) -> None:
    """Add the start and end tokens around a text, if no tokenizer file defines them."""
    starts, ends = (folder.setting(f"add_{role}_token", bool) for role in ("bos", "eos"))
    if (starts is not None or ends is not None) and not any(kind.around or ()):
        wraps = (starts is True, ends is True)
    bos, eos = _named(folder, inner, "bos")[: wraps[0]], _named(folder, inner, "eos")[: wraps[1]]
    alike = folder.model_type in DOUBLED
    inner.post_processor = _template(inner, bos, eos, alike=alike)


def _never(folder: Folder) -> tuple[int, ...]:
    """Tokens that must never be generated (Marian's padding), if the model has them."""
    match folder.generation.get("bad_words_ids"):
        case [*words] if all(isinstance(word, list) for word in words):
            token_ids = [word[0] for word in words if len(word) == 1 and type(word[0]) is int]
        case _:
            token_ids = []
    size = folder.config.get("decoder_vocab_size") or folder.config.get("vocab_size")
    return tuple(sorted({i for i in token_ids if i >= 0 and (type(size) is not int or i < size)}))


def _add_tokens(folder: Folder, inner: tokenizers.Tokenizer) -> None:
    """Add the tokens outside of the base vocabulary, with their ids and flags."""
    present = {token.content: token for token in inner.get_added_tokens_decoder().values()}
    for i, token in sorted(_added(folder), key=lambda added: added[0]):
        if token.content in present:
            if repr(present[token.content]) != repr(token):
                inner.add_tokens([token])  # the same id, with the flags of the settings
            continue
        inner.add_tokens([token])
        if (actual := inner.token_to_id(token.content)) != i:
            raise InputError(f"{folder.path}: {token.content!r} has id {actual}, expected {i}")


def _added(folder: Folder) -> Iterator[tuple[int, AddedToken]]:
    listed: dict[str, Any] = folder.setting("added_tokens_decoder", dict, {})
    for i, token in listed.items():
        try:
            flags = {key: token[key] for key in ADDED_FLAGS if key in token}
            yield int(i), AddedToken(token["content"], **flags)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{folder.path / SETTINGS}: added token {i} is {token!r}") from error
    if not listed and folder.has("added_tokens.json"):
        for content, i in read_object(folder.path / "added_tokens.json").items():
            if type(i) is not int:
                raise InputError(f"{folder.path / 'added_tokens.json'}: {content!r} has no id: {i}")
            yield i, AddedToken(content)


ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _mark_special(folder: Folder, inner: tokenizers.Tokenizer, *, usual: bool) -> None:
    """Mark the tokens named in the settings as special.

    With `usual`, roles that are still unassigned go to tokens with a usual name.
    """
    given: list[Any] = [folder.settings.get(key) or name for key, name in folder.names.items()]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = folder.settings.get(key) or []
        if not isinstance(more, list | dict):
            raise InputError(f"{folder.path / SETTINGS}: {key} is {more!r}, not a list")
        given += more.values() if isinstance(more, dict) else more
    _mark(folder, inner, given)
    for role in ROLES if usual else ():
        if not _named(folder, inner, role):
            _mark(folder, inner, _present(inner, ROLES[role].usual))


def _present(inner: tokenizers.Tokenizer, names: Sequence[str]) -> list[str]:
    return [name for name in names if inner.token_to_id(name) is not None]


def _mark(folder: Folder, inner: tokenizers.Tokenizer, values: Sequence[Any]) -> None:
    """Mark tokens as special, keeping their flags; add missing ones if the model has room.

    A token that is neither in the vocabulary nor has a row in the model stays unknown.
    """
    added = {token.content: token for token in inner.get_added_tokens_decoder().values()}
    for value in values:
        name = token_name(value)
        old = added.get(name) if name else None
        room = folder.config.get("vocab_size")
        fits = type(room) is int and inner.get_vocab_size() < room
        if not name or (old is not None and old.special):
            continue
        if old is None and inner.token_to_id(name) is None and not fits:
            continue
        flags = _flags(value) if old is None else _flags(old.__getstate__())
        token = AddedToken(name, **flags | {"special": True})
        inner.add_special_tokens([token])
        added[name] = token


def _flags(token: Any) -> dict[str, bool]:
    """The flags of a token in the settings, if it is an object there; else the default ones."""
    usual = {"normalized": False}
    given = token if isinstance(token, dict) else {}
    return usual | {key: given[key] for key in ADDED_FLAGS if type(given.get(key)) is bool}


def _named(folder: Folder, inner: tokenizers.Tokenizer, role: str) -> list[int]:
    """The id of the special token named for a role, if any."""
    added = inner.get_added_tokens_decoder()
    special = {token.content: i for i, token in added.items() if token.special}
    names = [folder.names.get(key) for key in ROLES[role].settings]
    return [special[name] for name in (*names, *ROLES[role].usual) if name in special][:1]


def _ids(
    folder: Folder, inner: tokenizers.Tokenizer, config: Mapping[str, Any], *keys: str
) -> list[int]:
    """The ids under the first of these keys that has any in the vocabulary."""
    for key in keys:
        value = config.get(key)
        ids: list[Any] = value if isinstance(value, list) else [value]
        if wrong := [i for i in ids if not (i is None or type(i) is int)]:
            raise InputError(f"{folder.path}: {key} = {wrong[0]!r} must be the id of a token")
        valid_ids = [
            i for i in ids if i is not None and i >= 0 and inner.id_to_token(i) is not None
        ]
        if valid_ids:
            return list(dict.fromkeys(valid_ids))
    return []


def _template(
    inner: tokenizers.Tokenizer,
    before: Sequence[int],
    after: Sequence[int],
    *,
    between: Sequence[int] | None = None,
    alike: bool = False,
) -> processors.PostProcessor:
    """The post-processor that adds tokens around a text, and between and after a pair.

    RoBERTa ends the first text twice, and gives both texts of a pair one type, `alike`.
    """
    between = (
        (*after, *after) if between is None and alike else after if between is None else between
    )
    ids = {*before, *between, *after}
    kind = 0 if alike else 1
    return processors.TemplateProcessing(
        single=[*_typed(before), "$A:0", *_typed(after)],
        pair=[*_typed(before), "$A:0", *_typed(between), f"$B:{kind}", *_typed(after, kind)],
        special_tokens=[{"id": str(i), "ids": [i], "tokens": [_token(inner, i)]} for i in ids],
    )


def _typed(ids: Sequence[int], kind: int = 0) -> list[str]:
    return [f"{i}:{kind}" for i in ids]


def _drop_types(inner: tokenizers.Tokenizer) -> None:
    """Give both texts of a pair the same type, for a model with a single type."""
    one_token = tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a")).encode("a")
    processed = inner.post_process(one_token, one_token)
    if any(processed.type_ids):
        at, then = (i for i, special in enumerate(processed.special_tokens_mask) if not special)
        before, after = _around(inner)
        inner.post_processor = _template(
            inner, before, after, between=processed.ids[at + 1 : then], alike=True
        )


def _token(inner: tokenizers.Tokenizer, i: int) -> str:
    token = inner.id_to_token(i)
    assert token is not None
    return token


def _around(inner: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids added before and after each text."""
    one_token = tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a")).encode("a")
    processed = inner.post_process(one_token)
    at = processed.special_tokens_mask.index(0)
    return tuple(processed.ids[:at]), tuple(processed.ids[at + 1 :])


def _with_template(tokenizer: Tokenizer, model_type: str) -> tokenizers.Tokenizer:
    """A copy of the tokenizer that adds the special tokens our models expect."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    if tokenizer.begins is not None:  # of a language model
        inner.post_processor = _template(inner, tokenizer.begins, [])
    elif tokenizer.before is None:
        before = [] if model_type in SEQ2SEQ else [tokenizer.bos_id]
        after = tokenizer.eos_ids[:1] if model_type in (*ENCODERS, *SEQ2SEQ) else []
        inner.post_processor = _template(inner, before, after)
    return inner


def _names(inner: tokenizers.Tokenizer, tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens by their names in transformers, from the tokenizer or from their roles."""
    if tokenizer.names is not None:
        return dict(tokenizer.names)
    before, after = _around(inner)
    ids = {
        "pad_token": tokenizer.pad_id,
        "unk_token": tokenizer.unk_id,
        "eos_token": tokenizer.end_id,
    }
    first = before[0] if before else tokenizer.bos_id
    if first != tokenizer.pad_id:  # T5 starts from padding, which is not a bos token
        ids["bos_token"] = first
    if before and after:
        ids |= {"cls_token": before[0], "sep_token": after[-1]}
    masks = (inner.token_to_id(name) for name in ROLES["mask"].usual)
    ids["mask_token"] = next((i for i in masks if i is not None), None)
    special = tokenizer.special_ids
    return {key: _token(inner, i) for key, i in ids.items() if i is not None and i in special}


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
