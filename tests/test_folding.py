"""Messages are folded between words, and what stands in backquotes stays whole."""

from hypothesis import given
from hypothesis import strategies as st

from addnorm.folding import folded


def test_words_and_commands_stay_whole() -> None:
    text = "stopped after step 12; resume with `addnorm train --resume runs/my --train.steps 100`"
    assert folded(text, 40).splitlines() == [
        "stopped after step 12; resume with",
        "`addnorm train --resume runs/my --train.steps 100`",
    ]
    assert folded(text, None) == text


@given(st.lists(st.sampled_from(["a", "word", "well-known", "x" * 30]), min_size=1), st.booleans())
def test_folding_changes_spaces_between_words_alone(words: list[str], lines: bool) -> None:
    text = ("\n" if lines else " ").join(words)
    after = folded(text, 20)
    assert after.split() == text.split()
    assert all(len(line) < 20 or " " not in line for line in after.split("\n"))
