"""Shards as data: documents on access, the tokenizer of the shards and no other."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.shards.tiny import TEXTS, TOKENIZER, shards

from addnorm.data.shards.index import BLOCK, INDEX, ShardFolder
from addnorm.data.shards.source import ShardedTexts, ShardsConfig
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BPEConfig
from addnorm.errors import InputError

BOTH = Tokenizers(TOKENIZER, TOKENIZER)


def test_documents_of_several_folders_are_read_on_access(tmp_path: Path) -> None:
    shards(TEXTS[:10], tmp_path / "a")
    shards(TEXTS[10:30], tmp_path / "b")
    texts = ShardedTexts([ShardFolder.open(tmp_path / name) for name in "ab"])
    assert len(texts) == 30
    for n, example in enumerate(texts):
        ids = TOKENIZER.encode(TEXTS[n])
        assert (example.index, example.tokens, example.targets) == (n, [2, *ids], [*ids, 3])
    assert texts[-1] == texts[29]
    assert texts[3:5] == [texts[3], texts[4]]
    assert texts.n_tokens == sum(len(example.tokens) for example in texts)


def test_the_digest_is_that_of_texts_and_weights(tmp_path: Path) -> None:
    for name, texts in (("a", TEXTS), ("b", TEXTS[::-1]), ("c", TEXTS)):
        shards(texts, tmp_path / name)
    a, b, c = (ShardFolder.open(tmp_path / name) for name in "abc")
    assert ShardedTexts([a]).digest == ShardedTexts([c]).digest
    digests = [
        ShardedTexts(*args).digest for args in (([a],), ([b],), ([a, b],), ([a, b], (1.0, 2.0)))
    ]
    assert len({*digests}) == 4


def test_the_tokenizer_is_that_of_the_shards(tmp_path: Path) -> None:
    shards(TEXTS, tmp_path / "s", valid_fraction=0.1)
    data = ShardsConfig(train=Path("s"), valid=Path("s/valid"), root=tmp_path)
    tokenizers = data.tokenizers()
    assert tokenizers.source.encode("red cats") == TOKENIZER.encode("red cats")
    corpus = data.encoded(tokenizers)
    assert len(corpus.train) + len(corpus.valid) == len(TEXTS)
    assert int(corpus.characters["train"].sum() + corpus.characters["valid"].sum()) == sum(
        map(len, TEXTS)
    )
    other = BPEConfig(vocab_size=290).train(TEXTS)
    with pytest.raises(InputError, match=r"s: its ids are those of another tokenizer"):
        data.encoded(Tokenizers(other, other))
    shards(TEXTS, tmp_path / "other", other)
    mixed = ShardsConfig(train=(Path("s"), Path("other")), root=tmp_path)
    with pytest.raises(InputError, match=r"other: its ids are those of another tokenizer"):
        mixed.encoded(mixed.tokenizers())


@pytest.mark.parametrize("change", [{"start": [7]}, {"end": 299}, {"dtype": "uint32"}])
def test_a_framing_that_is_not_that_of_the_tokenizer(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    report = shards(TEXTS, tmp_path / "s")
    index = tmp_path / "s" / INDEX
    tree = json.loads(index.read_text())
    tree["framing"] |= change
    if "dtype" in change:  # in a tampered folder of twice the bytes, only the framing tells
        (tmp_path / "s" / "000000.tokens").write_bytes(bytes(4 * report.tokens))
        size = 4 * report.documents.kept + 8 * -(-4 * report.tokens // BLOCK)
        (tmp_path / "s" / "000000.documents").write_bytes(bytes(size))
    index.write_text(json.dumps(tree))
    data = ShardsConfig(train=tmp_path / "s")
    with pytest.raises(InputError, match=r"index\.json: damaged: its framing is not that of"):
        data.encoded(data.tokenizers())


def test_what_shards_are_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no texts"):
        ShardsConfig(train=tmp_path).load()
    with pytest.raises(InputError, match="no folder of shards"):
        ShardsConfig(train=tmp_path).tokenizers()
    with pytest.raises(ValueError, match="weights has 2 numbers, and train 1 folders"):
        ShardsConfig(train=tmp_path, weights=(1.0, 2.0))
