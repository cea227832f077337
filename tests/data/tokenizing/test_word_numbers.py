"""Words found by hashes are the words found one by one, whatever their bytes and length."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.data.tokenizing import word_numbers
from addnorm.data.tokenizing.word_numbers import ALONE, BEGIN, WordNumbers, count_words
from addnorm.errors import InputError

TEXTS = st.lists(
    st.lists(st.text(st.sampled_from("aüé中\0 \n\xa0\u3000."), max_size=40)).map(" ".join),
    min_size=1,
)


def one_by_one(text: str) -> list[str]:
    """The words of a text, the first with its sign; spaces at its ends belong to its words."""
    return [f"{BEGIN * (n == 0)}{word}" for n, word in enumerate(ALONE.split(text))]


def words_of(texts: list[str], words: WordNumbers) -> list[list[str]]:
    found = words.of(texts)
    assert found is not None
    names = [word.decode() for word in words]
    read = [names[n] for n in found[0]]
    stops = [*found[1][1:].tolist(), len(read)]
    return [read[start:stop] for start, stop in zip(found[1].tolist(), stops, strict=True)]


@pytest.mark.parametrize("slots", [1, 4, 2**16])
@settings(max_examples=60)
@given(batches=st.lists(TEXTS, max_size=3))
def test_words_are_those_of_each_text(slots: int, batches: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_numbers, "SLOTS", slots)
        words = WordNumbers()
        for texts in batches:
            assert words_of(texts, words) == [one_by_one(text) for text in texts]


def test_words_that_differ_in_one_byte_or_at_their_end() -> None:
    draw = random.Random(0)
    stem = "".join(draw.choices("abcdefgh", k=200))
    ends = [f"{stem[:n]}{end}" for n in range(200) for end in ("", "x", "y", "\0")]
    ends += [f"{stem[:n]}_{stem[n + 1 : 130]}" for n in range(130)]
    texts = [" ".join(draw.sample(ends, len(ends))) for _ in range(3)]
    words = WordNumbers()
    for _ in range(2):  # met before, or not
        assert words_of(texts, words) == [one_by_one(text) for text in texts]


def test_counts_are_those_of_a_counter() -> None:
    texts = ["a b a", "b", "", " c d\n", "e\1 f", "g \2 h"] * 30_000
    counts, expected = count_words([*texts, "中 ü 中"]), Counter[str]()
    for text in (*texts, "中 ü 中"):
        whole = BEGIN in text or "\2" in text
        expected.update([text] if whole else ALONE.split(text))
    met = Counter[str]()  # texts beside one with a sign are words too
    for word, n in counts.items():
        for part in ALONE.split(word):
            met[part] += n
    for word, n in expected.copy().items():
        if len(parts := ALONE.split(word)) > 1:
            del expected[word]
            for part in parts:
                expected[part] += n
    assert met == expected


def test_few_words_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, looked_up = random.Random(0), list[bytes]()
    vocabulary = [str(n) for n in range(3000)]
    batches = [[" ".join(draw.choices(vocabulary, k=20)) for _ in range(500)] for _ in range(30)]
    missing = WordNumbers.__getitem__

    def noted(words: WordNumbers, word: bytes) -> int:
        looked_up.append(word)
        return missing(words, word)

    monkeypatch.setattr(WordNumbers, "__getitem__", noted, raising=False)
    words = WordNumbers()
    for texts in batches:
        words.of(texts)
    assert len(words) < 6001
    assert len(looked_up) < 0.1 * 30 * 500 * 20


def test_half_a_character_is_refused() -> None:
    with pytest.raises(InputError, match="half a surrogate pair"):
        WordNumbers().of(["a \ud800"])
