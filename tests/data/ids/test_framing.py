"""Texts in ids with their special tokens: of any number at once, and two texts apart."""

import pytest

from addnorm.data.examples import Labelled, Scored
from addnorm.data.ids import framing as reading
from addnorm.data.ids.framing import (
    around,
    encode_for_task,
    encode_separately,
    in_groups,
    whole_texts,
)
from addnorm.data.tokenizing.tokenizers import Tokenizer, WordConfig, train_tokenizer

TEXTS = ["a b c", "b", "", "c c"]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return train_tokenizer(WordConfig(), TEXTS)


def test_groups_give_what_one_call_gives(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encode_for_task("classification", tokenizer, TEXTS)
    bos, eos = tokenizer.bos_id, tokenizer.eos_ids[0]
    assert whole == [[bos, *tokenizer.encode(text), eos] for text in TEXTS]
    monkeypatch.setattr(reading, "AT_ONCE", 3)
    assert [*in_groups("classification", tokenizer, TEXTS)] == whole
    assert around("language", tokenizer) == ((bos,), ())


@pytest.mark.parametrize("at_once", [1, 2, 4096])
def test_two_texts_stand_apart_each_with_its_special_tokens(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(reading, "AT_ONCE", at_once)
    pairs = [("a b c", "b"), ("b", "c c"), ("c", "a")]
    rows = encode_separately(tokenizer, pairs)
    assert rows == encode_for_task(
        "classification", tokenizer, [text for pair in pairs for text in pair]
    )
    found = [*whole_texts(tokenizer, [Labelled(a, "x", b) for a, b in pairs], apart=True)]
    for i, (ids, types, spans) in enumerate(found):
        one, other = rows[2 * i : 2 * i + 2]
        assert ids == one + other
        assert not types
        assert spans == [0, len(one), len(one), len(one) + len(other)]


def test_one_text_has_no_types(tokenizer: Tokenizer) -> None:
    found = [*whole_texts(tokenizer, [Scored(text, (1.0,)) for text in TEXTS], apart=True)]
    assert found == [(ids, (), ()) for ids in encode_for_task("classification", tokenizer, TEXTS)]
