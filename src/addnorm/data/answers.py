"""The ids of a conversation, and which of them are answers."""

import re

from addnorm.data.examples import BEGIN, END, Chat
from addnorm.data.tokenizers import Tokenizer
from addnorm.errors import InputError


def ids_and_answers(tokenizer: Tokenizer, chat: Chat) -> tuple[list[int], list[bool]]:
    """The ids of a conversation, and whether each is answered.

    It begins with the start token, or in a folder from Hugging Face as its template says.

    An answer is its text up to and with the first end token. Raises `InputError` for a message that
    spells a special token of the template, and where the tokenizer has no end.
    """
    marks = _marks(tokenizer)
    for content in chat.contents:
        if spelt := next((mark for mark in marks if mark in content), None):
            raise InputError(
                f"a message spells {spelt!r}, which is a token of its own: {content[:60]!r}"
            )
    ids: list[int] = []
    answered: list[bool] = []
    for part in chat.parts:
        found = _ids(tokenizer, part.text, marks)
        ends = next((n for n, i in enumerate(found, 1) if i in tokenizer.eos_ids), len(found))
        ids += found
        answered += [part.is_answer and n < ends for n in range(len(found))]
    started = _started(tokenizer, ids)
    return started, [False] * (len(started) - len(ids)) + answered


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids of what a template writes before an answer."""
    return _started(tokenizer, _ids(tokenizer, prompt, _marks(tokenizer)))


def _started(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """With the start token before; of a folder's tokenizer exactly what its template writes."""
    as_written = tokenizer.before is not None and ids
    return ids if as_written or ids[:1] == [tokenizer.bos_id] else [tokenizer.bos_id, *ids]


def _marks(tokenizer: Tokenizer) -> dict[str, int]:
    """What a template may write for tokens of their own: special tokens of a folder's tokenizer.

    Those of a tokenizer that was learnt here have no spelling but `BEGIN` and `END`.
    """
    if tokenizer.before is None:
        return {}
    names = {tokenizer.codec.name(i): i for i in sorted(tokenizer.special_ids)}
    return {name: i for name, i in names.items() if name}


def _ids(tokenizer: Tokenizer, text: str, marks: dict[str, int]) -> list[int]:
    if tokenizer.eos_id is None:
        raise InputError("the tokenizer has no end token, so no answer to learn from would end")
    known = {**marks, BEGIN: tokenizer.bos_id, END: tokenizer.eos_id}
    longest_first = sorted(known, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    found: list[int] = []
    for piece in pieces:
        if piece:
            found += [known[piece]] if piece in known else tokenizer.encode(piece)
    return found
