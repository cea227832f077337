"""Conversations as ids, with marks on the ids of answers, which a model learns."""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate

from addnorm.data.chat_input import ChatInput
from addnorm.data.conversation import (
    BEGIN,
    END,
    PLACEHOLDERS,
    ChatPart,
    Conversation,
    Message,
    conversation,
    prompt_of,
    whole_prompt,
    with_date,
)
from addnorm.data.tokenizing.codecs import LibraryCodec
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

IdsAndAnswers = tuple[list[int], list[bool]]
"""The ids of a conversation, and whether each belongs to an answer."""


def ids_and_answers(tokenizer: Tokenizer, chat: Conversation) -> IdsAndAnswers:
    """Return the ids of a conversation, and whether each id belongs to an answer.

    The first id is the start token; with a template from Hugging Face, the template's first one. An
    answer is its text up to and including the first end token. Raises `InputError` for a message
    that spells a special token of the template, and for a tokenizer without an end token.
    """
    if tokenizer.end_id is None:
        raise InputError("the tokenizer has no end token, so no answer to learn from would end")
    names = template_names(tokenizer)
    if chat.messages and names is not PLACEHOLDERS:
        chat = conversation(chat.messages, chat.template, names=names)
    return _encoded(tokenizer, chat, names)


def prompt_ids(
    tokenizer: Tokenizer,
    messages: ChatInput | Sequence[Message],
    template: str | None,
    *,
    dated: bool = False,
) -> list[int]:
    """Return the ids of the prompt before an answer, encoded as in training.

    A `dated` template may write today's date, as in transformers; in training none does.
    Raises `InputError` for a message that spells a special token of the template, and for tools
    that the template leaves out.
    """
    names = template_names(tokenizer)
    given = with_date(names) if dated else names
    asked = messages if isinstance(messages, ChatInput) else ChatInput(messages)
    asked = asked.for_template(template, given)
    named = {**given, "tools": [*asked.tools]} if asked.tools else given
    read = whole_prompt if _encodes_whole(tokenizer, names) else prompt_of
    return _encoded(tokenizer, read(asked.messages, template, named), names)[0]


def template_names(tokenizer: Tokenizer) -> Mapping[str, str]:
    """Return the special tokens that a template may use, by name.

    For a tokenizer that was learnt here they are `BEGIN` and `END`; in an older run of a folder
    from Hugging Face, the tokens that begin and end its texts.
    """
    if tokenizer.before is None:
        return PLACEHOLDERS
    if tokenizer.names is not None:
        return tokenizer.names
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.end_id}
    named = {role: tokenizer.codec.name(i) for role, i in ids.items() if i is not None}
    return {role: name for role, name in named.items() if name is not None}


def _encodes_whole(tokenizer: Tokenizer, names: Mapping[str, str]) -> bool:
    """Whether a conversation is encoded as one text, and not part by part."""
    return names is not PLACEHOLDERS and isinstance(tokenizer.codec, LibraryCodec)


def _encoded(tokenizer: Tokenizer, chat: Conversation, names: Mapping[str, str]) -> IdsAndAnswers:
    codec = tokenizer.codec
    if names is PLACEHOLDERS or not isinstance(codec, LibraryCodec):
        return _in_parts(tokenizer, chat.parts)
    _check_contents(tokenizer, codec, chat.contents)
    parts = [ChatPart(_spelt(part.text, names), part.is_answer) for part in chat.parts]
    return _as_a_whole(tokenizer, codec, parts)


def _in_parts(tokenizer: Tokenizer, parts: Sequence[ChatPart]) -> IdsAndAnswers:
    """Encode each part separately, so that a prompt has the same ids as in training."""
    special_ids = {BEGIN: tokenizer.bos_id, END: tokenizer.end_id}
    ids: list[int] = []
    answered: list[bool] = []
    for part in parts:
        part_ids: list[int] = []
        for piece in re.split(f"({BEGIN}|{END})", part.text):
            special = special_ids.get(piece)
            part_ids += tokenizer.encode(piece) if special is None else [special]
        ends = next((n for n, i in enumerate(part_ids, 1) if i == tokenizer.end_id), len(part_ids))
        ids += part_ids
        answered += [part.is_answer and n < ends for n in range(len(part_ids))]
    if ids[:1] == [tokenizer.bos_id]:
        return ids, answered
    return [tokenizer.bos_id, *ids], [False, *answered]


def _as_a_whole(
    tokenizer: Tokenizer, codec: LibraryCodec, parts: Sequence[ChatPart]
) -> IdsAndAnswers:
    """Encode the whole text at once, including special tokens, as imported tokenizers expect.

    An answer's ids are those after the ids of the text before it.
    """
    texts = [*accumulate(tokenizer.prepared(part.text) for part in parts)]
    *before, ids = codec.encode_marked(texts)
    stops = [*(_common(ids, text_ids) for text_ids in before), len(ids)]
    ends = {*tokenizer.eos_ids, tokenizer.end_id}
    answered: list[bool] = []
    for part, stop in zip(parts, stops, strict=True):
        part_ids = ids[len(answered) : stop]
        last = next((n for n, i in enumerate(part_ids, 1) if i in ends), len(part_ids))
        answered += [part.is_answer and n < last for n in range(len(part_ids))]
    return ids, answered


def _common(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of leading ids that two texts share."""
    pairs = enumerate(zip(ids, others, strict=False))
    return next((n for n, (i, j) in pairs if i != j), min(len(ids), len(others)))


def _spelt(text: str, names: Mapping[str, str]) -> str:
    """Return a part's text with the tokenizer's start and end tokens in place of the markers."""
    return text.replace(BEGIN, names.get("bos_token", "")).replace(END, names.get("eos_token", ""))


def _check_contents(tokenizer: Tokenizer, codec: LibraryCodec, contents: Sequence[str]) -> None:
    """Raise `InputError` for a message that contains the spelling of a special token."""
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
                f"a message spells {spelt!r}, which is a special token: {content[:60]!r}"
            )
