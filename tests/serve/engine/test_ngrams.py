"""Prompt lookup: a draft is copied from the place where the last tokens stood before."""

from hypothesis import given
from hypothesis import strategies as st

from addnorm.serve.engine.ngrams import NGrams


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 9))
def test_the_draft_is_what_followed_the_last_tokens_before(text: list[int], n: int) -> None:
    ngrams = NGrams()
    ngrams.read(text[: len(text) // 2])
    ngrams.read(text)
    expected: tuple[int, ...] = ()
    for size in (4, 2):
        places = [i for i in range(size, len(text)) if text[i - size : i] == text[-size:]]
        if places and len(text) > size:
            later = text[places[-1] :]
            expected = tuple(later[i % len(later)] for i in range(n))
            break
    assert ngrams.draft(text, n) == expected
