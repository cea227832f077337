"""Dates, times and numbers: disjoint splits, reproducible, unambiguous, correct."""

from datetime import datetime
from random import Random

import pytest
from babel import Locale
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.examples import Pair
from addnorm.data.readers.date_sentences import PHRASES, draw, english, in_words, translated
from addnorm.data.readers.dates import DatesConfig
from addnorm.errors import InputError
from addnorm.languages import LANGUAGES

EVENING = datetime(2026, 3, 5, 19, 45)
FULL, MONTH_DAY_TIME = PHRASES[0], PHRASES[9]


@pytest.mark.parametrize(
    ("to", "full", "time", "number"),
    [
        ("de", "Donnerstag, 5. März 2026", "5. März, 19:45", "viertausendzweihundertsieben"),
        ("zh", "2026年3月5日星期四", "3月5日 19:45", "四千二百零七"),
        ("zh_TW", "2026年3月5日 星期四", "3月5日 晚上7:45", "四千二百零七"),
        ("fr", "jeudi 5 mars 2026", "5 mars, 19:45", "quatre mille deux cent sept"),
        ("es", "jueves, 5 de marzo de 2026", "5 de marzo, 19:45", "cuatro mil doscientos siete"),
        ("ja", "2026年3月5日木曜日", "3月5日 19:45", "四千二百七"),
        ("ru", "четверг, 5 марта 2026 г.", "5 марта, 19:45", "четыре тысячи двести семь"),
        ("ar", "الخميس، 5 مارس 2026", "5 مارس، 7:45 م", "أربعة آلاف و مئتان و سبعة"),
        ("hi", "गुरुवार, 5 मार्च 2026", "5 मार्च, 7:45 pm", "4,207"),
    ],
)
def test_says_the_same_in_the_other_language(to: str, full: str, time: str, number: str) -> None:
    locale = Locale.parse(to)
    assert english(EVENING, FULL[0]) == "Thursday, March 5, 2026"
    assert translated(EVENING, *FULL, locale) == full
    assert english(EVENING, MONTH_DAY_TIME[0]) == "the 5th of March at 7:45 PM"
    assert translated(EVENING, *MONTH_DAY_TIME, locale) == time
    assert in_words(4207, Locale("en")) == "four thousand two hundred and seven"
    assert in_words(4207, locale) == number


@pytest.mark.parametrize(
    "said", ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "31st"]
)
def test_english_ordinals(said: str) -> None:
    day = datetime(2026, 1, int(said[:-2]))
    assert english(day, "the {nth} of {month}") == f"the {said} of January"


def test_chinese_numbers() -> None:
    said = {
        0: "零", 7: "七", 10: "十", 15: "十五", 20: "二十", 100: "一百", 101: "一百零一",
        110: "一百一十", 1000: "一千", 1001: "一千零一", 1010: "一千零一十", 1100: "一千一百",
        4207: "四千二百零七", 9999: "九千九百九十九",
    }  # fmt: skip
    assert {number: in_words(number, Locale("zh")) for number in said} == said


@pytest.mark.parametrize("to", [*LANGUAGES, "zh_TW", "pt_BR", "hi", "sr", "am"])
def test_numbers_in_words_are_distinct(to: str) -> None:
    locale = Locale.parse(to)
    numbers = [*range(0, 10_000, 97), *range(130)]
    assert len({in_words(number, locale) for number in numbers}) == len(set(numbers))


@pytest.mark.parametrize("to", ["de", "zh", "ar"])
def test_splits_are_disjoint_and_repeatable(to: str) -> None:
    config = DatesConfig(to=to, n_train=1000, n_valid=200, n_test=300, seed=3)
    corpus = config.load()
    sources = [pair.source for split in corpus.splits.values() for pair in _pairs(split)]
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (1000, 200, 300)
    assert len(set(sources)) == len(sources)
    assert corpus == config.load()
    assert corpus.task == "translation"
    assert corpus.reports["test"].read == corpus.reports["test"].used == 300


def test_the_seed_decides_and_a_larger_train_split_leaves_the_others() -> None:
    small = DatesConfig(n_train=50, n_valid=20, n_test=20).load()
    large = DatesConfig(n_train=500, n_valid=20, n_test=20).load()
    other = DatesConfig(n_train=50, n_valid=20, n_test=20, seed=1).load()
    assert (large.valid, large.test) == (small.valid, small.test)
    assert other.test != small.test


def test_numbers_below_a_hundred_are_learnt_from() -> None:
    corpus = DatesConfig(n_train=200, n_valid=500, n_test=500).load()
    said = {in_words(number, Locale("en")) for number in range(100)}
    assert said <= {pair.source for pair in _pairs(corpus.train)}


def test_a_split_may_be_empty() -> None:
    corpus = DatesConfig(n_train=1, n_valid=0, n_test=0).load()
    assert (len(corpus.train), corpus.valid, corpus.test) == (1, [], [])


@given(seed=st.integers(), to=st.sampled_from(["de", "zh", "fr", "ru", "ar", "hi"]))
def test_pairs_are_plain_text(seed: int, to: str) -> None:
    pair = draw(Random(seed), Locale(to))
    for text in (pair.source, pair.target):
        assert text == " ".join(text.split()) != ""
    assert pair.source.isascii()


@pytest.mark.long
def test_one_source_has_one_translation() -> None:
    """Whatever moments and phrases lie behind it: the same English means the same German."""
    rng, locale, known = Random(0), Locale("de"), dict[str, str]()
    for _ in range(8_000):
        pair = draw(rng, locale)
        assert known.setdefault(pair.source, pair.target) == pair.target
    assert len(known) < 8_000  # some were drawn twice, or this proves nothing


@pytest.mark.parametrize(
    ("to", "hint"), [("dee", "'de'"), ("German", "'de'"), ("xx", "de, en"), ("", "de, en")]
)
def test_an_unknown_language_names_those_known(to: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint) as caught:
        DatesConfig(to=to).load()
    assert f"to = {to!r}" in str(caught.value)


@pytest.mark.parametrize("bad", [{"n_train": 0}, {"n_test": -1}, {"too": "de"}, {"seed": "x"}])
def test_impossible_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        DatesConfig(**bad)  # pyright: ignore[reportArgumentType]


def _pairs(split: object) -> list[Pair]:
    assert isinstance(split, list)
    return [pair for pair in split if isinstance(pair, Pair)]
