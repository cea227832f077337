"""How large a grammar may be: the work that llguidance may do for one, while other answers wait."""

from typing import Any

from addnorm.errors import optional

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

TOO_LARGE = ("too big", "too many", "fuel exhausted", "Unable to determine", "items; max is")
"""What llguidance says where a grammar reaches a limit."""
MOST_SHOWN = 100
"""The most characters of a reason of llguidance, which may hold the whole grammar."""


def matcher_of(grammar: str, tokens: Any, needed_by: str) -> Any:
    """The beginning of a text of the grammar, as a matcher of llguidance over its `tokens`.

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
    """What is wrong with the grammar of a matcher; empty if nothing is."""
    reason = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    if any(sign in reason for sign in TOO_LARGE):
        return f"the grammar is too large ({reason[:MOST_SHOWN]})"
    return reason
