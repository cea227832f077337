"""The tokens of answers: their texts and bytes, where they begin, and which a stop string cuts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.tokenizing.text_decoding import TextDecoder
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig, Tokenizer
from addnorm.serve.engine.events import Event
from addnorm.serve.http.answers import (
    AnswerText,
    Offsets,
    Score,
    chat_logprobs,
    completion_logprobs,
    scores_of_prompt,
    text_of,
)

BPE = BPEConfig(vocab_size=280).train(["the cat sat on the mat, the cat"])


def test_a_part_of_a_character_is_shown_by_its_bytes() -> None:
    ids = BPE.encode("你")
    assert [text_of(BPE, i) for i in ids] == [
        ("bytes:\\xe4", b"\xe4"),
        ("bytes:\\xbd", b"\xbd"),
        ("bytes:\\xa0", b"\xa0"),
    ]
    scores = [Score(i, -1.0, (), 0) for i in ids]
    listed = chat_logprobs(BPE, scores, 0)["content"]
    assert bytes(byte for entry in listed for byte in entry["bytes"]).decode() == "你"


@given(st.text())
def test_bytes_of_tokens_join_to_the_text(text: str) -> None:
    assert b"".join(text_of(BPE, i)[1] or b"" for i in BPE.encode(text)) == text.encode()


def test_the_bytes_of_a_replacement_character_are_its_own() -> None:
    tokenizer = CharConfig().train(["a\ufffd"])
    [i] = tokenizer.encode("\ufffd")
    assert text_of(tokenizer, i)[0] == "\ufffd"


def test_best_tokens_of_one_text_have_two_names() -> None:
    class Twice:
        codec = BPE.codec

    a = BPE.encode("a")[0]
    wrong: Any = Twice()
    wrong.codec = type("Codec", (), {"alone": lambda self, ids: ["a"]})()
    [best] = completion_logprobs(wrong, [Score(a, -1.0, ((a + 1, -2.0), (a, -1.0)), 0)])[
        "top_logprobs"
    ]
    assert best == {"a": -2.0, f"token_id:{a}": -1.0}


def check_offsets(tokenizer: Tokenizer, ids: list[int]) -> None:
    """Each token of whole characters stands in the text where its offset says."""
    offsets = Offsets(tokenizer)
    text = tokenizer.decode(ids)
    begins = [offsets.push(i) for i in ids]
    assert begins == sorted(begins)
    for i, begin in zip(ids, begins, strict=True):
        if "\ufffd" not in (piece := tokenizer.codec.alone([i])[0]):
            assert text[begin:].startswith(piece)


@given(st.lists(st.integers(4, BPE.vocab_size - 1), max_size=30))
def test_offsets_are_those_of_the_text(ids: list[int]) -> None:
    check_offsets(BPE, ids)


def test_offsets_count_special_tokens_that_are_spelt() -> None:
    ids = [BPE.bos_id, *BPE.encode("a"), BPE.bos_id, *BPE.encode("b c")]
    scores = scores_of_prompt(BPE, ids, None, "a<bos>b c")
    text = "a<bos>b c"
    assert [text[each.offset :][:1] for each in scores] == ["a", "a", "<", "b", " ", "c"]
    assert [each.offset for each in scores_of_prompt(BPE, ids, None, "ab c")] == [0, 0, 1, 1, 2, 3]


def test_offsets_across_a_wrong_byte() -> None:
    parts = [*BPE.encode("a"), BPE.encode("²")[1], *BPE.encode("\x17b")]
    offsets = Offsets(BPE)
    assert [offsets.push(i) for i in parts] == [0, 1, 2, 3]


@pytest.mark.parametrize("step", [1, 3])
def test_a_stop_string_cuts_tokens_and_text(step: int) -> None:
    ids = BPE.encode("xyz STOP more")
    answer = AnswerText(TextDecoder(BPE, ("STOP",)))
    text, tokens = "", list[int]()
    for start in range(0, len(ids), step):
        some = tuple(ids[start : start + step])
        piece = answer.push(Event(name="a", index=0, tokens=some, log_probs=(-1.0,) * len(some)))
        text += piece.text
        tokens += [score.token for score in piece.scores]
        if piece.by_stop:
            break
    assert text == "xyz "
    assert BPE.decode(tokens) == text
