import json
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from addnorm.convert.exporters.gguf_vocabulary import (
    ALPHABET,
    CONTROL,
    NORMAL,
    SPLITS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    left_to_right_merges,
    to_byte_alphabet,
    vocabulary,
)
from addnorm.data.tokenizing.tokenizers import (
    SPECIALS,
    BPEConfig,
    CharConfig,
    Tokenizer,
    WordConfig,
)
from addnorm.errors import InputError

TEXTS = ["the theme of the thesis", "déjà vu, 日本"]


def test_byte_pairs_go_over_as_they_are() -> None:
    tokenizer = BPEConfig(vocab_size=266).train(TEXTS)
    found = vocabulary(tokenizer, tokenizer.vocab_size + 1)
    vocab = tokenizer.inner.get_vocab()
    assert found.tokens[:-1] == sorted(vocab, key=vocab.__getitem__)
    assert found.types[:5] == [CONTROL, UNKNOWN, CONTROL, CONTROL, NORMAL]
    assert (found.tokens[-1], found.types[-1]) == (f"[UNUSED{tokenizer.vocab_size}]", UNUSED)
    learnt = json.loads(tokenizer.inner.to_str())["model"]["merges"]
    assert found.merges == [" ".join(pair) for pair in learnt]
    assert len(found.merges) == tokenizer.vocab_size - 260
    assert found.pre == "gpt-2"
    assert found.add_bos


def test_characters_are_joined_from_their_bytes() -> None:
    tokenizer = CharConfig().train(TEXTS)
    found = vocabulary(tokenizer, tokenizer.vocab_size)
    assert found.tokens[:4] == list(SPECIALS)
    assert found.tokens[tokenizer.encode(" ")[0]] == "Ġ"
    assert found.tokens[tokenizer.encode("é")[0]] == "Ã©"
    day = found.tokens[tokenizer.encode("日")[0]]
    assert {f"{day[0]} {day[1]}", f"{day[:2]} {day[2]}"} <= set(found.merges)
    assert len(set(found.merges)) == len(found.merges)


def test_a_list_of_merges_is_never_empty() -> None:
    tokenizer = CharConfig().train(["abc"])
    assert len(vocabulary(tokenizer, tokenizer.vocab_size).merges) == 1


def test_bytes_are_the_letters_of_gpt2() -> None:
    assert to_byte_alphabet(" \n!~é") == "ĠĊ!~Ã©"
    assert set(ALPHABET.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert list(left_to_right_merges(["abc", "x"])) == ["a b", "ab c"]


def _foreign(pre: Any, normalizer: Any = None, *, ignore_merges: bool = False) -> Tokenizer:
    vocab = {"<end>": 0, "a": 1, "b": 2, "ab": 3, "<x>": 4}
    model = models.BPE(vocab=vocab, merges=[("a", "b")], ignore_merges=ignore_merges)
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre
    if normalizer is not None:
        inner.normalizer = normalizer
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<end>"])
    inner.add_tokens(["<x>"])
    return Tokenizer(
        inner, pad_id=None, unk_id=None, bos_id=None, eos_ids=(0,), before=(), after=()
    )


def _split(pattern: str) -> Any:
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, level])


@pytest.mark.parametrize("pattern", SPLITS)
def test_words_of_other_families_are_told_by_their_pattern(pattern: str) -> None:
    name = SPLITS[pattern]
    nfc = normalizers.NFC() if name == "qwen2" else None
    own = _foreign(_split(pattern), nfc, ignore_merges=name == "llama-bpe")
    found = vocabulary(own, 5)
    assert found.pre == name
    assert found.types == [CONTROL, NORMAL, NORMAL, NORMAL, USER_DEFINED]
    assert not found.add_bos


def test_the_patterns_are_those_of_the_families() -> None:
    llama = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
        r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    assert SPLITS[llama] == "llama-bpe"
    assert SPLITS[llama.replace("{1,3}", "")] == "qwen2"


@pytest.mark.parametrize(
    ("tokenizer", "says"),
    [
        (WordConfig().train(TEXTS), "a WordLevel tokenizer cannot"),
        (_foreign(_split(r"\w+")), "in its own way"),
        (_foreign(pre_tokenizers.Whitespace()), "in its own way"),
        (_foreign(pre_tokenizers.ByteLevel(add_prefix_space=True)), "in its own way"),
        (
            _foreign(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Lowercase()),
            "the normalizer Lowercase",
        ),
        (
            _foreign(pre_tokenizers.ByteLevel(add_prefix_space=False), ignore_merges=True),
            "looks up words before merging",
        ),
    ],
)
def test_other_tokenizers_are_refused(tokenizer: Tokenizer, says: str) -> None:
    with pytest.raises(InputError, match=says):
        vocabulary(tokenizer, tokenizer.vocab_size)


def test_what_stands_before_a_text_is_the_start_or_nothing() -> None:
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own = _foreign(level)
    assert not vocabulary(own, 5).add_bos
    inner = own.inner
    other = Tokenizer(inner, unk_id=None, bos_id=0, eos_ids=(0,), before=(1,), after=())
    with pytest.raises(InputError, match=r"puts \(1,\) before"):
        vocabulary(other, 5)


def test_a_vocabulary_larger_than_the_model_is_refused() -> None:
    tokenizer = CharConfig().train(TEXTS)
    with pytest.raises(InputError, match=f"has {tokenizer.vocab_size} tokens, but the model has"):
        vocabulary(tokenizer, tokenizer.vocab_size - 1)
