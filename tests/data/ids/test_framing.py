"""Texts and pairs in ids with their special tokens, as in transformers and encoded separately."""

from typing import Any

import pytest
import tokenizers as library
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from addnorm.data import Corpus, Labelled
from addnorm.data.examples import Scored
from addnorm.data.ids import framing as reading
from addnorm.data.ids.framing import (
    around,
    encode_for_task,
    encode_separately,
    in_groups,
    whole_texts,
)
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer, WordConfig, train_tokenizer
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode

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


NAMES = ["<pad>", "<unk>", "<s>", "</s>", "<x>", *"abcdefgh"]

LAYOUTS: dict[str, tuple[str, str, bool]] = {
    "bert": ("<s> $A </s>", "<s>:0 $A:0 </s>:0 $B:1 </s>:1", True),
    "modernbert": ("<s> $A </s>", "<s> $A </s> $B </s>", True),
    "roberta": ("<s> $A </s>", "<s> $A </s> </s> $B </s>", False),
    "camembert": ("<s> $A </s>", "<s> $A </s> </s> $B </s>", True),
    "t5": ("$A </s>", "$A </s> $B </s>", False),
    "xlnet": ("$A </s> <x>:2", "$A </s> $B:1 </s>:1 <x>:2", True),
    "second_first": ("<s> $A </s>", "<s> $B:1 </s> $A:0 </s>", True),
    "mixed_types": ("<s> $A </s>", "<s> $A:0 </s>:0 <x>:1 $B:1 </s>:0", True),
    "no_special": ("$A", "$A $B", False),
    "nothing_between": ("<s> $A", "<s> $A $B", True),
    "many_after": ("<s> $A </s> <x> <x>", "<s> $A </s> $B </s> <x> <x>", False),
}
"""The template of one text and of two, and whether transformers gives the types."""


def both(layout: str) -> tuple[Any, Tokenizer]:
    """A tokenizer of transformers, and ours of the same file."""
    transformers = pytest.importorskip("transformers")
    single, pair, typed = LAYOUTS[layout]
    vocabulary = {name: i for i, name in enumerate(NAMES)}
    inner = library.Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    inner.add_special_tokens(NAMES[:5])
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, vocabulary[name]) for name in NAMES[2:5]]
    )
    names = ["input_ids", "attention_mask", *["token_type_ids"] * typed]
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", model_input_names=names
    )
    start, _, end = single.partition("$A")
    before, after = (tuple(vocabulary[n[:-2] if ":" in n else n] for n in side.split())
                     for side in (start, end))  # fmt: skip
    marks = {"unk_id": 1, "bos_id": 2, "eos_ids": (3,), "pad_id": 0}
    ours = Tokenizer(
        library.Tokenizer.from_str(inner.to_str()), **marks, before=before, after=after
    )
    return theirs, ours


def corpus_of(pairs: list[tuple[str, str]]) -> Corpus:
    return Corpus([Labelled(one, "x", other) for one, other in pairs])


lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=5)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(lengths=lengths, room=st.integers(2, 26))
def test_pairs_are_shortened_as_transformers_does(
    layout: str, lengths: list[tuple[int, int]], room: int
) -> None:
    theirs, ours = both(layout)
    max_len = room + theirs.num_special_tokens_to_add(pair=True)
    pairs = [(" ".join("abcd"[i % 4] for i in range(n)), " ".join("efgh"[i % 4] for i in range(m)))
             for n, m in lengths]  # fmt: skip
    corpus = encode(corpus_of(pairs), Tokenizers(ours, ours)).within(max_len, "shorten")
    for pair, one in zip(pairs, corpus.train, strict=True):
        read = theirs(*pair, truncation="longest_first", max_length=max_len)
        assert one.tokens == read["input_ids"]
        if "token_type_ids" in read:
            assert list(one.types) == read["token_type_ids"]


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=15, deadline=None)
@given(lengths=lengths, room=st.integers(1, 13))
def test_single_and_separate_texts_are_shortened_as_transformers_does(
    layout: str, lengths: list[tuple[int, int]], room: int
) -> None:
    theirs, ours = both(layout)
    max_len = room + theirs.num_special_tokens_to_add(pair=False)
    pairs = [(" ".join("abcdef" * 2)[: 2 * n - 1], " ".join("h" * m)) for n, m in lengths]
    text = Tokenizers(ours, ours)
    expected = [
        [theirs(text, truncation=True, max_length=max_len)["input_ids"] for text in pair]
        for pair in pairs
    ]
    apart = encode(corpus_of(pairs), text, apart=True).within(max_len, "shorten")
    assert [one.tokens for one in apart.train] == [one + other for one, other in expected]
    assert [one.spans[2] for one in apart.train] == [len(one) for one, _ in expected]
    single = Corpus([Labelled(one, "x") for one, _ in pairs])
    found = encode(single, text).within(max_len, "shorten")
    assert [one.tokens for one in found.train] == [one for one, _ in expected]


def test_the_second_text_of_a_pair_is_not_lost() -> None:
    """Under RoBERTa's layout, where both texts have type 0."""
    _, ours = both("roberta")
    corpus = encode(corpus_of([("a b c d a b c d", "e f g")]), Tokenizers(ours, ours))
    [one] = corpus.within(10, "shorten").train
    assert one.tokens == [2, 5, 6, 7, 3, 3, 9, 10, 11, 3]


@pytest.mark.parametrize(("layout", "special"), [("roberta", 4), ("bert", 3), ("no_special", 0)])
def test_a_pair_needs_a_token_of_each_text(layout: str, special: int) -> None:
    _, ours = both(layout)
    corpus = encode(corpus_of([("a b c", "e f g")]), Tokenizers(ours, ours))
    message = f"max_len = {special + 1} has no room for a token of each of two texts in addition"
    with pytest.raises(InputError, match=message):
        corpus.within(special + 1, "shorten")
    assert len(corpus.within(special + 2, "shorten").train[0].tokens) == special + 2


def test_a_text_needs_room_in_addition_to_special_tokens() -> None:
    _, ours = both("bert")
    single = Corpus([Labelled("a b c", "x")])
    corpus = encode(single, Tokenizers(ours, ours))
    with pytest.raises(
        InputError, match="max_len = 2 has no room for text in addition to 2 special tokens"
    ):
        corpus.within(2, "shorten")
    assert corpus.within(3, "shorten").train[0].tokens == [2, 5, 3]
