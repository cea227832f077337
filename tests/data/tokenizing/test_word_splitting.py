"""Words by the rules of Kim's classifier, against his substitutions one after another."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from addnorm.data.tokenizing.tokenizers import Tokenizer, WordConfig
from addnorm.data.tokenizing.word_splitting import (
    WordSplitting,
    word_splitter,
    words_between_spaces,
    words_of,
)

TEXT = "I can't say (yet) it's O'Hara's 'dog', don't we'll; they've .com x-ray café `ok`?!"
WORDS = "I ca n't say ( yet ) it 's O'Hara 's 'dog' , do n't we 'll they 've com x ray caf `ok` ? !"


def one_after_another(text: str) -> list[str]:
    """Blank what is left out, put a space before endings and around marks, and divide."""
    text = re.sub(r"[^A-Za-z0-9(),!?'`]", " ", text)
    for ending in ("'s", "'ve", "n't", "'re", "'d", "'ll"):
        text = text.replace(ending, f" {ending}")
    for mark in ",!()?":
        text = text.replace(mark, f" {mark} ")
    return text.split()


def test_endings_and_marks_are_words() -> None:
    assert words_of(TEXT, "kim") == one_after_another(TEXT) == WORDS.split(" ")


@given(st.text() | st.text("ntsvelrdA9',!?()` -é\n", max_size=16))
@example("'s've'n't'lln't")
def test_the_rules_are_kims(text: str) -> None:
    assert words_of(text, "kim") == one_after_another(text)
    found = word_splitter("kim").pre_tokenize_str(text)
    assert [word for word, _ in found] == one_after_another(text)


@pytest.mark.parametrize(
    ("rules", "known"), [("white_space", ["can't", "go,"]), ("kim", ["ca", "n't", "go", ","])]
)
def test_a_tokenizer_keeps_its_rules(
    rules: WordSplitting, known: list[str], tmp_path: Path
) -> None:
    tokenizer = WordConfig(words=rules).train(["can't go,"])
    assert tokenizer.pieces(tokenizer.encode("can't go,")) == known
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.encode("go, can't stay") == tokenizer.encode("go, can't stay")
    assert again.encode("stay") == [tokenizer.unk_id]


def test_words_to_tag_stand_between_spaces_tabs_and_line_breaks() -> None:
    assert words_between_spaces(" a  b\tc\u00a0d\u2028 ") == ["a", "b", "c\u00a0d\u2028"]
    assert words_between_spaces("a\nb\r\n") == ["a", "b"]
    assert words_between_spaces(" \t") == words_between_spaces("") == []
