"""The words of reports: no sentence of one language stands in the other."""

from addnorm.lab.words import WORDS


def test_chinese_is_chinese() -> None:
    for key, text in WORDS["zh"].items():
        assert any("一" <= letter <= "鿿" for letter in text) or key == "language", key
        assert text != WORDS["en"][key]
