"""The sentences around the claims: the same ones in both languages, with the same places."""

import re

from addnorm.lab.claim_words import WORDS


def test_both_languages_say_the_same() -> None:
    assert WORDS["en"].keys() == WORDS["zh"].keys()
    for key, sentence in WORDS["en"].items():
        places = [sorted(re.findall(r"{\w*}", one)) for one in (sentence, WORDS["zh"][key])]
        assert places[0] == places[1], key
