"""Mask tokens and sentinels: added to learnt tokenizers, found in imported ones."""

from pathlib import Path

import pytest
import tokenizers as library
from tokenizers import models, pre_tokenizers

from addnorm.data.tokenizing.sides import (
    MASK,
    SENTINELS,
    Tokenizers,
    mask_id_of,
    sentinel_ids_of,
    with_special_tokens,
)
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig, Tokenizer, WordConfig
from addnorm.errors import InputError

TEXTS = ["a <mask> is no mask here", "to be or not to be"]


@pytest.mark.parametrize(
    "config", [CharConfig(), WordConfig(), BPEConfig(vocab_size=270)], ids=lambda one: one.kind
)
def test_learnt_tokenizers_get_more(config: CharConfig, tmp_path: Path) -> None:
    plain = config.train(TEXTS)
    both = with_special_tokens(Tokenizers(plain, plain), (MASK, *SENTINELS))
    assert both.source is both.target
    more = both.source
    assert mask_id_of(more) in more.special_ids
    assert [more.id_of(name) for name in SENTINELS] == [*sentinel_ids_of(more)]
    assert more.encode(TEXTS[1]) == plain.encode(TEXTS[1])
    for text in TEXTS:  # whatever a text says, it holds no special token but the unknown one
        assert not {*more.encode(text)} & (more.special_ids - {more.unk_id})
    more.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert mask_id_of(again) == mask_id_of(more)
    assert again.vocab_size == more.vocab_size


def test_nothing_more_changes_nothing() -> None:
    plain = CharConfig().train(TEXTS)
    both = Tokenizers(plain, plain)
    assert with_special_tokens(both, ()) is both


def test_source_and_target_stay_two() -> None:
    both = Tokenizers(CharConfig().train(["a"]), CharConfig().train(["bc"]))
    more = with_special_tokens(both, (MASK,))
    assert more.source is not more.target
    assert mask_id_of(more.target) == mask_id_of(more.source) + 1


def test_a_mask_from_elsewhere() -> None:
    inner = library.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "[MASK]": 2}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ordinary = Tokenizer(inner, unk_id=0)
    with pytest.raises(InputError, match=r"has no mask token, such as <mask> or \[MASK\]"):
        mask_id_of(ordinary)
    inner.add_special_tokens(["[MASK]"])
    assert mask_id_of(Tokenizer(inner, unk_id=0)) == 2


def test_a_tokenizer_without_sentinels() -> None:
    with pytest.raises(InputError, match=r"no sentinels <extra_id_0>, <extra_id_1> …"):
        sentinel_ids_of(CharConfig().train(TEXTS))
