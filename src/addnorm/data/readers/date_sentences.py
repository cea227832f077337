"""The sentences of the corpus of dates: English ones, and their translations by CLDR."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from random import Random
from re import sub

from babel import Locale
from babel.dates import DateTimePattern, format_date, format_time
from babel.numbers import format_decimal
from num2words import num2words  # pyright: ignore[reportUnknownVariableType]

from addnorm.data.examples import Pair
from addnorm.languages import SPOKEN

PHRASES = (
    # English                                           the date's form in CLDR ("": no date)
    ("{weekday}, {month} {day}, {year}", "full"),
    ("{weekday}, the {nth} of {month} {year}", "full"),
    ("{weekday}, {month} {day}, {year} at {time}", "full"),
    ("{month} {day}, {year}", "long"),
    ("the {nth} of {month} {year}", "long"),
    ("{day} {month} {year}", "long"),
    ("{month} {day}, {year} at {time}", "long"),
    ("{month_number}/{day}/{year}", "yMd"),
    ("the {nth} of {month}", "MMMMd"),
    ("the {nth} of {month} at {time}", "MMMMd"),
    ("{weekday} at {time}", "cccc"),
    ("{time}", ""),
)
"""The English phrasings of a moment, with the CLDR form of the translation."""

NUMBER_SHARE = 0.25
"""The fraction of numbers (100 … 9999) among the sentences."""

FIRST, N_MINUTES = datetime(1900, 1, 1), 200 * 365 * 24 * 60
"""Moments are minutes within the two centuries from 1900."""


def english(moment: datetime, phrase: str) -> str:
    """Return the English sentence for a moment, made by one of the `PHRASES`."""
    day = moment.day
    suffix = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return phrase.format(
        weekday=format_date(moment, "cccc", "en"),
        month=format_date(moment, "LLLL", "en"),
        month_number=moment.month,
        day=day,
        nth=f"{day}{suffix}",
        year=moment.year,
        time=_plain(format_time(moment, "short", locale="en")),
    )


def translated(moment: datetime, phrase: str, form: str, locale: Locale) -> str:
    """Return the translation of the sentence into the language of a locale."""
    parts = [_date(moment, form, locale)] if form else []
    if "{time}" in phrase:
        parts.append(format_time(moment, "short", locale=locale))
    if len(parts) == 1:
        return _plain(parts[0])
    date, time = parts
    return _plain(str(locale.datetime_formats["medium"]).replace("{1}", date).replace("{0}", time))


def _date(moment: datetime, form: str, locale: Locale) -> str:
    skeletons: Mapping[str, DateTimePattern] = locale.datetime_skeletons
    return format_date(moment, skeletons[form].pattern if form in skeletons else form, locale)


@cache
def in_words(number: int, locale: Locale) -> str:
    """Return a number from 0 to 9999 in words; in digits if the words are unknown."""
    if locale.language == "zh":
        return _chinese(number)
    name = str(locale) if str(locale) in SPOKEN else locale.language
    if name in SPOKEN:
        return _plain(num2words(number, lang=name).replace(",", ""))
    return _plain(format_decimal(number, locale=locale))


def _chinese(number: int) -> str:
    """Chinese numerals (4207: 四千二百零七): a run of zeros is spoken once, never at the end."""
    digits = str(number)
    spoken = (
        "零一二三四五六七八九"[int(digit)] + (unit if digit != "0" else "")
        for digit, unit in zip(digits, ("千", "百", "十", "")[-len(digits) :], strict=True)
    )
    words = sub("零+", "零", "".join(spoken)).rstrip("零") or "零"
    return words.removeprefix("一") if words.startswith("一十") else words


def _plain(text: str) -> str:
    """Normalise white space: CLDR also uses no-break and narrow spaces."""
    return " ".join(text.split())


def number_pair(number: int, locale: Locale) -> Pair:
    """Return a number from 0 to 9999 in English words, with its translation."""
    return Pair(in_words(number, Locale("en")), in_words(number, locale))


def draw(rng: Random, locale: Locale) -> Pair:
    """Draw a random sentence with its translation from the generator `rng`."""
    if rng.random() < NUMBER_SHARE:
        return number_pair(rng.randrange(100, 10_000), locale)
    moment = FIRST + timedelta(minutes=rng.randrange(N_MINUTES))
    phrase, form = rng.choice(PHRASES)
    return Pair(english(moment, phrase), translated(moment, phrase, form, locale))
