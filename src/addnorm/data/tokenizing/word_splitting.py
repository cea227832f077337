"""Splitting a text into words, at white space or by Kim's rules, and lower case."""

import re
from typing import Literal

from tokenizers import Regex, pre_tokenizers

WordSplitting = Literal["white_space", "kim"]
"""The names of the rules."""

_ENDING = "'(?:s|ve|re|d|ll)|n't"
KIM = f"[,!?()]|(?:{_ENDING})?(?:(?!{_ENDING})[A-Za-z0-9'`])+|{_ENDING}"
"""A word of Kim 2014 (his code): one of the marks `, ! ? ( )` alone, or a row of letters, digits,
apostrophes and back quotes, cut before each `'s 've 're 'd 'll` and `n't`. All other characters
separate words and are dropped.
"""


def words_between_spaces(text: str) -> list[str]:
    """Split a sentence to tag, at spaces, tabs and line breaks only.

    Other white space, such as a no-break space, is part of a word, as in files of tagged words.
    """
    return [word for word in re.split(r"[ \t\r\n]", text) if word]


def words_of(text: str, rules: WordSplitting) -> list[str]:
    """Split a text into words."""
    return text.split() if rules == "white_space" else re.findall(KIM, text)


def word_splitter(rules: WordSplitting) -> pre_tokenizers.PreTokenizer:
    """Return the library's pre-tokenizer for the same rules, which is saved with the tokenizer."""
    if rules == "white_space":
        return pre_tokenizers.WhitespaceSplit()
    return pre_tokenizers.Split(Regex(KIM), behavior="removed", invert=True)


def lower_case(text: str) -> str:
    """Return a text in lower case, character by character as in other libraries' tokenizers.

    Python's `lower` depends on the context for one character, a capital sigma at the end of a word;
    here it becomes the usual small sigma. A character may become two: `İ` is `i` and a dot above.
    """
    return text.replace("Σ", "σ").lower()
