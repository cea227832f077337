"""The ids of a conversation, and which of them are answers."""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate

from addnorm.data.conversation import (
    BEGIN,
    END,
    PLACEHOLDERS,
    ChatPart,
    Conversation,
    Message,
    conversation,
    prompt_of,
    with_date,
)
from addnorm.data.tokenizing.codecs import LibraryCodec
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

Told = tuple[list[int], list[bool]]
"""The ids of a conversation, and whether each is answered."""


def ids_and_answers(tokenizer: Tokenizer, chat: Conversation) -> Told:
    """The ids of a conversation, and whether each is answered.

    It begins with the start token, or in a folder from Hugging Face as its template says.

    An answer is its text up to and with the first end token. Raises `InputError` for a message that
    spells a special token of the template, and where the tokenizer has no end.
    """
    if tokenizer.end_id is None:
        raise InputError("the tokenizer has no end token, so no answer to learn from would end")
    names = template_names(tokenizer)
    if chat.messages and names is not PLACEHOLDERS:
        chat = conversation(chat.messages, chat.template, names=names)
    return _encoded(tokenizer, chat, names)


def prompt_ids(
    tokenizer: Tokenizer, messages: Sequence[Message], template: str | None, *, dated: bool = False
) -> list[int]:
    """The ids of what a template writes before an answer, as in training.

    A `dated` template may write the date of today, as in transformers; in training none does.
    Raises `InputError` for a message that spells a special token of the template.
    """
    names = template_names(tokenizer)
    chat = prompt_of(messages, template, with_date(names) if dated else names)
    return _encoded(tokenizer, chat, names)[0]


def template_names(tokenizer: Tokenizer) -> Mapping[str, str]:
    """The special tokens that a template reads by name.

    Those of a tokenizer that was learnt here have no spelling but `BEGIN` and `END`; in an older
    run of a folder from Hugging Face they are what begins and ends its texts.
    """
    if tokenizer.before is None:
        return PLACEHOLDERS
    if tokenizer.names is not None:
        return tokenizer.names
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.end_id}
    named = {role: tokenizer.codec.name(i) for role, i in ids.items() if i is not None}
    return {role: name for role, name in named.items() if name is not None}


def _encoded(tokenizer: Tokenizer, chat: Conversation, names: Mapping[str, str]) -> Told:
    codec = tokenizer.codec
    if names is PLACEHOLDERS or not isinstance(codec, LibraryCodec):
        return _in_parts(tokenizer, chat.parts)
    _check_contents(tokenizer, codec, chat.contents)
    parts = [ChatPart(_spelt(part.text, names), part.is_answer) for part in chat.parts]
    return _as_a_whole(tokenizer, codec, parts)


def _in_parts(tokenizer: Tokenizer, parts: Sequence[ChatPart]) -> Told:
    """Each part by itself: a prompt ends where an answer is to begin, in use as in training."""
    known = {BEGIN: tokenizer.bos_id, END: tokenizer.end_id}
    ids: list[int] = []
    answered: list[bool] = []
    for part in parts:
        found: list[int] = []
        for piece in re.split(f"({BEGIN}|{END})", part.text):
            special = known.get(piece)
            found += tokenizer.encode(piece) if special is None else [special]
        ends = next((n for n, i in enumerate(found, 1) if i == tokenizer.end_id), len(found))
        ids += found
        answered += [part.is_answer and n < ends for n in range(len(found))]
    if ids[:1] == [tokenizer.bos_id]:
        return ids, answered
    return [tokenizer.bos_id, *ids], [False, *answered]


def _as_a_whole(tokenizer: Tokenizer, codec: LibraryCodec, parts: Sequence[ChatPart]) -> Told:
    """The whole text at once, with its special tokens, as a tokenizer from elsewhere reads it.

    Those tokens are answered that come after the ids of the text before an answer.
    """
    texts = [*accumulate(tokenizer.prepared(part.text) for part in parts)]
    *before, ids = codec.encode_marked(texts)
    stops = [*(_common(ids, some) for some in before), len(ids)]
    ends = {*tokenizer.eos_ids, tokenizer.end_id}
    answered: list[bool] = []
    for part, stop in zip(parts, stops, strict=True):
        found = ids[len(answered) : stop]
        last = next((n for n, i in enumerate(found, 1) if i in ends), len(found))
        answered += [part.is_answer and n < last for n in range(len(found))]
    return ids, answered


def _common(ids: Sequence[int], others: Sequence[int]) -> int:
    """How many ids two texts have in common before they differ."""
    pairs = enumerate(zip(ids, others, strict=False))
    return next((n for n, (i, j) in pairs if i != j), min(len(ids), len(others)))


def _spelt(text: str, names: Mapping[str, str]) -> str:
    """A part that was written without the names of the tokenizer, with them."""
    return text.replace(BEGIN, names.get("bos_token", "")).replace(END, names.get("eos_token", ""))


def _check_contents(tokenizer: Tokenizer, codec: LibraryCodec, contents: Sequence[str]) -> None:
    """Raise `InputError` for a message that spells a special token: it would be read as one."""
    added = codec.inner.get_added_tokens_decoder()
    special = [token for i, token in added.items() if i in tokenizer.special_ids]
    marks = [token.content for token in special]
    normalized = any(token.normalized for token in special)
    for content in contents:
        spelt = next((mark for mark in marks if mark in content), None)
        if spelt is None and normalized:  # "[sep]" may be the same there as "[SEP]"
            same = codec.encode_marked([content]) == codec.encode([content])
            spelt = None if same else content
        if spelt is not None:
            raise InputError(
                f"a message spells {spelt!r}, which is a token of its own: {content[:60]!r}"
            )
