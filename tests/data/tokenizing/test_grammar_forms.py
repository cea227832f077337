"""A grammar that grows too large is an error in a moment, and says so."""

from time import process_time

import llguidance
import pytest

from addnorm.data.tokenizing.grammar_forms import error_of, matcher_of


class Bytes:
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")
    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


TOKENS = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


@pytest.mark.parametrize("regex", ["(a{1000}){1000}", "a{100000}"])
def test_too_large_is_an_error_in_a_moment(regex: str) -> None:
    grammar = llguidance.LLMatcher.grammar_from_regex(regex)
    start = process_time()
    matcher = matcher_of(grammar, TOKENS, "regex")
    matcher.compute_bitmask()
    assert not matcher.consume_token(ord("a"))
    assert process_time() - start < 0.25  # 30 ms; 500 ms without limits
    assert error_of(matcher).startswith("the grammar is too large (")


def test_an_error_of_another_kind_is_told_as_it_is() -> None:
    matcher = matcher_of(llguidance.LLMatcher.grammar_from_regex("("), TOKENS, "regex")
    assert "unclosed group" in error_of(matcher)
    assert "too large" not in error_of(matcher)
    assert not error_of(matcher_of(llguidance.LLMatcher.grammar_from_regex("a"), TOKENS, "regex"))
