"""Conversion of JSON schemas, expressions and choices to llguidance grammars, with size limits.

A text may follow one from its first token to its last (`grammars`). A limit is the work that a
server may do for one grammar while other answers wait.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from addnorm.errors import InputError, optional

LEXER_START = 100_000
"""The steps to read the expressions of a grammar: about 2 ms."""
LEXER_STEP = 10_000
"""The expressions made for one token: in the worst case measured, `(a{1000}){1000}`, 26 ms."""
LEXER_STATES = 50_000
"""The states kept for one answer, each of 1 or 2 KB."""
ROW = 4_000
"""What may come next at one place: about 1,000 optional properties."""
SYMBOLS = 20_000
"""The symbols of a grammar: about 1,700 optional properties, compiled in 0.2 s."""

MOST_CHARACTERS = 2**17
"""The characters of a grammar."""

WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""What may stand between the parts of JSON: bounded, or a weak model might write nothing else."""

TOO_LARGE = ("too big", "too many", "fuel exhausted", "Unable to determine", "items; max is")
"""What llguidance says where a grammar reaches a limit."""
MOST_SHOWN = 100
"""The most characters of a reason of llguidance, which may hold the whole grammar."""


def grammar_of_schema(schema: dict[str, Any], field: str) -> str:
    """The grammar of JSON texts that fit a schema; `field` names its origin in messages."""
    white_space = {"whitespace_pattern": WHITE_SPACE}
    return _matcher(field).grammar_from_json_schema(json.dumps(schema), defaults=white_space)


def grammar_of_regex(regex: str, field: str) -> str:
    """The grammar of texts that match a regular expression completely."""
    return _matcher(field).grammar_from_regex(regex)


def grammar_of_choices(texts: Sequence[str], field: str) -> str:
    """The grammar whose texts are exactly these choices."""
    quoted = (json.dumps(text, ensure_ascii=False) for text in texts)
    return grammar_of_lark(f"start: {' | '.join(quoted)}", field)


def grammar_of_lark(lark: str, field: str) -> str:
    """The grammar written in llguidance's Lark syntax."""
    return _matcher(field).grammar_from_lark(lark)


def _matcher(field: str) -> Any:
    return optional("llguidance", "structured", field).LLMatcher


def check_grammar(grammar: str, field: str) -> None:
    """Raise `InputError` for a grammar that is wrong or too large, tested with the first byte."""
    if len(grammar) > MOST_CHARACTERS:
        raise InputError(f"{field}: {len(grammar):,} characters: at most {MOST_CHARACTERS:,}")
    matcher = matcher_of(grammar, _bytes(), field)
    if not matcher.is_error():
        allowed = int.from_bytes(matcher.compute_bitmask(), "little") & (1 << N_BYTES) - 1
        if allowed:
            matcher.consume_token((allowed & -allowed).bit_length() - 1)
    if matcher.is_error():
        raise InputError(f"{field}: {error_of(matcher)}")


def matcher_of(grammar: str, tokens: Any, needed_by: str) -> Any:
    """The llguidance matcher at the start of a text of the grammar, over these `tokens`.

    A grammar that is wrong or too large makes a matcher with an error, at once or later.
    """
    library = optional("llguidance", "structured", needed_by)
    limits = library.LLParserLimits(
        initial_lexer_fuel=LEXER_START,
        step_lexer_fuel=LEXER_STEP,
        max_items_in_row=ROW,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=SYMBOLS,
        verbose_errors=False,
    )
    return library.LLMatcher(tokens, grammar, log_level=0, limits=limits)


def error_of(matcher: Any) -> str:
    """The error in a matcher's grammar; empty if there is none."""
    reason = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    if any(sign in reason for sign in TOO_LARGE):
        return f"the grammar is too large ({reason[:MOST_SHOWN]})"
    return reason


@cache
def _bytes() -> Any:
    """A vocabulary of all bytes for llguidance, to check grammars without a model."""
    library = optional("llguidance", "structured", "structured output")
    return library.LLTokenizer(library.TokenizerWrapper(_Bytes()))


N_BYTES = 256


class _Bytes:
    """A vocabulary of bytes in the form that llguidance reads."""

    tokens = (*(bytes([i]) for i in range(N_BYTES)), b"<end>")
    eos_token_id, bos_token_id = N_BYTES, None
    special_token_ids = (N_BYTES,)

    def __call__(self, text: bytes) -> list[int]:
        """Return the ids of a text."""
        return list(text)
